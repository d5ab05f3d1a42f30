"""How often acceptance campaigns are wrong, and how many runs they take, by simulation.

    python -m llmb_common.results.sequential_simulation [--trials 1000] [--seed 1]

prints the table of ``docs/acceptance.md``. Each cell: pass / fail / inconclusive in per cent of the trials, and the
mean number of runs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from llmb_common.results.decision import Answer, Decision, decide
from llmb_common.results.estimate import StepTime
from llmb_common.results.sequential import REQUIRED, Attempt, error_rate, follow, tolerance_of
from llmb_common.results.simulation import NOISES, print_table, simulate

PERFORMANCE = (1.00, 0.97, 0.95, 0.93)
"""True performance as a share of the reference's. 0.95 is the limit itself: either answer may come there, seldom."""

CASES = ((1, 0), (1, 2), (3, 4), (3, 12))
"""Repeats and reruns."""


def campaign(runs: Sequence[StepTime], reference: float, repeats: int, reruns: int) -> tuple[Answer, int]:
    """The answer of a campaign whose runs take the times ``runs`` (all that it may ask for), and how many it took."""

    def judge(times: Sequence[StepTime]) -> Decision:
        return decide(times, reference, tolerance=tolerance_of(REQUIRED), error_rate=error_rate(reruns))

    taken = repeats
    while True:
        found = follow([Attempt(time) for time in runs[:taken]], repeats, reruns, judge)
        if found.answer is not None:
            return found.answer, found.attempts
        taken = found.attempts


def outcomes(runs: Sequence[StepTime], performance: float, repeats: int, reruns: int) -> tuple[Counter[Answer], float]:
    """How often campaigns over ``runs`` (each at 1 s, each used once) get each answer; their mean number of runs."""
    most = repeats + reruns
    # Noise grows with the step time: a run at 1 / performance seconds against 1 s is one at 1 s against `performance`.
    ends = [campaign(runs[at : at + most], performance, repeats, reruns) for at in range(0, len(runs) - most + 1, most)]
    return Counter(answer for answer, _ in ends), sum(taken for _, taken in ends) / len(ends)


def table(trials: int, seed: int) -> Iterator[str]:
    """The lines of a Markdown table."""
    heads = " | ".join(f"true performance {100 * share:.0f} %" for share in PERFORMANCE)
    yield f"| Noise | Repeats + reruns | {heads} |"
    yield "|---|---:|" + "---:|" * len(PERFORMANCE)
    for noise in NOISES:
        source = random.Random(f"{seed} {noise.title}")
        runs = [simulate(noise, source) for _ in range(trials * max(map(sum, CASES)))]
        for repeats, reruns in CASES:
            cells = []
            for performance in PERFORMANCE:
                counted, mean = outcomes(runs[: trials * (repeats + reruns)], performance, repeats, reruns)
                shares = [100 * counted[answer] / trials for answer in ("pass", "fail", "inconclusive")]
                cells.append(" / ".join(f"{share:.1f}" for share in shares) + f" ({mean:.1f})")
            yield f"| {noise.title} | {repeats} + {reruns} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    print_table(table, __doc__, 1000)


if __name__ == "__main__":
    main()
