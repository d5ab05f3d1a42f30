"""The statistics of results to the digit, and the boundaries of what is called odd."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.errors import RecordError, RequestError
from llmb_common.results.anomalies import anomalies, flops_mismatch, instability, logged_tflop, steady_from
from llmb_common.results.baselines import (
    Baseline,
    BaselineRun,
    baseline_references,
    baselines,
    remove_baselines,
    set_baselines,
)
from llmb_common.results.comparison import Change, compare_times, differences, loss_difference
from llmb_common.results.configuration import configuration, configuration_key, software_of
from llmb_common.results.decision import PRIOR_DEVIATION, PRIOR_RUNS, decide, mean_seconds, run_variance, t_quantile
from llmb_common.results.estimate import StepTime, estimate, spike_positions
from llmb_common.results.references import Reference, release_spread
from llmb_common.results.simulation import Noise, answers, simulate, table
from llmb_common.results.verdict import judge_runs
from llmb_common.runs.record import RunRecord
from llmb_common.timing.records import Iteration
from llmb_common.timing.statistics import Window
from support.runs import PUBLISHED, make_run, plan_for, steady_log

WINDOW = Window(35, 44)


def run(seconds: float, error: float = 0.0) -> StepTime:
    return StepTime(seconds, error, count=10, mean=seconds)


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
    assert spike_positions([*noisy, 10 + limit - 0.01]) == ()
    assert spike_positions([9.0, 9.5, 10.0, 10.0, 10.5, 11.0, 10 + limit + 0.01]) == (6,)
    assert spike_positions([10.0] * 5 + [10.5]) == (), "just five per cent"
    assert spike_positions([10.0] * 5 + [10.51, 9.49]) == (5, 6)
    assert spike_positions([1.0, 5.0]) == ()
    assert spike_positions([1.0, 1.0, 5.0]) == (2,)


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
    assert "(iterations 40, 41, 42, 43, 44, ..., up to" in said(steps(**spikes, i45=20.0), window=window)[0]


def test_a_quarter_of_spikes_is_still_a_run() -> None:
    assert not instability(StepTime(1.0, 0.0, count=9, spikes=(0, 1, 2)))
    assert instability(StepTime(1.0, 0.0, count=8, spikes=(0, 1, 2)))


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


def test_the_variance_of_runs_is_pooled_with_the_prior() -> None:
    variance, degrees = run_variance([[run(10.0), run(10.4)], [run(20.0, 0.2)]])
    scatter = 2 * (0.2 / 10.2) ** 2
    within = (0.2 / 20.0) ** 2
    assert degrees == PRIOR_RUNS + 1
    assert variance == pytest.approx((PRIOR_RUNS * (PRIOR_DEVIATION**2 + within / 3) + scatter) / 7)
    assert mean_seconds([run(10.0), run(10.4)]) == pytest.approx(10.2)


def test_a_decision_to_the_digit() -> None:
    found = decide([run(10.0), run(10.4)], 10.0, tolerance=0.1, reference_error=0.01)
    variance, degrees = run_variance([[run(10.0), run(10.4)]])
    half = t_quantile(1 - 0.035, degrees) * 1.02 * math.sqrt(variance / 2 + 0.01**2)
    assert (found.ratio, found.limit, found.runs) == (pytest.approx(1.02), pytest.approx(1.1), 2)
    assert (found.low, found.high) == pytest.approx((1.02 - half, 1.02 + half))
    assert found.resolution == pytest.approx(half)
    assert (found.answer, found.more_runs) == ("pass", None)


def test_how_many_more_runs_would_decide() -> None:
    found = decide([run(10.2)], 10.0)
    assert found.answer == "inconclusive"

    def half(count: int) -> float:
        return t_quantile(0.965, PRIOR_RUNS + count - 1) * 1.02 * math.sqrt(PRIOR_DEVIATION**2 / count)

    needed = next(count for count in range(2, 32) if half(count) < 0.03)
    assert found.more_runs == needed - 1
    assert decide([run(10.5)], 10.0).more_runs is None
    edge = decide([run(10.42)], 10.0)
    assert edge.more_runs == next((n - 1 for n in range(2, 32) if _half(1.042, n) < 1.05 - 1.042), None)


def _half(ratio: float, count: int) -> float:
    return t_quantile(0.965, PRIOR_RUNS + count - 1) * ratio * math.sqrt(PRIOR_DEVIATION**2 / count)


def test_a_smaller_error_rate_needs_more() -> None:
    assert decide([run(9.9)], 10.0).answer == "pass"
    assert decide([run(9.9)], 10.0, error_rate=0.005).answer == "inconclusive"


def test_a_change_is_real_where_its_interval_leaves_out_one() -> None:
    assert not Change(1.1, 1.0, 1.2).is_real
    assert Change(1.1, 1.01, 1.2).is_real
    assert Change(0.9, 0.8, 0.99).is_real
    assert not Change(0.9, 0.8, 1.0).is_real


def test_the_interval_of_a_comparison_to_the_digit() -> None:
    found = compare_times([run(10.0)], [run(11.0), run(11.0)])
    variance, degrees = run_variance([[run(10.0)], [run(11.0), run(11.0)]])
    reach = t_quantile(0.975, degrees) * math.sqrt(variance * 1.5)
    assert found.ratio == pytest.approx(1.1)
    assert (found.low, found.high) == pytest.approx((1.1 * math.exp(-reach), 1.1 * math.exp(reach)))


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


def test_the_shares_of_a_cell_add_up() -> None:
    header, rule, *rows = table(3, 1)
    assert header == "| Noise | Runs | true ratio 1.00 | true ratio 1.03 | true ratio 1.05 | true ratio 1.08 |"
    assert rule == "|---|---:|---:|---:|---:|---:|"
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[1] for row in cells[:4]] == ["1", "3", "5", "10"]
    for row in cells:
        for cell in row[2:]:
            assert sum(map(float, cell.split(" / "))) == pytest.approx(100, abs=0.2)
    assert cells[3][2] == "100.0 / 0.0 / 0.0", "ten quiet runs at the reference pass"


def test_each_simulated_run_is_used_once() -> None:
    counted = answers([run(1.0)] * 7, 1.0, 3)
    assert sum(counted.values()) == 2
    assert answers([run(1.0)] * 4, 1.2, 1) == {"fail": 4}


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
def test_software_is_a_release_an_image_or_versions(
    tmp_path: Path, image: str | None, software: object, expected: str
) -> None:
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
    found = baseline("a", 10.0, 10.4)
    variance, _ = run_variance([[run(10.0), run(10.4)]])
    assert found.seconds == pytest.approx(10.2)
    assert found.relative_error == pytest.approx(math.sqrt(variance / 2))


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
    (found,) = baseline_references(third, known)
    assert (found.kind, found.seconds, found.software) == ("baseline", pytest.approx(5.1), "nemo:26.02.01")
    assert found.same_software
    assert found.source.startswith("this site's baseline of 2 runs, 20")
    assert found.error == known[0].relative_error
    assert baseline_references(first, known) == [], "not with itself"
    single = set_baselines(tmp_path, [(first, run(5.0))])
    other = [replace_software(single[0], "nemo:26.04"), *single]
    found_two = baseline_references(third, other)
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
    assert same.decision is not None
    assert same.decision.limit == pytest.approx(1.05)
    assert same.text.startswith("inconclusive, equal ± 5.9% (limit 5.0% slower): about ")
    other = judge_runs(plan, [run(10.0)], replace(own, same_software=False))
    assert other.decision is not None
    assert other.decision.limit == pytest.approx(1.05 * (1 + release_spread(plan).slowest))
    assert other.text.startswith("indication: pass, equal ± ")


@pytest.mark.parametrize(
    ("seconds", "end"),
    [(10.5, ": too close to the limit to tell"), (10.2, " more runs would decide"), (11.9, ")"), (9.0, ")")],
)
def test_an_open_verdict_says_what_it_would_take(tmp_path: Path, seconds: float, end: str) -> None:
    own = Reference("published", 10.0, "nemo:26.02.01", "a table", same_software=True)
    verdict = judge_runs(plan_for(tmp_path, **PUBLISHED), [run(seconds)], own)
    assert verdict.text.endswith(end)
    assert verdict.difference == pytest.approx(seconds / 10 - 1)
    assert str(own) == "10 s (a table; nemo:26.02.01)"
