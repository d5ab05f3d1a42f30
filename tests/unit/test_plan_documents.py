"""For each published configuration, DRY_RUN=json says what NVIDIA's README prints, or its correction."""

from __future__ import annotations

from typing import Any

import pytest

from support.documented_jobs import documented_rows, label, plan_of

# Corrections of configuration rows (tests/data/documents/corrections.json, items 1, 11 and 30).
CORRECTED_VP = {("llama4.md", "400b", "H100"): 1, ("nemotron4.md", "340b", "H100"): 12}
WITHOUT_GRAPHS = {("llama3.1-mbridge.md", "8b", "H100")}
COLUMNS = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "etp": "etp", "mbs": "mbs", "ga": "ga"}
OPTIONAL = {"fsdp": "fsdp", "cg": "cuda_graph", "rl": "recompute_layers", "ol": "offload_layers"}
CASES = list(documented_rows())


def at(formula: int | str, gpus: int) -> int:
    """``64``, ``GPUs``, ``GPUs/2`` or ``GPUs*16`` from a README, evaluated at ``gpus``."""
    if isinstance(formula, int):
        return formula
    operation = formula.removeprefix("GPUs")
    if not operation:
        return gpus
    return gpus * int(operation[1:]) if operation[0] == "*" else gpus // int(operation[1:])


@pytest.mark.parametrize("case", CASES, ids=label)
def test_the_plan_has_the_documented_columns(case: tuple[dict[str, Any], str, int]) -> None:
    item, dtype, gpus = case
    plan = plan_of(item, dtype, gpus)
    for printed, column in {**COLUMNS, **{k: v for k, v in OPTIONAL.items() if k in item}}.items():
        expected = item[printed]
        if column == "cuda_graph" and (item["source"], item["size"], item["gpu"]) in WITHOUT_GRAPHS:
            expected = False
        assert getattr(plan, column) == expected, column
    assert plan.vp == CORRECTED_VP.get((item["source"], item["size"], item["gpu"]), item["vp"])
    assert (plan.dp, plan.gbs) == (at(item["dp"], gpus), at(item["gbs"], gpus))
    assert (plan.seq_len, plan.layers, plan.dtype) == (item["seqlen"], item["layers"], dtype)
    assert plan.nodes * plan.gpus_per_node == gpus


def test_every_expert_data_parallel_size_is_a_whole_number() -> None:
    for item, dtype, gpus in CASES:
        plan = plan_of(item, dtype, gpus)
        if plan.ep:
            assert plan.expert_dp is not None
            assert plan.expert_dp * plan.pp * plan.ep * (plan.etp or plan.tp) == gpus


def test_there_are_as_many_cases_as_the_documents_have() -> None:
    assert len({(item["source"], item["line"]) for item, _, _ in CASES}) == 55
    assert len(CASES) >= 97
