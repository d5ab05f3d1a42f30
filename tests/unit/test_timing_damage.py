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
from llmb_common.runs.timing.iterations import read_log
from llmb_common.runs.timing.layouts import RecordReader
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.records import MARKERS, parse_record
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
    st.lists(st.sampled_from([b"|", b"/", b"NEEDLE", b"NEED", b"LE", b"other", b"x" * 90, b"\n"]), max_size=60),
    st.integers(1, 80),
    st.integers(6, 100),
)
def test_the_search_finds_what_a_naive_one_finds(parts, block, behind):
    content = b"".join(parts)
    with tempfile.NamedTemporaryFile() as named, pytest.MonkeyPatch.context() as patch:
        named.write(content)
        named.flush()
        patch.setattr(log_files, "BLOCK", block)
        patch.setattr(log_files, "REACH", 50)
        patch.setattr(log_files, "RECORD_BYTES", behind)
        with FileIO(named.name) as file:
            everything = list(log_files.find_markers(file, (b"NEEDLE", b"other")))
            pieces = list(log_files.find_pieces(file, (b"NEEDLE", b"other")))
            patch.setattr(log_files, "RECORD_HAS", {b"NEEDLE": b"|/", b"other": b"/"})
            in_records = list(log_files.find_markers(file, (b"NEEDLE", b"other")))
    naive = [(match.start(), match[0]) for match in re.finditer(b"NEEDLE|other", content)]
    assert everything == naive
    # What a record has is looked for in all the text around its marker.
    for offset, marker in set(naive) - set(in_records):
        around = content[max(0, offset - 50) : offset + behind]
        assert b"/" not in around or (marker == b"NEEDLE" and b"|" not in around)
    assert set(in_records) <= set(naive)
    # At the end of a file a record may be cut.
    assert in_records[-1:] == naive[-1:] or naive[-1][0] < len(content) - behind
    assert [(piece.start + at, marker) for piece in pieces for at, marker in piece.found] == naive
    for piece in pieces:
        assert piece.text == content[piece.start : piece.start + len(piece.text)]
        for at, _ in piece.found:
            around = content[max(0, piece.start + at - 50) : piece.start + at + behind]
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


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mbridge", "nemo"])
@pytest.mark.parametrize("junk", [b"\x1b[", b"TFLOPS_per_elapsed time per iteration (ms): 5.0 |", b"9" * 31, b"1e400"])
def test_the_fast_way_reads_what_the_thorough_one_reads_wherever_the_damage_is(engine, junk):
    content = "".join(LOGS[engine][:4]).encode()  # two records at least: the second is read by the first one's layout
    damaged = [content[:at] + junk + content[at:] + b"\n" for at in range(len(content))]
    for first in range(0, len(damaged), 50):  # in one file: making it takes longer than reading it
        assert_read_alike(b"".join(damaged[first : first + 50]))


def assert_read_alike(content: bytes) -> None:
    reader = RecordReader()
    with tempfile.NamedTemporaryFile() as named:
        named.write(content)
        named.flush()
        with FileIO(named.name) as file:
            for piece in log_files.find_pieces(file, list(MARKERS)):
                thorough = [parse_record(content, piece.start + at, MARKERS[marker]) for at, marker in piece.found]
                assert repr(reader.read(piece.text, piece.found)) == repr(thorough)  # a NaN equals none


BAR = " 12%|█▏        | 6/50 [00:34<04:05,  5.58s/it]"
PARTS = {
    "record": lambda index: mbridge_line(index, 9),
    "another rank's print before it": lambda index: step_time() + mbridge_line(index, 9),
    "within it": lambda index: mbridge_line(index, 9).replace("lm loss", f"{step_time().strip()}lm loss"),
    "with a carriage return": lambda index: mbridge_line(index, 9).replace("\n", "\r\n"),
    "behind a bar": lambda index: f"\r{BAR}\r{mbridge_line(index, 9)}",
    "without a loss": lambda index: mbridge_line(index, 9, loss=None),
    "NaN": lambda index: mbridge_line(index, 9, loss="nan"),
    "after a colour": lambda index: f"\x1b[32m{mbridge_line(index, 9)}",
    "cut": lambda index: mbridge_line(index, 9)[: 40 * index],
    "without its line's end": lambda index: mbridge_line(index, 9).rstrip("\n"),
    "two on a line": lambda index: mbridge_line(index, 9).replace("\n", " ") + mbridge_line(index + 1, 9),
    "NeMo's": lambda index: nemo_line(index, 9),
    "traces": lambda index: nccl_lines(index),
    "traces with bars": lambda index: "".join(f"{BAR}{line}\n" for line in nccl_lines(index).splitlines()),
}


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(PARTS)), st.integers(1, 9)), max_size=12),
    st.integers(1, 6000),
    st.floats(0, 1),
)
def test_a_log_cut_anywhere_is_read_as_one_record_at_a_time(parts, block, cut):
    whole = "".join(PARTS[name](index) for name, index in parts).encode()
    content = whole[: round(cut * len(whole))]

    def thorough(reader: RecordReader, text: bytes, found: list[tuple[int, bytes]]) -> list[object]:
        return [parse_record(text, at, MARKERS[marker]) for at, marker in found]

    with tempfile.NamedTemporaryFile() as named, pytest.MonkeyPatch.context() as patch:
        named.write(content)
        named.flush()
        with FileIO(named.name) as file:
            at_once = read_log(file)
            patch.setattr(RecordReader, "read", thorough)
            expected = read_log(file)
            patch.undo()
            patch.setattr(log_files, "BLOCK", block)
            in_blocks = read_log(file)
    assert repr(at_once) == repr(expected)
    # A record that was cut before its bracket is told of only if one stands near, or at the end of the log.
    assert in_blocks.damaged <= expected.damaged
    assert repr(in_blocks._replace(damaged=0)) == repr(expected._replace(damaged=0))
