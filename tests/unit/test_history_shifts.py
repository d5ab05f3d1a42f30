"""Since when a configuration is slower, what changed then, and the alarm for cron."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.results.history import (
    ALARM_RATE,
    REPORT_RATE,
    Changed,
    Shift,
    day_prior,
    histories,
    level_changes,
    observed,
)
from llmb_common.results.scatter import STATED, Scatter
from llmb_common.results.steps import StepTime
from llmb_common.runs.index.search import rebuild
from llmb_common.runs.record import RunRecord, State
from llmb_run.results import series
from llmb_run.results.series import shift_text
from support.cli import Cli
from support.runs import PUBLISHED, make_run, steady_log
from support.texts import Texts

DAY = 86400
START = 1793318400.0
"""2026-10-30, midnight (UTC)."""
TITLE = "llama3.1 405b mbridge fp8 (cs) on 128 gb200"
NOISE = (0.001, -0.002, 0.002, 0.0, -0.001, 0.001, -0.002, 0.001)
"""Of one day after the other."""


def told(record: RunRecord, when: float, **evidence: Any) -> RunRecord:
    manifest = {**record.manifest, "utc_offset": 0, "job": {"evidence": {"nodes": 1, **evidence}}}
    return replace(record, states=(State("COMPLETED", when, ""),), manifest=manifest)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("site"), variables={**PUBLISHED, "RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:1"})


def days_of(record: RunRecord, *levels: tuple[int, float, dict[str, Any]]) -> list[tuple[RunRecord, StepTime]]:
    """A run a day: so many at a step time, with what their nodes tell."""
    runs: list[tuple[RunRecord, StepTime]] = []
    for count, seconds, evidence in levels:
        for _ in range(count):
            noise = NOISE[len(runs) % len(NOISE)]
            own = {name: value(len(runs)) if callable(value) else value for name, value in evidence.items()}
            runs.append((told(record, START + DAY * len(runs), **own), StepTime(seconds * (1 + noise), 0.0, 10)))
    return runs


def shifts(runs: list[tuple[RunRecord, StepTime]]) -> tuple[Shift, ...]:
    (history,) = histories(starmap(observed, runs))
    return history.shifts


def test_a_change_is_dated_sized_and_explained(record: RunRecord, texts: Texts) -> None:
    (found,) = shifts(days_of(record, (13, 5.0, {"driver": "580.82"}), (10, 5.25, {"driver": "580.95"})))
    assert found.ratio == pytest.approx(1.05, abs=0.001)
    assert 1.0 < found.low < 1.05 < found.high
    assert found.since == START + 13 * DAY
    assert found.changed == (Changed("driver", "580.82", "580.95"),)
    assert found.stands
    texts(shift_text(found))


def test_what_did_not_stay_or_changes_all_the_time_explains_nothing(record: RunRecord, texts: Texts) -> None:
    before = {"driver": "a", "kernel": lambda day: str(day), "cuda": lambda day: "13" if day % 4 else "12"}
    after = {**before, "driver": lambda day: "b" if day < 15 else "a"}
    (found,) = shifts(days_of(record, (12, 5.0, before), (10, 5.25, after)))
    assert found.changed == ()
    texts(shift_text(found))


def test_a_value_that_did_no_harm_before_explains_nothing(record: RunRecord) -> None:
    before = {"driver": lambda day: "b" if day == 5 else "a"}
    (found,) = shifts(days_of(record, (12, 5.0, before), (10, 5.25, {"driver": "b"})))
    assert found.changed == ()


def test_what_was_undone_with_the_change_explains_both(record: RunRecord, texts: Texts) -> None:
    old, new = {"driver": "a"}, {"driver": "b"}
    first, second = shifts(days_of(record, (10, 5.0, old), (8, 5.4, new), (9, 5.0, old)))
    assert (first.changed, second.changed) == ((Changed("driver", "a", "b"),), (Changed("driver", "b", "a"),))
    assert (first.stands, second.stands) == (False, False)
    texts(shift_text(second))


def test_each_of_several_changes_is_explained_by_what_separates_the_two_levels_at_it(record: RunRecord) -> None:
    """What another level has in common with one of the two is no objection; what one of them had for a day is one."""
    kernels = {1: "2", 12: "3", 20: "4"}  # for a day before each change
    harmless = {"kernel": lambda day: kernels.get(day, str(1 + day // 8))}
    undone = {"cuda": lambda day: "12" if day == 20 or day < 16 else "13"}
    levels = [(8, 5.0 + 0.4 * (driver == "b"), {"driver": driver, **harmless, **undone}) for driver in "abab"]
    first, second, third = shifts(days_of(record, *levels))
    assert [found.since for found in (first, second, third)] == [START + day * DAY for day in (8, 16, 24)]
    to, back = Changed("driver", "a", "b"), Changed("driver", "b", "a")
    assert (first.changed, second.changed, third.changed) == ((to,), (back,), (to,))
    assert [found.stands for found in (first, second, third)] == [False, False, True]


def test_a_value_that_the_first_run_had_did_no_harm_and_one_of_the_last_run_undid_nothing(record: RunRecord) -> None:
    runs = days_of(
        record,
        (12, 5.0, {"driver": "a", "kernel": lambda day: "1" if day else "2"}),
        (10, 5.25, {"driver": lambda day: "b" if day < 21 else "c", "kernel": "2"}),
    )
    assert shifts(runs)[0].changed == (Changed("driver", "a", "b"),)


@pytest.mark.parametrize(
    ("drivers", "explains"),
    [("aabb", True), ("aabc", True), ("zabb", True), ("zabc", False)],
    ids=["once", "and the day after", "and the day before", "on three days"],
)
def test_what_changes_with_the_runs_before_and_after_too_explains_nothing(
    record: RunRecord, drivers: str, explains: bool
) -> None:
    """The drivers of the two days before the change and of the first two after it; these go on as they are."""
    driver = {"driver": lambda day: drivers[min(max(day - 10, 0), 3)]}
    (found,) = shifts(days_of(record, (12, 5.0, driver), (10, 5.25, driver)))
    assert found.since == START + 12 * DAY
    assert found.changed == ((Changed("driver", "a", "b"),) if explains else ())


def test_what_nodes_did_not_tell_for_a_while_is_as_they_last_told(record: RunRecord) -> None:
    runs = days_of(record, (9, 5.0, {"driver": "a"}), (1, 5.0, {}), (10, 5.25, {"driver": "b"}))
    assert shifts(runs)[0].changed == (Changed("driver", "a", "b"),)
    (history,) = histories(starmap(observed, runs))
    assert all(not moment.changes for moment in history.moments), "which run brought it, nobody knows"


def test_a_change_on_a_day_that_may_as_well_be_the_one_is_named(record: RunRecord) -> None:
    """The second run of a day is the first with the new driver: that day's mean is between the levels."""
    runs = days_of(record, (10, 5.0, {"driver": "a"}), (10, 5.25, {"driver": "b"}))
    first = told(record, START + 9.5 * DAY, driver="b"), StepTime(5.25, 0.0, 10)
    (found,) = shifts([*runs[:10], first, *runs[10:]])
    assert found.changed == (Changed("driver", "a", "b"),)


def test_days_count_and_not_runs(record: RunRecord) -> None:
    """Twenty runs of two evenings, on which they went on past midnight, share what the evenings were like."""
    evenings = [
        (told(record, START + DAY * (at // 10) + 3600 * (18 + at % 10)), StepTime(5.0 + 0.3 * (at // 10), 0.0, 10))
        for at in range(20)
    ]
    (history,) = histories(starmap(observed, evenings))
    assert (history.shifts, history.days) == ((), 2)


def site(cli: Cli, *levels: tuple[int, float, str]) -> None:
    """A run a day on record: so many at so many milliseconds, with a driver."""
    count = 0
    for days, milliseconds, driver in levels:
        for _ in range(days):
            noise = NOISE[count % len(NOISE)]
            run = make_run(cli.install, log=steady_log(milliseconds * (1 + noise)), job_id=str(100 + count))
            told(run, START + DAY * count, driver=driver).save()
            count += 1
    rebuild(cli.install)


def test_the_alarm_is_one_line_and_a_status(cli: Cli, texts: Texts) -> None:
    site(cli, (10, 5000, "580.82"), (8, 5300, "580.95"))
    done = cli("results", "--history", "--alarm")
    assert done.status == 1
    (line,) = done.out.splitlines()
    texts(line)
    assert done.err == ""
    assert cli("results", "--alarm").out == done.out
    assert cli("results", "--alarm", "--json").data == {"alarms": [line]}
    said = cli("results", "--history")
    assert said.status == 0, "a change alone fails no run"
    assert said.out.startswith(f"{line}\n\nconfiguration ")
    assert len(said.out.splitlines()) == 21
    (history,) = cli("results", "--history", "--json").data["history"]
    assert [shift["stands"] for shift in history["shifts"]] == [True]
    rows = cli("results", "--history", "--format", "csv").out.splitlines()
    cells = [row.rpartition(",")[0].rpartition(",")[0].rpartition(",")[2] for row in rows[1:]]
    assert [place for place, cell in enumerate(cells) if cell] == [10]
    assert float(cells[10]) == pytest.approx(0.06, abs=0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    "levels",
    [
        ((12, 5000.0, "580.82"),),
        ((10, 5300.0, "580.82"), (8, 5000.0, "580.95")),
        ((10, 5000.0, "580.82"), (7, 5300.0, "580.95"), (7, 5000.0, "580.95")),
        ((3, 5000.0, "580.82"),),
    ],
    ids=["nothing changed", "faster", "undone", "too few days"],
)
def test_the_alarm_is_silent(cli: Cli, levels: tuple[tuple[int, float, str], ...]) -> None:
    site(cli, *levels)
    failed = make_run(cli.install, state="FAILED", log=steady_log(5000)[:3000], job_id="900")
    (failed.paths.folder / "run.json").chmod(0o644)
    done = cli("results", "--history", "--alarm")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_an_alarm_is_surer_than_a_report(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    site(cli, (4, 5000, "580.82"))
    rates: list[float] = []
    monkeypatch.setattr(series, "history_lines", lambda found, rate=REPORT_RATE: rates.append(rate) or [])
    cli("results", "--history")
    cli("results", "--alarm")
    assert rates == [REPORT_RATE, ALARM_RATE] == [0.01, 0.002]


def test_the_alarm_says_nothing_of_records_that_cannot_be_read(cli: Cli) -> None:
    site(cli, (4, 5000, "580.82"))
    damaged = make_run(cli.install, log=steady_log(5000), job_id="900").paths.record
    damaged.write_text("{")
    assert cli("results", "--history").err
    done = cli("results", "--alarm")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_the_alarm_refuses_what_it_is_not(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    assert cli("results", "--alarm", "--group").status == 2
    texts(cli("results", "--alarm", "--format", "csv").err)
    assert cli("results", "--alarm").status == 2, "of nothing there is no alarm"


def test_a_sentence_names_three_facts_and_shortens_their_values(texts: Texts) -> None:
    changed = tuple(Changed(name, "x" * 50, "y") for name in "abcde")
    text = shift_text(Shift("r", START, 0.95, 0.94, 0.96, START - DAY, START + DAY, stands=False, changed=changed))
    texts(text)


def test_the_two_values_of_a_change_are_told_apart_however_long_their_paths(texts: Texts) -> None:
    """An installation's images differ in the last part of a path that alone is longer than a sentence has room for."""
    images = "/lustre/projects/benchmarks/llmb/images"
    changed = (
        Changed("image", f"{images}/nvidia+nemo+26.02.01.sqsh", f"{images}/nvidia+nemo+26.04.00.sqsh"),
        Changed("tuning", f"{images}/a/of-all-nodes.xml", f"{images}/b/of-all-nodes.xml"),
        Changed("flags", "x" * 50 + "1", "x" * 50 + "2"),
    )
    texts(shift_text(Shift("r", START, 1.05, 1.04, 1.06, START, START, stands=True, changed=changed)))


def test_a_change_is_dated_by_the_first_runs_of_the_days_in_which_it_may_lie(record: RunRecord) -> None:
    """Two runs a day: it is the days' means that are searched, and the days' first runs that are named."""
    levels = [5.0] * 6 + [5.1, 5.13] + [5.2] * 7
    runs = []
    for day, seconds in enumerate(levels):
        for hour in (9, 17):
            noise = 0.006 * NOISE[(2 * day + hour) % len(NOISE)] / 0.002
            moment = told(record, START + DAY * day + 3600 * hour)
            runs.append((moment, StepTime(seconds * (1 + noise), 0.0, 10)))
    means = [sum(math.log(time.seconds) for _, time in runs[at : at + 2]) / 2 for at in range(0, len(runs), 2)]
    (expected,) = level_changes(means, day_prior(STATED, [2] * len(levels)))
    assert expected.earliest < expected.at or expected.latest > expected.at
    (found,) = shifts(runs)
    starts = [START + DAY * day + 3600 * 9 for day in (expected.at, expected.earliest, expected.latest)]
    assert [found.since, found.earliest, found.latest] == starts
    assert (found.ratio, found.low) == (
        pytest.approx(math.exp(expected.shift)),
        pytest.approx(math.exp(expected.shift - expected.reach)),
    )
    assert found.low * found.high == pytest.approx(found.ratio**2), "as far below as above, as a ratio"
    (history,) = histories(starmap(observed, runs))
    assert (history.days, len(history.moments)) == (15, 30)


def test_how_runs_of_a_configuration_differ_is_asked_of_its_newest_run(record: RunRecord) -> None:
    runs = days_of(record, (3, 5.0, {}))
    newest = replace(runs[-1][0], plan=msgspec.structs.replace(record.plan, image="/a/later.sqsh"))
    asked: list[str] = []

    def scatter_of(configuration: str) -> Scatter:
        asked.append(configuration)
        return STATED

    (history,) = histories(starmap(observed, [(newest, runs[-1][1]), *runs[:-1]]), scatter_of=scatter_of)
    assert asked == [f"{history.key} later.sqsh"]
    assert [item.software for item in history.moments] == ["nemo:1", "nemo:1", "later.sqsh"]
