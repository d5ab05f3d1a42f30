"""The two parser scripts as users call them: options, exit statuses, messages."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common.runs.timing import cli as parser
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.runs import analyse
from llmb_common.runs.timing.tables import STYLES, render, shorten
from support.iteration_logs import mbridge_line, mbridge_log, nemo_line, nemo_log
from support.texts import Texts

COMMON = Path(__file__).parents[2] / "common"
MBRIDGE = COMMON / "parse_train_timing_mbridge.sh"
NEMO = COMMON / "parse_train_timing.sh"


@pytest.fixture
def experiments(tmp_path) -> Path:
    """The default folder of a workload, with one good run."""
    log = tmp_path / "experiments" / "a" / "a_1732000000" / "a" / "log-a.out"
    log.parent.mkdir(parents=True)
    log.write_text(mbridge_log())
    return tmp_path / "experiments"


def run(script: Path, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    clean["LLMB_PYTHON"] = sys.executable
    env = {name: value for name, value in (clean | environment).items() if value}
    return subprocess.run([script, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_without_arguments_it_reads_the_experiments_of_the_current_folder(experiments):
    done = run(MBRIDGE, cwd=experiments.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].split()[:3] == ["a_1732000000", "Success", "5741.500"]


def test_the_sibling_prints_seconds(experiments, texts: Texts):
    (experiments / "log-b.out").write_text(nemo_log())
    done = run(NEMO, str(experiments), cwd=Path("/"))
    assert (done.returncode, done.stderr) == (0, "")
    texts(done.stdout, about="Analysis")
    assert [line.split()[2] for line in done.stdout.splitlines()[4:]] == ["5.742", "2.693"]


def test_another_window_which_one_run_does_not_fill_gives_status_1(experiments, texts: Texts):
    done = run(MBRIDGE, "--window=41-51", "--format", "json", cwd=experiments.parent)
    assert done.returncode == 1
    assert json.loads(done.stdout)["window"] == {"first": 41, "last": 51}
    texts(done.stderr)


def test_it_works_through_a_link_from_a_folder_full_of_traps(experiments, tmp_path):
    # Neither modules of the current folder nor PYTHON* variables reach the parser.
    for trap in ("json.py", "statistics.py", "llmb_common.py"):
        (experiments.parent / trap).write_text("raise SystemExit('wrong module')")
    link = tmp_path / "a folder" / "parse.sh"
    link.parent.mkdir()
    link.symlink_to(MBRIDGE)
    done = run(link, "--format=json", cwd=experiments.parent, PYTHONPATH=str(tmp_path), PYTHONHOME="/nowhere")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_any_file_name_in_any_locale(experiments, locale):
    (experiments / os.fsdecode(b"log-caf\xe9 \xe6\x97\xa5.out")).write_text(mbridge_log())
    done = run(MBRIDGE, cwd=experiments.parent, LC_ALL=locale)
    assert done.returncode == 0


def test_a_name_that_the_terminals_encoding_lacks(experiments):
    (experiments / "log-日本.out").write_text(mbridge_log())
    ascii_only = {"PYTHONPATH": str(COMMON), "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "llmb_common.runs.timing.cli", "mbridge", experiments]
    done = subprocess.run(command, env=ascii_only, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6


def test_a_closed_pipe_gives_no_traceback(experiments):
    for number in range(500):
        (experiments / f"log-{number}.out").write_text("")
    command = f"{MBRIDGE} {experiments} --format=json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


def stand_in(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def test_an_old_python_is_recognised_by_the_script_itself(experiments, tmp_path, texts: Texts):
    # The script's own check runs in a Python that claims to be 3.9.
    claim = "exec " + sys.executable + ' "$1" "$2" "$3" "${4/sys.version_info/(3, 9)}" "${@:5}"'
    python = stand_in(tmp_path / "old" / "python", claim)
    done = run(MBRIDGE, cwd=experiments.parent, LLMB_PYTHON=str(python))
    assert (done.returncode, done.stdout) == (3, "")
    texts(done.stderr)


# NVIDIA's tables, character for character; CSV and JSON stay machine-readable whatever the runs left behind.


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
    timings = [timing(name, mbridge_log(), "mbridge")]
    for full_names, shown in ((False, shorten(name, 90)), (True, name)):
        lines = table(timings, "mbridge", full_names=full_names).splitlines()
        assert lines[-1].split()[0] == shown
        assert len(lines[-1]) == len(lines[3]) == len(shown) + 75


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
    assert Path(success.pop("log")).name == "log"
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


# The command in this process


def test_what_is_wrong_and_what_to_know_go_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], texts: Texts
) -> None:
    (tmp_path / "log-again.out").write_text(mbridge_log(range(1, 31)) + mbridge_log(range(21, 51)))
    (tmp_path / "log-bad.out").write_text(mbridge_log(range(1, 21)))
    assert parser.main(["mbridge", str(tmp_path), "--format", "CSV"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].startswith("experiment,status,time_mean_ms,")
    assert len(printed.err.splitlines()) == 2
    texts(printed.err)


@pytest.mark.parametrize(
    ("engine", "option", "script"),
    [("mbridge", "--help", "_mbridge.sh"), ("nemo", "-h", "parse_train_timing.sh")],
)
def test_help_shows_the_scripts_name_its_window_and_its_statuses(engine, option, script, capsys):
    assert parser.main([engine, option]) == 0
    text = capsys.readouterr().out
    style = STYLES["mbridge" if engine == "mbridge" else "nemo"]
    first = text.splitlines()[0]
    assert first.startswith("usage: parse_train_timing")
    assert first.endswith(f"{script} [FOLDER] [options]")
    assert f"step time ({style.unit})" in text
    assert f"over iterations {style.window}, for\nevery run" in text, "as it is written, not wrapped anew"
    assert f"other iterations, both included (default: {style.window})" in text
    assert "--format table|csv|json" in text
    assert "Exit status: 0 no run is Failed or Incomplete" in text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bridge"],
        ["nemo", "--wndow", "1-5"],
        ["nemo", "--fromat=csv"],
        ["nemo", "--full-name"],
        ["nemo", "--full-names=yes"],
        ["nemo", "--window"],
        ["nemo", "--format", "tabel"],
        ["nemo", "a", "b"],
        ["nemo", "nowhere"],
        ["nemo"],
        ["nemo", "."],
        ["nemo", "--window", "35"],
        ["nemo", "--window", "9-8"],
    ],
)
def test_a_wrong_request_says_what_to_do(arguments, tmp_path, monkeypatch, capsys, texts: Texts):
    monkeypatch.chdir(tmp_path)
    assert parser.main(arguments) == 2
    said = capsys.readouterr().err
    texts(said)


def test_the_table_comes_before_what_is_said_of_it(tmp_path: Path) -> None:
    """Also where both go into one file."""
    (tmp_path / "log-bad.out").write_text(mbridge_log(range(1, 21)))
    done = subprocess.run(
        [sys.executable, "-m", "llmb_common.runs.timing.cli", "mbridge", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["bad", "bad:"]


def test_a_name_is_cut_in_its_middle() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abc...hijk"
    assert shorten("abcdefghijkl", 11) == "abcd...ijkl"


def test_hostile_paths_are_harmless_in_json(tmp_path: Path, texts: Texts) -> None:
    log = tmp_path / "a\x1b[31m" / "log-x.out"
    log.mkdir(parents=True)
    text = table([analyse(RunFiles("x", None, log), STYLES["mbridge"].window)], "mbridge", "json")
    (run,) = json.loads(text)["runs"]
    assert run["reason"] == "unreadable_log"
    assert "\x1b" not in run["message"]
    assert "\x1b" not in run["log"]
    texts(run["message"])
