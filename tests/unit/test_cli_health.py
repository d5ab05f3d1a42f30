"""``llmb-run health``: which nodes are looked at, and which options of a job decide that and what is needed of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from llmb_common.base import removed
from llmb_common.base.errors import RequestError
from llmb_common.health.ask import choose_nodes
from llmb_common.nodes.needs import Needs
from llmb_common.submission.excluded_nodes import exclude_nodes
from llmb_run import options
from llmb_run.actions import health
from llmb_run.app import load_command
from support.cli import Cli

JOB = ("-w", "mbridge", "-s", "deepseek_v3", "--dtype", "fp8", "--scale", "1024")
SLURM = {"CLUSTER_TYPE": "slurm", "GPU_TYPE": "h100", "SBATCH_PARTITION": "gpu"}


class Asked:
    """What the command asks for: nodes, partition, nodes to avoid, and what a plan needs. Nothing is held."""

    def __init__(self, cli: Cli, patch: pytest.MonkeyPatch) -> None:
        self.cli = cli
        self.found: tuple[Any, ...] = ()
        self.needs: list[Needs] = []
        patch.setattr(health, "choose_nodes", self._choose)
        patch.setattr(health, "needs_of", self._needs_of)

    def _choose(self, executor: object, install: Path, *asked: str | None) -> None:
        self.found = asked
        raise RequestError("that is all", code="stop")

    def _needs_of(self, plan: Any) -> Needs:
        needs = ask_needs(plan)
        self.needs.append(needs)
        return needs

    def __call__(self, *words: str) -> tuple[Any, ...]:
        self.needs.clear()
        done = self.cli("health", *words, "--json", **SLURM)
        assert done.envelope["error"]["code"] == "stop", done.err
        return (self.found, *self.needs)


ask_needs = health.needs_of


@pytest.fixture
def asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(cli, monkeypatch)


KEPT: dict[str, Sequence[str]] = {
    "--gpu-type": ("--gpu-type", "b200"),
    "--image": ("--image", "/images/own.sqsh"),
    "--env": ("--env", "NCCL_IB_HCA=mlx5_0"),
    "--set": ("--set", "ep=8"),
    "--exclude": ("--exclude", "n1"),
    "--reservation": ("--reservation", "maintenance"),
    "--slurm-arg": ("--slurm-arg", "qos=high"),
}
"""Beside these ``--engine`` and ``--variant``, which choose the image and the variables of a job."""


@pytest.mark.parametrize("words", KEPT.values(), ids=KEPT)
def test_an_option_of_a_job_decides_which_nodes_or_what_they_need(asked: Asked, words: Sequence[str]) -> None:
    assert asked(*JOB, *words) != asked(*JOB)


def test_no_other_option_of_a_job_is_taken() -> None:
    @click.command()
    @options.job_settings
    def job() -> None: ...

    def long_names(command: click.Command) -> set[str]:
        return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}

    kept = {*KEPT, "--engine", "--variant", "--fabric"}  # the last is the same check, of other nodes
    assert long_names(job) & long_names(load_command("health")) == kept
    assert set(removed.OPTIONS["health"]) >= long_names(job) - kept


@pytest.mark.parametrize("word", ["-p", "--partition"])
def test_the_partition_has_slurms_letter(asked: Asked, word: str) -> None:
    ((nodes, partition, _),) = asked(word, "short")
    assert (nodes, partition) == (None, "short")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (None, "gpu", None)),
        (("-p", "short"), (None, "short", None)),
        (("--slurm-arg", "partition=short"), (None, "short", None)),
        (("--nodes", "n[1-2]"), ("n[1-2]", "gpu", None)),
        (("--exclude", "n[3-4]"), (None, "gpu", "n[3-4]")),
    ],
)
def test_the_nodes_of_a_job(asked: Asked, words: Sequence[str], expected: tuple[str | None, ...]) -> None:
    assert asked(*JOB, *words)[0] == expected


def test_the_nodes_to_avoid_may_be_listed_in_a_file(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "avoid").write_text("n3\nn4  # fan\n")
    assert asked(*JOB, "--exclude", str(tmp_path / "avoid"))[0] == (None, "gpu", "n3,n4")


def test_a_job_that_would_be_refused_has_nodes_to_check(asked: Asked) -> None:
    small = ("-w", "llama3.1", "-s", "8b", "--dtype", "bf16")
    _, undocumented = asked(*small, "--scale", "24", "--set", "gbs=120")
    assert undocumented.nodes == 3
    asked(*small, "--scale", "8", "--set", "tp=1", "--set", "mbs=4")  # which does not fit


class Nodes:
    """An executor that knows four nodes."""

    def nodes_now(self, nodes: str | None, partition: str | None) -> dict[str, str]:
        return {"n1": "", "n2": "", "n3": "", "n4": "down"}


def test_nodes_that_the_job_excludes_are_not_asked(tmp_path: Path) -> None:
    exclude_nodes(tmp_path, "n1", "ECC")
    asked, left = choose_nodes(Nodes(), tmp_path, None, "gpu", "n[2,4]")  # type: ignore[arg-type]
    assert asked == ["n3"]
    assert left == {"n1": "excluded (ECC)", "n2": "excluded (by the job)", "n4": "down"}
    assert choose_nodes(Nodes(), tmp_path, "n[1-4]", None, "n2")[0] == ["n1", "n2", "n3"], "named ones are"  # type: ignore[arg-type]
