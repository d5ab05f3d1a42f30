"""The overlap of tensor parallelism's exchange with matrix products, which Transformer Engine calls user buffers.

It works inside one NVLink domain only (Transformer Engine: ``examples/pytorch/comm_gemm_overlap/README.md``;
``common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp`` passes handles of memory inside a node, or through NVL72's
fabric; issue 1071). In MXFP8 it gathers scales of 128 tokens (2.8 to 2.18, ``pytorch/module/base.py``).

It is also all that may start MPI. Megatron-Bridge passes ``tp_comm_bootstrap_backend``, which is nccl unless somebody
sets it, to ``initialize_ub`` of Transformer Engine (0.3.1 and 0.6.2, ``training/initialize.py``), and that starts MPI

* for the backend mpi;
* without a backend, where PyTorch has MPI;
* for any backend, if it was built with ``NVTE_UB_WITH_MPI=1`` (2.x, ``pytorch/module/base.py``). NVIDIA's images were
  not looked into, so a plan cannot know; the ranks ask (``llmb_train.mpi``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from llmb_common.base.errors import RequestError
from llmb_common.base.gpus import GPUS

if TYPE_CHECKING:
    from llmb_common.planning.choose import Case
    from llmb_common.planning.divisibility import Layout
    from llmb_common.planning.scheduler import SchedulerPart

_SWITCH = "comm_overlap.tp_comm_overlap"
_BACKENDS = ("comm_overlap.tp_comm_bootstrap_backend", "model.tp_comm_bootstrap_backend")


def overlaps_tensors(case: Case, c: Layout) -> bool:
    """Return whether the job's ranks overlap tensor parallelism's exchange with matrix products at the layout ``c``.

    False on CPUs and where TP is 1, as Megatron-Bridge switches the overlap off there. Else the first of these that is
    given decides: the user's Megatron setting ``tp_comm_overlap`` of ``comm_overlap`` (off only if it is ``false``, in
    any case), that of ``model``, which only counts if it is ``true``, the settings of the function that the job calls
    (off where they do not name it). A job without a function overlaps unless it is in NVFP4.
    """
    if case.on_cpu or c.tp == 1:
        return False
    requested = case.request.megatron
    if _SWITCH in requested:
        return requested[_SWITCH].lower() != "false"
    if requested.get("model.tp_comm_overlap", "").lower() == "true":
        return True
    if case.function is not None:
        return bool(case.function.settings.get("tp_comm_overlap"))
    # User buffers do not support FP4 (``llmb_train.settings.comm_overlap``).
    return case.dtype != "nvfp4"


def overlap_problems(case: Case, c: Layout) -> Iterator[tuple[str, str]]:
    """Yield (what is wrong, what to do) for each limit of the tensor-parallel overlap that the layout ``c`` breaks.

    Both are clauses. The limits: TP must stay inside one NVLink domain, and in MXFP8 the tokens of a rank must be a
    multiple of 128. Nothing is yielded where all is well, or the overlap is off (``overlaps_tensors``).
    """
    if not overlaps_tensors(case, c):
        return
    off = f"{case.request.say('MEGATRON_SETTINGS')} {_SWITCH}=false"
    gpu, node = GPUS[case.gpu_type], case.gpus_per_node
    domain = node * gpu.nvlink_nodes
    # Where a node is a whole domain, a TP that does not divide its GPUs has groups that reach into the next node.
    is_split = gpu.nvlink_nodes == 1 and c.gpus > node and node % c.tp != 0
    if c.tp > domain or is_split:
        here = f"{domain} GPUs"
        yield (
            f"TP={c.tp}: the overlap of its exchange works inside one NVLink domain only, here {here}",
            f"choose a TP that divides {domain}, or set {off}",
        )
    tokens = c.seq_len * c.mbs // (c.cp * c.tp)
    if case.precision == "mx" and tokens % 128:
        yield (
            f"TP*CP = {c.tp}*{c.cp} leaves a rank {tokens} tokens, and the overlap of TP's exchange in MXFP8 needs a "
            "multiple of 128",
            f"choose a smaller TP or CP, or set {off}",
        )


def check_bootstrap(case: Case, settings: Mapping[str, Any], scheduler: SchedulerPart | None) -> None:
    """Raise where ``settings`` make the ranks start MPI, and the scheduler does not launch them with MPI; else
    return None.

    ``settings`` are the planned ones of those that ``case`` requests, by ``section.field``, as decoded values; only the
    two that name the backend which starts Transformer Engine's user buffers are looked at. ``scheduler`` is the plan's
    part for it; None: there is none, so nothing launches ranks with MPI.

    Raises:
        RequestError: such a setting is given, and is exactly ``mpi`` or null (None); the remedy names both ways out
    """
    if scheduler is not None and scheduler.starts_mpi:
        return
    for name in _BACKENDS:
        # Without a backend, PyTorch takes MPI if it has that.
        if name in settings and settings[name] in ("mpi", None):
            raise RequestError(
                f"{case.request.say('MEGATRON_SETTINGS')}: {name}={case.request.megatron[name]} needs MPI, and "
                "nothing here starts ranks with it",
                remedy="leave it out: the default, nccl, needs no MPI; under Slurm, slurm.mpi: pmix in "
                "cluster_config.yaml starts ranks for MPI",
                field="MEGATRON_SETTINGS",
            )
