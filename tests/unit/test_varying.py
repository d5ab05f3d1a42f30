"""What is varied of a job: dimensions and their names, combinations, and which of them can be planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from llmb_common.errors import RequestError
from llmb_run.place import Place
from llmb_run.starting.requests import Ask
from llmb_run.starting.sweeps import MOST, changed, combinations, dimension, dimensions_of, vary
from support.cli import Cli

GROK = Ask(workload="pretrain_grok1", dtype="bf16", scale="512", gpu_type="h100", dry_run=True)


@pytest.fixture
def place(cli: Cli) -> Place:
    return Place(cli.install)


def test_every_combination_is_planned_or_refused_with_its_reason(place: Place) -> None:
    planned, refused = vary(GROK, place, {"tp": ["4", "3", "8"], "NCCL_ALGO": ["Ring", "Tree"]})
    assert [item.ask.combination for item in planned] == [
        "tp=4 NCCL_ALGO=Ring",
        "tp=4 NCCL_ALGO=Tree",
        "tp=8 NCCL_ALGO=Ring",
        "tp=8 NCCL_ALGO=Tree",
    ]
    assert [(item.plan.tp, item.plan.env["NCCL_ALGO"].value) for item in planned[1:3]] == [(4, "Tree"), (8, "Ring")]
    assert [item.ask.combination for item in refused] == ["tp=3 NCCL_ALGO=Ring", "tp=3 NCCL_ALGO=Tree"]
    assert "3" in refused[0].error.message


def test_zipped_dimensions_change_together(place: Place) -> None:
    planned, refused = vary(GROK, place, {"mbs": ["1", "2"]}, [{"tp": ["4", "8"], "pp": ["8", "4"]}])
    assert not refused
    assert [(item.plan.mbs, item.plan.tp, item.plan.pp) for item in planned] == [
        (1, 4, 8),
        (1, 8, 4),
        (2, 4, 8),
        (2, 8, 4),
    ]


def test_a_combination_that_is_the_same_job_is_refused(place: Place) -> None:
    planned, (same,) = vary(GROK, place, {"fsdp": ["false", "0"]})
    assert [item.ask.combination for item in planned] == ["fsdp=false"]
    assert same.error.message == "the same job as fsdp=false"


def test_what_does_not_fit_is_refused(place: Place) -> None:
    nemotron = Ask(workload="nemotron4", size="340b", dtype="bf16", gpu_type="h100", force=True, dry_run=True)
    planned, refused = vary(nemotron, place, {"scale": ["64", "128"]})
    assert [item.ask.varied for item in planned] == [{"scale": "128"}]
    assert [(item.ask.varied, item.error.code) for item in refused] == [({"scale": "64"}, "does-not-fit")]


def test_everything_that_may_be_varied_changes_the_job() -> None:
    changes = {"tp": "2", "size": "8b", "engine": "0.6", "image": "/a.sqsh", "NCCL_ALGO": "Ring"}
    ask = changed(Ask(workload="llama3.1"), changes)
    assert (ask.columns, ask.size, ask.engine, ask.image) == ({"tp": "2"}, "8b", "0.6", "/a.sqsh")
    assert ask.environment == {"NCCL_ALGO": "Ring"}
    assert {name: ask.value(name) for name in changes} == changes


NAMES = {
    **{"TP": "tp", "cuda-graph": "cuda_graph", "JOB_TOTAL_GPUS": "scale", "MODEL_SIZE": "size", "model-size": "size"},
    **{"LLMB_ENGINE": "engine", "RUN_CONF_IMAGE": "image", "NCCL_ALGO": "NCCL_ALGO", "FP8_RECIPE": "FP8_RECIPE"},
}


@pytest.mark.parametrize("said", NAMES)
def test_a_dimension_has_one_name(said: str) -> None:
    assert dimension(said) == NAMES[said]


WRONG = {
    "tpp=1,2": "'tpp' cannot be varied (did you mean 'tp'?)",
    "fp8_recipe=cs,mx": "'fp8_recipe' cannot be varied (did you mean 'FP8_RECIPE'?)",
    "max_steps=5,10": "'max_steps' cannot be varied",
    "TIME_LIMIT=5,10": "'TIME_LIMIT' cannot be varied",
    "tp": "--vary 'tp' is not NAME=VALUE,VALUE",
    "=1": "--vary '=1' is not NAME=VALUE,VALUE",
    "tp=": "--vary tp: a value of '' is empty",
    "tp=1,,2": "--vary tp: a value of '1,,2' is empty",
    "tp=1,2,1": "tp: 1 is given twice",
    "HF_TOKEN=a,b": "HF_TOKEN: HF_TOKEN looks like a secret",
    "DRY_RUN=true,false": "DRY_RUN: DRY_RUN cannot be set for a job",
    f"mbs={','.join(map(str, range(MOST + 1)))}": f"{MOST + 1} combinations ({MOST + 1} mbs) are more than {MOST}",
}


@pytest.mark.parametrize("word", WRONG)
def test_what_cannot_be_varied_is_named(word: str) -> None:
    with pytest.raises(RequestError) as caught:
        [changed(GROK, changes) for changes in combinations(dimensions_of([word], "--vary"))]
    assert caught.value.message.startswith(WRONG[word])
    assert caught.value.remedy


def test_values_may_hold_commas() -> None:
    found = dimensions_of(['NCCL_DEBUG_SUBSYS="COLL,NET", ALL', "NCCL_ALGO=Ring,[Tree,NVLS]"], "--vary")
    assert found == {"NCCL_DEBUG_SUBSYS": ["COLL,NET", "ALL"], "NCCL_ALGO": ["Ring", "[Tree,NVLS]"]}


@pytest.mark.parametrize(
    ("zipped", "said"),
    [
        ({"tp": ["1", "2"], "pp": ["4"]}, "tp has 2, pp has 1"),
        ({"tp": ["1", "2"]}, "tp has 2"),
        ({"tp": ["1", "1"], "pp": ["2", "2"]}, "tp and pp: 1 2 is given twice"),
        ({"mbs": ["1", "2"], "tp": ["1", "2"]}, "mbs: varied twice"),
    ],
)
def test_what_cannot_change_together(zipped: Mapping[str, Sequence[str]], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        combinations({"mbs": ["1", "2"]}, [zipped])
    assert said in caught.value.message


def test_a_wrong_installation_is_no_reason_of_each_combination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMB_INSTALL", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="LLMB_INSTALL is not set"):
        vary(GROK, Place(), {"tp": ["1", "2"]})
