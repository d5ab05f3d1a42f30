"""The suites that come with LLMB: what the recipes document, and each of them can be planned."""

from __future__ import annotations

import pytest

from llmb_common import gpus
from llmb_run.acceptance.shipped import SCALES, suites
from llmb_run.acceptance.suite import SUITES
from support.cli import Cli

NAMES = sorted(path.stem for path in SUITES.glob("*.yaml"))


def test_there_is_one_for_every_gpu_type_and_scale() -> None:
    documented = gpus.GPUS.keys() - {"r100", "vr200"}  # of which only the catalogue has rows
    assert [*sorted(f"{gpu}-{scale}" for gpu in documented for scale in SCALES), "smoke"] == sorted(NAMES)


def test_they_are_what_the_recipes_document() -> None:
    made = suites()
    for name, text in made.items():
        assert (SUITES / f"{name}.yaml").read_text() == text, "python -m llmb_run.acceptance.shipped --write"


@pytest.mark.parametrize("name", NAMES)
def test_every_one_can_be_planned(cli: Cli, name: str) -> None:
    done = cli("accept", name, "--dry-run", "--json", CLUSTER_TYPE="local" if name == "smoke" else "slurm")
    assert done.status == 0, done.err
    planned = done.data["workloads"]
    if name == "smoke":
        assert [item["plan"]["workload"] for item in planned] == [
            "pretrain_llama3.1",
            "pretrain_llama4_maverick",
            "pretrain_grok1",
            "pretrain_nemotron4",
        ]
        return
    gpu_type, _, scale = name.rpartition("-")
    assert {(item["plan"]["gpu_type"], item["plan"]["gpus"]) for item in planned} == {(gpu_type, int(scale))}
    assert planned[0]["title"].endswith("(pre-screen)")
    titles = [item["title"] for item in planned]
    assert len(set(titles)) == len(titles)
