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
from hypothesis import given, settings
from hypothesis import strategies as st

from llmb_common.timing import scan
from llmb_common.timing.runs import RunFiles, RunTiming, analyse
from llmb_common.timing.statistics import Window
from llmb_common.timing.tables import STYLES, render
from support.iteration_logs import mbridge_line, nccl_lines, nemo_line, step_time

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


@settings(max_examples=200)
@given(engines, st.data())
def test_a_log_cut_before_its_last_time_is_not_a_success(engine, data):
    text = "".join(LOGS[engine]).encode()
    # The last record is complete with its last field (Megatron-Bridge) or with its time (NeMo, more follows).
    needed = len(text) - 1 if engine == "mbridge" else text.rindex(b"2.693 ") + len("2.693 |")
    cut = data.draw(st.integers(0, needed - 1))
    assert analysed(text[:cut]).status.state != "Success"
    assert analysed(text[:needed]).status.state == "Success"


@settings(max_examples=150)
@given(engines, st.data())
def test_a_log_without_a_needed_record_is_never_a_success(engine, data):
    lines = list(LOGS[engine])
    needed = [line for line in lines if "iteration " in line][-4:]  # the window and the last step
    lines.remove(data.draw(st.sampled_from(needed)))
    for _ in range(data.draw(st.integers(0, 4))):
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(NOISE))
    assert analysed("".join(lines).encode("utf-8", "surrogatepass")).status.state != "Success"


@settings(max_examples=150)
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


@settings(max_examples=150)
@given(engines, st.data())
def test_damage_never_invents_a_number(engine, data):
    text = "".join(LOGS[engine]).encode()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 300)))
    # Fenced, so that the two ends do not form a number that occurs in the log.
    junk = f"#{data.draw(st.text(max_size=30))}#".encode("utf-8", "surrogatepass")
    times = {item.seconds for item in analysed(text[:start] + junk + text[end:]).iterations}
    assert times <= {5.7415, 2.693}


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([b"|", b"needle", b"need", b"le", b"other", b"x" * 90, b"\n"]), max_size=60),
    st.integers(1, 80),
)
def test_the_search_finds_what_a_naive_one_finds(pieces, block):
    content = b"".join(pieces)
    with tempfile.NamedTemporaryFile() as named, pytest.MonkeyPatch.context() as patch:
        named.write(content)
        named.flush()
        patch.setattr(scan, "BLOCK", block)
        with FileIO(named.name) as file:
            everything = list(scan.find_markers(file, (b"needle", b"other"), separator=b""))
            file.seek(0)
            after_bars = list(scan.find_markers(file, (b"needle", b"other")))
    naive = [(match.start(), match[0]) for match in re.finditer(b"needle|other", content)]
    assert everything == naive
    # The fast path may skip only what has no bar shortly before it.
    left_out = [offset for offset, marker in naive if (offset, marker) not in after_bars]
    assert all(b"|" not in content[max(0, offset - scan.REACH) : offset] for offset in left_out)
    assert set(after_bars) <= set(naive)
