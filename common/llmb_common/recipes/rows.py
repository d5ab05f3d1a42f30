"""What a recipe lists: rows of configurations, published results, and the generations that both belong to.

Sizes (``405b``), GPU types (``gb200``), dtypes and variants are lower-case names. A row of a configuration table is
one ``Row``; its GPU counts are the doublings from ``gpus_min`` to ``gpus_max``, as the documents scale. Results of
functions are in a file of their own, which keeps every row as printed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec

from llmb_common.base.engines import release_order
from llmb_common.base.errors import RecipeError, RequestError
from llmb_common.base.printable import signed_percent
from llmb_common.base.structs import read_generated
from llmb_common.recipes.columns import Columns, Positive
from llmb_common.recipes.model import Name, Ratio

Dtype = Literal["bf16", "fp8", "nvfp4"]
Fp8Recipe = Literal["cs", "ds", "mx", "sc"]

Duration = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,6}-)?[0-9]{1,2}:[0-5][0-9]:[0-5][0-9]\Z")]

Container = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{2}\.[0-9]{2}(\.[0-9]{2})?\Z")]

Figure = Literal["tokens_per_second", "mfu_percent", "days_1t", "tflops_per_gpu"]
FIGURES: tuple[Figure, ...] = get_args(Figure)
"""What a published result may carry beside its step time."""

_FORMULA = r"^(?:(?P<fixed>[1-9][0-9]*)|GPUs(?:\*(?P<times>[1-9][0-9]*))?(?:/(?P<by>[1-9][0-9]*))?)\Z"
Formula = Annotated[str, msgspec.Meta(pattern=_FORMULA)]

# Experiment names become folders, files and names of jobs, which Slurm is asked for in lists with commas.
Suffix = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]*\Z")]
NamePattern = Annotated[
    str,
    msgspec.Meta(pattern=r"^([A-Za-z0-9._-]|\{(model_size|dtype|precision|gpus|tp|pp|cp|vp|ep|etp|mbs|gbs)\})+\Z"),
]
_OF_RANKS = "PROCESS_ID|SLURM_JOB_ID|SLURM_NODEID|SLURM_LOCALID|SLURM_PROCID"
FilePattern = Annotated[
    str, msgspec.Meta(pattern=rf"^([A-Za-z0-9_.-]|\$\{{(MODEL|MODEL_SIZE|DTYPE|NUM_GPUS|{_OF_RANKS})\}})+\Z")
]


def precision(dtype: str, fp8_recipe: str | None) -> str:
    """Return dtype and FP8 scaling as people write them: ``bf16``, ``fp8 (mx)``.

    ``fp8_recipe`` None or empty gives the dtype alone; the dtype is not looked at.
    """
    return f"{dtype} ({fp8_recipe})" if fp8_recipe else dtype


class Profiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a variant's Nsight Systems profile covers by default: steps ``start`` to ``stop``, and the ranks.

    ``stop`` is larger, and the first step that is not profiled. ``ranks`` is ``all`` or a list as text (``0-8``,
    both ends included; commas between several), ``file`` a pattern for the report's name with ``${MODEL}``,
    ``${MODEL_SIZE}``, ``${DTYPE}``, ``${NUM_GPUS}`` and the variables of Slurm's tasks; ``suffix`` is appended to
    the run's name (empty: nothing). An unknown key or a wrong form is refused when recipe.yaml is loaded.
    """

    start: Positive
    stop: Positive
    ranks: str
    file: FilePattern
    suffix: Suffix = ""
    steps: Positive | None = None
    """Steps of a profiled run where the document says other than ``max_steps``; None: as many as other runs have."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The iterations, ``first`` to ``last`` (included), whose step times give a run's result.

    They are numbered as in the log. ``statistic`` is ``mean`` over them, or ``last``: the last step's time, with
    the mean shown beside it. ``of_second_half``, a class method, returns the window for a run of only ``steps``
    steps (at least 1): the second half of them, with ``mean``; of 5 steps, 3 to 5. That ``last`` is not before
    ``first`` is checked when recipe.yaml is loaded, where an unknown key is refused.
    """

    first: Positive
    last: Positive
    statistic: Literal["mean", "last"] = "mean"

    @classmethod
    def of_second_half(cls, steps: int) -> Measurement:
        """Return the window for a run of only ``steps`` steps, too few for the documents' window: its second half.

        The first half is warm-up; of 5 steps, 3 to 5 are measured, and of one step that one. ``steps`` is at least
        1. The statistic is the mean.
        """
        return cls(first=steps // 2 + 1, last=steps)


class NcclTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run that traces NCCL differs from others: its number of ``steps``, and the ``suffix`` appended to its name.

    ``suffix`` empty: nothing is appended. An unknown key or a wrong form is refused when recipe.yaml is loaded.
    """

    steps: Positive = 5
    suffix: Suffix = ""


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation of a recipe's configuration rows: where it comes from, and how its runs are named and measured.

    Users choose it with CONFIG_VARIANT. ``title`` says for people what it is. ``experiment_name`` is a pattern for
    the names of runs, in which ``{model_size}``, ``{dtype}``, ``{precision}``, ``{gpus}`` and layout columns such
    as ``{tp}`` are replaced; ``max_steps`` is the number of steps of a run, ``time_limit`` the limit of its job
    (``HH:MM:SS``, or ``D-HH:MM:SS``). ``measurement``, ``profiling`` and ``nccl_trace`` say which steps are
    measured, profiled or traced. An unknown key or a wrong form is refused when recipe.yaml is loaded. ``name`` is
    in the spelling that rows have; ``Recipe.variants`` also has copies that a catalogue makes.
    """

    name: Name
    title: str
    experiment_name: NamePattern
    max_steps: Positive = 50
    time_limit: Duration = "00:30:00"
    measurement: Measurement
    profiling: Profiling
    nccl_trace: NcclTrace = NcclTrace()
    fp8_recipe: Fp8Recipe
    """The FP8 scaling that this generation's results were measured with, and the default of FP8_RECIPE."""
    vboost: bool = False
    """Whether the published runs had the GPUs' clock boost (ENABLE_VBOOST), which LLMB leaves off by default."""
    flops_attention: Literal["full", "causal"] | None = None
    """How this generation's document counts attention; None: as the recipe's ``flops`` say."""
    by_name: bool = False
    """True: its rows are used only where CONFIG_VARIANT names it, also for a number of GPUs that no other variant has.
    """


class Row(Columns[Formula], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a recipe's configuration table: the layout for a GPU type, model size and range of GPU counts.

    The layout's columns (``tp``, ``pp``, ``mbs``, ``gbs`` and so on) are the fields of ``Columns``. ``gpu`` may be
    ``any``; ``dtypes`` are those that the row is for. The property ``scales`` is a tuple of the counts from
    ``gpus_min`` to ``gpus_max``, each twice the one before. ``gbs`` is a number, or a formula of GPUs (``GPUs``,
    ``GPUs*2``, ``GPUs/2``), which ``global_batch_size`` evaluates for a number of GPUs, in samples; it raises
    RequestError where the formula gives no whole number. ``layers``: how many layers its jobs build; None: all of
    the model's. ``time_limit`` None: the variant's. ``min_memory_gb``: the memory in GB of each GPU that the table
    asks for; None: it does not say. An unknown key or a wrong form is refused when recipe.yaml is loaded; a
    ``Catalogue`` also makes one for each of its functions.
    """

    variant: Name
    gpu: Name
    size: Name
    dtypes: tuple[Dtype, ...]
    fp8_recipe: Fp8Recipe | None = None
    """The FP8 scaling, where rows with others stand beside it; None: the variant's, or what FP8_RECIPE says."""
    gpus_min: Positive
    gpus_max: Positive
    layers: Positive | None = None
    sequence_length: Positive | None = None
    """In tokens, where it is not the model's; None: the model's."""
    function: str | None = None
    """The exact name of the function of the recipe's catalogue that the job calls; None: it calls none."""
    wgrad_deferral: Positive | None = None
    """Micro-batches whose weight gradients of the output layer wait for the pipeline's drain; None: not deferred."""
    time_limit: Duration | None = None
    min_memory_gb: Positive | None = None
    source: str
    """File of the printed table, and its line or lines: ``grok1.md:41``, ``grok1.md:15-17``."""
    note: str = ""
    """Where the printed table is wrong: what it says, and why the row differs; empty: the row is as printed."""

    @property
    def scales(self) -> tuple[int, ...]:
        """The numbers of GPUs that the row is documented for: ``gpus_min`` and its doublings up to ``gpus_max``.

        They are ascending, and the last is ``gpus_max``, as ``load_recipe`` checks.
        """
        doublings = (self.gpus_max // self.gpus_min).bit_length()
        return tuple(self.gpus_min << doubling for doubling in range(doublings))

    def global_batch_size(self, gpus: int) -> int:
        """Return the row's global batch size, in samples, for a job on ``gpus`` GPUs, by its ``gbs``.

        A ``gbs`` that is a number is the same for any ``gpus``.

        Raises:
            RequestError: ``gbs`` is a formula that gives no whole number for ``gpus``
        """
        found = re.match(_FORMULA, self.gbs)
        assert found is not None  # checked when the recipe was loaded
        if found["fixed"]:
            return int(found["fixed"])
        times, divisor = int(found["times"] or 1), int(found["by"] or 1)
        if gpus * times % divisor:
            raise RequestError(
                f"GBS is {self.gbs} here, and {gpus} GPUs are not divisible by {divisor}",
                remedy=f"use a multiple of {divisor} GPUs, or set GBS",
            )
        return gpus * times // divisor


class Configuration(NamedTuple):
    """What selects a configuration row of a recipe, and the numbers of GPUs that the row is documented for.

    ``size`` names the model, ``gpu`` the GPU type (or ``any``), ``variant`` the variant. ``dtype`` is without the
    FP8 scaling (``fp8``), ``fp8_recipe`` that scaling; None: not in FP8. ``scales`` are the numbers of GPUs,
    ascending. ``Recipe.configurations`` yields it.
    """

    size: str
    gpu: str
    dtype: str
    fp8_recipe: str | None
    variant: str
    release: str | None
    """The exact release of Megatron-Bridge (``0.6.0``) that its jobs need; None: they run in the recipe's own image.

    It is named where that image has another release, which lacks this configuration.
    """
    scales: tuple[int, ...]


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A publication of NVIDIA's with configurations or results, and the software that it measured.

    ``title`` is for people. ``release`` is the publication's own, such as ``25.04``; empty: it has none. ``date``
    is that of the publication, ``YYYY-MM-DD``. The property ``software`` is framework and container as text,
    ``Megatron-Bridge, nemo:26.08``; it needs a ``container`` (without one it ends with ``nemo:None``). An unknown
    key or a wrong form is refused when recipe.yaml is loaded.
    """

    title: str
    release: str = ""
    date: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")]
    page: str
    """Where it is: a path in NVIDIA's repository, or an address."""
    framework: Literal["NeMo 2", "Megatron-Bridge"]
    container: Container | None = None
    """Release of the NeMo container (``26.08``); None: each result names its own."""

    @property
    def software(self) -> str:
        """The framework and container release that the document measured, as text: ``Megatron-Bridge, nemo:26.08``.

        It needs a ``container``, which ``Recipe.document`` fills in: without one the text ends with ``nemo:None``.
        """
        return f"{self.framework}, nemo:{self.container}"


class PublishedResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One result that NVIDIA published: what a configuration achieved on ``gpus`` GPUs.

    ``variant``, ``gpu``, ``size`` and ``dtype`` are spelled as in the recipe's rows. ``step_seconds`` is the step
    time; ``tokens_per_second`` is that of the whole job; ``days_1t``: days to train on 10^12 tokens;
    ``tflops_per_gpu`` are TFLOP/s. Of these and ``mfu_percent`` None: not published. ``corrected`` has the right
    values of figures that were misprinted, by the field's name, and ``why`` the reason (empty: none); ``value``
    returns a figure with its correction (None: not published), while the fields are as printed. ``source``:
    document and line, ``grok1.md:41``. It is listed in recipe.yaml, where an unknown key is refused, or made by
    ``read_results``.
    """

    variant: Name
    gpu: Name
    size: Name
    dtype: Dtype
    fp8_recipe: Fp8Recipe | None = None
    """The FP8 scaling, where it is not the variant's; None: the variant's, or no FP8."""
    gpus: Positive
    container: Container | None = None
    """Release of the NeMo container, where the document has results of several; None: the document's."""
    release: str | None = None
    """The release of Megatron-Bridge whose function it was measured with; None: that of the recipe's catalogue."""
    step_seconds: Ratio
    tokens_per_second: Ratio | None = None
    mfu_percent: Ratio | None = None
    days_1t: Ratio | None = None
    tflops_per_gpu: Ratio | None = None
    corrected: dict[Figure, float] = {}
    why: str = ""
    notes: tuple[str, ...] = ()
    """What must be known of it, as clauses: the publisher's footnotes, and that it does not fit those around it."""
    source: str

    def value(self, figure: Figure) -> float | None:
        """Return the published ``figure`` of this result, corrected where it was misprinted; None: not published.

        ``figure`` is the field's name, such as ``mfu_percent``.
        """
        printed: float | None = getattr(self, figure)
        return self.corrected.get(figure, printed)


FAR_APART = 0.25
"""Share of a step time by which a result that differs from its neighbours in time is said to."""


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a table of results as NVIDIA printed it, with the function of Megatron-Bridge that it belongs to.

    ``document`` and ``line`` say where it is printed; ``model``, ``gpu`` and ``precision`` are as printed,
    ``container`` is a release (``26.02``), and ``columns`` are its layout columns by name (``tp``; None: none printed).
    ``gpus`` is their number, ``tflops_per_gpu`` are TFLOP/s as printed, ``step_seconds`` is the step time in seconds.
    ``function`` None: it belongs to none; ``variant``, ``size``, ``dtype`` and ``fp8_recipe`` are those of the
    function (None: it has none). ``tflops_of_bridge``: TFLOP/s per GPU that Megatron-Bridge's count of FLOPs makes
    of the printed tokens per second; None: not known. ``read_published`` reads it from the results file; an unknown
    key is refused then.
    """

    document: str
    line: int
    container: str
    model: str
    gpu: str
    gpus: int
    precision: str
    columns: dict[str, int | None]
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    step_seconds: float
    function: str | None = None
    release: str | None = None
    """The release of Megatron-Bridge whose function it is, where the newest catalogue has that with other columns.

    None: that of the newest catalogue.
    """
    variant: str | None = None
    size: str | None = None
    dtype: Dtype | None = None
    fp8_recipe: Fp8Recipe | None = None
    tflops_of_bridge: float | None = None
    why: str = ""
    """Why it belongs to no function, or what is odd in it."""
    note: str = ""
    """What NVIDIA says of it, in a footnote."""


class _PublishedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a results file: rows that NVIDIA published, and ``source``, where they were looked up.

    An unknown key is refused when it is decoded; ``schema`` is not checked.
    """

    schema: int
    looked_up: str
    """The day (``YYYY-MM-DD``) on which the rows were compared with ``source``."""
    source: str
    rows: tuple[PublishedRow, ...]


def read_published(path: Path) -> tuple[PublishedRow, ...]:
    """Return all rows of the results file ``path``, as NVIDIA printed them and in the file's order.

    Raises:
        RecipeError: the file is missing, unreadable or damaged
    """
    document: _PublishedFile = read_generated(path, _PublishedFile, remedy="restore it from the repository")
    return document.rows


def read_results(path: Path, size: str | None = None) -> tuple[PublishedResult, ...]:
    """Return those rows of the results file ``path`` that belong to a function, as results to compare runs with.

    Of functions of the model size ``size`` only; None: of all. They are in the file's order, empty where none does; a
    note is added to those whose step time is far from neighboring releases'.

    Raises:
        RecipeError: the file is missing, unreadable or damaged, or a function's row lacks its variant, size or
            dtype
    """
    rows = [row for row in read_published(path) if row.function is not None and size in (None, row.size)]
    together: dict[str | None, list[_Dated]] = defaultdict(list)
    for row in rows:
        together[row.function].append((release_order(row.container), row))
    return tuple(_as_result(row, together[row.function]) for row in rows)


_AS_PRINTED = tuple(name for name in PublishedResult.__struct_fields__ if name in PublishedRow.__struct_fields__)
"""Fields of a result that are those of its printed row."""


_Dated = tuple[tuple[int, ...], PublishedRow]
"""A printed row with the order of its release."""


def _as_result(row: PublishedRow, rows: list[_Dated]) -> PublishedResult:
    """Return the printed ``row`` as a result to compare runs with; ``rows`` are all printed rows of the same function.

    They are pairs of ``release_order`` and row, ``row`` among them. The result's tokens per second are those of the
    whole job. Its notes are the row's, and ``_outlier_note`` where the step time is far from neighboring releases'.

    Raises:
        RecipeError: the row lacks its variant, size or dtype
    """
    if row.variant is None or row.size is None or row.dtype is None:
        raise RecipeError(f"{row.document}:{row.line}: a function without variant, size and dtype", remedy="give them")
    return PublishedResult(
        **{name: getattr(row, name) for name in _AS_PRINTED},
        tokens_per_second=row.tokens_per_second_per_gpu * row.gpus,
        # Of a row that belongs to a function, only its TFLOPS can be odd: another count of FLOPs than Bridge's.
        corrected={"tflops_per_gpu": row.tflops_of_bridge} if row.why and row.tflops_of_bridge is not None else {},
        notes=tuple(note for note in (row.note, _outlier_note(row, rows)) if note),
        source=f"{row.document}:{row.line}",
    )


def _outlier_note(row: PublishedRow, rows: list[_Dated]) -> str:
    """Return a clause that the step time of ``row`` is far from the same function's in the releases next to its own.

    ``rows`` are the printed rows of that function, as pairs of ``release_order`` and row, ``row`` among them. Empty
    where one of the two rows nearest in time is within ``FAR_APART`` (25 %), or there is no other release; where there
    is one other row, that one decides. Two, so that an outlier does not make its neighbors look odd. The clause has no
    full stop, and ends with such as ``+40 % against 26.02 and +38 % against 26.06``.
    """
    order = sorted({release for release, _ in rows})
    position = order.index(release_order(row.container))
    steps_apart = [(abs(order.index(release) - position), other) for release, other in rows]
    others = [other for steps, other in sorted(steps_apart, key=itemgetter(0)) if steps]
    changes = [row.step_seconds / other.step_seconds - 1 for other in others[:2]]
    if not changes or min(map(abs, changes)) <= FAR_APART:
        return ""
    pairs = zip(changes, others, strict=False)
    comparisons = " and ".join(f"{signed_percent(change, 0)} against {other.container}" for change, other in pairs)
    return f"its step time is far from the same function's in neighboring releases: {comparisons}"
