"""Holding nodes of Slurm, with programs that note how they are called: what is asked for, and how steps start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.errors import SchedulerError
from llmb_common.executors.base import MOST_GROUPS, PORT_BASE, PORT_COUNT, Container, NodeRequest
from llmb_common.executors.slurm.hold import hold
from llmb_common.executors.slurm.words import SlurmPlan
from support.texts import Texts

IMAGE = Container("/images/nemo.sqsh", ("/lustre:/lustre", "/data:/in:ro+noexec"))
PROGRAM = ["bash", "-c", "echo here"]


class Programs:
    """``salloc`` grants what it is asked for, or says what it is told to; ``srun`` prints its words, a line each."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        self.write("sinfo", "printf '%s\\n' 'n1|gpu' 'n2|gpu' 'n2|short'")
        self.write("srun", "printf '%s\\n' \"$@\"")
        self.write(
            "salloc",
            f'printf "%s\\n" "$@" > "{folder}/asked"; env > "{folder}/environment"\n'
            "while [[ $1 == -* ]]; do shift; done\n"
            "export SLURM_JOB_ID=9107 SLURM_JOB_NODELIST=n[1-2]\n"
            f'"$@"; touch "{folder}/released"',
        )

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.folder / name).chmod(0o755)

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    @property
    def released(self) -> bool:
        return (self.folder / "released").exists()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path / "bin", monkeypatch)


def slurm(**more: Any) -> SlurmPlan:
    given = {"account": "bench", "partition": "short", "gres": True, "segment": None, "additional": (), **more}
    return SlurmPlan(**{"runtime": "pyxis", **given})


def request(scheduler: SlurmPlan, **more: Any) -> NodeRequest:
    return NodeRequest(**{"name": "look", "scheduler": scheduler, "gpus": 8, "minutes": 4, "wait": 20, **more})


def test_nodes_are_asked_for_as_jobs_ask_and_given_back(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")  # of a job in which this is typed
    scheduler = slurm(
        additional=(("qos", "high"), ("reservation", "r"), ("nodelist", "n9"), ("constraint", "a&b"), ("comment", "x"))
    )
    with hold(request(scheduler, nodes=["n1", "n2"], whole=True)) as held:
        assert not programs.released
        assert list(held.nodes) == ["n1", "n2"]
        assert held.first_port == PORT_BASE + 9107 % (PORT_COUNT - MOST_GROUPS)
    assert programs.released
    assert "SLURM_EXPORT_ENV" not in (programs.folder / "environment").read_text()
    words = programs.asked[: programs.asked.index("sh")]
    assert set(words) == {
        *("--nodes=2", "--ntasks=2", "--time=4", "--job-name=look", "--quiet", "--no-kill", "--immediate=20"),
        *("--exclusive", "--mem=0", "--nodelist=n[1-2]", "--account=bench", "--gres=gpu:8"),
        *("--qos=high", "--reservation=r", "--constraint=a&b"),
        "--partition=gpu",  # "short" has not both
    }


def test_one_node_whichever_shared_with_others(programs: Programs) -> None:
    with hold(request(slurm(account=None, gres=False))):
        pass
    words = programs.asked[: programs.asked.index("sh")]
    assert {"--nodes=1", "--partition=short"} <= set(words)
    assert not [
        word for word in words if word.startswith(("--exclusive", "--mem", "--nodelist", "--account", "--gres"))
    ]


def step(scheduler: SlurmPlan, inside: Container | None = None, nodes: Sequence[str] = ()) -> list[str]:
    """The words of a step."""
    with hold(request(scheduler)) as held:
        return held.run(PROGRAM, 20.0, inside=inside, nodes=nodes).output.splitlines()


def test_a_step_runs_once_on_each_node_beside_others(programs: Programs) -> None:
    words = step(slurm())
    assert words[-3:] == PROGRAM
    assert set(words[:-3]) == {
        *("--jobid=9107", "--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--quiet", "--mpi=none"),
        *("--wait=0", "--no-kill", "--kill-on-bad-exit=0"),  # one that fails, or a dead node, ends no other
    }
    some = step(slurm(), nodes=["n2"])
    assert {"--nodes=1", "--ntasks=1", "--nodelist=n2"} <= set(some)


@pytest.mark.parametrize("writable", [True, False])
def test_enroot_starts_the_program_in_the_image(programs: Programs, writable: bool) -> None:
    """With the mounts that it has beside the root, in its own words for their flags."""
    words = step(slurm(runtime="enroot", container_writable=writable), IMAGE)
    mounts = ["--mount", "/lustre:/lustre", "--mount", "/data:/in:x-create=auto,rbind,ro,noexec"]
    assert words[words.index("enroot") :] == [
        *("enroot", "start", *(["--rw"] if writable else [])),
        *mounts,
        "/images/nemo.sqsh",
        *PROGRAM,
    ]
    assert not [word for word in words if word.startswith("--container")]


@pytest.mark.parametrize("writable", [True, False])
def test_pyxis_starts_it_there_by_options_of_the_step(programs: Programs, writable: bool) -> None:
    words = step(slurm(container_writable=writable), IMAGE)
    assert words[-3:] == PROGRAM
    assert "enroot" not in words
    options = {word for word in words if word.startswith(("--container", "--no-container"))}
    assert options == {
        "--container-image=/images/nemo.sqsh",
        "--container-mounts=/lustre:/lustre,/data:/in:ro+noexec",
        "--no-container-mount-home",
        *(["--container-writable"] if writable else []),
    }
    bare = step(slurm(), Container("/images/nemo.sqsh"))
    assert not [word for word in bare if word.startswith("--container-mounts")]


def test_nodes_have_the_addresses_that_slurm_knows(programs: Programs) -> None:
    with hold(request(slurm())) as held:
        programs.write("sinfo", "printf '%s\\n' 'n1|10.0.0.1' 'n2|10.0.0.2'")
        assert dict(held.addresses) == {"n1": "10.0.0.1", "n2": "10.0.0.2"}


def test_the_node_that_ended_a_step_is_named(programs: Programs) -> None:
    programs.write(
        "srun",
        "echo 'srun: error: Task launch for StepId=9107.0 failed on node n-2.x: Unable to contact' >&2; exit 1",
    )
    with hold(request(slurm())) as held:
        assert list(held.unreached(held.run(PROGRAM, 20.0))) == ["n-2.x"]


def test_why_there_are_no_nodes_is_said_in_slurms_words(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    programs.write("salloc", "printf '%s\\n' 'salloc: one' 'salloc: error: two' '' 'three' 'four' >&2; exit 1")
    with (
        texts.raises(SchedulerError) as caught,
        hold(request(slurm())),
    ):
        pass
    assert caught.value.code == "no-nodes"
    monkeypatch.setenv("PATH", str(programs.folder / "empty"))
    with texts.raises(SchedulerError) as caught, hold(request(slurm())):
        pass
    assert caught.value.code == "no-program"
