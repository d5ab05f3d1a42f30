"""Which Megatron is installed, detected without importing it, and rejected before anything is imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training_jobs import REPOSITORY, Engine, make_function_job, make_job

from llmb_common.recipes.folders import recipe_folders
from llmb_common.recipes.loading import load_recipe
from llmb_train.engine import DOCUMENTED, FUNCTIONS, RELEASES

INFO = """\
MAJOR = {0}
MINOR = {1}
PATCH = {2}
PRE_RELEASE = "{3}"
VERSION = (MAJOR, MINOR, PATCH, PRE_RELEASE)
__version__ = ".".join(map(str, VERSION[:3])) + "".join(VERSION[3:])
"""
FITTING = (0, 3, 1, ""), (0, 16, 1, "")


def container(folder: Path, bridge: tuple[object, ...] | None, core: tuple[object, ...]) -> Path:
    """The packages of an image as source trees without metadata; none can be imported."""
    for name, version in (("megatron/bridge", bridge), ("megatron/core", core), ("transformer_engine", None)):
        package = folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('imported before it was looked at')\n")
        if version is not None:
            (package / "package_info.py").write_text(INFO.format(*version))
    return folder


def gpu_job() -> dict[str, Any]:
    return make_job("8b", device="cuda", gpu_type="h100", world_size=2)


def start(tree: Path, job: dict[str, Any] | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The first rank of a job for two GPUs, with ``tree`` in front of everything else."""
    job_file = tree / "job.json"
    job_file.write_text(json.dumps(job or gpu_job()))
    own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    own |= {"MASTER_PORT": "29400", "PYTHONPATH": f"{tree}:{REPOSITORY / 'common'}", "PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-m", "llmb_train", str(job_file)],
        env=own | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("bridge", "core", "words"),
    [
        ((0, 1, 0, "rc4"), (0, 14, 0, ""), "megatron-bridge 0.1.0rc4, megatron-core 0.14.0"),
        ((0, 6, 0, ""), (0, 19, 0, ""), "megatron-bridge 0.6.0, megatron-core 0.19.0"),
        ((0, 30, 0, ""), (0, 16, 0, ""), "here is megatron-bridge 0.30.0, megatron-core 0.16.0"),
        ((0, 3, 0, "rc2"), (0, 16, 0, ""), "megatron-bridge 0.3.0rc2"),
        ((0, 3, 1, ""), (0, 17, 0, ""), "megatron-core 0.17.0"),
    ],
)
def test_another_release_is_refused_with_the_container_that_fits(tmp_path, bridge, core, words):
    tree = container(tmp_path, bridge, core)
    done = start(tree)
    assert (done.returncode, done.stdout) == (3, "")
    assert words in done.stderr
    assert DOCUMENTED.container in done.stderr
    assert "LLMB_ENGINE_CHECK=off" in done.stderr


@pytest.mark.parametrize(
    ("bridge", "core"),
    [((0, 7, 0, ""), (0, 20, 0, "")), ((0, 7, 1, "rc2"), (0, 21, 0, "")), ((0, 7, 0, ""), (1, 0, 0, ""))],
)
@pytest.mark.parametrize("make", [make_job, make_function_job])
def test_a_newer_release_goes_on_to_torch_with_whatever_core_it_has(tmp_path, make, bridge, core):
    job = make(device="cuda", gpu_type="h100", world_size=2, engine="0.7")
    done = start(container(tmp_path, bridge, core), job=job)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"


@pytest.mark.parametrize(
    ("engine", "bridge", "words"),
    [
        (
            "0.7",
            (0, 8, 0, ""),
            ["0.7", "0.8.0", "LLMB_ENGINE=0.8"],
        ),
        ("0.7", (0, 6, 0, ""), ["0.7", "0.6.0"]),
        ("0.6", (0, 7, 0, ""), ["0.6.x", "0.7.0", "LLMB_ENGINE=0.7"]),
    ],
)
def test_a_newer_release_is_refused_where_the_job_was_planned_for_another(tmp_path, engine, bridge, words):
    job = make_job("8b", device="cuda", gpu_type="h100", world_size=2, engine=engine)
    done = start(container(tmp_path, bridge, (0, 19, 0, "")), job=job)
    assert (done.returncode, done.stdout) == (3, "")
    assert re.findall(r"(?:LLMB_ENGINE=)?\b0\.[678](?:\.\w+)?", done.stderr)[: len(words)] == words
    assert ("LLMB_ENGINE=" in done.stderr) == ("LLMB_ENGINE=" in words[-1])


@pytest.mark.parametrize("check", ["on", "off"])
def test_a_release_that_fits_and_a_check_that_is_off_go_on_to_torch(tmp_path: Path, check: str) -> None:
    tree = container(tmp_path, *(FITTING if check == "on" else ((0, 2, 0, ""), (0, 15, 0, ""))))
    done = start(tree, LLMB_ENGINE_CHECK=check)
    # This Python has no torch, so this is as far as it gets.
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"


def test_the_version_of_the_real_megatron_is_found_without_importing_it(engine: Engine) -> None:
    code = "import sys; from llmb_train.engine import package_version as v; "
    code += "print(v('megatron-bridge'), v('megatron-core'), v('torch') is not None, 'torch' in sys.modules)"
    done = subprocess.run(
        [str(engine.python), "-c", code], env=engine.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0.3.1", "0.16.1", "True", "False"]


def test_a_job_that_names_a_function_wants_the_release_that_has_functions(tmp_path: Path) -> None:
    job = make_function_job(device="cuda", gpu_type="h100", world_size=2)
    done = start(container(tmp_path, *FITTING), job=job)
    assert (done.returncode, done.stdout) == (3, "")
    wanted, here = done.stderr.index("megatron-bridge 0.6.x"), done.stderr.index("megatron-bridge 0.3.1")
    assert wanted < here
    assert FUNCTIONS.container in done.stderr


@pytest.mark.parametrize(
    ("make", "bridge", "core", "needs"),
    [
        pytest.param(make_job, (0, 6, 2, ""), (0, 19, 2, ""), DOCUMENTED, id="described"),
        pytest.param(make_function_job, (0, 3, 1, ""), (0, 16, 1, ""), FUNCTIONS, id="function"),
    ],
)
def test_the_other_cpu_engine_is_refused_with_the_one_that_fits(tmp_path, make, bridge, core, needs):
    done = start(container(tmp_path, bridge, core), job=make() | {"world_size": 2})
    assert (done.returncode, done.stdout) == (3, "")
    assert re.findall(r"\b0\.[36]\b", done.stderr)[:2] == [needs.bridge, f"{bridge[0]}.{bridge[1]}"]
    assert f"venvs/{needs.environment} " in done.stderr


def test_a_megatron_that_the_patches_were_not_tried_with_is_refused_on_a_cpu(tmp_path: Path) -> None:
    done = start(container(tmp_path, (0, 3, 1, ""), (0, 99, 0, "")), job=make_job() | {"world_size": 2})
    assert (done.returncode, done.stdout) == (3, "")
    assert "megatron-core 0.99.0" in done.stderr
    assert "megatron-core==0.16.1" in done.stderr


def test_without_megatron_bridge_the_remedy_is_named(tmp_path: Path) -> None:
    """In this Python (the tool's), there is no engine at all."""
    done = start(tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    assert "Megatron-Bridge" in done.stderr
    assert "container" in done.stderr.partition("\n  -> ")[2]


def test_the_container_that_fits_is_the_recipes() -> None:
    containers = {release.bridge: release.container for release in RELEASES}
    for folder in recipe_folders(REPOSITORY):
        recipe = load_recipe(folder)
        assert recipe.image == containers[getattr(recipe, "engine", DOCUMENTED.bridge)]
