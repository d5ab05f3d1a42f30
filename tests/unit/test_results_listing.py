"""Plain results: the verdict of each group first, then its runs and what differs, then the next step."""

from __future__ import annotations

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
from llmb_run.commands import results
from support.cli import Cli
from support.iteration_logs import mbridge_line, nemo_log
from support.runs import PUBLISHED, ROOT, make_run, steady_log

OWN = {"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:25.09.00"}
"""The software of the published run, of 5.74147 s."""
SMOKE = {"GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2", "CLUSTER_TYPE": "local"}


def run_of(cli: Cli, milliseconds: float, number: int = 101, **evidence: Any) -> RunRecord:
    record = make_run(cli.install, log=steady_log(milliseconds), variables=PUBLISHED | OWN, job_id=str(number))
    record = replace(record, manifest={**record.manifest, "job": {"evidence": {"nodes": 1, **evidence}}})
    record.save()
    return record


def next_of(cli: Cli) -> str:
    """The command that plain results end with, which is JSON's too."""
    (*_, line) = cli("results").out.splitlines()
    word, _, text = line.partition(": ")
    command, _, why = text.partition("  # ")
    assert word == "next"
    assert cli("results", "--json").data["next"] == {"command": command, "why": why}
    return command


def test_the_verdict_over_all_repeats_comes_first(cli: Cli) -> None:
    for number in range(5):
        run_of(cli, 5741.47, 101 + number)
    done = cli("results")
    head, verdict, empty, *_ = done.out.splitlines()
    assert head.split()[:3] == ["configuration", "software", "runs"]
    assert verdict.split()[8:10] == ["nemo:25.09.00", "5"]
    assert ", equal ± " in verdict
    assert not empty
    assert done.out.count(", equal ± ") == 1, "one verdict, and not five"
    data = cli("results", "--json").data
    assert len(data["groups"][0]["run_ids"]) == len(data["runs"]) == 5


def test_a_copy_of_a_run_is_no_repeat(cli: Cli, tmp_path: Path) -> None:
    run = run_of(cli, 5741.47)
    copy = shutil.copytree(run.paths.experiments, tmp_path / "backup" / "experiments") / run.paths.folder.relative_to(
        run.paths.experiments
    )
    done = cli("results", "--json", str(copy), run.paths.run_id, str(run.paths.folder))
    assert done.data["groups"][0]["run_ids"] == [run.paths.run_id]
    assert [item["folder"] for item in done.data["runs"]] == [str(run.paths.folder)]
    assert f"{copy} is a copy of {run.paths.folder}: the run counts once" in done.err


def rows_of(cli: Cli, *arguments: str) -> list[str]:
    """The lines of single runs in the last table."""
    lines = cli("results", *arguments).out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("run "))
    return lines[first + 1 : lines.index("", first)]


def test_at_most_fifty_runs_are_listed_and_all_are_judged(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert results.MOST == 50
    monkeypatch.setattr(results, "MOST", 3)
    runs = [run_of(cli, 5741.47, 101 + number) for number in range(5)]
    newest = [run.paths.run_id for run in reversed(runs)]
    assert [row.split()[0] for row in rows_of(cli)[:-1]] == newest[:3]
    assert rows_of(cli)[-1] == "2 runs not listed: --all lists everything"
    assert cli("results").out.splitlines()[1].split()[9] == "5"
    assert cli("results").out.count("Success") == 3, "in the documented table too"
    assert [row.split()[0] for row in rows_of(cli, "--all")] == newest
    assert [row.split()[0] for row in rows_of(cli, "--last", "4")[:-1]] == newest[:4]
    assert [row.split()[0] for row in rows_of(cli, "--limit", "5")] == newest, "whoever asks for five gets five"
    assert len(cli("results", "--json").data["runs"]) == 5


def test_remarks_are_those_of_the_runs_that_are_listed(cli: Cli) -> None:
    usual, slow = (mbridge_line(39, milliseconds=milliseconds) for milliseconds in (5741.47, 9741.47))
    spiked = steady_log(5741.47).replace(usual, slow)
    old = make_run(cli.install, log=spiked, variables=PUBLISHED | OWN)
    run_of(cli, 5741.47, 102)
    assert old.paths.name in cli("results").err
    assert old.paths.name not in cli("results", "--last", "1").err


def test_each_run_has_its_name_its_id_and_what_differs(cli: Cli) -> None:
    old = [run_of(cli, 5741.47, 101 + at, driver="580.82", hosts=["n1", "n2"]) for at in range(2)]
    odd = run_of(cli, 5900, 103, driver="580.95", hosts=["n1", "n7"])
    bad = make_run(cli.install, state="FAILED", log=steady_log(5741.47)[:3000], variables=PUBLISHED | OWN, job_id="109")
    lines = {row.split()[0]: row for row in rows_of(cli, "--full-names")}
    assert lines[odd.paths.run_id].split()[10:] == [odd.paths.name, "driver", "580.95;", "on", "n7"]
    for run in old:
        assert lines[run.paths.run_id].split()[10:] == [run.paths.name]
    assert re.search(rf" {re.escape(bad.paths.name)} +Failed: ", lines[bad.paths.run_id])
    assert [lines[run.paths.run_id].split()[9] for run in (*old, odd)] == ["+0.0", "+0.0", "+2.8"]


def test_where_no_value_is_usual_each_run_shows_its_own(cli: Cli) -> None:
    one, other = (run_of(cli, 5741.47, 101 + at, driver=driver) for at, driver in enumerate(("a", "b")))
    lines = {row.split()[0]: row for row in rows_of(cli)}
    assert lines[one.paths.run_id].endswith("  driver a")
    assert lines[other.paths.run_id].endswith("  driver b")


def test_what_nodes_did_not_tell_is_no_difference_and_many_facts_are_counted(cli: Cli) -> None:
    for at in range(3):
        run_of(cli, 5741.47, 101 + at, driver="a", kernel="k", cuda="c", nccl="n", hosts=["n1"])
    silent = run_of(cli, 5741.47, 105)
    odd = run_of(cli, 5741.47, 106, driver="A" * 60, kernel="K", cuda="C", nccl="N", hosts=["n1"])
    lines = {row.split()[0]: row for row in rows_of(cli)}
    assert lines[silent.paths.run_id].endswith(silent.paths.name[-20:])
    assert lines[odd.paths.run_id].endswith(f"driver {'A' * 38}...; cuda C; kernel K; 1 more")


def test_runs_of_a_baseline_are_marked(cli: Cli) -> None:
    good = [run_of(cli, 5741.47, 101 + at).paths.run_id for at in range(3)]
    cli("baseline", "set", *good)
    later = run_of(cli, 5741.47, 104).paths.run_id
    lines = {row.split()[0]: row for row in rows_of(cli)}
    assert [lines[run].endswith("in the baseline") for run in (*good, later)] == [True, True, True, False]
    assert " 1 (3 in the baseline) " in cli("results").out


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


def test_logs_of_others_are_listed_without_a_verdict(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "log-old.out").write_text(nemo_log())
    out = cli("results", folder).out
    assert out.startswith("Train Step Timing and TFLOPS Analysis (iterations 11-44)\n")
    assert "not an LLMB run: no figures" in out
    assert out.endswith("\nnext: llmb-run list  # what can be run and judged\n")


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


def test_repeats_on_other_days_begin_after_the_day_of_the_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (done.status, "--spread: jobs on this machine start at once" in done.err) == (2, True)


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
