"""Suites: those that come with LLMB, of which each workload can be planned and judged, and what no suite may say."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.errors import RequestError
from llmb_run.acceptance.suite import suites
from support import instant
from support.campaigns import SUITE, Site
from support.cli import Cli
from support.functions import CATALOGUE, LAPTOP, RECIPE, plan
from support.repository import REPOSITORY
from support.texts import Texts

MADE = [name for name in suites() if name != "smoke"]
JUDGED = [name for name in MADE if not name.startswith("exemplar")]

OUR_NAMES = {
    "pretrain_deepseek-v3_671b": "deepseek_v3",
    "pretrain_gpt_oss_120b": "gpt_oss_120b",
    "pretrain_kimi-k2_1t": "kimi_k2",
    "pretrain_llama3.1_405b": "llama31_405b",
    "pretrain_llama3.1_70b": "llama3_70b",
    "pretrain_nemotron-h_56b": "nemotronh_56b",
    "pretrain_nemotron_3_120b": "nemotron_3_super",
    "pretrain_qwen3_235b": "qwen3_235b_a22b",
}


def planned(cli: Cli, name: str) -> list[dict[str, Any]]:
    done = cli("accept", name, "--dry-run", "--json", CLUSTER_TYPE="slurm")
    assert done.status == 0, done.err
    workloads: list[dict[str, Any]] = done.data["workloads"]
    assert [item["prescreen"] for item in workloads] == [True] + [False] * (len(workloads) - 1)
    titles = [item["title"] for item in workloads]
    assert len(set(titles)) == len(titles)
    return workloads[1:]


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_every_workload_has_a_reference(cli: Cli, name: str) -> None:
    """Of one suite all of the same software or all of another one, and all run in one container."""
    workloads = planned(cli, name)
    gpu_type, _, scale = name.partition("-")
    assert {item["plan"]["gpu_type"] for item in workloads} == {gpu_type}
    if scale:
        assert {item["plan"]["gpus"] for item in workloads} == {int(scale)}
    assert len({item["plan"]["image"] for item in workloads}) == 1
    assert all(item["reference"] and item["limit_seconds"] for item in workloads)
    assert len({item["indication"] for item in workloads}) == 1
    if any("other software" in line for line in suites()[name].splitlines()[:1]):
        assert workloads[0]["indication"]
    else:
        assert [item["limit_performance"] for item in workloads] == [pytest.approx(0.95)] * len(workloads)


def test_all_that_is_published_for_our_container_is_in_a_suite(cli: Cli) -> None:
    rows = json.loads((REPOSITORY / "mbridge" / "published.json").read_text())["rows"]
    ours = {(row["gpu"], row["gpus"], row["function"]) for row in rows if row["container"] == "26.08"}
    assert len(ours) > 15
    found = set()
    for name in {gpu for gpu, *_ in ours}:
        for item in planned(cli, name):
            assert not item["indication"], item["title"]
            found.add((item["plan"]["gpu_type"], item["plan"]["gpus"], item["plan"]["function"]["name"]))
    assert found == ours


FACTS = json.loads((REPOSITORY / "cli" / "llmb_run" / "acceptance" / "exemplar.json").read_text())
EXEMPLAR = {name.rpartition("-")[2]: name for name in MADE if name not in JUDGED}


@pytest.mark.parametrize("gpu_type", FACTS["workloads"])
def test_the_exemplar_suites_are_nvidias_list(cli: Cli, gpu_type: str) -> None:
    assert EXEMPLAR.keys() == FACTS["workloads"].keys()
    found: dict[str, list[str]] = defaultdict(list)
    for item in planned(cli, EXEMPLAR[gpu_type]):
        asked = item["plan"]
        scaling = f" {asked['fp8_recipe']}" if asked["dtype"] == "fp8" else ""
        found[asked["model_size"]].append(asked["dtype"] + scaling)
        assert (asked["gpu_type"], asked["gpus"]) == (gpu_type, FACTS["scale"])
        assert (item["repeats"], asked["profile"]) == (FACTS["repeats"], None)
    assert found == {OUR_NAMES[name]: dtypes for name, dtypes in FACTS["workloads"][gpu_type].items()}
    text = suites()[EXEMPLAR[gpu_type]]
    assert all(FACTS[fact] in text for fact in ("release", "date", "looked_up", "source"))


def test_an_exemplar_suite_has_nvidias_release_in_its_name_and_is_found_by_its_earlier_name(
    cli: Cli, texts: Texts
) -> None:
    assert FACTS["release"] == "v26.08.00"
    assert EXEMPLAR["gb300"] == "exemplar-26.08-gb300"
    before, now = (cli("accept", "suites", name) for name in ("exemplar-gb300", EXEMPLAR["gb300"]))
    assert before.out == now.out == suites()[EXEMPLAR["gb300"]]
    assert now.err == ""
    texts(before.err)
    assert cli("accept", "suites", "exemplar-gb301").status == 2


def test_an_exemplar_suite_says_before_it_starts_that_it_cannot_judge(cli: Cli, texts: Texts) -> None:
    done = cli("accept", EXEMPLAR["h100"], "--dry-run", CLUSTER_TYPE="slurm")
    texts(done.err, about="no reference")


def test_the_smoke_suite_has_every_recipe_in_its_smallest_size(cli: Cli) -> None:
    done = cli("accept", "smoke", "--dry-run", "--json", CLUSTER_TYPE="local")
    assert [item["plan"]["workload"] for item in done.data["workloads"]] == [
        "pretrain_llama3.1",
        "pretrain_llama4_maverick",
        "pretrain_grok1",
        "pretrain_nemotron4",
    ]


def test_a_suite_can_be_printed_and_changed(cli: Cli, tmp_path: Path) -> None:
    assert cli("accept", "suites").out.split() == list(suites())
    text = cli("accept", "suites", "gb300-64").out
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("name: gb300-64", "name: own"))
    done = cli("accept", own, "--dry-run", "--json", CLUSTER_TYPE="slurm")
    assert (done.status, done.data["suite"], len(done.data["workloads"])) == (0, "own", 4)
    assert cli("accept", "suites", "gb300-65").status == 2


# What a machine without GPUs answers to each model of the catalogue.


@pytest.mark.parametrize("model", CATALOGUE.sizes)
def test_without_gpus_a_model_is_answered_with_its_own_small_copy_or_what_is_possible(model: str) -> None:
    own = RECIPE.smoke_of(model)
    assert own in (f"{model}-smoke", "smoke" if model == "llama3_8b" else None, None)
    wrong = [model] if own == f"{model}-smoke" else [model, f"{model}-smoke"]
    for size in wrong:
        with pytest.raises(RequestError) as caught:
            plan(LAPTOP, MODEL_SIZE=size)
        text = str(caught.value)
        assert own in text if own else re.search(rf"\b{model}\b.*\bdry run\b", text)
        assert not [other for other in CATALOGUE.sizes if other in text.replace(model, "")]


# Refusals


@pytest.mark.parametrize(
    "text",
    [
        SUITE.replace("scale: 2", "scale: 999"),
        SUITE.replace("{seconds: 0.1, source: a contract}", "required"),
        SUITE.replace("scale: 2", "max_steps: 20"),
        SUITE.replace("scale: 2", "profile: true"),
        SUITE.replace("a contract", '""'),
        SUITE.replace("name: two", "name: ../x"),
        SUITE.replace("repeats: 3", "repeats: 0"),
        SUITE.replace("0.1,", "1e-320,"),
    ],
)
def test_a_suite_that_cannot_be_run_is_refused_before_anything_starts(site: Site, text: str, texts: Texts) -> None:
    site.suite(text=text)
    done = site.accept()
    assert (done.status, instant.accepted()) == (2, []), done.out
    texts(done.err)
    assert not list(site.install.rglob("campaign.json"))


def test_a_missing_image_is_found_before_anything_starts(site: Site, texts: Texts) -> None:
    site.suite()
    (instant.folder() / "no image").touch()
    done = site.accept()
    assert (done.status, instant.accepted()) == (3, [])
    texts(done.err)
    texts(site("accept", "smok").err)


def test_a_dry_run_shows_everything_and_writes_nothing(site: Site) -> None:
    site.suite()
    done = site.accept("--dry-run")
    assert (done.status, instant.accepted()) == (0, [])
    assert done.out.splitlines()[1].split()[-6:] == ["0.1", "0.1053", ">", "95.0", "a", "contract"]
    assert not (site.install / "campaigns").exists()
    assert site.accept("--dry-run", "--json").data["workloads"][0]["plan"]["gpus"] == 1
