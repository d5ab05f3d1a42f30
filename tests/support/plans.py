"""Plans for tests: a request and what becomes of it, without an installation and without looking at this machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import ClusterConfig, cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.script import render_script

ROOT = Path(__file__).resolve().parents[2]
SLURM = Machine(cluster_type="slurm")
LAPTOP = Machine(cluster_type="local", gpu_type="cpu")
EIGHT = Machine(cluster_type="local", gpu_type="h100", gpus=8)
MACHINES = {
    "laptop": LAPTOP,
    "laptop-with-nsys": Machine(cluster_type="local", gpu_type="cpu", has_nsys=True),
    "eight-h100": EIGHT,
    "eight-h100-with-nsys": Machine(cluster_type="local", gpu_type="h100", gpus=8, has_nsys=True),
    "eight-unknown": Machine(cluster_type="local", gpu_type=None, gpus=8),
    "old-slurm": Machine(cluster_type="slurm", release=(23, 11)),
}


def plan(*given: str | Machine | ClusterConfig | None, recipe: str = "llama3.1", **variables: str) -> JobPlan:
    """The plan of a request: ``given`` are the recipe's name, the machine and the site's file, where they matter.

    Text may hold several words: variables (``TP=4``), one of ``MACHINES``, the recipe's name.
    """
    machine, cluster, said = SLURM, cluster_config(), dict[str, str]()
    for item in given:
        if isinstance(item, Machine):
            machine = item
        elif item is not None and not isinstance(item, str):
            cluster = item
        for word in shlex.split(item) if isinstance(item, str) else ():
            name, is_variable, value = word.partition("=")
            said |= {name: value} if is_variable else {}
            machine = MACHINES.get(word, machine)
            recipe = recipe if is_variable or word in MACHINES else word
    request = read_request({"LLMB_INSTALL": "/install", **said, **variables})
    return make_plan(load_recipe(ROOT / recipe), cluster, request, machine)


def script_of(made: JobPlan) -> str:
    """The batch script of a plan."""
    return render_script(made, dry_run_paths(made.workload_folder, made.experiment_name))


def shape_of(script: str, made: JobPlan) -> str:
    """A script without what is nothing to a shell: numbers, comments, variables and lists of plain words."""
    plain = r"[\w.,:/+=@%-]*"
    lines = script.replace(made.experiment_name, "EXPERIMENT").splitlines()
    kept = [line for line in lines if not re.fullmatch(rf"#.*|export {plain}|  --container-env={plain} \\", line)]
    return re.sub(r"\b\d+\b|(?<=--mpi=)\w+", "0", "\n".join(kept))


def refusal(*given: str | Machine | ClusterConfig | None, **variables: str) -> str:
    """What is said instead of ``plan``."""
    with pytest.raises(RequestError) as caught:
        plan(*given, **variables)
    assert caught.value.exit_status == 2
    return str(caught.value)


def notes(*given: str | Machine | ClusterConfig | None, **variables: str) -> str:
    """The notices of ``plan``, a line each."""
    return "\n".join(plan(*given, **variables).preflight.warnings)


def rows(table: Mapping[str, str]) -> list[object]:
    """The lines ``WORDS -> ANSWER & ANSWER`` of a table, each with the words of its heading before its own."""
    lines = [(heading, line.partition("->")) for heading, text in table.items() for line in text.strip().splitlines()]
    return [(f"{heading} {words.strip()}", [*map(str.strip, said.split(" & "))]) for heading, (words, _, said) in lines]


def check_answers(text: str, answers: list[str]) -> None:
    """Each of ``answers`` is in ``text``; ``!``: it is not; ``=``: it is all; ``nothing``: that is empty."""
    for answer in answers:
        if answer == "nothing" or answer.startswith("= "):
            assert text == answer.removeprefix("= ").removeprefix("nothing")
        else:
            assert (answer.removeprefix("!") in text) is (not answer.startswith("!")), f"{answer!r} in {text!r}"


def check_fields(made: object, *fields: str) -> None:
    """Each field has its value: ``gpus=384 profile.ranks=(0,255)``."""
    for name, value in (word.split("=", 1) for words in fields for word in shlex.split(words)):
        assert str(attrgetter(name)(made)).replace(", ", ",") == value, name
