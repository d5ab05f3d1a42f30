"""JobPlan -> ``job.json``, the contract with ``llmb_train`` (see docs/architecture.md); and whether a run is still what
was planned.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base import gpus
from llmb_common.base.errors import RecordError
from llmb_common.base.files import json_text
from llmb_common.planning.job_plan import JobPlan, PlannedFunction
from llmb_common.runs.folders import OwnRun, own_run
from llmb_common.runs.manifest import hash_of_packed
from llmb_common.runs.paths import RunPaths
from llmb_common.runs.record import RunRecord
from llmb_common.submission.script import render_script

SEED = 1234


def job_document(plan: JobPlan, paths: RunPaths) -> dict[str, Any]:
    """Return the content of a run's job.json, which tells ``llmb_train`` what to train, as plain JSON values.

    ``paths`` are the run's; its ID, output folder and folder for checkpoints are taken from them. The keys are
    ``schema`` (1) and those of ``llmb_train.job.Job``, such as ``run_id``, ``parallelism``, ``batch``, ``steps``
    and ``checkpoint``; ``function`` and ``megatron`` are there only where the plan has them, and ``architecture``
    is None where it has none. It holds no secrets: those reach a job through its environment. Nothing is written.
    """
    checkpoint = plan.checkpoint
    return {
        "schema": 1,
        "run_id": paths.run_id,
        "experiment_name": plan.experiment_name,
        "output_dir": str(paths.output),
        "engine": plan.engine,
        "device": plan.device,
        "gpu_type": plan.gpu_type,
        "gpu_generation": gpus.generation_of(plan.gpu_type),
        "family": plan.family,
        "model_size": plan.model_size,
        "architecture": msgspec.to_builtins(plan.architecture),
        **({"function": _function(plan.function)} if plan.function is not None else {}),
        **({"megatron": plan.megatron} if plan.megatron else {}),
        "sequence_length": plan.seq_len,
        "precision": {"dtype": plan.dtype, "fp8_recipe": plan.fp8_recipe},
        "world_size": plan.gpus,
        "parallelism": {
            "tp": plan.tp,
            "pp": plan.pp,
            # The published tables print VP 1 where there is no interleaving; Megatron wants it unset.
            "vp": plan.vp if plan.vp and plan.vp > 1 else None,
            "cp": plan.cp,
            "ep": plan.ep,
            "etp": plan.etp,
            "fsdp": plan.fsdp,
        },
        "batch": {"mbs": plan.mbs, "gbs": plan.gbs},
        "performance": {
            "cuda_graph": plan.cuda_graph,
            "recompute_layers": plan.recompute_layers,
            "offload_layers": plan.offload_layers,
            "wgrad_deferral": plan.wgrad_deferral,
            "moe_routing": plan.moe_routing,
        },
        "steps": {"train": plan.max_steps, "exit_after": plan.exit_after, "waits_from": _waits_from(plan)},
        "profile": None
        if plan.profile is None
        else {
            "tool": plan.profile.tool,
            "start": plan.profile.start,
            "stop": plan.profile.stop,
            "ranks": None if plan.profile.ranks is None else list(plan.profile.ranks),
        },
        "checkpoint": {
            "save": (checkpoint.save or str(paths.checkpoints)) if checkpoint.enabled else None,
            "interval": checkpoint.interval,
            "load": checkpoint.load,
        },
        # Eight worker processes per GPU rank, Bridge's default; on a CPU they would only compete with the ranks.
        "data_workers": 8 if plan.device == "cuda" else 0,
        "seed": SEED,
    }


MOST_WAITS, FEWEST_WAITS = 20, 3
"""Steps in which ranks record their waits: what one step says is chance, and some have a pause."""


def _waits_from(plan: JobPlan) -> int | None:
    """Return the first training step, from 1, in which ranks record how long they wait for one another; else None.

    They do so to the end of the training, in its last ``MOST_WAITS`` (20) steps or fewer, all of which come after the
    measured ones. None where fewer than ``FEWEST_WAITS`` (3) steps are left for it, where the job is profiled or ends
    early (``exit_after``), and on one GPU.
    """
    first = max(plan.measurement.last + 1, plan.max_steps - MOST_WAITS + 1)
    other = plan.profile is not None or plan.exit_after is not None or plan.gpus == 1
    return None if other or plan.max_steps - first + 1 < FEWEST_WAITS else first


def _function(function: PlannedFunction) -> dict[str, Any]:
    """Return the part of job.json that describes the planned function (recipe) of Megatron-Bridge, as JSON values.

    It has ``name``, ``release`` (of Megatron-Bridge), ``catalogue`` (its SHA-256), ``columns`` (parallelism, batch and
    sequence length, as the recipe ships them) and ``reduced`` (the sizes of a small copy of the model; None: the whole
    model).
    """
    columns: dict[str, Any] = msgspec.to_builtins(function.columns)
    return {
        "name": function.name,
        "release": function.release,
        "catalogue": function.catalogue,
        "columns": columns | {"sequence_length": function.sequence_length},
        "reduced": msgspec.to_builtins(function.reduced),
    }


def job_text(plan: JobPlan, paths: RunPaths) -> bytes:
    """Return the content of a run's job.json, as it is written to disk: indented JSON in UTF-8. Nothing is written."""
    return json_text(job_document(plan, paths)).encode()


def check_unchanged(record: RunRecord, *, code: bool = True) -> None:
    """Raise unless the run's files on disk are what its plan gives; called before they are executed.

    The batch script and job.json are compared with what the plan on record renders now; the supervisor and, with
    ``code``, the packed training code with the hashes on record. A file whose hash is not on record counts as
    changed. Pass False for ``code`` only where this process has just written or compared that file. Nothing is
    written. S3 of SECURITY.md.

    Raises:
        RecordError: code ``changed``: a file differs, is missing or cannot be opened; code ``not-yours``: the run
            folder or a file belongs to another user; another code: the run folder cannot be opened, or the packed
            code is no zip archive
        RequestError: the plan on record names a path that cannot be rendered
    """
    paths, sha256 = record.paths, record.manifest.get("supervisor_sha256")
    with own_run(paths.folder) as run:
        planned = {
            paths.script: render_script(record.plan, paths, sha256).encode(),
            paths.job: job_text(record.plan, paths),
        }
        for path, content in planned.items():
            if _read_run_file(run, record, path) != content:
                raise _file_changed_error(record, f"{path} is not what the plan gives")
        if hashlib.sha256(_read_run_file(run, record, paths.supervisor)).hexdigest() != sha256:
            raise _file_changed_error(record, f"{paths.supervisor} is not the one that was planned")
        if code and hash_of_packed(_read_run_file(run, record, paths.code)) != record.manifest.get("code_sha256"):
            raise _file_changed_error(record, f"the training code in {paths.code} is not the one that was planned")


def _read_run_file(run: OwnRun, record: RunRecord, path: Path) -> bytes:
    """Return the content of the file ``path`` of the open run ``run``; ``record`` is for the message.

    Only the name in ``path`` counts: the file is looked for in the run's folder.

    Raises:
        RecordError: code ``not-yours``: the file belongs to another user; code ``changed``: it is missing or cannot be
            read
    """
    try:
        return run.read(path.name)
    except RecordError as error:
        if error.code == "not-yours":
            raise
        raise RecordError(error.message, remedy=_changed_file_remedy(record), code="changed") from error


def _changed_file_remedy(record: RunRecord) -> str:
    """Return what to do about a run whose files were changed, as an imperative clause without a period.

    That is to remove the run's folder, whose path the clause has, and to run the same command again.
    """
    return f"remove the folder {record.paths.folder} and run the same command again"


def _file_changed_error(record: RunRecord, what: str) -> RecordError:
    """Return, not raise, the error with code ``changed`` for a file of a run that is not as LLMB wrote it.

    ``what`` is the clause with which the message begins: it names the file and says what is wrong with it. The
    remedy names the folder of ``record``.
    """
    return RecordError(
        f"{what}: it was changed, or another version of LLMB wrote it",
        remedy=_changed_file_remedy(record),
        code="changed",
    )
