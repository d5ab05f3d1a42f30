"""NVIDIA's tables, character for character; CSV and JSON stay machine-readable whatever the runs left behind."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from llmb_common.timing.runs import RunFiles, analyse
from llmb_common.timing.tables import STYLES, render, shorten
from support.iteration_logs import mbridge_line, mbridge_log, nemo_line

DATA = Path(__file__).parents[1] / "data" / "logs"


def spread(mean: float, deviation: float, count: int) -> list[float]:
    """An even number of values with this mean and sample standard deviation."""
    step = deviation * math.sqrt((count - 1) / count)
    return [mean + step, mean - step] * (count // 2)


@pytest.fixture
def timing(tmp_path):
    def timing(name: str, text: str, style: str):
        log = tmp_path / "log"
        log.write_text(text)
        return analyse(RunFiles(name, None, log), STYLES[style].window)

    return timing


def table(timings, style: str, output="table", *, full_names: bool = False) -> str:
    return render(timings, STYLES[style], STYLES[style].window, output, full_names=full_names)


def test_the_table_of_the_llama31_readme(timing):
    times, tflops = spread(5741.47, 68.67, 10), spread(1636.8, 20.89, 10)
    lines = [mbridge_line(index) for index in range(1, 51)]
    for index, (milliseconds, value) in enumerate(zip(times, tflops, strict=True), start=35):
        lines[index - 1] = mbridge_line(index, milliseconds=milliseconds, tflops=value)
    name = "pretrain_llama31_405b_fp8_cs_gpus128_tp2_pp1_cp1_vpNone_ep1_mbs1_gbs64_658572"
    printed = table([timing(name, "".join(lines), "mbridge")], "mbridge")
    assert printed == (DATA / "table_llama31.txt").read_text()


def test_the_table_of_the_grok1_readme(timing):
    times, tflops = spread(7.382, 0.04, 34), spread(1192.94, 6.53, 34)
    lines = [nemo_line(index) for index in range(50)]
    for index, (seconds, value) in enumerate(zip(times, tflops, strict=True), start=11):
        lines[index] = nemo_line(index, seconds=seconds, tflops=value)
    printed = table([timing("pretrain_grok1_314b_bf16_256_388660", "".join(lines), "nemo")], "nemo")
    assert printed == (DATA / "table_grok1.txt").read_text()


def test_each_style_reads_both_engines(timing):
    # LLMB trains all recipes with Megatron-Bridge; users of Grok-1 know the table in seconds.
    in_seconds = table([timing("x", mbridge_log(), "nemo")], "nemo").splitlines()[-1].split()
    assert in_seconds == ["x", "Success", "5.742", "0.000", "1636.80", "0.00"]


def test_a_failed_run_keeps_its_row(timing):
    row = table([timing("x", "", "mbridge")], "mbridge").splitlines()[-1]
    assert row.split() == ["x", "Failed", "N/A", "N/A", "N/A", "N/A"]
    assert len(row) == 165


def test_a_long_name_is_cut_in_the_middle_unless_asked_for_in_full(timing):
    name = "pretrain_" + 100 * "x" + "_1732000000"
    short, full = (
        table([timing(name, mbridge_log(), "mbridge")], "mbridge", full_names=choice).splitlines()
        for choice in (False, True)
    )
    cut = short[-1].split()[0]
    assert len(cut) == 90
    assert cut.startswith("pretrain_xxx")
    assert cut.endswith("xxx_1732000000")
    assert full[-1].split()[0] == name
    assert len(short[-1]) == len(short[3]) == 165
    assert len(full[-1]) == len(full[3]) == len(name) + 75


@pytest.mark.parametrize("length", [0, 89, 90, 91, 300])
def test_shortening(length):
    name = "".join(str(number % 10) for number in range(length))
    assert len(shorten(name)) == min(length, 90)
    assert (shorten(name) == name) == (length <= 90)


HOSTILE = ['plain", "x', "a,b", "new\nline", "\x1b[31mred", "caf\udce9", "=cmd()", "日本"]


@pytest.mark.parametrize("output", ["table", "csv", "json"])
def test_hostile_names_do_not_break_any_format(timing, output):
    timings = [timing(name, mbridge_log(), "mbridge") for name in HOSTILE]
    printed = table(timings, "mbridge", output)
    assert "\x1b" not in printed
    printed.encode("utf-8")
    if output == "csv":
        rows = list(csv.reader(io.StringIO(printed)))
        assert len(rows) == 1 + len(HOSTILE)
        assert {len(row) for row in rows} == {8}
    elif output == "json":
        assert len(json.loads(printed)["runs"]) == len(HOSTILE)
    else:
        assert len(printed.splitlines()) == 4 + len(HOSTILE)


def test_csv(timing):
    name = "x" * 120
    rows = table([timing(name, mbridge_log(), "mbridge"), timing("y", mbridge_line(7), "mbridge")], "mbridge", "csv")
    assert rows == (
        "experiment,status,time_mean_ms,time_std_ms,tflops_per_gpu_mean,tflops_per_gpu_std,reason,iteration\n"
        f"{name},Success,5741.500,0.000,1636.80,0.00,,\n"
        "y,Failed,,,,,ended_early,7\n"
    )


def test_json_of_a_success_and_of_a_nan(timing):
    bad = mbridge_log().replace(mbridge_line(40), mbridge_line(40, loss="NAN", grad_norm="inf"))
    document = json.loads(
        table([timing("x", mbridge_log(), "mbridge"), timing("y", bad, "mbridge")], "mbridge", "json"),
        parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"),
    )
    assert document["schema"] == 1
    assert document["window"] == {"first": 35, "last": 44}
    success, failed = document["runs"]
    del success["log"]
    assert success == {
        "experiment": "x",
        "log_format": "mbridge",
        "status": "Success",
        "reason": None,
        "iteration": None,
        "message": None,
        "iterations": 50,
        "window_iterations": 10,
        "time_mean_ms": 5741.5,
        "time_std_ms": 0.0,
        "time_median_ms": 5741.5,
        "time_last_ms": 5741.5,
        "tflops_per_gpu_mean": 1636.8,
        "tflops_per_gpu_std": 0.0,
        "notices": [],
    }
    assert (failed["status"], failed["reason"], failed["iteration"]) == ("Failed", "nan_loss", 40)
