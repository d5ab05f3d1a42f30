"""The step time of one run, with its uncertainty: what the steps of a window say about the run they belong to.

Three things make the plain mean and its textbook error wrong for training steps, and each is met here:

* *Stalls.* A checkpoint flush or a network retry multiplies one step by four and moves a mean of ten steps by 30 %.
  Steps far from the median (Hampel's rule: ``SPIKE_DEVIATIONS`` robust standard deviations, and at least
  ``SPIKE_SHARE``) are set apart and the location is the mean of the others. Nothing is lost: what they cost is kept as
  well, of all steps after warm-up, so that location and stalls together are the plain mean.
* *Autocorrelation.* Clocks, thermals and neighbours change slowly, so that twenty steps hold the information of a few.
  The error of the mean is that of a first-order autoregressive process.
* *Short windows.* Ten steps (35 to 44) are too few to estimate a variance, an autocorrelation or how often steps stall.
  These come from all steps after warm-up, the location from the window alone.

Warm-up is neither: the first ten steps of every start, and slow ones that follow these without a break, as where each
of the first steps compiles. ``after_warm_up`` leaves them out, unless the documented window has them.

``anomalies`` are what is odd about the steps, in words: each makes a reader doubt the figure, none of them changes it
silently.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

from llmb_common.base.printable import counted, first_few, percent, signed_percent
from llmb_common.base.statistics import deviation, robust_deviation
from llmb_common.planning.job_plan import JobPlan
from llmb_common.results.training import NOTHING, Training, odd_course, training_of
from llmb_common.runs.timing.records import Iteration
from llmb_common.runs.timing.runs import RunTiming
from llmb_common.runs.timing.window import Window

SPIKE_DEVIATIONS = 5.0
SPIKE_SHARE = 0.05
"""A step within 5 % of the median is no stall, however steady its neighbours are."""

_STRONGEST_CORRELATION = 0.95
_LEAST_SHARE = -0.9


class StepTime(msgspec.Struct, frozen=True, array_like=True):
    """The step time of one run over its measured window, with what stalls add to it.

    ``seconds``, above 0, is the mean of the window's steady steps, ``error`` its standard error in seconds. The error
    is what the steps of this run leave open; it cannot know how runs differ. Properties, all numbers: ``log`` is the
    natural logarithm of ``seconds``, ``mean_log`` that of the mean with stalls; ``stall_share`` is what stalls add,
    as a share of ``seconds`` (0.01: 1 %; negative: they were faster steps), ``stall_error`` the standard error of
    ``mean_log`` that comes from them, and ``relative_error`` is ``error`` as a share of ``seconds``. ``estimate``
    makes it.
    """

    seconds: float
    error: float
    count: int
    """Steps that ``seconds`` is the mean of; 0: not known."""
    spikes: tuple[int, ...] = ()
    """Positions in the window, from 0, of the steps that were set apart."""
    correlation: float = 0.0
    """Lag-1 autocorrelation of the steady steps, corrected for its bias; never negative."""
    mean: float = 0.0
    """The mean of the whole window in seconds, stalls included, as the documents print it; 0: not known."""
    stalls: tuple[float, ...] = ()
    """What each stall took beyond steady steps, as a share of one: 3.0 is a step of four times the time, or three in a
    row of twice the time, which have one cause. Negative: steps that were faster. Of all ``steps``."""
    steps: int = 0
    """Steps after warm-up, those of the window among them; 0: not known."""
    day: str = ""
    """When the run started (YYYY-MM-DD, by ``RunRecord.day``); runs of one day share its conditions.

    Empty: shared with no other run.
    """
    nodes: str = ""
    """Where it ran: sorted host names, with commas and no blanks; empty: not known."""

    @property
    def log(self) -> float:
        """Natural logarithm of the steady step time in seconds."""
        return math.log(self.seconds)

    @property
    def mean_log(self) -> float:
        """Natural logarithm of the run's mean step time in seconds: steady, plus what stalls cost over all steps.

        It is made from ``seconds`` and ``stalls``, and not the logarithm of ``mean``, which is of the window alone.
        """
        # Most runs have no stalls, and tables ask this of thousands.
        return self.log + math.log1p(self.stall_share) if self.stalls else self.log

    @property
    def stall_share(self) -> float:
        """What stalls add to a step in the mean, as a share of the steady step time; negative: steps were faster.

        At least -0.9; 0 where there are no stalls.
        """
        # No step takes less than no time, however much unusually fast ones seem to have saved.
        return max(math.fsum(self.stalls) / (self.steps or self.count or 1), _LEAST_SHARE)

    @property
    def stall_error(self) -> float:
        """Standard error that stalls add to ``mean_log``, as if each came by chance and could as well be missing."""
        error = math.hypot(*self.stalls) / (self.steps or self.count or 1)
        return error / (1 + self.stall_share)

    @property
    def relative_error(self) -> float:
        """The standard error of the steady step time, as a share of it."""
        return self.error / self.seconds


def estimate(window: Sequence[float], steady: Sequence[float] = ()) -> StepTime:
    """Return the step time of a run from the times of its single steps; far ones are set apart as stalls.

    Far is more than five robust standard deviations from the median, and more than 5 % of it. ``seconds``, ``count``,
    ``mean`` and ``spikes`` of the result are of the window, ``stalls`` and ``steps`` of all ``steady`` steps (of the
    window alone, where it is far from the rest), by whose ordinary ones ``error`` and ``correlation`` are found.
    ``day`` and ``nodes`` are left empty.

    Args:
        window: seconds of each measured step, in order; at least one, all finite and positive
        steady: seconds of each step after warm-up, in order, those of the window among them; the window counts
            instead where it is empty or no longer

    Raises:
        ValueError: the window is empty
    """
    if not window:
        raise ValueError("a window without steps has no step time")
    reference = steady if len(steady) > len(window) else window
    low, high = _usual_range(reference)
    if not low <= statistics.median(window) <= high:
        # The window is another stretch than the rest: its level is what the source measures, and no stall.
        reference = window
        low, high = _usual_range(window)
    kept = [seconds for seconds in window if low <= seconds <= high]
    # All steady steps tell the scatter better than the few of the window.
    noise = [seconds for seconds in reference if low <= seconds <= high]
    level = math.fsum(noise) / len(noise)
    location = math.fsum(kept) / len(kept)
    deviation, correlation = _noise(noise)

    def side(seconds: float) -> int:
        """Return 1 for a step that is longer than an ordinary one, -1 for a shorter one, 0 for an ordinary one.

        An ordinary one takes from ``low`` to ``high`` seconds, which are the enclosing function's.
        """
        return (seconds > high) - (seconds < low)

    stalls = []
    for beyond, stretch in itertools.groupby(reference, side):
        if beyond:
            stalls.append(math.fsum(seconds / level - 1 for seconds in stretch))
    return StepTime(
        seconds=location,
        error=deviation * math.sqrt(_variance_inflation(len(kept), correlation) / len(kept)),
        count=len(kept),
        spikes=tuple(at for at, seconds in enumerate(window) if not low <= seconds <= high),
        correlation=correlation,
        mean=math.fsum(window) / len(window),
        stalls=tuple(stalls),
        steps=len(reference),
    )


def _usual_range(values: Sequence[float]) -> tuple[float, float]:
    """Return (least, most) that an ordinary step takes: what is not far from the median of ``values``.

    Far is more than five robust standard deviations, and more than 5 % of the median. Fewer than three values are all
    ordinary; there is at least one.
    """
    median = statistics.median(values)
    if len(values) < 3:
        return min(values), max(values)
    spread = robust_deviation(values)
    limit = max(SPIKE_DEVIATIONS * spread, SPIKE_SHARE * median)
    return median - limit, median + limit


def _noise(values: Sequence[float]) -> tuple[float, float]:
    """Return (standard deviation, lag-1 autocorrelation) of a stationary series, corrected for its being short.

    The former is in the unit of ``values``, and 0.0 for fewer than two; the latter is never negative, and 0.0 for fewer
    than three.
    """
    count = len(values)
    if count < 3:
        return (deviation(values) if count else 0.0), 0.0
    mean = math.fsum(values) / count
    centred = [value - mean for value in values]
    squares = math.fsum(value * value for value in centred)
    if squares <= (1e-12 * mean) ** 2 * count:
        return 0.0, 0.0
    products = math.fsum(a * b for a, b in itertools.pairwise(centred))
    raw = products / squares
    # Kendall: around an estimated mean, raw falls short of the truth by (1 + 4 rho) / n.
    correlation = min(raw + (1 + 4 * raw) / count, _STRONGEST_CORRELATION) if raw > 0 else 0.0
    # The mean of correlated values follows them, so that the squares around it are too small.
    lost = min(_variance_inflation(count, correlation), count * 0.9)
    return math.sqrt(squares / (count - lost)), correlation


def _variance_inflation(count: int, correlation: float) -> float:
    """Return by which factor, at least 1, autocorrelation enlarges the variance of a mean of ``count`` values.

    ``correlation`` is that of neighboring values, from 0 to 1.
    """
    tail = sum((1 - lag / count) * correlation**lag for lag in range(1, count))
    return 1 + 2 * tail


DRIFT = 0.02
"""A change over the steady steps that is worth a word, as a share of the step time."""

WARM_UP = 0.05
"""How much slower than the rest the window's first steps may be."""

FLOPS_MISMATCH = 0.15
"""Engines count attention, embeddings and routing differently, by less than this; beyond, plan and log disagree."""

OTHER_WORK = 0.25
"""Beyond this it is not a matter of counting."""


def anomalies(timing: RunTiming, measured: StepTime) -> tuple[str, ...]:
    """Return what is odd in the steps of a run whose window is complete, as clauses for people; empty: nothing is.

    They tell of outliers, warm-up, drift, skipped steps, exploding gradients and leaping losses, at most one of each,
    in this order, without full stops. ``measured`` is the run's ``step_time``.

    Raises:
        OSError: the steps are only read from the log now, and that fails
    """
    inside = timing.window.select(timing.iterations)
    skipped = [item for item in timing.iterations if item.skipped]
    found = [
        _outlier_clause(inside, measured),
        _long_warm_up_clause(timing, measured) or _warm_up_clause(inside),
        _drift_clause(after_warm_up(timing), {inside[at].index for at in measured.spikes}),
        f"the optimizer skipped {counted(len(skipped), 'step')} ({_steps_text(skipped)})" if skipped else "",
        *odd_course(timing.iterations, timing.window),
    ]
    return tuple(text for text in found if text)


_TO_WARM_UP = 10
"""Steps of a run, by NVIDIA's older READMEs, also of one that goes on from a checkpoint or was restarted."""


def after_warm_up(timing: RunTiming) -> list[Iteration]:
    """Return the steps of a run that no warm-up slowed, in order; empty for a log without steps.

    Left out are the first ten steps of the log, the first ten after each further start of the job, and slow ones that
    follow either. Steps inside the measured window always count, and so do those of the log's first ten that come after
    the window's start.

    Raises:
        OSError: the steps are only read from the log now, and that fails
    """
    if not timing.iterations:
        return []
    window = timing.window
    first = min(window.first, timing.iterations[0].step + _TO_WARM_UP)
    cold: set[int] = set()
    for at in timing.restarts:
        cold.update(range(at, at + _TO_WARM_UP))
    for slow in _slow_starts(timing):
        cold.update(item.index for item in slow)
    steady = (item for item in timing.iterations if item.index >= first)
    return [item for item in steady if item.index not in cold or item.index in window]


_SETTLED = 3
"""The last of so many parts of a log is settled, if any is."""

_COMPILING = 1.1
"""How many times longer than settled ones the steps of a long warm-up take at least, by their median."""


def _slow_starts(timing: RunTiming) -> list[Sequence[Iteration]]:
    """Return, for each start of the job whose warm-up exceeds the usual ten steps, its slow steps from the first on.

    Slow is more than what the last third of the log makes an ordinary step, and in the median at least 1.1 times
    that third's; the ten steps that follow must be back near its level. In the order of the starts; empty where
    there is no such start, or the log has fewer than 20 steps.

    Raises:
        OSError: the steps are only read from the log now, and that fails
    """
    iterations = timing.iterations
    if len(iterations) < 2 * _TO_WARM_UP:
        return []
    settled = [item.seconds for item in iterations[-(len(iterations) // _SETTLED) :]]
    level = statistics.median(settled)
    # No start is slow for longer than usual where one of its first steps is not.
    fastest = min(item.seconds for item in iterations[: _TO_WARM_UP + 1])
    if fastest <= level and not timing.restarts:
        return []
    _, high = _usual_range(settled)
    found: list[Sequence[Iteration]] = []
    for start in (iterations[0].index, *timing.restarts):
        after = (item for item in iterations if item.index >= start)
        slow = list(itertools.takewhile(lambda item: item.seconds > high, after))
        if len(slow) <= _TO_WARM_UP:
            continue
        if statistics.median(item.seconds for item in slow) < _COMPILING * level:
            continue
        # A run that becomes faster all the time does not settle where its steps pass a limit.
        later = [item.seconds for item in iterations if item.index > slow[-1].index]
        if statistics.median(later[:_TO_WARM_UP]) < (level + high) / 2:
            found.append(slow)
    return found


def _long_warm_up_clause(timing: RunTiming, measured: StepTime) -> str:
    """Return a clause on how long the first steps after the job's last slow start were slow; empty: none was slow.

    ``measured`` is the run's ``step_time``. If the measured window reaches into the slow steps, the clause says
    what settled steps take, and with which ``--window`` to measure those; else it is
    ``iterations 1 to 14 are warm-up (compilation?) and not counted: they take 2.1 times as long as later ones``,
    without a full stop.

    Raises:
        OSError: the steps are only read from the log now, and that fails
    """
    starts = _slow_starts(timing)
    if not starts:
        return ""
    slow, window = starts[-1], timing.window
    end = slow[-1].index
    settled = [item for item in timing.iterations if item.index > end]
    level = statistics.median(item.seconds for item in settled)
    times = statistics.median(item.seconds for item in slow) / level
    if end < window.first or slow[0].index > window.last:
        return (
            f"iterations {slow[0].index} to {end} are warm-up (compilation?) and not counted: they take {times:.2g}"
            " times as long as later ones"
        )
    last = min(end + len(window), settled[-1].index)
    return (
        f"warm-up (compilation?) lasts to iteration {end}, past the start of the window {window}: settled steps take"
        f" {level:.4g} s, the window's mean is {measured.mean:.4g} s"
        f" (--window={end + 1}-{last} measures them)"
    )


def _outlier_clause(inside: Sequence[Iteration], measured: StepTime) -> str:
    """Return a clause on the measured steps that were set apart as outliers; empty where none was.

    ``inside`` are the steps of the window, in order, and ``measured`` is their step time, whose ``spikes`` are
    positions in it. It begins
    ``2 of 10 measured steps are outliers (iterations 36, 37; up to 2.1 times the usual)``, and has no full stop.
    """
    if not measured.spikes:
        return ""
    odd = [inside[at] for at in measured.spikes]
    seconds = [item.seconds for item in odd]
    largest = max(seconds, key=lambda value: abs(math.log(value / measured.seconds)))
    times = largest / measured.seconds
    text = f"{times:.3g}" if 1 < times < 2 else f"{times:.2g}"  # 1.04 times the usual, and not 1
    one = len(odd) == 1
    most = "up to " if largest > measured.seconds else "as little as "
    if one:
        most = ""
    return (
        f"{len(odd)} of {len(inside)} measured steps {'is an outlier' if one else 'are outliers'} ({_steps_text(odd)};"
        f" {most}{text} times the usual): the steady step time leaves"
        f" {'it' if one else 'them'} out, the mean ({signed_percent(measured.mean / measured.seconds - 1)}) does not"
    )


def _warm_up_clause(inside: Sequence[Iteration]) -> str:
    """Return a clause where the window starts too early: its first three steps fall towards the level of the others.

    The first is more than 5 % above the median of the others, the second more than 2.5 %:
    ``warm-up reaches into the window: its first step takes 9 % longer than later ones``. ``inside`` are the steps
    of the window, in order. Else empty, also for fewer than seven of them.
    """
    head = [item.seconds for item in inside[:3]]
    rest = [item.seconds for item in inside[3:]]
    if len(rest) < 4:
        return ""
    level = statistics.median(rest)
    falling = head == sorted(head, reverse=True)
    first_is_slow = head[0] > (1 + WARM_UP) * level
    second_is_slow = head[1] > (1 + WARM_UP / 2) * level
    if falling and first_is_slow and second_is_slow:
        longer = percent(head[0] / level - 1, 0)
        return f"warm-up reaches into the window: its first step takes {longer} longer than later ones"
    return ""


def _drift_clause(steady: Sequence[Iteration], aside: set[int]) -> str:
    """Return a clause where the last third of the steps takes more or less time than the first, beyond chance.

    That is 2 % or more, and four standard errors or more, of steps that are correlated as these are:
    ``steps get slower: +3.0 % from iteration 11 to 50 (clocks, temperature, neighbors?)``. Else empty, also for
    fewer than twelve steps that count. ``steady`` are the run's steps after warm-up, in order; ``aside`` are the
    numbers (``index``) of iterations that do not count.
    """
    kept = [item for item in steady if item.index not in aside]
    third = len(kept) // 3
    if third < 4:
        return ""
    seconds = [item.seconds for item in kept]
    first, last = seconds[:third], seconds[-third:]
    before, after = statistics.median(first), statistics.median(last)
    # A step is like the one before it: without the trend, which is what is asked for.
    slope, _ = statistics.linear_regression(range(len(seconds)), seconds)
    without_trend = [value - slope * at for at, value in enumerate(seconds)]
    _, correlation = _noise(without_trend)
    # 1.2533 is the square root of pi / 2: a median's standard error over a mean's.
    error = 1.2533 * math.hypot(deviation(first), deviation(last)) / math.sqrt(third)
    error *= math.sqrt(_variance_inflation(third, correlation))
    change = after / before - 1
    if abs(change) < DRIFT or abs(after - before) < 4 * error:
        return ""
    word = "slower" if change > 0 else "faster"
    where = f"from iteration {kept[0].index} to {kept[-1].index}"
    return f"steps get {word}: {signed_percent(change)} {where} (clocks, temperature, neighbors?)"


def logged_tflop(inside: Sequence[Iteration]) -> float | None:
    """Return the TFLOP (10^12 operations) that one GPU does in a step, by the TFLOP/s and times that the log prints.

    ``inside`` are the steps to look at, of which it is the median. Steps whose TFLOP/s are not printed, not finite, or
    less than 1, which is too coarse, do not count; None where none is left.
    """
    # Small models on CPUs and the like make less than 1, of which a single decimal is printed.
    rates = [item.tflops * item.seconds for item in inside if item.tflops and 1 <= item.tflops < math.inf]
    return statistics.median(rates) if rates else None


def flops_mismatch(logged: float | None, planned: float | None, allowed: float = FLOPS_MISMATCH) -> tuple[str, ...]:
    """Return a clause, in a tuple of one, where a step's work by the log differs too much from the plan's; else empty.

    ``logged`` and ``planned`` (above 0) are TFLOP of one GPU per step, as ``logged_tflop`` and ``planned_tflop``
    return them; None is not known, and gives no clause. The most that they may differ, up or down, is ``allowed``,
    a share of the planned work (0.1: 10 %). It begins
    ``by the log's TFLOPS and step time, a step does 1.25 times the planned work``.
    """
    if logged is None or planned is None or abs(logged / planned - 1) <= allowed:
        return ()
    return (
        f"by the log's TFLOPS and step time, a step does {logged / planned:.2f} times the planned work:"
        " the model, sequence length, batch or GPU count is not the planned one, or the log is another run's",
    )


def _steps_text(odd: Sequence[Iteration]) -> str:
    """Return the numbers of iterations as text, only the first five of many: ``iterations 36, 37``.

    ``odd`` are the iterations, at least one, in the order of the text. It is ``iteration 36`` for one, and ends with
    ``and 2 more`` where there are others.
    """
    return f"iteration{'s' * (len(odd) != 1)} {first_few([item.index for item in odd], 5)}"


class MeasuredSteps(msgspec.Struct, frozen=True, array_like=True):
    """What a log alone says of a run's steps, as far as a verdict needs it; ``steps_of`` makes it.

    ``time`` is the step time, and ``training`` whether it trained. ``time`` is None, and all else empty, where the log
    does not have the whole measured window.
    """

    time: StepTime | None = None
    remarks: tuple[str, ...] = ()
    """What is odd about them, as clauses (``anomalies``)."""
    tflop: float | None = None
    """10^12 operations of one GPU in one step, by the log's own count (``logged_tflop``); None: not known."""
    training: Training = NOTHING


def step_time(timing: RunTiming) -> StepTime | None:
    """Return the step time of a run over its measured window; None where the log does not have the whole window.

    ``day`` and ``nodes`` of the result are left empty, as the log does not tell them.

    Raises:
        OSError: the steps are only read from the log now, and that fails
    """
    measured = timing.window.select(timing.iterations)
    if not measured or len(measured) < len(timing.window):
        return None
    steady = after_warm_up(timing)
    return estimate([item.seconds for item in measured], [item.seconds for item in steady])


def step_time_after_warm_up(timing: RunTiming) -> StepTime | None:
    """Return the step time of a run over all steps from the end of its warm-up to the end of its window.

    Steps that are far from the others are set apart as stalls, as in ``step_time``. It has more steps than that, for
    comparisons with nothing that is published. ``day`` and ``nodes`` are left empty. None where the log does not have
    the whole window.

    Raises:
        OSError: the steps are only read from the log now, and that fails
    """
    steady = after_warm_up(timing)
    upto = [item.seconds for item in steady if item.index <= timing.window.last]
    return estimate(upto) if step_time(timing) is not None else None


def window_of(plan: JobPlan) -> Window:
    """Return the iterations over which runs of ``plan`` are measured, first and last included, as the plan says.

    They are those of the source of its published results.
    """
    return Window(plan.measurement.first, plan.measurement.last)


def steps_of(timing: RunTiming) -> MeasuredSteps:
    """Return everything that a run's log says of its steps; all empty where it does not have the whole window.

    Raises:
        OSError: the steps are only read from the log now, and that fails
    """
    measured = step_time(timing)
    if measured is None:
        return MeasuredSteps()
    inside = timing.window.select(timing.iterations)
    return MeasuredSteps(measured, anomalies(timing, measured), logged_tflop(inside), training_of(timing.iterations))
