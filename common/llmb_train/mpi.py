"""Ends a rank that is about to start MPI where nothing would tell MPI of the other ranks.

Of all that runs here only the overlap of tensor parallelism's exchange can start MPI, and mostly does not:
Megatron-Bridge passes ``tp_comm_bootstrap_backend``, nccl by default, to ``initialize_ub`` of Transformer Engine (0.3.1
and 0.6.2, ``training/initialize.py``). That starts MPI for the backend mpi; without a backend, where PyTorch has MPI;
and for any backend if it was built with ``NVTE_UB_WITH_MPI=1``, which it tells (2.x, ``pytorch/module/base.py``).
An MPI that cannot find the other ranks may wait for them for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmb_train.errors import WrongEngine
from llmb_train.job import FunctionJob, Job

_RANK_VARIABLES = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
"""Who starts ranks for MPI gives each of them one of these. Other names of the families are settings, for anybody."""


def require_starter(job: Job | FunctionJob, config: Any, environ: Mapping[str, str]) -> None:
    """Raise if Transformer Engine is going to start MPI for a job whose ranks were not started for MPI.

    MPI might wait for ever for the other ranks. It is started for the overlap of tensor parallelism's communication,
    so that a job with TP 1, or without that overlap, passes. ``environ``, this process's variables, shows whether a
    starter such as PMIx has told the rank its place: ``PMIX_RANK``, ``PMI_RANK`` or ``OMPI_COMM_WORLD_RANK`` is
    there and not empty. ``config`` is Megatron-Bridge's, complete. Call it only where there is Transformer Engine.

    Raises:
        WrongEngine: MPI would be started, and no variable of a starter is set
        ImportError: Transformer Engine is needed for the answer, and is missing
    """
    if job.parallelism.tp < 2 or any(environ.get(name) for name in _RANK_VARIABLES):
        return
    # What the section has replaces what the model has; without the section the model's own counts.
    section = config.model if config.comm_overlap is None else config.comm_overlap
    if not getattr(section, "tp_comm_overlap", False):
        return
    reason = _mpi_reason(getattr(section, "tp_comm_bootstrap_backend", "nccl"))
    if reason:
        raise WrongEngine(
            f"the overlap of tensor parallelism's exchange starts MPI ({reason}), and these ranks were not started for "
            f"it: none of {', '.join(_RANK_VARIABLES)} is set",
            remedy="set slurm.mpi: pmix in cluster_config.yaml (with runtime: enroot also Enroot's hook "
            "50-slurm-pmi.sh), or switch it off with --megatron comm_overlap.tp_comm_overlap=false",
        )


def _mpi_reason(backend: str | None) -> str:
    """Return why Transformer Engine would start MPI, as a clause; empty if it would not. Imports Transformer Engine.

    As ``tp_comm_bootstrap_backend is mpi``. ``backend``: the configured ``tp_comm_bootstrap_backend``, such as
    ``nccl``; None: not set.

    Raises:
        ImportError: Transformer Engine is missing
    """
    import torch
    import transformer_engine_torch

    built_with_mpi = getattr(transformer_engine_torch, "ubuf_built_with_mpi", None)
    if built_with_mpi is not None and built_with_mpi():
        return "this Transformer Engine was built with NVTE_UB_WITH_MPI"
    if backend == "mpi":
        return "tp_comm_bootstrap_backend is mpi"
    if backend is None and torch.distributed.is_mpi_available():
        return "tp_comm_bootstrap_backend is not set"
    return ""
