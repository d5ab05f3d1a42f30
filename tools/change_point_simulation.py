"""How often changes of level are seen where there are none, and how often those that there are, by simulation.

    python -m tools.change_point_simulation [--trials 1000] [--seed 1]

prints the tables of ``docs/benchmarks.md``, in per cent of the trials.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median

from llmb_common.results.history import ALARM_RATE, LEAST_DAYS, Prior, day_prior, level_changes, standing
from llmb_common.results.scatter import STATED
from tools.markdown import lines, print_tables

DAYS = 30
DEVIATIONS = (0.005, 0.01, 0.02, 0.03)
SHIFTS = (0.02, 0.04, 0.06)
PRIORS = ("stated", "site")
"""What is stated, or what a site's history says: the truth to within 15 %, worth 14 runs."""

_CHANGED = 20  # the day of the change that alarms wait for
_PATIENCE = 10  # days after it


def _normal(source: random.Random, deviation: float) -> list[float]:
    return [source.gauss(0, deviation) for _ in range(DAYS)]


def _heavy(source: random.Random, deviation: float) -> list[float]:
    """Student's t with three degrees of freedom, scaled to the standard deviation."""
    chi = []
    for _ in range(DAYS):
        squares = [source.gauss(0, 1) ** 2 for _ in range(3)]
        chi.append(math.sqrt(math.fsum(squares) / 3))
    return [deviation / math.sqrt(3) * source.gauss(0, 1) / value for value in chi]


def _shared(source: random.Random, deviation: float) -> list[float]:
    """Two runs a day, which share half of their variance."""
    half = deviation * math.sqrt(0.5)
    found = []
    for _ in range(DAYS):
        shared = source.gauss(0, half)
        runs = [source.gauss(0, half) for _ in range(2)]
        found.append(shared + fmean(runs))
    return found


def _correlated(source: random.Random, deviation: float) -> list[float]:
    """A first-order autoregressive process of 0.5 from day to day."""
    state, found = source.gauss(0, 1), []
    for _ in range(DAYS):
        state = 0.5 * state + math.sqrt(0.75) * source.gauss(0, 1)
        found.append(deviation * state)
    return found


NOISES: dict[str, Callable[[random.Random, float], list[float]]] = {
    "normal": _normal,
    "t(3)": _heavy,
    "two runs a day": _shared,
    "correlated 0.5": _correlated,
}


def prior_of(name: str, deviation: float, source: random.Random) -> Prior:
    """One of ``PRIORS``."""
    return day_prior(STATED, [1]) if name == "stated" else Prior(deviation * math.exp(source.gauss(0, 0.15)), 14.0)


def false_alarms(
    noise: str, prior: str, deviation: float, trials: int, source: random.Random
) -> tuple[float, float, float]:
    """Shares of series without a change: reported at the end; alarmed on any day; of the days that were looked at."""
    reported = alarmed = looks = 0
    for _ in range(trials):
        days, known = NOISES[noise](source, deviation), prior_of(prior, deviation, source)
        reported += bool(level_changes(days, known))
        rung = [_rings(days[:count], known) for count in range(LEAST_DAYS, DAYS + 1)]
        alarmed += any(rung)
        looks += sum(rung)
    return reported / trials, alarmed / trials, looks / trials / (DAYS + 1 - LEAST_DAYS)


def _rings(days: Sequence[float], prior: Prior) -> bool:
    return standing(days, level_changes(days, prior, ALARM_RATE)) is not None


def found(
    profile: Sequence[int], shift: float, prior: str, deviation: float, trials: int, source: random.Random
) -> float:
    """The share of series in which as many changes are seen as ``profile`` (the level of each day, in shifts) has."""
    edges = sum(a != b for a, b in itertools.pairwise(profile))
    seen = 0
    for _ in range(trials):
        days = [noise + shift * level for noise, level in zip(_normal(source, deviation), profile, strict=True)]
        seen += len(level_changes(days, prior_of(prior, deviation, source))) == edges
    return seen / trials


def delays(shift: float, prior: str, deviation: float, trials: int, source: random.Random) -> list[float]:
    """Days from the change to the alarm, of each series in which it did not ring before; infinite: not within ten."""
    waited = []
    for _ in range(trials):
        days, known = _normal(source, deviation), prior_of(prior, deviation, source)
        days = [noise + shift * (day >= _CHANGED) for day, noise in enumerate(days)]
        if _rings(days[:_CHANGED], known):
            continue
        rung = (day for day in range(1, _PATIENCE + 1) if _rings(days[: _CHANGED + day], known))
        waited.append(next(rung, math.inf))
    return waited


def table(trials: int, seed: int) -> Iterator[str]:
    """The lines of two Markdown tables."""
    yield from _false(trials, seed)
    yield ""
    yield from _power(max(1, trials // 2), seed)


def _false(trials: int, seed: int) -> Iterator[str]:
    def rows() -> Iterator[Sequence[str]]:
        for noise, deviation, prior in itertools.product(NOISES, DEVIATIONS, PRIORS):
            source = random.Random(f"{seed} {noise} {deviation} {prior}")
            shares = false_alarms(noise, prior, deviation, trials, source)
            cells = (f"{100 * share:.{digits}f}" for share, digits in zip(shares, (1, 1, 2), strict=True))
            yield noise, f"{100 * deviation:.1f} %", prior, *cells

    head = ("Days without a change", "Scatter", "Prior", "reported after 30", "alarm on any of 27", "of all looks")
    return lines(head, rows(), words=3)


PROFILES = ([0] * 15 + [1] * 15, [0] * 27 + [1] * 3, [0] * 10 + [1] * 10 + [0] * 10)
"""The level of each day: half of them, the last three, ten in the middle."""


def _power(trials: int, seed: int) -> Iterator[str]:
    def rows() -> Iterator[Sequence[str]]:
        for deviation, prior, shift in itertools.product(DEVIATIONS, PRIORS, SHIFTS):
            source = random.Random(f"{seed} {deviation} {prior} {shift}")
            shares = [found(profile, shift, prior, deviation, trials, source) for profile in PROFILES]
            waited = delays(shift, prior, deviation, trials, source) or [math.inf]
            shares.append(sum(math.isfinite(days) for days in waited) / len(waited))
            typical = median(waited)
            days = f"{typical:g} days" if math.isfinite(typical) else "more"
            cells = (f"{100 * share:.0f}" for share in shares)
            yield f"{100 * deviation:.1f} %", prior, f"{100 * shift:.0f} %", *cells, days

    seen = ("15 of 30 days", "the last 3", "10 in the middle", "alarm within 10 days", "median")
    return lines(("Scatter", "Prior", "Change", *seen), rows(), words=2)


def main() -> None:
    """Print the tables."""
    print_tables(__doc__, {"table": table})


if __name__ == "__main__":
    main()
