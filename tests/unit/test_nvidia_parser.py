"""Our figures are those of NVIDIA's own parser, on a real log and on made ones.

``tests/data/logs/nvidia_parser.json`` has what ``pretrain_log_parser.parse_pretrain_log`` of dgxc-benchmarking
26.06.01 (``cli/llmb-run/src/llmb_run``) returned for these logs; none of its code is here. To ask it again, write
the logs of ``LOGS`` to files and call it with each file, framework and window.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmb_common.runs.timing.log_files import find_runs
from llmb_common.runs.timing.runs import RunTiming, analyse
from llmb_common.runs.timing.window import Window
from support.iteration_logs import mbridge_line, nemo_line, step_time

DATA = Path(__file__).resolve().parents[1] / "data" / "logs"
SAID: list[dict[str, Any]] = json.loads((DATA / "nvidia_parser.json").read_text())["results"]


def bridge(last: int = 50, not_finite: int = 0) -> str:
    """Both ranks' prints of a run whose steps and TFLOPS scatter."""
    noise = random.Random(7)
    lines = []
    for index in range(1, last + 1):
        seconds = round(5.74 * (1 + noise.gauss(0, 0.02)), 4)
        tflops = round(10338 / seconds, 1)
        lines.append(step_time(seconds, tflops))
        grad_norm = "nan" if index == not_finite else "1.019"
        lines.append(mbridge_line(index, 50, milliseconds=f"{1000 * seconds:.1f}", tflops=tflops, grad_norm=grad_norm))
    return "".join(lines)


def nemo() -> str:
    noise = random.Random(8)
    return "".join(
        nemo_line(index, seconds=round(2.69 * (1 + noise.gauss(0, 0.02)), 3), tflops=round(noise.gauss(528, 4), 2))
        for index in range(50)
    )


LOGS: dict[str, Callable[[], str]] = {
    "real, 2 ranks on CPUs": lambda: (DATA / "mbridge_2ranks_cpu.out").read_text(),
    "made, Megatron-Bridge": bridge,
    "made, cut at 47": lambda: bridge(47),
    "made, NaN at 20": lambda: bridge(not_finite=20),
    "made, NeMo 2": nemo,
}


def ours(name: str, window: list[int], folder: Path) -> RunTiming:
    log = folder / "log-run.out"
    log.write_text(LOGS[name]())
    (files,) = find_runs(folder)
    return analyse(files, Window(*window))


@pytest.mark.parametrize("said", SAID, ids=lambda said: f"{said['log']}, {said['window']}")
def test_both_parsers_agree(said: dict[str, Any], tmp_path: Path) -> None:
    found = ours(said["log"], said["window"], tmp_path)
    assert (found.status.state == "Success") is (said["status"] == "success")
    if said["status"] != "success":
        return
    assert found.seconds
    assert found.tflops
    assert (found.seconds.count, found.tflops.count) == (said["time_sample_count"], said["tflops_sample_count"])
    assert found.seconds.mean == pytest.approx(said["time_mean_seconds"], rel=1e-12)
    assert found.seconds.std == pytest.approx(said["time_std_seconds"], rel=1e-9)
    assert found.tflops.mean == pytest.approx(said["tflops_per_gpu_mean"], rel=1e-12)
    assert found.tflops.std == pytest.approx(said["tflops_per_gpu_std"], rel=1e-9)


def test_the_answers_cover_both_engines_and_all_logs() -> None:
    assert {said["log"] for said in SAID} == set(LOGS)
    assert {said["status"] for said in SAID} == {"success", "incomplete", "invalid_grad_norm"}
