"""Statistics of a few values, and the distributions behind verdicts.

Student's t and Fisher's F by the standard library alone: a login node has no SciPy, and tens of megabytes for two
functions are too many. Tests hold these against published tables and against each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """The count, mean, standard deviation and median of a sample of at least one value; ``summarize`` makes it.

    All but ``count`` are in the unit of the values. ``std`` is the sample standard deviation (n - 1), 0 for a single
    value.
    """

    count: int
    """How many values there are."""
    mean: float
    std: float
    median: float


def summarize(values: Sequence[float]) -> Summary | None:
    """Return the count, mean, standard deviation and median of ``values``; None of no values.

    They must be finite, in any order; the deviation is that of a sample (n - 1).
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    return Summary(len(values), mean, deviation(values), median(sorted(values)))


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1) of ``values``, in any order; 0 for a single value.

    At least one value is needed. ``statistics.stdev`` takes ten times as long.
    """
    if len(values) == 1:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1))


def robust_deviation(values: Sequence[float]) -> float:
    """Return an estimate of the standard deviation of ``values`` that a few odd values do not widen.

    It is 1.4826 times the median distance from the median. At least one value is needed, in any order.
    """
    middle = median(sorted(values))
    return 1.4826 * median(sorted([abs(value - middle) for value in values]))


def median(ordered: Sequence[float]) -> float:
    """Return the median of ``ordered``, at least one value, which must be sorted already.

    Of an even number it is the mean of the middle two.
    """
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


_TINY = 1e-300
_MOST_TERMS = 100_000


def t_tail(t: float, degrees: float) -> float:
    """Return P(T > t), the probability that Student's T with ``degrees`` degrees of freedom exceeds ``t``.

    ``t`` may be negative, and ``degrees`` any positive number.
    """
    half = 0.5 * beta_cdf(degrees / 2, 0.5, degrees / (degrees + t * t))
    return half if t >= 0 else 1 - half


def t_quantile(rate: float, degrees: float) -> float:
    """Return the t that Student's T exceeds with probability ``rate``, which must be above 0 and below one half.

    So t is positive; 10,000 stands for all that is more. ``degrees`` of freedom are rounded to tenths, and are at least
    0.5; results are kept for the process.
    """
    return _t_quantile(rate, max(round(degrees, 1), 0.5))


@functools.lru_cache(maxsize=4096)
def _t_quantile(rate: float, degrees: float) -> float:
    """Return the t, from 0 to 10,000, that Student's T with ``degrees`` of freedom exceeds with chance ``rate``.

    Results are kept, because the search for them takes long.
    """
    return _bisect_root(lambda t: t_tail(t, degrees) - rate, 0.0, 1e4)


def f_tail(f: float, above: float, below: float) -> float:
    """Return P(F > f), the probability that a ratio of two sample variances exceeds ``f`` by chance.

    That is where the true variances are equal. ``above`` and ``below`` are the degrees of freedom of the ratio's
    numerator and denominator. 1 where ``f`` is not positive.
    """
    return 1.0 if f <= 0 else beta_cdf(below / 2, above / 2, below / (below + above * f))


def summed_degrees(one: float, one_degrees: float, other: float, other_degrees: float) -> float:
    """Return the degrees of freedom of the sum of the variances ``one`` and ``other`` (Satterthwaite).

    ``one_degrees`` and ``other_degrees`` are their own degrees of freedom, which must be positive. 0 where both
    variances are 0.
    """
    return (one + other) ** 2 / max(one**2 / one_degrees + other**2 / other_degrees, 1e-300)


def beta_cdf(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), a and b positive: 0 for ``x`` up to 0, 1 from 1 on."""
    if not 0 < x < 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The fraction converges fast only here; elsewhere by symmetry: I_x(a, b) = 1 - I_(1-x)(b, a).
    if x < (a + 1) / (a + b + 2):
        return front / a * _inverse_fraction(1.0, _beta_terms(a, b, x))
    return 1 - front / b * _inverse_fraction(1.0, _beta_terms(b, a, 1 - x))


def _beta_terms(a: float, b: float, x: float) -> Iterator[tuple[float, float]]:
    """Yield the (numerator, denominator) pairs of the incomplete beta function's continued fraction (DLMF 8.17.22).

    From the first one on; the denominator is always 1. Ends after ``2 * _MOST_TERMS - 1`` pairs. ``a``, ``b`` and ``x``
    are the function's arguments.
    """
    for m in range(_MOST_TERMS):
        if m:
            yield m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), 1.0
        yield -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)), 1.0


def _inverse_fraction(first: float, terms: Iterable[tuple[float, float]]) -> float:
    """Return 1 / (first + a / (b + a' / (b' + ...))) for the pairs (a, b) in ``terms``.

    Computed by Lentz's method until the value no longer changes, or ``terms`` ends.
    """
    found = c = first
    d = 0.0
    for a, b in terms:
        d = 1 / _nonzero(b + a * d)
        c = _nonzero(b + a / c)
        found *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return 1 / found


def _nonzero(value: float) -> float:
    """Return ``value``, or a tiny positive number where it is (nearly) 0, so that it can be divided by."""
    return value if abs(value) > _TINY else _TINY


def digamma(x: float) -> float:
    """Return the derivative of ln Gamma at ``x``, which must be positive (DLMF 5.11.2 after 5.5.2)."""
    shifted = 0.0
    while x < 8:
        shifted, x = shifted - 1 / x, x + 1
    return shifted + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6)


def trigamma(x: float) -> float:
    """Return the second derivative of ln Gamma at ``x``, which must be positive."""
    shifted = 0.0
    while x < 8:
        shifted, x = shifted + 1 / x**2, x + 1
    return shifted + 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + 1 / (42 * x**7)


def trigamma_inverse(value: float) -> float:
    """Return the ``x`` between 0.001 and 10,000 at which ``trigamma`` has ``value``.

    Where there is none between them, nearly the one of these bounds that comes closest: 10,000 for 0 and less.
    """
    # By the logarithm of x, which spans seven orders of magnitude.
    return math.exp(_bisect_root(lambda log: trigamma(math.exp(log)) - value, math.log(1e-3), math.log(1e4)))


def _bisect_root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return where the function ``falling``, which falls, crosses zero between ``low`` and ``high``; by bisection.

    Where it does not, nearly ``low`` if it is negative there, and nearly ``high`` otherwise.
    """
    # So many halvings exhaust the precision of a float.
    for _ in range(70):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2
