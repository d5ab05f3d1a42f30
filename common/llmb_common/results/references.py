"""What a run is compared with: the site's own baseline, or what NVIDIA published; and what a change is worth by that.

The same configuration on other software is an indication and no more. Between two releases of NVIDIA's container the
step time of one configuration changes by ``RELEASE_SPREAD``: the published rows of Megatron-Bridge that appear with the
same columns in consecutive releases, 5th to 95th percentile (``docs/verdicts.md`` has the method and the figures; a
test recomputes them).

A published result is somebody else's cluster, often with older software. A baseline is this cluster on a good day: it
shows what changed since, to within what repeats of it differ by. ``$LLMB_INSTALL/.llmb/baselines.json`` has one for
each configuration and software.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from llmb_common.base.engines import container_release, release_order, same_release
from llmb_common.base.errors import RecordError, RequestError
from llmb_common.base.printable import counted, signed_percent
from llmb_common.base.structs import change_list, read_list
from llmb_common.nodes.summary import NodeFinding, NodeSummary, setup_findings, setup_of
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.published import published_results
from llmb_common.recipes.columns import Columns
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import Document, PublishedResult
from llmb_common.results.configuration import configuration_key, image_marks, image_of, software_of, title_of
from llmb_common.results.level import level, mean_error
from llmb_common.results.scatter import PastRuns
from llmb_common.results.steps import StepTime
from llmb_common.runs.account import account_of
from llmb_common.runs.record import RunRecord


class ReleaseSpread(msgspec.Struct, frozen=True):
    """How much step times changed from one release of NVIDIA's software to the next, as relative changes.

    A change is the newer time over the older one, less 1: -0.05 is 5 % less time. ``fastest`` is the 5th percentile
    over ``pairs`` pairs of published results, ``median`` the 50th, ``slowest`` the 95th. ``release_spread`` returns it.
    """

    fastest: float
    median: float
    slowest: float
    pairs: int


RELEASE_SPREAD = {"dense": ReleaseSpread(-0.071, -0.011, 0.032, 52), "MoE": ReleaseSpread(-0.270, -0.009, 0.028, 110)}

Kind: TypeAlias = Literal["baseline", "published", "stated"]
"""``stated``: in the suite of an acceptance campaign."""


@dataclass(frozen=True)
class Reference:
    """A step time, in seconds, to compare a run's with; as text ``12.3 s (SOURCE; SOFTWARE)``.

    ``kind`` is ``published``, ``baseline`` (of this site) or ``stated`` (by the suite of an acceptance campaign).
    ``software`` is what it was measured with, ``source`` says for people where it comes from. ``error`` is its
    relative standard error, 0 where that is not known. ``published_references`` and ``baselines_for`` make it, and
    an acceptance campaign.
    """

    kind: Kind
    seconds: float
    software: str
    source: str
    same_software: bool
    """Whether the run used the same release of the same framework."""
    error: float = 0.0
    result: PublishedResult | None = None
    """The published result that it is; None for any other kind."""
    notes: tuple[str, ...] = ()
    """What must be known of it, whatever the verdict, as clauses without a full stop."""

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.source}; {self.software})"


def by_preference(known: Iterable[Reference]) -> list[Reference]:
    """Return the references with those of the run's own software first (``same_software``), else in the order given.

    A run is compared with the first.
    """
    return sorted(known, key=lambda reference: not reference.same_software)


def same_software(image: str | None, document: Document) -> bool:
    """Return whether jobs in ``image`` train with the framework and container release that ``document`` measured.

    ``image`` is a path or reference, whose text has the release. ``25.09`` and ``25.09.00`` are the same release. False
    where ``image`` is None or its release is not known, where ``document`` names no container, and for documents of
    NeMo 2.
    """
    return document.framework == "Megatron-Bridge" and same_release(container_release(image), document.container)


def published_references(plan: JobPlan, recipe: Recipe) -> list[Reference]:
    """Return the results that NVIDIA published for exactly the plan's configuration, the nearest software first.

    That is the plan's own container, then the newest, and last those without one. ``recipe`` is the plan's. Each
    has the notes that were published with it, and an error of 0. Empty: nothing was published for it.

    Raises:
        RecipeError: the recipe's results file or catalogue cannot be read, or is damaged
        RequestError: the global batch size of a result's row is no whole number at the result's number of GPUs
    """
    found = []
    for result in published_results(plan, recipe):
        document = recipe.document(result)
        release = f" {document.release}" if document.release else ""
        found.append(
            Reference(
                kind="published",
                seconds=result.step_seconds,
                software=document.software,
                source=f"{document.title}{release}, {document.date}",
                same_software=same_software(plan.image, document),
                result=result,
                notes=result.notes,
            )
        )
    return found


def release_spread(plan: JobPlan) -> ReleaseSpread:
    """Return how much published step times of the plan's kind of model (dense or MoE) change between releases."""
    return RELEASE_SPREAD["MoE" if plan.has_experts else "dense"]


class BaselineRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the runs that a baseline is made of, as the list of baselines stores it.

    ``seconds`` is its steady step time and ``error`` that time's standard error, in seconds. ``stalls`` (what each took
    beyond steady steps, in steady steps), ``steps`` (after warm-up), ``day`` (YYYY-MM-DD) and ``nodes`` (host names
    with commas between them) are those of its ``StepTime``: 0 or empty where not known. The property ``time`` makes
    that again, but for what is not stored: the number of measured steps and the window's mean are 0 (not known). An
    unknown key is refused when it is decoded; a time of 0 or less only by ``baselines``. ``set_baselines`` makes it.
    """

    run_id: str
    seconds: float
    error: float
    stalls: tuple[float, ...] = ()
    steps: int = 0
    day: str = ""
    nodes: str = ""

    @property
    def time(self) -> StepTime:
        """The step time of the run as a ``StepTime``, whose number of measured steps is not known (0)."""
        return StepTime(
            self.seconds, self.error, 0, stalls=self.stalls, steps=self.steps, day=self.day, nodes=self.nodes
        )


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """This site's own reference for one configuration and software: some runs that a user chose.

    ``key`` is the ``configuration_key``, ``title`` the line that names the configuration, ``software`` a text of
    ``software_of``, ``added`` the Unix time at which it was made. A site has at most one for each ``key`` and
    ``software``. Its text is ``this site's baseline of 3 runs, 2026-11-29``. The properties ``times`` and
    ``seconds`` are the runs' step times, in the order of ``runs``, and their mean in seconds, stalls included: the
    geometric mean, in which each day counts once (``Level.mean``). ``relative_error`` returns the standard error of
    that mean, as a share of it, with the site's runs as ``past``. ``seconds`` and ``relative_error`` raise a
    statistics.StatisticsError without runs. An unknown key is refused when it is decoded. ``set_baselines`` makes
    it, ``baselines`` reads it.
    """

    key: str
    title: str
    software: str
    added: float
    runs: tuple[BaselineRun, ...]
    setup: dict[str, str | float] = {}  # msgspec copies it
    """What the nodes of these runs were, as ``setup_of`` gives it, by field of ``NodeSummary``; empty: not known."""

    def __str__(self) -> str:
        day = time.strftime("%Y-%m-%d", time.localtime(self.added))
        return f"this site's baseline of {counted(len(self.runs), 'run')}, {day}"

    @property
    def times(self) -> list[StepTime]:
        """The step time of each run of the baseline, in the order of ``runs``."""
        return [run.time for run in self.runs]

    @property
    def seconds(self) -> float:
        """The baseline's mean step time in seconds, stalls included: the geometric mean of the days' geometric means.

        Days are the ``batches`` of its runs. There must be at least one run.

        Raises:
            statistics.StatisticsError: there is none
        """
        return math.exp(level(self.times).mean)

    def relative_error(self, past: PastRuns) -> float:
        """Return the standard error of the baseline's mean step time, as a share of it (0.01: 1 %).

        ``past`` are the site's runs, which say how much repeats differ; the baseline's own runs need not be among them.

        Raises:
            statistics.StatisticsError: the baseline has no runs
        """
        configuration = f"{self.key} {self.software}"
        others = past.squares_without(configuration, [run.run_id for run in self.runs])
        return mean_error(self.times, past.scatter(configuration), others)


_LIST = ("baselines", Baseline, "a list of baselines")


def baselines(install: Path) -> list[Baseline]:
    """Return all baselines of the installation, sorted by title, then software; empty where it has none.

    A file that is missing counts as none.

    Raises:
        RecordError: their file cannot be read, is damaged, or has a baseline without runs or times
    """
    found = read_list(_baselines_path(install), *_LIST)
    _check_baselines(found, install)
    return sorted(found, key=_sort_key)


def _check_baselines(found: Iterable[Baseline], install: Path) -> None:
    """Raise where a baseline in ``found`` has no runs, or a run without a positive time.

    Raises:
        RecordError: the message names the file in ``install``
    """
    for item in found:
        timed = all(run.seconds > 0 for run in item.runs)
        if not item.runs or not timed:
            raise RecordError(
                f"{_baselines_path(install)} has a baseline without runs or times", remedy="correct or remove the file"
            )


def set_baselines(install: Path, runs: Sequence[tuple[RunRecord, StepTime]]) -> list[Baseline]:
    """Make ``runs`` the baselines of their configurations and software, repeats together; return the new ones.

    Each run comes with its step time; one that is given twice counts twice. The new ones are sorted by title, then
    software. The installation's list of baselines is written, and made where there is none: one of the same
    configuration and software is replaced, with all its runs; others stay. The list is not changed where an error is
    raised. That the runs succeeded is not checked.

    Raises:
        RequestError: there are no runs, or repeats with several images of one name
        RecordError: the list cannot be read or written, is damaged, or has a baseline without runs or times; or another
            process does not finish its own change of it
        OSError: the list cannot be locked for another reason
    """
    if not runs:
        raise RequestError("no run to make a baseline from", remedy="name successful runs: llmb-run results lists them")
    together: dict[tuple[str, str], list[tuple[RunRecord, StepTime, str]]] = {}
    marks = image_marks([image_of(record) for record, _ in runs])
    for (record, measured), mark in zip(runs, marks, strict=True):
        key = configuration_key(record.plan), software_of(record)
        together.setdefault(key, []).append((record, measured, mark))
    new = {key: _baseline(*key, repeats) for key, repeats in together.items()}

    def replaced(found: list[Baseline]) -> list[Baseline]:
        """Return the list of baselines that takes the place of ``found``, sorted by title, then software.

        It has the enclosing function's ``new`` ones, in place of those of the same key and software.

        Raises:
            RecordError: ``found`` has a baseline without runs or times
        """
        _check_baselines(found, install)
        kept = {(item.key, item.software): item for item in found}
        return sorted((kept | new).values(), key=_sort_key)

    change_list(_baselines_path(install), *_LIST, replaced)
    return sorted(new.values(), key=_sort_key)


def _baseline(key: str, software: str, repeats: Sequence[tuple[RunRecord, StepTime, str]]) -> Baseline:
    """Return the baseline that ``repeats`` make: (run, its step time, mark of its image) of each, at least one.

    All are of the configuration ``key`` and of ``software``. Its title is the last one's, and it is made now.

    Raises:
        RequestError: they ran with several images of one name
    """
    title = title_of(repeats[-1][0].plan)
    if len(images := {mark for _, _, mark in repeats}) > 1:
        raise RequestError(
            f"{title} ran with several images called {software}:{','.join(sorted(images))}",
            remedy="name the runs of one image; llmb-run results --group shows them",
        )
    runs = tuple(
        BaselineRun(record.paths.run_id, run.seconds, run.error, run.stalls, run.steps, run.day, run.nodes)
        for record, run, _ in repeats
    )
    setup = setup_of([account_of(record) for record, _, _ in repeats])
    return Baseline(key, title, software, round(time.time(), 3), runs, setup)


def remove_baselines(install: Path, keys: Sequence[str]) -> list[Baseline]:
    """Remove the baselines whose configuration has one of ``keys``, whatever their software; return those removed.

    Keys (``configuration_key``) are compared in full. The result is sorted by title, then software; empty without keys.
    The installation's list of baselines is written, also where ``keys`` is empty, and made then if there is none.

    Raises:
        RequestError: a key that no baseline has; nothing is removed then
        RecordError: the list cannot be read or written, is damaged, or has a baseline without runs or times; or another
            process does not finish its own change of it
        OSError: the list cannot be locked for another reason
    """
    removed: list[Baseline] = []

    def others(found: list[Baseline]) -> list[Baseline]:
        """Return the baselines of ``found`` that stay, sorted by title, then software.

        Those that have one of ``keys`` of the enclosing function are appended to its ``removed``; not where it raises.

        Raises:
            RequestError: a key that no baseline has
            RecordError: ``found`` has a baseline without runs or times
        """
        _check_baselines(found, install)
        for key in keys:
            if all(item.key != key for item in found):
                raise RequestError(f"no baseline {key}", remedy="llmb-run baseline list shows the keys")
        removed.extend(item for item in found if item.key in keys)
        return sorted((item for item in found if item.key not in keys), key=_sort_key)

    change_list(_baselines_path(install), *_LIST, others)
    return sorted(removed, key=_sort_key)


def baseline_references(record: RunRecord, known: Sequence[Baseline], past: PastRuns) -> list[Reference]:
    """Return the baselines to compare a run with, that of its own software first; empty where there is none.

    They are those of ``known`` that are of its configuration, otherwise in their order there, without any that the run
    is part of. ``past`` are the site's runs, which say how much repeats differ. Where none is known, the run's log is
    not read for its software.
    """
    if not known:
        return []  # to say what a run's software is may mean to read its log
    others = [item for item in known if not _has_run(item, record)]
    return baselines_for(record.plan, software_of(record), others, past)


def _has_run(item: Baseline, record: RunRecord) -> bool:
    """Return whether the run is among those that the baseline was made from."""
    return any(run.run_id == record.paths.run_id for run in item.runs)


def unlike_baselines(record: RunRecord, account: NodeSummary, known: Sequence[Baseline]) -> list[NodeFinding]:
    """Return how a run's nodes differ from those of a baseline, one finding per fact; empty where nothing differs.

    ``account`` is the summary of the run's nodes. The baseline is one of those in ``known`` with the same GPUs: of the
    run's configuration if there is one, else any; the newest of several. Findings are those of ``unlike_site``. Empty
    also where there is no such baseline, or the run is itself part of any with the same GPUs.
    """
    if any(_has_run(item, record) for item in _with_same_gpus(account, known)):
        return []
    return unlike_site(account, known, configuration_key(record.plan))


def unlike_site(account: NodeSummary, known: Sequence[Baseline], key: str = "") -> list[NodeFinding]:
    """Return how the nodes of ``account`` differ from those of a baseline, one finding per fact.

    The baseline is that one of ``known`` of the configuration ``key``, else any (``key`` empty: any), the newest of
    several, among those with the same GPUs. Another driver is a note, all else a problem (``setup_findings``). What
    depends on the job, such as the clocks under load, is compared only where the baseline is of ``key``. What either
    does not know is not compared. Empty where nothing differs, or there is none.
    """
    comparable = _with_same_gpus(account, known)
    item = max(comparable, key=lambda item: (item.key == key, item.added), default=None)
    if item is None:
        return []
    return setup_findings(account, item.setup, f"this site's baseline {item.key}", same_job=item.key == key)


def _with_same_gpus(account: NodeSummary, known: Sequence[Baseline]) -> list[Baseline]:
    """Return the baselines whose nodes had the same GPUs as those of ``account``; empty: there is none.

    They are those of ``known``, in its order. A baseline that does not know its nodes is left out.
    """
    return [item for item in known if item.setup and item.setup.get("gpus") == account.gpus]


def baselines_for(plan: JobPlan, software: str, known: Sequence[Baseline], past: PastRuns) -> list[Reference]:
    """Return those of ``known`` that are of the plan's configuration as references.

    That of the same ``software``, which is a text of ``software_of``, comes first. The others keep their order. Empty:
    there is none. ``past`` are the site's runs, which say how much repeats differ.

    Raises:
        statistics.StatisticsError: such a baseline has no runs, which ``baselines`` does not return
    """
    key = configuration_key(plan)
    return by_preference(
        Reference(
            "baseline", item.seconds, item.software, str(item), item.software == software, item.relative_error(past)
        )
        for item in known
        if item.key == key
    )


def _baselines_path(install: Path) -> Path:
    """Return the path of the installation's list of baselines, whether the file exists or not.

    It is ``baselines.json`` in the folder ``.llmb`` of ``install``.
    """
    return install / ".llmb" / "baselines.json"


def _sort_key(item: Baseline) -> tuple[str, str]:
    """Return the sort key of a baseline: (title, software)."""
    return item.title, item.software


Facts: TypeAlias = Mapping[str, object]
_CONTAINER = "container"


class Worth(msgspec.Struct, frozen=True):
    """What a change of configuration did to published GPU times per sample, as shares: -0.05 is 5 % less time.

    ``low`` is the least of the changes, ``median`` the middle one, ``high`` the greatest, of ``pairs`` pairs of
    results; for a change of the container alone they are the 5th, 50th and 95th percentile. ``of`` says for people
    what was compared. Its text is ``-5.0 % to +1.2 % in 3 pairs of published rows``, with a single percentage where
    both are equal. ``worth_of`` makes it.
    """

    low: float
    median: float
    high: float
    pairs: int
    of: str

    def __str__(self) -> str:
        span = signed_percent(self.low)
        if self.high != self.low:
            span += f" to {signed_percent(self.high)}"
        return f"{span} in {counted(self.pairs, 'pair')} of {self.of}"


def worth_of(before: JobPlan, after: JobPlan, recipe: Recipe) -> Worth | None:
    """Return how published GPU times per sample changed with exactly the change from ``before`` to ``after``.

    Below 0, ``after`` is faster. ``recipe`` is that of both plans. Pairs of results of the model size of ``before``
    are compared, those on its GPU type if there are any. For a change of nothing but the container, of which no
    pair is published, it is ``release_spread``. None: nothing is published for this change, the plans are alike, or
    one has a sequence length of its own.

    Raises:
        RecipeError: the recipe's results file or catalogue cannot be read, or is damaged
        RequestError: the global batch size of a result's row is no whole number at the result's number of GPUs
    """
    wanted = _differing_facts(_plan_facts(before), _plan_facts(after))
    if not wanted or "seq_len" in {*before.overridden, *after.overridden}:  # nothing is published for other lengths
        return None
    known = [_result_facts(result, recipe) for result in recipe.results_of(before.model_size)]
    pairs = []
    for (one, base), (other, seconds) in permutations([item for item in known if item is not None], 2):
        if _differing_facts(one, other) == wanted:
            pairs.append((one["gpu"], seconds / base - 1))
    # Both orders of each pair were tried, so a change and its reverse are told apart.
    own = [ratio for gpu, ratio in pairs if gpu == before.gpu_type]
    if found := own or [ratio for _, ratio in pairs]:
        of = "published rows" if own else "published rows of other GPUs"
        return Worth(min(found), statistics.median(found), max(found), len(found), of)
    return _between_releases(before, wanted)


def _between_releases(plan: JobPlan, wanted: Mapping[str, tuple[object, object]]) -> Worth | None:
    """Return the worth of another container and nothing else, by ``release_spread``; None for any other change.

    ``plan`` tells the kind of model (dense or MoE). ``wanted`` has the facts that change, each as (before, after); an
    older container after a newer one has the reverse of the change. None also where one of the two is not known.
    """
    one, other = wanted.get(_CONTAINER, (None, None))
    if wanted.keys() != {_CONTAINER} or not isinstance(one, tuple) or not isinstance(other, tuple):
        return None
    spread = release_spread(plan)
    changes = [spread.fastest, spread.median, spread.slowest]
    if other < one:
        changes = sorted(1 / (1 + change) - 1 for change in changes)
    low, median, high = changes
    of = "published rows of consecutive releases (5th to 95th percentile, all models of its kind)"
    return Worth(low, median, high, spread.pairs, of)


def _differing_facts(one: Facts, other: Facts) -> dict[str, tuple[object, object]]:
    """Return the names whose values differ between two mappings, each with (value of one, value of the other).

    A name that one of them lacks has None there. Empty: none differs.
    """
    names = dict.fromkeys([*one, *other])
    differing = [name for name in names if one.get(name) != other.get(name)]
    return {name: (one.get(name), other.get(name)) for name in differing}


def _plan_facts(plan: JobPlan) -> Facts:
    """Return what jobs of ``plan`` run with: variant, GPUs, precision, layout and container, by name.

    The names are ``variant``, ``gpu``, ``gpus``, ``dtype``, ``fp8_recipe``, the layout columns and ``container``:
    those of ``_result_facts``, so the two can be compared; the container's release is a tuple of numbers or None.
    """
    known = {"variant": plan.variant, "gpu": plan.gpu_type, "gpus": plan.gpus}
    known |= _precision_facts(plan.dtype, plan.fp8_recipe)
    return {
        **known,
        **_column_facts(plan),
        "gbs": plan.gbs,
        _CONTAINER: _release_numbers(container_release(plan.image)),
    }


def _result_facts(result: PublishedResult, recipe: Recipe) -> tuple[Facts, float] | None:
    """Return (facts by name, GPU-seconds per sample) of a published result; None: the recipe has no row of it.

    The facts are what it was measured with: variant, GPUs, precision, layout, container (a tuple of numbers or
    None), by the names of ``_plan_facts``; also ``layers`` and ``sequence_length``, which that lacks, None where
    the row has none.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or is damaged
        RequestError: the row's global batch size is no whole number at the result's number of GPUs
    """
    row = find_row(recipe, result)
    if row is None:
        return None
    gbs = row.global_batch_size(result.gpus)
    fp8 = result.fp8_recipe or recipe.variant(result.variant).fp8_recipe
    known = {"variant": result.variant, "gpu": result.gpu, "gpus": result.gpus, **_precision_facts(result.dtype, fp8)}
    release = _release_numbers(result.container or recipe.document(result).container)
    # Of a plan these two are None: rows of one model and scale have the same.
    more = {"layers": row.layers, "sequence_length": row.sequence_length}
    facts = {**known, **_column_facts(row), **more, "gbs": gbs, _CONTAINER: release}
    return facts, result.step_seconds * result.gpus / gbs


def _precision_facts(dtype: str, fp8_recipe: str | None) -> Facts:
    """Return ``dtype`` and ``fp8_recipe`` as facts by these names; the latter is None unless ``dtype`` is ``fp8``."""
    return {"dtype": dtype, "fp8_recipe": fp8_recipe if dtype == "fp8" else None}


def _column_facts(item: Columns[int] | Columns[str]) -> Facts:
    """Return the layout columns of a plan or a row, without its global batch size, by name.

    A column that is not set has the value that it then stands for: 1 for ``vp``, ``ep`` and ``etp``, else 0.
    """
    return {name: getattr(item, name) or 0 for name in Columns.__struct_fields__ if name != "gbs"} | {
        name: getattr(item, name) or 1 for name in ("vp", "ep", "etp")
    }


def _release_numbers(release: str | None) -> tuple[int, ...] | None:
    """Return a container's release as a tuple of numbers that sort in order of release; None for None or empty text."""
    return release_order(release) if release else None
