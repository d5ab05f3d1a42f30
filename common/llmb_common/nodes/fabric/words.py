"""What is measured, in words and with its limits; and what to do about each kind of finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from llmb_common.base.hostlist import compress
from llmb_common.base.printable import percent, printable

MeasureName = Literal["matrix", "copy", "to_gpu", "from_gpu", "within", "groups", "whole"]
Unit = Literal["TFLOPS", "GB/s"]


class MeasureWord(NamedTuple):
    """How one measure is called and judged; ``MEASURES`` has them all, by the measure's name.

    ``word`` is its name for people, ``unit`` that of its figures. ``slow`` is a share of the median (0.95): where
    no spread is known, a figure below it is slow. ``fails`` is a share of what the site expects: where the site
    sets no tolerance of its own, a figure below it fails; neither counts on CPUs. ``setting`` is the key of this
    expectation in the site's ``health`` section, such as ``matrix_tflops``; empty: the measure has no single key.
    """

    word: str
    unit: Unit
    slow: float
    fails: float
    setting: str = ""


MEASURES: dict[MeasureName, MeasureWord] = {
    "matrix": MeasureWord("matrix product", "TFLOPS", 0.95, 0.85, "matrix_tflops"),
    "copy": MeasureWord("copy in memory", "GB/s", 0.97, 0.9, "copy_gb_per_s"),
    "to_gpu": MeasureWord("copy to the GPU", "GB/s", 0.8, 0.8, "to_gpu_gb_per_s"),
    "from_gpu": MeasureWord("copy from the GPU", "GB/s", 0.8, 0.8, "from_gpu_gb_per_s"),
    "within": MeasureWord("all-reduce in a node", "GB/s", 0.9, 0.9, "node_all_reduce_gb_per_s"),
    "groups": MeasureWord("all-reduce", "GB/s", 0.85, 0.85),
    "whole": MeasureWord("all-reduce of all nodes", "GB/s", 0.85, 0.85, "all_nodes_all_reduce_gb_per_s"),
}

REMEDIES = {
    "slow-node": "llmb-run health --nodes {hosts} says what is different there (adapters, links, clocks);"
    " llmb-run exclude add {hosts} keeps jobs off",
    "slow-gpu": "llmb-run health --nodes {hosts} looks at its clocks, limits and temperature; compare a training run"
    " with and without it before you drain it",
    "slow-within": "check nvidia-smi nvlink --status and the fabric manager on {hosts}",
    "no-figure": "llmb-run health --nodes {hosts}, and the kernel's log there; llmb-run exclude add {hosts} keeps jobs"
    " off",
    "hung": "llmb-run health --nodes {hosts}, and the kernel's log there; llmb-run exclude add {hosts} keeps jobs off",
    "missing": "llmb-run health --nodes {hosts}; sinfo -R --nodes {hosts}",
    "slow-switch": "check this switch and its uplinks before any of its nodes: error counters, lost links",
    "slow-rail": "check what the rail's adapters share: its leaf switch, their cables and firmware (ibstat, mlxlink)",
    "slow-path": "check the cables and switches between them, and the error counters at both ends",
    "unknown": "measure again: llmb-run health --fabric --nodes {hosts}",
    "below-expectation": "either all nodes lack something that the expectation assumes (NCCL's variables, GPUDirect"
    " RDMA, clocks), or health: in cluster_config.yaml expects too much",
    "whole-fleet": "see which groups failed, and in which halves of the fleet",
    "unfinished": "measure them by themselves: llmb-run health --fabric --nodes {hosts}",
    "two-kinds": "if these are machines of another kind or batch, run each job on one kind; if not, check what they"
    " share: switch, rack, firmware (llmb-run health shows what differs)",
}


def nodes_text(hosts: Sequence[str]) -> str:
    """Return ``hosts`` as a compressed host list, ``n[1-4]``, sorted, each once, made printable; empty text without
    hosts.

    It is cut off after 200 characters, without a mark, so that a long one is for people only, not for commands.
    """
    return printable(compress(hosts))[:200]


def remedy(kind: str, hosts: Sequence[str] = ()) -> str:
    """Return what to do about a kind of finding, one line in which commands name ``hosts`` as ``nodes_text`` writes
    them.

    Empty text for a kind that is no key of ``REMEDIES``. Without ``hosts`` their place in a command stays empty; of
    very many, the list is cut off.
    """
    return REMEDIES.get(kind, "").format(hosts=nodes_text(hosts))


def figure(value: float, unit: str) -> str:
    """Return a value with up to four significant digits, a blank and ``unit``: ``332.7 GB/s``, ``40 GB/s``.

    From 10,000 on it has an exponent: ``1.235e+04 GB/s``.
    """
    return f"{value:.4g} {unit}"


def slower(value: float, median: float) -> str:
    """Return how far ``value`` is below ``median``, in percent of it with one decimal, and the median:
    ``3.9 % below 332.7``.

    The median has up to four significant digits and must not be 0, else there is a ZeroDivisionError. The
    percentage is negative for a value above it. No unit is said.
    """
    return f"{percent(1 - value / median)} below {median:.4g}"
