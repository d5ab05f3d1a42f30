"""The statistics of results to the digit, and the boundaries of what is called odd."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.errors import RecordError, RequestError
from llmb_common.results.comparison import Change, compare_times, differences, loss_difference
from llmb_common.results.configuration import configuration, configuration_key, software_of
from llmb_common.results.decision import ERROR_RATE, decide, level, steady_error
from llmb_common.results.references import (
    Baseline,
    BaselineRun,
    Reference,
    baseline_references,
    baselines,
    release_spread,
    remove_baselines,
    set_baselines,
)
from llmb_common.results.scatter import STATED, PastRun, PastRuns, batches, squares
from llmb_common.results.steps import StepTime, anomalies, estimate, flops_mismatch, logged_tflop, steady_from
from llmb_common.results.verdict import judge_runs
from llmb_common.runs.record import RunRecord
from llmb_common.timing.records import Iteration
from llmb_common.timing.statistics import Window, t_quantile
from support.runs import PUBLISHED, make_run, plan_for, steady_log
from tools.verdict_simulation import Noise, simulate

WINDOW = Window(35, 44)


def run(seconds: float, error: float = 0.0) -> StepTime:
    return StepTime(seconds, error, count=10, mean=seconds, steps=400)


# One run


def test_the_error_of_uncorrelated_steps_is_that_of_their_mean() -> None:
    steps = [10.0, 10.2, 9.9, 9.8, 10.1]
    measured = estimate(steps)
    # Neighbours of these steps differ more than chance would have it: no correlation to correct for.
    deviation = math.sqrt(sum((step - 10.0) ** 2 for step in steps) / 4)
    assert measured.correlation == 0.0
    assert measured.seconds == pytest.approx(10.0)
    assert measured.error == pytest.approx(deviation / math.sqrt(5))
    assert (measured.count, measured.spikes, measured.mean) == (5, (), pytest.approx(10.0))


def test_two_steps_have_the_deviation_of_two_and_one_has_none() -> None:
    assert estimate([10.0, 10.2]).error == pytest.approx(0.2 / math.sqrt(2) / math.sqrt(2))
    assert estimate([10.0]).error == 0.0


def test_a_rising_series_is_correlated_and_its_error_larger() -> None:
    rising = [10 + 0.01 * index for index in range(12)]
    measured = estimate(rising)
    centred = [step - sum(rising) / 12 for step in rising]
    squares = sum(value * value for value in centred)
    raw = sum(one * other for one, other in itertools.pairwise(centred)) / squares
    correlation = min(raw + (1 + 4 * raw) / 12, 0.95)
    assert measured.correlation == pytest.approx(correlation)
    inflation = 1 + 2 * sum((1 - lag / 12) * correlation**lag for lag in range(1, 12))
    deviation = math.sqrt(squares / (12 - min(inflation, 12 * 0.9)))
    assert measured.error == pytest.approx(deviation * math.sqrt(inflation / 12))


def test_noise_of_a_longer_series_counts_and_a_shorter_one_does_not() -> None:
    window = [10.0, 10.1, 9.9, 10.0]
    calm = [*window, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    assert estimate(window, calm).error < estimate(window).error
    assert estimate(window, calm).seconds == estimate(window).seconds
    assert estimate(window, [10.0, 10.0, 10.0]) == estimate(window)
    assert estimate(window, [10.0, 10.0, 10.0, 10.0]) == estimate(window), "as long as the window is not longer"


def test_spikes_lie_beyond_five_robust_deviations_and_five_per_cent() -> None:
    noisy = [9.0, 9.5, 10.0, 10.5, 11.0]  # median of the deviations: 0.5
    limit = 5 * 1.4826 * 0.5
    assert estimate([*noisy, 10 + limit - 0.01]).spikes == ()
    assert estimate([9.0, 9.5, 10.0, 10.0, 10.5, 11.0, 10 + limit + 0.01]).spikes == (6,)
    assert estimate([10.0] * 5 + [10.5]).spikes == (), "just five per cent"
    assert estimate([10.0] * 5 + [10.51, 9.49]).spikes == (5, 6)
    assert estimate([1.0, 5.0]).spikes == ()
    assert estimate([1.0, 1.0, 5.0]).spikes == (2,)


# What is odd


def steps(count: int = 50, **changed: float) -> list[Iteration]:
    return [Iteration(index, count, changed.get(f"i{index}", 10.0), tflops=500.0) for index in range(1, count + 1)]


def said(iterations: list[Iteration], step_tflop: float | None = None, window: Window = WINDOW) -> tuple[str, ...]:
    inside = window.select(iterations)
    found = anomalies(iterations, window, estimate([item.seconds for item in inside]))
    return found if step_tflop is None else found + flops_mismatch(logged_tflop(inside), step_tflop)


def test_the_largest_spike_is_named_whether_it_is_fast_or_slow() -> None:
    (text,) = said(steps(i36=20.0, i38=2.5))
    assert text == (
        "2 of 10 measured steps are unlike the others (iterations 36, 38, as little as 0.25 times their time):"
        " the steady step time leaves them out, the mean (+2.5%) does not"
    )


def test_five_spikes_are_named_and_a_sixth_is_not() -> None:
    spikes = {f"i{index}": 20.0 for index in range(40, 45)}
    window = Window(31, 50)
    assert "(iterations 40, 41, 42, 43, 44, up to" in said(steps(**spikes), window=window)[0]
    assert "(iterations 40, 41, 42, 43, 44 and 1 more, up to" in said(steps(**spikes, i45=20.0), window=window)[0]


def test_warm_up_is_over_after_ten_steps_unless_the_window_begins_before() -> None:
    assert steady_from(Window(35, 44)) == 11
    assert steady_from(Window(12, 44)) == 11
    assert steady_from(Window(5, 44)) == 5


@pytest.mark.parametrize(
    ("first", "second", "third", "named"),
    [
        (10.49, 10.3, 10.1, False),  # five per cent for the first step
        (10.51, 10.3, 10.1, True),
        (10.6, 10.24, 10.1, False),  # half of that for the second
        (10.6, 10.26, 10.1, True),
        (10.6, 10.3, 10.4, False),  # they fall towards the level of the others
    ],
)
def test_how_slow_the_first_steps_of_a_window_may_be(first: float, second: float, third: float, named: bool) -> None:
    iterations = [step._replace(seconds=step.seconds + step.index % 2 / 100) for step in steps()]
    for index, seconds in ((35, first), (36, second), (37, third)):
        iterations[index - 1] = iterations[index - 1]._replace(seconds=seconds + 0.005)
    found = anomalies(iterations, WINDOW, replace(run(10.005), spikes=()))
    assert any(text.startswith("warm-up reaches into the window") for text in found) is named


def test_the_first_step_is_compared_with_the_later_ones() -> None:
    found = said(steps(i35=10.45, i36=10.45, i37=10.45, i38=9.5, i39=9.5, i40=9.5, i41=9.5, i42=9.5, i43=9.5, i44=9.5))
    assert "warm-up reaches into the window: its first step takes 10% longer than later ones" in found


def test_a_window_of_six_steps_is_too_short_to_see_warm_up() -> None:
    odd = {"i35": 10.4, "i36": 10.4, "i37": 10.4}
    short = {f"i{index}": 9.6 for index in range(38, 42)}
    assert any(text.startswith("warm-up") for text in said(steps(**odd, **short), window=Window(35, 41)))
    assert not any(text.startswith("warm-up") for text in said(steps(**odd, **short), window=Window(35, 40)))


def test_drift_below_two_per_cent_is_not_worth_a_word() -> None:
    def drifting(change: float) -> tuple[str, ...]:
        first = {f"i{index}": 10.0 for index in range(11, 24)}
        last = {f"i{index}": 10.0 * (1 + change) for index in range(38, 51)}
        return said(steps(**first, **last), window=Window(24, 37))

    assert drifting(0.019) == ()
    assert drifting(0.021) == ("steps become slower: +2.1% from iteration 11 to 50 (clocks, temperature, neighbors?)",)
    assert drifting(-0.03)[0].startswith("steps become faster: -3.0% from iteration 11 to 50")


def test_skipped_steps_are_counted_and_named() -> None:
    iterations = [item._replace(skipped=item.index in (3, 9)) for item in steps()]
    assert said(iterations) == ("the optimizer skipped 2 steps (iterations 3, 9)",)


@pytest.mark.parametrize(("planned", "named"), [(4400.0, False), (4300.0, True), (5800.0, False), (6000.0, True)])
def test_tflops_of_the_log_may_be_fifteen_per_cent_off_the_plans(planned: float, named: bool) -> None:
    found = said(steps(), planned)
    assert bool(found) is named
    if named:
        assert found[0].startswith(f"TFLOPS and step time of the log make {5000 / planned:.2f} times the work")


# Several runs


def test_a_decision_to_the_digit() -> None:
    runs = [run(10.0), run(10.4)]
    found = decide(runs, 10.0, tolerance=0.2, reference_error=0.01)
    middle = math.sqrt(1.04)
    # Two days of one run each: their scatter is pooled with the stated variance of a day's mean.
    day, single = STATED.day**2, STATED.run**2
    prior = (day + single) ** 2 / (day**2 / 6 + single**2 / 6)
    variance = (prior * (day + single) + math.log(1.04) ** 2 / 2) / (prior + 1)
    half = t_quantile(ERROR_RATE, prior + 1) * math.sqrt(variance / 2 + 0.01**2)
    assert (found.ratio, found.limit, found.runs) == (pytest.approx(middle), pytest.approx(1.2), 2)
    assert found.low == pytest.approx(middle * math.exp(-half))
    assert found.high == pytest.approx(middle * math.exp(half), rel=1e-3)
    assert found.steady_half == pytest.approx(middle * math.expm1(half))
    assert found.resolution == pytest.approx((found.high - found.low) / 2)
    assert (found.answer, found.more_runs) == ("pass", None)


def test_a_smaller_error_rate_needs_more() -> None:
    assert decide([run(9.6)], 10.0).answer == "pass"
    assert decide([run(9.6)], 10.0, error_rate=0.001).answer == "inconclusive"


def test_a_change_is_real_where_its_interval_leaves_out_one() -> None:
    assert not Change(1.1, 1.0, 1.2).is_real
    assert Change(1.1, 1.01, 1.2).is_real
    assert Change(0.9, 0.8, 0.99).is_real
    assert not Change(0.9, 0.8, 1.0).is_real


def test_the_interval_of_a_comparison_is_made_of_the_two_sides() -> None:
    one, other = [run(10.0)], [run(11.0), run(11.0)]
    found = compare_times(one, other)
    before, after = level(one, earlier=squares(batches(other))), level(other, earlier=squares(batches(one)))
    assert found.ratio == pytest.approx(1.1)
    above = before.high - before.steady  # with the stalls that nobody saw
    assert math.log(found.ratio / found.low) == pytest.approx(math.hypot(above, after.half))
    swapped = compare_times(other, one)
    assert (swapped.low, swapped.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_what_a_day_does_it_does_to_both_sides_of_a_comparison() -> None:
    apart = [replace(run(seconds), day=day) for seconds, day in ((10.0, "1"), (10.2, "2"))]
    together = [replace(item, day="1") for item in apart]
    ratios = [compare_times(side[:1], side[1:]) for side in (apart, together)]
    assert ratios[1].high < ratios[0].high
    unknown = compare_times([run(10.0)], [run(10.2)])
    assert unknown.high == pytest.approx(ratios[0].high)


def test_stalls_count_in_a_comparison() -> None:
    stalling = replace(run(10.0), stalls=(1.0,) * 40)
    assert compare_times([run(10.0)], [stalling]).ratio == pytest.approx(1.1)


def losses(*values: float | None) -> list[Iteration]:
    return [Iteration(index, len(values), 1.0, loss=value) for index, value in enumerate(values, 1)]


def test_losses_that_are_no_numbers_are_not_compared() -> None:
    assert loss_difference(losses(2.0, math.nan, 4.0), losses(2.2, 9.0, 4.0)) == (1, pytest.approx(0.1))
    assert loss_difference(losses(2.0, 3.0), losses(math.inf, None)) is None
    assert loss_difference(losses(0.0), losses(1.0)) is None


# Simulation


def test_a_run_without_noise_has_the_true_step_time() -> None:
    calm = simulate(Noise("none", 0.0, 0.0), random.Random(1))
    assert (calm.seconds, calm.error, calm.count) == (1.0, 0.0, 10)
    drifting = simulate(Noise("drift", 0.0, 0.0, drift=0.05), random.Random(1))
    assert drifting.seconds == pytest.approx(1.0), "the window's centre has the true speed"
    assert drifting.error > 0


# Configurations, software, baselines


def test_a_configuration_is_what_decides_the_speed(tmp_path: Path) -> None:
    found = configuration(plan_for(tmp_path, **PUBLISHED, NCCL_ALGO="Ring"))
    assert found["environment"] == {"NCCL_ALGO": "Ring"}, "the caller's variables, not the recipe's"
    assert (found["profiled"], found["checkpoints"], found["measured"]) == (None, False, (35, 44))
    assert (found["gpus"], found["tp"], found["fp8_recipe"]) == (128, 2, "cs")
    profiled = configuration(plan_for(tmp_path, **PUBLISHED, ENABLE_PROFILE="true"))
    assert profiled["profiled"] == "nsys"
    key = configuration_key(plan_for(tmp_path, **PUBLISHED))
    assert len(key) == 12
    assert set(key) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("image", "software", "expected"),
    [
        ("/images/nvidia+nemo+26.02.01.sqsh", {"torch": "2"}, "nemo:26.02.01"),
        ("/images/ours.sqsh", {"torch": "2"}, "ours.sqsh"),
        (None, {"torch": "2.9", "megatron_bridge": "0.3.1"}, "Megatron-Bridge 0.3.1, torch 2.9"),
        (None, {"megatron_core": "0.16.1"}, "megatron-core 0.16.1"),
        (None, {}, "unknown software"),
        (None, "text", "unknown software"),
    ],
)
def test_software_is_a_release_an_image_or_versions(tmp_path, image, software, expected):
    record = make_run(tmp_path)
    plan = replace_plan(record, image)
    assert software_of(replace(plan, manifest={**plan.manifest, "job": {"software": software}})) == expected


def replace_plan(record: RunRecord, image: str | None) -> RunRecord:
    import msgspec

    return replace(record, plan=msgspec.structs.replace(record.plan, image=image))


def baseline(title: str, *seconds: float) -> Baseline:
    runs = tuple(BaselineRun(f"r{number}", value, 0.0) for number, value in enumerate(seconds))
    return Baseline("key", title, "nemo:1", 5.0, runs)


def test_a_baseline_is_the_mean_of_its_runs_with_its_error() -> None:
    found = baseline("a", 10.0, 10.02)
    assert found.seconds == pytest.approx(10.01)
    assert found.relative_error(PastRuns()) == pytest.approx(steady_error(found.times))
    record = [
        PastRun("key nemo:1", run_id, run(seconds)) for run_id, seconds in (("r0", 10.0), ("x", 10.01), ("y", 10.0))
    ]
    record += [PastRun(f"c{at}", f"{at} {n}", run(10.0 + n / 100)) for at in range(9) for n in range(3)]
    assert found.relative_error(PastRuns(record)) < 0.2 * found.relative_error(PastRuns()), (
        "the site knows how it scatters"
    )


def test_a_baseline_keeps_what_its_runs_lost_to_stalls(tmp_path: Path) -> None:
    stalling = replace(run(5.0), stalls=(1.0,) * 40, day="2026-11-01", nodes="a,b")
    (found,) = set_baselines(tmp_path, [(make_run(tmp_path), stalling)])
    assert found.seconds == pytest.approx(5.5)
    (time,) = found.times
    assert (time.stalls, time.steps, time.day, time.nodes) == (stalling.stalls, 400, "2026-11-01", "a,b")
    assert baselines(tmp_path) == [found]


def test_baselines_are_kept_by_title_and_removed_by_key(tmp_path: Path) -> None:
    large = make_run(tmp_path, log=steady_log(5000))
    small = make_run(tmp_path, log=steady_log(5000), variables=PUBLISHED | {"JOB_TOTAL_GPUS": "256"})
    new = set_baselines(tmp_path, [(small, run(5.0)), (large, run(5.2)), (small, run(5.1))])
    assert [(item.title, len(item.runs)) for item in new] == [
        ("llama3.1 405b mbridge fp8 (cs) on 128 gb200", 1),
        ("llama3.1 405b mbridge fp8 (cs) on 256 gb200", 2),
    ]
    assert baselines(tmp_path) == new
    assert remove_baselines(tmp_path, [new[1].key]) == [new[1]]
    assert baselines(tmp_path) == [new[0]]
    with pytest.raises(RequestError, match="no baseline x\n  -> llmb-run baseline list"):
        remove_baselines(tmp_path, [new[0].key, "x"])
    assert baselines(tmp_path) == [new[0]], "all or nothing"
    with pytest.raises(RequestError, match="no run to make a baseline of\n  -> name successful runs"):
        set_baselines(tmp_path, [])


def test_a_baseline_without_a_time_is_damage(tmp_path: Path) -> None:
    set_baselines(tmp_path, [(make_run(tmp_path), run(0.0))])
    with pytest.raises(RecordError, match="has a baseline without runs or times\n  -> correct or remove the file"):
        baselines(tmp_path)


def test_what_a_run_is_compared_with_says_how_many_runs_and_when(tmp_path: Path) -> None:
    first, second, third = (make_run(tmp_path, log=steady_log(5000)) for _ in range(3))
    known = set_baselines(tmp_path, [(first, run(5.0)), (second, run(5.2))])
    (found,) = baseline_references(third, known, PastRuns())
    assert (found.kind, found.seconds, found.software) == ("baseline", pytest.approx(math.sqrt(26)), "nemo:26.02.01")
    assert found.same_software
    assert found.source.startswith("this site's baseline of 2 runs, 20")
    assert found.error == known[0].relative_error(PastRuns())
    assert baseline_references(first, known, PastRuns()) == [], "not with itself"
    single = set_baselines(tmp_path, [(first, run(5.0))])
    other = [replace_software(single[0], "nemo:26.04"), *single]
    found_two = baseline_references(third, other, PastRuns())
    assert [item.same_software for item in found_two] == [True, False], "that of its own software first"
    assert found_two[0].source.startswith("this site's baseline of 1 run, ")


def replace_software(item: Baseline, software: str) -> Baseline:
    import msgspec

    return msgspec.structs.replace(item, software=software)


def test_equal_runs_differ_in_nothing_and_others_in_what_is_different(tmp_path: Path) -> None:
    one, same = (make_run(tmp_path, log=steady_log(5000)) for _ in range(2))
    assert differences([one], [same]) == []
    slower = make_run(tmp_path / "other", variables=PUBLISHED | {"TP": "4", "TIME_LIMIT": "03:00:00", "NCCL_ALGO": "x"})
    found = {name: (before, after) for name, before, after in differences([one], [slower])}
    assert found["tp"] == ("2", "4")
    assert found["env NCCL_ALGO"] == ("-", "x")
    assert not {"time_limit", "install", "workload_folder", "experiment_name", "mounts", "preflight"} & found.keys()
    assert list(found).index("tp") < list(found).index("env NCCL_ALGO"), "the plan first"


# Verdicts


def test_other_software_widens_the_tolerance_by_what_releases_differ(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **PUBLISHED)
    own = Reference("published", 10.0, "nemo:26.02.01", "a table", same_software=True)
    same = judge_runs(plan, [run(10.0)], own)
    assert same.decision.limit == pytest.approx(1.05)
    assert same.text.startswith("inconclusive, equal ± 7.1% (limit 5.0% slower; stated scatter): about ")
    other = judge_runs(plan, [run(10.0)], replace(own, same_software=False))
    assert other.decision.limit == pytest.approx(1.05 * (1 + release_spread(plan).slowest))
    assert other.text.startswith("indication: pass, equal ± ")


@pytest.mark.parametrize(
    ("seconds", "end"),
    [
        (10.5, ": too close to the limit to tell"),
        (10.2, " more runs, on other days, would decide"),
        (12.2, ")"),
        (9.0, ")"),
    ],
)
def test_an_open_verdict_says_what_it_would_take(tmp_path: Path, seconds: float, end: str) -> None:
    own = Reference("published", 10.0, "nemo:26.02.01", "a table", same_software=True)
    verdict = judge_runs(plan_for(tmp_path, **PUBLISHED), [run(seconds)], own)
    assert verdict.text.endswith(end)
    assert verdict.difference == pytest.approx(seconds / 10 - 1)
    assert str(own) == "10 s (a table; nemo:26.02.01)"
