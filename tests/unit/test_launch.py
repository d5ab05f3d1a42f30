"""launch.sh as users call it: what goes to stdout, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ("llama3.1", "llama4", "grok1", "nemotron4")


def launch(recipe: str, command: str = "./launch.sh", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in the recipe's folder with nothing in the environment but PATH and ``variables``."""
    environment = {"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, "HOME": "/nonexistent", **variables}
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT / recipe, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_plans_its_own_jobs(recipe: str) -> None:
    """All documented commands are planned in ``test_docs.py``, without a shell."""
    done = launch(recipe, DRY_RUN="json", LLMB_INSTALL="/x", CLUSTER_TYPE="local", GPU_TYPE="cpu")
    assert json.loads(done.stdout)["recipe"] == recipe, done.stderr


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
    assert re.fullmatch(r"note: memory: .*\nnote: time: .* s a step \(.*GPU-hours\n", done.stderr), "the job in short"
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


@pytest.mark.parametrize(
    ("variables", "status", "words"),
    [
        ({"JOB_TOTAL_GPUS": "abc"}, 2, "JOB_TOTAL_GPUS=abc is not a positive whole number"),
        ({"JOB_TOTAL_GPUS": "100"}, 2, "has that number of GPUs"),
        ({"JOB_TOTAL_GPU": "256"}, 2, "did you mean JOB_TOTAL_GPUS?"),
        ({"STAGE_PATH": "/x"}, 2, "old name"),
        ({"LLMB_INSTALL": ""}, 2, "LLMB_INSTALL is not set"),
        ({"LLMB_INSTALL": "/" + "x" * 5000}, 2, "cannot look for"),
        ({"LLMB_INSTALL": "~nobody-of-this-name"}, 2, "no such home directory"),
        ({"ENABLE_PROFILE": "true", "PROFILE_RANKS": "0-x"}, 2, "PROFILE_RANKS=0-x is not a list of ranks"),
        ({"MOE_ROUTING": "balanced"}, 2, "no experts"),
        ({"CUDA_GRAPH": "true"}, 2, "OFFLOAD_LAYERS=80 cannot be combined"),
        ({"LLMB_PYTHON": "/nowhere/python"}, 3, "LLMB_PYTHON=/nowhere/python is not there, or not a program"),
    ],
)
def test_bad_input_gives_one_message_and_leaves_nothing(tmp_path, variables, status, words):
    given = {"LLMB_INSTALL": str(tmp_path), "GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "256", **variables}
    done = launch("llama3.1", **given)
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error:") == 1
    assert list(tmp_path.iterdir()) == []


def test_arguments_are_answered_with_how_to_use_variables() -> None:
    assert "JOB_TOTAL_GPUS=128" in launch("llama3.1", "./launch.sh --help").stderr
    assert launch("llama3.1", "./launch.sh --gpus 8").returncode == 2


def test_without_an_engine_or_an_image_the_remedy_is_the_installer(tmp_path: Path) -> None:
    done = launch("llama3.1", LLMB_INSTALL=str(tmp_path), CLUSTER_TYPE="local", GPU_TYPE="cpu")
    assert done.returncode == 3
    assert "./installer.py --quickstart" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_the_dependencies_is_one_message(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    done = launch("llama3.1", LLMB_PYTHON=str(python), LLMB_INSTALL="/x")
    assert (done.returncode, done.stdout) == (3, "")
    assert "has no module msgspec" in done.stderr
    assert "run ./installer.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_modules_of_the_current_folder_and_of_the_environment_do_not_get_in(tmp_path: Path) -> None:
    for trap in ("json.py", "yaml.py", "llmb_common.py"):
        (tmp_path / trap).write_text("raise SystemExit('wrong module')")
    variables = {"PYTHONPATH": str(tmp_path), "CDPATH": str(ROOT), "DRY_RUN": "true", "LLMB_INSTALL": "/x"}
    command = f"cd {tmp_path} && {ROOT}/llama3.1/launch.sh"
    done = launch("llama3.1", command, JOB_TOTAL_GPUS="128", GPU_TYPE="b200", **variables)
    assert done.returncode == 0, done.stderr


def test_a_link_to_launch_sh_works_and_a_copy_says_why_not(tmp_path: Path) -> None:
    original = ROOT / "llama3.1" / "launch.sh"
    (tmp_path / "link.sh").symlink_to(original)
    (tmp_path / "copy.sh").write_bytes(original.read_bytes())
    variables = {"DRY_RUN": "true", "LLMB_INSTALL": "/x", "JOB_TOTAL_GPUS": "128", "GPU_TYPE": "gb200"}
    assert launch("llama3.1", f"{tmp_path}/link.sh", **variables).returncode == 0
    done = launch("llama3.1", f"bash {tmp_path}/copy.sh", **variables)
    assert done.returncode == 3
    assert "not in a clone of the repository" in done.stderr


def test_notices_are_on_stderr_and_leave_stdout_to_the_script() -> None:
    variables = {"JOB_TOTAL_GPUS": "128", "GPU_TYPE": "gb200", "SBATCH_QOS": "high"}
    done = launch("llama3.1", DRY_RUN="true", LLMB_INSTALL="/x", **variables)
    assert done.stdout.startswith("#!/bin/bash\n")
    assert done.stderr.startswith("note: SBATCH_QOS: not passed to sbatch")


def test_something_that_is_not_a_checkpoint_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    given = {"LLMB_INSTALL": str(tmp_path), "CLUSTER_TYPE": "local", "GPU_TYPE": "cpu"}
    done = launch("llama3.1", LOAD_CHECKPOINT_PATH=str(tmp_path / "empty"), **given)
    assert done.returncode == 2
    assert "LOAD_CHECKPOINT_PATH=" in done.stderr
    assert "give the folder that holds the iter_* folders" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_launch_scripts_are_the_same_file_in_every_recipe(recipe: str) -> None:
    assert (ROOT / recipe / "launch.sh").read_bytes() == (ROOT / "llama3.1" / "launch.sh").read_bytes()
    assert os.access(ROOT / recipe / "launch.sh", os.X_OK)


def test_a_broken_site_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text("schema: 1\nslurm:\n  acount: a\n")
    done = launch("llama3.1", DRY_RUN="true", LLMB_INSTALL=str(tmp_path), JOB_TOTAL_GPUS="128", GPU_TYPE="gb200")
    assert done.returncode == 2
    assert "cluster_config.yaml:3: unknown key 'acount' (did you mean 'account'?)" in done.stderr
