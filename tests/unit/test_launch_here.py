"""What launch.sh does once a Python is found, in this process; errors as JSON; and small things of the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from llmb_common import gpus, launch, process
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
from llmb_common.kept_lists import read_list, write_list
from llmb_common.request.variables import VARIABLES
from llmb_common.strict_yaml import convert, load_text

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
    assert err.splitlines() == [f"note: {warning}" for warning in warnings]


@pytest.mark.parametrize(
    ("words", "status"),
    [(["a", "b"], 2), ([str(RECIPE), "-h"], 0), ([str(RECIPE), "--help"], 0), (["-h", "-h", "x"], 2)],
)
def test_settings_are_variables_and_no_arguments(start: Any, words: list[str], status: int) -> None:
    done, out, err = start(*words)
    assert (done, out) == (status, "")
    assert err.startswith("launch.sh takes its settings from environment variables, not arguments; for example\n")
    assert "JOB_TOTAL_GPUS=128" in err


def test_a_wrong_request_is_a_message_and_status_2(start: Any) -> None:
    status, out, err = start(**SMALL | {"JOB_TOTAL_GPUS": "x"}, DRY_RUN="true")
    assert (status, out) == (2, "")
    assert err.startswith("error: JOB_TOTAL_GPUS=x is not a positive whole number\n  -> ")


def test_a_job_that_was_submitted_is_told_with_its_folder(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert did_you_mean(name, [f"{name}0", f"g{name}"]) == ""


def test_a_correction_is_suggested_only_where_it_can_be_meant() -> None:
    assert did_you_mean("hundert", ["hundred", "h100"]) == " (did you mean 'hundred'?)"
    assert did_you_mean("xyz", ["hundred"]) == ""
    assert did_you_mean("FP16", ["fp8"]) == "", "it exists, and is meant"
    assert did_you_mean("H100", ["h200x"]) == ""
    assert did_you_mean("abcd", ["abxy"]) == ""
    assert did_you_mean("abcd", ["abxy"], cutoff=0.5) == " (did you mean 'abxy'?)"


# Lists that an installation keeps


def test_a_kept_list_comes_back(tmp_path: Path) -> None:
    file = tmp_path / ".llmb" / "things.json"
    assert read_list(file, "things", int, "a list of things") == []
    write_list(file, "things", [3, 1])
    assert read_list(file, "things", int, "a list of things") == [3, 1]
    assert json.loads(file.read_text()) == {"schema": 1, "things": [3, 1]}


@pytest.mark.parametrize("text", ['{"schema": 1}', '{"schema": 1, "things": ["x"]}', "[]", "3"])
def test_a_damaged_list_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    file = tmp_path / "things.json"
    file.write_text(text)
    with pytest.raises(RecordError, match=f"{file} is not a list of things: ") as caught:
        read_list(file, "things", int, "a list of things")
    assert caught.value.remedy == "correct or remove the file"


def test_a_list_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "things.json"
    file.write_text('{"schema": 2, "things": []}')
    with pytest.raises(RecordError, match="has schema 2, this version reads 1"):
        read_list(file, "things", int, "a list of things")


# YAML, processes


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "a: " + "[" * 200 + "]" * 200])
def test_yaml_that_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_text(text, "x.yaml")


def test_without_proc_ps_says_when_a_process_began(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "ps"
    program.write_text('#!/bin/sh\n[ "$4" = 17 ] && echo " Mon Nov 22 10:00:00 2026 "\nexit 0\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    class Elsewhere(type(Path())):  # type: ignore[misc]
        """Paths of a system without /proc."""

        def read_text(self, *arguments: Any, **options: Any) -> str:
            raise FileNotFoundError(str(self))

        def exists(self, *arguments: Any, **options: Any) -> bool:
            return False

    monkeypatch.setattr(process, "Path", Elsewhere)
    assert process.identify(17) is not None
    assert process.identify(18) is None


# Messages about wrong documents


class Part(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    kind: Literal["one", "two"] | None = None
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    parts: tuple[Part, ...] = ()
    title: str = ""
    numbers: dict[str, int] = {}


def problem(text: str) -> str:
    data, lines = load_text(text, "x.yaml")
    with pytest.raises(ConfigError) as caught:
        convert(data, lines, Whole, "x.yaml")
    return str(caught.value)


def test_a_wrong_value_is_shown_where_it_fits_on_the_line() -> None:
    sixty = "y" * 58
    assert f"('{sixty}')" in problem(f"parts: {sixty}")
    longer = problem(f"parts: {'y' * 59}")
    assert longer.startswith("x.yaml:1: parts is text, but a list is expected\n  -> ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parts:\n  - {name: a, kind: tow}\n", ["x.yaml:2: ", "tow", "two"]),
        ("parts:\n  - {name: a, count: 0}\n", ["x.yaml:2: ", "at least 1"]),
        ("parts:\n  - {name: ''}\n", ["x.yaml:2: "]),
        ("parts:\n  - {nme: a}\n", ["x.yaml:2: ", "unknown key 'nme' (did you mean 'name'?)"]),
        ("title: a\nnumbers:\n  one: 1\n  two: many\n", ["x.yaml:4: ", "whole number"]),
        ("titel: a\n", ["x.yaml:1: unknown key 'titel' (did you mean 'title'?)"]),
        ("parts:\n  - {kind: one}\n", ["x.yaml:2: the key 'name' is missing (at parts[0])"]),
    ],
)
def test_a_wrong_document_is_named_with_line_and_place(text: str, words: list[str]) -> None:
    said = problem(text)
    assert all(word in said for word in words), said


# GPUs


@pytest.mark.parametrize(
    ("name", "generation", "per_node", "nvlink_nodes", "host", "memory", "peaks"),
    [
        ("gb300", "blackwell", 4, 18, "aarch64", None, (2450, 4900)),
        ("gb200", "blackwell", 4, 18, "aarch64", 186, (2450, 4900)),
        ("b300", "blackwell", 8, 1, "x86_64", 270, (2250, 4500)),
        ("b200", "blackwell", 8, 1, "x86_64", 180, (2250, 4500)),
        ("h200", "hopper", 8, 1, "x86_64", 141, (989, 1979)),
        ("h100", "hopper", 8, 1, "x86_64", 80, (989, 1979)),
    ],
)
def test_a_gpu_is_what_its_maker_says(
    name: str, generation: str, per_node: int, nvlink_nodes: int, host: str, memory: int | None, peaks: tuple[int, int]
) -> None:
    gpu = gpus.GPUS[name]
    assert (gpu.generation, gpu.per_node, gpu.nvlink_nodes, gpu.host) == (generation, per_node, nvlink_nodes, host)
    assert (gpus.peak_tflops(name, "bf16"), gpus.peak_tflops(name, "fp8")) == peaks
    assert memory in (None, gpu.memory_gb)
