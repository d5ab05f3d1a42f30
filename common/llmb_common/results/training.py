"""Does it train? What the figures of a log say of the work itself, however fast it was.

A benchmark that computes nonsense can be fast, so a *pass* needs both. Every rule asks for something that no training
does, beyond the noise of neighbouring steps; none knows a loss that is right. ``docs/benchmarks.md`` has how often
they are wrong, on published curves and on made-up ones.

The yardsticks: the run's own first steps, an untrained model (its loss is at least the logarithm of the vocabulary's
size), and repeats. NVIDIA holds its releases against the curve of the last one, with 10 % where the loss is above 2
(``scripts/performance/utils/evaluate.py`` of Megatron-Bridge, also for how many steps may be outside): ``MATERIAL``.
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from llmb_common.base.printable import first_few
from llmb_common.base.statistics import median, robust_deviation
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.timing.iterations import interval_of
from llmb_common.runs.timing.records import Iteration
from llmb_common.runs.timing.window import Window

MATERIAL = 0.10
"""A change of the loss that matters, as a share of it."""

CERTAIN = 6.0
"""Standard errors by which a loss must have risen."""

FALLS = 3.0
"""Standard errors by which it must have fallen to be called falling."""

_FLAT = 0.02  # of the loss: a fall below it, and below FALLS, is none
_ENOUGH = 15  # losses, below which noise and trend cannot be told apart
_FROZEN = 10  # steps in a row with the same seven digits; two in a row come once in 50 steps
_ACCIDENTS = 0.05  # share of the steps that may be odd
_SMALLEST = 1e-6  # of a loss whose logarithm is taken
_PRINTED = 0.1  # below this loss a gradient norm may be too small for its three decimals
_OPPORTUNITY = 1e-3  # sum of the learning rates; with 6e-5 (50 steps of a long warm-up) models already learn measurably
_UNSCALING = 24  # steps that FP16 skips at first, while its loss scale comes down from 2^32 to 2^10


class Training(NamedTuple):
    """What a log alone says of whether its run trained. Losses are in nats.

    ``start`` and ``end`` are None where the log has fewer than 15 losses; ``falls``, ``begins`` and ``learned`` have
    their defaults then. ``steps`` is the number of records in the log. ``training_of`` makes it. A tuple, because one
    is kept for each run, and tuples are the fastest to read.
    """

    faults: tuple[str, ...] = ()
    """What no training does, as clauses without a full stop; empty: nothing speaks against its having trained."""
    steps: int = 0
    start: float | None = None
    """Median loss of the first three steps."""
    end: float | None = None
    """The median loss of the last fifth."""
    falls: bool = True
    """False: the loss has not fallen, beyond doubt; True: it has, or nobody can tell."""
    begins: bool = False
    """True: the log has the first step of the run; False: it begins later, or it has too few losses."""
    learned: float = 0.0
    """Sum of the learning rates; 0 where the log does not say."""
    losses: tuple[str, ...] = ()
    """The names, as printed (``lm loss``), of the losses that its last step that was not skipped has; empty: none."""


NOTHING = Training()
"""The result for a log without losses."""


class _LossCourse(msgspec.Struct, frozen=True):
    """How a loss went from the first step to the last, in levels: medians of stretches of the log, in nats.

    ``start`` is the median of the first three losses, ``end`` that of the last fifth of the log, ``lowest`` the
    lowest of the medians of its fifths, ``falls`` whether the loss fell beyond its noise. Losses that are NaN are
    taken as they are. ``_loss_course`` makes it.
    """

    start: float
    lowest: float
    end: float
    error: float
    """Standard error of ``start - end``, from the differences of neighbouring steps."""
    falls: bool


def training_of(iterations: Sequence[Iteration]) -> Training:
    """Return what the steps of a log say of whether the run trained.

    Its ``faults``, clauses, are empty where nothing speaks against that; else they are of the loss, the MTP loss,
    gradient norms and learning rates, skipped steps and negative losses, in this order. A log with fewer than 15
    losses of steps that were not skipped has no ``start`` and ``end``. ``iterations`` are all of the log, in order;
    without any the answer is that of a log that says nothing.
    """
    taken = [item for item in iterations if not item.skipped]
    losses = [item.loss for item in taken if item.loss is not None]
    course = _loss_course(losses)
    further = [item.mtp_loss for item in taken if item.mtp_loss is not None]
    faults = (
        *_curve_faults("loss", losses, course, taken),
        *_curve_faults("MTP loss", further, _loss_course(further), taken),
        *_unchanged_model_faults(taken),
        *_skipped_steps_fault(iterations),
        *_negative_loss_faults(iterations),
    )
    names = taken[-1].figures if taken else ()
    common = tuple(name for name in names if name.endswith("loss"))
    if course is None:
        return Training(faults, len(iterations), losses=common)
    # With a ``log_interval`` the first record is of several steps.
    begins = iterations[0].step <= iterations[1].step - iterations[0].step
    # NeMo's synthetic tokens are random: there is nothing to learn but that.
    learned = 0.0 if taken[0].zero_based else math.fsum(item.learning_rate or 0.0 for item in taken)
    return Training(faults, len(iterations), course.start, course.end, course.falls, begins, learned, common)


def training_sense(training: Training, plan: JobPlan) -> tuple[str, ...]:
    """Return why a run of ``plan`` did not train as it should, as clauses; empty where nothing speaks against it.

    They are the faults of ``training``, what the run's log says. Where it has none, a loss that does not fall counts
    (one clause), but only for a pretraining run that loads no checkpoint, whose log has its first step, and whose
    learning rates were large enough to learn something
    (``the loss does not fall (9.2 at the start, 9.2 at the end)``), or whose first loss is not that of an untrained
    model (the same, and ``; an untrained model starts near 11.8``). The latter is not looked at for a plan without an
    ``architecture``.
    """
    start, end = training.start, training.end
    if training.faults or training.falls or start is None or end is None:
        return training.faults
    loads = plan.checkpoint.load is not None or plan.checkpoint.resume
    from_scratch = not loads and (plan.function is None or "_pretrain_" in plan.function.name)
    if not (training.begins and from_scratch):
        return ()
    known = f"{start:.4g} at the start, {end:.4g} at the end"
    if training.learned >= _OPPORTUNITY:
        return (f"the loss does not fall ({known})",)
    # An untrained model gives each token of the vocabulary about the same probability.
    guess = math.log(plan.architecture.vocabulary) if plan.architecture else None
    if guess is None or 0.9 * guess <= start <= 1.25 * guess:
        return ()
    return (f"the loss does not fall ({known}); an untrained model starts near {guess:.3g}",)


def unlike_repeats(runs: Sequence[Training]) -> list[tuple[str, ...]]:
    """Return, for each of several repeats of a run in order, clauses on how its training differs from the others'.

    Empty where it does not, else one clause. It differs if its loss at the end is off their median by more than a
    tenth of their first loss and of that median, and more than theirs scatter (three robust standard deviations),
    or if its log lacks a loss that most print. Repeats are compared with those of as many steps that begin as they
    do, so jobs of a chain, which save and go on, only with each other; with fewer than three nobody knows which is
    wrong, and none is named. A run without an ``end`` gets none.
    """
    alike: dict[tuple[int, bool], list[Training]] = {}
    for run in runs:
        alike.setdefault((run.steps, run.begins), []).append(run)
    usual = {kind: _common_to_repeats(same) for kind, same in alike.items() if len(same) > 2}
    kinds = ((run.steps, run.begins) for run in runs)
    return [
        _unlike_repeats_clause(run, usual[kind]) if kind in usual else () for run, kind in zip(runs, kinds, strict=True)
    ]


class _Usual(msgspec.Struct, frozen=True):
    """What several repeats of a run have in common: their loss at the end, and which losses their logs print.

    With fewer than three known final losses ``allowed_difference`` is infinite, and ``losses`` empty.
    ``_common_to_repeats`` makes it.
    """

    end: float
    """Median of the losses at the end."""
    allowed_difference: float
    """How far from it a run's own may be."""
    losses: frozenset[str]
    """The losses that most print."""


def _common_to_repeats(runs: Sequence[Training]) -> _Usual:
    """Return what repeats of a run have in common; with fewer than three known final losses it allows any.

    All ``runs`` have the same number of steps, and begin alike.
    """
    ends = [run.end for run in runs if run.end is not None]
    if len(ends) < 3:
        return _Usual(0.0, math.inf, frozenset())
    end = statistics.median(ends)
    spread = robust_deviation(ends)
    # Where a loss is memorized to nearly nothing, a tenth of it means nothing: hence of the first loss.
    start = statistics.median(run.start for run in runs if run.start is not None)
    counts = Counter(itertools.chain.from_iterable(run.losses for run in runs))
    common = frozenset(name for name, count in counts.items() if count > len(runs) / 2)
    return _Usual(end, max(MATERIAL * start, MATERIAL * end, 3 * spread), common)


def _unlike_repeats_clause(run: Training, usual: _Usual) -> tuple[str, ...]:
    """Return a clause, in a tuple of one, on how a run's loss differs from its repeats'; empty where it does not.

    That is another final loss (``the loss ends at 7.2, its repeats' at 3.1``), or else the first, by name, of the
    usual losses that its log lacks; empty also for a run without an ``end``.
    """
    if run.end is None:
        return ()
    if abs(run.end - usual.end) > usual.allowed_difference:
        return (f"the loss ends at {run.end:.4g}, its repeats' at {usual.end:.4g}",)
    lacking = usual.losses.difference(run.losses)
    return (f"the log has no {min(lacking)!r}, its repeats' logs do",) if lacking else ()


def _loss_course(losses: Sequence[float]) -> _LossCourse | None:
    """Return the course of a loss, given for each step in order; None for fewer than ``_ENOUGH`` (15) values.

    ``losses`` are finite, infinite or NaN: none is None.
    """
    count = len(losses)
    if count < _ENOUGH:
        return None
    fifth = count // 5
    starts = range(count - 5 * fifth, count, fifth)
    levels = [statistics.median(losses[at : at + fifth]) for at in starts]
    noise = _loss_noise(losses)
    start = statistics.median(losses[:3])
    end = levels[-1]
    # 1.2533 is the square root of pi / 2: a median's standard error over a mean's.
    error = 1.2533 * noise * math.sqrt(1 / 3 + 1 / fifth)
    later = 1.2533 * noise * math.sqrt(1 / fifth + 1 / fifth)
    # A steep fall is over within the first fifth, a slow one shows from that on.
    falls_steeply = start - end > min(FALLS * error, _FLAT * start)
    falls_slowly = levels[0] - end > min(FALLS * later, _FLAT * start)
    return _LossCourse(start, min(levels), end, error, falls_steeply or falls_slowly)


def _loss_noise(losses: Sequence[float]) -> float:
    """Return a robust standard deviation of one step's loss, from the differences between neighboring steps.

    ``losses`` are in the order of steps, at least two. It is in nats, as they are, and 0 where most differences are
    equal.
    """
    changes = [after - before for before, after in itertools.pairwise(losses)]
    return robust_deviation(changes) / math.sqrt(2)


def _curve_faults(
    name: str, losses: Sequence[float], course: _LossCourse | None, steps: Sequence[Iteration]
) -> tuple[str, ...]:
    """Return what the loss called ``name`` does that no training's does: stay at 0, stand still, or rise.

    As clauses, at most one: it is 0 in more than 5 % of the steps (and in more than one), the same in ten steps in a
    row (not in NeMo's logs, nor at 1e-4 or less), or rises. Empty where it does none of these. ``losses`` has its value
    for each step in order, and ``course`` is ``_loss_course`` of them; None: they are too few to tell whether it rises.
    ``steps``, at least one where there are losses, only tell the engine.
    """
    zeros = losses.count(0.0)
    if zeros > _allowed_outliers(losses):
        return (f"the {name} is 0 in {zeros} of {len(losses)} steps",)
    # NeMo prints four digits, of random tokens: there a loss that stands still is what a healthy log shows.
    length, value = _longest_row(losses)
    if length >= _FROZEN and value > 1e-4 and not steps[0].zero_based:
        return (f"the {name} is {value:.7g} for {length} steps in a row, to the last digit",)
    return _rising_loss_fault(name, course) if course else ()


def _longest_row(values: Sequence[float]) -> tuple[int, float]:
    """Return (length, value) of the longest run of equal neighboring ``values``; (0, 0.0) where no two are equal.

    Of several runs as long it is that of the largest value.
    """
    # Most losses never repeat, and this is seen faster than by grouping them.
    if not any(map(operator.eq, values, itertools.islice(values, 1, None))):
        return 0, 0.0
    return max((len(list(same)), value) for value, same in itertools.groupby(values))


def _rising_loss_fault(name: str, course: _LossCourse) -> tuple[str, ...]:
    """Return a clause, in a tuple of one, where a loss rose, or fell and rose again, beyond its noise; else empty.

    ``course`` is the loss's, ``name`` what the clause calls it: ``the MTP loss rises from 3.1 to 5``. It rose by
    more than a tenth; or it fell by more than a tenth, and then rose by more than a third of that and a tenth of
    the lowest level.
    """
    start = course.start
    lowest = course.lowest
    end = course.end
    if end - start > max(MATERIAL * start, CERTAIN * course.error):
        return (f"the {name} rises from {start:.4g} to {end:.4g}",)
    learned = start - lowest
    risen = end - lowest
    if learned > MATERIAL * start and risen > max(learned / 3, MATERIAL * lowest, CERTAIN * course.error):
        return (f"the {name} falls from {start:.4g} to {lowest:.4g}, then rises to {end:.4g}",)
    return ()


def _unchanged_model_faults(steps: Sequence[Iteration]) -> tuple[str, ...]:
    """Return clauses about steps that cannot have changed the model; empty where there are few.

    ``steps`` are those that were not skipped. The gradient norm is 0 in more than 5 % of the steps (and in more
    than one), or the learning rate in more than half; at most one clause for each, in this order. A norm of 0 does
    not count at a loss of 0.1 or less, where it may be too small to be printed.
    """
    found = []
    at_zero = [item for item in steps if item.grad_norm == 0]
    flat = [item for item in at_zero if item.loss is None or item.loss > _PRINTED]
    if len(flat) > _allowed_outliers(steps):
        found.append(f"the gradient norm is 0 in {len(flat)} of {len(steps)} steps")
    idle = sum(item.learning_rate == 0 for item in steps)
    if idle > len(steps) / 2:
        found.append(f"the learning rate is 0 in {idle} of {len(steps)} steps")
    return tuple(found)


def _skipped_steps_fault(iterations: Sequence[Iteration]) -> tuple[str, ...]:
    """Return a clause, in a tuple of one, where more steps were skipped than loss scaling explains; else empty.

    ``iterations`` are all of the log, in order, may be none. Only FP16 scales its loss, and so skips its first
    steps until the scale fits, 24 at most; of later ones 5 %, or one, may be.
    ``the optimizer skipped 7 of 50 steps``: steps, also where a record is of several.
    """
    skipped = sum(item.skipped for item in iterations)
    if not skipped:
        return ()
    fitting = 0
    if iterations[0].loss_scale != 1:
        before_the_first_applied = itertools.takewhile(lambda item: item.skipped, iterations)
        fitting = sum(item.skipped for item in before_the_first_applied)
    steps = len(iterations) * interval_of(iterations)
    if fitting <= _UNSCALING and skipped - fitting <= max(1.0, _ACCIDENTS * steps):
        return ()
    return (f"the optimizer skipped {skipped} of {steps} steps",)


def _negative_loss_faults(iterations: Sequence[Iteration]) -> tuple[str, ...]:
    """Return a clause for each kind of loss that was negative, which none can be in training; empty: none was.

    They are the losses beside the training loss itself (``negative`` of ``iterations``, all of the log), in the
    order in which they became negative:
    ``load_balancing_loss is negative in 2 of 50 records (-0.1 at iteration 7)``.
    """
    below: dict[str, list[tuple[float, int]]] = {}
    for item in iterations:
        for name, value in item.negative:
            below.setdefault(name, []).append((value, item.index))
    found = []
    for name, own in below.items():
        least, index = min(own)
        found.append(
            f"{name} is negative in {len(own)} of {len(iterations)} records ({least:.4g} at iteration {index})"
        )
    return tuple(found)


_GROWTH = 30.0
"""How many times its lowest level a gradient norm may reach; while a model learns, it falls or stays."""

_LEAST_NORM = 0.05
"""Below it, three printed decimals and a loss of nearly nothing make ratios meaningless."""

_AROUND, _FEWEST_BESIDE = 4, 2
"""Steps on either side that a loss is held against, and at least: the end of a log does not show where it is going."""

_FAR = 10.0
"""Standard deviations of one step's loss by which it is far from those around it."""

_LEAP = 0.15
"""And the least share of it."""

_LEAST_LEAP = 0.02
"""And of the first losses: what has been memorized is nearly nothing, and its noise is not."""


def odd_course(iterations: Sequence[Iteration], window: Window) -> tuple[str, ...]:
    """Return clauses on what training may do and a benchmark does not: exploding gradients, leaps of measured losses.

    At most one on each, in this order. ``iterations`` are all of the log, in order, and ``window`` is the measured
    one. Steps that were skipped do not count. Empty where there is nothing of it. They change no verdict.
    """
    taken = [item for item in iterations if not item.skipped]
    return tuple(text for text in (_gradient_growth_clause(taken), _loss_jump_clause(taken, window)) if text)


def _gradient_growth_clause(steps: Sequence[Iteration]) -> str:
    """Return a clause where the gradient norm grows by more than healthy training ever shows; else empty.

    That is at the end of the log to 30 times its lowest level, or more; a level below 0.05 counts as 0.05. Levels
    are medians of fifths of the norms. ``steps`` are those that were not skipped, in order. Empty also for fewer
    than 15 norms. An example: ``the gradient norm grows from 0.5 to 21, which healthy training never does``.
    """
    norms = [item.grad_norm for item in steps if item.grad_norm is not None]
    fifth = len(norms) // 5
    if len(norms) < _ENOUGH:
        return ""
    starts = range(0, 5 * fifth, fifth)
    levels = [statistics.median(norms[at : at + fifth]) for at in starts]
    end = max(levels[-1], statistics.median(norms[-5:]))
    lowest = min(levels)
    if end < _GROWTH * max(lowest, _LEAST_NORM):
        return ""
    return f"the gradient norm grows from {lowest:.3g} to {end:.3g}, which healthy training never does"


def _loss_jump_clause(steps: Sequence[Iteration], window: Window) -> str:
    """Return a clause on steps of the measured window whose loss is far from that of the steps around them.

    Far is ten standard deviations of one step's loss, and 15 %. ``steps`` are those of the log that were not
    skipped, in order, and ``window`` is the measured one; those without a loss do not count, and the first and last
    two others are not looked at. Else empty, also where the log has fewer than 15 losses. An example:
    ``the loss jumps in 1 of 10 measured steps (iteration 41): 9.1 at iteration 41, about 7.2 around it``.
    """
    known = [(item.index, item.loss) for item in steps if item.loss is not None]
    losses = [loss for _, loss in known]
    if len(losses) < _ENOUGH:
        return ""
    least = _LEAST_LEAP * statistics.median(losses[:3])
    leaps = []
    for at in range(_FEWEST_BESIDE, len(known) - _FEWEST_BESIDE):
        index, loss = known[at]
        if not window.first <= index <= window.last:
            continue
        before = losses[max(0, at - _AROUND) : at]
        after = losses[at + 1 : at + 1 + _AROUND]
        around = sorted([*before, *after])
        # Two leaps in a row are no measure of each other; between the others lies whatever falls or rises steadily.
        aside = len(around) // 4
        low, high = around[aside], around[-1 - aside]
        usual = median(around)
        allowed = max(_LEAP * usual, least)
        if not low - allowed <= loss <= high + allowed:
            leaps.append((index, loss, usual, low, high))
    if not leaps:  # nearly always, and the noise takes as long to find as all the rest
        return ""
    far = _FAR * _loss_noise(losses)
    logs = [math.log(max(loss, _SMALLEST)) for loss in losses]
    share = max(_LEAP, _FAR * _loss_noise(logs))
    odd = []
    for index, loss, usual, low, high in leaps:
        allowed = max(share * usual, far, least)
        if not low - allowed <= loss <= high + allowed:
            odd.append((index, loss, usual))
    if not odd:
        return ""
    index, loss, usual = max(odd, key=lambda item: abs(item[1] - item[2]))
    where = first_few([index for index, *_ in odd], 5)
    return (
        f"the loss jumps in {len(odd)} of {len(window)} measured steps (iteration {where}):"
        f" {loss:.4g} at iteration {index}, about {usual:.4g} around it"
    )


def _allowed_outliers(steps: Sequence[object]) -> float:
    """Return how many of ``steps`` may be odd by accident: 5 % of them (not rounded), and at least one."""
    return max(1.0, _ACCIDENTS * len(steps))
