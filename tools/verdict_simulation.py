"""How often the verdicts are wrong, by simulation: runs of known speed, with the noise that real runs show.

    python -m tools.verdict_simulation [--trials 1000] [--seed 1] [PART...]

prints tables of ``docs/benchmarks.md``, in per cent of the trials.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from llmb_common.results.comparison import compare_times
from llmb_common.results.decision import LOOKS, Answer, Decision, decide
from llmb_common.results.scatter import STATED, PastRun, PastRuns, Scatter
from llmb_common.results.sequential import REQUIRED, SuiteAttempt, next_decision, tolerance_of
from llmb_common.results.steps import StepTime, estimate
from tools.markdown import Table, lines, print_tables

RATIOS = (1.00, 1.03, 1.05, 1.065, 1.08)
"""Of the true mean step time to the reference. 1.05 is the tolerance itself: either answer may come there, seldom."""

_STEPS = 50
_WARM_UP = 10
_START = 1.5  # how many times as long the first steps of a slow start take
_WINDOW = slice(34, 44)  # iterations 35 to 44, the shorter and harder of the documented windows


@dataclass(frozen=True)
class Noise:
    """What makes runs of one speed differ. Standard deviations and drift as shares of the step time."""

    title: str
    run: float = 0.0
    """Between runs of a day."""
    step: float = 0.01
    """Between the steps of a run."""
    day: float = 0.0
    """Between days."""
    correlation: float = 0.0
    """Correlation of neighbouring steps."""
    stalls: float = 0.0
    """Share of steps that stall."""
    times: float = 4.0
    """How many times as long a stalled step takes."""
    drift: float = 0.0
    """How much slower the last step is than the first; the window's centre has the true speed."""

    slow: float = 0.0
    """Share of runs that are ``slower`` than the others: they got the other cluster, or a slow node."""
    slower: float = 0.0
    sticky: float = 0.0
    """How often a run is of the kind of the run before it on the same day; else it is drawn."""
    nodes: int = 0
    """Nodes of the cluster, of which each run gets half: ``slower`` is who gets the first; 0: not known."""
    tail: int = 0
    """Degrees of freedom of Student's t, by which runs of a day differ; 0: normal."""
    lottery: float = 0.0
    """What the slowest node of a run adds on average, exponentially distributed."""
    every: int = 0
    """Each step with a number that this divides stalls; 0: steps stall by chance."""
    stalling: float = 1.0
    """Share of days on which steps stall."""
    start: int = 0
    """A run's first steps take half as long again: at least those of the warm-up, and up to so many."""

    @property
    def mean(self) -> float:
        """True mean step time of runs whose steady steps take 1 s, over the steps after warm-up."""
        share = self.stalls
        if self.every:
            share = sum(step % self.every == 0 for step in range(_WARM_UP + 1, _STEPS + 1)) / (_STEPS - _WARM_UP)
        started = (self.start - _WARM_UP) / 2 / (_STEPS - _WARM_UP) if self.start else 0.0
        stalled = 1 + self.stalling * share * (self.times - 1) + started * (_START - 1)
        return stalled * (1 + self.slow * self.slower) * (1 + self.lottery)


NOISES = (
    Noise("runs 0.2 %", 0.002),
    Noise("runs 0.5 %", 0.005),
    Noise("runs 1 %", 0.01),
    Noise("runs 2 %, steps 3 %", 0.02, 0.03),
    Noise("runs 3 %", 0.03),
    Noise("runs 3 %, steps 5 %, correlated 0.7", 0.03, 0.05, correlation=0.7),
    Noise("runs 3 %, steps 3 %, correlated 0.9", 0.03, 0.03, correlation=0.9),
    Noise("runs 3 %, steps 2 %, drift of 5 %", 0.03, 0.02, drift=0.05),
)

DAYS = (
    Noise("days 1 %, runs 0.5 %", 0.005, day=0.01),
    Noise("days 2 %, runs 0.5 %", 0.005, day=0.02),
    Noise("days 3 %, runs 0.5 %", 0.005, day=0.03),
    Noise("days 1 %, runs 1 %", 0.01, day=0.01),
)

STICKY = Noise("half of the runs 5 % slower, a run like the last one in 80 %", 0.003, slow=0.5, slower=0.05, sticky=0.8)

MODELS = (
    Noise("independent: runs 1 %", 0.01),
    Noise("drift within runs: steps 3 %, correlated 0.9", 0.01, 0.03, correlation=0.9),
    Noise("days 2 %", 0.005, day=0.02),
    Noise("node lottery: 2 % on average, exponential", 0.003, lottery=0.02),
    STICKY,
    replace(STICKY, title="the same, 8 % slower", slower=0.08),
    Noise("regular stalls: every 25th step 3 times as long", 0.005, every=25, times=3.0),
    Noise("rare stalls: 1 % of the steps 3 times as long", 0.005, stalls=0.01, times=3.0),
    Noise("2.5 % of the steps 3 times as long", 0.005, stalls=0.025, times=3.0),
    Noise("stalls on a fifth of the days: 10 % of the steps twice as long", 0.005, stalls=0.1, times=2.0, stalling=0.2),
    Noise("heavy tails: runs by t(3), 1 %", 0.01, tail=3),
    Noise("slow starts: up to step 10 to 25", 0.005, start=25),
    Noise("one slow node of eight: 5 %", 0.003, slow=0.5, slower=0.05, nodes=8),
)

KINDS = (
    Noise("half of the runs 5 % slower", 0.003, slow=0.5, slower=0.05),
    Noise("a quarter of the runs 8 % slower", 0.003, slow=0.25, slower=0.08),
)

_HISTORY = 20
"""Configurations on record, of four runs on two days each; 20 days are enough to know a site."""


def simulate(
    noise: Noise,
    source: random.Random,
    level: float = 1.0,
    day: str = "",
    *,
    whole_run: bool = False,
    slow: bool | None = None,
    stalling: bool = True,
) -> StepTime:
    """One run whose steady steps take ``level`` s, measured as a real one is.

    ``whole_run``: by all steps after warm-up; ``slow``: whether it is of the slower kind, None: by chance;
    ``stalling``:
    whether it is a day with stalls.
    """
    level *= 1 + noise.run * _deviate(noise, source)
    if slow is None and noise.slow:
        slow = source.random() < noise.slow
    level *= 1 + noise.slower if slow else 1
    level *= 1 + source.expovariate(1) * noise.lottery if noise.lottery else 1
    cold = source.randint(_WARM_UP, noise.start) if noise.start else 0
    state = source.gauss(0, 1)
    steps = []
    for index in range(_STEPS):
        state = noise.correlation * state + (1 - noise.correlation**2) ** 0.5 * source.gauss(0, 1)
        seconds = level * (1 + noise.step * state) * (1 + noise.drift * (index - 38.5) / _STEPS)
        stalls = (index + 1) % noise.every == 0 if noise.every else source.random() < noise.stalls
        seconds = max(seconds, 0.01) * (noise.times if stalls and stalling else 1)
        steps.append(seconds * (_START if index < cold else 1))
    window = slice(_WARM_UP, _WINDOW.stop) if whole_run else _WINDOW
    return msgspec.structs.replace(estimate(steps[window], steps[_WARM_UP:]), day=day)


def _deviate(noise: Noise, source: random.Random) -> float:
    """A deviation of a run, in units of its scatter; none of more than thirty, which would be no step time."""
    value = source.gauss(0, 1)
    if noise.tail:
        value /= math.sqrt(source.gammavariate(noise.tail / 2, 2) / noise.tail)
    return max(min(value, 30.0), -30.0)


def repeats(noise: Noise, source: random.Random, count: int, days: int = 0) -> list[StepTime]:
    """Runs of one configuration, spread over ``days``; 0: each on a day of its own."""
    days = days or count
    levels = [1 + source.gauss(0, noise.day) for _ in range(days)]
    stalling = [noise.stalling == 1 or source.random() < noise.stalling for _ in range(days)]
    runs: list[StepTime] = []
    slow, before = None, -1
    for index in range(count):
        day, nodes = index * days // count, ""
        if noise.nodes:
            had = sorted(source.sample(range(noise.nodes), noise.nodes // 2))
            slow, nodes = 0 in had, ",".join(f"n{node}" for node in had)
        elif noise.sticky and not (day == before and source.random() < noise.sticky):
            slow = source.random() < noise.slow
        before = day
        run = simulate(noise, source, levels[day], f"{day}", slow=slow, stalling=stalling[day])
        runs.append(msgspec.structs.replace(run, nodes=nodes))
    return runs


def site(noise: Noise, source: random.Random, configurations: int = _HISTORY) -> Scatter:
    """What the record of a site with such noise says of it; configurations differ in their scatter."""
    found = []
    for at in range(configurations):
        day_deviation = source.lognormvariate(0, 0.25)
        own = replace(noise, run=noise.run * day_deviation, day=noise.day * day_deviation)
        found += [PastRun(f"{at}", f"{at} {n}", run) for n, run in enumerate(repeats(own, source, 4, 2))]
    return PastRuns(found).scatter("another")


def sites(noise: Noise, source: random.Random, known: bool, trials: int) -> Iterator[Scatter]:
    """One for each trial, of 25 different ones: to learn a site takes as long as a hundred verdicts."""
    learned = [site(noise, source) for _ in range(min(25, trials))] if known else [STATED]
    while True:
        yield from learned


def cell(answers: Counter[Answer], more: str = "") -> str:
    """Pass and fail in per cent."""
    trials = answers.total()
    return " / ".join(f"{100 * answers[answer] / trials:.1f}" for answer in ("pass", "fail")) + more


def wrong(answers: Counter[Answer], ratio: float) -> float:
    """Share of wrong answers: fails up to the limit, passes from it on; at the limit the more frequent of both."""
    shares = {answer: answers[answer] / answers.total() for answer in ("pass", "fail")}
    if abs(ratio - 1.05) < 1e-9:
        return max(shares.values())
    return shares["fail"] if ratio < 1.05 else shares["pass"]


def verdicts(
    noise: Noise, ratio: float, count: int, *, trials: int, source: random.Random, known: bool, days: int = 0
) -> Counter[Answer]:
    """Answers over ``count`` runs whose true mean is ``ratio`` times the reference; ``known``: by the site's record."""
    scatters = sites(noise, source, known, trials)
    return Counter(
        decide(repeats(noise, source, count, days), noise.mean / ratio, scatter=next(scatters)).answer
        for _ in range(trials)
    )


def looks(
    noise: Noise, ratio: float, *, trials: int, source: random.Random, known: bool, days: int = 0
) -> tuple[Counter[Answer], float]:
    """As ``verdicts`` of somebody who repeats runs until there is an answer, up to 20; with the mean number of runs."""
    sizes = [size for size in LOOKS if size <= 20]
    scatters = sites(noise, source, known, trials)
    answers = Counter[Answer]()
    taken = 0
    for _ in range(trials):
        runs, scatter = repeats(noise, source, sizes[-1], days), next(scatters)
        for size in sizes:
            answer = decide(runs[:size], noise.mean / ratio, scatter=scatter).answer
            if answer != "open":
                break
        answers[answer] += 1
        taken += size
    return answers, taken / trials


Case: TypeAlias = tuple[int, ...]
Heads: TypeAlias = Sequence[str]
Cells: TypeAlias = Callable[[Noise, bool, Case, random.Random], Iterable[str]]


def _table(heads: Heads, noises: Sequence[Noise], cases: Sequence[Case], cells: Cells, seed: int) -> Iterator[str]:
    """A Markdown table: noise, record, the numbers of the case (in one column if ``heads`` has one) and ``cells``."""

    def rows() -> Iterator[Sequence[object]]:
        for noise, known, case in itertools.product(noises, (False, True), cases):
            source = random.Random(" ".join(map(str, (seed, noise.title, known, *case))))
            numbers = [" + ".join(map(str, case))] if "Repeats + reruns" in heads else case
            yield noise.title, "yes" if known else "no", *numbers, *cells(noise, known, case, source)

    return lines(heads, rows(), words=2)


_RATIOS = [f"{ratio:g}" for ratio in RATIOS]

COUNTS = (3, 5, 7, 10)
SPREAD = (1, 2, 3, 5)
"""Runs, and the days that they are spread over."""


def models_table(trials: int, seed: int) -> Iterator[str]:
    """Verdicts over so many runs, by the days that they are spread over."""

    def cells(noise: Noise, known: bool, case: Case, source: random.Random) -> Iterator[str]:
        scatters = sites(noise, source, known, trials)
        for days in SPREAD:
            yield _power(noise, case[0], days, trials, source, scatters) if days <= case[0] else "-"

    heads = ["Noise", "Record", "Runs", *(f"on {days} day{'s' * (days > 1)}" for days in SPREAD)]
    return _table(heads, MODELS, [(count,) for count in COUNTS], cells, seed)


def _power(noise: Noise, count: int, days: int, trials: int, source: random.Random, scatters: Iterator[Scatter]) -> str:
    """Passes of a system as fast as its reference, fails of one 8 % slower; passes and fails of one at the limit."""
    answers: dict[float, Counter[Answer]] = {ratio: Counter() for ratio in (1.0, 1.05, 1.08)}
    for _ in range(trials):
        runs, scatter = repeats(noise, source, count, days), next(scatters)
        for ratio, found in answers.items():
            found[decide(runs, noise.mean / ratio, scatter=scatter).answer] += 1
    right = f"{100 * answers[1.0]['pass'] / trials:.0f}, {100 * answers[1.08]['fail'] / trials:.0f}"
    return f"{right}; {cell(answers[1.05])}"


def looks_table(trials: int, seed: int) -> Iterator[str]:
    """Repeating until there is an answer."""

    def cells(noise: Noise, known: bool, case: Case, source: random.Random) -> Iterator[str]:
        for ratio in RATIOS:
            answers, taken = looks(noise, ratio, trials=trials, source=source, known=known)
            yield cell(answers, f" ({taken:.1f})")

    noises = (*NOISES[:5], MODELS[8], DAYS[1], *KINDS)
    return _table(["Noise", "Record", *_RATIOS], noises, [()], cells, seed)


PERFORMANCE = (1.00, 0.97, 0.95, 0.93)
"""True performance as a share of the reference's. 0.95 is the limit itself: either answer may come there, seldom."""

CASES = ((1, 0), (1, 2), (3, 4), (3, 12))
"""Repeats and reruns of a campaign."""


def campaign(
    runs: Sequence[StepTime], reference: float, repeats: int, reruns: int, scatter: Scatter = STATED
) -> tuple[Answer, int]:
    """The answer of a campaign whose runs take the times ``runs`` (all that it may ask for), and how many it took."""

    def judge(times: Sequence[StepTime]) -> Decision:
        return decide(times, reference, tolerance=tolerance_of(REQUIRED), scatter=scatter)

    taken = repeats
    while True:
        found = next_decision([SuiteAttempt(time) for time in runs[:taken]], repeats, reruns, judge)
        if found.answer is not None:
            return found.answer, found.attempts
        taken = found.attempts


def campaigns_table(trials: int, seed: int) -> Iterator[str]:
    """Acceptance campaigns, whose runs are of days of their own."""

    def cells(noise: Noise, known: bool, case: Case, source: random.Random) -> Iterator[str]:
        scatters, (first, more) = sites(noise, source, known, trials), case
        for share in PERFORMANCE:
            runs = (repeats(noise, source, first + more) for _ in range(trials))
            ends = [campaign(times, noise.mean * share, first, more, next(scatters)) for times in runs]
            taken = sum(runs for _, runs in ends) / trials
            yield cell(Counter(answer for answer, _ in ends), f" ({taken:.1f})")

    heads = ["Noise", "Record", "Repeats + reruns", *(f"{100 * share:.0f} %" for share in PERFORMANCE)]
    return _table(heads, (*NOISES[1:5], MODELS[8]), CASES, cells, seed)


DIFFERENCES = (0.00, 0.02, 0.03, 0.05, 0.10)
"""How much slower the second side of a comparison is."""


def comparisons_table(trials: int, seed: int) -> Iterator[str]:
    """How often ``compare`` shows a difference between two sides that ran on the same days, in percent."""

    def cells(noise: Noise, known: bool, case: Case, source: random.Random) -> Iterator[str]:
        scatters = sites(noise, source, known, trials)
        for share in DIFFERENCES:
            sides = []
            for _ in range(trials):
                first = repeats(noise, source, *case)
                second = repeats(noise, source, *case)
                sides.append((first, [_longer(run, 1 + share) for run in second]))
            found = [compare_times(first, slower, next(scatters)) for first, slower in sides]
            yield f"{100 * sum(item.is_real for item in found) / trials:.0f}"

    heads = ["Noise", "Record", "Runs of each", *(f"{100 * share:.0f} %" for share in DIFFERENCES)]
    return _table(heads, NOISES[2:4], [(2,), (3,), (5,), (10,)], cells, seed)


def _longer(run: StepTime, factor: float) -> StepTime:
    return msgspec.structs.replace(run, seconds=run.seconds * factor, error=run.error * factor)


PARTS: dict[str, Table] = {
    "models": models_table,
    "looks": looks_table,
    "campaigns": campaigns_table,
    "comparisons": comparisons_table,
}


def main() -> None:
    """Print the parts that the command line names, or all of them."""
    print_tables(__doc__, PARTS)


if __name__ == "__main__":
    main()
