"""Job arrays of releases before 0.3 on a real Slurm: each task ends in its own state, whatever LLMB is updated to.

Goes with ``executors/slurm/old_arrays.py``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llmb_common.runs.index.search import index_records
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.observe import cancel, observe, wait
from support.cli import Cli
from support.cluster_site import ClusterSite, end_of, events_of, has_ended, log_written, state_of
from support.old_arrays import make_old_array, submit_old_array
from support.processes import wait_until


class ArraySite(ClusterSite):
    """What a job does depends on its task number."""

    def behave(self, **tasks: str) -> None:
        """``task_2="STANDIN_EXIT=7"``: settings for that task only."""
        cases = "".join(f"  {name.removeprefix('task_')}) {what} ;;\n" for name, what in tasks.items())
        head, _, rest = self.engine.read_text().partition("\n")
        self.engine.write_text(f"{head}\ncase ${{SLURM_ARRAY_TASK_ID:-}} in\n{cases}esac\n{rest}")

    def start(self, number: int) -> list[RunRecord]:
        records = submit_old_array(make_old_array(self.job(), number))
        index_records(*records)
        return records


@pytest.fixture(params=["slurm", "slurm_accounting"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArraySite:
    return ArraySite(tmp_path, request.getfixturevalue(request.param), monkeypatch)


def test_each_ends_in_its_own_state_and_commands_know_them(site, monkeypatch, capsys):
    site.behave(task_1="STANDIN_EXIT=7")
    records = wait(site.start(3), timeout=450)
    assert [(record.state, record.manifest["job"]["exit_code"]) for record in records] == [
        ("COMPLETED", 0),
        ("FAILED", 7),
        ("COMPLETED", 0),
    ]
    assert [bool(record.detail) for record in records] == [False, True, False]
    for record in records:
        assert events_of(record) == [("start", record.job_id), ("end", record.job_id)]
        assert load_record(record.paths.folder) == record
    cli = Cli(site.install, monkeypatch, capsys)
    shown = cli("jobs", "--all", "--json").data["runs"]
    assert {(row["job_id"], row["state"]) for row in shown} == {(r.job_id, r.state) for r in records}
    results = cli("results", "--all", "--json")
    assert sum("COMPLETED" in str(row) for row in results.data["runs"]) == 2
    again = cli("retry", str(records[1].job_id), "--json")
    assert again.status == 0, again.err
    (job,) = again.data["jobs"]
    (new,) = (load_record(folder) for folder in site.folders() if folder.name == job["name"])
    assert (new.submission.turn, str(new.job_id).isdigit()) == (None, True)
    assert end_of([new]) == ["COMPLETED"]


def test_cancelled_one_by_one_running_and_waiting(site: ArraySite) -> None:
    """Four run on the four nodes, two are pending. Given a name, scancel would cancel both pending ones."""
    site.behave(task_0="STANDIN_SECONDS=300", task_5="STANDIN_SECONDS=0", **{"task_[123]": "STANDIN_SECONDS=2"})
    records = site.start(6)
    wait_until(log_written(records[0]), "the first run", timeout=60)
    assert state_of(records[4]) == "PENDING"
    running, waiting = cancel([records[0], records[4]])
    assert (running.state, waiting.state) == ("CANCELLED", "CANCELLED")
    assert end_of(records) == ["CANCELLED", "COMPLETED", "COMPLETED", "COMPLETED", "CANCELLED", "COMPLETED"]
    assert [event for event, _ in events_of(records[0])] == ["start", "signal", "end"]
    assert not records[4].paths.events.exists()


def test_all_are_cancelled_together(site: ArraySite) -> None:
    site.behave(**{"task_*": "STANDIN_SECONDS=300"})
    records = site.start(6)
    wait_until(log_written(records[0]), "the first run", timeout=60)
    assert [record.state for record in cancel(records)] == ["CANCELLED"] * 6
    assert site.cluster.run(["squeue", "--noheader"]).stdout == ""


def test_the_whole_array_cancelled_by_someone_else(site: ArraySite) -> None:
    site.behave(**{"task_*": "STANDIN_SECONDS=300"})
    records = site.start(6)
    wait_until(log_written(records[0]), "the first run", timeout=60)
    site.cluster.run(["scancel", str(records[0].job_id).partition("_")[0]])
    assert end_of(records) == ["CANCELLED"] * 6


def test_a_job_whose_id_nobody_has_written_down_is_found(site: ArraySite) -> None:
    """The former release was killed right after sbatch."""
    records = make_old_array(site.job(), 3)
    script = records[0].submitted_script
    answer = subprocess.run(["sbatch", "--parsable", script], check=True, capture_output=True, text=True)
    found = [item.record for item in observe(records)]
    assert [record.job_id for record in found] == [f"{answer.stdout.strip()}_{index}" for index in range(3)]
    assert end_of(found) == ["COMPLETED"] * 3


def test_forgotten_by_the_controller(site: ArraySite) -> None:
    """Nobody looked until the controller had purged the array: accounting knows what happened, or the runs' own
    records."""
    site.behave(task_1="STANDIN_EXIT=3")
    records = site.start(2)
    wait_until(lambda: all(has_ended(record) for record in records), "the end of both", timeout=60)
    site.cluster.forget_finished_jobs()
    assert end_of(records) == ["COMPLETED", "FAILED"]
