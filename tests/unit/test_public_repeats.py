"""The published repeats by which LLMB is judged: what is read of their logs, and what the tables count."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from tools import public_repeats
from tools.public_repeats import System, read_run, read_systems

DAY = 86_400.0


def event(key: str, value: object, seconds: float) -> str:
    return ":::MLLOG " + json.dumps({"namespace": "", "time_ms": int(seconds * 1000), "key": key, "value": value})


def stepwise(level: float, source: random.Random, start: float, steps: int = 120) -> str:
    """The log of a run whose steps take ``level`` seconds and scatter by 0.2 %, and whose loss falls."""
    lines = ["NeMo: some other line", event("cache_clear", True, start - 60), event("run_start", None, start)]
    for at in range(steps):
        value = {"train_step_time": level * source.gauss(1, 0.002), "reduced_train_loss": 10 - 4 * at / steps}
        lines.append(f"0: {event('tracked_stats', value, start + at)}")
    return "\n".join(lines)


def submission(folder: Path, system: str, levels: list[float], days: int = 1) -> None:
    source = random.Random(len(levels))
    results = folder / "Someone" / "results" / system / "llama31_8b"
    results.mkdir(parents=True)
    for at, level in enumerate(levels):
        log = stepwise(level, source, start=1_000_000 + DAY * (at % days) + at)
        (results / f"result_{at}.txt").write_text(log)


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> list[System]:
    folder = tmp_path_factory.mktemp("rounds") / "training_results_v9.9"
    submission(folder, "calm", [1.0] * 10, days=2)
    submission(folder, "moody", [1.0] * 7 + [1.06] * 3)
    return read_systems([folder])


def cells(lines: list[str], first: str) -> list[str]:
    """The cells behind ``first`` in the only row that begins with it."""
    (row,) = [line for line in lines if line.startswith(f"| {first}")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_a_log_says_when_it_began_and_how_long_steps_took() -> None:
    value = {"train_step_time": 0.5, "reduced_train_loss": 7.25}
    stretch, old = {"train_step_time": 0.25}, {"throughput": 8.0}
    lines = [event("cache_clear", True, 5), event("run_start", None, 9), "1: noise :::MLLOG {broken"]
    lines += [event("tracked_stats", item, 10) for item in (value, stretch, old, {"validation_time": 3.0})]
    lines.append(event("eval_stats", {"train_step_time": 9.0}, 10))
    run = read_run("\n".join(lines))
    assert run is not None
    assert (run.start, run.steps, run.losses, run.stretches) == (9.0, (0.5,), (7.25,), (0.25, 0.125))
    assert run.time is not None
    assert run.time.seconds == pytest.approx(0.1875)
    assert read_run("no line of MLPerf's\n:::MLLOG []") is None


def test_a_long_run_is_measured_as_one_of_ours() -> None:
    run = read_run(stepwise(2.0, random.Random(1), start=1_000_000))
    assert run is not None
    assert run.time is not None
    assert (run.time.count, run.time.steps) == (10, 40)
    assert run.time.seconds == pytest.approx(2.0, rel=0.003)
    assert run.time.day == "1970-01-12"


def test_repeats_lie_together(systems: list[System]) -> None:
    assert [system.name for system in systems] == [
        f"training_results_v9.9/Someone/{name}/llama31_8b" for name in ("calm", "moody")
    ]
    assert [len(system.runs) for system in systems] == [10, 10]
    assert [system.submitter for system in systems] == ["Someone", "Someone"]
    assert len({time.day for time in systems[0].times}) == 2


@pytest.mark.parametrize("benchmark", ["llama2_70b_lora", "llama31_8b", "llama31_405b"])
def test_each_benchmark_is_read(tmp_path: Path, benchmark: str) -> None:
    submission(tmp_path, "calm", [1.0] * 3)
    (tmp_path / "Someone/results/calm/llama31_8b").rename(tmp_path / "Someone/results/calm" / benchmark)
    assert [system.benchmark for system in read_systems([tmp_path])] == [benchmark]


def test_a_record_is_that_of_the_submitters_other_systems(systems: list[System]) -> None:
    calm, moody = systems
    with_record = dict(public_repeats._by_record(systems))["yes"]
    assert [times for times, _ in with_record] == [calm.times, moody.times]
    assert dict(public_repeats._by_record([calm, moody._replace(submitter="Else")]))["yes"] == []


def test_scatter_is_that_of_the_runs(systems: list[System]) -> None:
    lines = list(public_repeats.scatter_table(systems, random.Random(1)))
    count, runs, between, several, _ = cells(lines, "llama31_8b")
    assert (count, runs, several) == ("2", "20", "1")
    largest = float(between.split(", ")[2])
    assert largest == pytest.approx(100 * math.log(1.06) * math.sqrt(10 / 9 * 0.21), rel=0.1)


def test_a_difference_between_the_first_and_the_last_runs_is_counted(systems: list[System]) -> None:
    lines = list(public_repeats.comparisons_table(systems, random.Random(1)))
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| no ")]
    in_order = {count: float(last) for _, count, _, _, last in found}
    assert in_order["1"] == 0.0, "one run a side shows none of 6 %"
    assert in_order["3"] == 50.0, "the last three of one of two systems are slow"


def test_verdicts_on_a_calm_system(systems: list[System]) -> None:
    lines = list(public_repeats.verdicts_table(systems[:1] * 2, random.Random(1)))
    (row,) = [line for line in lines if line.startswith("| no     | one each     | 5")]
    equal, limit, slower = [cell.strip() for cell in row.strip("|").split("|")][3:]
    assert (equal, limit) == ("100.0, 0.0", "0.0, 0.0")
    assert slower.startswith("0.0, ")
    assert float(slower.split(", ")[1]) > 80


def test_the_window_is_held_against_the_rest(systems: list[System]) -> None:
    runs, apart = cells(list(public_repeats.windows_table(systems, random.Random(1))), "llama31_8b")
    assert runs == "20"
    assert float(apart.split(", ")[2]) < 0.3


def test_slow_runs_are_odd_and_none_is_said_not_to_train(systems: list[System]) -> None:
    lines = list(public_repeats.remarks_table(systems, random.Random(1)))
    assert cells(lines, "llama31_8b") == ["20", "0", "0", "1 of 2"]


def test_the_command_prints_the_parts_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submission(tmp_path / "round", "calm", [1.0] * 3)
    monkeypatch.setattr("sys.argv", ["public_repeats", "--part", "windows", str(tmp_path / "round")])
    public_repeats.main()
    printed = capsys.readouterr().out
    assert printed.startswith("windows:\n\n| Benchmark")
    assert "scatter" not in printed
