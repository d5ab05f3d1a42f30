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
from pathlib import Path
from typing import Any, Literal, NamedTuple

CPU = "cpu"
"""The GPU type of a job without GPUs."""

Generation = Literal["hopper", "blackwell", "rubin"]


class Gpu(NamedTuple):
    """What is known of one GPU type, such as H100: its nodes, memory, peak rates and product names.

    Each is an entry of ``gpus.json``, under the type's name in lower case (``h100``); ``GPUS`` has them.
    ``nvlink_gpus``, a property, is the number of GPUs that share one NVLink domain.
    """

    generation: Generation
    """NVIDIA's architecture, such as ``hopper``."""
    per_node: int
    """GPUs in one node."""
    host: Literal["x86_64", "aarch64"]
    """The instruction set of its nodes' CPUs, as ``uname -m`` prints it."""
    memory_gb: int
    """GB of memory of one GPU, as its data sheet says."""
    peaks: Mapping[str, float]
    """Dense peak of one GPU in TFLOP/s by dtype; a dtype that is missing is not supported. Empty: none is published."""
    products: tuple[str, ...]
    """What nvidia-smi prints as the name of such a GPU, in all its forms; empty: not known."""
    nvlink_nodes: int = 1
    """Nodes whose GPUs share one NVLink domain: 18 in an NVL72 rack."""
    memory_bandwidth: float = 0.0
    """Bytes/s, as the data sheets say; 0: not known."""
    memory_clock: int | None = None
    """MHz at which NVIDIA's launcher holds the memory (Megatron-Bridge 0.6.0, setup_experiment.py); None: at none."""
    fast_cores: tuple[int, int] | None = None
    """(stride, count): NVIDIA's launcher runs a node's rank r on ``count`` cores from r x stride on, which Intel's
    Priority Core Turbo speeds up on its reference nodes (0.6.0, scripts/performance/utils/executors.py). Others number
    their cores differently or do not have it (dgxc-benchmarking 26.06, README: off by default), so ``cores.sh`` looks.
    It knows these cores as vLLM does (0.22, utils/numa_utils.py): no file that a user may read has a list of them."""
    rows_of: str | None = None
    """The type whose configurations it runs, where none are documented for it; None: it has its own."""

    @property
    def nvlink_gpus(self) -> int:
        """The number of GPUs that share one NVLink domain, ``per_node`` times ``nvlink_nodes``: 8 or, in a rack, 72."""
        return self.per_node * self.nvlink_nodes


def _read() -> dict[str, Gpu]:
    """Read ``gpus.json`` beside this module and return what is known of each GPU type, by its name (``h100``)."""
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)
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

_OTHER_BOARD = re.compile(r"(?<![a-z0-9])(nvl[0-9]*|pcie)(?![a-z0-9])")
"""Boards with the name of a type but fewer SMs, lower clocks and no NVSwitch."""

_SLICE = re.compile(r"[0-9]g\.[0-9]+gb")
"""In a name of MIG's: so many of a GPU's seven slices, with so much memory (``1g.10gb``)."""


def gpu_types() -> tuple[str, ...]:
    """Return every value that GPU_TYPE can have: the GPU types in the order of their table, and last ``cpu``."""
    return (*GPUS, CPU)


def type_of(product: str) -> str | None:
    """Return the GPU type that a product name or a GRES name stands for, upper and lower case alike.

    ``NVIDIA H100 80GB HBM3``, ``nvidia_h100_80gb_hbm3`` and ``H100`` are ``h100``. None for a GPU that no recipe knows:
    a GH200 is not an H200, an H100 NVL or PCIe is not the H100 of NVIDIA's documents, and a slice of a GPU (MIG) is
    none.
    """
    name = product.lower()
    # Such a name contains that of a known type, but is another GPU.
    if _OTHER_BOARD.search(name.replace("_", " ")) or is_slice(name):
        return None
    found = re.search(rf"(?<![a-z0-9])({'|'.join(map(re.escape, GPUS))})(sxm[0-9]?)?(?![a-z0-9])", name)
    return found[1] if found else None


def is_slice(product: str) -> bool:
    """Return whether a product name or a GRES name stands for a slice of a GPU (MIG), such as ``1g.10gb``."""
    return _SLICE.search(product.lower()) is not None


def rows_of(gpu_type: str) -> str:
    """Return the GPU type whose configurations in recipes ``gpu_type`` runs.

    That is a related type where none are documented for ``gpu_type``, a key of ``GPUS`` such as ``h100``; else
    ``gpu_type`` itself, also if it is unknown or ``cpu``.
    """
    known = GPUS.get(gpu_type)
    return (known.rows_of if known else None) or gpu_type


def row_types(gpu_type: str) -> tuple[str, ...]:
    """Return the GPU types whose rows in a recipe's table of configurations apply to jobs on ``gpu_type``.

    They are ``gpu_type`` itself, the type whose configurations it runs (``rows_of``) and ``any``, in this order: always
    three, of which the first two are often the same.
    """
    return gpu_type, rows_of(gpu_type), "any"


def nearest_type(gpu_type: str, types: Iterable[str]) -> str | None:
    """Return which of the GPU types ``types`` is most like ``gpu_type``; of equals the first.

    The same generation counts first, then the same number of GPUs in a node, then how close the memory is;
    ``gpu_type`` itself is not left out. Names are keys of ``GPUS``, in lower case. Unknown names in ``types`` are
    left out; None where LLMB does not know ``gpu_type``, or none of ``types``.
    """
    own = GPUS.get(gpu_type)
    known = [name for name in types if name in GPUS]
    if own is None or not known:
        return None

    def distance(name: str) -> tuple[bool, bool, int]:
        """Return a sort key, smaller for a GPU type ``name``, one of ``GPUS``, that is more like the wanted one.

        That is ``gpu_type`` of ``nearest_type``. The key's members: the generation differs, the number of GPUs in a
        node differs, the difference in GB of memory.
        """
        other = GPUS[name]
        kind = (other.generation != own.generation, other.per_node != own.per_node)
        return (*kind, abs(other.memory_gb - own.memory_gb))

    return min(known, key=distance)


def differences(gpu_type: str, other: str) -> str:
    """Return how the GPU type ``gpu_type`` differs from ``other``: ``141 GB of memory (h100: 80)``.

    Compares memory, its bandwidth in TB/s, the BF16 peak in TFLOP/s and the GPUs in a node, in this order; the
    value before the parentheses is that of ``gpu_type``. Several differences are joined by a comma and a blank;
    there is no full stop. A value that is unknown for either type is left out; empty where nothing differs.

    Raises:
        KeyError: LLMB does not know one of the two types, as they are spelled: keys of ``GPUS``, in lower case
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
    """Return the generation of a GPU type, such as ``hopper`` of ``h100``; None for the CPU and unknown types.

    Types are in lower case; ``H100`` is unknown.
    """
    known = GPUS.get(gpu_type)
    return known.generation if known else None


def per_node(gpu_type: str) -> int:
    """Return the number of GPUs in one node of ``gpu_type``; 8 for an unknown type.

    ``gpu_type`` is spelled as a key of ``GPUS``, in lower case: ``gb200``. Any other spelling is unknown and gives
    8, without an error. Also 8 for ``cpu``, where it is the number of ranks in a node.
    """
    known = GPUS.get(gpu_type)
    return known.per_node if known else 8


def peak_tflops(gpu_type: str, dtype: str) -> float | None:
    """Return the dense peak of one GPU in TFLOP/s with numbers of type ``dtype``, such as ``bf16``.

    None for the CPU and unknown GPU types, and for a ``dtype`` of which no peak is known for the GPU. Both names
    are in lower case, ``gpu_type`` a key of ``GPUS``; any other spelling is unknown.
    """
    known = GPUS.get(gpu_type)
    return known.peaks.get(dtype) if known else None
