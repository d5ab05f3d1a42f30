"""The 12 documented Megatron-Bridge rows of Llama 3.1, field by field against what NVIDIA's own scripts resolve to.

``tests/data/llama_documented_rows.json`` says how it was made. Ours go the whole way: recipe, plan, job.json,
configuration, Bridge's validation. Every difference stands in ``MEANT`` with its reason.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from training_jobs import DATA

REFERENCE: dict[str, Any] = json.loads((DATA / "llama_documented_rows.json").read_text(encoding="utf-8"))
ROWS: dict[str, dict[str, Any]] = {name: {**REFERENCE["common"], **own} for name, own in REFERENCE["rows"].items()}

FSDP = {name for name, row in ROWS.items() if row["ddp.use_megatron_fsdp"]}
LLAMA_3 = {name for name in ROWS if not name.startswith("405b")}
MEANT: list[tuple[str, set[str], tuple[str, ...]]] = [
    (
        "nothing is saved unless asked for, and then so that it loads at another TP and PP, and without a tokenizer",
        set(ROWS),
        ("checkpoint.save_interval", "checkpoint.save_tokenizer_assets"),
    ),
    ("the same, in the format that is not FSDP's", set(ROWS) - FSDP, ("checkpoint.dist_ckpt_optim_fully_reshardable",)),
    ("nothing is saved; saving under FSDP takes this format", FSDP, ("checkpoint.ckpt_format",)),
    (
        "NVIDIA's scripts run Llama 3, the documents name Llama 3.1, whose rotary frequencies are scaled once at the "
        "start; initial weights of another size, those of Bridge's Llama 3.1, cost the same",
        LLAMA_3,
        ("model.rope_scaling", "model.rope_scaling_factor", "model.init_method_std", "model.embedding_init_method_std"),
    ),
    (
        "a schedule that lets a run of a few steps learn; its arithmetic costs the same",
        set(ROWS),
        (
            "scheduler.lr_warmup_iters",
            "scheduler.lr_warmup_steps",
            "scheduler.start_weight_decay",
            "scheduler.end_weight_decay",
        ),
    ),
    (
        "a resumed run goes on with the schedule that it was saved with",
        set(ROWS),
        ("scheduler.use_checkpoint_opt_param_scheduler", "scheduler.override_opt_param_scheduler"),
    ),
    ("nothing is evaluated: eval_iters is 0 in both", set(ROWS), ("train.eval_interval",)),
    (
        "core's default, and off either way",
        set(ROWS),
        ("model.offload_modules", "model.use_transformer_engine_op_fuser"),
    ),
    (
        "a model that brings its own vocabulary size is not padded, and 128256 needs none",
        set(ROWS),
        ("model.should_pad_vocab",),
    ),
    (
        "with one pipeline stage there is nothing to divide",
        {"405b-gb200-fp8-128", "405b-gb300-fp8-128"},
        ("model.account_for_embedding_in_pipeline_split", "model.account_for_loss_in_pipeline_split"),
    ),
    (
        "without tensor parallelism Bridge turns it off (model.tp_comm_overlap is the same); we do not turn it on",
        {"70b-b200-fp8-64", "70b-gb200-fp8-64", "70b-gb300-fp8-64"},
        ("comm_overlap.tp_comm_overlap", "comm_overlap.tp_comm_overlap_cfg", "model.tp_comm_overlap_cfg"),
    ),
    (
        "core turns it on for user buffers (megatron_fsdp/param_and_grad_buffer.py:1595); we say so",
        {"8b-h100-fp8-8"},
        ("ddp.fsdp_double_buffer",),
    ),
]
"""Reason, the rows it applies to, the fields that differ there."""


@pytest.fixture(scope="module")
def differences(documented: dict[str, dict[str, Any]]) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Row -> field -> (our value, NVIDIA's value), where the two differ."""
    found = {}
    for name, row in ROWS.items():
        ours = documented[f"llama3.1-mbridge-{name}"]["fields"]
        pairs = {field: (ours.get(field, "no such field"), value) for field, value in row.items()}
        found[name] = {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    return found


@pytest.mark.parametrize("name", ROWS)
def test_every_setting_is_nvidias_or_differs_for_a_stated_reason(differences, name):
    meant = {field for _, rows, fields in MEANT if name in rows for field in fields}
    assert {field: values for field, values in differences[name].items() if field not in meant} == {}
    assert meant - differences[name].keys() == set(), "these no longer differ"


def test_12_rows_of_over_400_settings_are_compared() -> None:
    assert len(ROWS) == 12
    assert {len(row) for row in ROWS.values()} == {468}


def test_no_difference_is_stated_twice() -> None:
    stated = [(name, field) for _, rows, fields in MEANT for name in rows for field in fields]
    assert len(stated) == len(set(stated))
