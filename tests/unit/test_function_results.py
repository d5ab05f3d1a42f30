"""Results of jobs that call a function: two counts of FLOPs, and what must be known of their references."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.measured.measure import measure_run
from llmb_common.measured.run import reference_lines
from llmb_common.planning.workspace import Workspace
from llmb_common.results.steps import window_of
from llmb_common.results.verdict import figures, judge_result
from llmb_common.runs.timing.log_files import find_runs
from llmb_common.runs.timing.runs import analyse
from llmb_run import columns
from llmb_run.results.run_columns import RUN, reference_as_dict
from support.functions import CATALOGUE, RECIPE, ROOT, UNCHECKED, plan
from support.runs import make_run, steady_log

APART = {
    "nemotron_3_nano": 0.0724,  # Mamba's inner width is 64 x 64, not twice 2688
    "nemotron_3_5_lightning": 0.0496,
    "glm51": 2.0728,  # an index chooses 2048 tokens
    "glm52": 2.9928,  # and 57 of 78 layers take those of a layer before
}
"""How much more Megatron-Bridge counts, where it is more than 1 %."""


def test_two_counts_of_flops_agree_but_where_bridge_is_known_to_be_wrong() -> None:
    for entry in CATALOGUE.index:
        function = CATALOGUE.function(entry.name)
        if entry.task == "peft" or entry.model.startswith("wan"):
            assert function.own_flops_per_token is None
            continue
        assert function.flops_per_token is not None
        assert function.own_flops_per_token is not None
        apart = function.flops_per_token / function.own_flops_per_token - 1
        assert apart == pytest.approx(APART.get(entry.model, 0), abs=0.0005 if entry.model in APART else 0.007)


def test_mfu_is_of_our_own_count_and_both_are_said(tmp_path: Path) -> None:
    variables = {"GPU_TYPE": "h100", "MODEL_SIZE": "nemotron_3_nano", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16"}
    record = make_run(tmp_path, "mbridge", log=steady_log(5000), variables=variables)
    timing = analyse(find_runs(record.paths.folder)[0], window_of(record.plan))
    found = figures(record.plan, RECIPE, timing, 5.0)
    function = record.plan.function
    assert function is not None
    assert function.own_flops_per_token is not None
    assert found.own_tflops_per_gpu is not None
    assert found.tflops_per_gpu == pytest.approx(found.own_tflops_per_gpu * 1.0724, rel=1e-3)
    tokens = record.plan.gbs * record.plan.seq_len / 5.0 / 16
    assert found.mfu == pytest.approx(function.own_flops_per_token * tokens / 989e12)
    remarks = judge_result(record.plan, RECIPE, timing).remarks
    assert any("+7.2 %" in text for text in remarks)
    llama = variables | {"MODEL_SIZE": "llama3_8b", "JOB_TOTAL_GPUS": "8"}
    same = make_run(tmp_path, "mbridge", log=steady_log(5000), variables=llama)
    found = figures(same.plan, RECIPE, timing, 5.0)
    assert found.own_tflops_per_gpu is None
    assert not any("FLOPs" in text for text in judge_result(same.plan, RECIPE, timing).remarks)
    measured = measure_run(record, Workspace(tmp_path))
    headings, (cells,) = columns.cells(RUN, columns.Form.TABLE, [measured])
    shown = dict(zip(headings, cells, strict=True))
    assert float(shown["TFLOPS/GPU"]) == pytest.approx(1.0724 * float(shown["own TFLOPS/GPU"]), rel=1e-3)
    assert "own TFLOPS/GPU" not in columns.cells(RUN, columns.Form.TABLE, [measure_run(same, Workspace(tmp_path))])[0]


REGRESSED = {"GPU_TYPE": "gb300", "MODEL_SIZE": "gpt_oss_120b", "JOB_TOTAL_GPUS": "64"}
"""In 26.06.01; the same function was faster before and after."""


def test_only_results_that_fit_neither_neighbour_are_said_to_be_odd() -> None:
    odd = {
        (r.size, r.gpu, r.container) for r in RECIPE.results if any("neighboring releases" in note for note in r.notes)
    }
    assert odd == {("gpt_oss_120b", gpu, "26.06.01") for gpu in ("gb200", "gb300")}
    muon = [r for r in RECIPE.results if any("Muon" in note for note in r.notes)]
    assert {r.size for r in muon} == {"kimi_k2"}


def test_what_must_be_known_of_a_reference_stands_beside_every_verdict(tmp_path: Path) -> None:
    image = {"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:26.06.01"} | UNCHECKED
    assert not [text for text in plan(**REGRESSED).preflight.warnings if "published result" in text]
    record = make_run(tmp_path, "mbridge", log=steady_log(4038 * 0.95, tflops=None), variables=REGRESSED | image)
    warned = [text for text in record.plan.preflight.warnings if text.startswith("published result of perf")]
    assert len(warned) == 2
    timing = analyse(find_runs(record.paths.folder)[0], window_of(record.plan))
    verdict = judge_result(record.plan, RECIPE, timing)
    assert verdict.kind == "pass"
    assert verdict.text.endswith("note on its reference")
    regression = "declared by NVIDIA as a regression of GPT-OSS 120B in this container (cudnn-frontend issue 256)"
    assert f"its reference: {regression}" in verdict.remarks
    assert any("+63 % against 26.08 and +63 % against 26.06" in text for text in verdict.remarks)
    measured = measure_run(record, Workspace(tmp_path))
    assert any(line.endswith(f": {regression}") for line in reference_lines([measured]))
    assert verdict.reference is not None
    assert regression in reference_as_dict(verdict.reference)["notes"]
    assert regression not in judge_result(record.plan, RECIPE, timing, [replace(verdict.reference, notes=())]).remarks


def test_a_result_with_token_drop_belongs_to_no_function() -> None:
    document = json.loads((ROOT / "mbridge" / "published.json").read_text())
    dropping = [row for row in document["rows"] if "tokendrop" in row["model"]]
    assert len(dropping) == 13
    assert not [row for row in dropping if "function" in row], "it does less work than the function, which drops none"
