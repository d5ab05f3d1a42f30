"""A release of Megatron-Bridge that no table has: its catalogue, the plan of its function, and its training.

It is made of the engine's own code, under another number and with a function of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_jobs import (
    LOSS_TOLERANCE,
    REPOSITORY,
    SMOKE_LOSSES,
    Engine,
    TrainingRun,
    Warm,
    document,
    printed_losses,
    training_environment,
)

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.cluster import FILE_NAME
from llmb_common.submission.launch import plan_from_variables

OLD, NEW = "llama3_8b_pretrain_8gpu_h100_bf16_config", "llama3_8b_pretrain_4gpu_h100_bf16_wide_config"
FUNCTION = f"""
from megatron.bridge.perf_recipes.llama.h100.llama3 import {OLD}


def {NEW}():
    config = {OLD}()
    config.train.global_batch_size = 64
    config.model.window_size = (4096, 0)
    return config
"""
FIND = "import importlib.util as u; print(*(u.find_spec(name).submodule_search_locations[0] for name in {}))"


def linked(real: Path, made: Path, *written: str) -> None:
    """``made`` as ``real``, but for what is to be written in it."""
    made.mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name not in (*written, "__pycache__"):
            (made / entry.name).symlink_to(entry)


@pytest.fixture(scope="module")
def tree(functions_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Megatron-Bridge 0.9.1 and megatron-core 0.22.0, with the functions of Llama and one more.

    Core is as in its source tree: it would compile its helpers, with what this machine may lack.
    """
    folder = tmp_path_factory.mktemp("release")
    find = FIND.format(["megatron.bridge", "megatron.core"])
    done = subprocess.run([str(functions_python), "-c", find], capture_output=True, text=True, check=True)
    for name, real, version in zip(("bridge", "core"), done.stdout.split(), ((0, 9, 1), (0, 22, 0)), strict=True):
        linked(Path(real), folder / "megatron" / name, "package_info.py", "perf_recipes", "datasets")
        info = (Path(real) / "package_info.py").read_text()
        for part, number in zip(("MAJOR", "MINOR", "PATCH"), version, strict=True):
            info = re.sub(rf"(?m)^{part} = .*$", f"{part} = {number}", info)
        (folder / "megatron" / name / "package_info.py").write_text(info)
    bridge, core = map(Path, done.stdout.split())
    linked(core / "datasets", folder / "megatron" / "core" / "datasets")
    (folder / "megatron" / "core" / "datasets" / "Makefile").write_text("all:\n\tfalse\n")
    recipes = bridge / "perf_recipes"
    own = folder / "megatron" / "bridge" / "perf_recipes"
    linked(recipes, own, *(path.name for path in recipes.iterdir() if path.is_dir()))
    shutil.copytree(recipes / "llama", own / "llama")
    (own / "ours.py").write_text(FUNCTION)
    return folder


def environment(tree: Path) -> dict[str, str]:
    given = training_environment()
    return {**given, "PYTHONPATH": f"{tree}:{given['PYTHONPATH']}", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def newer(functions_python: Path, tree: Path) -> Iterator[Engine]:
    cpu = Warm(functions_python, environment(tree))
    yield Engine(functions_python, cpu)
    cpu.stop()


@pytest.fixture(scope="module")
def site(newer: Engine, tree: Path) -> Path:
    """The installation of a site that has the release, with the catalogue that was written in it."""
    file = tree / "catalogue-0.9.1.json"
    status, _, said = newer.cpu.run(["-m", "llmb_train.catalogue", str(file)], tree)
    assert status == 0, said
    assert said.split()[0] == str(len(json.loads(file.read_text())["index"]))
    (tree / FILE_NAME).write_text(f'schema: 1\nreleases:\n  "0.9.1": {{image: /images/ours.sqsh, catalogue: {file}}}\n')
    return tree


def plan(site: Path, recipe: Path = REPOSITORY / "mbridge", **variables: str) -> JobPlan:
    given = {"LLMB_INSTALL": str(site), "LLMB_ENGINE": "0.9", "CLUSTER_TYPE": "local", "GPU_TYPE": "cpu"}
    return plan_from_variables(recipe, given | variables)[1]


def train(newer: Engine, planned: JobPlan, folder: Path) -> TrainingRun:
    return newer.train(folder, document(planned, str(folder)))


SMALL = {"MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2", "GBS": "2", "MAX_STEPS": "3"}


def test_a_function_that_only_the_new_release_has_is_planned_and_its_reduced_copy_trains(site, newer, tmp_path):
    on_gpus = {"CLUSTER_TYPE": "slurm", "GPU_TYPE": "h100", "MODEL_SIZE": "llama3_8b", "DTYPE": "bf16"}
    planned = plan(site, **on_gpus, JOB_TOTAL_GPUS="4", CONFIG_VARIANT="wide")
    assert (planned.function.name, planned.gbs, planned.image) == (NEW, 64, "/images/ours.sqsh")
    shipped = (REPOSITORY / "mbridge" / "recipe.yaml").read_text()
    small = re.sub(r'(?m)^ *(validation|published|other_catalogues|"0.6.0"):.*\n', "", shipped)
    (tmp_path / "recipe.yaml").write_text(small.replace(f"function: {OLD}", f"function: {NEW}"))
    of_the_shape = "catalogue-0.6.2.json"
    (tmp_path / of_the_shape).symlink_to(REPOSITORY / "mbridge" / of_the_shape)
    run = train(newer, plan(site, tmp_path, **SMALL), tmp_path / "run")
    assert sorted(printed_losses(run.log)) == [1, 2, 3]
    assert (run.manifest["megatron_bridge"], run.manifest["megatron_core"]) == ("0.9.1", "0.22.0")
    notices = re.findall(r"^LLMB notice: (.*)$", run.log, re.MULTILINE)
    assert any("megatron-bridge 0.9.1" in line for line in notices)
    assert any(re.search(rf"\b{NEW}\b.*\b4 layers\b", line) for line in notices)


def test_the_new_release_trains_what_the_old_one_trains(site, newer, tmp_path):
    run = train(newer, plan(site, REPOSITORY / "llama3.1", **SMALL), tmp_path)
    losses = {step: float(loss) for step, loss in printed_losses(run.log).items()}
    assert losses == pytest.approx(SMOKE_LOSSES, abs=LOSS_TOLERANCE)


@pytest.mark.parametrize(("asked", "here"), [("0.8", "0.9"), ("0.6", "0.9"), ("0.9", "0.6")])
def test_a_job_trains_in_the_release_that_it_was_planned_for_only(asked, here, site, newer, functions_engine, tmp_path):
    planned = plan(tmp_path, **SMALL, LLMB_ENGINE=asked)
    engine = newer if here == "0.9" else functions_engine
    refused = engine.train(tmp_path / "run", document(planned, str(tmp_path)), expect=3)
    said = refused.log[refused.log.index("llmb_train: error: ") :]
    assert [one for one in re.findall(r"\b0\.\d", said) if one in (asked, here)][:2] == [asked, here]
    assert ("LLMB_ENGINE=0.9" in said) == (here == "0.9")


def test_a_shipped_catalogue_that_does_not_fit_the_new_release_stops_the_job_at_its_start(site, newer, tmp_path):
    """Without a catalogue of its own the release is planned with the newest that there is."""
    planned = plan(tmp_path, MODEL_SIZE="qwen3_30b_a3b-smoke", JOB_TOTAL_GPUS="1")
    assert planned.function is not None
    refused = newer.train(tmp_path / "run", document(planned, str(tmp_path)), expect=3)
    said = refused.log[refused.log.index("llmb_train: error: ") :]
    assert ("0.9.1" in said, planned.function.name in said, "catalogue" in said) == (True, True, True)
