"""The suites of NVIDIA's Exemplar Clouds, one for each GPU type, made from the list in ``exemplar.json``.

``python -m tools.exemplar`` writes that file from NVIDIA's own list, with the day of looking it up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FACTS: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

RELEASE: str = _FACTS["release"]
"""NVIDIA's release that has the list: ``v26.08.00``."""

DATE: str = _FACTS["date"]
LOOKED_UP: str = _FACTS["looked_up"]

_SIZES = {
    "pretrain_deepseek-v3_671b": "deepseek_v3",
    "pretrain_gpt_oss_120b": "gpt_oss_120b",
    "pretrain_kimi-k2_1t": "kimi_k2",
    "pretrain_llama3.1_405b": "llama31_405b",
    "pretrain_llama3.1_70b": "llama3_70b",
    "pretrain_nemotron-h_56b": "nemotronh_56b",
    "pretrain_nemotron_3_120b": "nemotron_3_super",
    "pretrain_qwen3_235b": "qwen3_235b_a22b",
}
"""Model sizes of ``pretrain_mbridge`` by NVIDIA's name of the workload."""


def name_of(gpu_type: str) -> str:
    """Return the name of the suite of NVIDIA's Exemplar Clouds for a GPU type: ``exemplar-26.08-gb300`` for ``gb300``.

    It has NVIDIA's release in it (without ``v`` and a final ``.00``), because a cloud is recognized for one release.
    Whether there is such a suite is not checked. ``gpu_type`` is in small letters, as on NVIDIA's list here; it is put
    in as it is.
    """
    return f"exemplar-{RELEASE.removeprefix('v').removesuffix('.00')}-{gpu_type}"


def suites() -> dict[str, str]:
    """Return the suites of NVIDIA's Exemplar Clouds, one for each GPU type on NVIDIA's list: YAML text by name.

    The names are as ``name_of`` makes them; sorted by GPU type.
    """
    return {
        name_of(gpu_type): _suite_text(gpu_type, listed) for gpu_type, listed in sorted(_FACTS["workloads"].items())
    }


def named_before(word: str) -> str | None:
    """Return the present name of the suite that earlier releases of LLMB called ``exemplar-gb300`` or the like.

    ``word`` is such an earlier name. None for any other word, also for a present name, another case, or a GPU type
    without a suite.
    """
    gpu_type = word.removeprefix("exemplar-")
    return name_of(gpu_type) if word != gpu_type and gpu_type in _FACTS["workloads"] else None


def _suite_text(gpu_type: str, listed: dict[str, list[str]]) -> str:
    """Return the YAML text of the Exemplar suite for a GPU type, with a final newline.

    ``listed`` has, by the names of NVIDIA's workloads, their precisions, as ``_test_keys`` takes both: a test is
    made for each precision, in that order. The number of GPUs is NVIDIA's, the same for all. ``gpu_type`` is as
    ``name_of`` takes it.
    """
    tests: list[str] = []
    for workload, precisions in listed.items():
        tests += [f"  - {{{_test_keys(workload, precision)}}}" for precision in precisions]
    lines = [
        f"# The workloads of NVIDIA's Exemplar Clouds in release {RELEASE} ({DATE}), looked up {LOOKED_UP}:",
        f"# {_FACTS['source']}",
        f"# {_FACTS['scale']} GPUs, one run each, more than 95 % of the reference.",
        f"# NVIDIA publishes no references for {_FACTS['scale']} GPUs: without a baseline of this site, or a stated",
        "# reference, the campaign ends NOT JUDGED. NVIDIA's own certification takes runs of NVIDIA's own recipes.",
        f"name: {name_of(gpu_type)}",
        *nodes_first("workload: pretrain_mbridge, size: nemotronh_56b, dtype: fp8"),
        "defaults:",
        f"  gpu_type: {gpu_type}",
        f"  scale: {_FACTS['scale']}",
        f"  repeats: {_FACTS['repeats']}",
        "  required: 0.95",
        "  reference: optional",
        "  force: true  # the number of GPUs is NVIDIA's, not one of Megatron-Bridge's own",
        "tests:",
        *tests,
    ]
    return "\n".join(lines) + "\n"


def nodes_first(test: str) -> list[str]:
    """Return the lines of a made suite that have its nodes looked at first, by the fabric and by 20 steps of ``test``.

    ``test`` is a test's YAML keys and values, separated by commas, without braces and ``max_steps``.
    """
    return [
        "health: fabric  # first, all idle nodes are measured (llmb-run health --fabric); those that fail are left out",
        "prescreen:  # short, on as many nodes as the tests: what its nodes say is looked at",
        f"  - {{{test}, max_steps: 20}}",
    ]


def _test_keys(workload: str, precision: str) -> str:
    """Return the YAML keys and values of one test of an Exemplar suite, separated by commas, without braces.

    Such as ``workload: pretrain_mbridge, size: llama3_70b, dtype: fp8, env: {FP8_RECIPE: cs}``. ``workload`` is
    NVIDIA's name, such as ``pretrain_llama3.1_70b``, and must be one of ``_SIZES`` (else KeyError). ``precision`` is a
    dtype, for FP8 with its scaling behind a blank (``fp8 cs``), which makes the ``env``.
    """
    dtype, _, scaling = precision.partition(" ")
    words = ["workload: pretrain_mbridge", f"size: {_SIZES[workload]}", f"dtype: {dtype}"]
    if scaling:
        words.append(f"env: {{FP8_RECIPE: {scaling}}}")
    return ", ".join(words)
