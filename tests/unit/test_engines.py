"""Which engine a recipe trains in, and what happens where another one is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmb_common.base.engines import DEFAULT_ENGINE, ENGINES
from llmb_common.base.errors import ConfigError, EnvironmentLacks, RecipeError
from llmb_common.executors.engine import check_engine
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.cluster import load_cluster_config
from llmb_common.recipes.folders import recipe_folders
from llmb_common.recipes.loading import load_recipe
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_document
from llmb_install.installation import SiteConfig, engine_values
from llmb_install.parts.engine import KINDS
from llmb_train.engine import DOCUMENTED, RELEASES
from llmb_train.job import FunctionJob, Job, parse_job
from support import plans
from support.runs import PUBLISHED, plan_for
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
SMOKE = {"CLUSTER_TYPE": "local", "GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"}


def engines(install: Path, *releases: str) -> dict[str, Path]:
    """An installation that has engines with ``releases``."""
    pythons = {release: install / "venvs" / KINDS[release].name / "bin" / "python" for release in releases}
    for python in pythons.values():
        python.parent.mkdir(parents=True)
        python.touch()
    values = {"engine": engine_values({release: str(python) for release, python in pythons.items()})}
    SiteConfig(install, {"cluster_type": "local", "gpu_type": "cpu", **values}).make()
    return pythons


def plan(install: Path, recipe: str, **variables: str) -> JobPlan:
    return plan_for(install, recipe, **SMOKE, **variables)


@pytest.mark.parametrize(
    ("recipe", "asked", "release"),
    [
        ("llama3.1", {}, "0.3"),
        ("llama3.1", {"LLMB_ENGINE": "0.3"}, "0.3"),
        ("llama3.1", {"LLMB_ENGINE": "0.6"}, "0.6"),
        ("mbridge", {}, "0.6"),
    ],
)
def test_a_recipe_trains_in_its_own_engine_or_the_one_asked_for(tmp_path, recipe, asked, release):
    pythons = engines(tmp_path, "0.3", "0.6")
    planned = plan(tmp_path, recipe, **asked)
    assert (planned.engine, planned.engine_python) == (release, str(pythons[release]))
    check_engine(planned)


def test_another_engine_brings_its_image_and_its_reader(tmp_path: Path) -> None:
    planned = plan_for(tmp_path, **PUBLISHED, LLMB_ENGINE="0.6")
    assert planned.image == str(tmp_path / "images" / "nvidia+nemo+26.08.sqsh")
    assert job_document(planned, dry_run_paths(str(tmp_path), "x"))["engine"] == "0.6"
    notice = (
        "LLMB_ENGINE=0.6: it trains with Megatron-Bridge 0.6, in nvcr.io#nvidia/nemo:26.08; the published result was "
        "measured with Megatron-Bridge in nemo:25.09.00, so it is only an indication"
    )
    assert notice in planned.preflight.warnings
    own = plan_for(tmp_path, **PUBLISHED)
    assert own.image == str(tmp_path / "images" / "nvidia+nemo+26.02.01.sqsh")
    assert not [warning for warning in own.preflight.warnings if "LLMB_ENGINE" in warning]


LAYERS = "captures a CUDA graph of each layer, and Megatron-Bridge 0.6 refuses local graphs that are not of a whole"
OTHERS = "GPU_TYPE=gb200 MODEL_SIZE=405b DTYPE=fp8 JOB_TOTAL_GPUS=128 RUN_CONF_IMAGE=/images/nvidia+nemo+26.08.sqsh"
REFUSED = {
    "LLMB_ENGINE=0.6 DTYPE=fp8": f"""
        grok1 GPU_TYPE=gb200 JOB_TOTAL_GPUS=128 -> LLMB_ENGINE=0.6: grok1 314b fp8 on gb200 {LAYERS} & 26.02.01
        grok1 GPU_TYPE=h100 JOB_TOTAL_GPUS=512 -> LLMB_ENGINE=0.6:  & its settings are of 0.3 & it runs on 0.3, in
        llama4 GPU_TYPE=h100 JOB_TOTAL_GPUS=512 -> LLMB_ENGINE=0.6: & {LAYERS} & leave LLMB_ENGINE out
        nemotron4 GPU_TYPE=h100 JOB_TOTAL_GPUS=256 -> LLMB_ENGINE=0.6: nemotron4 does not run on Megatron-Bridge 0.6
    """,
    "laptop MODEL_SIZE=smoke": """
        nemotron4 LLMB_ENGINE=0.6 -> nemotron4 does not run on Megatron-Bridge 0.6 & nvcr.io#nvidia/nemo:26.02.01
        mbridge LLMB_ENGINE=0.3 -> mbridge does not run on Megatron-Bridge 0.3: its functions are of 0.6 & in nvcr.io#
        LLMB_ENGINE=0.5 -> no settings for this release of Megatron-Bridge & LLMB_ENGINE is one of 0.3, 0.6
        LLMB_ENGINE=0.6.2 -> no settings for this release of Megatron-Bridge & LLMB_ENGINE is one of 0.3, 0.6
    """,
    OTHERS: """
        -> has Megatron-Bridge 0.6, and the job is planned for 0.3
        -> -> set LLMB_ENGINE=0.6, or leave RUN_CONF_IMAGE out
    """,
}


@pytest.mark.parametrize(("words", "answers"), plans.rows(REFUSED))
def test_an_engine_without_settings_or_image_is_refused_with_the_reason(words: str, answers: list[str]) -> None:
    plans.check_answers(plans.refusal(words), answers)


def test_the_image_of_the_other_engine_is_taken_with_it_or_unchecked() -> None:
    assert plans.plan(OTHERS, LLMB_ENGINE="0.6").image == "/images/nvidia+nemo+26.08.sqsh"
    assert plans.plan(OTHERS, LLMB_ENGINE_CHECK="off").engine == "0.3"


def test_a_recipe_names_each_engine_once_and_only_known_ones(tmp_path: Path, texts: Texts) -> None:
    text = (ROOT / "grok1" / "recipe.yaml").read_text()
    for engine in ("0.3", "0.5"):
        (tmp_path / "recipe.yaml").write_text(f'{text}\nother_engines: {{"{engine}": "x"}}\n')
        with texts.raises(RecipeError):
            load_recipe(tmp_path)


@pytest.mark.parametrize(("installed", "recipe"), [("0.3", "mbridge"), ("0.6", "llama3.1")])
def test_the_engine_of_another_recipe_is_not_taken(tmp_path, installed, recipe, texts: Texts):
    engines(tmp_path, installed)
    with texts.raises(EnvironmentLacks) as caught:
        check_engine(plan(tmp_path, recipe))
    assert caught.value.code == "no-engine"


def test_an_engine_with_another_release_is_refused_before_anything_starts(tmp_path: Path, texts: Texts) -> None:
    """Its folders tell: the ranks would refuse it too, after a place in the queue."""
    python = engines(tmp_path, "0.6")["0.6"]
    for version in ("0.6.2", "0.3.1"):
        packages = python.parents[1] / "lib" / "python3.11" / "site-packages"
        shutil.rmtree(packages, ignore_errors=True)
        (packages / f"megatron_bridge-{version}.dist-info").mkdir(parents=True)
        if version == "0.6.2":
            check_engine(plan(tmp_path, "mbridge"))
    with texts.raises(EnvironmentLacks):
        check_engine(plan(tmp_path, "mbridge"))
    check_engine(plan_for(tmp_path, "mbridge", **SMOKE, LLMB_ENGINE_CHECK="off"))


@pytest.mark.parametrize("recipe", ["llama3.1", "mbridge"])
def test_without_an_installation_the_remedy_begins_with_one(tmp_path: Path, recipe: str, texts: Texts) -> None:
    with texts.raises(EnvironmentLacks):
        check_engine(plan(tmp_path, recipe))


def test_the_python_of_an_engine_is_an_absolute_path(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "cluster_config.yaml").write_text('schema: 1\nengine:\n  releases: {"0.6": bin/python}\n')
    with texts.raises(ConfigError):
        load_cluster_config(tmp_path)


def test_installer_recipes_and_training_code_mean_the_same_engines() -> None:
    assert DOCUMENTED.bridge == DEFAULT_ENGINE
    assert {release.bridge: release.environment for release in RELEASES} == {
        release: engine.name for release, engine in KINDS.items()
    }
    assert set(ENGINES) == set(KINDS) == {load_recipe(folder).engine for folder in recipe_folders(ROOT)}
    containers = {release.bridge: release.container for release in RELEASES}
    for folder in recipe_folders(ROOT):
        recipe = load_recipe(folder)
        assert recipe.engines == {release: containers[release] for release in recipe.engines}


@pytest.mark.parametrize(
    ("recipe", "asked", "kind"),
    [("llama3.1", {}, Job), ("llama3.1", {"LLMB_ENGINE": "0.6"}, Job), ("mbridge", {}, FunctionJob)],
)
def test_the_training_code_reads_what_the_plan_writes(tmp_path, recipe, asked, kind):
    planned = plan(tmp_path, recipe, **asked)
    job = parse_job(job_document(planned, dry_run_paths(str(tmp_path), planned.experiment_name)))
    assert type(job) is kind
    assert job.release.bridge == planned.engine
