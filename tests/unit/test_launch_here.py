"""What launch.sh does once a Python is found, in this process; errors as JSON; and small things of the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmb_common import launch
from llmb_common.errors import (
    AnswerLost,
    CheckFailed,
    ConfigError,
    EnvironmentLacks,
    Interrupted,
    LLMBError,
    RecipeError,
    RecordError,
    RequestError,
    SchedulerError,
    did_you_mean,
)
from llmb_common.platform import gpus
from llmb_common.request.variables import VARIABLES

RECIPE = Path(__file__).resolve().parents[2] / "llama3.1"
SMALL = {"MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "8", "GPU_TYPE": "h100", "CLUSTER_TYPE": "slurm", "DTYPE": "bf16"}


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def start(*arguments: str, **variables: str) -> tuple[int, str, str]:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in ({"LLMB_INSTALL": str(tmp_path)} | variables).items():
            monkeypatch.setenv(name, value)
        status = launch.main(list(arguments) or [str(RECIPE)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return start


def test_a_dry_run_prints_the_script(start: Any) -> None:
    status, out, _ = start(**SMALL, DRY_RUN="true")
    assert status == 0
    assert out.startswith("#!/bin/bash\n#SBATCH ")
    assert out.endswith("\n")


def test_a_script_is_printed_to_the_letter(start: Any) -> None:
    status, out, _ = start(**SMALL, DRY_RUN="true", NCCL_ALGO="a\u200bb")
    assert status == 0
    assert "a\u200bb" in out


def test_a_dry_run_may_print_the_plan(start: Any) -> None:
    status, out, _ = start(**SMALL, DRY_RUN="json")
    assert status == 0
    plan = json.loads(out)
    assert {"recipe": "llama3.1", "gpus": 8, "gpu_type": "h100", "dtype": "bf16"}.items() <= plan.items()
    assert out.startswith('{\n  "'), "indented for people"


def test_what_to_know_of_a_plan_goes_to_stderr(start: Any) -> None:
    status, out, err = start(**SMALL, DRY_RUN="json", SBATCH_QOS="high")
    assert status == 0
    warnings = json.loads(out)["preflight"]["warnings"]
    assert warnings
    said = err.splitlines()
    assert said[:-2] == [f"note: {warning}" for warning in warnings]
    assert [line[:13] for line in said[-2:]] == ["note: memory:", "note: time: 1"], "the job in short"


def test_what_a_machine_without_gpus_cannot_run_is_refused_with_the_dry_run_that_plans_it(start, tmp_path):
    (tmp_path / "cluster_config.yaml").write_text("schema: 1\ncluster_type: local\ngpu_type: cpu\n")
    status, out, err = start(JOB_TOTAL_GPUS="1024")
    assert (status, out) == (2, "")
    assert "JOB_TOTAL_GPUS=1024: no configuration of llama3.1 smoke bf16 on cpu (gpu_type in cluster_" in err
    assert "; DRY_RUN=true (llmb-run: --dry-run) plans it for h100 on a cluster\n" in err
    assert "DRY_RUN" not in start(JOB_TOTAL_GPUS="1025")[2], "nobody has such a job"
    for number, said, gpu_type in (("1024", {}, "h100"), ("128", {"GPU_TYPE": "gb200"}, "gb200")):
        status, out, err = start(JOB_TOTAL_GPUS=number, DRY_RUN="json", **said)
        plan = json.loads(out)
        assert (status, plan["gpu_type"], plan["cluster_type"], plan["model_size"]) == (0, gpu_type, "slurm", "405b")
        assert f"note: there are no GPUs here: planned for {gpu_type} on a Slurm cluster\n" in err
    assert json.loads(start(JOB_TOTAL_GPUS="2", DRY_RUN="json")[1])["model_size"] == "smoke", (
        "what it can run, it plans"
    )
    assert "1024: no configuration of" in start(JOB_TOTAL_GPUS="1024", DRY_RUN="true", GPU_TYPE="cpu")[2]


@pytest.mark.parametrize(
    ("words", "status"),
    [(["a", "b"], 2), ([str(RECIPE), "-h"], 0), ([str(RECIPE), "--help"], 0), (["-h", "-h", "x"], 2)],
)
def test_settings_are_variables_and_no_arguments(start: Any, words: list[str], status: int) -> None:
    done, out, err = start(*words)
    assert (done, out) == (status, "")
    assert err.startswith("launch.sh takes its settings from environment variables, not arguments; for example\n")
    assert "JOB_TOTAL_GPUS=128" in err


def test_its_words_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["launch", str(RECIPE), "--help"])
    assert launch.main() == 0


def test_a_wrong_request_is_a_message_and_status_2(start: Any) -> None:
    status, out, err = start(**SMALL | {"JOB_TOTAL_GPUS": "x"}, DRY_RUN="true")
    assert (status, out) == (2, "")
    assert err.startswith("error: JOB_TOTAL_GPUS=x is not a positive whole number\n  -> ")


def test_a_job_that_was_submitted_is_told_with_its_folder(start, tmp_path, monkeypatch):
    from support.runs import make_run

    record = make_run(tmp_path, state="SUBMITTED", job_id="77")

    def submit(plan: Any, folder: Path, on_record: Any) -> Any:
        on_record(record)
        assert (plan.gpus, folder) == (8, RECIPE)
        return record

    monkeypatch.setattr("llmb_common.submission.submit", submit)
    status, out, err = start(**SMALL)
    assert (status, out) == (0, "Submitted batch job 77\n")
    assert err.splitlines()[-2:] == [record.paths.name, f"  {record.paths.folder}"]
    monkeypatch.setattr("llmb_common.submission.submit", lambda *_, **__: make_run(tmp_path, job_id=None))
    assert start(**SMALL)[1].startswith("COMPLETED: /")


# Errors


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (RequestError, 2, "request"),
        (RecipeError, 2, "recipe"),
        (ConfigError, 2, "config"),
        (EnvironmentLacks, 3, "environment"),
        (SchedulerError, 3, "scheduler"),
        (AnswerLost, 3, "unknown"),
        (RecordError, 3, "record"),
        (CheckFailed, 1, "failed"),
        (Interrupted, 130, "interrupted"),
        (LLMBError, 1, "error"),
    ],
)
def test_an_error_as_json_and_as_text(kind: type[LLMBError], status: int, code: str) -> None:
    error = kind("it is wrong", remedy="correct it")
    expected: dict[str, object] = {
        "code": code,
        "message": "it is wrong",
        "remedy": "correct it",
        "exit_status": status,
    }
    assert error.as_dict() == expected | ({"field": ""} if kind is RequestError else {})
    assert str(error) == "it is wrong\n  -> correct it"
    assert str(kind("it is wrong")) == "it is wrong"
    assert kind("x", code="other").as_dict()["code"] == "other"


def test_an_error_about_one_field_names_it() -> None:
    assert RequestError("x", field="DTYPE").as_dict()["field"] == "DTYPE"


@pytest.mark.parametrize(
    "name", ["a10", "a30", "a40", "a100", "a800", "b100", "gh200", "h20", "h800", "l4", "l40", "l40s", "v100"]
)
def test_a_gpu_that_exists_is_not_corrected(name: str) -> None:
    assert name in gpus.OTHERS
    assert did_you_mean(name, [f"{name}0", f"g{name}"]) == ""


def test_a_correction_is_suggested_only_where_it_can_be_meant() -> None:
    assert did_you_mean("hundert", ["hundred", "h100"]) == " (did you mean 'hundred'?)"
    assert did_you_mean("xyz", ["hundred"]) == ""
    for word, near in (("fp4", "fp8"), ("FP16", "bf16"), ("mxfp8", "fp8")):
        assert did_you_mean(word, [near]) == "", "it exists, and is meant"
    assert did_you_mean("H100", ["h200x"]) == ""
    assert did_you_mean("abcd", ["abxy"]) == ""
    assert did_you_mean("abcd", ["abxy"], cutoff=0.5) == " (did you mean 'abxy'?)"


# Lists that an installation keeps


# GPUs


PEAKS = {
    "bf16": {"gb300": 2450, "gb200": 2450, "b300": 2250, "b200": 2250, "h200": 989, "h100": 989},
    "fp8": {"gb300": 4900, "gb200": 4900, "b300": 4500, "b200": 4500, "h200": 1979, "h100": 1979},
    "nvfp4": {"gb300": 14700, "gb200": 9800, "b300": 13500, "b200": 9000},
}
"""As the table "Peak Theoretical Throughput" prints them; H200 is H100 with more memory."""


@pytest.mark.parametrize(
    ("name", "generation", "per_node", "nvlink_nodes", "host", "memory"),
    [
        ("vr200", "rubin", 4, 18, "aarch64", 288),
        ("r100", "rubin", 1, 72, "aarch64", 288),
        ("gb300", "blackwell", 4, 18, "aarch64", 279),
        ("gb200", "blackwell", 4, 18, "aarch64", 186),
        ("b300", "blackwell", 8, 1, "x86_64", 270),
        ("b200", "blackwell", 8, 1, "x86_64", 180),
        ("h200", "hopper", 8, 1, "x86_64", 141),
        ("h100", "hopper", 8, 1, "x86_64", 80),
    ],
)
def test_a_gpu_is_what_its_maker_says(name, generation, per_node, nvlink_nodes, host, memory):
    gpu = gpus.GPUS[name]
    assert (gpu.generation, gpu.per_node, gpu.nvlink_nodes, gpu.host) == (generation, per_node, nvlink_nodes, host)
    assert gpu.memory_gb == memory
    assert gpu.peaks == {dtype: peaks[name] for dtype, peaks in PEAKS.items() if name in peaks}
    assert (gpus.generation_of(name), gpus.per_node(name)) == (generation, per_node)


def test_a_cpu_has_ranks_and_neither_a_generation_nor_peaks() -> None:
    assert (gpus.generation_of("cpu"), gpus.per_node("cpu"), gpus.peak_tflops("cpu", "bf16")) == (None, 8, None)
    assert gpus.gpu_types() == ("vr200", "r100", "gb300", "gb200", "b300", "b200", "h200", "h100", "cpu")


def test_whose_rows_a_gpu_runs() -> None:
    assert {name: gpus.rows_of(name) for name in gpus.GPUS if gpus.rows_of(name) != name} == {
        "b300": "b200",
        "h200": "h100",
    }
    assert gpus.row_types("h200") == ("h200", "h100", "any")
    assert gpus.row_types("cpu") == ("cpu", "cpu", "any")
