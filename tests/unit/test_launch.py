"""launch.sh as users call it: what goes to stdout, and what it leaves behind; errors as JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmb_common import __version__
from llmb_common.base import gpus
from llmb_common.base.errors import (
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
from llmb_common.planning.request.variables import VARIABLES
from llmb_common.submission.launch import main
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ("llama3.1", "llama4", "grok1", "nemotron4")


def launch(recipe: str, command: str = "./launch.sh", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in the recipe's folder with nothing in the environment but PATH and ``variables``."""
    environment = {"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, "HOME": "/nonexistent", **variables}
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT / recipe, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_dry_run_prints_only_the_script_and_needs_neither_slurm_nor_the_folder() -> None:
    done = launch(
        "llama3.1",
        DRY_RUN="true",
        LLMB_INSTALL="/x",
        SBATCH_ACCOUNT="a",
        SBATCH_PARTITION="p",
        JOB_TOTAL_GPUS="256",
        GPU_TYPE="b200",
    )
    assert done.returncode == 0
    in_short = r"note: memory: .*\nnote: time: .* s a step was .*\nnote: cost: .* GPU-hours\n"
    assert re.fullmatch(in_short, done.stderr), "the job in short"
    by_hand = subprocess.run(["bash", "-c", done.stdout], capture_output=True, text=True, check=False)
    assert by_hand.returncode == 3
    assert by_hand.stderr.startswith("error: "), "it says at once what it lacks, and does not wait for a folder"
    lines = done.stdout.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {"#SBATCH --account=a", "#SBATCH --partition=p", "#SBATCH --nodes=32"} <= set(lines)
    assert '  bash -c "$task"' in lines or '  bash -c "$task" &' in lines
    assert not Path("/x").exists()


CONTRACT = {
    *("workload", "recipe", "variant", "model_size", "dtype", "fp8_recipe", "gpu_type", "gpus", "nodes"),
    *("gpus_per_node", "seq_len", "layers", "tp", "pp", "cp", "ep", "etp", "dp", "expert_dp", "vp", "mbs", "gbs"),
    *("ga", "fsdp", "cuda_graph", "recompute_layers", "offload_layers", "max_steps", "time_limit", "image"),
    *("experiment_name", "env", "preflight"),
}
PREFLIGHT = {
    *("memory_gib", "memory_limit_gib", "fits", "predicted_step_seconds", "predicted_low", "predicted_high"),
    *("reference_step_seconds", "warnings"),
}


def test_the_plan_as_json_has_the_keys_of_the_contract() -> None:
    done = launch("grok1", DRY_RUN="json", LLMB_INSTALL="/x", JOB_TOTAL_GPUS="512", GPU_TYPE="h100", DTYPE="bf16")
    plan = json.loads(done.stdout)
    assert plan.keys() >= CONTRACT
    assert plan["preflight"].keys() >= PREFLIGHT
    assert (plan["ep"], plan["etp"], plan["expert_dp"], plan["ga"]) == (8, 1, 8, 128)
    assert plan["preflight"]["reference_step_seconds"] == 15.933


def test_a_python_that_is_not_there(tmp_path: Path, texts: Texts) -> None:
    done = launch("llama3.1", LLMB_INSTALL=str(tmp_path), LLMB_PYTHON="/nowhere/python")
    assert (done.returncode, done.stdout, done.stderr.count("error:")) == (3, "", 1)
    texts(done.stderr)


def test_without_an_engine_or_an_image_the_remedy_is_the_installer(tmp_path: Path, texts: Texts) -> None:
    done = launch("llama3.1", LLMB_INSTALL=str(tmp_path), CLUSTER_TYPE="local", GPU_TYPE="cpu")
    assert done.returncode == 3
    texts(done.stderr.partition("error: ")[2])
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_the_dependencies_is_one_message(tmp_path: Path, texts: Texts) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    done = launch("llama3.1", LLMB_PYTHON=str(python), LLMB_INSTALL="/x")
    assert (done.returncode, done.stdout) == (3, "")
    texts(done.stderr, mask=r"(?<=missing in )/\S+")
    assert "Traceback" not in done.stderr


def test_a_package_that_has_lost_a_file_is_named(tmp_path: Path, texts: Texts) -> None:
    """It still imports, as a namespace: what its users raise may be anything."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    packages = next(tmp_path.glob("lib/python3.*/site-packages"))
    for name in ("msgspec", "yaml"):
        (packages / name).mkdir()
        (packages / f"{name}-1.dist-info").mkdir()
        (packages / f"{name}-1.dist-info" / "RECORD").write_text(f"{name}/__init__.py,sha256=AAAA,4\n")
    (packages / "msgspec" / "structs.py").write_text("from . import Struct\n")
    done = launch("llama3.1", LLMB_PYTHON=str(tmp_path / "bin" / "python"), LLMB_INSTALL="/x")
    assert (done.returncode, done.stdout, done.stderr.count("error:")) == (3, "", 1), done.stderr
    texts(done.stderr)
    assert "Traceback" not in done.stderr


def test_modules_of_the_current_folder_and_of_the_environment_do_not_get_in(tmp_path: Path) -> None:
    for trap in ("json.py", "yaml.py", "llmb_common.py"):
        (tmp_path / trap).write_text("raise SystemExit('wrong module')")
    variables = {"PYTHONPATH": str(tmp_path), "CDPATH": str(ROOT), "DRY_RUN": "true", "LLMB_INSTALL": "/x"}
    command = f"cd {tmp_path} && {ROOT}/llama3.1/launch.sh"
    done = launch("llama3.1", command, JOB_TOTAL_GPUS="128", GPU_TYPE="b200", **variables)
    assert done.returncode == 0, done.stderr


def test_a_link_to_launch_sh_works_and_a_copy_says_why_not(tmp_path: Path, texts: Texts) -> None:
    original = ROOT / "llama3.1" / "launch.sh"
    (tmp_path / "link.sh").symlink_to(original)
    (tmp_path / "copy.sh").write_bytes(original.read_bytes())
    variables = {"DRY_RUN": "true", "LLMB_INSTALL": "/x", "JOB_TOTAL_GPUS": "128", "GPU_TYPE": "gb200"}
    assert launch("llama3.1", f"{tmp_path}/link.sh", **variables).returncode == 0
    done = launch("llama3.1", f"bash {tmp_path}/copy.sh", **variables)
    assert done.returncode == 3
    texts(done.stderr)


def test_something_that_is_not_a_checkpoint_is_refused_before_anything_is_written(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "empty").mkdir()
    given = {"LLMB_INSTALL": str(tmp_path), "CLUSTER_TYPE": "local", "GPU_TYPE": "cpu"}
    done = launch("llama3.1", LOAD_CHECKPOINT_PATH=str(tmp_path / "empty"), **given)
    assert done.returncode == 2
    assert "LOAD_CHECKPOINT_PATH=" in done.stderr
    texts(done.stderr.partition("error: ")[2])
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


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
        status = main(list(arguments) or [str(RECIPE)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return start


@pytest.mark.usefixtures("clone_without_installation")
@pytest.mark.parametrize(
    "variables",
    [
        {"JOB_TOTAL_GPUS": "abc"},
        {"JOB_TOTAL_GPUS": "100"},
        {"JOB_TOTAL_GPU": "256"},
        {"STAGE_PATH": "/x"},
        {"LLMB_INSTALL": ""},
        {"LLMB_INSTALL": "/" + "x" * 5000},
        {"LLMB_INSTALL": "~nobody-of-this-name"},
        {"ENABLE_PROFILE": "true", "PROFILE_RANKS": "0-x"},
        {"MOE_ROUTING": "balanced"},
        {"CUDA_GRAPH": "true"},
    ],
)
def test_bad_input_gives_one_message_and_leaves_nothing(start, tmp_path, variables, texts: Texts):
    status, out, err = start(**{"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256", **variables})
    assert (status, out, err.count("error:")) == (2, "", 1)
    texts(err, mask="x{5000}")
    assert list(tmp_path.iterdir()) == []


def test_a_script_is_printed_to_the_letter(start: Any) -> None:
    status, out, _ = start(**SMALL, DRY_RUN="true", NCCL_ALGO="a\u200bb")
    assert status == 0
    assert "a\u200bb" in out


def test_what_to_know_of_a_plan_goes_to_stderr(start: Any) -> None:
    status, out, err = start(**SMALL, DRY_RUN="json", SBATCH_QOS="high")
    assert status == 0
    warnings = json.loads(out)["preflight"]["warnings"]
    assert warnings
    said = err.splitlines()
    assert said[:-3] == [f"note: {warning}" for warning in warnings]
    assert [line.split()[1] for line in said[-3:]] == ["memory:", "time:", "cost:"], "the job in short"


def test_what_a_machine_without_gpus_cannot_run_is_refused_with_the_dry_run_that_plans_it(
    start, tmp_path, texts: Texts
):
    (tmp_path / "cluster_config.yaml").write_text("schema: 1\ncluster_type: local\ngpu_type: cpu\n")
    status, out, err = start(JOB_TOTAL_GPUS="1024")
    assert (status, out) == (2, "")
    texts(err)
    assert "cluster: " not in start(JOB_TOTAL_GPUS="1025")[2], "nobody has such a job"
    jobs = (("1024", {}, "h100"), ("128", {}, "gb200"), ("128", {"GPU_TYPE": "gb300"}, "gb300"))
    for number, said, gpu_type in jobs:
        status, out, err = start(JOB_TOTAL_GPUS=number, DRY_RUN="json", **said)
        plan = json.loads(out)
        assert (status, plan["gpu_type"], plan["cluster_type"], plan["model_size"]) == (0, gpu_type, "slurm", "405b")
        texts(err)
        assert err.count("planned for") == 1, "said once"
        assert "is not set" not in err
        assert "--segment" not in err, "there is no Slurm here, of whatever release"
    assert json.loads(start(JOB_TOTAL_GPUS="2", DRY_RUN="json")[1])["model_size"] == "smoke", (
        "what it can run, it plans"
    )
    texts(start(JOB_TOTAL_GPUS="1024", DRY_RUN="true", GPU_TYPE="cpu")[2])


@pytest.mark.parametrize(
    ("words", "status"),
    [(["a", "b"], 2), ([str(RECIPE), "-h"], 0), ([str(RECIPE), "--help"], 0), (["-h", "-h", "x"], 2)],
)
def test_settings_are_variables_and_no_arguments(start: Any, words: list[str], status: int, texts: Texts) -> None:
    done, out, err = start(*words)
    assert (done, [out, err].index("")) == (status, 0 if status else 1)
    said = out or err
    texts(said)
    assert "JOB_TOTAL_GPUS=128" in said


def test_its_words_are_those_of_the_command_line() -> None:
    assert launch("llama3.1", "./launch.sh --version").stdout.split() == ["launch.sh", __version__]


def test_a_job_that_was_submitted_is_told_with_its_folder(start, tmp_path, monkeypatch):
    from support.runs import make_run

    record = make_run(tmp_path, state="SUBMITTED", job_id="77")

    def submit(plan: Any, folder: Path, on_record: Any) -> Any:
        on_record(record)
        assert (plan.gpus, folder) == (8, RECIPE)
        return record

    monkeypatch.setattr("llmb_common.submission.single.submit", submit)
    status, out, err = start(**SMALL)
    assert (status, out) == (0, "Submitted batch job 77\n")
    assert err.splitlines()[-2:] == [record.paths.name, f"  {record.paths.folder}"]
    monkeypatch.setattr("llmb_common.submission.single.submit", lambda *_, **__: make_run(tmp_path, job_id=None))
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
    assert did_you_mean("H100", ["h200", "h100"]) == " (did you mean 'h100'?)"
    assert did_you_mean("abcd", ["abxy"]) == ""
    assert did_you_mean("abcd", ["abxy"], cutoff=0.5) == " (did you mean 'abxy'?)"


def test_a_dry_run_refuses_a_checkpoint_that_the_run_refuses(start: Any, tmp_path: Path) -> None:
    status, out, err = start(**SMALL, DRY_RUN="true", LOAD_CHECKPOINT_PATH=str(tmp_path))
    assert (status, out) == (2, "")
    assert str(tmp_path) in err
