#!/usr/bin/env python3
"""How many results that are missing lie inside the bands of step times: a random third of all is left out, often.

Weights, bands and what is known of each model are learned from the rest alone (``tools.step_times``), and the third is
predicted as a plan would. ``python benchmarks/step_time_coverage.py [times]``: 200 take two minutes of CPU.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "common")]

from llmb_common.planning import step_time  # noqa: E402
from llmb_common.platform.engines import same_release  # noqa: E402
from tools.step_times import Point, learn, nearest, points  # noqa: E402


def main() -> None:
    times, every = int(sys.argv[1]) if len(sys.argv) > 1 else 200, points()
    inside, predicted = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for seed in range(times):
        mixed = random.Random(seed).sample(every, len(every))
        missing, known = mixed[: len(mixed) // 3], mixed[len(mixed) // 3 :]
        what = learn(known)
        for point in missing:
            if (band := predicted_by(point, known, what)) is not None:
                predicted[band.knowledge, point.work.kind] += 1
                inside[band.knowledge, point.work.kind] += band.low <= point.seconds <= band.high
    for (knowledge, kind), many in sorted(predicted.items()):
        print(f"{knowledge:16} {kind:6} {inside[knowledge, kind] / many:6.1%} of {many}")


def predicted_by(point: Point, known: list[Point], what: step_time.Learned) -> step_time.Band | None:
    same = [other for other in known if other.configuration == point.configuration]
    if not same:
        return step_time.predict(point.work, None, what=what)
    best = nearest(point.container, same, what.containers)
    return step_time.predict(point.work, (best.seconds, same_release(best.container, point.container)), what=what)


if __name__ == "__main__":
    main()
