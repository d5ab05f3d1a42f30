"""Failures provoked for real on a Slurm cluster, through the real scripts: what ``why`` says of each."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmb_common.base.hostlist import expand
from llmb_common.causes.answer import Diagnosis
from llmb_common.causes.diagnosis import diagnose
from llmb_common.runs.record import RunRecord
from llmb_common.submission.observe import cancel, observe, wait
from llmb_common.submission.single import submit
from support import slurm_config
from support.processes import PATIENCE, wait_until
from support.run_site import RECIPE, ROOT, RunSite
from support.slurm_cluster import SlurmCluster

KINDS = {
    "segfault": "segfault",
    "fatal_python_error": "segfault",
    "bus_error": "bus-error",
    "illegal_instruction": "segfault",
    "host_memory": "allocation",
    "too_many_files": "process-limit",
    "no_more_threads": "process-limit",
    "missing_module": "missing-module",
    "exception": "exception",
    "caught_before": "exception",
    "disk_full": "disk-full",
    "file_too_large": "disk-full",
    "port_taken": "port-in-use",
    "unknown_host": "host-name",
    "missing_data": "file-missing",
    "forbidden": "permission",
    "damaged_checkpoint": "checkpoint-damaged",
    "empty_checkpoint": "checkpoint-damaged",
    "short_data": "data",
    "bad_data": "garbled",
    "unknown_argument": "arguments",
    "wrong_layout": "layout",
    "missing_library": "library-missing",
    "missing_program": "missing-program",
    "recursion": "exception",
    "stuck_in_python": "hang",
    "stopped": "hang",
}
"""How a rank fails -> the cause."""

UNKNOWN = ("killed", "aborted", "silent_exit", "peer_gone")
"""Of these nothing says why; which rank it was is known all the same."""


TWO_NODES = ("segfault", "exception", "stuck_in_python", "killed")
"""The ranks 2 and 3 are on the second one; else all four are on one."""


class FailingSite(RunSite):
    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        super().__init__(folder, "slurm")
        self.cluster = cluster
        rank = ROOT / "tests" / "support" / "failing_rank.py"
        self.engine.write_text(f'#!/bin/bash\nexec {sys.executable} -u {rank} "$@"\n')

    def submit(self, *ways: str) -> dict[str, RunRecord]:
        """A job for each, whose ranks get what they are to do from the environment, as real ones get theirs."""
        found = {}
        for way in ways:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in {"FAILING": way, **({} if way == "waits" else SOON)}.items():
                    patch.setenv(name, value)
                on_a_node = "2" if way in TWO_NODES else "4"
                found[way] = submit(self.plan(JOB_TOTAL_GPUS="4", GPUS_PER_NODE=on_a_node), RECIPE)
        return found


SOON = {"LLMB_WATCH_SECONDS": "1", "LLMB_HANG_SECONDS": "4"}


@pytest.fixture(scope="module")
def site(slurm_session: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingSite]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SLURM_CONF", "PATH"):
            patch.setenv(name, slurm_session.env[name])
        yield FailingSite(tmp_path_factory.mktemp("site"), slurm_session)
        slurm_session.cancel_everything()


@pytest.fixture(scope="module")
def failed(site: FailingSite) -> dict[str, tuple[RunRecord, Diagnosis]]:
    """All of them at once: two fit on the cluster at a time."""
    records = site.submit(*KINDS, *UNKNOWN)
    ended = wait(list(records.values()), timeout=240 * PATIENCE)
    return {way: (record, diagnose(record)) for way, record in zip(records, ended, strict=True)}


def trains(record: RunRecord) -> bool:
    return record.paths.log.exists() and "iteration" in record.paths.log.read_text()


@pytest.mark.parametrize("way", KINDS)
def test_the_root_is_named_with_its_rank_and_node(failed: dict[str, tuple[RunRecord, Diagnosis]], way: str) -> None:
    record, found = failed[way]
    assert found.cause is not None, (found, record.paths.log.read_text())
    assert found.kind == KINDS[way], found
    assert (found.cause.rank, found.cause.step) == (2, 3), found
    assert found.cause.node == expand(record.manifest["job"]["nodes"])[-1], found


@pytest.mark.parametrize("way", UNKNOWN)
def test_where_nothing_says_why_the_rank_is_named_and_no_cause(
    failed: dict[str, tuple[RunRecord, Diagnosis]], way: str
) -> None:
    _, found = failed[way]
    assert found.cause is None, found
    assert found.suspect is not None
    assert found.suspect.ranks == (2,), found


def test_a_hang_says_where_the_rank_stood(failed: dict[str, tuple[RunRecord, Diagnosis]]) -> None:
    _, found = failed["stuck_in_python"]
    assert re.search(r"\brank 2\b.*\bbarrier\b.*\bread_next_batch\b", found.summary), found.summary
    _, silent = failed["stopped"]
    assert silent.cause is not None
    assert "read_next_batch" not in silent.summary, "it did not answer"


def test_who_ended_a_job_from_outside(site: FailingSite) -> None:
    records = site.submit("waits")
    (record,) = records.values()
    wait_until(lambda: trains(record), "the first iterations", timeout=60)
    cancel([record])
    (record,) = wait([record], timeout=60 * PATIENCE)
    assert diagnose(record).kind == "cancelled-by"


def test_a_job_that_reaches_its_time_limit(site: FailingSite) -> None:
    (record,) = site.submit("waits").values()
    wait_until(lambda: trains(record), "the first iterations", timeout=60)
    (seen,) = observe([record])
    site.cluster.end_job_in(int(seen.record.job_id or 0), 1)
    (record,) = wait([seen.record], timeout=120 * PATIENCE)
    assert diagnose(record).kind == "time-limit"  # also where the script's own end came before Slurm's word


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_under_the_log_is_no_hang(tmp_path: Path) -> None:
    """The ranks train on, what they print is lost. A cluster of its own: its nodes see what was mounted before them."""
    site = RunSite(tmp_path, "slurm")
    with (
        small_disk(site.install / "workloads") as disk,
        SlurmCluster(slurm_config.SMALL) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        given = {"LLMB_WATCH_SECONDS": "1", "LLMB_HANG_SECONDS": "2", "STANDIN_STEPS": "9000", "STANDIN_SECONDS": "0.1"}
        for name, value in {**given, **{name: cluster.env[name] for name in ("SLURM_CONF", "PATH")}}.items():
            patch.setenv(name, value)
        record = submit(site.plan(), RECIPE)
        wait_until(lambda: trains(record), "the first iterations", timeout=60)
        with contextlib.suppress(OSError), (disk / "others").open("wb", buffering=0) as other:
            while True:
                other.write(bytes(4096))
        assert cluster.wait_for_state(int(record.job_id or 0), timeout=60) == "FAILED"
        found = diagnose(record)
    assert found.cause is not None
    assert (found.kind, found.of_machine) == ("disk-full", True)
    assert str(disk) in found.cause.line
