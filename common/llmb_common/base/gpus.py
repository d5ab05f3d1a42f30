"""The GPU types that LLMB knows: a new one is one more entry in ``gpus.json``; ``note`` says what is odd in one.

Standard library only: the installer reads the table before anything is installed.

Sources. Peaks, memory, GPUs per node and CPUs: NVIDIA DGX Cloud Benchmarking (github.com/NVIDIA/dgxc-benchmarking),
release 26.06.01, README.md, "Peak Theoretical Throughput" and the reference architectures below it; the peaks are those
that its expected results are divided by. H200, which it does not have: NVIDIA's H200 datasheet (the H100's compute with
141 GB). Rates of memory: the data sheets of H100, H200, DGX B200, DGX B300, GB200 NVL72 and GB300 NVL72. Product names:
the list of supported chips in the README of NVIDIA's Linux driver; B300 as nvidia-smi prints it on driver 580.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CPU = "cpu"
"""The GPU type of a job without GPUs."""

Generation = Literal["hopper", "blackwell", "rubin"]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What is known of one GPU type: its nodes, memory, peaks and product names."""

    generation: Generation
    per_node: int
    nvlink_nodes: int = 1
    """Nodes whose GPUs share one NVLink domain: 18 in an NVL72 rack."""
    host: Literal["x86_64", "aarch64"]
    memory_gb: int
    peaks: Mapping[str, float]
    """Dense peak of one GPU in TFLOP/s by dtype; a dtype that is missing is not supported. Empty: none is published."""
    products: tuple[str, ...]
    """What nvidia-smi prints as the name."""
    memory_bandwidth: float = 0.0
    """Bytes/s, as the data sheets say; 0: not known."""
    memory_clock: int | None = None
    """MHz at which NVIDIA's launcher holds the memory (Megatron-Bridge 0.6.0, setup_experiment.py)."""
    fast_cores: tuple[int, int] | None = None
    """(stride, count): NVIDIA's launcher runs a node's rank r on ``count`` cores from r x stride on, which Intel's
    Priority Core Turbo speeds up on its reference nodes (0.6.0, scripts/performance/utils/executors.py). Others number
    their cores differently or do not have it (dgxc-benchmarking 26.06, README: off by default), so ``cores.sh`` looks.
    It knows these cores as vLLM does (0.22, utils/numa_utils.py): no file that a user may read has a list of them."""
    rows_of: str | None = None
    """The type whose configurations it runs, where none are documented for it."""

    @property
    def nvlink_gpus(self) -> int:
        """The number of GPUs in one NVLink domain."""
        return self.per_node * self.nvlink_nodes


def _read() -> dict[str, Gpu]:
    """The table of GPU types, from the JSON file beside this module."""
    table: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    for entry in table.values():
        entry.pop("note", None)
        entry.update({key: tuple(value) for key, value in entry.items() if isinstance(value, list)})
    return {name: Gpu(**entry) for name, entry in table.items()}


GPUS = _read()
"""By the lower-case name that users and recipes write, newest and largest first."""

OTHERS = frozenset(
    {"a10", "a30", "a40", "a100", "a800", "b100", "gh200", "h20", "h800", "l4", "l40", "l40s", "v100"},
)
"""GPUs that exist and that no recipe is for: whoever writes one means it."""

NEAREST = {
    "gh200": ("h100", "an H100 with 96 or 144 GB beside a Grace CPU; GPUS_PER_NODE says how many a node has"),
    "h800": ("h100", "an H100 with slower NVLink"),
    "h20": ("h100", "an H100 with 96 GB and 148 TFLOP/s in BF16"),
    "a100": ("h100", "40 or 80 GB, 312 TFLOP/s in BF16, and no FP8"),
    "a800": ("h100", "an A100 with slower NVLink: no FP8"),
    "b100": ("b200", "a B200 with less power"),
}
"""Of some of these the type whose configurations come nearest, and what is different: NVIDIA's data sheets of GH200,
A100 and HGX B100; of H800, H20 and A800, which have none in public, what their vendors print."""

_OTHER_BOARD = re.compile(r"(?<![a-z0-9])(nvl[0-9]*|pcie)(?![a-z0-9])|[0-9]g\.[0-9]+gb")
"""Boards with the name of a type but fewer SMs, lower clocks and no NVSwitch, and slices of a GPU (MIG)."""


def gpu_types() -> tuple[str, ...]:
    """Every value of GPU_TYPE, with the CPU last."""
    return (*GPUS, CPU)


def type_of(product: str) -> str | None:
    """The type behind a product or GRES name: ``NVIDIA H100 80GB HBM3`` and ``nvidia_h100_80gb_hbm3`` are ``h100``.

    None for a GPU that no recipe knows: a GH200 is not an H200, and an H100 NVL is not the H100 of the documents.
    """
    name = product.lower()
    if _OTHER_BOARD.search(name.replace("_", " ")):
        return None
    found = re.search(rf"(?<![a-z0-9])({'|'.join(map(re.escape, GPUS))})(sxm[0-9]?)?(?![a-z0-9])", name)
    return found[1] if found else None


def rows_of(gpu_type: str) -> str:
    """Return the GPU type whose rows of a recipe ``gpu_type`` runs: that of a relative, else ``gpu_type`` itself."""
    known = GPUS.get(gpu_type)
    return (known.rows_of if known else None) or gpu_type


def row_types(gpu_type: str) -> tuple[str, ...]:
    """Return whose rows of a recipe jobs on ``gpu_type`` run.

    They are its own, those of its relative, and those for ``any`` GPU.
    """
    return gpu_type, rows_of(gpu_type), "any"


def nearest_type(gpu_type: str, types: Iterable[str]) -> str | None:
    """Return which of ``types`` is most like ``gpu_type``.

    By generation, then by GPUs in a node, then by memory. None where nothing is known of ``gpu_type``, or of any of
    ``types``.
    """
    own = GPUS.get(gpu_type)
    known = [name for name in types if name in GPUS]
    if own is None or not known:
        return None

    def distance(name: str) -> tuple[bool, bool, int]:
        """A sort key: how far another GPU type is from the one that was asked for."""
        other = GPUS[name]
        kind = (other.generation != own.generation, other.per_node != own.per_node)
        return (*kind, abs(other.memory_gb - own.memory_gb))

    return min(known, key=distance)


def differences(gpu_type: str, other: str) -> str:
    """Return how a GPU type differs from another known one: ``141 GB of memory (h100: 80)``, with commas between.

    Empty where nothing is known to differ.

    Raises:
        KeyError: LLMB does not know one of them
    """
    one, two = GPUS[gpu_type], GPUS[other]
    compared = [
        ("GB of memory", one.memory_gb, two.memory_gb),
        ("TB/s from it", one.memory_bandwidth / 1e12, two.memory_bandwidth / 1e12),
        ("TFLOP/s in BF16", one.peaks.get("bf16", 0), two.peaks.get("bf16", 0)),
        ("GPUs in a node", one.per_node, two.per_node),
    ]
    differ = [
        (name, value, other_value)
        for name, value, other_value in compared
        if value != other_value and value and other_value
    ]
    return ", ".join(f"{value:g} {name} ({other}: {other_value:g})" for name, value, other_value in differ)


def generation_of(gpu_type: str) -> Generation | None:
    """The generation of a GPU type; None for the CPU and unknown types."""
    known = GPUS.get(gpu_type)
    return known.generation if known else None


def per_node(gpu_type: str) -> int:
    """Return the number of GPUs in a node of ``gpu_type``; 8 of an unknown type.

    Also 8 of the CPU: the number of ranks in a node then.
    """
    known = GPUS.get(gpu_type)
    return known.per_node if known else 8


def peak_tflops(gpu_type: str, dtype: str) -> float | None:
    """Dense peak of one GPU in TFLOP/s; None for a CPU, and for a dtype that the GPU does not have."""
    known = GPUS.get(gpu_type)
    return known.peaks.get(dtype) if known else None
