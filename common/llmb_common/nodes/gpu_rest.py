"""One GPU before a job runs on it, and what is wrong with it by itself: each a small function that says what, or
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from llmb_common.base.gpus import GPUS
from llmb_common.nodes.facts import GpuState, Links, NodeFacts
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.rule import Finder, Fleet, Found, ranges

LINKS = 18
"""NVLinks of a GPU of Hopper or Blackwell with NVLink; 72 on a node of an NVL72 rack."""
FOREIGN_MIB = 2048
"""So much memory of an idle GPU is somebody else's (AMD Primus)."""
BUSY = 20.0
"""Per cent: an idle GPU that works so much works for somebody else (the same)."""
_YES = ("Yes", "1")


class GpuAtRest(NamedTuple):
    """One GPU of a node, and its NVLinks, of which it should have ``wanted``."""

    gpu: GpuState
    links: Links
    wanted: int
    needs: Needs

    @property
    def is_divided(self) -> bool:
        """Whether its memory and NVLinks say nothing, because MIG has made parts of it."""
        return self.gpu.mig == "Enabled"

    @property
    def compute_mode(self) -> str:
        """The GPU's compute mode in lower-case words: ``exclusive process``; empty: not known."""
        return (self.gpu.compute_mode or "").replace("_", " ").lower()


def each_gpu(problem_of: Callable[[GpuAtRest], str]) -> Finder:
    """A rule of a fleet from ``problem_of``, which says what is wrong with one GPU at rest, or nothing.

    It finds once, for all GPUs of a node of which ``problem_of`` says the same: ``GPU 0-3: persistence mode is off``.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yields what ``problem_of`` says of the GPUs of each node, once for all of which it says the same."""
        for node in fleet.nodes:
            numbers: dict[str, list[int]] = {}
            for at in _gpus_at_rest(node, fleet.needs):
                text = problem_of(at)
                if text:
                    numbers.setdefault(text, []).append(at.gpu.index)
            for text, which in numbers.items():
                yield Found(node.host, f"GPU {ranges(which)}: {text}")

    return find


def _gpus_at_rest(node: NodeFacts, needs: Needs) -> Iterator[GpuAtRest]:
    """Yields each GPU of the node with its NVLinks; where nvidia-smi showed no GPUs, one for each that has NVLinks."""
    links = node.nvlink.gpus
    known = GPUS.get(needs.gpu_type)
    if known and known.generation in ("hopper", "blackwell"):
        wanted = LINKS
    else:
        wanted = max((link.up for link in links), default=0)
    for gpu in node.gpus or [GpuState(index=number) for number in range(len(links))]:
        own = links[gpu.index] if gpu.index < len(links) else Links(up=wanted)
        yield GpuAtRest(gpu, own, wanted, needs)


def says_nothing(node: NodeFacts, needs: Needs) -> str:
    """Which GPUs of the node do not answer at all; empty: all do.

    nvidia-smi lists a lost GPU, with ``Unknown Error`` for whatever it is asked.
    """
    silent = [gpu.index for gpu in node.before.gpus if not gpu.product and not gpu.uuid]
    return f"GPU {ranges(silent)}: it does not answer at all" if silent else ""


def sram_errors(at_rest: GpuAtRest) -> str:
    """How many uncorrectable errors the GPU's SRAM has had; empty: none."""
    count = at_rest.gpu.uncorrected_sram
    return f"{count:.0f} uncorrectable SRAM errors" if count else ""


def memory_errors(at_rest: GpuAtRest) -> str:
    """Uncorrectable errors of the GPU's memory, where ``sram_errors`` says nothing; empty: none."""
    count = at_rest.gpu.uncorrected
    return f"{count:.0f} uncorrectable errors since the driver loaded" if count and not sram_errors(at_rest) else ""


def rows_lost(at_rest: GpuAtRest) -> str:
    """That rows of the GPU's memory could not be remapped; empty: none."""
    return "memory rows could not be remapped" if at_rest.gpu.rows_failed in _YES else ""


def rows_waiting(at_rest: GpuAtRest) -> str:
    """That rows of the GPU's memory wait for a reset to be remapped; empty: none."""
    return "rows to remap at its next reset" if at_rest.gpu.rows_pending in _YES and not rows_lost(at_rest) else ""


def unusable_mode(at_rest: GpuAtRest) -> str:
    """Which mode keeps jobs off the GPU; empty: none."""
    if at_rest.is_divided:
        return "divided (MIG)"
    return "its compute mode prohibits all work" if at_rest.compute_mode == "prohibited" else ""


def exclusive_mode(at_rest: GpuAtRest) -> str:
    """That the GPU takes one process only; empty: it takes several."""
    is_exclusive = at_rest.compute_mode.startswith("exclusive") and not at_rest.is_divided
    return "its compute mode allows only one process" if is_exclusive else ""


def somebody_elses_memory(at_rest: GpuAtRest) -> str:
    """How much of the GPU's memory is in use, where only another job can be the reason; empty: little."""
    return "" if _memory_may_be_the_cpus(at_rest) else _memory_in_use(at_rest)


def perhaps_somebody_elses(at_rest: GpuAtRest) -> str:
    """Memory in use that may be the node's CPU's own, or work that nobody is known to have started; empty: neither."""
    if somebody_elses_memory(at_rest):
        return ""
    used, busy = _memory_in_use(at_rest), at_rest.gpu.utilization
    if used:
        return used
    return f"{busy:.0f} % busy, with no job on it" if busy and busy > BUSY and not at_rest.is_divided else ""


def _memory_may_be_the_cpus(at_rest: GpuAtRest) -> bool:
    """Whether memory in use may be a Grace CPU's, which takes its GPUs' as its own: no process is seen there."""
    return at_rest.needs.domain_nodes > 1 and not at_rest.gpu.processes


def _memory_in_use(at_rest: GpuAtRest) -> str:
    """How much of the GPU's memory others use; empty: little."""
    used = at_rest.gpu.memory_used_mib
    if not used or used < FOREIGN_MIB or at_rest.is_divided:
        return ""
    return f"{used:.0f} MiB in use, {at_rest.gpu.processes or 'no visible'} processes"


def no_persistence(at_rest: GpuAtRest) -> str:
    """That persistence mode of the GPU is off; empty: it is on, or not known."""
    return "persistence mode is off" if at_rest.gpu.persistence == "Disabled" else ""


def link_trouble(at_rest: GpuAtRest) -> str:
    """Which NVLinks of the GPU are inactive, missing or slow; empty: none."""
    links = at_rest.links
    if at_rest.is_divided:
        return ""
    if links.down:
        return f"NVLinks {ranges(links.down)} are inactive"
    if links.up < at_rest.wanted:
        return f"{links.up} of {at_rest.wanted} NVLinks are up"
    return f"NVLinks of different rates, {' and '.join(links.rates)}" if len(links.rates) > 1 else ""


def unknown_links(node: NodeFacts, needs: Needs) -> str:
    """Why the state of NVLinks is not known; empty: it is."""
    if node.nvlink.gpus and not node.nvlink.missing:
        return ""
    return f"NVLinks: {node.nvlink.missing or 'nvidia-smi nvlink -s shows none'}"


def link_errors(node: NodeFacts, needs: Needs) -> str:
    """Which NVLinks of the node had bit errors; empty: none."""
    return f"bit errors on NVLinks: {', '.join(node.nvlink.errors)}" if node.nvlink.errors else ""
