"""Whether a job's memory lets it start: the estimate of its plan, how well such jobs are known, what would help most.

Formulas, their measured errors and how these came about: docs/benchmarks.md. The errors are those of
``tests/data/memory_peaks.json`` (a test compares), in percent of the measured peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from msgspec import structs

from llmb_common.base import gpus
from llmb_common.base.engines import is_newer
from llmb_common.base.errors import RequestError
from llmb_common.base.printable import percent
from llmb_common.planning.choose import Case
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.functions import check_columns
from llmb_common.planning.job_plan import JobPlan, MemoryEstimate
from llmb_common.planning.memory_estimate import MemoryInput, chunks_of, stages_memory
from llmb_common.planning.memory_layers import body_of, storage_of
from llmb_common.recipes.model import layers_of

ENOUGH = 5
"""Pairs of one site and software from which on its own residual counts."""

_APART = 1.25
"""How far a further run may be off where a site's runs say anything: runs that contradict each other say nothing."""

_T = 2.13
"""Student's t of 5 % and four degrees of freedom, those of the fewest runs that count."""


class Accuracy(NamedTuple):
    """How well the memory of one kind of job is predicted, by pairs of a measured and a predicted peak.

    ``own_accuracy`` and ``published_accuracy`` make it. Errors are predicted less measured, in percent of the
    measured peak: negative ones mean that a job needs more than predicted. ``low`` is the smallest of them,
    ``high`` the largest. ``knowledge`` is ``validated`` (by published peaks), ``validated here`` (by runs of this
    site) or ``not validated``.
    """

    knowledge: Literal["validated", "validated here", "not validated"]
    low: float | None = None
    """The lowest error of a prediction; None: nobody measured any."""
    high: float | None = None
    """The highest error, likewise."""
    pairs: int = 0
    """Number of pairs."""
    factor: float = 1.0
    """Measured over predicted: the mean of a site's own runs, or the highest of published peaks of a kind that is
    not validated; 1.0 otherwise."""


MEASURED = {
    "dense, bf16": Accuracy("validated", -0.3, 0.1, 27),
    # Latent attention, one micro-batch or two, experts of a fixed capacity: DeepSeek on one node only.
    "experts, bf16": Accuracy("not validated", -0.3, 0.1, 12),
    "experts, bf16, CUDA graphs": Accuracy("not validated", -11.6, -3.8, 2),
    "experts, bf16, recomputation, CUDA graphs": Accuracy("not validated", -5.0, -5.0, 1),
    "experts, bf16, recomputation, heads for further tokens": Accuracy("not validated", -13.7, -13.7, 1),
    "experts, bf16, CUDA graphs, heads for further tokens": Accuracy("not validated", -10.7, -10.7, 1),
    "experts, bf16, recomputation, offload, CUDA graphs, heads for further tokens": Accuracy(
        "not validated", -14.0, -14.0, 1
    ),
    "experts, fp8 (mx), FSDP, heads for further tokens": Accuracy("not validated", -12.1, -12.1, 1),
    "dense, fp8 (cs), VP": Accuracy("not validated", -4.6, 16.4, 4),
}


RAN_OUT = (
    # Llama 3.1 405B on 256 GB200, in NVIDIA's own configuration; Nemotron 3 Super on 64 GB300; Nemotron 3 Nano on
    # 16 H100 without recomputation of its experts, and with less; Qwen3 30B-A3B on 8 B300.
    ("dense, nvfp4", "", 0.87, "Megatron-Bridge issue 3714"),
    ("experts, nvfp4", "", 0.58, "Megatron-Bridge issue 3500; 3597 is of another such job"),
    ("experts, bf16", "CUDA graphs", 0.92, "Megatron-Bridge, skills/nemo-mbridge-perf-activation-recompute"),
    ("experts, fp8 (mx)", "CUDA graphs", 0.75, "Megatron-Bridge issue 4587"),
)
"""Kinds of jobs that were seen to run out of memory, though they were predicted to fit: how such a kind begins, a
further word of it, the share of the GPU that was predicted with the reserve, and who saw it."""


def ran_out(kind: str, share: float) -> str:
    """Return who saw a job of this ``kind`` run out of memory, though predicted to need no more than this one.

    ``kind`` is a text of ``kind_of``. ``share`` is this one's predicted peak with its reserve, as a share of the GPU's
    memory (more than 1: it does not fit). The answer is a phrase for people, ``Megatron-Bridge issue 3714``, that of
    the first entry of ``RAN_OUT`` that fits. Empty: nobody published such a case.
    """
    for begins, word, least, source in RAN_OUT:
        if kind.startswith(begins) and word in kind and share >= least:
            return source
    return ""


def kind_of(job: MemoryInput, precision: str, *, graphs: bool, adapters: bool, settings: bool = False) -> str:
    """Return the kind of a job that decides how well its memory is known, such as ``experts, fp8 (mx), VP``.

    It is ``dense`` or ``experts``, ``precision``, and of ``VP``, ``FSDP``, ``recomputation``, ``offload``,
    ``CUDA graphs``, ``heads for further tokens``, ``adapters`` and ``settings`` what the job has, in this order,
    joined by ", ". ``precision`` is the dtype with its scaling as people write it, ``fp8 (mx)``. ``graphs``: it
    uses CUDA graphs. ``adapters``: it trains adapters. ``settings``: the user changed some of the framework's.
    """
    layout = job.layout
    words = {
        "VP": (layout.vp or 1) > 1,
        "FSDP": layout.fsdp,
        "recomputation": bool(layout.recompute_layers or job.recomputed),
        "offload": bool(layout.offload_layers or job.offloaded),
        "CUDA graphs": graphs,
        "heads for further tokens": job.body.further > 0,
        "adapters": adapters,
        "settings": settings,
    }
    model = "experts" if job.body.has_experts else "dense"
    return ", ".join([model, precision, *(word for word, there in words.items() if there)])


def own_accuracy(ratios: Sequence[float]) -> Accuracy | None:
    """Return how well a site's own runs of one kind of job agree with the prediction of their memory.

    ``ratios`` has each run's measured peak over the predicted one, above 0, in any order; ``factor`` of the result is
    their geometric mean. The errors, in percent with one decimal, are those between which a further run lies in 9 of 10
    cases or more, and at least a percent to either side of the mean: repeats of one job are alike, and another job of
    the kind is not. None: there are fewer than five runs, or a further one may be off by more than a quarter.
    """
    if len(ratios) < ENOUGH:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    middle = math.fsum(logs) / len(logs)
    squares = math.fsum((log - middle) ** 2 for log in logs)
    spread = math.sqrt(squares / (len(logs) - 1))
    half = max(_T * spread * math.sqrt(1 + 1 / len(logs)), math.log(1.01))
    if half > math.log(_APART):
        return None
    low = 100 * (math.exp(-middle - half) - 1)
    high = 100 * (math.exp(-middle + half) - 1)
    return Accuracy("validated here", round(low, 1), round(high, 1), len(ratios), math.exp(middle))


def published_accuracy(kind: str) -> Accuracy:
    """Return how well published peaks agree with the prediction for jobs of exactly this ``kind``, as of ``kind_of``.

    Without published peaks it is ``not validated``, without errors. Where there are some, but not enough to
    validate the prediction, it is ``not validated``, too, but has their errors, and as ``factor`` by how much the
    prediction is too low at most.
    """
    found = MEASURED.get(kind, Accuracy("not validated"))
    if found.knowledge == "validated" or found.low is None:
        return found
    return found._replace(factor=max(1.0, 1 / (1 + found.low / 100)))


RESERVE_GIB = 2.0
"""CUDA's context, NCCL's buffers and the libraries' workspaces: 1.5 to 3.5 GB of logged jobs."""

_USABLE = 0.989
"""Of a type's ``memory_gb``, in GiB, what PyTorch sees of the device: 79.1 of an H100's 80, 178.4 of a B200's 180."""


def estimate_of(
    case: Case, plan: JobPlan, here: Callable[[str], Sequence[float]] = lambda kind: ()
) -> MemoryEstimate | None:
    """Return the predicted GPU memory of the ranks of a plan; nothing is refused.

    None on CPUs, for a small copy of a model, with ``PREFLIGHT=off``, and where the model's numbers are not known.
    ``here`` is called with a kind of job (``kind_of``) and gives the measured over the predicted peak of each of
    this site's runs of it; five or more win over what is published, unless they scatter too much
    (``own_accuracy``).
    """
    job = job_of(case, plan) if case.request.preflight != "off" else None
    if job is None:
        return None
    kind = kind_of(job, plan.precision, graphs=plan.cuda_graph, adapters=case.adapters, settings=bool(plan.megatron))
    measured = own_accuracy(here(kind)) or published_accuracy(kind)
    estimate = MemoryEstimate(
        stages=stages_memory(job),
        reserve=RESERVE_GIB,
        limit=gpus.GPUS[plan.gpu_type].memory_gb * _USABLE,
        kind=kind,
        **measured._asdict(),
        at_least=_lower_bound(case, plan, job, kind, measured),
    )
    if measured.knowledge == "not validated":
        seen = ran_out(kind, (estimate.peak + estimate.reserve) / estimate.limit)
        estimate = structs.replace(estimate, ran_out=seen)
    return estimate if estimate.fits else structs.replace(estimate, knob=_best_change(case, job, estimate))


def job_of(case: Case, plan: JobPlan) -> MemoryInput | None:
    """Return everything that the memory of a plan's ranks depends on; ``case`` is what ``plan`` was made of.

    None on CPUs, for a small copy of a model, and where the model's layers or vocabulary are not known.
    """
    if plan.device == "cpu" or (plan.function is not None and plan.function.reduced is not None):
        return None
    own = {name.removeprefix("model."): value for name, value in plan.megatron.items() if name.startswith("model.")}
    documented = case.function.settings if case.function is not None else {}
    settings = {**documented, **own}
    layers = case.function.layers if case.function is not None else layers_of(case.model.listed)
    body = body_of(case.shape, layers)
    if body is None:
        return None
    aware = plan.dtype == "bf16" and not (plan.fsdp and plan.engine == "0.3")
    storage = storage_of(
        plan.fp8_recipe or plan.dtype,
        hopper=gpus.generation_of(plan.gpu_type) == "hopper",
        # Saving goes without the precision-aware optimizer.
        precision_aware=(settings.get("precision_aware", False) or aware) and not case.saves,
        fsdp=plan.fsdp,
        newer=is_newer(plan.engine),
        settings=settings,
    )
    if case.adapters:  # the weights of the model are frozen
        storage = structs.replace(storage, gradients=0, optimizer=0, copies=0)
    layout = plan.layout
    if settings.get("recompute_method") == "uniform" and "recompute_layers" not in plan.overridden:
        layout = structs.replace(layout, recompute_layers=len(body.layers))
    return MemoryInput(
        body=body,
        layout=layout,
        storage=storage,
        counts=_chunk_layers(case, layout) or chunks_of(settings, layout, len(body.layers)),
        early=1 if settings.get("overlap_moe_expert_parallel_comm") else 0,
        recomputed=frozenset(settings.get("recompute_modules", ())),
        offloaded=frozenset(settings.get("offload_modules", ())),
        # As llmb_train.settings has it: smaller gathers at the cost of memory.
        instances=2 if (plan.model_size, plan.gpu_type, plan.dtype) == ("405b", "gb200", "fp8") else 1,
    )


def _chunk_layers(case: Case, layout: Layout) -> tuple[int, ...] | None:
    """Return the number of layers of each pipeline chunk, in the model's order, where Megatron-Bridge has a layout
    for PP and VP.

    None: it has none, or the job has no function.
    """
    return case.function.chunks(layout.pp, layout.vp) if case.function is not None else None


def _lower_bound(case: Case, plan: JobPlan, job: MemoryInput, kind: str, measured: Accuracy) -> float | None:
    """Return a lower bound of the peak of GPU memory that measurements validate, in GiB on one rank; None: there is
    none.

    ``job`` is what ``job_of`` makes of ``case`` and ``plan``, ``kind`` the job's (``kind_of``), ``measured`` how well
    that is known. Of a validated kind it is the predicted peak, with runs of this site less their highest error.
    Interleaved stages hold at least what they hold without interleaving. None, too, for a configuration as NVIDIA
    documents it, unless runs of this site say so: a prediction does not refuse what its publisher has run.
    """
    changed = plan.overridden or plan.megatron or case.saves
    documented = case.gpus in case.row.scales and not changed
    if documented and measured.knowledge != "validated here":
        return None
    if measured.knowledge != "not validated":
        peak = max(stage.total for stage in stages_memory(job))
        return peak / (1 + (measured.high or 0) / 100) if measured.knowledge == "validated here" else peak
    plain = structs.replace(job.layout, vp=None)
    if published_accuracy(kind.replace(", VP", "")).knowledge == "validated":
        return max(stage.total for stage in stages_memory(structs.replace(job, layout=plain)))
    return None


def check_memory(case: Case, estimate: MemoryEstimate | None) -> list[str]:
    """Return a list of one notice if a job may not fit in GPU memory; empty: it fits, or there is no estimate.

    ``llama3.1 405b fp8 on h100 on 64 GPUs may not fit: ...``, a sentence without a period, with the largest part
    and the change that saves most. ``estimate`` is that of the job of ``case``; None: there is none. With
    ``PREFLIGHT=warn`` it is only ever a notice, also where it certainly does not fit. Nothing is added to ``case``.

    Raises:
        RequestError: code ``does-not-fit``: it certainly does not fit, or with ``PREFLIGHT=strict`` may not
    """
    mode = case.request.preflight or "default"
    if estimate is None or estimate.fits:
        return []
    certain, fullest = estimate.certain, estimate.fullest
    largest, name = max((part, name) for name, part in fullest.parts.items())
    where = f"pipeline stage {fullest.first}" if len(estimate.stages) > 1 else "each rank"
    bound = estimate.at_least or estimate.peak
    here = " as runs here measured" if estimate.knowledge == "validated here" else ""
    least = f"at least {bound:.0f} GiB{here}, {estimate.peak:.0f} predicted,"
    needs = f"{bound:.0f} GiB" if bound == estimate.peak else least
    more = f", and needed up to {percent(estimate.factor - 1, 0)} more" if estimate.factor > 1 else ""
    doubt = "" if certain or here else f" (jobs of this kind, {estimate.kind}, are not validated{more})"
    verdict = (
        f"{case.what} on {case.gpus} GPUs {'does not' if certain else 'may not'} fit: {where} needs {needs} and "
        f"{estimate.reserve:.0f} in reserve, of {estimate.limit:.0f} GiB{doubt}; "
        f"the largest part: {name.replace('_', ' ')}, {largest:.0f} GiB"
    )
    if mode == "strict" or (mode == "default" and certain):
        raise RequestError(
            verdict,
            remedy=f"{estimate.knob or 'use more GPUs, or larger ones'}; "
            f"{case.request.say('PREFLIGHT', 'warn')} starts it anyway",
            code="does-not-fit",
        )
    return [f"{verdict}; {estimate.knob}" if estimate.knob else verdict]


class _Change(NamedTuple):
    """One change of a job's layout that may save memory; the greater of two is the better one."""

    is_enough: bool
    """The job then fits."""
    keeps_gpus: bool
    """It is enough, and on as many GPUs."""
    keeps_speed: bool
    """It is enough, and nothing is computed twice."""
    saved: float
    """In GiB."""
    name: str
    """The column, or ``gpus``."""
    new: int
    old: int | None


def _best_change(case: Case, job: MemoryInput, estimate: MemoryEstimate) -> str:
    """Return the change that would save most memory, ``PP 8 instead of 4 saves 13 GiB``; empty: none saves 1 GiB or
    more.

    ``job`` and ``estimate`` are those of the plan of ``case``, as ``job_of`` and ``estimate_of`` make them. A change is
    of one column, or of the number of GPUs with its batch, and leaves a valid layout. If some are enough, one of these
    is taken: rather one on as many GPUs, then rather one without recomputation, then the one that saves most. Else the
    text ends ``, which is not enough``. Empty, too, where no change leaves a valid layout.
    """
    own = job.layout
    changes: dict[str, dict[str, int]] = {
        **{name: {name: 2 * (getattr(own, name) or 1)} for name in ("pp", "tp", "cp", "ep")},
        "mbs": {"mbs": max(own.mbs // 2, 1)},
        "recompute_layers": {"recompute_layers": case.shape.layers // own.pp // (own.vp or 1)},  # a whole chunk
        "gpus": {"gpus": 2 * own.gpus, "gbs": 2 * own.gbs},
    }
    found: list[_Change] = []
    for name, change in changes.items():
        layout = structs.replace(own, **change)
        if not layout.dp:
            continue
        try:  # only what divides everything
            changed_request = structs.replace(case.request, columns={**case.request.columns, **change})
            check_columns(structs.replace(case, request=changed_request), layout)
        except RequestError:
            continue
        changed = structs.replace(job, layout=layout, counts=_chunk_layers(case, layout) or job.counts)
        saved = estimate.peak - max(stage.total for stage in stages_memory(changed))
        is_enough = (estimate.peak - saved) * estimate.factor + estimate.reserve <= estimate.limit
        found.append(
            _Change(
                is_enough=is_enough,
                keeps_gpus=is_enough and name != "gpus",
                keeps_speed=is_enough and name != "recompute_layers",
                saved=saved,
                name=name,
                new=getattr(layout, name),
                old=getattr(own, name),
            )
        )
    best = max(found, default=None)
    if best is None or best.saved < 1:
        return ""
    called = case.request.say("JOB_TOTAL_GPUS") if best.name == "gpus" else best.name.upper()
    text = f"{called} {best.new} instead of {best.old} saves {best.saved:.0f} GiB"
    return text if best.is_enough else f"{text}, which is not enough"
