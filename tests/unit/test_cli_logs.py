"""Logs: in full, followed as they grow, by rank, by pattern; and the step a run has reached."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from llmb_common.runs.timing import progress as timing_progress
from llmb_common.runs.timing.progress import Progress
from llmb_common.runs.timing.records import Iteration, last_iterations
from llmb_run.actions import logs
from llmb_run.actions.logs import follow, last_lines, lines_of, rank_of
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.iteration_logs import mbridge_line, mbridge_log, nccl_lines, nemo_log, step_time
from support.properties import given, st
from support.runs import make_run
from support.texts import Texts

SOME = "first\n[rank3]: Traceback\n[Rank 0] memory\n3: labelled\n[default12]:torchrun\nNCCL 3: no label\nlast"


def test_the_whole_log_and_its_end(cli: Cli) -> None:
    run = make_run(cli.install, log=SOME).paths.run_id
    assert cli("logs", run).out == SOME + "\n"
    assert cli("logs").out == SOME + "\n"  # the newest run
    assert cli("logs", run, "-n", "2").out == "NCCL 3: no label\nlast\n"
    assert cli("logs", run, "-n", "0").out == ""


def test_an_empty_log_is_said_to_be_empty(cli: Cli, texts: Texts) -> None:
    run = make_run(cli.install, log="")
    said = cli("logs", run.paths.run_id)
    assert (said.status, said.out) == (0, "")
    texts(said.err)


def test_one_rank_and_a_pattern(cli: Cli, texts: Texts) -> None:
    run = make_run(cli.install, log=SOME).paths.run_id
    assert cli("logs", run, "--rank", "3").out == "[rank3]: Traceback\n3: labelled\n"
    assert cli("logs", run, "--rank", "12").out == "[default12]:torchrun\n"
    assert cli("logs", run, "--grep", r"l.st|^first").out == "first\nlast\n"
    assert cli("logs", run, "--rank", "3", "--grep", "Trace").out == "[rank3]: Traceback\n"
    assert cli("logs", run, "--grep", "l", "-n", "1").out == "last\n"
    nothing = cli("logs", run, "--grep", "nowhere")
    assert (nothing.status, nothing.out) == (0, "")
    texts(nothing.err)
    wrong = cli("logs", run, "--grep", "(")
    assert wrong.status == 2
    texts(wrong.err, mask="missing .*")  # what Python says


@pytest.mark.parametrize(
    ("line", "rank"),
    [("[rank0]: x", 0), ("[Rank 7] x", 7), (" 12: x", 12), ("[default3]:x", 3), ("rank 3", None), ("1:2", None)],
)
def test_a_line_says_whose_it_is(line: str, rank: int | None) -> None:
    assert rank_of(line) == rank


def test_a_run_without_a_log_says_how_to_wait_for_it(cli: Cli, fake: FakeSlurm, texts: Texts) -> None:
    run = make_run(cli.install, state="PENDING").paths.run_id
    done = cli("logs", run)
    assert done.status == 3
    texts(done.err)


def test_a_run_that_ended_without_a_log_says_how(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install, state="PENDING").with_state("FAILED", "JobLaunchFailure: the script could not start")
    record.save()
    run = record.paths.run_id
    done = cli("logs", run)
    texts(done.err)
    texts(cli("show", run).out, about="FAILED")
    texts(cli("results", run, COLUMNS="300").out, about="FAILED")


def test_following_an_ended_run_prints_its_end_and_returns(cli: Cli, texts: Texts) -> None:
    run = make_run(cli.install, log="\n".join(map(str, range(100))) + "\n").paths.run_id
    done = cli("logs", run, "-f")
    assert done.out.split() == [str(n) for n in range(80, 100)]
    texts(done.err)
    assert cli("logs", run, "-f", "-n", "1").out == "99\n"


class Writer:
    """Plays the part of a job: at every pause of the reader it takes the next step; then the run has ended."""

    def __init__(self, path: Path, *steps: bytes | str) -> None:
        self.path, self.steps = path, list(steps)

    def pause(self, _: float) -> None:
        step = self.steps.pop(0)
        if step == "replace":
            self.path.write_bytes(b"")
        else:
            assert isinstance(step, bytes)
            with self.path.open("ab") as stream:
                stream.write(step)

    def ended(self) -> bool:
        return not self.steps


def test_a_line_that_comes_in_pieces_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = Writer(path, b"one\ntw", b"", b"o\nth", "rée\n".encode()[:2], "rée\n".encode()[2:], b"end")
    assert list(follow(path, 0, writer.ended, writer.pause)) == ["one", "two", "three".replace("e", "é", 1), "end"]


def test_a_replaced_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = Writer(path, b"a long first line\n", "replace", b"new\n")
    assert list(follow(path, 0, writer.ended, writer.pause)) == ["a long first line", "new"]


def test_what_is_written_just_before_the_end_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\n")

    def ended() -> bool:
        with path.open("a") as stream:
            stream.write("last words\n")
        return True

    assert list(follow(path, 0, ended, lambda _: None)) == ["one", "last words"]


def test_a_progress_bar_shows_its_last_state(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"10%\r50%\r100%\nbytes \xff\xfe\r\n")
    assert list(lines_of(path)) == ["100%", "bytes ��"]


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=30), st.integers(0, 40))
def test_the_last_lines_are_those_of_the_whole(tmp_path_factory, lines, count):
    """Read in blocks of 4 bytes."""
    path = tmp_path_factory.mktemp("log") / "log"
    text = b"".join(line + b"\n" for line in lines)
    path.write_bytes(text)
    expected = b"".join(line + b"\n" for line in lines[len(lines) - min(count, len(lines)) :])
    with patch.object(logs, "_BLOCK", 4):
        assert text[last_lines(path, count) :] == expected


def test_progress_is_the_latest_whole_step(tmp_path: Path) -> None:
    path = tmp_path / "log"
    progress = Progress(path, 50)
    progress.look()
    assert (progress.step, progress.seconds_left) == (0, None)
    path.write_text(mbridge_log(range(1, 11)))
    progress.look()
    assert (progress.step, progress.step_seconds, progress.tflops) == (10, 5.7415, 1636.8)
    assert progress.seconds_left == pytest.approx(40 * 5.7415)
    half = mbridge_line(11, milliseconds=1000)
    with path.open("a") as stream:
        stream.write(step_time() + half[:80])
    progress.look()
    assert progress.step == 10
    with path.open("a") as stream:
        stream.write(half[80:])
    progress.look()
    assert (progress.step, progress.step_seconds) == (11, 1.0)
    assert progress.seconds_left == pytest.approx(39 * 5.7415)  # one fast step is not the pace


def test_progress_of_the_older_engine_counts_from_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(nemo_log(range(25)))
    progress = Progress(path, 50)
    progress.look()
    assert (progress.step, progress.step_seconds, progress.tflops) == (25, 2.693, 527.8)


def test_progress_in_a_huge_log_reads_its_end_only(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(mbridge_log([1]) + nccl_lines(5000) + mbridge_log([2]))
    progress = Progress(path, 50)
    progress.look()
    assert progress.step == 2
    path.write_text(mbridge_log([1]))  # a new log in its place
    progress.look()
    assert progress.step == 1


def test_progress_finds_the_last_step_before_many_traces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(mbridge_log(range(1, 4)) + nccl_lines(5000))
    progress = Progress(path, 50)
    progress.look()
    assert progress.step == 3
    with path.open("a") as stream:
        stream.write(mbridge_log([4]) + nccl_lines(5000))
    progress.look()
    assert progress.step == 4


def test_progress_takes_a_bounded_piece_however_much_a_log_has_gained(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(mbridge_log([1]))
    progress = Progress(path, 50)
    pieces: list[int] = []

    def last(text: bytes, most: int) -> list[Iteration]:
        pieces.append(len(text))
        return last_iterations(text, most)

    with patch.object(timing_progress, "last_iterations", last):
        progress.look()
        with path.open("a") as stream:
            stream.write(mbridge_log([2]) + nccl_lines(5000) + mbridge_log([3]))
        progress.look()
        progress.look()
    assert progress.step == 3
    assert path.stat().st_size > 2 * timing_progress._PIECE
    assert pieces[1] <= timing_progress._PIECE
    assert pieces[2] == 0, "what was read once is not read again"


def test_progress_of_a_run_that_goes_on_from_a_checkpoint_has_the_steps_of_its_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(mbridge_line(51, 100))
    progress = Progress(path, 1)
    progress.look()
    assert (progress.step, progress.steps) == (51, 100)
