"""Every rule of ``planning.divisibility`` against the real Megatron-Bridge: it takes what the plan takes.

Hundreds of layouts, most of them wrong, from all recipes. What Megatron finds only later (while it builds the model or
starts the pipeline), and what it would silently not do, stands in ``NOT_VALIDATED``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from training_jobs import Engine

from llmb_common.errors import RequestError
from llmb_common.planning import plan as planning
from llmb_common.planning.functions import check_columns
from llmb_common.recipes.loading import load_recipe
from llmb_common.rendering.job import job_document
from llmb_common.request.read import read_request
from llmb_common.runs.paths import dry_run_paths
from llmb_common.site.cluster import cluster_config
from llmb_common.site.machine import Machine

ROOT = Path(__file__).resolve().parents[2]

NOT_VALIDATED = (
    "GPUs are not divisible by ETP",  # the process groups
    "the micro-batches of a step",  # the interleaved schedule
    "this model has no experts",  # ignored
    "of a pipeline stage",  # ignored beyond the stage
)

BASES = [
    ("llama3.1", {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "128"}),
    ("llama3.1", {"GPU_TYPE": "b200", "JOB_TOTAL_GPUS": "128"}),
    ("llama3.1", {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "64", "MODEL_SIZE": "70b"}),
    ("llama4", {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "128"}),
    ("grok1", {"GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "128"}),
    ("nemotron4", {"JOB_TOTAL_GPUS": "256", "MODEL_SIZE": "340b"}),
]
PLAIN = {"FSDP": "false", "OFFLOAD_LAYERS": "0", "RECOMPUTE_LAYERS": "0"}
FLAT = {"PP": "1", "VP": "NA"}
CHANGES: list[dict[str, str]] = [
    *({"TP": tp} for tp in ("1", "2", "3", "8", "16", "32")),
    *({"PP": pp, **PLAIN} for pp in ("2", "4", "6", "16", "32")),
    *({"CP": cp, **FLAT} for cp in ("2", "3", "8", "16")),
    *({"PP": "4", "VP": vp, **PLAIN, "GBS": "1024"} for vp in ("2", "3", "5", "8", "16")),
    *({"EP": ep} for ep in ("1", "2", "3", "16", "128")),
    *({"ETP": etp} for etp in ("1", "2", "8")),
    *({"RECOMPUTE_LAYERS": layers, "OFFLOAD_LAYERS": "0"} for layers in ("1", "10", "127")),
    *({"OFFLOAD_LAYERS": layers, **FLAT, "RECOMPUTE_LAYERS": "0"} for layers in ("1", "79", "126")),
    {"OFFLOAD_LAYERS": "1"},
    {"CUDA_GRAPH": "true"},
    {"CUDA_GRAPH": "true", "OFFLOAD_LAYERS": "0"},
    {"CUDA_GRAPH": "true", "OFFLOAD_LAYERS": "0", "RECOMPUTE_LAYERS": "2"},
    {"FSDP": "true"},
    {"FSDP": "true", **FLAT},
    *({"MBS": mbs} for mbs in ("2", "3")),
    *({"GBS": gbs} for gbs in ("1", "96", "100", "512")),
]
CASES = [(recipe, base, change) for recipe, base in BASES for change in CHANGES]


def planned(recipe: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str | None]:
    """The job.json of the request, made without the rules, and what the rules say about it."""
    complaint: list[str] = []

    def remember(*arguments: Any) -> None:
        try:
            check_columns(*arguments)
        except RequestError as error:
            complaint.append(error.message)

    monkeypatch.setattr(planning, "check_columns", remember)
    request = read_request({"LLMB_INSTALL": "/i", "PREFLIGHT": "off", **variables})
    try:
        plan = planning.make_plan(load_recipe(ROOT / recipe), cluster_config(), request, Machine(cluster_type="slurm"))
    except ZeroDivisionError:  # fewer GPUs than TP * PP * CP: there is no job to write
        return None, complaint[0]
    return job_document(plan, dry_run_paths("/w", "x")), complaint[0] if complaint else None


def test_megatron_takes_what_the_plan_takes(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, complaints = [], []
    for number, (recipe, base, change) in enumerate(CASES):
        document, complaint = planned(recipe, {**base, **change}, monkeypatch)
        if document is not None:
            jobs.append(tmp_path / f"{number}.json")
            jobs[-1].write_text(json.dumps(document))
            complaints.append(complaint)
    answers = [line["error"] for line in engine.json_lines("validate_jobs.py", *jobs)]
    assert len(answers) == len(jobs) > 250

    different = []
    for job, complaint, answer in zip(jobs, complaints, answers, strict=True):
        known = complaint is not None and any(re.search(text, complaint) for text in NOT_VALIDATED)
        if (complaint is None) != (answer is None) and not known:
            different.append((CASES[int(job.stem)], complaint, answer))
    assert different == []
    assert None in complaints
    assert sum(complaint is not None for complaint in complaints) > 50
