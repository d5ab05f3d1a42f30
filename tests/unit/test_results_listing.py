"""Plain results: the verdict of each group first, then its runs and what differs, then the next step."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replaced

from llmb_common.results.level import CONFIDENCE
from llmb_common.runs.record import RunRecord
from llmb_run.actions import results
from support.cli import Cli
from support.iteration_logs import mbridge_line, nemo_log
from support.next_lines import next_lines
from support.runs import PUBLISHED, ROOT, make_run, steady_log
from support.texts import Texts

OWN = {"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:25.09.00"}
"""The software of the published run, of 5.74147 s."""
SMOKE = {"GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2", "CLUSTER_TYPE": "local"}


def run_of(cli: Cli, milliseconds: float, number: int = 101, **evidence: Any) -> RunRecord:
    record = make_run(cli.install, log=steady_log(milliseconds), variables=PUBLISHED | OWN, job_id=str(number))
    record = replace(record, manifest={**record.manifest, "job": {"evidence": {"nodes": 1, **evidence}}})
    record.save()
    return record


def next_of(cli: Cli) -> str:
    """The command that plain results end with, which is JSON's too; the reason is said where there is room for it."""
    (line,) = next_lines(cli("results", COLUMNS="300").out)
    command, _, why = line.partition("  # ")
    assert cli("results", "--json").data["next"] == {"command": command, "why": why}
    return command


def rows_of(cli: Cli, *arguments: str) -> dict[str, list[str]]:
    """The cells of each configuration, by its name."""
    lines = cli("results", *arguments).out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("configuration "))
    rows = (re.split("  +", line) for line in lines[first + 1 :])
    columns = len(re.split("  +", lines[first]))
    return {row[0]: row[1:] for row in itertools.takewhile(lambda row: len(row) == columns, rows)}


def test_the_conclusion_comes_first_and_then_one_line_for_all_repeats(cli: Cli, texts: Texts) -> None:
    for number in range(5):
        run_of(cli, 5741.47, 101 + number)
    done = cli("results")
    first, head, row, *_ = done.out.splitlines()
    texts(first)
    assert head.split()[0] == "configuration"
    assert re.split("  +", row)[-2:] == ["OPEN", "5"]
    assert done.err == "", "notes are counted, and the weightiest stand there"
    data = cli("results", "--json").data
    assert len(data["groups"][0]["run_ids"]) == len(data["runs"]) == 5


def test_a_run_has_one_step_time_in_every_table(cli: Cli) -> None:
    usual, slow = (mbridge_line(50, milliseconds=milliseconds) for milliseconds in (5741.47, 9741.47))
    run = make_run(cli.install, log=steady_log(5741.47).replace(usual, slow), variables=PUBLISHED | OWN).paths.run_id
    (row,) = runs_of(cli, "--last", "1")
    (job,) = cli("jobs").out.splitlines()[1:]
    for cells in (row.split(), job.split()):
        assert "5.741" in cells
    assert re.search(r"\b5\.741 s\b", cli("show", run).out)
    (group,) = cli("results", "--json").data["groups"]
    compared = f"{5.74147 * (1 + group['difference']):.3f}"
    assert compared == "5.841", "the stall is in what is compared"
    assert compared in rows_of(cli)["llama3.1 405b fp8 on 128 gb200"]
    assert f" {compared} " in cli("results", "--group").out
    (line,) = cli("jobs", "--json").data["runs"]
    assert line["step_seconds"] == pytest.approx(9.74147), "programs have that of the last step, as before"


def test_a_smoke_test_has_no_tflops_of_zero_and_no_days(cli: Cli, texts: Texts) -> None:
    smoke = make_run(cli.install, log=steady_log(100, tflops=0.0), variables=SMOKE, job_id=None)
    shown = cli("results", "--runs", COLUMNS="300").out
    assert "days" not in shown
    assert "TFLOPS" not in shown
    assert " 0.0" not in shown.replace(" 0.00", " 0.0")
    assert cli("results", "--json").data["runs"][0]["days_1t"] > 0
    texts(cli("show", smoke.paths.run_id).out, about="not compared")


def test_an_interval_as_wide_as_the_step_time_says_that_there_are_too_few_runs(cli: Cli) -> None:
    for number, milliseconds in enumerate((57, 5741.47, 80000)):
        run_of(cli, milliseconds, 101 + number)
    for words in ((), ("--notes",), ("--group",), ("--rank",)):
        out = cli("results", *words, COLUMNS="300").out
        assert "too few" in out, words
        assert not re.search("[0-9]{4,}[.][0-9] ?%", out), words
    (item,) = cli("results", "--json").data["groups"]
    assert item["interval"] > 1, "programs get the number"


def test_a_ranking_outlives_the_recipe_of_its_fastest_run(cli: Cli, tmp_path: Path) -> None:
    run_of(cli, 5741.47)
    assert "its command: " in cli("results", "--rank").out
    shutil.copytree(ROOT / "grok1", tmp_path / "clone" / "grok1")
    out = cli("results", "--rank", LLMB_REPO=str(tmp_path / "clone")).out
    assert "fastest" in out
    assert "its command: " not in out


def test_a_copy_of_a_run_is_no_repeat(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    run = run_of(cli, 5741.47)
    copy = shutil.copytree(run.paths.experiments, tmp_path / "backup" / "experiments") / run.paths.folder.relative_to(
        run.paths.experiments
    )
    done = cli("results", "--json", str(copy), run.paths.run_id, str(run.paths.folder))
    assert done.data["groups"][0]["run_ids"] == [run.paths.run_id]
    assert [item["folder"] for item in done.data["runs"]] == [str(run.paths.folder)]
    texts(done.err)


def runs_of(cli: Cli, *arguments: str) -> list[str]:
    """The lines of single runs."""
    lines = cli("results", "--runs", *arguments).out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("run "))
    return lines[first + 1 : lines.index("", first)]


def test_at_most_fifty_runs_are_listed_and_all_are_judged(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    assert results.MOST == 50
    monkeypatch.setattr(results, "MOST", 3)
    runs = [run_of(cli, 5741.47, 101 + number) for number in range(5)]
    newest = [run.paths.run_id for run in reversed(runs)]
    assert [row.split()[0] for row in runs_of(cli)[:-1]] == newest[:3]
    texts(runs_of(cli)[-1])
    assert [row[-1] for row in rows_of(cli).values()] == ["5"]
    assert cli("results", "--timing").out.count("Success") == 3, "in the documented table too"
    assert [row.split()[0] for row in runs_of(cli, "--all")] == newest
    assert [row.split()[0] for row in runs_of(cli, "--last", "4")[:-1]] == newest[:4]
    assert [row.split()[0] for row in runs_of(cli, "--limit", "5")] == newest, "whoever asks for five gets five"
    assert len(cli("results", "--json").data["runs"]) == 5


def test_remarks_are_those_of_the_runs_that_are_listed(cli: Cli) -> None:
    usual, slow = (mbridge_line(39, milliseconds=milliseconds) for milliseconds in (5741.47, 9741.47))
    spiked = steady_log(5741.47).replace(usual, slow)
    old = make_run(cli.install, log=spiked, variables=PUBLISHED | OWN)
    run_of(cli, 5741.47, 102)
    assert f"- {old.paths.run_id}: " in cli("results", "--notes").out
    assert f"- {old.paths.run_id}: " not in cli("results", "--notes", "--last", "1").out


def test_failures_are_counted_among_the_runs_that_were_looked_at(cli: Cli, texts: Texts) -> None:
    """Two of four failed, and only the two newest are looked at: it is not one of all four."""
    oom = f"{steady_log(5741.47)[:3000]}\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n"
    for at in range(2):
        make_run(cli.install, state="FAILED", log=oom, variables=PUBLISHED | OWN, job_id=f"10{at}")
        run_of(cli, 5741.47, 200 + at)
    texts(cli("results", "--last", "2").out, about=" failed (")
    texts(cli("results").out, about=" failed (")


def test_each_run_has_its_name_its_id_and_what_differs(cli: Cli) -> None:
    old = [run_of(cli, 5741.47, 101 + at, driver="580.82", hosts=["n1", "n2"]) for at in range(2)]
    odd = run_of(cli, 5900, 103, driver="580.95", hosts=["n1", "n7"])
    bad = make_run(cli.install, state="FAILED", log=steady_log(5741.47)[:3000], variables=PUBLISHED | OWN, job_id="109")
    lines = {row.split()[0]: row for row in runs_of(cli, "--full-names")}
    assert lines[odd.paths.run_id].split()[9:] == [odd.paths.name, "driver", "580.95;", "on", "n7"]
    for run in old:
        assert lines[run.paths.run_id].split()[9:] == [run.paths.name]
    assert re.search(rf" {re.escape(bad.paths.name)} +failed: ", lines[bad.paths.run_id])
    assert [lines[run.paths.run_id].split()[8] for run in (*old, odd)] == ["+0.0", "+0.0", "+2.8"]


def test_where_no_value_is_usual_each_run_shows_its_own(cli: Cli) -> None:
    one, other = (run_of(cli, 5741.47, 101 + at, driver=driver) for at, driver in enumerate(("a", "b")))
    lines = {row.split()[0]: row for row in runs_of(cli)}
    assert lines[one.paths.run_id].endswith("  driver a")
    assert lines[other.paths.run_id].endswith("  driver b")


def test_what_nodes_did_not_tell_is_no_difference_and_many_facts_are_counted(cli: Cli) -> None:
    for at in range(3):
        run_of(cli, 5741.47, 101 + at, driver="a", kernel="k", cuda="c", nccl="n", hosts=["n1"])
    silent = run_of(cli, 5741.47, 105)
    odd = run_of(cli, 5741.47, 106, driver="A" * 60, kernel="K", cuda="C", nccl="N", hosts=["n1"])
    lines = {row.split()[0]: row for row in cli("results", "--runs", COLUMNS="300").out.splitlines() if row}
    assert lines[silent.paths.run_id].endswith(silent.paths.name[-20:])
    assert lines[odd.paths.run_id].endswith(f"driver {'A' * 38}...; cuda C; kernel K; 1 more")


def test_runs_of_a_baseline_are_marked(cli: Cli, texts: Texts) -> None:
    good = [run_of(cli, 5741.47, 101 + at).paths.run_id for at in range(3)]
    cli("baseline", "set", *good)
    later = run_of(cli, 5741.47, 104).paths.run_id
    lines = {row.split()[0]: row for row in runs_of(cli)}
    assert [lines[run].endswith("baseline") for run in (*good, later)] == [True, True, True, False]
    texts(cli("results", "--group").out)


# What next


def test_repeats_until_the_answer_is_known(cli: Cli) -> None:
    run = run_of(cli, 5741.47)
    (found,) = cli("results", "--group", "--json").data["groups"]
    assert (found["more_runs"], found["other_days"]) == (2, True)
    assert next_of(cli) == f"llmb-run retry {run.paths.run_id} --repeats 2 --spread 2"


def test_a_single_run_is_repeated_before_anything_is_said_of_how_many_it_takes(cli: Cli) -> None:
    run = run_of(cli, 5741.47 * 1.03)
    assert next_of(cli).startswith(f"llmb-run retry {run.paths.run_id} --repeats 2")
    run_of(cli, 5741.47 * 1.03, 102)
    assert next_of(cli).startswith(f"llmb-run retry {run.paths.run_id} --repeats 1"), "one waits for the next look"


def test_a_failed_run_is_looked_at_first(cli: Cli) -> None:
    run_of(cli, 5741.47)
    bad = make_run(cli.install, state="FAILED", log=steady_log(5741.47)[:3000], variables=PUBLISHED | OWN)
    assert next_of(cli) == f"llmb-run show {bad.paths.run_id}"
    assert f"run {bad.paths.run_id} has no result: it failed." in cli("report").out


def test_a_short_try_beside_a_measured_run_is_no_trouble(cli: Cli) -> None:
    measured = run_of(cli, 5741.47)
    make_run(cli.install, log=steady_log(5741.47, steps=20), variables=PUBLISHED | OWN | {"MAX_STEPS": "20"})
    (line,) = rows_of(cli).values()
    assert re.findall(r"\d+", line[-1]) == ["2", "1"], "of which are too short"
    assert next_of(cli).startswith(f"llmb-run retry {measured.paths.run_id} ")


def test_an_old_failure_of_what_passes_is_left_alone(cli: Cli) -> None:
    make_run(cli.install, state="FAILED", log=steady_log(5741.47)[:3000], variables=PUBLISHED | OWN)
    runs = [run_of(cli, 5300, 102 + at).paths.run_id for at in range(5)]
    command = next_of(cli)
    assert command.startswith("llmb-run baseline set ")
    assert set(command.split()[3:]) == set(runs)
    assert cli(*shlex.split(command)[1:]).status == 0
    for at in range(5):
        run_of(cli, 4900, 110 + at)
    assert next_of(cli) == "llmb-run results --history"


@pytest.mark.parametrize("state", ["CANCELLED", "PREEMPTED"])
def test_what_was_stopped_is_started_again_unless_a_later_run_has_succeeded(cli: Cli, state: str) -> None:
    variables = PUBLISHED | {"JOB_TOTAL_GPUS": "256"}
    stopped = make_run(cli.install, state=state, log=steady_log(6000)[:3000], variables=variables)
    assert next_of(cli) == f"llmb-run retry {stopped.paths.run_id}"
    runs = {make_run(cli.install, log=steady_log(6000 + at), variables=variables).paths.run_id for at in range(3)}
    command = next_of(cli)
    assert command.startswith("llmb-run baseline set ")
    assert set(command.split()[3:]) == runs


def test_of_what_is_too_slow_the_slowest_run_is_shown(cli: Cli) -> None:
    runs = [run_of(cli, milliseconds, 101 + at) for at, milliseconds in enumerate((7000, 7100, 7050))]
    assert next_of(cli) == f"llmb-run show {runs[1].paths.run_id}"


def test_too_close_to_the_limit_is_a_report(cli: Cli) -> None:
    for number in range(3):
        run_of(cli, 5741.47 * 1.05, 101 + number)
    assert next_of(cli) == "llmb-run report --html report.html"


def test_without_a_reference_three_runs_make_one(cli: Cli) -> None:
    variables = PUBLISHED | {"JOB_TOTAL_GPUS": "256"}
    runs = [make_run(cli.install, log=steady_log(6000), variables=variables)]
    assert next_of(cli) == f"llmb-run retry {runs[0].paths.run_id} --repeats 2"
    runs += [make_run(cli.install, log=steady_log(6000 + at), variables=variables) for at in range(2)]
    assert set(next_of(cli).split()[3:]) == {run.paths.run_id for run in runs}


def test_runs_that_are_the_baseline_are_not_made_one_again(cli: Cli) -> None:
    variables = PUBLISHED | {"JOB_TOTAL_GPUS": "256"}
    runs = [make_run(cli.install, log=steady_log(6000 + at), variables=variables) for at in range(3)]
    command = next_of(cli)
    assert command.startswith("llmb-run baseline set ")
    assert cli(*shlex.split(command)[1:]).status == 0
    assert next_of(cli).startswith("llmb-run retry ")
    assert next_of(cli).split()[2] in {run.paths.run_id for run in runs}


def test_a_baseline_of_too_few_runs_is_named(cli: Cli) -> None:
    cli("baseline", "set", run_of(cli, 5741.47).paths.run_id)
    run_of(cli, 5741.47, 102)
    assert next_of(cli) == "llmb-run baseline list"


def test_runs_that_have_not_ended_are_waited_for(cli: Cli) -> None:
    run_of(cli, 5741.47)
    live = make_run(cli.install, state="RUNNING", variables=PUBLISHED | OWN, job_id="102")
    assert next_of(cli) == f"llmb-run wait {live.paths.run_id}"


def test_what_is_never_judged_is_shown(cli: Cli) -> None:
    smoke = make_run(cli.install, log=steady_log(100), variables=SMOKE, job_id=None)
    assert next_of(cli) == f"llmb-run show {smoke.paths.run_id}"


def test_logs_of_others_are_listed_without_a_verdict(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "log-old.out").write_text(nemo_log())
    assert rows_of(cli, str(folder)) == {"old": ["2.693", "NOT COMPARED", "1"]}
    out = cli("results", folder, "--runs", "--timing").out
    texts(out, about="Analysis")
    assert next_lines(out) == ["llmb-run list  # lists what can be run"]


def test_the_most_urgent_group_is_next_and_not_the_newest(cli: Cli) -> None:
    slow = run_of(cli, 7000)
    for at in range(3):
        make_run(
            cli.install, log=steady_log(6000), variables=PUBLISHED | {"JOB_TOTAL_GPUS": "256"}, job_id=str(200 + at)
        )
    assert next_of(cli) == f"llmb-run show {slow.paths.run_id}"


def test_a_retry_may_be_repeated(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmb_run.starting import submitting

    run = run_of(cli, 5741.47)
    started: list[int] = []
    monkeypatch.setattr(submitting, "_submit_all", lambda jobs, options: started.append(len(jobs)) or [])
    assert cli("retry", run.paths.run_id, "--repeats", "3").status == 0
    assert started == [3]


def test_repeats_on_other_days_begin_after_the_day_of_the_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    from llmb_run.starting import submitting

    def days(run: RunRecord, repeats: int, spread: int) -> list[int]:
        started: list[Any] = []
        monkeypatch.setattr(submitting, "_submit_all", lambda jobs, options: started.extend(jobs) or [])
        words = ("--repeats", f"{repeats}", "--spread", f"{spread}")
        assert cli("retry", run.paths.run_id, *words).status == 0
        begins = [dict(job.plan.scheduler.additional).get("begin") for job in started]
        return [round((_time_of(begin) - time.time()) / 86400) if begin else 0 for begin in begins]

    today = run_of(cli, 5741.47)
    assert (days(today, 3, 3), days(today, 4, 2), days(today, 2, 1)) == ([1, 2, 3], [1, 1, 2, 2], [1, 1])
    before = replace(today, states=tuple(replaced(item, time=item.time - 3 * 86400) for item in today.states))
    before.save()
    assert days(before, 3, 3) == [0, 1, 2]
    local = make_run(cli.install, log=steady_log(100), variables=SMOKE, job_id=None)
    done = cli("retry", local.paths.run_id, "--repeats", "2", "--spread", "2")
    assert done.status == 2
    texts(done.err)


def _time_of(begin: str) -> float:
    return time.mktime(time.strptime(begin, "%Y-%m-%dT%H:%M:%S"))


@pytest.mark.parametrize("page", ["docs/verdicts.md", "docs/reports.md", "cli/README.md"])
def test_no_page_states_another_confidence(page: str) -> None:
    """All intervals are a verdict's: ``CONFIDENCE``."""
    stated = re.findall(r"([0-9.]+) % interval", " ".join((ROOT / page).read_text().split()))
    assert set(stated) <= {f"{100 * CONFIDENCE:.1f}"}


def test_a_new_failure_of_what_passes_is_looked_at(cli: Cli) -> None:
    for at in range(3):
        run_of(cli, 4900, 102 + at)
    bad = make_run(cli.install, state="FAILED", log=steady_log(5741.47)[:3000], variables=PUBLISHED | OWN)
    assert next_of(cli) == f"llmb-run show {bad.paths.run_id}"
