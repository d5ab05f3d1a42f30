"""results reads a log once: the figures it keeps are those of a fresh measurement, whatever happened in between."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmb_common.causes.diagnosis import diagnose
from llmb_common.measured import kept
from llmb_common.measured.measure import measure
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.database import LogFigures, index_file, keep_figures, open_index
from llmb_common.runs.index.search import rebuild
from llmb_common.runs.record import RunRecord, load_record, update_record
from llmb_common.runs.timing.iterations import IterationsOnDisk
from support.cli import Cli, Done
from support.iteration_logs import mbridge_line, nemo_log
from support.runs import make_run, steady_log

LOG = steady_log(5741.47)
LINE = mbridge_line(39, milliseconds=5741.47)


@pytest.fixture(autouse=True)
def clock_that_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once."""
    monkeypatch.setattr(kept, "_COARSE_NS", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs that are really read."""
    found: list[str] = []

    def analyse(files: Any, *rest: Any, **how: Any) -> Any:
        found.append(files.log.name)
        return real(files, *rest, **how)

    real = kept.analyse
    monkeypatch.setattr(kept, "analyse", analyse)
    return found


def results(cli: Cli, *arguments: str) -> Any:
    return json.loads(cli("results", "--format", "json", *arguments).out)


def fresh(cli: Cli, *arguments: str) -> Any:
    with open_index(cli.install) as connection:
        connection.execute("UPDATE runs SET log_stamp = NULL")
    return results(cli, *arguments)


LOGS = {
    "good": LOG,
    "a spike": LOG.replace(LINE, mbridge_line(39, milliseconds=20000)),
    "NaN loss": LOG.replace(LINE, mbridge_line(39, milliseconds=5741.47, loss="nan")),
    "no finite TFLOPS": LOG.replace(LINE, mbridge_line(39, milliseconds=5741.47, tflops="inf")),
    "skipped": LOG.replace(LINE, mbridge_line(39, milliseconds=5741.47, skipped=1)),
    "cut": LOG[:3000],
    "hole": LOG.replace(LINE, ""),
    "printed again": LOG[: 40 * len(LINE)] + steady_log(5000),
    "NeMo": nemo_log(),
    "drift": "".join(mbridge_line(index, milliseconds=5000 + 20 * index) for index in range(1, 51)),
    "without a record": "Killed\n",
    "empty": "",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("arguments", [(), ("--window", "5-14"), ("--group",)])
def test_kept_figures_are_those_of_a_fresh_measurement(cli, reads, name, arguments):
    make_run(cli.install, log=LOGS[name])
    make_run(cli.install, log=LOGS[name], state="FAILED")
    first = results(cli, *arguments)
    assert len(reads) == 2
    assert results(cli, *arguments) == first
    assert len(reads) == 2 + 2 * ("--window" in arguments), "of other windows nothing is kept"
    assert fresh(cli, *arguments) == first


def test_steps_are_read_when_they_are_asked_for(cli: Cli) -> None:
    make_run(cli.install, log=LOG)
    first = cli("results", "--iterations").out
    assert first.count("\n") == 51
    assert cli("results", "--iterations").out == first


def test_a_packed_log_is_unpacked_once(cli: Cli, reads: list[str]) -> None:
    record = make_run(cli.install)
    record.paths.log.with_suffix(".out.gz").write_bytes(gzip.compress(LOG.encode()))
    record.paths.log.unlink(missing_ok=True)
    first = results(cli)
    assert first["data"]["runs"][0]["status"] == "Success"
    assert results(cli) == first
    assert len(reads) == 1


def grown(record: RunRecord) -> None:
    with record.paths.log.open("a") as log:
        log.write(steady_log(5000))


def overwritten(record: RunRecord) -> None:
    """The same size and modification time."""
    status = record.paths.log.stat()
    record.paths.log.write_text(LOG.replace("5741.47", "6741.47"))
    os.utime(record.paths.log, ns=(status.st_atime_ns, status.st_mtime_ns))


def rotated(record: RunRecord) -> None:
    """Another file of the same size and time under the name."""
    status, new = record.paths.log.stat(), record.paths.log.with_name("new")
    new.write_text(LOG.replace("5741.47", "6741.47"))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(record.paths.log)


def restarted(record: RunRecord) -> None:
    record.paths.events.write_text(json.dumps({"event": "start", "restart": 1, "job_id": "101"}) + "\n")


def failed(record: RunRecord) -> None:
    update_record(record.paths.folder, lambda found: found.with_state("FAILED", "exit code 1"))


@pytest.mark.parametrize("change", [grown, overwritten, rotated, restarted, failed])
def test_what_changed_is_read_anew(cli: Cli, change: Callable[[RunRecord], None]) -> None:
    record = make_run(cli.install, log=LOG)
    before = results(cli)
    change(record)
    after = results(cli)
    assert after != before
    assert after == fresh(cli)


def test_a_file_that_changed_a_moment_ago_is_read_again(cli, reads, monkeypatch):
    """It could change once more within the same tick of the file system's clock."""
    monkeypatch.setattr(kept, "_COARSE_NS", 60_000_000_000)
    make_run(cli.install, log=LOG)
    assert results(cli) == results(cli)
    assert len(reads) == 2


def test_a_reference_that_changes_decides_at_once(cli: Cli, reads: list[str]) -> None:
    first = make_run(cli.install, log=LOG)
    make_run(cli.install, log=LOG)
    before = results(cli)
    assert cli("baseline", "set", first.paths.run_id).status == 0
    kinds = {run["reference"]["kind"] for run in results(cli)["data"]["runs"]}
    assert kinds == {"baseline", "published"}
    assert results(cli) != before
    assert len(reads) == 2


def test_other_code_reads_again(cli: Cli, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(cli.install, log=LOG)
    results(cli)
    monkeypatch.setattr(kept, "_code_hash", lambda: "of another release")
    results(cli)
    assert len(reads) == 2


def test_a_run_that_goes_takes_its_figures_along(cli: Cli) -> None:
    record, other = make_run(cli.install, log=LOG), make_run(cli.install, log=LOG)
    results(cli)
    record.paths.folder.rename(cli.install / "elsewhere")
    assert [run["run_id"] for run in results(cli)["data"]["runs"]] == [other.paths.run_id]
    with open_index(cli.install) as connection:
        assert connection.execute("SELECT folder FROM runs").fetchall() == [(str(other.paths.folder),)]


@pytest.mark.parametrize(
    ("error", "surfaces"),
    [
        (sqlite3.OperationalError("database or disk is full"), False),
        (sqlite3.OperationalError("database is locked"), False),
        (sqlite3.DatabaseError("database disk image is malformed"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (sqlite3.ProgrammingError("Incorrect number of bindings supplied"), True),
        (sqlite3.InterfaceError("bad parameter or other API misuse"), True),
        (sqlite3.IntegrityError("datatype mismatch"), True),
        (sqlite3.DataError("string or blob too big"), True),
        (DeprecationWarning("Using positional parameters with ?NNN placeholders"), True),
    ],
)
def test_a_wrong_use_of_the_index_is_not_taken_for_a_full_disk(cli: Cli, error: Exception, surfaces: bool) -> None:
    def figures() -> Iterator[LogFigures]:
        raise error
        yield

    make_run(cli.install)
    rebuild(cli.install)
    if surfaces:
        with pytest.raises((RuntimeError, DeprecationWarning), match=re.escape(str(error))):
            keep_figures(cli.install, figures())
    else:
        assert keep_figures(cli.install, figures()) is False
    assert keep_figures(cli.install, []) is True


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x93\x01\x02\x03"])
def test_damaged_figures_are_measured_again(cli: Cli, damage: bytes) -> None:
    make_run(cli.install, log=LOG)
    first = results(cli)
    with open_index(cli.install) as connection:
        connection.execute("UPDATE runs SET figures = ?", (damage,))
    assert results(cli) == first


def test_figures_that_anybody_could_have_written_are_not_believed(cli: Cli, reads: list[str]) -> None:
    make_run(cli.install, log=LOG)
    results(cli)
    index_file(cli.install).chmod(0o666)
    results(cli)
    assert len(reads) == 2


def test_an_index_that_cannot_be_written_costs_time_only(cli: Cli, reads: list[str]) -> None:
    """As in a read-only installation of another user."""
    make_run(cli.install, log=LOG)
    first = results(cli)
    state = cli.install / ".llmb"
    state.rename(cli.install / "aside")
    state.write_text("")
    assert results(cli) == first
    assert len(reads) == 2


def batch_log_says(record: RunRecord) -> None:
    record.paths.batch_log.write_text("srun: error: n3: task 12: Out Of Memory\n")


def kernel_says(record: RunRecord) -> None:
    folder = record.paths.folder / "nodes"
    folder.mkdir()
    (folder / "n3.kernel.log").write_text("[12.3] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n")


@pytest.mark.parametrize("say", [batch_log_says, kernel_says])
def test_what_comes_beside_the_log_of_a_failed_run_counts(cli: Cli, say: Callable[[RunRecord], None]) -> None:
    record = make_run(cli.install, state="FAILED", log="".join(LOG.splitlines(keepends=True)[:30]))
    assert cli("jobs").status == 0, "the index has the run"
    before = kept.diagnoses(cli.install, [record])
    assert before[record.paths.run_id].cause is None
    say(record)
    (found,) = kept.diagnoses(cli.install, [record]).values()
    assert found == diagnose(record)
    assert found.cause is not None


def test_a_rebuilt_index_measures_again(cli: Cli, reads: list[str]) -> None:
    make_run(cli.install, log=LOG)
    first = results(cli)
    assert rebuild(cli.install) == 1
    assert results(cli) == first
    assert len(reads) == 2


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records that are really read for results."""
    found: list[str] = []

    def load(folder: Path, *content: bytes) -> RunRecord:
        found.append(folder.name)
        return load_record(folder, *content)

    for module in ("run", "measure"):
        monkeypatch.setattr(f"llmb_common.measured.{module}.load_record", load)
    return found


def test_of_many_runs_only_those_that_are_shown_have_their_records_read(cli: Cli, records: list[str]) -> None:
    made = [make_run(cli.install, log=steady_log(5741.47 + number)) for number in range(12)]
    first = cli("results", "--last", "2").out
    assert len(records) == 12
    records.clear()
    assert cli("results", "--last", "2").out == first
    # The first of a configuration speaks for its plan, and for what it is compared with the first that was good.
    assert len(set(records)) <= 4
    assert {record.paths.name for record in made[-2:]} <= set(records)
    records.clear()
    assert cli("results", "--group").out == cli("results", "--group").out
    assert len(set(records)) <= 2
    records.clear()
    cli("results", "--scaling")
    assert len(set(records)) <= 2
    records.clear()
    cli("results", "--history")
    assert set(records) == {record.paths.name for record in made}, "what changed between runs is in their records"


def test_another_log_beside_a_runs_own_is_seen_each_time(cli: Cli) -> None:
    record = make_run(cli.install, log=LOG)
    (record.paths.folder / "log-other.out").write_text(steady_log(5000))
    first = results(cli)
    assert len(first["data"]["runs"]) == 2
    assert results(cli) == first


def started(cli: Cli) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llmb_run", "results", "--format", "json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_at_once_and_killed_ones(cli: Cli) -> None:
    for number in range(30):
        make_run(cli.install, log=steady_log(5741.47 + number))
    expected = results(cli)["data"]
    with open_index(cli.install) as connection:
        connection.execute("UPDATE runs SET log_stamp = NULL")
    for pause in (0.3, 0.5):
        killed = started(cli)
        time.sleep(pause)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    both = [started(cli), started(cli)]
    for process in both:
        assert json.loads(process.communicate()[0])["data"] == expected
    assert results(cli)["data"] == expected


def test_a_log_that_goes_between_is_said(cli: Cli) -> None:
    record = make_run(cli.install, log=LOG)
    results(cli)
    record.paths.log.unlink()
    done: Done = cli("results", "--format", "json")
    assert done.data["runs"][0]["reason"] == "no_log"


def test_the_steps_of_many_runs_are_not_held_in_memory(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [make_run(cli.install, log=steady_log(5000 + at)) for at in range(3)]
    monkeypatch.setattr(kept, "_AT_ONCE", 2)
    found = measure([run.paths.folder for run in runs], Workspace(cli.install))
    assert all(isinstance(item.timing.iterations, IterationsOnDisk) for item in found)
    assert [len(list(item.timing.iterations)) for item in found] == [50, 50, 50]
    assert cli("results", "--iterations").out.count("\n") == 151
