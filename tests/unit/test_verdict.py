"""The figures of a run, and the verdict over it against its reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from llmb_common.base.statistics import summarize
from llmb_common.planning.job_plan import JobPlan, ProfilePlan
from llmb_common.recipes.loading import load_recipe
from llmb_common.results.decision import decide
from llmb_common.results.references import Reference
from llmb_common.results.steps import MeasuredSteps, estimate, step_time, steps_of, window_of
from llmb_common.results.training import Training
from llmb_common.results.verdict import (
    Verdict,
    figures,
    judge_log,
    judge_result,
    judge_runs,
    measured_seconds,
    own_share,
    planned_tflop,
    widened,
    with_training,
)
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.records import Iteration
from llmb_common.runs.timing.runs import RunTiming, State, Status
from llmb_common.runs.timing.window import Window
from support.runs import PUBLISHED, ROOT, plan_for, took
from support.texts import Texts

WINDOW = Window(35, 44)
LLAMA = load_recipe(ROOT / "llama3.1")
NEMOTRON = load_recipe(ROOT / "nemotron4")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> JobPlan:
    """Llama 3.1 405b in FP8 on 128 GB200; published: 5.74147 s with nemo:25.09.00."""
    return plan_for(tmp_path_factory.mktemp("site"), **PUBLISHED)


def timed(
    seconds: Sequence[float], *, tflops: float | None = None, window: Window = WINDOW, state: State = "Success"
) -> RunTiming:
    """A run whose steps took ``seconds``."""
    steps = [Iteration(index, len(seconds), value, tflops=tflops) for index, value in enumerate(seconds, 1)]
    summary = summarize([step.seconds for step in window.select(steps)])
    rates = summarize([tflops] * len(window)) if tflops is not None else None
    return RunTiming(RunFiles("run", None, None), Status(state), window, None, steps, summary, rates)


def own(seconds: float, error: float = 0.0, *, same: bool = True) -> Reference:
    return Reference("baseline", seconds, "nemo:26.02.01", "this site", same, error)


def test_a_window_that_is_not_complete_has_no_step_time() -> None:
    assert step_time(timed([5.0] * 44)) is not None
    assert step_time(timed([5.0] * 43)) is None
    assert step_time(timed([])) is None
    assert steps_of(timed([5.0] * 43)) == MeasuredSteps()


def test_the_eleventh_step_is_steady_and_the_tenth_is_not() -> None:
    calm = timed([5.0] * 50)
    tenth, eleventh = (timed([5.0] * at + [5.2] + [5.0] * (49 - at)) for at in (9, 10))
    assert step_time(tenth) == step_time(calm)
    noise = step_time(eleventh)
    assert noise is not None
    assert noise == estimate([5.0] * 10, [5.2] + [5.0] * 39)
    assert noise.error > 0


def test_figures_follow_from_the_step_time(plan: JobPlan) -> None:
    timing = timed([5.74147] * 50, tflops=1636.8)
    found = figures(plan, LLAMA, timing, 5.74147)
    assert found.tokens_per_second == pytest.approx(91_316, abs=1)
    assert found.days_1t == pytest.approx(1e12 / 91_316 / 86_400, rel=1e-5)
    assert found.tflops_per_gpu == pytest.approx(1800.6, abs=0.1)
    assert found.mfu == pytest.approx(1800.6 / 4900, rel=1e-4)
    assert found.log_mfu == pytest.approx(1636.8 / 4900)
    silent = figures(plan, LLAMA, timed([5.74147] * 50), 5.74147)
    assert (silent.mfu, silent.log_mfu) == (found.mfu, None), "the log says nothing of TFLOPS"
    no_peak = figures(msgspec.structs.replace(plan, gpu_type="vr200"), LLAMA, timing, 5.74147)
    assert (no_peak.tflops_per_gpu, no_peak.mfu, no_peak.log_mfu) == (found.tflops_per_gpu, None, None)


def test_the_work_of_a_function_is_what_its_catalogue_says(plan: JobPlan) -> None:
    """4096 tokens on each GPU: 32 sequences of 8192 for every 64 of them."""
    timing = timed([5.0] * 50)
    assert (plan.seq_len, plan.gbs, plan.gpus) == (8192, 64, 128)
    for per_token, expected in ((1e12, 4096 / 5), (None, None)):
        function = SimpleNamespace(flops_per_token=per_token, own_flops_per_token=None)
        called = msgspec.structs.replace(plan, architecture=None, function=function)
        assert figures(called, LLAMA, timing, 5.0).tflops_per_gpu == expected
    nothing = msgspec.structs.replace(plan, architecture=None, function=None)
    assert figures(nothing, LLAMA, timing, 5.0).tflops_per_gpu is None


def test_a_step_time_is_the_mean_of_the_window_or_the_last_step(plan: JobPlan) -> None:
    timing = timed([5.0] * 49 + [4.0])
    last = msgspec.structs.replace(plan, measurement=msgspec.structs.replace(plan.measurement, statistic="last"))
    assert (measured_seconds(plan, timing), measured_seconds(last, timing)) == (5.0, 4.0)
    empty = RunTiming(RunFiles("run", None, None), Status("Failed"), WINDOW)
    assert (measured_seconds(plan, empty), measured_seconds(last, empty)) == (None, None)


@pytest.mark.parametrize(
    "change", [{"nccl_trace": True}, {"model_size": "smoke"}, {"device": "cpu"}], ids=["traced", "smoke", "cpu"]
)
def test_what_is_compared_with_nothing_keeps_its_remarks(plan: JobPlan, change: dict[str, Any], texts: Texts) -> None:
    spiked = timed([5.0] * 38 + [25.0] + [5.0] * 11)
    refused = judge_result(msgspec.structs.replace(plan, **change), LLAMA, spiked)
    assert (refused.kind, refused.decision, refused.difference) == ("not judged", None, None)
    texts(refused.text)
    assert [re.findall(r"\d+", remark)[:2] for remark in refused.remarks] == [["1", "10"]], "steps, measured ones"


def test_a_smoke_run_is_compared_with_the_sites_own_baseline(plan: JobPlan) -> None:
    smoke = msgspec.structs.replace(plan, model_size="smoke", device="cpu")
    judged = judge_result(smoke, LLAMA, timed([5.0] * 50), [own(5.0)])
    assert (judged.kind, judged.reference) == ("open", own(5.0))


def test_a_window_of_ones_own_is_compared_with_nothing(plan: JobPlan) -> None:
    moved = judge_result(plan, LLAMA, timed([5.0] * 50, window=Window(5, 14)))
    assert moved.kind == "not judged"
    assert "5-14" in moved.text
    assert "35-44" in moved.text


@pytest.mark.parametrize("state", ["Failed", "Incomplete", "Running"])
def test_only_a_success_is_judged(plan: JobPlan, state: State) -> None:
    judged = judge_result(plan, LLAMA, timed([5.0] * 50, state=state))
    assert judged == Verdict("not judged", judged.text)
    assert judged.text.startswith(state.lower())


def test_the_reference_of_the_same_software_is_the_one_and_of_those_the_first(plan: JobPlan) -> None:
    timing = timed([5.74147] * 50)
    published = judge_result(plan, LLAMA, timing)
    assert (published.reference.kind, published.reference.same_software) == ("published", False)
    known = [own(9.0, same=False), own(5.0), own(6.0)]
    assert judge_result(plan, LLAMA, timing, known).reference == own(5.0)
    assert judge_result(plan, LLAMA, timing, known[:1]).reference == known[0], "before a published one"
    measured_then = msgspec.structs.replace(plan, image="/i/nvidia+nemo+25.09.00.sqsh")
    same = judge_result(measured_then, LLAMA, timing, known[:1]).reference
    assert (same.kind, same.same_software) == ("published", True)


def test_without_a_reference_there_is_no_verdict_but_what_is_odd(plan: JobPlan) -> None:
    other = msgspec.structs.replace(plan, gbs=plan.gbs * 2)
    verdict = judge_result(other, LLAMA, timed([5.0] * 38 + [25.0] + [5.0] * 11))
    assert verdict.kind == "no reference"
    assert len(verdict.remarks) == 1


def test_steps_that_were_read_before_are_not_read_again(plan: JobPlan) -> None:
    known = MeasuredSteps(took(6.0), ("odd",), None)
    verdict = judge_result(plan, LLAMA, timed([5.0] * 50), [own(6.0)], known)
    assert verdict.difference == 0
    assert verdict.remarks == ("odd",)


def test_stalls_are_said_with_what_they_cost(plan: JobPlan, texts: Texts) -> None:
    stalling = msgspec.structs.replace(took(5.0), stalls=(9.0,) * 20, steps=100)
    verdict = judge_result(plan, LLAMA, timed([5.0] * 50), [own(5.0)], MeasuredSteps(stalling, ("odd",)))
    assert verdict.kind == "open", "another day may have none"
    texts(verdict.text)
    three = judge_runs(plan, [stalling] * 3, own(5.0))
    texts(three.text)
    slow = judge_runs(plan, [msgspec.structs.replace(stalling, seconds=6.0)], own(5.0))
    texts(slow.text)


def test_a_verdict_over_runs_follows_the_error_of_its_reference_and_the_rate_that_is_asked_for(plan: JobPlan) -> None:
    usual = judge_runs(plan, [took(5.0)], own(5.0)).decision
    assert usual == decide([took(5.0)], 5.0)
    assert judge_runs(plan, [took(5.0)], own(5.0, 0.02)).decision == decide([took(5.0)], 5.0, reference_error=0.02)
    strict = judge_runs(plan, [took(5.0)], own(5.0), tolerance=0.1, error_rate=0.001).decision
    assert strict == decide([took(5.0)], 5.0, tolerance=0.1, error_rate=0.001)


def test_other_software_widens_the_limit_by_what_releases_differ(plan: JobPlan, texts: Texts) -> None:
    """Dense models: up to 3.2 % slower from one release to the next, and 5 % are allowed in any case."""
    other = judge_runs(plan, [took(5.0)], own(5.0, same=False))
    assert other.decision == decide([took(5.0)], 5.0, tolerance=1.05 * 1.032 - 1)
    texts(other.text)


@pytest.mark.parametrize(("boost", "same", "said"), [(False, False, True), (True, False, False), (False, True, False)])
def test_a_clock_boost_that_this_run_had_not_is_said_of_a_published_one(tmp_path, boost, same, said, texts: Texts):
    variables = {"MODEL_SIZE": "15b", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16", "GPU_TYPE": "h100"}
    plan = msgspec.structs.replace(plan_for(tmp_path, "nemotron4", **variables), vboost=boost)
    timing = timed([2.5] * 49 + [2.0], window=window_of(plan))
    verdict = judge_result(plan, NEMOTRON, timing, [own(2.5)] if same else [])
    assert verdict.reference.kind == ("baseline" if same else "published")
    assert any("ENABLE_VBOOST=true" in remark for remark in verdict.remarks) is said
    apart = 2.0 / verdict.reference.seconds - 1
    texts(verdict.remarks[-1])
    assert f" 2 s ({100 * apart:+.1f} %)" in verdict.remarks[-1]


def test_no_difference_has_no_minus(plan: JobPlan, texts: Texts) -> None:
    texts(judge_runs(plan, [took(4.998)], own(5.0)).text)
    texts(judge_runs(plan, [took(4.99)], own(5.0)).text)


@pytest.mark.parametrize(
    "seconds",
    [
        10.5,
        10.2,
        12.2,
        9.0,
    ],
)
def test_an_open_verdict_says_what_it_would_take(tmp_path: Path, seconds: float, texts: Texts) -> None:
    own = Reference("published", 10.0, "nemo:26.02.01", "a table", same_software=True)
    verdict = judge_runs(plan_for(tmp_path, **PUBLISHED), [took(seconds)], own)
    texts(verdict.text)
    assert verdict.difference == pytest.approx(seconds / 10 - 1)
    assert str(own).startswith("10 s (")


# Rules of verdicts


def test_what_did_not_train_fails_whatever_its_speed_and_what_was_not_judged_stays_so() -> None:
    odd = ("a", "b")
    fast, slow = Verdict("pass", "pass, 1 %"), Verdict("fail", "fail, 9 %")
    assert with_training(fast, odd).kind == "fail"
    assert with_training(fast, odd).text.startswith("fast")
    assert with_training(fast, odd).text.endswith("not training: a; b")
    for verdict in (slow, Verdict("open", "open"), Verdict("no reference", "none")):
        found = with_training(verdict, odd)
        assert (found.kind, found.text, found.not_training) == ("fail", "not training: a; b", odd)
        assert with_training(found, ()) == replace(found, not_training=())
    refused = Verdict("not judged", "profiled")
    assert with_training(refused, odd) == replace(refused, not_training=odd)


@pytest.mark.parametrize(
    ("share", "kind", "remarked"),
    [(1.1, "pass", False), (1.2, "pass", True), (1.24, "pass", True), (1.26, "fail", True), (0.74, "fail", True)],
)
def test_work_that_is_a_quarter_off_the_plans_fails_and_less_is_remarked(
    plan: JobPlan, share: float, kind: str, remarked: bool
) -> None:
    planned = planned_tflop(plan, LLAMA)
    assert planned is not None
    steps = MeasuredSteps(took(4.0), (), share * planned)
    verdict = judge_result(plan, LLAMA, timed([4.0] * 50), [own(5.0)], steps)
    assert verdict.kind == kind
    assert any("times the planned work" in remark for remark in verdict.remarks) is remarked
    assert bool(verdict.not_training) is (kind == "fail")


def test_a_run_under_a_profiler_is_not_judged(plan: JobPlan) -> None:
    profile = ProfilePlan(tool="nsys", start=45, stop=50, ranks=None, file="profile", gpu_metrics=False)
    profiled = judge_result(msgspec.structs.replace(plan, profile=profile), LLAMA, timed([5.0] * 50), [own(5.0)])
    assert (profiled.kind, profiled.text.split()[0]) == ("not judged", "profiled")


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        (98.0, 100.0, 0.98),
        (102.0, 100.0, 1.02),
        (99.5, 100.0, None),
        (100.5, 100.0, None),
        (None, 100.0, None),
        (100.0, None, None),
    ],
)
def test_counts_of_flops_differ_by_more_than_a_hundredth(
    plan: JobPlan, ours: float | None, theirs: float | None, share: float | None
) -> None:
    function = SimpleNamespace(flops_per_token=theirs, own_flops_per_token=ours)
    assert own_share(msgspec.structs.replace(plan, function=function)) == share
    assert own_share(plan) is None


def test_a_log_of_others_is_not_judged_and_says_what_is_odd() -> None:
    nan = replace(timed([5.0] * 50), status=Status("Failed", "nan_loss", 7, "the loss is NaN"))
    zero = Training(("the loss is 0",))
    found = judge_log(nan, MeasuredSteps(took(5.0), ("a spike",), None, zero))
    assert (found.kind, found.not_training) == ("not judged", ("the loss is NaN", "the loss is 0"))
    assert found.remarks == ("a spike", "the loss is 0")
    ended = replace(nan, status=Status("Failed", "ended_early", 7, "it ended"))
    assert judge_log(ended, MeasuredSteps(took(5.0))).not_training == ()
    # Without a whole window the log's own losses are looked at.
    lost = [item._replace(loss=0.0) for item in timed([5.0] * 43).iterations]
    assert judge_log(replace(ended, iterations=lost), MeasuredSteps()).not_training == (
        "the loss is 0 in 43 of 43 steps",
    )


def test_a_run_that_met_nan_is_not_judged_and_did_not_train(plan: JobPlan) -> None:
    for reason, odd in (("nan_loss", ("why",)), ("ended_early", ())):
        timing = replace(timed([5.0] * 50), status=Status("Failed", reason, 7, "why"))
        verdict = judge_result(plan, LLAMA, timing)
        assert (verdict.kind, verdict.not_training) == ("not judged", odd)


@pytest.mark.parametrize(("stall", "said"), [(0.04 * 1.01, True), (-0.04 * 1.01, True), (0.04 * 0.99, False)])
def test_what_stalls_cost_is_said_from_a_thousandth_on(plan: JobPlan, stall: float, said: bool) -> None:
    verdict = judge_runs(plan, [took(5.0, steps=40, stalls=(stall,))], own(5.0))
    assert ("stalls cost" in verdict.text) is said


@pytest.mark.parametrize(
    ("ratio", "words"), [(1.02, "2.0 % slower"), (0.98, "2.0 % faster"), (1.0004, "equal"), (0.9996, "equal")]
)
def test_a_ratio_is_told_as_slower_or_faster(plan: JobPlan, ratio: float, words: str) -> None:
    assert f", {words}" in judge_runs(plan, [took(5.0 * ratio)], own(5.0)).text


def test_a_limit_is_widened_by_what_a_new_release_makes_slower_of_the_same_kind_of_model(plan: JobPlan) -> None:
    assert widened(0.05, plan, own(5.0)) == 0.05
    assert widened(0.25, plan, own(5.0, same=False)) == pytest.approx(1.25 * 1.032 - 1)


def test_runs_of_two_days_say_so_and_those_of_days_of_their_own_do_not(plan: JobPlan) -> None:
    for days, said in (("11", "one day or the same nodes"), ("112", "only 2 days"), ("123", "")):
        found = judge_runs(plan, [took(5.0, day=day) for day in days], own(5.0)).remarks
        assert [said in remark for remark in found] == ([True] if said else [])
        assert (" all of them" in "".join(found)) is (days == "11")
