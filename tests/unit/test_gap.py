"""``llmb-run why --slow``: what a run has otherwise than the best, what that may be worth, and the test of it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.loading import load_recipe
from llmb_common.results.decision import less
from llmb_common.results.references import worth_of
from support import instant
from support.campaigns import Site
from support.cli import Done
from support.crashes import run_and_crash
from support.plans import ROOT, plan
from tools.paired_simulation import TESTED_ON, TRUE_GAPS
from tools.paired_simulation import attributed as simulated

JOB = ("single", "-w", "pretrain_llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1")


def milliseconds(job: JobPlan) -> float:
    """A larger micro-batch wins 9 %, rings 4 %, both together only 11 %; logging costs 1 ms."""
    ring = "NCCL_ALGO" in job.env and job.env["NCCL_ALGO"].value == "Ring"
    return {(1, False): 100.0, (2, False): 91.0, (1, True): 96.0, (2, True): 89.0}[job.mbs, ring] + (
        "NCCL_DEBUG" in job.env
    )


@pytest.fixture
def slow(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run id of a slow run; there is a faster one."""
    monkeypatch.setattr(instant, "milliseconds_of", milliseconds)
    started(site, "NCCL_ALGO=Ring", "mbs=2")
    return started(site, "NCCL_ALGO=Tree", "mbs=1")


def started(site: Site, *changes: str) -> str:
    words = [word for change in changes for word in ("--env" if change[0].isupper() else "--set", change)]
    done = site(*JOB, *words, "--json")
    run_id: str = done.data["jobs"][0]["run_id"]
    return run_id


def attributed(site: Site, run: str, *words: str) -> Done:
    return site("why", "--slow", "--test", run, *words)


def rows(done: Done) -> dict[str, Any]:
    """What was tested, by name."""
    return {item["name"]: item for item in done.data["runs"][0]["contributions"]["differences"]}


# What differs


def test_a_slow_run_is_told_what_the_fastest_has_otherwise(site: Site) -> None:
    """``why --slow``: each difference with the command that shows what it is worth."""
    ids = []
    for milliseconds, mbs, algorithm in (("100", "1", "Tree"), ("90", "2", "Ring")):
        words = ("single", *JOB[1:], "--env", f"STEP_MS={milliseconds}", "--env", f"NCCL_ALGO={algorithm}")
        ids.append(site(*words, "--set", f"mbs={mbs}", "--json").data["jobs"][0]["run_id"])
    slow, fast = ids
    words = ("single", *JOB[1:], "--env", "STEP_MS=95", "--env", "NCCL_DEBUG=WARN", "--json")
    slower_alone = site(*words).data["jobs"][0]["run_id"]
    (found,) = site("why", "--slow", slow, "--json").data["runs"]
    gap = found["gap"]
    assert (gap["best"], gap["slower"]) == (fast, pytest.approx(100 / 90 - 1, abs=0.002))
    told = {item["name"]: (item["kind"], item["here"], item["there"], item["test"]) for item in gap["differences"]}
    command = f"llmb-run ab --base {slow} --change"
    assert told["mbs"] == ("setting", "1", "2", f"{command} mbs=2")
    assert told["env NCCL_ALGO"] == ("setting", "Tree", "Ring", f"{command} NCCL_ALGO=Ring")
    assert set(told) == {"mbs", "env NCCL_ALGO", "env STEP_MS"}
    (found,) = site("why", "--slow", slower_alone, "--json").data["runs"]
    told = {item["name"]: item["test"] for item in found["gap"]["differences"]}
    assert told["env NCCL_DEBUG"] == f"llmb-run ab --base {slower_alone} --unset NCCL_DEBUG"
    text = site("why", "--slow", slow).out
    assert f"{fast}: this run takes 11.1% more time" in text
    assert f"{command} mbs=2" in text
    assert "no faster run of the same work is recorded here" in site("why", "--slow", fast).out


def test_columns_that_are_not_legal_one_by_one_are_one_difference(site: Site) -> None:
    """On two ranks PP 2 leaves no room for TP 2."""
    two = ("single", *JOB[1:-1], "2", "--json", "--env")
    slow, fast = (
        site(*two, f"STEP_MS={ms}", "--set", f"tp={tp}", "--set", f"pp={pp}").data["jobs"][0]["run_id"]
        for ms, tp, pp in ((100, 2, 1), (90, 1, 2))
    )
    told = site("why", "--slow", slow, "--json").data["runs"][0]["gap"]["differences"]
    assert {item["name"]: item["test"].partition("--change ")[2] for item in told} == {
        "tp, pp": "tp=1 --change pp=2",
        "env STEP_MS": "STEP_MS=90",
    }
    assert site("why", "--slow", fast, "--json").data["runs"][0]["gap"]["best"] is None


# What it is worth by the published rows


def test_published_rows_that_differ_in_one_thing_say_what_it_is_worth() -> None:
    """On H100, FP8 for BF16; its scaling and, of 70b, the layout go with that."""
    llama = load_recipe(ROOT / "llama3.1")
    asked = {"MODEL_SIZE": "8b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8", "CONFIG_VARIANT": "nemo2"}
    one, other = (plan("llama3.1", DTYPE=dtype, **asked) for dtype in ("bf16", "fp8"))
    found = worth_of(one, other, llama)
    assert found is not None
    assert (found.pairs, found.median) == (5, pytest.approx(9.43 / 12.32 - 1, abs=1e-4))
    assert str(found) == "-24.0% to -22.6% in 5 pairs of published rows"
    assert worth_of(one, msgspec.structs.replace(one, tp=2), llama) is None, "nobody published that"
    assert worth_of(one, one, llama) is None


def test_another_release_is_worth_what_its_rows_say_or_what_releases_usually_are() -> None:
    functions = load_recipe(ROOT / "mbridge")
    known = {"MODEL_SIZE": "qwen3_30b_a3b", "GPU_TYPE": "gb200", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
    now = plan("mbridge", **known)
    before, after, own = (
        msgspec.structs.replace(now, image=f"nvcr.io#nvidia/nemo:{release}") for release in ("26.06", "26.08", "30.01")
    )
    found = worth_of(before, after, functions)
    assert found is not None
    assert found.of == "published rows"
    back = worth_of(after, before, functions)
    assert back is not None
    assert back.median * found.median < 0
    usual, backwards = worth_of(before, own, functions), worth_of(own, before, functions)
    assert usual is not None
    assert backwards is not None
    assert str(usual).startswith("-27.0% to +2.8% in 110 pairs of published rows of consecutive releases")
    assert backwards.high == pytest.approx(1 / 0.73 - 1)


def test_without_a_faster_run_it_is_held_against_what_was_published(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    traits = replace(instant.INSTANT, this_machine=False, containers=True)
    instant.install_executor(monkeypatch, tmp_path / "cluster", traits)
    monkeypatch.setattr(instant, "milliseconds_of", lambda _: 9900.0)
    (site.install / "cluster_config.yaml").write_text("schema: 1\ncluster_type: instant\ngpu_type: h100\n")
    job = ("single", "-w", "pretrain_llama3.1", "-s", "8b", "--scale", "8", "--json")
    changes = ("--set", "tp=2", "--env", "NCCL_GRAPH_REGISTER=1")
    (bf16,) = site(*job, "--dtype", "bf16", *changes).data["jobs"]
    gap = site("why", "--slow", bf16["run_id"], "--json").data["runs"][0]["gap"]
    assert (gap["best"], gap["slower"]) == (None, pytest.approx(9.9 / 12.27 - 1, abs=0.01))
    told = {item["name"]: item for item in gap["differences"]}
    assert {name: (item["kind"], item["here"], item["there"]) for name, item in told.items()} == {
        "software": ("software", "nemo:26.02.01", "NeMo 2, nemo:25.02.01"),
        "tp": ("setting", "2", "1"),
        "env NCCL_GRAPH_REGISTER": ("launch", "1", "-"),
        "vboost": ("launch", "false", "true"),
    }
    assert told["vboost"]["test"] == f"llmb-run ab --base {bf16['run_id']} --change ENABLE_VBOOST=true"
    alone = told["env NCCL_GRAPH_REGISTER"]["test"]
    assert alone == f"llmb-run ab --base {bf16['run_id']} --unset NCCL_GRAPH_REGISTER"
    assert site(*alone.split()[1:], "--dry-run").status == 0
    text = site("why", "--slow", bf16["run_id"]).out
    assert "launch: env NCCL_GRAPH_REGISTER (graph registration): 1 here" in text
    assert "no test: LLMB cannot plan a job in that software" in text

    (fp8,) = site(*job, "--dtype", "fp8").data["jobs"]
    (only,) = site("why", "--slow", fp8["run_id"], "--json").data["runs"][0]["gap"]["differences"]
    assert (only["here"], only["there"], only["worth"]["pairs"]) == ("nemo:26.02.01", "Megatron-Bridge, nemo:25.11", 52)

    job = ("single", "-w", "pretrain_mbridge", "-s", "qwen3_30b_a3b", "--gpu-type", "gb200", "--scale", "8")
    image = "nvcr.io#nvidia/nemo:30.01"
    (later,) = site(*job, "--dtype", "fp8", "--image", image, "--json").data["jobs"]
    (only,) = site("why", "--slow", later["run_id"], "--json").data["runs"][0]["gap"]["differences"]
    assert only["test"] == f"llmb-run ab --base {later['run_id']} --change 'image=nvcr.io#nvidia/nemo:26.08'"
    assert only["worth"]["pairs"] == 110


# The test


def test_contributions_are_measured_one_by_one_and_together(site: Site, slow: str) -> None:
    """As far as the budget goes, and on from there with a larger one."""
    short = attributed(site, slow, "--budget", "0.00001")
    assert short.status == 4
    assert "not known: not tested within the budget" in short.out
    assert f"a larger --budget or more --pairs go on: llmb-run why --slow --test {slow}" in short.out
    begun = {key for _, key in instant.accepted()}
    assert {key.rpartition(":")[2].partition(".")[0] for key in begun - {""}} == {"1", "2"}, "one after the other"

    done = attributed(site, slow, "--budget", "1000", "--json")
    assert done.status == 0, done.err
    keys = [key for _, key in instant.accepted()]
    assert begun < set(keys)
    assert len(keys) - 1 == len(set(keys)), "no run twice: but for two without a campaign"
    found, parts = done.data["runs"][0]["contributions"], rows(done)
    truth = {"mbs": -9.0, "env NCCL_ALGO": -4.0}
    assert set(parts) == set(truth)
    for name, share in truth.items():
        measured = parts[name]["tested"]["difference"]
        assert measured["low_percent"] < share < measured["high_percent"]
        assert measured["error_rate_each_look"] == pytest.approx(0.01 / 3), "all three hold together"
        assert measured["high_percent"] - measured["low_percent"] <= 2.02, "known to 1 %"
    assert found["together"]["difference"]["difference_percent"] == pytest.approx(-11, abs=0.3)
    interaction, unexplained = found["interaction"], found["unexplained"]
    assert interaction["difference_percent"] == pytest.approx(100 * (0.89 / (0.91 * 0.96) - 1), abs=0.5)
    assert unexplained["low_percent"] < 0 < unexplained["high_percent"]
    text = attributed(site, slow, "--budget", "1000")
    assert "setting: mbs: 1 here, 2 there" in text.out
    assert "all of these together" in text.out
    assert re.search(r"-[89]\.\d ± [01]\.\d %", text.out)
    assert "this campaign is over; --again begins another one" in text.err


def test_killed_at_any_moment_the_test_goes_on(site: Site, slow: str) -> None:
    """Here of a variable that only this run sets: the test leaves it out."""
    alone = started(site, "mbs=2", "NCCL_ALGO=Ring", "NCCL_DEBUG=INFO")
    before = len(instant.accepted())
    at, crashed = 10, True
    while crashed:
        crashed = run_and_crash(lambda: attributed(site, alone, "--resolution", "9%"), at, site.install)
        at += 150
    done = attributed(site, alone, "--resolution", "9%", "--json")
    assert done.status == 0, done.err
    ((name, tested),) = rows(done).items()
    assert (name, tested["here"], tested["there"]) == ("env NCCL_DEBUG", "INFO", "-")
    keys = [key.rpartition(":")[2] for _, key in instant.accepted()][before:]
    assert sorted(keys) == sorted(f"{arm}.{number}" for arm in (1, 2) for number in range(1, len(keys) // 2 + 1))


def test_a_difference_that_fails_is_an_outcome(site: Site, slow: str) -> None:
    instant.direct("2.1", "torch.OutOfMemoryError: CUDA out of memory.", "FAILED")
    done = attributed(site, slow, "--resolution", "9%", "--pairs", "8", "--budget", "1000")
    assert done.status == 1
    assert "fails: B failed: " in done.out
    assert "not known: one of them fails" in done.out
    assert "setting: env NCCL_ALGO: Tree here, Ring there" in done.out


def test_a_job_that_fails_by_itself_ends_the_test(site: Site, slow: str) -> None:
    instant.direct("1.1", "torch.OutOfMemoryError: CUDA out of memory.", "FAILED")
    done = attributed(site, slow, "--resolution", "9%", "--pairs", "8", "--budget", "1000")
    assert done.status == 1
    assert "fails: A failed: " in done.out
    assert done.out.count("not known: the run's own job fails") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--test",), "--test is for one run"),
        (("--slow", "--test"), "--test is for one run"),
        (("--slow", "--test", "RUN", "--resolution", "none"), "is not a percentage"),
        (("--slow", "--test", "RUN", "--pairs", "6"), "so few are never sure enough of 3 comparisons at once"),
        (("--slow", "--test", "BEST"), "nothing of what differs can be tested"),
    ],
)
def test_what_cannot_be_tested(site: Site, slow: str, words: tuple[str, ...], said: str) -> None:
    best = site("why", "--slow", slow, "--json").data["runs"][0]["gap"]["best"]
    done = site("why", *({"RUN": slow, "BEST": best}.get(word, word) for word in words))
    assert done.status == 2
    assert said in done.err


def test_what_is_left_is_as_uncertain_as_all_that_is_taken_off() -> None:
    low, middle, high = less((-0.10, -0.07, -0.06), [(-0.06, -0.03, -0.02), (-0.03, -0.01, 0.01)])
    assert middle == pytest.approx(-0.03)
    assert middle - low == pytest.approx(math.hypot(0.03, 0.01, 0.02))
    assert high - middle == pytest.approx(math.hypot(0.01, 0.03, 0.02))


def test_intervals_hold_all_contributions_at_once() -> None:
    """Of 12 trials, with what chance adds to 5 % there. ``docs/slow.md`` has the table."""
    found = simulated(TRUE_GAPS[0], TESTED_ON[0], trials=12, seed=1)
    assert found.all_at_once >= 0.83
    assert found.each >= found.all_at_once
