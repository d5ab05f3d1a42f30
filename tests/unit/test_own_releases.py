"""A release of Megatron-Bridge that LLMB has never heard of: a site's container with a catalogue of its own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click import Context

from llmb_common.base.errors import ConfigError, EnvironmentLacks, LLMBError, RequestError
from llmb_common.executors.engine import check_engine
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.cluster import FILE_NAME
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_document
from llmb_common.submission.launch import plan_from_variables
from llmb_install.answers.answers import complete_answers, load_recipes
from llmb_install.installation import Installation
from llmb_run import options
from llmb_run.commands.start import single_command
from llmb_train.job import FunctionJob, Job, parse_job
from support import plans
from support.cli import Cli
from support.runs import ROOT, make_run, plan_for, steady_log
from support.texts import Texts

SHIPPED = json.loads((ROOT / "mbridge" / "catalogue-0.6.2.json").read_text())
OLD, NEW = "llama3_8b_pretrain_8gpu_h100_fp8cs_config", "llama3_8b_pretrain_16gpu_h100_fp8ds_ours_config"
SHIPPED_TOO = {"MODEL_SIZE": "llama3_8b", "GPU_TYPE": "h100", "DTYPE": "fp8", "FP8_RECIPE": "cs", "JOB_TOTAL_GPUS": "8"}
ASKED = {**SHIPPED_TOO, "FP8_RECIPE": "ds", "JOB_TOTAL_GPUS": "16", "CONFIG_VARIANT": "ours"}
LLAMA = {"MODEL_SIZE": "8b", "GPU_TYPE": "h100", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
IMAGE = "/images/ours.sqsh"


def catalogue(folder: Path, release: str = "0.9.1") -> Path:
    """One function of today's and one that no release has."""
    words = {"index": [row for row in SHIPPED["index"] if row[0] == OLD], "functions": {}}
    words["index"] = [*words["index"], [NEW, "llama3_8b", "pretrain", 16, "h100", "fp8ds", "ours"]]
    words["functions"] = dict.fromkeys((OLD, NEW), SHIPPED["functions"][OLD])
    file = folder / f"catalogue-{release}.json"
    file.write_text(json.dumps({**SHIPPED, "release": release, "core": "0.22.0", "sha256": 64 * "9", **words}))
    return file


def configure(install: Path, text: str) -> None:
    (install / FILE_NAME).write_text(f"schema: 1\n{text}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An installation whose configuration has the release."""
    configure(tmp_path, f'releases:\n  "0.9.1": {{image: {IMAGE}, catalogue: {catalogue(tmp_path)}}}')
    return tmp_path


def notices(planned: JobPlan, words: str = "newer than") -> list[str]:
    return [line for line in planned.preflight.warnings if words in line]


@pytest.mark.parametrize(
    "how",
    [{"LLMB_ENGINE": "0.9.1"}, {"LLMB_ENGINE": "0.9"}, {"RUN_CONF_IMAGE": IMAGE}],
    ids=lambda how: next(iter(how)),
)
def test_the_release_or_its_image_chooses_the_sites_catalogue(site: Path, how: dict[str, str], texts: Texts) -> None:
    planned = plan_for(site, "mbridge", **ASKED, **how)
    assert (planned.engine, planned.image, planned.function.name) == ("0.9", IMAGE, NEW)
    assert (planned.function.release, planned.function.catalogue) == ("0.9.1", 64 * "9")
    (said,) = notices(planned)
    texts(said)
    job = parse_job(job_document(planned, dry_run_paths(str(site), "x")))
    assert isinstance(job, FunctionJob)
    assert (job.function.name, job.engine, job.release.is_newer) == (NEW, "0.9", True)


@pytest.mark.parametrize("asked", ["0.9", "0.9.1"])
@pytest.mark.parametrize("name", ["0.9", "0.9.1"])
def test_a_release_is_found_by_two_numbers_and_by_three(tmp_path: Path, name: str, asked: str) -> None:
    configure(tmp_path, f'releases: {{"{name}": {{image: {IMAGE}, catalogue: {catalogue(tmp_path)}}}}}')
    planned = plan_for(tmp_path, "mbridge", **ASKED, LLMB_ENGINE=asked)
    assert (planned.function.release, planned.engine, planned.image) == ("0.9.1", "0.9", IMAGE)
    configure(tmp_path, f'releases: {{"{name}": {{image: {IMAGE}}}}}')
    assert plan_for(tmp_path, **LLAMA, LLMB_ENGINE=asked).image == IMAGE


def test_two_numbers_with_the_catalogue_of_another_patch_are_refused(tmp_path: Path, texts: Texts) -> None:
    configure(tmp_path, f'releases: {{"0.9": {{image: {IMAGE}, catalogue: {catalogue(tmp_path)}}}}}')
    with texts.raises(RequestError) as caught:
        plan_for(tmp_path, "mbridge", **ASKED, LLMB_ENGINE="0.9.2")
    assert "LLMB_ENGINE=0.9.1" in caught.value.remedy


@pytest.mark.parametrize("name", ["0.6", "0.6.0"])
def test_an_image_of_the_sites_with_a_shipped_release_has_its_functions(tmp_path: Path, name: str) -> None:
    configure(tmp_path, f'releases: {{"{name}": {{image: {IMAGE}}}}}')
    planned = plan_for(tmp_path, "mbridge", **SHIPPED_TOO, LLMB_ENGINE="0.6.0")
    assert (planned.function.release, planned.image) == ("0.6.0", IMAGE)


def test_the_sites_releases_change_nothing_for_other_jobs(site: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    bare = tmp_path_factory.mktemp("bare")
    mine, without = plan_for(site, "mbridge", **SHIPPED_TOO), plan_for(bare, "mbridge", **SHIPPED_TOO)
    assert (mine.function, mine.engine, mine.env) == (without.function, without.engine, without.env)
    assert plan_for(site, **LLAMA).engine == "0.3"
    assert not notices(mine)


def test_a_release_without_an_image_is_taken_only_where_it_is_asked_for(tmp_path: Path) -> None:
    configure(tmp_path, f'releases: {{"0.9": {{catalogue: {catalogue(tmp_path)}}}}}')
    assert plan_for(tmp_path, "mbridge", **SHIPPED_TOO).engine == "0.6"
    assert plan_for(tmp_path, "mbridge", **ASKED, **IN_OURS, LLMB_ENGINE="0.9").engine == "0.9"


def test_what_megatron_said_of_the_shipped_functions_does_not_hold_for_the_sites(tmp_path: Path, texts: Texts) -> None:
    refused = {"MODEL_SIZE": "deepseek_v4_pro", "GPU_TYPE": "gb300", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "256"}
    with texts.raises(RequestError):
        plan_for(tmp_path, "mbridge", **refused)
    file = tmp_path / "all.json"
    file.write_text(json.dumps({**SHIPPED, "release": "0.9.1"}))
    configure(tmp_path, f'releases: {{"0.9": {{image: {IMAGE}, catalogue: {file}}}}}')
    assert plan_for(tmp_path, "mbridge", **refused, LLMB_ENGINE="0.9").image == IMAGE


def test_a_function_that_only_the_sites_release_has_is_refused_elsewhere_and_the_release_named(
    site: Path, texts: Texts
) -> None:
    with texts.raises(RequestError):
        plan_for(site, "mbridge", **ASKED)


def test_an_older_release_of_the_sites_has_its_own_catalogue_too(tmp_path: Path) -> None:
    file = catalogue(tmp_path, "0.6.1")
    configure(tmp_path, f'releases:\n  "0.6.1": {{image: {IMAGE}, catalogue: {file}}}')
    planned = plan_for(tmp_path, "mbridge", **ASKED, LLMB_ENGINE="0.6.1")
    assert (planned.engine, planned.function.release, planned.image) == ("0.6", "0.6.1", IMAGE)
    assert len(notices(planned, str(file))) == 1


def test_a_copy_of_the_recipe_may_name_the_release(tmp_path: Path) -> None:
    catalogue(tmp_path)
    head = (ROOT / "mbridge" / "recipe.yaml").read_text()
    kept = re.sub(r"(?m)^(validation|published|other_catalogues|  \"0\.6\.0\"):?.*\n", "", head)
    kept = kept.replace('engine: "0.6"', 'engine: "0.9"').replace("catalogue-0.6.2", "catalogue-0.9.1")
    (tmp_path / "recipe.yaml").write_text(kept.replace('"nvcr.io#nvidia/nemo:26.08"', IMAGE))
    variables = {"LLMB_INSTALL": str(tmp_path), "CLUSTER_TYPE": "slurm", **ASKED}
    planned = plan_from_variables(tmp_path, variables)[1]
    assert (planned.engine, planned.image) == ("0.9", IMAGE)
    assert len(notices(planned)) == 1
    assert plan_from_variables(tmp_path, {**variables, "LLMB_ENGINE": "0.9.1"})[1] == planned


# Without a catalogue


IN_OURS = {"RUN_CONF_IMAGE": "/images/other.sqsh"}


@pytest.mark.parametrize("release", ["0.7", "0.7.0", "0.7.0rc1", "1.0", "0.10.2"])
@pytest.mark.parametrize(("recipe", "asked"), [("mbridge", SHIPPED_TOO), ("llama3.1", LLAMA)])
def test_an_unknown_release_is_planned_with_a_notice(tmp_path, recipe, asked, release, texts: Texts):
    planned = plan_for(tmp_path, recipe, **asked, **IN_OURS, LLMB_ENGINE=release)
    minor = ".".join(release.split(".")[:2])
    assert (planned.engine, planned.image) == (minor, IN_OURS["RUN_CONF_IMAGE"])
    (said,) = notices(planned)
    texts(said)
    assert re.search(r"\b0\.6\.2\b" if recipe == "mbridge" else r"\b0\.6\b", said), "what it is planned with"
    job = parse_job(job_document(planned, dry_run_paths(str(tmp_path), "x")))
    assert isinstance(job, FunctionJob if recipe == "mbridge" else Job)


def test_a_described_job_has_the_variables_of_the_newest_release(tmp_path: Path, texts: Texts) -> None:
    newer = plan_for(tmp_path, **LLAMA, **IN_OURS, LLMB_ENGINE="0.7")
    assert newer.env == plan_for(tmp_path, **LLAMA, **IN_OURS, LLMB_ENGINE="0.6").env
    assert newer.env != plan_for(tmp_path, **LLAMA).env
    texts(notices(newer)[0])


def test_the_image_of_a_release_serves_every_recipe(site: Path) -> None:
    assert plan_for(site, **LLAMA, LLMB_ENGINE="0.9").image == IMAGE
    configure(site, 'image_folder: /shared\nreleases: {"0.9": {image: "registry.example#ours/nemo:1"}}')
    assert plan_for(site, **LLAMA, LLMB_ENGINE="0.9").image == "/shared/ours+nemo+1.sqsh"


def test_outside_containers_the_sites_python_is_taken_and_must_have_the_release(tmp_path: Path, texts: Texts) -> None:
    python = tmp_path / "engine" / "bin" / "python"
    local = {
        "CLUSTER_TYPE": "local",
        "GPU_TYPE": "cpu",
        "MODEL_SIZE": "smoke",
        "JOB_TOTAL_GPUS": "2",
        "LLMB_ENGINE": "0.9",
    }
    with texts.raises(EnvironmentLacks):
        check_engine(plan_for(tmp_path, **local))
    configure(tmp_path, f'engine: {{releases: {{"0.9.1": {python}}}}}')
    python.parent.mkdir(parents=True)
    python.touch()
    check_engine(plan_for(tmp_path, **local))
    packages = python.parents[1] / "lib" / "python3.11" / "site-packages"
    (packages / "megatron_bridge-0.8.0.dist-info").mkdir(parents=True)
    with texts.raises(EnvironmentLacks):
        check_engine(plan_for(tmp_path, **local))


# Mistakes


DOCUMENTED = "MODEL_SIZE=8b GPU_TYPE=h100 DTYPE=fp8 JOB_TOTAL_GPUS=8"
BY_NAME = "mbridge MODEL_SIZE=llama3_8b GPU_TYPE=h100 DTYPE=fp8 FP8_RECIPE=cs JOB_TOTAL_GPUS=8"
NO_RELEASES = ("v0.7", "0", "0.", "seven", "0.7.x", "0-7", "nemo:26.10")
REFUSED = {
    **dict.fromkeys(
        (DOCUMENTED, BY_NAME),
        "\n".join(f"LLMB_ENGINE={it} -> LLMB_ENGINE={it} is not a release of & as 0.7 or 0.7.0" for it in NO_RELEASES),
    ),
    f"{DOCUMENTED} LLMB_ENGINE=0.7.1": """
        -> LLMB knows no image with this release
        -> -> set RUN_CONF_IMAGE to one, or releases."0.7.1".image in cluster_config.yaml
        RUN_CONF_IMAGE=nvcr.io#nvidia/nemo:26.04 -> nemo:26.04 has Megatron-Bridge 0.4, and the job is planned for 0.7
    """,
    f"{BY_NAME} LLMB_ENGINE=0.6.3": """
        -> knows no image
        RUN_CONF_IMAGE=nvcr.io#nvidia/nemo:26.08 -> has Megatron-Bridge 0.6.0
    """,
}


@pytest.mark.parametrize(("words", "answers"), plans.rows(REFUSED))
def test_what_is_no_release_or_has_no_image_is_refused_with_how_to_name_one(words: str, answers: list[str]) -> None:
    plans.check_answers(plans.refusal(words), answers)


def test_a_later_patch_runs_in_an_image_of_the_sites() -> None:
    assert plans.plan(BY_NAME, **IN_OURS, LLMB_ENGINE="0.6.3").engine == "0.6"


@pytest.mark.parametrize(
    ("recipe", "asked", "release"),
    [
        ("llama3.1", LLAMA, "0.5"),
        ("nemotron4", {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "256"}, "0.6"),
        ("mbridge", SHIPPED_TOO, "0.3"),
    ],
)
def test_an_image_of_the_sites_does_not_make_a_release_run_that_cannot(tmp_path, recipe, asked, release, texts: Texts):
    configure(tmp_path, f'releases: {{"{release}": {{image: {IMAGE}}}}}')
    with texts.raises(RequestError):
        plan_for(tmp_path, recipe, **asked, LLMB_ENGINE=release)


def test_a_broken_catalogue_of_the_sites_hides_no_other_mistake(tmp_path: Path, texts: Texts) -> None:
    configure(tmp_path, f'releases: {{"0.9": {{image: {IMAGE}, catalogue: /nowhere.json}}}}')
    with texts.raises(RequestError):
        plan_for(tmp_path, "mbridge", **ASKED)


@pytest.mark.parametrize(
    "text",
    [
        'releases: {"v0.9": {image: /x}}',
        'engine: {releases: {"new": /x/python}}',
        'releases: {"0.9": {catalogue: mine.json}}',
        'releases: {"0.9": {catalog: /mine.json}}',
        'releases: {"0.9": {image: "/a\\nb"}}',
        'releases: {"0.9": {catalogue: /nowhere.json}}',
    ],
)
def test_a_mistake_in_the_sites_configuration_is_named(tmp_path: Path, text: str, texts: Texts) -> None:
    configure(tmp_path, text)
    with texts.raises(LLMBError) as caught:
        plan_for(tmp_path, "mbridge", **ASKED, **IN_OURS, LLMB_ENGINE="0.9")
    assert caught.value.remedy


@pytest.mark.parametrize(("name", "fits"), [("0.8", False), ("0.9.2", False), ("0.9", True)])
def test_a_catalogue_stands_under_its_own_release(tmp_path: Path, name: str, fits: bool, texts: Texts) -> None:
    configure(tmp_path, f'releases: {{"{name}": {{image: {IMAGE}, catalogue: {catalogue(tmp_path)}}}}}')
    if fits:
        assert plan_for(tmp_path, "mbridge", **ASKED, LLMB_ENGINE=name).engine == "0.9"
        return
    with texts.raises(ConfigError):
        plan_for(tmp_path, "mbridge", **ASKED, LLMB_ENGINE=name)


# The verdict


def run_of(cli: Cli, milliseconds: float) -> str:
    record = make_run(
        cli.install, "mbridge", variables={**ASKED, "LLMB_ENGINE": "0.9"}, log=steady_log(milliseconds, tflops=None)
    )
    return record.paths.run_id


def test_a_run_of_the_sites_release_has_no_reference_until_it_has_a_baseline(cli: Cli) -> None:
    configure(cli.install, f'releases:\n  "0.9.1": {{image: {IMAGE}, catalogue: {catalogue(cli.install)}}}')
    first, second = run_of(cli, 1000), run_of(cli, 1001)
    (found,) = cli("results", "--json", first).data["runs"]
    assert (found["verdict"], found["reference"]) == ("no reference", None)
    assert cli("baseline", "set", first).status == 0
    (judged,) = cli("results", "--json", second).data["runs"]
    reference: dict[str, Any] = judged["reference"]
    assert (reference["kind"], reference["same_software"], reference["software"]) == ("baseline", True, "ours.sqsh")


# What other commands see of it


@pytest.fixture
def zebra(cli: Cli) -> Cli:
    """A site whose release has one model that nobody else has, and one function that the shipped ones have, too."""
    file = catalogue(cli.install)
    file.write_text(file.read_text().replace(NEW, "zebra_9b_pretrain_16gpu_h100_fp8ds_ours_config"))
    file.write_text(file.read_text().replace('"llama3_8b", "pretrain", 16', '"zebra_9b", "pretrain", 16'))
    configure(cli.install, f'cluster_type: slurm\nreleases: {{"0.9": {{image: {IMAGE}, catalogue: {file}}}}}')
    return cli


ZEBRA = ("-w", "mbridge", "-s", "zebra_9b", "--gpu-type", "h100", "--dtype", "fp8", "--variant", "ours")


def test_a_sweep_takes_models_and_scales_of_the_sites_release(zebra: Cli) -> None:
    done = zebra("submit", *ZEBRA, "--scale", "all", "--dry-run", "--engine", "0.9")
    assert done.status == 0, done.err
    assert "#SBATCH --job-name=pretrain_zebra_9b_fp8_ds_gpus16_" in done.out


@pytest.mark.parametrize("engine", ["0.9", "0.9.1"])
def test_a_plan_is_shown_with_the_sites_function_as_the_source_of_its_values(zebra: Cli, engine: str) -> None:
    done = zebra("plan", *ZEBRA, "--scale", "16", "--engine", engine, "--json")
    assert done.status == 0, done.err
    found = {source["source"] for source in done.data["sources"]}
    assert "zebra_9b_pretrain_16gpu_h100_fp8ds_ours_config (Megatron-Bridge 0.9.1)" in found


def test_a_plan_names_the_release_of_its_image_as_the_source(zebra: Cli) -> None:
    job = ("-s", "llama3_8b", "--gpu-type", "h100", "--dtype", "fp8", "--scale", "8", "--env", "FP8_RECIPE=cs")
    found = {source["source"] for source in zebra("plan", "-w", "mbridge", *job, "--json").data["sources"]}
    assert f"{OLD} (Megatron-Bridge 0.6.0)" in found


def test_a_sweep_without_the_release_says_which_one_has_the_model(zebra: Cli, texts: Texts) -> None:
    done = zebra("submit", *ZEBRA, "--scale", "16", "--dry-run")
    assert done.status == 2
    texts(done.err)


def test_a_suite_takes_a_function_of_the_sites_release(zebra: Cli, tmp_path: Path) -> None:
    suite = tmp_path / "ours.yaml"
    test = "workload: mbridge, size: zebra_9b, dtype: fp8, variant: ours, reference: none"
    suite.write_text(f'name: ours\ndefaults: {{gpu_type: h100, scale: 16, engine: "0.9"}}\ntests:\n  - {{{test}}}\n')
    done = zebra("accept", suite, "--dry-run", "--json")
    assert done.status == 0, done.err
    assert [item["plan"]["function"]["release"] for item in done.data["workloads"]] == ["0.9.1"]


def test_the_list_has_what_only_the_sites_release_has(zebra: Cli, texts: Texts) -> None:
    (entry,) = zebra("list", "-w", "mbridge", "--json").data
    found = {(known["size"], known["release"], *known["scales"]) for known in entry["configurations"]}
    assert ("zebra_9b", "0.9.1", 16) in found
    assert "zebra_9b" in entry["sizes"]
    shipped = [known for known in entry["configurations"] if known["size"] == "llama3_8b"]
    assert {known["release"] for known in shipped} == {None}
    done = zebra("list", "-w", "mbridge", "-s", "zebra")
    assert " 16* " in done.out
    texts(done.err, about="* not in")
    assert "RUN_CONF_IMAGE" not in done.err


def test_a_function_that_the_workloads_image_lacks_is_listed_as_of_the_sites_release(
    cli: Cli, tmp_path: Path, texts: Texts
) -> None:
    """Of 0.6.2, which no known image has: the site's has it."""
    file = ROOT / "mbridge" / "catalogue-0.6.2.json"
    asked = ("list", "-w", "mbridge", "-s", "nemotron_3_5_lightning", "--json")
    before = {known["release"] for known in cli(*asked).data[0]["configurations"]}
    configure(cli.install, f'releases: {{"0.6.2": {{image: {IMAGE}, catalogue: {file}}}}}')
    (entry,) = cli(*asked).data
    assert {known["release"] for known in entry["configurations"]} == before
    assert "0.6.2" in before
    texts(cli(*asked[:-1]).err, about="--engine 0.6.2")


def test_a_catalogue_that_cannot_be_read_is_left_out_of_the_list(cli: Cli, texts: Texts) -> None:
    configure(cli.install, f'releases: {{"0.9": {{image: {IMAGE}, catalogue: /nowhere.json}}}}')
    done = cli("list", "-w", "mbridge")
    assert done.status == 0
    texts(done.err, about="left out")


def test_the_shell_completes_models_of_the_sites_release(zebra: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMB_INSTALL", str(zebra.install))
    context, parameter = Context(single_command, info_name="single"), single_command.params[0]
    context.params["workload"] = "mbridge"
    assert options.complete_sizes(context, parameter, "zeb") == ["zebra_9b"]


def test_tuning_looks_at_the_sites_function(zebra: Cli) -> None:
    done = zebra("tune", *ZEBRA, "--scale", "16", "--engine", "0.9", "--dry-run", "--json")
    assert done.status == 0, done.err
    base, *_ = done.data["space"]["first"]
    assert "-s zebra_9b" in base
    assert "--force" not in base


# The installer


def test_the_installer_leaves_a_release_that_it_has_no_lock_for_to_the_site(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "mbridge", clone / "mbridge")
    shutil.copytree(ROOT / "llama3.1", clone / "llama3.1")
    file = clone / "mbridge" / "recipe.yaml"
    file.write_text(file.read_text().replace('engine: "0.6"', 'engine: "0.9"'))
    given = {"cluster_type": "local", "gpu_type": "cpu", "install_path": str(tmp_path / "i"), "workloads": "all"}
    found = Installation(clone, complete_answers(given, load_recipes(clone)))
    assert found.releases() == ["0.3", "0.9"]
    assert [engine.release for engine in found.engines()] == ["0.3"]
    assert found.engine_names() == {"engine-cpu"}
    assert list(found.site_values()["engine"]) == ["python"]


def test_the_installer_does_not_import_an_image_that_is_a_file_of_the_sites(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "mbridge", clone / "mbridge")
    given = {"cluster_type": "slurm", "gpu_type": "h100", "account": "a", "gpu_partition": "p", "workloads": "all"}
    given |= {"install_path": str(tmp_path / "i"), "cpu_partition": "p"}
    names = []
    for image in ('"nvcr.io#nvidia/nemo:26.08"', IMAGE):
        file = clone / "mbridge" / "recipe.yaml"
        file.write_text(file.read_text().replace('"nvcr.io#nvidia/nemo:26.08"', image))
        names.append([one.source for one in Installation(clone, complete_answers(given, load_recipes(clone))).images()])
    assert names == [["nvcr.io#nvidia/nemo:26.08"], []]
