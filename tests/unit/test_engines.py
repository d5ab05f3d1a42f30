"""Which engine a recipe trains in, and what happens where another one is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmb_common.engines import DEFAULT_ENGINE
from llmb_common.errors import ConfigError, EnvironmentLacks
from llmb_common.executors.engine import check_engine
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.loading import load_recipe, recipe_folders
from llmb_common.rendering.job import job_document
from llmb_common.runs.paths import dry_run_paths
from llmb_common.site.cluster import load_cluster_config
from llmb_install.installation import engine_values
from llmb_install.parts.engine import KINDS
from llmb_install.parts.site_config import apply_site_values
from llmb_train.job import FunctionJob, Job, parse_job
from llmb_train.releases import DOCUMENTED, RELEASES
from support.runs import plan_for

ROOT = Path(__file__).resolve().parents[2]
SMOKE = {"CLUSTER_TYPE": "local", "GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"}


def engines(install: Path, *releases: str) -> dict[str, Path]:
    """An installation that has engines with ``releases``."""
    pythons = {release: install / "venvs" / KINDS[release].name / "bin" / "python" for release in releases}
    for python in pythons.values():
        python.parent.mkdir(parents=True)
        python.touch()
    values = {"engine": engine_values({release: str(python) for release, python in pythons.items()})}
    apply_site_values(install, {"cluster_type": "local", "gpu_type": "cpu", **values})
    return pythons


def plan(install: Path, recipe: str) -> JobPlan:
    return plan_for(install, recipe, **SMOKE)


def test_every_recipe_trains_in_its_own_engine_of_one_installation(tmp_path: Path) -> None:
    pythons = engines(tmp_path, "0.3", "0.6")
    for recipe, release in (("llama3.1", "0.3"), ("mbridge", "0.6")):
        planned = plan(tmp_path, recipe)
        assert planned.engine_python == str(pythons[release])
        check_engine(planned)


@pytest.mark.parametrize(
    ("installed", "recipe", "message", "remedy"),
    [
        (
            "0.3",
            "mbridge",
            "no training engine is installed that has Megatron-Bridge 0.6",
            "run llmb-install add pretrain_mbridge, or",
        ),
        ("0.6", "llama3.1", "no training engine is installed", "run llmb-install add pretrain_llama3.1, or"),
    ],
)
def test_the_engine_of_another_recipe_is_not_taken(
    tmp_path: Path, installed: str, recipe: str, message: str, remedy: str
) -> None:
    engines(tmp_path, installed)
    with pytest.raises(EnvironmentLacks) as caught:
        check_engine(plan(tmp_path, recipe))
    assert (caught.value.message, caught.value.code) == (message, "no-engine")
    assert remedy in caught.value.remedy


def test_an_engine_with_another_release_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Its folders tell: the ranks would refuse it too, after a place in the queue."""
    python = engines(tmp_path, "0.6")["0.6"]
    for version in ("0.6.2", "0.3.1"):
        packages = python.parents[1] / "lib" / "python3.11" / "site-packages"
        shutil.rmtree(packages, ignore_errors=True)
        (packages / f"megatron_bridge-{version}.dist-info").mkdir(parents=True)
        if version == "0.6.2":
            check_engine(plan(tmp_path, "mbridge"))
    with pytest.raises(EnvironmentLacks) as caught:
        check_engine(plan(tmp_path, "mbridge"))
    assert caught.value.message == f"mbridge needs Megatron-Bridge 0.6; the engine {python} has 0.3"
    assert "llmb-install add pretrain_mbridge brings one" in caught.value.remedy
    check_engine(plan_for(tmp_path, "mbridge", **SMOKE, LLMB_ENGINE_CHECK="off"))


@pytest.mark.parametrize(
    ("recipe", "how"),
    [
        ("llama3.1", "run ./installer.py --quickstart, or set engine.python in"),
        (
            "mbridge",
            "run ./installer.py --quickstart and then llmb-install add pretrain_mbridge, or set "
            'engine.releases."0.6" in',
        ),
    ],
)
def test_without_an_installation_the_remedy_begins_with_one(tmp_path: Path, recipe: str, how: str) -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        check_engine(plan(tmp_path, recipe))
    assert caught.value.remedy.startswith(how)


def test_the_python_of_an_engine_is_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text('schema: 1\nengine:\n  releases: {"0.6": bin/python}\n')
    with pytest.raises(ConfigError, match=r"engine.releases.0.6.*is not an absolute path"):
        load_cluster_config(tmp_path)


def test_installer_recipes_and_training_code_mean_the_same_engines() -> None:
    assert DOCUMENTED.bridge == DEFAULT_ENGINE
    assert {release.bridge: release.environment for release in RELEASES} == {
        release: engine.name for release, engine in KINDS.items()
    }
    assert {load_recipe(folder).engine for folder in recipe_folders(ROOT)} == set(KINDS)


@pytest.mark.parametrize(("recipe", "kind"), [("llama3.1", Job), ("mbridge", FunctionJob)])
def test_the_training_code_reads_what_the_plan_writes(tmp_path: Path, recipe: str, kind: type) -> None:
    planned = plan(tmp_path, recipe)
    job = parse_job(job_document(planned, dry_run_paths(str(tmp_path), planned.experiment_name)))
    assert type(job) is kind
    assert job.release.bridge == planned.engine
