"""What holds for every log, however damaged: no crash, readable output, and never a false Success."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from io import FileIO
from pathlib import Path

import pytest

from llmb_common.runs.timing import log_files
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.records import MARKERS, RECORD_BYTES, RecordReader, parse_record
from llmb_common.runs.timing.runs import RunTiming, analyse
from llmb_common.runs.timing.tables import STYLES, render
from llmb_common.runs.timing.window import Window
from support.iteration_logs import mbridge_line, nccl_lines, nemo_line, step_time
from support.properties import given, settings, st

WINDOW = Window(2, 4)
LOGS = {
    "mbridge": [line for index in range(1, 6) for line in (step_time(), mbridge_line(index, 5))],
    "nemo": [nemo_line(index, 5, tflops=527.8) for index in range(6)],
}


NOISE = st.one_of(
    st.just(nccl_lines(3)),
    st.just(step_time()),
    st.sampled_from(
        ["\x1b[0m", "\r\n", "|", "0: ", " iteration ", "Saving checkpoint at iteration 3\n", "nan", "\n\n"]
    ),
    st.text(max_size=40),
)


engines = st.sampled_from(sorted(LOGS))


def analysed(content: bytes) -> RunTiming:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log-x.out"
        log.write_bytes(content)
        return analyse(RunFiles("x", None, log), WINDOW)


@settings(max_examples=60)
@given(st.binary(max_size=2000))
def test_any_bytes_are_a_failed_run_and_every_output_is_well_formed(content):
    timing = analysed(content)
    assert timing.status.state == "Failed"
    style = STYLES["mbridge"]
    run = json.loads(render([timing], style, WINDOW, "json", full_names=False))["runs"][0]
    assert run["reason"] in ("empty_log", "no_iterations")
    rows = list(csv.reader(io.StringIO(render([timing], style, WINDOW, "csv", full_names=False))))
    assert [len(row) for row in rows] == [8, 8]


@settings(max_examples=100)
@given(engines, st.data())
def test_a_log_cut_before_its_last_time_is_not_a_success(engine, data):
    text = "".join(LOGS[engine]).encode()
    # The last record is complete with its last field (Megatron-Bridge) or with its time (NeMo, more follows).
    needed = len(text) - 1 if engine == "mbridge" else text.rindex(b"2.693 ") + len("2.693 |")
    cut = data.draw(st.integers(0, needed - 1))
    assert analysed(text[:cut]).status.state != "Success"
    assert analysed(text[:needed]).status.state == "Success"


@settings(max_examples=75)
@given(engines, st.data())
def test_a_log_without_a_needed_record_is_never_a_success(engine, data):
    lines = list(LOGS[engine])
    needed = [line for line in lines if "iteration " in line][-4:]  # the window and the last step
    lines.remove(data.draw(st.sampled_from(needed)))
    for _ in range(data.draw(st.integers(0, 4))):
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(NOISE))
    assert analysed("".join(lines).encode("utf-8", "surrogatepass")).status.state != "Success"


@settings(max_examples=75)
@given(
    st.integers(1, 5),
    st.sampled_from(["loss", "grad_norm", "hidden"]),
    st.sampled_from(["nan", "NAN", "inf"]),
    st.data(),
)
def test_a_run_with_nan_is_never_a_success(bad, where, value, data):
    fields = {"loss": None} if where == "hidden" else {where: value}
    lines = [mbridge_line(index, 5, **(fields if index == bad else {})) for index in range(1, 6)]
    for _ in range(data.draw(st.integers(0, 4))):
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(NOISE) + "\n")
    assert analysed("".join(lines).encode("utf-8", "surrogatepass")).status.state != "Success"


@settings(max_examples=75)
@given(engines, st.data())
def test_damage_never_invents_a_number(engine, data):
    text = "".join(LOGS[engine]).encode()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 300)))
    # Fenced, so that the two ends do not form a number that occurs in the log.
    junk = f"#{data.draw(st.text(max_size=30))}#".encode("utf-8", "surrogatepass")
    times = {item.seconds for item in analysed(text[:start] + junk + text[end:]).iterations}
    assert times <= {5.7415, 2.693}


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from([b"|", b"/", b"needle", b"need", b"le", b"other", b"x" * 90, b"\n"]), max_size=60),
    st.integers(1, 80),
    st.integers(0, 100),
)
def test_the_search_finds_what_a_naive_one_finds(parts, block, beyond):
    content = b"".join(parts)
    with tempfile.NamedTemporaryFile() as named, pytest.MonkeyPatch.context() as patch:
        named.write(content)
        named.flush()
        patch.setattr(log_files, "BLOCK", block)
        patch.setattr(log_files, "REACH", 50)
        with FileIO(named.name) as file:
            everything = list(log_files.find_markers(file, (b"needle", b"other"), needed=b""))
            in_records = list(log_files.find_markers(file, (b"needle", b"other")))
            pieces = list(log_files.find_pieces(file, (b"needle", b"other"), needed=b"", beyond=beyond))
    naive = [(match.start(), match[0]) for match in re.finditer(b"needle|other", content)]
    assert everything == naive
    # The fast path may skip only what has no bar and no slash shortly before it.
    for offset, _ in set(naive) - set(in_records):
        before = content[max(0, offset - 50) : offset]
        assert b"|" not in before or b"/" not in before
    assert set(in_records) <= set(naive)
    assert [(piece.start + at, marker) for piece in pieces for at, marker in piece.found] == naive
    for piece in pieces:
        assert piece.text == content[piece.start : piece.start + len(piece.text)]
        for at, marker in piece.found:
            around = content[max(0, piece.start + at - 50) : piece.start + at + len(marker) + beyond]
            assert around in piece.text


DAMAGE = st.sampled_from(
    [
        *(b"\x1b[0m", b"\x1b[", b"|", b" ", b"\n", b"\r\n", b": ", b"e", b"5", b".", b"\xff", b"x" * 1100),
        *(b"iteration 3/5 |", b" iteration ", b"nan", b"elapsed time per iteration (ms): 5.0 |", b"grad norm: 7 |"),
        *(b"train_step_timing in s", step_time().encode(), step_time().strip().encode(), b"lm loss: 1_0 |"),
    ]
)


@settings(max_examples=75)
@given(engines, st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 2), DAMAGE), min_size=1, max_size=4))
def test_the_fast_way_reads_what_the_thorough_one_reads(engine, damage):
    content = "".join(LOGS[engine]).encode()
    for at, cut, junk in damage:
        content = content[:at] + junk + content[at + cut :]
    assert_read_alike(content)


@pytest.mark.exhaustive
@pytest.mark.parametrize("engine", ["mbridge", "nemo"])
@pytest.mark.parametrize("junk", [b"\x1b[", b"TFLOPS_per_elapsed time per iteration (ms): 5.0 |", b"9" * 31, b"1e400"])
def test_the_fast_way_reads_what_the_thorough_one_reads_wherever_the_damage_is(engine, junk):
    content = "".join(LOGS[engine][:4]).encode()  # two records at least: the second is read by the first one's layout
    damaged = [content[:at] + junk + content[at:] + b"\n" for at in range(len(content))]
    for first in range(0, len(damaged), 50):  # in one file: making it takes longer than reading it
        assert_read_alike(b"".join(damaged[first : first + 50]))


def assert_read_alike(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as named:
        named.write(content)
        named.flush()
        with FileIO(named.name) as file:
            for piece in log_files.find_pieces(file, list(MARKERS), needed=b"", beyond=RECORD_BYTES):
                for position, marker in piece.found:
                    offset = piece.start + position
                    start = max(0, offset - log_files.REACH)
                    text = content[start : offset + RECORD_BYTES]
                    thorough = parse_record(text, offset - start, MARKERS[marker])
                    read = RecordReader.read(piece.text, position, MARKERS[marker])
                    assert repr(read) == repr(thorough)  # a NaN equals none
