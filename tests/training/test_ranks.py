"""A rank finds its place from torchrun's variables or from Slurm's, even in a container without scontrol."""

from __future__ import annotations

import pytest

from llmb_train.errors import EngineError
from llmb_train.ranks import Rank, find_rank, first_host

SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
    "SLURM_JOB_NODELIST": "gpu[001-004]",
}


def test_torchrun_wins_over_a_slurm_job_around_it() -> None:
    torchrun = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}
    assert find_rank({**SLURM, **torchrun}) == Rank(1, 1, 2, "localhost", 29400)


def test_slurm_gives_rank_host_and_a_port_of_the_job() -> None:
    assert find_rank(SLURM) == Rank(9, 1, 16, "gpu003", 22567)


def test_what_is_found_is_exported_for_torch() -> None:
    environ: dict[str, str] = {}
    find_rank(SLURM).export(environ)
    assert environ == {
        "RANK": "9",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "16",
        "MASTER_ADDR": "gpu003",
        "MASTER_PORT": "22567",
    }


@pytest.mark.parametrize(
    ("hostlist", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("n[09-10,12],m1", "n09"),
        ("n[7]", "n7"),
        ("rack[1-2]n[3-4]", "rack1n3"),
        ("a-b-[001-128].example", "a-b-001.example"),
    ],
)
def test_first_host_of_a_list(hostlist: str, first: str) -> None:
    assert first_host(hostlist) == first


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "neither RANK nor SLURM_PROCID is set"),
        ({"RANK": "0", "LOCAL_RANK": "0"}, "WORLD_SIZE is ''"),
        ({**SLURM, "SLURM_NTASKS": "many"}, "SLURM_NTASKS is 'many', expected a number"),
        ({**SLURM, "SLURM_PROCID": "\u00b2"}, "SLURM_PROCID is '\u00b2', expected a number"),
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "rank 2 is out of range for a world size of 2"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "the address of rank 0 is unknown"),
    ],
)
def test_a_process_that_cannot_know_its_place_says_so(environ: dict[str, str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        find_rank(environ)
