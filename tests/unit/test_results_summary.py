"""The first screen of results: the answer first, on one screen, and what follows from it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cli import Cli
from support.customer_site import make_customer_site
from support.next_lines import next_lines
from support.report_site import DAY, START, dated, make_site, noisy_log
from support.runs import PUBLISHED, cut_log, make_run, steady_log
from support.slow_site import LARGE, SLOW_NODE, make_slow_site
from support.texts import Texts

SCREEN = 15
SMOKE = {"CLUSTER_TYPE": "local", "GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"}


def screen(cli: Cli, *arguments: str, columns: int = 80) -> list[str]:
    return cli("results", *arguments, COLUMNS=str(columns)).out.splitlines()


def notes_of(lines: list[str]) -> list[str]:
    """Each note as one line."""
    found: list[str] = []
    for line in lines:
        if line.startswith("- "):
            found.append(line[2:])
        elif line.startswith("  ") and found:
            found[-1] += f" {line.strip()}"
    return found


def test_a_node_that_all_slow_runs_share_comes_before_everything_else(cli: Cli, texts: Texts) -> None:
    make_slow_site(cli.install)
    lines = screen(cli)
    assert len(lines) <= SCREEN
    conclusion = " ".join(lines[:2])
    texts(conclusion)
    first, *others = notes_of(lines)
    assert all(figure in first for figure in (SLOW_NODE, "5 runs", "10.88 s", "10.00 s", "hot"))
    assert len(others) <= 2
    assert sum(SLOW_NODE in note for note in others) == 0, "it is said once"
    (command,) = next_lines("\n".join(lines))
    assert shlex.split(command)[:4] == ["llmb-run", "exclude", "add", SLOW_NODE]
    assert all(len(line) <= 80 for line in lines if not line.startswith("next: "))

    every = notes_of(screen(cli, "--notes"))
    (count,) = re.findall(r"--notes \(([0-9]+)\)", lines[-1])
    assert len(every) == int(count) > len(others) + 1

    assert cli(*shlex.split(command, comments=True)[1:]).status == 0
    after = screen(cli)
    assert "held back" not in " ".join(after[:2]), "what is excluded needs no other answer"
    assert next_lines("\n".join(after))[0].split()[1] != "exclude"


@pytest.mark.parametrize("columns", [80, 120])
def test_eighteen_runs_of_seven_configurations_are_one_screen(cli: Cli, columns: int, texts: Texts) -> None:
    assert len(make_site(cli.install)) == 18
    lines = screen(cli, columns=columns)
    assert len(lines) <= SCREEN
    texts(lines[0])
    head = next(at for at, line in enumerate(lines) if line.startswith("configuration "))
    rows = lines[head + 1 : head + 8]
    assert len({re.split("  +", row)[0] for row in rows}) == 7, "each has a name of its own"
    assert all(len(line) <= columns for line in lines if not line.startswith("next: "))
    assert ("ref. s" in lines[head]) is (columns == 120), "more columns where there is room"


def test_many_configurations_are_bounded_and_all_can_be_seen(cli: Cli, texts: Texts) -> None:
    for number in range(12):
        variables = PUBLISHED | {"NCCL_ALGO": f"A{number}"}
        make_run(cli.install, log=steady_log(5741.47), variables=variables, job_id=str(number))
    lines = screen(cli)
    assert len(lines) <= SCREEN
    texts("\n".join(lines), about="more configurations")
    assert len([line for line in screen(cli, "--all") if line.startswith("NCCL_ALGO=")]) == 12, "by what differs"


def test_one_log_has_a_conclusion_too(cli: Cli, texts: Texts) -> None:
    run = make_run(cli.install, state="PENDING").paths.run_id
    first, *_ = screen(cli, run)
    texts(first)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_slow_site, make_customer_site, make_site])
def test_the_report_says_the_same_of_a_site(cli: Cli, make: Callable[[Path], object]) -> None:
    """The step time, the verdict, the slow node and what is next; and step time, reference and difference agree."""
    make(cli.install)
    lines = screen(cli, columns=200)
    head = next(at for at, line in enumerate(lines) if line.startswith("configuration "))
    names = re.split("  +", lines[head])
    cells = [re.split("  +", line) for line in lines[head + 1 :]]
    rows = [dict(zip(names, row, strict=True)) for row in cells if len(row) == len(names)]
    assert rows
    for row in rows:
        step, reference = float(row["step s"]), float(row["ref. s"])
        share = float(row["vs. ref."].removesuffix(" %")) / 100
        assert step / reference - 1 == pytest.approx(share, abs=0.0015)

    answer = cli("report", "--json").data["report"]["answer"]
    assert answer["figure"].split()[0] == f"{float(rows[0]['step s']):.2f}"
    assert answer["word"] == rows[0]["verdict"].removesuffix("*")
    (command,) = next_lines("\n".join(lines))
    assert shlex.split(command, comments=True) == shlex.split(answer["command"])
    assert answer["todo"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "word", "status"),
    [
        ({"log": steady_log(100.0, steps=20), "variables": PUBLISHED | {"MAX_STEPS": "20"}}, "TOO SHORT", 0),
        ({"log": cut_log(5741.0), "state": "FAILED"}, "FAILED", 1),
        ({"log": cut_log(5741.0), "state": "CANCELLED"}, "CANCELLED", 1),
        ({"state": "CANCELLED"}, "CANCELLED", 1),
        ({"log": cut_log(5741.0), "state": "PREEMPTED"}, "PREEMPTED", 1),
        ({"state": "NOT_SUBMITTED", "job_id": None}, "NOT SUBMITTED", 1),
        ({"state": "PENDING"}, "WAITING", 0),
        ({"log": cut_log(5741.0), "state": "RUNNING"}, "RUNNING", 0),
        ({"log": steady_log(100.0, tflops=0.0), "variables": SMOKE, "job_id": None}, "NOT COMPARED", 0),
        ({"log": steady_log(6000.0), "variables": PUBLISHED | {"JOB_TOTAL_GPUS": "256"}}, "NO REFERENCE", 0),
    ],
)
def test_each_state_has_one_word_and_one_exit_status(cli: Cli, made: dict[str, Any], word: str, status: int) -> None:
    run = make_run(cli.install, **made).paths.run_id
    shown = cli("results", run, COLUMNS="80")
    assert shown.out.splitlines()[0].endswith(f": {word}")
    assert shown.status == status
    told = cli("report", run, "--json")
    assert told.status == status
    (group,) = told.data["report"]["groups"]
    (of_run,) = told.data["report"]["runs"]
    assert group["word"].upper() == word
    assert of_run["result"]["outcome"] == (word.lower() if word not in ("NOT COMPARED", "NO REFERENCE") else "measured")
    assert told.data["report"]["answer"]["word"] == ("FAIL" if word == "FAILED" else "OPEN")
    junit = cli("report", run, "--junit", "-").out
    assert ("<error" in junit) is (status == 1)
    said = cli("why", run)
    assert (said.status, f"{run}  {word}" in said.out) == (0, word not in ("NOT COMPARED", "NO REFERENCE"))


@pytest.mark.parametrize(("slower", "noted"), [(1.05, True), (1.0, False)])
def test_runs_since_the_last_look_that_are_slower_are_the_first_note(
    cli: Cli, texts: Texts, slower: float, noted: bool
) -> None:
    """The verdict rests on the first ten runs; five more would not be looked at until there are ten more."""
    for number in range(15):
        log = noisy_log(10.0 * (slower if number >= 10 else 1.0), seed=number, work=7353.0)
        dated(make_run(cli.install, variables=LARGE, log=log, job_id=str(100 + number)), START + number * DAY)
    lines = screen(cli, columns=200)
    assert "15, 10 judged" in "\n".join(lines)
    notes = notes_of(lines)
    assert any("newest runs" in note for note in notes) is noted
    if noted:
        assert "5 newest runs" in notes[0]
        texts(re.sub(r"[\d.]+ ± [\d.]+", "X ± Y", notes[0]))
    (group,) = cli("results", "--json").data["groups"]
    assert group["later_difference"] == (pytest.approx(0.05, abs=0.01) if noted else None)
    also = cli("report", "--json").data["report"]["answer"]["also"]
    assert any("newest runs" in sentence for sentence in also) is noted


def test_names_of_nodes_lose_their_domain_except_in_the_command(cli: Cli) -> None:
    make_customer_site(cli.install)
    lines = screen(cli)
    assert len(lines) <= SCREEN
    (command,) = next_lines("\n".join(lines))
    node = shlex.split(command)[3]
    name, _, domain = node.partition(".")
    assert domain.count(".") > 1
    assert re.search(rf"\b{re.escape(name)},", " ".join(lines))
    assert sum(domain in line for line in lines) == 1


def test_a_run_that_has_not_begun_is_not_of_unknown_software(cli: Cli, texts: Texts) -> None:
    ran = f'LLMB manifest: {{"torch": "2.9"}}\n{steady_log(400)}'
    make_run(cli.install, log=ran, variables=SMOKE)
    make_run(cli.install, log="", variables=SMOKE, job_id="102", state="RUNNING")
    said = "\n".join(screen(cli))
    texts(said, about="software")
