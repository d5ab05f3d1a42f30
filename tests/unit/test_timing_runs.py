"""Finding runs: the documented layout, plain folders, and runs that died before they wrote anything."""

from __future__ import annotations

import gzip
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from llmb_common.runs.timing import log_files
from llmb_common.runs.timing.log_files import RunFiles, find_runs, is_log_name, log_stem, open_log
from llmb_common.runs.timing.runs import analyse
from llmb_common.runs.timing.window import Window
from support.cli import Cli
from support.iteration_logs import mbridge_line, mbridge_log
from support.programs import needs_zstd
from support.runs import make_run, steady_log
from support.texts import Texts


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_folder(root: Path, experiment: str, timestamp: str, *, log: bool = True, record: bool = True) -> Path:
    folder = root / experiment / f"{experiment}_{timestamp}"
    folder.mkdir(parents=True)
    if record:
        put(folder / "job.json", "{}")
    if log:
        put(folder / experiment / f"log-{experiment}.out")
        put(folder / experiment / f"sbatch_{experiment}.out")
    return folder


def names(folder: Path) -> list[str]:
    return [run.name for run in find_runs(folder)]


def test_every_run_of_every_experiment(tmp_path):
    run_folder(tmp_path, "b", "1732000000")
    run_folder(tmp_path, "a", "1732000001")
    run_folder(tmp_path, "a", "1732000002")
    assert names(tmp_path) == ["a_1732000001", "a_1732000002", "b_1732000000"]


@pytest.mark.parametrize("at", ["workload", "experiments", "experiment", "run"])
def test_the_folder_may_be_any_level(tmp_path, at):
    run = run_folder(tmp_path / "experiments", "a", "1732000001")
    folder = {"workload": tmp_path, "experiments": tmp_path / "experiments", "experiment": run.parent, "run": run}[at]
    assert names(folder) == ["a_1732000001"]


def test_a_run_without_a_log_is_a_run(tmp_path):
    run_folder(tmp_path, "a", "1732000001", log=False)
    run_folder(tmp_path, "b", "1732000002", log=False, record=False)  # by its name alone
    assert [(run.name, run.log) for run in find_runs(tmp_path)] == [("a_1732000001", None), ("b_1732000002", None)]


def test_a_plain_folder_of_logs(tmp_path):
    put(tmp_path / "log-pretrain_grok1_314b_bf16_256_388660.out")
    put(tmp_path / "deeper" / "still" / "log-other.out")
    put(tmp_path / "other.out")
    assert names(tmp_path) == ["other", "pretrain_grok1_314b_bf16_256_388660"]


def test_a_log_itself(tmp_path):
    assert names(put(tmp_path / "log-x.out")) == ["x"]


def test_several_logs_of_one_run(tmp_path):
    run = run_folder(tmp_path, "a", "1732000001")
    put(run / "a" / "log-a_retry.out")
    assert names(tmp_path) == ["a_1732000001/a", "a_1732000001/a_retry"]


def test_checkpoints_and_code_are_not_searched(tmp_path):
    for pruned in ("checkpoints", "code", "nsys_profile"):
        put(tmp_path / pruned / "log-x.out")
    assert names(tmp_path) == []


def test_an_unfinished_run_folder_is_not_a_run(tmp_path):
    put(tmp_path / "a" / ".making-x" / "job.json", "{}")
    assert names(tmp_path) == []


def test_a_folder_named_like_a_log_is_reported_not_searched(tmp_path):
    put(tmp_path / "log-x.out" / "log-y.out")
    assert names(tmp_path) == ["x"]


def test_a_folder_that_may_not_be_looked_at_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)  # root, too, may not look at that
    assert find_runs(folder) == [RunFiles(folder.name, None, folder)]
    assert analyse(*find_runs(folder), WINDOW).status.reason == "unreadable_log"


def test_a_folder_that_cannot_be_listed_is_reported():
    # Root may list everything, so it becomes nobody for the moment; pytest's own folders are closed to nobody.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        put(folder / "log-x.out")
        (folder / "closed").mkdir(mode=0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            found = find_runs(folder)
        finally:
            if root:
                os.seteuid(0)
            (folder / "closed").chmod(0o755)
    assert [(run.name, run.log) for run in found] == [("closed", folder / "closed"), ("x", folder / "log-x.out")]


# Logs by name, and compressed ones: read as the plain ones are, refused in words where they are damaged.


WINDOW = Window(35, 44)


def packed(log: Path, text: str) -> Path:
    """``text`` as the suffix of ``log`` says."""
    if log.suffix == ".gz":
        log.write_bytes(gzip.compress(text.encode()))
    else:
        subprocess.run(["zstd", "-q", "-o", str(log)], input=text.encode(), check=True)
    return log


suffixes = pytest.mark.parametrize("suffix", [".gz", pytest.param(".zst", marks=needs_zstd)])


@suffixes
def test_a_compressed_log_is_read_like_a_plain_one(tmp_path: Path, suffix: str) -> None:
    plain = tmp_path / "log-x.out"
    plain.write_text(mbridge_log())
    other = packed(tmp_path / f"log-y.out{suffix}", mbridge_log())
    expected = analyse(RunFiles("x", None, plain), WINDOW)
    found = analyse(RunFiles("y", None, other), WINDOW)
    assert found.status.state == "Success"
    assert (found.iterations, found.seconds, found.tflops) == (expected.iterations, expected.seconds, expected.tflops)


@suffixes
def test_a_damaged_archive_is_a_log_that_cannot_be_read(tmp_path: Path, suffix: str) -> None:
    log = packed(tmp_path / f"log-x.out{suffix}", mbridge_log())
    log.write_bytes(log.read_bytes()[:-9])
    status = analyse(RunFiles("x", None, log), WINDOW).status
    assert (status.state, status.reason) == ("Failed", "unreadable_log")
    assert ("zstd" if suffix == ".zst" else "gzip") in status.message


def test_without_zstd_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    log = tmp_path / "log-x.out.zst"
    log.write_bytes(b"\x28\xb5\x2f\xfd")
    monkeypatch.setenv("PATH", str(tmp_path))
    texts(analyse(RunFiles("x", None, log), WINDOW).status.message)


@suffixes
def test_a_log_that_grows_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, texts: Texts
) -> None:
    monkeypatch.setattr(log_files, "_MOST_BYTES", 10_000)
    log = packed(tmp_path / f"log-x.out{suffix}", "x" * (8 << 20))
    texts(analyse(RunFiles("x", None, log), WINDOW).status.message)


@pytest.mark.parametrize(
    ("name", "is_log", "stem"),
    [
        ("log-a.b.out", True, "a.b"),
        ("log-a.out.gz", True, "a"),
        ("log-a.out.zst", True, "a"),
        ("log-a.txt", False, "a.txt"),
        ("sbatch_a.out", False, "sbatch_a"),
        ("log-a.out.bz2", False, "a.out.bz2"),
    ],
)
def test_names_of_logs(name: str, is_log: bool, stem: str) -> None:
    assert is_log_name(name) == is_log
    if is_log:
        assert log_stem(Path(name)) == stem


def test_compressed_logs_are_found_in_a_folder(tmp_path: Path) -> None:
    packed(tmp_path / "log-a.out.gz", mbridge_log())
    (tmp_path / "log-b.out").write_text(mbridge_log())
    assert [run.name for run in find_runs(tmp_path)] == ["a", "b"]


def test_a_log_and_its_packed_copy_are_one_run(tmp_path: Path) -> None:
    """``gzip --keep``, or a compression that is under way: the text is complete in any case."""
    (tmp_path / "log-a.out").write_text(mbridge_log())
    (tmp_path / "log-a.out.zst").write_bytes(b"half of it")
    run = tmp_path / "b" / "b_1732000001" / "b"
    run.mkdir(parents=True)
    packed(run / "log-b.out.gz", mbridge_log())
    (run / "log-b.out").write_text(mbridge_log())
    logs = [found.log for found in find_runs(tmp_path)]
    assert logs == [run / "log-b.out", tmp_path / "log-a.out"]


def test_one_figure_that_is_no_number_does_not_break_the_report_of_others(cli: Cli, texts: Texts) -> None:
    good = make_run(cli.install, log=steady_log(5741.47))
    odd = steady_log(5741.47).replace(
        mbridge_line(40, milliseconds=5741.47), mbridge_line(40, milliseconds=5741.47, tflops="nan")
    )
    bad = make_run(cli.install, log=odd, job_id="102")
    long = make_run(cli.install, log=steady_log(5741.47).replace("5741.47", "1e200", 1), job_id="103")
    done = cli("results", "--json")
    found = {run["run_id"]: run for run in done.data["runs"]}
    assert found[good.paths.run_id]["verdict"] == "pass"
    assert found[bad.paths.run_id]["log_tflops_per_gpu_mean"] is None
    assert found[bad.paths.run_id]["verdict"] == "pass", "the step times are good"
    texts("\n".join(found[bad.paths.run_id]["notices"]))
    assert found[long.paths.run_id]["status"] == "Success", "the damaged record is before the window"
    assert cli("results").status == 0


def test_a_restart_that_repeats_no_iteration_is_said(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    record.paths.events.write_text(
        '{"event": "start", "time": 1.0, "job_id": "101", "nodes": "n1", "restart": 0}\n'
        '{"event": "start", "time": 9.0, "job_id": "101", "nodes": "n1", "restart": 1}\n'
        '{"event": "end", "time": 19.0, "job_id": "101", "exit_code": 0}\n'
    )
    (run,) = cli("results", "--json").data["runs"]
    texts("\n".join(run["notices"]))


def test_two_runs_of_one_name_and_one_of_another(tmp_path: Path) -> None:
    for name in ("a/log-x.out", "b/log-x.out", "b/log-y.out"):
        put(tmp_path / name, "")
    assert [run.name for run in find_runs(tmp_path)] == ["a/log-x.out", "b/log-x.out", "y"]


@pytest.mark.parametrize(
    ("name", "is_run"),
    [("x_1732000000", True), ("x_1732000000-0002", True), ("x_17", True), ("x_17-2", False), ("x_new", False)],
)
def test_a_run_of_another_launcher_is_known_by_its_name(tmp_path: Path, name: str, is_run: bool) -> None:
    (tmp_path / "x" / name).mkdir(parents=True)
    assert [run.name for run in find_runs(tmp_path)] == ([name] if is_run else [])


def test_a_link_that_leads_to_itself_hides_no_other_log(tmp_path: Path) -> None:
    put(tmp_path / "log-x.out", "")
    for name in ("loop", "log-loop.out"):
        (tmp_path / name).symlink_to(name)
    assert [run.name for run in find_runs(tmp_path)] == ["loop", "x"]


def test_a_folder_named_as_a_run_belongs_to_its_experiment(tmp_path: Path) -> None:
    (tmp_path / "other" / "x_1732000000").mkdir(parents=True)
    assert find_runs(tmp_path) == []


@needs_zstd
def test_a_damaged_archive_whose_name_is_not_utf8(tmp_path: Path, texts: Texts) -> None:
    log = Path(os.fsdecode(os.fsencode(tmp_path) + b"/log-\xff.out.zst"))
    with pytest.raises(OSError, match="zstd") as caught, open_log(put(log, "text")):
        pass
    texts(caught.value, mask="(?<=unpack it: ).*")


@pytest.mark.parametrize("name", ["job.json", "run.json"])
def test_a_fifo_is_no_record_and_nobody_waits_for_it(tmp_path: Path, name: str, texts: Texts) -> None:
    folder = run_folder(tmp_path, "exp", "1", record=False)
    os.mkfifo(folder / name)
    (files,) = find_runs(folder)
    said = analyse(files, Window(35, 44)).notices
    assert [text.partition(" cannot")[0] for text in said] == [str(folder / name)]
    texts(said[0])
