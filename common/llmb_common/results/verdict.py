"""The figures of a run, and the verdict over it: what it is compared with, how sure that is, and what is odd.

Only like is compared with like: a successful run on the reference's GPU type, with exactly its configuration, over the
documented iterations. Everything else gets a reason instead of a number. ``decision`` has the statistics.

============ ==========================================================
pass         even the upper bound of the step time is within the tolerance
fail         even the lower bound is not
open         more runs are needed
============ ==========================================================

A reference measured with other software makes the verdict an *indication*, with a tolerance that is wider by what
releases differ.

Of runs that are judged together it is remarked what they share, and which are unlike the others (``odd_runs``).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec

from llmb_common.base.gpus import peak_tflops
from llmb_common.base.printable import counted, percent, signed_percent
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.model import achieved_tflops, model_flops, tokens_per_second, training_days
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.decision import TOLERANCE, Decision, decide
from llmb_common.results.level import ERROR_RATE, SETTLED
from llmb_common.results.odd_runs import odd_runs_clause, slow_node_clause
from llmb_common.results.references import Reference, by_preference, published_references, release_spread
from llmb_common.results.scatter import NOTHING_SEEN, STATED, Scatter, Squares
from llmb_common.results.steps import OTHER_WORK, MeasuredSteps, StepTime, flops_mismatch, steps_of, window_of
from llmb_common.results.training import training_of, training_sense
from llmb_common.runs.timing.runs import RunTiming


def remarks_on(
    runs: Sequence[StepTime], decision: Decision, scatter: Scatter, waiting: Sequence[StepTime] = ()
) -> tuple[str, ...]:
    """Return clauses about ``runs`` as a group, for readers of their verdict; empty where there is nothing to remark.

    They tell when several runs share fewer than ``SETTLED`` days or sets of nodes, scatter more than is known of this
    site, or are of two kinds or slow with one node; at most one clause on each of these three, in this order, without
    full stops.

    Args:
        runs: the step times that the decision is over
        decision: the decision over them
        scatter: how much repeats differ, as the decision assumed
        waiting: further successful runs of the same configuration, which count only at the decision's next look;
            they count for the last of the three
    """
    found = []
    if decision.days < min(len(runs), SETTLED):
        what = "one day or the same nodes" if decision.days == 1 else f"only {decision.days} days or sets of nodes"
        hit = "all" if decision.days == 1 else "several"
        found.append(
            f"its {len(runs)} runs come from {what}, so a bad day or node may have slowed {hit} of them:"
            " repeat on other days (--spread)"
        )
    if len(runs) > 1 and (decision.scattered or decision.source == "runs"):
        spread = statistics.stdev(run.mean_log for run in runs)  # of what is judged: with stalls
        known = f"this site's past runs ({percent(scatter.total)})" if scatter.learned else "runs on one cluster should"
        # A day's runs may differ too much, or days, and all of them together not.
        more = "more" if not scatter.learned or spread > scatter.total else "otherwise"
        instead = "is computed from them alone" if decision.source == "runs" else "assumes the stated scatter"
        found.append(f"these runs differ by {percent(spread)}, {more} than {known}, so the interval {instead}")
    every = [*runs, *waiting]
    if text := odd_runs_clause(every) or slow_node_clause(every):
        found.append(text)
    return tuple(found)


SAME_COUNT = 0.01
"""Share by which two counts of FLOPs may differ and be called the same."""

_SCATTER = {"stated": "stated scatter", "site": "this site's scatter", "runs": "these runs' own scatter"}
_STEADY = {"pass": "pass", "fail": "fail too", "open": "alone are open"}
_STALLS_SHOWN = 0.001
"""Of the step time: what less cost is not worth a word."""

Kind: TypeAlias = Literal["pass", "fail", "open", "no reference", "not judged"]


class Figures(msgspec.Struct, frozen=True):
    """The speed of one run in the units that people compare: tokens/s, days for 10^12 tokens, TFLOP/s per GPU, MFU.

    ``step_seconds`` is the step time that the others follow from; ``tokens_per_second`` is that of the whole job.
    FLOPs are counted as the recipe's source counts them; ``tflops_per_gpu`` is None where they are not known. Where
    LLMB's own count differs by more than 1 %, ``mfu`` follows that one, and ``own_tflops_per_gpu`` has the TFLOP/s
    by it (else None). ``log_mfu`` is the mean TFLOP/s that the log prints over the GPU's peak, as newer
    publications have it. MFUs are fractions (0.4: 40 %); ``mfu`` is None where the GPU's peak or the FLOPs are not
    known, ``log_mfu`` where the peak or the log's TFLOP/s are not. ``figures`` makes it.
    """

    step_seconds: float
    tokens_per_second: float
    days_1t: float
    tflops_per_gpu: float | None
    mfu: float | None
    log_mfu: float | None = None
    own_tflops_per_gpu: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The judgment of one run, or of repeats of one: its ``kind`` and the text shown for it.

    ``kind`` is ``pass``, ``fail``, ``open`` (more runs are needed), ``no reference`` or ``not judged``. ``text`` is a
    clause without a full stop: the answer and by how much (behind ``indication: `` where the reference is of other
    software), or why there is none (``the window is incomplete``), or that the run is ``not training``. ``decision``
    and ``reference`` are None where nothing was compared. ``remarks`` are clauses that a reader must know of the
    runs. ``not_training`` says in clauses why they did not train as planned; with any entry, the verdict is never a
    pass. The property ``difference`` is the mean step time over the reference's, less 1 (0.02: 2 % slower); None
    where nothing was compared. ``judge_result``, ``judge_runs`` and ``judge_log`` make it.
    """

    kind: Kind
    text: str
    decision: Decision | None = None
    reference: Reference | None = None
    remarks: tuple[str, ...] = ()
    not_training: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """The mean step time over the reference's, less 1: 0.02 is 2 % slower. None where nothing was compared."""
        return self.decision.ratio - 1 if self.decision else None


def measured_seconds(plan: JobPlan, timing: RunTiming) -> float | None:
    """Return a run's step time in seconds as its recipe's source states it: the window's mean, or the last step's.

    Which one the plan's ``measurement`` says. ``timing`` is what the run's log says. The mean includes stalls. None
    where the log does not have the whole window, or, for the last step's time, no step at all.

    Raises:
        OSError: the last step's time counts, is only read from the log now, and that fails
    """
    if plan.measurement.statistic == "last":
        return timing.last.seconds if timing.last else None
    return timing.seconds.mean if timing.seconds else None


def figures(plan: JobPlan, recipe: Recipe, timing: RunTiming, step_seconds: float) -> Figures:
    """Return the speed of a run of ``plan`` whose steps take ``step_seconds``, in the units that people compare.

    ``recipe`` is the plan's, and says how FLOPs are counted. ``timing``, the run's, only adds the TFLOP/s that its
    log prints. ``step_seconds`` is above 0.
    """
    rate = tokens_per_second(plan.seq_len, plan.gbs, step_seconds)
    tflop = planned_tflop(plan, recipe)
    tflops = tflop / step_seconds if tflop is not None else None
    share = own_share(plan)
    own = tflops * share if tflops is not None and share is not None else None
    counted = tflops if own is None else own
    peak = peak_tflops(plan.gpu_type, plan.dtype)
    logged = timing.tflops.mean if timing.tflops else None
    return Figures(
        step_seconds=step_seconds,
        tokens_per_second=rate,
        days_1t=training_days(1e12, rate),
        tflops_per_gpu=tflops,
        mfu=counted / peak if peak and counted is not None else None,
        log_mfu=logged / peak if peak and logged else None,
        own_tflops_per_gpu=own,
    )


def judge_result(
    plan: JobPlan,
    recipe: Recipe,
    timing: RunTiming,
    baselines: Sequence[Reference] = (),
    steps: MeasuredSteps | None = None,
    scatter: Scatter = STATED,
    earlier: Squares = NOTHING_SEEN,
) -> Verdict:
    """Return the verdict on one run: whether it trained, and how fast it was against a reference.

    It is compared with one reference: those of the run's own software come first, and of these ``baselines`` before
    published results. A run whose log is no Success (nor Trained), whose window is incomplete, or that must not be
    compared (a smoke test without a baseline, profiled, measured over another window) is ``not judged``, whatever
    else is wrong with it. Any other is ``fail`` if it did not train, or a step's work differs from the planned by
    more than 25 %; else ``no reference`` without a reference. The text says why; ``remarks`` has what is odd in its
    steps and what must be known of its reference; ``not_training`` says why it did not train, but of a log that is no
    Success (nor Trained) only that figures are NaN or infinite.

    Args:
        plan: what was run
        recipe: the plan's, where its published results are
        timing: what its log says
        baselines: this site's own references for the configuration, as ``baseline_references`` returns them
        steps: ``steps_of(timing)``, where it is known already; None: it is made here
        scatter: how much repeats differ
        earlier: squares of earlier runs of the configuration, as in ``decide``

    Raises:
        RecipeError: a file of the recipe cannot be read, or is damaged
        OSError: the steps are only read from the log now, and that fails; with ``steps`` only where the last step's
            time counts
    """
    if not timing.status.measured:
        odd = (timing.status.message,) if timing.status.not_finite else ()
        return Verdict("not judged", f"{timing.status.state.lower()}: no result to judge", not_training=odd)
    steps = steps or steps_of(timing)
    measured = steps.time
    if measured is None:
        return Verdict("not judged", "the window is incomplete")
    sense = training_sense(steps.training, plan)
    planned = planned_tflop(plan, recipe)
    remarks = steps.remarks + sense + flops_mismatch(steps.tflop, planned)
    if (share := own_share(plan)) is not None:
        remarks += (
            f"Megatron-Bridge counts {signed_percent(1 / share - 1)} FLOPs compared with LLMB for this model: its"
            " TFLOPS, also in logs and published results, are off by that much; the MFU uses LLMB's count"
            " (docs/catalogue.md)",
        )
    references = by_preference([*baselines, *published_references(plan, recipe)])
    if refused := _refusal(plan, timing, has_baseline=bool(baselines)):
        speed = Verdict("not judged", refused)
    elif not references:
        speed = Verdict("no reference", "no published result for this configuration")
    else:
        remarks += _remarks_on_reference(plan, recipe, timing, references[0])
        speed = judge_runs(plan, [measured], references[0], scatter=scatter, earlier=earlier)
    speed = replace(speed, remarks=remarks + speed.remarks)
    return with_training(speed, sense + flops_mismatch(steps.tflop, planned, OTHER_WORK))


def judge_log(timing: RunTiming, steps: MeasuredSteps) -> Verdict:
    """Return the verdict on a log that LLMB did not make: always ``not judged``, as it is compared with nothing.

    ``steps`` is ``steps_of(timing)``. ``not_training`` says why the run did not train, if so; ``remarks`` has what is
    odd in its steps, then the same reasons except NaN and infinite figures.

    Raises:
        OSError: the steps are only read from the log now, and that fails
    """
    training = steps.training if steps.time is not None else training_of(timing.iterations)
    odd = (timing.status.message,) if timing.status.not_finite else ()
    text = "not an LLMB run, so not compared"
    return Verdict("not judged", text, remarks=steps.remarks + training.faults, not_training=odd + training.faults)


def with_training(verdict: Verdict, odd: tuple[str, ...]) -> Verdict:
    """Return a copy of ``verdict``, which is about speed alone; a fail where ``odd`` says that it did not train.

    ``odd`` are clauses, which replace its ``not_training``; empty: all runs trained, and kind and text stand. An open
    verdict and one without a reference become a fail, too, and the text is then ``not training: `` and the clauses,
    joined by ``; ``, in place of what it said of the speed; after a pass it begins with ``fast, but not training: ``.
    Kind and text of one that was not judged stay.
    """
    if not odd or verdict.kind == "not judged":
        return replace(verdict, not_training=odd)
    speed = "fast, but not training" if verdict.kind == "pass" else "not training"
    return replace(verdict, kind="fail", text=f"{speed}: {'; '.join(odd)}", not_training=odd)


def _remarks_on_reference(plan: JobPlan, recipe: Recipe, timing: RunTiming, reference: Reference) -> tuple[str, ...]:
    """Return clauses on a run beside its ``reference``; empty where there is nothing to say.

    That is: the notes on the reference, each after ``its reference: ``, a GPU clock boost that only the published
    run had, and the last step's time where the source states that; in this order. ``recipe`` is the plan's,
    ``timing`` what the run's log says.

    Raises:
        OSError: the last step's time counts, is only read from the log now, and that fails
    """
    found = [f"its reference: {note}" for note in reference.notes]
    if recipe.measured_as(plan.variant).vboost and not plan.vboost and reference.kind == "published":
        found.append("the published run used the GPU clock boost (ENABLE_VBOOST=true), this run did not")
    if plan.measurement.statistic == "last" and timing.last is not None:
        difference = timing.last.seconds / reference.seconds - 1
        found.append(
            f"its last step, the figure in the published table, takes {timing.last.seconds:g} s"
            f" ({signed_percent(difference)})"
        )
    return tuple(found)


def judge_runs(
    plan: JobPlan,
    runs: Sequence[StepTime],
    reference: Reference,
    *,
    tolerance: float = TOLERANCE,
    error_rate: float = ERROR_RATE,
    scatter: Scatter = STATED,
    earlier: Squares = NOTHING_SEEN,
    waiting: Sequence[StepTime] = (),
) -> Verdict:
    """Return the verdict on the speed of repeats of one configuration, against ``reference``; it is over all ``runs``.

    ``plan`` is one run's. ``tolerance``, a share of the step time, is widened (``widened``) where the reference was
    measured with other software. ``error_rate``, ``scatter``, ``earlier`` and ``waiting`` are those of ``decide``.
    Whether the runs trained is not looked at.

    Raises:
        ValueError: no runs, or a reference that is not positive
    """
    tolerance = widened(tolerance, plan, reference)
    decision = decide(
        runs,
        reference.seconds,
        tolerance=tolerance,
        reference_error=reference.error,
        error_rate=error_rate,
        scatter=scatter,
        earlier=earlier,
        waiting=waiting,
    )
    return Verdict(
        decision.answer,
        _decision_text(decision, reference),
        decision,
        reference,
        remarks_on(runs, decision, scatter, waiting),
    )


def planned_tflop(plan: JobPlan, recipe: Recipe) -> float | None:
    """Return the TFLOP (10^12 operations) of one GPU in one step of ``plan``, as the recipe's source counts them.

    ``recipe`` is the plan's. None where the plan has no listed architecture, and its function's FLOPs are not known.
    """
    if plan.architecture is None:
        per_token = plan.function.flops_per_token if plan.function else None
        if per_token is None:
            return None
        return achieved_tflops(per_token * plan.seq_len, plan.gbs, 1.0, plan.gpus)
    attention = recipe.measured_as(plan.variant).flops_attention or recipe.flops.attention
    sequence = model_flops(plan.architecture, plan.seq_len, attention).total
    return achieved_tflops(sequence, plan.gbs, 1.0, plan.gpus)


def own_share(plan: JobPlan) -> float | None:
    """Return LLMB's count of the FLOPs of the plan's function over Megatron-Bridge's count of them, as a ratio.

    0.95: LLMB counts 5 % less. None where the two differ by at most 1 %, one is not known, or the plan has no
    function.
    """
    function = plan.function
    if function is None or not function.flops_per_token or not function.own_flops_per_token:
        return None
    share = function.own_flops_per_token / function.flops_per_token
    return share if abs(share - 1) > SAME_COUNT else None


def _refusal(plan: JobPlan, timing: RunTiming, *, has_baseline: bool) -> str:
    """Return why a successful run must not be compared: a smoke test, profiled, or measured over other steps.

    As a clause without a full stop; empty: it may be. ``plan`` and ``timing`` are the run's; that it was successful
    is not checked. A smoke test (the size ``smoke``, or a run on CPUs) may where this site has a baseline for it
    (``has_baseline``).
    """
    if (plan.model_size == "smoke" or plan.device == "cpu") and not has_baseline:
        return "a smoke test is never compared with GPU results"
    if plan.profile is not None or plan.nccl_trace:
        return "profiled or traced, which slows a run down"
    if timing.window != window_of(plan):
        return f"measured over iterations {timing.window}, not over {window_of(plan)} like the reference"
    return ""


def _decision_text(decision: Decision, reference: Reference) -> str:
    """Return the text of a decision: ``fail, 9.0 % slower ± 3.1 % (limit 5.0 % slower; stated scatter)``.

    It must be clear without the page about verdicts, and has no full stop. Before the answer it has ``indication: ``
    where ``reference``, which the decision is about, is of other software than the runs. Of a pass the brackets also
    say which stalls would not show; behind them stand what stalls cost, if that matters, whether the reference has a
    note, and whether all stalls fell on one day, each after ``; ``. Where the decision is open, it ends with what
    would decide: ``: about 2 more runs would decide``, or ``: too close to the limit to tell``.
    """
    mark = "" if reference.same_software else "indication: "
    limit = f"limit {percent(decision.limit - 1)} slower; {_SCATTER[decision.source]}"
    if decision.answer == "pass":
        limit += f"; stalls rarer than 1 step in {decision.rarest_stall} would not show"
    # An interval that would reach down to a step time of 0.
    says_nothing = decision.resolution >= decision.ratio
    interval = ", too few runs for an interval" if says_nothing else f" ± {percent(decision.resolution)}"
    shown = f"{mark}{decision.answer}, {_ratio_text(decision.ratio)}{interval} ({limit})"
    if abs(decision.stall_share) >= _STALLS_SHOWN:
        alone = f"steady steps {_STEADY[decision.steady_answer]} ({_ratio_text(decision.steady)})"
        shown += f"; {alone}, stalls cost {percent(decision.stall_share)}"
    shown += "; see the note on its reference" if reference.notes else ""
    shown += "; all its stalls fell on one day" if decision.held else ""
    if decision.answer != "open":
        return shown
    if decision.reference_too_uncertain:
        return f"{shown}: the baseline is too uncertain to tell; make one from more runs"
    if decision.more_runs is None:
        return f"{shown}: too close to the limit to tell"
    days = f", on {counted(decision.more_runs, 'further day')}," if decision.other_days else ""
    return f"{shown}: about {counted(decision.more_runs, 'more run')}{days} would decide"


def _ratio_text(ratio: float) -> str:
    """Return a ratio of step times as words: 1.02 is ``2.0 % slower``, 0.98 ``2.0 % faster``, 1 ``equal``.

    It is ``equal``, too, where the difference is rounded to 0.0 %.
    """
    share = percent(abs(ratio - 1))
    if share == percent(0):
        return "equal"
    return f"{share} {'slower' if ratio > 1 else 'faster'}"


def widened(tolerance: float, plan: JobPlan, reference: Reference) -> float:
    """Return ``tolerance``, a share of the step time, as it applies to runs of ``plan`` judged by ``reference``.

    It stays as it is for a reference of the run's own software, else it grows by the ``slowest`` of ``release_spread``:
    it is (1 + ``tolerance``) x (1 + ``slowest``) - 1.
    """
    if reference.same_software:
        return tolerance
    return (1 + tolerance) * (1 + release_spread(plan).slowest) - 1
