"""An acceptance campaign from its suite to its evidence, with jobs that are over at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from llmb_common.base.errors import Interrupted
from llmb_common.measured.measure import measure
from llmb_common.nodes.summary import NodeFinding, NodeSummary
from llmb_common.planning.workspace import Workspace
from llmb_common.results.sequential import SuiteAttempt
from llmb_common.submission.many import submit_many
from llmb_run.campaigns import conduct
from llmb_run.campaigns.conduct import attempt_of
from llmb_run.main import main
from support import instant
from support.campaigns import SUITE, Site, runs_of, unpacked, verdicts
from support.cli import Cli
from support.crashes import run_and_crash, start
from support.runs import make_run, steady_log
from support.texts import Texts

# The verdicts


@pytest.mark.slow
def test_a_list_is_a_workload_for_each_of_its_values(site: Site) -> None:
    """Each with a name of its own, runs of its own and a verdict, which the pack's reader finds again."""
    lists = "    set: {tp: [1, 2]}\n    zip: {mbs: [1, 2], NCCL_ALGO: [Ring, Tree]}\n"
    site.suite(100, 120, SUITE.replace('    env: {STEP_MS: "FIRST"}\n', lists).replace("scale: 1,", "scale: 2,"))
    done = site.accept("--json")
    titles = [item["title"].partition(", ")[2] for item in done.data["workloads"]]
    assert titles[:2] == ["mbs=1, tp=1, NCCL_ALGO=Ring", "mbs=2, tp=1, NCCL_ALGO=Tree"]
    assert verdicts(done) == ["pass"] * 4 + ["fail"]
    assert len(instant.accepted()) == sum(runs_of(done))
    assert site("accept", "show", site.campaign, "--json").data["problems"] == []


def test_three_per_cent_slower_passes_after_reruns_and_eight_fails(site: Site, texts: Texts) -> None:
    site.suite(103, 108, SUITE.replace("reruns: 4", "reruns: 25"))
    done = site.accept("--json")
    assert (done.status, verdicts(done)) == (1, ["pass", "fail"])
    texts(done.data["why"])
    passed, failed = done.data["workloads"]
    assert 0.95 < passed["performance_low"] < passed["performance"] == pytest.approx(1 / 1.03, rel=0.005)
    assert failed["performance_high"] < 0.95
    assert {tuple(re.findall(r"\d+", rerun["reason"])) for rerun in passed["reruns"]} <= {("3",)}, "runs, still open"
    text = site.accept().out
    texts(text, about="NOT ACCEPTED")
    for rerun in passed["reruns"] + failed["reruns"]:
        assert rerun["run_id"] in text.partition("reruns (")[2].partition("remarks")[0]


@pytest.mark.parametrize(
    "directed",
    [("NODE_FAIL",), ("CANCELLED",), ("FAILED", "RuntimeError: CUDA error: uncorrectable ECC error encountered")],
    ids=lambda words: words[0],
)
def test_a_run_that_a_node_ended_is_replaced_and_listed(site: Site, directed: tuple[str, ...], texts: Texts) -> None:
    site.suite()
    instant.direct("1.2", *directed)
    done = site.accept("--json")
    assert (done.status, verdicts(done), runs_of(done)) == (0, ["pass", "pass"], [4, 3]), done.err
    (rerun,) = done.data["reruns"]
    assert rerun["reason"] in done.err
    assert (rerun["replaces"], rerun["bad_nodes"]) == (2, []), "this machine's own runs are kept off no node"
    assert rerun["run_id"] == done.data["workloads"][0]["runs"][3]["run_id"]
    texts(done.err, about="a rerun")


@pytest.mark.parametrize(
    ("runs", "ends", "verdict", "count"),
    [
        ([2], ("FAILED", "torch.OutOfMemoryError: CUDA out of memory."), "fail", 3),
        (range(1, 8), ("NODE_FAIL",), "open", 7),
    ],
    ids=["a failure", "faults"],
)
def test_a_failure_is_not_tried_again_and_faults_use_up_the_reruns(
    site: Site, runs: Sequence[int], ends: tuple[str, ...], verdict: str, count: int, texts: Texts
) -> None:
    site.suite()
    for number in runs:
        instant.direct(f"1.{number}", *ends)
    done = site.accept("--json")
    assert (done.status, verdicts(done), runs_of(done)) == (
        {"fail": 1, "open": 4}[verdict],
        [verdict, "pass"],
        [count, 3],
    )
    texts(done.data["workloads"][0]["text"])


def test_where_nothing_is_queued_a_killed_command_uses_up_no_rerun(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its run was cancelled with it, however often that happens."""
    instant.install_executor(monkeypatch, tmp_path / "alone", instant.INSTANT._replace(queued=False))
    site.suite(80, 80, SUITE.replace("reruns: 4", "reruns: 1"))
    for number in range(1, 6):
        instant.direct(f"1.{number}", "CANCELLED")
    done = site.accept("--json")
    assert (done.status, verdicts(done), runs_of(done)) == (0, ["pass", "pass"], [8, 3]), done.err
    assert [rerun["run"] for rerun in done.data["reruns"]] == [4, 5, 6, 7, 8], "each is listed all the same"
    assert site("accept", "show", site.campaign, "--json").data["problems"] == []


def test_a_dry_run_states_the_limit_that_will_be_used(site: Site, texts: Texts) -> None:
    """Of an indication the wider one: 5.26 % and what dense models change between releases."""
    path = site.suite(
        text="name: one\ndefaults: {gpu_type: gb200, repeats: 1, reruns: 0}\ntests:\n"
        "  - {workload: llama3.1, size: 405b, dtype: fp8, scale: 128}\n"
        "  - {workload: llama3.1, size: 405b, dtype: fp8, scale: 128, env: {A: b}, required: 0.9,\n"
        "     reference: {seconds: 5.0, source: a contract}}\n"
        "  - {workload: llama3.1, size: 405b, dtype: fp8, scale: 128, env: {A: c}, reference: none}\n"
    )
    done = site("accept", path, "--dry-run", CLUSTER_TYPE="slurm")
    texts(done.out, about="indication:")
    texts(done.err, about="compared")
    dry = site("accept", path, "--dry-run", "--json", CLUSTER_TYPE="slurm").data
    assert (dry["at_best"]["outcome"], dry["at_best"]["indication"]) == ("accepted", True)
    planned = dry["workloads"]
    reference, limit = planned[0]["reference"]["seconds"], planned[0]["limit_seconds"]
    assert limit == pytest.approx(reference / 0.95 * 1.032)
    assert [item["limit_performance"] for item in planned] == [pytest.approx(0.95 / 1.032), pytest.approx(0.9), None]
    assert planned[1]["limit_seconds"] == pytest.approx(5.0 / 0.9)
    rows = done.out.splitlines()[1:]
    assert [f"{reference:g}", f"{limit:.4g}", ">", "92.1"] == rows[0].split("up to 0")[1].split()[:4]
    assert rows[2].endswith("only has to complete")


def test_a_run_whose_steps_stall_counts_with_what_that_costs(site: Site) -> None:
    """It was replaced once, as if stalls were an accident; they are the system's speed."""
    site.suite()
    instant.direct("2.3", "spiky")
    done = site.accept("--json")
    assert (done.status, verdicts(done)) == (4, ["pass", "open"]), "another day may have none"
    stalled = done.data["workloads"][1]
    assert stalled["performance"] < 0.95
    assert not any("unstable" in rerun["reason"] for rerun in done.data["reruns"])


def test_references_are_those_that_the_campaign_began_with(site: Site, texts: Texts) -> None:
    """Also where they are of other software: the whole is then an indication."""
    begun(site)
    file = site.campaign / "campaign.json"
    file.write_text(file.read_text().replace('"same_software": true', '"same_software": false', 1))
    done = site.accept("--json")
    assert (done.status, [item["indication"] for item in done.data["workloads"]]) == (0, [True, False])
    texts(done.data["why"])
    assert done.data["workloads"][0]["performance_limit"] < 0.95 - 0.02, "the wider limit"
    assert (done.data["outcome"], done.data["indication"]) == ("accepted", True)
    text = site.accept().out
    texts(text, about="indication")


def test_a_problem_of_a_node_fails_the_pre_screen_only(cli: Cli, texts: Texts) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    (item,) = measure([record.paths.folder], Workspace(cli.install))
    item.__dict__["account"] = NodeSummary(findings=(NodeFinding("throttled", "problem", "n3: too hot"),))
    screened = attempt_of(item, record, timed=False, strict=True)
    texts(screened.failure)
    assert attempt_of(item, record, timed=False, strict=False) == SuiteAttempt()
    assert attempt_of(item, record, timed=True, strict=False).time is not None


def test_where_no_speed_was_judged_nothing_is_accepted(site: Site, texts: Texts) -> None:
    site.suite(text=SUITE.replace("{seconds: 0.1, source: a contract}", "optional"))
    done = site.accept("--json")
    assert (done.status, verdicts(done)) == (4, ["pass", "pass"])
    assert (done.data["outcome"], done.data["accepted"], done.envelope["ok"]) == ("not judged", False, False)
    texts(done.data["why"])
    texts(site.accept().out, about="NOT JUDGED")
    inside = unpacked(next(site.campaign.glob("two.tar.*")), site.folder / "out")
    skipped = ElementTree.fromstring(inside["campaign/report.xml"]).find("testcase[1]/skipped")
    assert skipped.get("message", "").startswith("NOT JUDGED: ")
    texts(done.err, about="NOT JUDGED")


# The pre-screen

PRESCREEN = SUITE.replace(
    "tests:", "prescreen:\n  - {workload: pretrain_llama3.1, max_steps: 5, env: {STEP_MS: '900'}}\ntests:"
)


def test_the_pre_screen_comes_first_and_needs_no_speed(site: Site) -> None:
    site.suite(text=PRESCREEN)
    done = site.accept("--json")
    assert (done.status, runs_of(done)) == (0, [1, 3, 3]), done.err
    assert instant.accepted()[0][1].strip().endswith(":1.1")


@pytest.mark.parametrize(("ends", "why"), [(["FAILED"], "fail"), (["NODE_FAIL", "NODE_FAIL"], "open")])
def test_a_pre_screen_that_does_not_pass_ends_the_campaign(site: Site, ends: list[str], why: str, texts: Texts) -> None:
    site.suite(text=PRESCREEN)
    for number, state in enumerate(ends, 1):
        instant.direct(f"1.{number}", state, "ValueError: no")
    done = site.accept("--json")
    assert (done.status, runs_of(done), len(instant.accepted())) == (
        1 if why == "fail" else 4,
        [len(ends), 0, 0],
        len(ends),
    )
    texts(done.data["why"])


# Interruptions


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 7, 18, 40, 70, 150])
def test_killed_at_any_step_and_run_again(site: Site, at: int) -> None:
    path = site.suite(103.7, 100)
    instant.direct("2.1", "NODE_FAIL")
    assert run_and_crash(lambda: main(["accept", str(path)]), at, site.folder), "it was to be killed"
    done = site.accept("--json")
    assert (done.status, runs_of(done)) == (0, [5, 4]), done.err
    keys = [key.rpartition(":")[2].strip() for _, key in instant.accepted()]
    assert sorted(keys) == sorted([f"1.{n}" for n in range(1, 6)] + [f"2.{n}" for n in range(1, 5)])
    assert len({run for run, _ in instant.accepted()}) == 9


@pytest.mark.parametrize("moment", ["die before", "die after"])
def test_killed_on_either_side_of_a_submission(site: Site, moment: str, texts: Texts) -> None:
    site.suite()
    (instant.folder() / moment).touch()
    child = start(lambda: main(["accept", str(site.folder / "two.yaml")]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (instant.folder() / moment).unlink()
    done = site.accept("--json")
    assert (done.status, runs_of(done), len(instant.accepted())) == (0, [3, 3], 6), done.err
    texts(next(line for line in done.err.splitlines() if "submission" in line))


def test_a_campaign_that_is_over_is_shown_and_not_run_again(site: Site, texts: Texts) -> None:
    site.suite()
    first, second = site.accept("--json"), site.accept("--json")
    assert (second.status, second.data, len(instant.accepted())) == (0, first.data, 6)
    texts(second.err, about="--again")
    # Copied back from a backup that keeps no times: its runs are older than its files.
    (site.campaign / "result.json").unlink()
    os.utime(site.campaign / "campaign.json", (time.time() + 9 * 86400,) * 2)
    assert (runs_of(site.accept("--json")), len(instant.accepted())) == ([3, 3], 6)
    assert site.accept("--again").status == 0
    assert len(instant.accepted()) == 12
    assert sorted(path.parent.name for path in site.install.rglob("result.json")) == ["1", "2"]


def test_a_clock_that_was_put_back_starts_no_run_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """By three days after the campaign began: its runs are older than it."""
    begun(site)
    file = site.campaign / "campaign.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, "began": known["began"] + 3 * 86400}))

    def once(*arguments: Any, **more: Any) -> Any:
        assert not instant.accepted(), "it would never end"
        return submit_many(*arguments, **more)

    monkeypatch.setattr(conduct, "submit_many", once)
    done = site.accept("--json")
    assert (done.status, runs_of(done)) == (0, [3, 3]), done.err


def test_a_damaged_run_of_before_is_not_looked_at(site: Site, texts: Texts) -> None:
    site.suite()
    assert site.accept().status == 0
    folder = next(site.install.glob("workloads/*/experiments/*/*_*"))
    (folder / "run.json").write_text("{")
    texts(site.accept("--again").err, about="run.json")
    name, _, second = folder.name.partition("-")[0].rpartition("_")
    folder.rename(folder.with_name(f"{name}_{int(second) - 2 * 86400}"))
    assert site.accept().status == 0


@pytest.mark.parametrize("how", [KeyboardInterrupt(), Interrupted("it is on record", remedy="its log")])
def test_an_interruption_says_how_to_go_on(
    site: Site, monkeypatch: pytest.MonkeyPatch, how: BaseException, texts: Texts
) -> None:
    def interrupted(*arguments: Any, **more: Any) -> Any:
        raise how

    site.suite()
    with monkeypatch.context() as patch:
        patch.setattr(conduct, "submit_many", interrupted)
        done = site.accept()
    assert done.status == 130, done.err
    texts(done.err, about="resumes")
    assert site.accept().status == 0


def test_jobs_that_are_refused_can_be_submitted_later(site: Site, texts: Texts) -> None:
    site.suite()
    (instant.folder() / "full").touch()
    done = site.accept()
    assert (done.status, instant.accepted()) == (3, [])
    texts(done.err, about="submitted")
    (instant.folder() / "full").unlink()
    assert site.accept().status == 0
    assert len(instant.accepted()) == 6


@pytest.mark.slow
@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 1}'])
def test_a_result_that_somebody_changed_can_be_found_again(site: Site, content: str) -> None:
    site.suite()
    first = site.accept("--json").data
    (site.campaign / "result.json").write_text(content)
    assert re.search(r"result\.json .*\n  -> (remove it|restore|start)", site.accept().err)
    (site.campaign / "result.json").unlink()
    assert (site.accept("--json").data, len(instant.accepted())) == (first, 6)


def test_campaigns_can_be_kept_elsewhere(site: Site) -> None:
    site.suite()
    assert site.accept("--folder", site.folder / "mine").status == 0
    assert len(list((site.folder / "mine").glob("two-*/1/result.json"))) == 1
    assert not (site.install / "campaigns").exists()


def test_a_campaign_whose_folder_was_removed_starts_over(site: Site) -> None:
    site.suite()
    site.accept()
    shutil.rmtree(site.install / "campaigns")
    assert site.accept().status == 0
    assert len(instant.accepted()) == 12


def begun(site: Site) -> None:
    """A campaign that has begun, and has not been able to submit anything."""
    site.suite()
    (instant.folder() / "full").touch()
    assert site.accept().status == 3
    (instant.folder() / "full").unlink()


def test_a_changed_suite_is_refused_and_said(site: Site, texts: Texts) -> None:
    begun(site)
    site.suite(101)
    done = site.accept()
    assert (done.status, instant.accepted()) == (2, [])
    assert re.search(r"suite .*two\.yaml: \w{12} -> \w{12}\n", done.err)
    texts(done.err)
    assert site.accept("--again").status == 0


def test_changed_surroundings_are_refused_and_said(site: Site, texts: Texts) -> None:
    begun(site)
    done = site.accept(GBS="8", NCCL_ALGO="Ring")
    assert (done.status, instant.accepted()) == (2, [])
    texts(done.err, about="gbs")
    file = site.campaign / "campaign.json"
    file.write_text(file.read_text().replace('"llmb": "', '"llmb": "0.'))
    done = site.accept()
    assert (done.status, instant.accepted()) == (2, [])
    texts(done.err, about="version of LLMB", mask=r"0\.\S+")


def test_two_processes_do_not_run_one_campaign(site: Site, texts: Texts) -> None:
    import fcntl

    begun(site)
    with (site.campaign.parent / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = site.accept()
    assert (done.status, instant.accepted()) == (3, [])
    texts(done.err, mask=r"process \d+.*")
