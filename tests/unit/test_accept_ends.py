"""How a campaign ends: accepted, not accepted, open or not judged, and for one evening alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from llmb_common.results.references import Reference
from llmb_common.results.sequential import SuiteAttempt
from llmb_run.acceptance.outcome import conclusion
from llmb_run.acceptance.suite import Stated, SuiteEntry
from llmb_run.acceptance.workloads import AcceptanceStrategy, SuiteWorkload
from llmb_run.campaigns.conduct import Run
from llmb_run.starting.requests import JobSpec
from support import instant, packs
from support.campaigns import SUITE, Site, runs_of, verdicts
from support.runs import PUBLISHED, make_run, plan_for, took
from support.texts import Texts


def test_what_stays_open_is_open_and_says_what_decides(site: Site, tmp_path: Path, texts: Texts) -> None:
    """Nothing fails, so the whole is open: in words, as data, on the page of the pack and where it is judged again."""
    site.suite(104.3, 100, SUITE.replace("reruns: 4", "reruns: 1"))
    done = site.accept("--json")
    workload = done.data["workloads"][0]
    assert (done.status, verdicts(done), runs_of(done)) == (4, ["open", "pass"], [3, 3]), "one more cannot decide"
    assert (done.data["outcome"], done.data["accepted"], done.envelope["ok"]) == ("open", False, False)
    assert workload["more_runs"] > 1
    assert f"reruns: {workload['more_runs']}" in workload["text"]
    texts(workload["text"])
    texts(site.accept().out, about="OPEN")
    folder = packs.unpack(next(site.campaign.glob("two.tar.*")), tmp_path / "out")
    skipped = ElementTree.parse(folder / "campaign/report.xml").find("testcase[1]/skipped")
    assert skipped.get("message", "").startswith("OPEN: ")
    again = site("accept", "show", folder, "--json")
    assert (again.status, again.data["outcome"], again.data["problems"]) == (4, "open", [])


def test_a_workload_that_fails_is_not_accepted_whatever_else_is_open(site: Site, texts: Texts) -> None:
    site.suite(104.3, 130, SUITE.replace("reruns: 4", "reruns: 1"))
    done = site.accept("--json")
    assert (done.status, verdicts(done), done.data["outcome"]) == (1, ["open", "fail"], "not accepted")
    texts(done.data["why"])


def test_an_evening_claims_what_one_evening_can_show(site: Site, tmp_path: Path, texts: Texts) -> None:
    """Its own campaign: no run on other days, and a pass that says so. Judged again, it is the same."""
    site.suite(100.2, 100)
    whole = site.accept("--json")
    done = site.accept("--evening", "--json")
    assert (done.status, verdicts(done), done.data["evening"]) == (0, ["pass", "pass"], True)
    assert whole.data["evening"] is False
    assert done.data["campaign"] != whole.data["campaign"]
    texts(site.accept("--evening").out, about="ONE EVENING")
    texts(site.accept("--evening", "--dry-run").err, about="ONE EVENING")
    folder = packs.unpack(next(Path(done.data["folder"]).glob("two.tar.*")), tmp_path / "out")
    again = site("accept", "show", folder, "--json")
    assert (again.status, again.data["outcome"], again.data["problems"]) == (0, "accepted", [])


def test_what_ends_badly_after_its_last_step_counts_and_is_not_replaced(site: Site) -> None:
    """Cancelled, or failed in its evaluation: to replace it would leave out a run with all its figures."""
    site.suite()
    instant.direct("1.2", "trained", "CANCELLED")
    instant.direct("2.1", "trained", "FAILED")
    done = site.accept("--json")
    assert (done.status, verdicts(done), runs_of(done), done.data["reruns"]) == (0, ["pass", "pass"], [3, 3], [])
    remarks = [line for line in site.accept().out.splitlines() if "every step was trained" in line]
    assert [re.findall(r"CANCELLED|FAILED", line) for line in remarks] == [["CANCELLED"], ["FAILED"]]
    assert site("accept", "show", site.campaign, "--json").data["problems"] == []


JUDGED = {
    "prescreen": False,
    "verdict": "pass",
    "reference": {"seconds": 1.0},
    "speed_wanted": True,
    "indication": False,
}
OWN = {**JUDGED, "reference": {"seconds": 1.0, "kind": "baseline"}}
UNKNOWN = {**JUDGED, "reference": None}
ONLY_RAN = {**UNKNOWN, "speed_wanted": False}
FAILED = {**JUDGED, "verdict": "fail"}
UNDECIDED = {**JUDGED, "verdict": "open", "text": "open: about 2 more runs would decide"}


@pytest.mark.parametrize(
    ("workloads", "ends", "why"),
    [
        ([JUDGED, JUDGED], "accepted", "all 2 workloads pass"),
        ([JUDGED, OWN], "accepted", "all 2 workloads pass; 1 of them against this site's own baseline"),
        ([JUDGED, ONLY_RAN], "accepted", "1 workload passes; 1 workload only had to run, as the suite says"),
        ([JUDGED, UNKNOWN], "not judged", "1 workload passes; 1 workload completed without a reference, not judged"),
        ([UNKNOWN], "not judged", "1 workload completed; no speed was judged, because there is no reference"),
        (
            [ONLY_RAN],
            "not judged",
            "1 workload completed; no speed was judged, because the suite compares none of them",
        ),
        ([FAILED, UNKNOWN], "not accepted", "workloads: 1 of 2 fail"),
        ([UNKNOWN, UNDECIDED], "open", "workloads: 1 of 2 open; about 2 more runs would decide"),
        (
            [{**UNDECIDED, "text": "indication: open: too close to the limit to tell"}],
            "open",
            "workloads: 1 of 1 open; too close to the limit to tell",
        ),
        ([{**UNDECIDED, "text": "open, not decided by 7 runs"}], "open", "workloads: 1 of 1 open"),
        ([FAILED, UNDECIDED], "not accepted", "workloads: 1 of 2 fail, 1 of 2 open"),
        ([JUDGED, {**UNKNOWN, "verdict": None}], "under way", "some workloads have no answer yet"),
    ],
)
def test_accepted_means_that_every_speed_was_judged(workloads: list[dict[str, Any]], ends: str, why: str) -> None:
    found = conclusion(workloads)
    assert (found["outcome"], found["why"]) == (ends, why)
    assert found["accepted"] is {"accepted": True, "under way": None}.get(ends, False)


@pytest.mark.parametrize(("evening", "days"), [(False, {1, 2}), (True, set())])
def test_only_a_campaign_of_several_days_starts_runs_on_other_days(
    tmp_path: Path, evening: bool, days: set[int]
) -> None:
    """Under Slurm, after three runs of one evening that a site without a record cannot decide by."""
    plan = plan_for(tmp_path, **PUBLISHED)
    stated = Stated(seconds=10.0, source="a contract")
    entry = SuiteEntry(JobSpec(settings={}), "two.yaml:3", 3, 4, 0.95, stated, prescreen=False)
    reference = Reference("stated", 10.0, "as stated", "a contract", same_software=True)
    judged = AcceptanceStrategy([SuiteWorkload(entry, plan, reference, evening=evening)])
    record = make_run(tmp_path)
    runs = [
        Run(number, record, attempt=SuiteAttempt(took(seconds, day="1")))
        for number, seconds in enumerate((10.01, 10.02, 10.03), 1)
    ]
    assert {due.days for due in judged.due([], {1: runs})} == days
    (standing,) = judged.standings({1: runs})
    assert standing.progress.answer == ("pass" if evening else None)


def test_stalls_of_the_only_day_are_named_where_the_interval_is_theirs(site: Site, texts: Texts) -> None:
    """A performance of 83 to 169 %, of which nothing said why. All that stands in the way is said at once."""
    site.suite(100, 50, SUITE.replace("reruns: 4", "reruns: 1"))
    for run in range(1, 5):
        instant.direct(f"2.{run}", "60", "spiky")
    done = site.accept("--json")
    text = done.data["workloads"][1]["text"]
    assert (done.status, verdicts(done)) == (4, ["pass", "open"])
    texts(text)
