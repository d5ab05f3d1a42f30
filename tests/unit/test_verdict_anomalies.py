"""What a result says of steps that make its figure doubtful."""

from __future__ import annotations

import random

from llmb_common.results.steps import anomalies, estimate, flops_mismatch, logged_tflop
from llmb_common.timing.records import Iteration
from llmb_common.timing.statistics import Window

WINDOW = Window(35, 44)


def steps(seconds=10.0, *, total=50, tflops=500.0, **changed):
    """A calm run; ``changed`` maps ``i37=40.0`` to other times of single iterations."""
    source = random.Random(4)
    found = []
    for index in range(1, total + 1):
        time = changed.get(f"i{index}", seconds * (1 + source.gauss(0, 0.002)))
        found.append(Iteration(index, total, time, tflops=tflops * seconds / time))
    return found


def said(iterations, window=WINDOW, step_tflop=None):
    inside = window.select(iterations)
    found = anomalies(iterations, window, estimate([item.seconds for item in inside]))
    return found + (flops_mismatch(logged_tflop(inside), step_tflop) if step_tflop else ())


def test_a_calm_run_has_nothing_to_say():
    assert said(steps(), step_tflop=5000.0) == ()


def test_spikes_are_named_with_their_price():
    (text,) = said(steps(i37=40.0, i41=20.0))
    assert text.startswith("2 of 10 measured steps are unlike the others (iterations 37, 41, up to 4 times their time)")
    assert text.endswith(": the steady step time leaves them out, the mean (+40.0%) does not")


def test_a_fast_step_is_unlike_the_others_too():
    (text,) = said(steps(20.0, i44=14.66))
    assert "is unlike the others (iteration 44, 0.73 times" in text


def test_drift_over_the_steady_steps_is_named():
    drifting = [Iteration(item.index, item.total, item.seconds * (1 + 0.001 * item.index)) for item in steps()]
    (text,) = said(drifting)
    assert text.startswith("steps become slower: +2.4% from iteration 11 to 50")


def test_noise_is_not_drift():
    source = random.Random(3)
    for _ in range(100):
        noisy = [Iteration(index, 50, 10 * (1 + source.gauss(0, 0.03))) for index in range(1, 51)]
        assert not any("steps become" in text for text in said(noisy))


def test_a_spike_is_not_drift():
    (text,) = said(steps(i39=400.0))
    assert "unlike the others" in text


def test_warm_up_inside_the_window_is_named():
    iterations = steps(i5=30.0, i6=12.0, i7=10.5)
    found = said(iterations, Window(5, 44))
    assert any("warm-up reaches into the window: its first step takes 200% longer" in text for text in found)
    assert not any("warm-up" in text for text in said(iterations))


def test_skipped_steps_anywhere_are_named():
    iterations = [Iteration(item.index, item.total, item.seconds, skipped=item.index in (2, 9)) for item in steps()]
    assert said(iterations) == ("the optimizer skipped 2 steps (iterations 2, 9)",)


def test_many_iterations_are_not_all_listed():
    iterations = [Iteration(item.index, item.total, item.seconds, skipped=True) for item in steps()]
    assert said(iterations) == ("the optimizer skipped 50 steps (iterations 1, 2, 3, 4, 5 and 45 more)",)


def test_tflops_that_contradict_the_step_time_are_named():
    (text,) = said(steps(), step_tflop=2500.0)
    assert text.startswith("TFLOPS and step time of the log make 2.00 times the work of a planned step")
    assert said(steps(), step_tflop=4500.0) == (), "engines count differently"


def test_tflops_that_are_no_number_say_nothing():
    broken = [Iteration(item.index, item.total, item.seconds, tflops=float("nan")) for item in steps()]
    assert said(broken, step_tflop=5000.0) == ()


def test_a_short_window_is_no_reason_to_fail():
    assert said(steps(total=3), Window(1, 3)) == ()
