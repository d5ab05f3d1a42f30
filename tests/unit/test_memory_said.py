"""What screens say of a job's memory: predicted and measured peaks, and kinds of jobs that ran out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.memory import ran_out
from llmb_common.planning.outlook_lines import answer_line, memory_line
from support.plans import ROOT, plan
from support.texts import Texts

PEAKS = json.loads((ROOT / "tests/data/memory_peaks.json").read_text())


def planned(size: str, gpu: str, dtype: str, gpus: int, **further: str) -> JobPlan:
    asked = {"MODEL_SIZE": size, "GPU_TYPE": gpu, "DTYPE": dtype, "JOB_TOTAL_GPUS": str(gpus), **further}
    return plan("mbridge", **asked)


@pytest.mark.parametrize("row", PEAKS["functions"], ids=lambda row: f"{row['function']}-{row['allocated_gib']}")
def test_the_screen_shows_what_was_measured_of_this_very_function(row: dict[str, Any]) -> None:
    words = r"(.*)_pretrain_(\d+)gpu_(.*)_(bf16|fp8)(mx)?(_fsdp)?_config"
    model, gpus, gpu, dtype, recipe, fsdp = re.findall(words, row["function"])[0]
    further = {"FP8_RECIPE": recipe} if recipe else {}
    variant = "fsdp" if fsdp else "pretrain"
    memory = planned(model, gpu, dtype, int(gpus), **further, CONFIG_VARIANT=variant).preflight.memory
    assert memory is not None
    found = re.search(r"([0-9.]+) GiB predicted, ([0-9.]+) where measured, and 2 in reserve", memory_line(memory))
    assert found is not None
    peaks = [other["allocated_gib"] for other in PEAKS["functions"] if other["function"] == row["function"]]
    assert float(found[2]) == pytest.approx(max(peaks), abs=0.1)


def test_fits_is_not_said_where_a_job_of_the_kind_ran_out(texts: Texts) -> None:
    def first_line(*job: Any) -> str:
        return answer_line(planned(*job))

    texts(first_line("llama31_405b", "gb200", "nvfp4", 256))
    texts(first_line("nemotron_3_super", "gb300", "nvfp4", 64))
    fits = first_line("llama3_70b", "gb200", "nvfp4", 64).startswith("fits: ")
    assert fits, "less of its GPU than the job that ran out"
    assert first_line("deepseek_v3", "gb300", "bf16", 256).startswith("fits: ")


@pytest.mark.parametrize(
    ("kind", "share", "seen"),
    [
        ("dense, nvfp4, VP", 0.88, True),
        ("dense, nvfp4, VP", 0.86, False),
        ("dense, bf16", 0.99, False),
        ("experts, bf16, recomputation, CUDA graphs", 0.93, True),
        ("experts, bf16, recomputation", 0.99, False),
    ],
)
def test_who_needs_less_than_one_that_ran_out_is_not_doubted(kind: str, share: float, seen: bool) -> None:
    assert bool(ran_out(kind, share)) is seen
