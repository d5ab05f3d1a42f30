"""The columns of a measured run: what ``results``, ``show``, reports, packs and archives say of it, once each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from operator import methodcaller, not_
from typing import Any, NamedTuple

import msgspec

from llmb_common.base.notices import notice
from llmb_common.base.printable import printable
from llmb_common.measured.run import MeasuredRun, explain
from llmb_common.recipes.rows import FIGURES, PublishedResult
from llmb_common.results.references import Reference
from llmb_common.runs.index.runs import row_of
from llmb_common.runs.timing.records import Iteration
from llmb_run import columns
from llmb_run.columns import ALL, DATA, TEXT, Column, Form, attribute_at, formatted, minus_one, run_as_json


def _safe_text(value: object) -> str | None:
    """Return ``value``, from a log or file, as text that is safe to print; None for None, empty text, 0 and False."""
    return printable(str(value)) if value else None


def _safe_texts_at(path: str) -> Callable[[Any], list[str]]:
    """Return a function of a row that returns the texts at the dotted ``path`` (``a.b``), safe to print, as a list.

    What stands at ``path`` is an iterable of texts, or None. The list is empty where there are none, or an attribute on
    the way is None. What the attributes raise passes.
    """
    value = attribute_at(path)
    return lambda row: [printable(text) for text in value(row) or ()]


LEAST_TFLOPS = 0.05
"""What is printed as 0.0."""


def _worth_a_word(text: Callable[[MeasuredRun], str]) -> Callable[[MeasuredRun], str]:
    """Return a function of a run that returns the cell made by ``text``, or empty text for too few TFLOPS.

    Too few means fewer than ``LEAST_TFLOPS``. ``text`` returns TFLOPS as a number without unit, or an empty text,
    which stays empty; what it raises passes. Jobs on CPUs have so few, and their work is not counted in TFLOPS.
    """

    def worth_it(run: MeasuredRun) -> str:
        """Return the cell that ``text``, of ``_worth_a_word``, makes of ``run``; empty below ``LEAST_TFLOPS``."""
        cell = text(run)
        return cell if cell and float(cell) >= LEAST_TFLOPS else ""

    return worth_it


def _days_cell(run: MeasuredRun) -> str:
    """Return the days to train on a trillion tokens at the run's speed, as text without a unit: ``12.34``.

    Empty without figures, and for a smoke test, whose model nobody trains.

    Raises:
        RecordError: the run's record cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    smoke = run.record is not None and run.record.plan.model_size == "smoke"
    return "" if smoke or run.figures is None else formatted(run.figures.days_1t, ".2f")


def _percent(share: float) -> float:
    """Return ``share`` as a number of percent, a float that is not rounded: 41.0 for 0.41."""
    return share * 100


def _or_of_log(path: str, of_log: str, spec: str) -> Callable[[MeasuredRun], str]:
    """Return a function of a run that returns its figure at the dotted ``path`` as text by ``spec`` (``formatted``).

    ``spec`` is one of Python's formats, such as ``.2f``. The text is empty where there is no figure. For a log that
    LLMB did not write, the figure is the one at ``of_log``, another such path: what the log itself says over the
    window. What the run's attributes raise passes: RecordError where its record cannot be read, and for its figures
    also RecipeError, ConfigError and OSError.
    """
    recorded, logged = attribute_at(path), attribute_at(of_log)
    return lambda run: formatted(recorded(run) if run.record else logged(run), spec)


def reference_as_dict(reference: Reference | None) -> dict[str, Any] | None:
    """Return the reference of a verdict as JSON values, ``seconds`` being its step time; None where there is none.

    The keys: ``kind`` (``baseline`` or ``published``), ``seconds``, ``software``, ``source``, ``same_software``
    (whether the run had it) and ``notes`` (texts).
    """
    if reference is None:
        return None
    names = ("kind", "seconds", "software", "source", "same_software", "notes")
    return {name: getattr(reference, name) for name in names}


REFERENCE = Column[Any](
    "reference_step_seconds",
    attribute_at("verdict.reference.seconds"),
    DATA | Form.MARKDOWN,
    "step time of the reference",
    head="reference",
    unit="s",
    spec="g",
)
DIFFERENCE = Column[Any](
    "difference",
    attribute_at("verdict.difference"),
    ALL & ~Form.MARKDOWN,
    "mean step time, stalls included, over the reference's, less 1",
    head="vs. reference",
    unit="%",
    spec="+.1%",
)
TOLERANCE = Column[Any](
    "tolerance",
    attribute_at("verdict.decision.limit", minus_one),
    DATA,
    "`difference` up to which it passes",
    head="passes up to",
    unit="%",
    spec="+.1%",
)
VERDICT: tuple[Column[Any], ...] = (
    Column("verdict", attribute_at("verdict.kind"), DATA, "pass, fail, open, no reference or not judged"),
    Column(
        "indication",
        attribute_at("verdict.reference.same_software", not_),
        DATA,
        "the reference has other software: pass and fail mean less",
    ),
    DIFFERENCE,
    Column("difference_low", attribute_at("verdict.decision.low", minus_one), DATA, "lower bound of `difference`"),
    Column("difference_high", attribute_at("verdict.decision.high", minus_one), DATA, "upper bound of `difference`"),
    TOLERANCE,
    Column("more_runs", attribute_at("verdict.decision.more_runs"), DATA, "about how many more runs would decide"),
    Column("not_training", _safe_texts_at("verdict.not_training"), DATA, "why it did not train as planned"),
    Column(
        "steady_difference",
        attribute_at("verdict.decision.steady", minus_one),
        DATA,
        "`difference` of the steady steps alone",
    ),
    Column(
        "stall_share",
        attribute_at("verdict.decision.stall_share"),
        DATA,
        "time that stalls cost, over that of steady steps",
    ),
    Column(
        "rarest_stall_steps",
        attribute_at("verdict.decision.rarest_stall"),
        DATA,
        "stalls rarer than one in so many steps",
    ),
    Column("scatter", attribute_at("verdict.decision.source"), DATA, "which scatter was used: stated, site or runs"),
    Column("other_days", attribute_at("verdict.decision.other_days"), DATA, "further runs only help on other days"),
    Column(
        "reference_too_uncertain",
        attribute_at("verdict.decision.reference_too_uncertain"),
        Form.JSON,
        "no number of runs would decide",
    ),
    Column("reference", attribute_at("verdict.reference", reference_as_dict), Form.JSON, "what it was compared with"),
    Column("remarks", _safe_texts_at("verdict.remarks"), Form.JSON, "what a reader must know of the steps"),
)
"""The columns of anything that has a ``verdict``: a run or several."""

_PLAN: tuple[Column[MeasuredRun], ...] = tuple(
    Column(name, attribute_at(f"record.plan.{name}"), forms, means, head, spec=spec)
    for name, forms, means, head, spec in (
        ("workload", DATA, "name of the recipe's workload", "", ""),
        ("variant", DATA, "which set of configurations of the recipe", "", ""),
        ("model_size", DATA, "", "", ""),
        ("dtype", DATA, "", "", ""),
        ("fp8_recipe", DATA, "scaling of FP8", "", ""),
        ("gpu_type", DATA, "", "", ""),
        ("gpus", DATA | Form.TABLE, "", "GPUs", "d"),
        ("nodes", DATA, "", "", ""),
        ("gbs", DATA, "global batch size in sequences", "", ""),
        ("seq_len", DATA, "tokens of a sequence", "", ""),
    )
)
_LOG: tuple[Column[MeasuredRun], ...] = (
    Column("name", lambda run: printable(run.timing.files.name), DATA, "of the run's folder", csv_name="experiment"),
    Column("status", attribute_at("timing.status.state"), DATA, "Success, Failed, Running, ..."),
    Column(
        "step_seconds_mean",
        attribute_at("timing.seconds.mean"),
        DATA,
        "over the window, by the log",
        csv_name="time_mean_s",
    ),
    Column("step_seconds_std", attribute_at("timing.seconds.std"), DATA, "standard deviation", csv_name="time_std_s"),
    Column(
        "log_tflops_per_gpu_mean",
        attribute_at("timing.tflops.mean"),
        DATA,
        "by the log",
        csv_name="tflops_per_gpu_mean",
    ),
    Column(
        "log_tflops_per_gpu_std", attribute_at("timing.tflops.std"), DATA, "by the log", csv_name="tflops_per_gpu_std"
    ),
)
_FIGURES: tuple[Column[MeasuredRun], ...] = (
    Column(
        "step_seconds",
        attribute_at("figures.step_seconds"),
        ALL,
        "as the recipe's source states it: mean of the window, or the last step; tables have the mean",
        head="step",
        unit="s",
        spec=".3f",
        text=lambda run: formatted(run.step_seconds, ".3f"),
        csv_name="step_s",
    ),
    Column(
        "steady_step_seconds",
        attribute_at("steps.time.seconds"),
        ALL & ~Form.TABLE,
        "of the steady steps of the window",
        head="steady step",
        unit="s",
        spec=".3f",
        csv_name="steady_step_s",
    ),
    Column(
        "steady_step_error_seconds",
        attribute_at("steps.time.error"),
        Form.JSON,
        "standard error of `steady_step_seconds`",
    ),
    Column("tokens_per_second", attribute_at("figures.tokens_per_second"), ALL, "of all GPUs", "tokens/s", spec=".0f"),
    Column(
        "tflops_per_gpu",
        attribute_at("figures.tflops_per_gpu"),
        ALL,
        "FLOPs counted as the reference's source does",
        head="TFLOPS/GPU",
        spec=".2f",
        text=_worth_a_word(_or_of_log("figures.tflops_per_gpu", "timing.tflops.mean", ".2f")),
    ),
    Column(
        "mfu_percent",
        attribute_at("figures.mfu", _percent),
        ALL,
        "of the peak of the precision",
        head="MFU",
        unit="%",
        spec=".2f",
    ),
    Column(
        "log_mfu_percent",
        attribute_at("figures.log_mfu", _percent),
        DATA | TEXT,
        "by the log",
        head="log MFU",
        unit="%",
        spec=".2f",
    ),
    Column(
        "days_1t",
        attribute_at("figures.days_1t"),
        DATA | TEXT,
        "days to train on 1T tokens",
        "days/1T",
        spec=".2f",
        text=_days_cell,
    ),
)
_CORRECTED = "published, corrected where wrong"
_PUBLISHED: tuple[Column[MeasuredRun], ...] = (
    Column("published_step_s", attribute_at("verdict.reference.result.step_seconds"), Form.CSV, _CORRECTED),
    *(
        Column(
            f"published_{figure}",
            attribute_at("verdict.reference.result", methodcaller("value", figure)),
            Form.CSV,
            _CORRECTED,
        )
        for figure in ("tokens_per_second", "mfu_percent", "tflops_per_gpu")
    ),
)


def _run_name(run: MeasuredRun) -> str:
    """Return the run's id, or the name of a log that LLMB did not write, safe to print.

    Raises:
        RecordError: the run's record cannot be read
    """
    return run.record.paths.run_id if run.record else printable(run.timing.files.name)


def _iso_date(when: float) -> str | None:
    """Return a Unix time as ISO 8601 text in UTC, to the second, ending in ``+00:00``.

    None for 0, which is an unknown time.
    """
    return datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="seconds") if when else None


def _published_json(result: PublishedResult) -> dict[str, Any]:
    """Return a published result as JSON values: ``step_seconds``, each of ``FIGURES`` by name, and ``source``.

    The figures in ``FIGURES`` are corrected where the document is wrong, the step time is as printed; None: not
    published. ``source`` is document and line, ``grok1.md:41``.
    """
    figures: dict[str, float | None] = {name: result.value(name) for name in FIGURES}
    return {"step_seconds": result.step_seconds, **figures, "source": result.source}


def _predicted_memory(run: MeasuredRun) -> float | None:
    """Return the peak of GPU memory that the plan predicted for a run, in GiB.

    None where it predicted none, or no peak was measured, so that a table of runs on CPUs has no such column.

    Raises:
        RecordError: the run's record cannot be read
    """
    return run.record.plan.preflight.memory_gib if run.record and run.memory_gib else None


RUN: tuple[Column[MeasuredRun], ...] = (
    *_LOG,
    Column("run_id", attribute_at("record.paths.run_id"), DATA | TEXT, "", "run", text=_run_name),
    *_PLAN,
    Column("job_id", attribute_at("record.job_id"), DATA, "of the scheduler"),
    Column("state", attribute_at("record.state"), DATA, "of the job"),
    Column("date", attribute_at("record.created", _iso_date), Form.CSV, "when it was made, UTC"),
    *_FIGURES,
    *_PUBLISHED,
    replace(REFERENCE, csv_name="reference_step_s"),
    Column(
        "reference_software",
        attribute_at("verdict.reference.software"),
        Form.CSV,
        "what the reference was measured with",
    ),
    *VERDICT,
    Column("outcome", attribute_at("outcome"), Form.JSON, "what became of it, in the word that `results` uses"),
    Column("reason", attribute_at("timing.status.reason", _safe_text), DATA, "why it did not succeed, as a code"),
    Column("iteration", attribute_at("timing.status.iteration"), DATA, "the iteration that `reason` is about"),
    Column("message", attribute_at("timing.status.message", _safe_text), DATA, "why it did not succeed, in words"),
    Column(
        "cause", attribute_at("why.kind"), DATA, "the cause, by [its id](failures.md); `unknown`: nothing names one"
    ),
    Column("cause_text", attribute_at("why.short", _safe_text), DATA, "the same in words, with rank and node"),
    Column("why", attribute_at("why", msgspec.to_builtins), Form.JSON, "the whole diagnosis, as `why --json` has it"),
    Column(
        "own_tflops_per_gpu",
        attribute_at("figures.own_tflops_per_gpu"),
        DATA | TEXT,
        "by LLMB's count of FLOPs, where that is another",
        head="own TFLOPS/GPU",
        spec=".2f",
        optional=True,
    ),
    Column(
        "memory_gib",
        attribute_at("memory_gib"),
        ALL,
        "peak of allocated memory on the fullest GPU",
        head="memory",
        unit="GiB",
        spec=".1f",
        optional=True,
    ),
    Column(
        "predicted_memory_gib",
        _predicted_memory,
        DATA | TEXT,  # the page has it in the same cell
        "what the plan predicted for `memory_gib`, where that is known",
        head="predicted",
        unit="GiB",
        spec=".1f",
        optional=True,
    ),
    Column("memory_reserved_gib", attribute_at("memory_reserved_gib"), DATA, "peak of what the allocator held"),
    Column("step_seconds_last", attribute_at("timing.last.seconds"), DATA, "last step of the log"),
    Column("verdict_text", attribute_at("verdict.text"), DATA, "the verdict in words"),
    Column("folder", attribute_at("timing.files.folder", _safe_text), Form.JSON, "of the run"),
    Column("log", attribute_at("timing.files.log", _safe_text), Form.JSON, "the training log"),
    Column("window", attribute_at("timing.window", msgspec.to_builtins), Form.JSON, "the measured iterations"),
    Column("published", attribute_at("verdict.reference.result", _published_json), Form.JSON, "the published result"),
    Column("notices", _safe_texts_at("timing.notices"), Form.JSON, "what a reader must know of the log"),
    Column(
        "findings", attribute_at("findings", msgspec.to_builtins), Form.JSON, "what its nodes say against the result"
    ),
    Column("extras", lambda run: run.extras.as_dict(), Form.JSON, "checkpoints and profiles"),
)


def as_dict(run: MeasuredRun) -> dict[str, Any]:
    """Return the run for JSON, by the keys of ``RUN_KEYS`` and ``RUN``; times are in seconds, whatever tables show.

    None: no such figure. A log that LLMB did not write has only the keys of ``RUN``. Why it failed is found out now,
    for this run alone, unless that was done before; for many runs ``as_dicts`` does it at once.

    Raises:
        RecordError: the run's record is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    return {**(run_as_json(row_of(run.record)) if run.record else {}), **columns.as_dict(RUN, run)}


def as_dicts(runs: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Return the runs for JSON, as ``as_dict`` makes them, in their order.

    Why failed ones failed is found out first, for all at once.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    explain(runs)
    return [as_dict(run) for run in runs]


class MeasuredStep(NamedTuple):
    """One iteration of a run, with the run: a row of ``results --iterations``. ``measured_steps`` makes it.

    ``step`` is an iteration of ``run``'s log, in the measured window or not.
    """

    run: MeasuredRun
    step: Iteration


STEP: tuple[Column[MeasuredStep], ...] = (
    Column("run", attribute_at("run", _run_name), DATA, "run id, or the log's name"),
    Column("measured", lambda row: row.step.index in row.run.timing.window, DATA, "whether it is in the window"),
    Column("iteration", attribute_at("step.index"), DATA, "from 1"),
    Column("seconds", attribute_at("step.seconds"), DATA),
    Column("tflops_per_gpu", attribute_at("step.tflops"), DATA, "by the log"),
    Column("loss", attribute_at("step.loss"), DATA),
    Column("grad_norm", attribute_at("step.grad_norm"), DATA),
    Column("skipped", attribute_at("step.skipped", bool), DATA, "by the optimizer"),
)


def measured_steps(runs: Iterable[MeasuredRun]) -> Iterator[MeasuredStep]:
    """Yield every step in the logs of all the runs, run by run, in order, those outside the measured window too.

    A run whose log has no step has no row.

    Raises:
        OSError: a log that was read before cannot be read any more
    """
    for run in runs:
        for step in run.timing.iterations:
            yield MeasuredStep(run, step)


def remarks_of(found: dict[str, Any]) -> list[str]:
    """Return sentences that a reader must know of a run: on its log, its steps and its nodes.

    They are in this order. Empty: nothing. ``found`` is the run as ``as_dict`` makes it, with ``notices`` and
    ``remarks`` (texts) and ``findings`` (dictionaries with ``text`` and ``severity``); a missing key is a KeyError.
    Of the findings only those with the severity ``problem`` count.
    """
    problems = [finding["text"] for finding in found["findings"] if finding["severity"] == "problem"]
    return [*found["notices"], *found["remarks"], *problems]


def say_remarks(runs: Iterable[MeasuredRun]) -> None:
    """Print a notice, on stderr, for each remark on a run and each problem of its nodes, behind the run's id.

    For a log that LLMB did not write, behind the log's name. Nothing is printed of a run without any.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    for run in runs:
        for text in (*run.remarks, *run.problems):
            notice(f"{_run_name(run)}: {printable(text)}")
