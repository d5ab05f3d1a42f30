"""What sbatch answers: a job, a refusal with advice, or words that leave open whether there is a job."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from llmb_common.base.errors import AnswerLost, EnvironmentLacks, SchedulerError
from llmb_common.executors.slurm.look import GRACE_SECONDS
from llmb_common.executors.slurm.submit import FRESH_SECONDS, SUBMIT_SECONDS
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.excluded_nodes import exclude_nodes
from llmb_common.submission.observe import observe
from llmb_common.submission.single import submit
from support.run_site import RECIPE, RunSite
from support.texts import Texts


class Slurm:
    """sbatch that answers as it is told and notes how it was called; a queue and accounting that know nothing."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        for name in ("squeue", "sacct", "scontrol"):
            self._write(name, "exit 0")

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.folder / name).chmod(0o755)

    def sbatch(self, output: str = "", errors: str = "", status: int = 0) -> None:
        version = 'if [[ $1 == --version ]]; then echo "slurm 22.05.8"; exit; fi\n'
        note = f"printf '%s\\n' \"$@\" >> {shlex.quote(str(self.folder / 'called'))}\n"
        says = f"printf %s {shlex.quote(output)}\nprintf %s {shlex.quote(errors)} >&2\nexit {status}"
        self._write("sbatch", version + note + says)

    def called(self) -> list[str]:
        return (self.folder / "called").read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(tmp_path / "bin", monkeypatch)


@pytest.fixture
def site(tmp_path: Path) -> RunSite:
    return RunSite(tmp_path, "slurm")


def records(site: RunSite) -> list[RunRecord]:
    return [load_record(path.parent) for path in site.install.glob("workloads/*/experiments/*/*/run.json")]


@pytest.mark.parametrize(
    ("output", "job"),
    [
        ("17\n", "17"),
        ("17;cluster\n", "17"),
        ("17", "17"),
        ("the site's plugin says hello\n17\n", "17"),
        ("17\nand goodbye\n", "17"),
        ("--> Checking available allocation (a)...OK\nSubmitted batch job 17\n", "17"),
        ("Submitted batch job 17 on cluster beta\n", "17"),
    ],
)
def test_a_job_id_is_found_in_whatever_surrounds_it(site: RunSite, slurm: Slurm, output: str, job: str) -> None:
    slurm.sbatch(output)
    record = submit(site.plan(), RECIPE)
    assert (record.state, record.job_id) == ("SUBMITTED", job)
    assert load_record(record.paths.folder) == record
    assert slurm.called() == ["--parsable", str(record.paths.script)]


def test_what_sbatch_remarks_is_kept(site: RunSite, slurm: Slurm, texts: Texts) -> None:
    slurm.sbatch("17\n", errors="sbatch: Job will be charged to project a\n")
    texts(submit(site.plan(), RECIPE).detail)


REFUSALS = [
    "Invalid account or account/partition combination specified",
    "invalid partition specified: x",
    "Requested time limit is invalid (missing or exceeds some limit)",
    "PartitionTimeLimit",
    "AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)",
    "Slurm temporarily unable to accept job, sleeping and retrying\n"
    "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
    "AssocGrpSubmitJobsLimit",
    "QOSMaxSubmitJobPerUserLimit",
    "Node count specification invalid",
    "Requested node configuration is not available",
    "Invalid generic resource (gres) specification",
    "sbatch: unrecognized option '--segment=4'",
    "Invalid node name specified",
    "Requested reservation is invalid",
    "Access denied to requested reservation",
    "Job dependency problem",
    "Invalid qos specification",
    "Unable to contact slurm controller (connect failure)",
    *[
        f"{limit}Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
        "and/or time limits)"
        for limit in (
            "",
            "QOSMaxGRESPerUser\nsbatch: error: ",
            "QOSMaxNodePerJobLimit\nsbatch: error: ",
            "AssocMaxWallDurationPerJobLimit\nsbatch: error: ",
        )
    ],
    "No partition specified or system default partition",
    "User's group not permitted to use this partition",
    "Required partition not available (inactive or drain)",
    "Requested partition configuration not available now",
    "Invalid Trackable RESource (TRES) specification",
    "Invalid feature specification",
    "Required node not available (down, drained or reserved)",
    "Slurm backup controller in standby mode",
    "Rate limit exceeded, please retry momentarily",
    'Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory\n'
    "sbatch: error: Batch job submission failed: Protocol authentication error",
    "lua: You are not a member of account 'demo'\nsbatch: error: Batch job submission failed: Unspecified error",
    "something that nobody has seen",
]


@pytest.mark.parametrize("words", REFUSALS)
def test_a_refusal_is_told_in_sbatchs_words_with_advice_and_leaves_no_run(site, slurm, words, texts: Texts):
    slurm.sbatch(errors=f"sbatch: error: {words}\n", status=1)
    with texts.raises(SchedulerError) as caught:
        submit(site.plan(), RECIPE)
    assert caught.value.code == "refused"
    assert bool(caught.value.remedy) == (words != REFUSALS[-1])
    assert records(site) == []


def test_sbatch_is_given_the_time_that_it_takes_at_a_full_queue() -> None:
    """It tries again after 1, 2, ... 15 s, and only its last word says that there is no job."""
    assert sum(range(16)) + 20 < SUBMIT_SECONDS
    assert FRESH_SECONDS + SUBMIT_SECONDS + 60 < GRACE_SECONDS, "whoever looks from another machine, a minute ahead"


def test_where_nodes_are_excluded_that_may_be_why_there_are_too_few(site: RunSite, slurm: Slurm, texts: Texts) -> None:
    def remedy(words: str) -> str:
        slurm.sbatch(errors=f"sbatch: error: {words}\n", status=1)
        with pytest.raises(SchedulerError) as caught:
            submit(site.plan(), RECIPE)
        return caught.value.remedy

    too_few, other = "Requested node configuration is not available", "Invalid qos specification"
    assert "exclude" not in remedy(too_few)
    exclude_nodes(site.install, "n1", "fan")
    texts(remedy(too_few))
    assert "exclude" not in remedy(other)


def test_a_refusal_without_a_word(site: RunSite, slurm: Slurm, texts: Texts) -> None:
    slurm.sbatch(status=1)
    with texts.raises(SchedulerError):
        submit(site.plan(), RECIPE)


LOST = [
    ("", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", 1),
    ("", "sbatch: error: Zero Bytes were transmitted or received", 1),
    ("", "sbatch: error: Connection reset by peer", 1),
    ("", "sbatch: error: Unexpected message received", 1),
    ("", "sbatch: error: Transport endpoint is not connected", 1),
    ("", "sbatch: error: I/O error writing script/environment to file", 1),
    ("", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (receive failure)", 1),
    ("", "sbatch: error: Batch job submission failed: Header lengths are longer than data received", 1),
    ("Submitted batch job", "", 0),
    ("", "", 0),
    ("-17", "", 0),
    ("", "", 124),  # timeout ended it
    ("", "", 137),  # killed it
]


@pytest.mark.parametrize(("output", "errors", "status"), LOST)
def test_where_nobody_knows_whether_there_is_a_job_the_run_stays(site, slurm, output, errors, status):
    slurm.sbatch(output, errors, status)
    with pytest.raises(AnswerLost) as caught:
        submit(site.plan(), RECIPE)
    assert caught.value.code == "unknown"
    (record,) = records(site)
    assert (record.state, record.job_id) == ("SUBMITTING", None)
    assert (errors or output) in record.detail
    assert record.job_name in caught.value.remedy, "by which it can be looked for"
    (seen,) = observe([record])
    assert seen.record.state == "SUBMITTING", "an empty queue a moment later proves nothing"


def test_without_sbatch_nothing_is_begun(
    site: RunSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: Texts
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with texts.raises(EnvironmentLacks) as caught:
        submit(site.plan(), RECIPE)
    assert "CLUSTER_TYPE=local" in caught.value.remedy
    assert records(site) == []
