"""Student's t, F, gamma and their helpers, against published tables and against each other."""

from __future__ import annotations

import math
import random

import pytest

from llmb_common.results.distributions import (
    beta_cdf,
    digamma,
    f_tail,
    gamma_quantile,
    t_quantile,
    t_tail,
    trigamma,
    trigamma_inverse,
)

EULER = 0.5772156649015329


@pytest.mark.parametrize(
    ("rate", "degrees", "quantile"),
    [
        (0.05, 1, 6.3138),
        (0.05, 2, 2.9200),
        (0.05, 5, 2.0150),
        (0.025, 6, 2.4469),
        (0.025, 10, 2.2281),
        (0.005, 3, 5.8409),
        (0.05, 30, 1.6973),
        (0.05, 1000, 1.6464),
    ],
)
def test_t_quantiles_are_those_of_the_tables(rate, degrees, quantile):
    assert t_quantile(rate, degrees) == pytest.approx(quantile, abs=5e-5)
    assert t_tail(t_quantile(rate, degrees), degrees) == pytest.approx(rate)
    assert t_tail(-t_quantile(rate, degrees), degrees) == pytest.approx(1 - rate)


def test_t_of_one_degree_is_cauchys():
    for t in (0.1, 1.0, 7.0):
        assert t_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi)


@pytest.mark.parametrize(
    ("above", "below", "f"), [(1, 6, 5.9874), (2, 6, 5.1433), (4, 6, 4.5337), (6, 4, 6.1631), (10, 20, 2.3479)]
)
def test_f_tails_are_those_of_the_tables(above, below, f):
    assert f_tail(f, above, below) == pytest.approx(0.05, abs=1e-5)
    assert f_tail(0.0, above, below) == 1.0


def test_t_squared_is_f_with_one_degree_above():
    assert f_tail(2.2**2, 1, 7) == pytest.approx(2 * t_tail(2.2, 7))


def test_beta_is_a_distribution():
    assert beta_cdf(2, 3, 0) == 0.0
    assert beta_cdf(2, 3, 1) == 1.0
    assert beta_cdf(1, 1, 0.3) == pytest.approx(0.3)
    assert beta_cdf(2, 3, 0.4) + beta_cdf(3, 2, 0.6) == pytest.approx(1)
    assert beta_cdf(2, 3, 0.4) == pytest.approx(0.5248), "6 x^2 - 8 x^3 + 3 x^4"


@pytest.mark.parametrize(("shape", "rate", "quantile"), [(1, 0.95, 2.9957), (2, 0.95, 4.7439), (10, 0.05, 5.4254)])
def test_gamma_quantiles_are_close_to_the_tables(shape, rate, quantile):
    z = {0.95: 1.6449, 0.05: -1.6449}[rate]
    assert gamma_quantile(shape, z) == pytest.approx(quantile, rel=0.02)


def test_the_lower_gamma_quantile_of_a_small_shape_is_never_negative():
    assert gamma_quantile(0.02, -2) == 0.0


def test_polygamma_at_one_and_a_half():
    assert digamma(1) == pytest.approx(-EULER)
    assert digamma(0.5) == pytest.approx(-EULER - 2 * math.log(2))
    assert trigamma(1) == pytest.approx(math.pi**2 / 6)
    assert trigamma(0.5) == pytest.approx(math.pi**2 / 2)
    for x in (0.3, 3.0, 40.0):
        assert trigamma_inverse(trigamma(x)) == pytest.approx(x)


def test_the_log_of_a_sample_variance_has_the_mean_that_digamma_says():
    """ln(s^2 / sigma^2) of f degrees: digamma(f / 2) - ln(f / 2), with variance trigamma(f / 2)."""
    source = random.Random(1)
    logs = [math.log(source.gammavariate(2, 1) / 2) for _ in range(20000)]
    assert sum(logs) / len(logs) == pytest.approx(digamma(2) - math.log(2), abs=0.02)
    mean = sum(logs) / len(logs)
    assert sum((log - mean) ** 2 for log in logs) / len(logs) == pytest.approx(trigamma(2), rel=0.05)
