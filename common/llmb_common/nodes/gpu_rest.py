"""One GPU before a job runs on it, and what is wrong with it by itself: each a small function that says what, or
nothing."""

from __future__ import annotations

import re
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
_NEEDED = re.compile(r"(GPU )?Reset|(Node )?Reboot|Drain P2P", re.IGNORECASE)
"""What a driver asks for before a GPU can be used. With ``Drain and Reset`` it works on; other words are not known."""


class GpuAtRest(NamedTuple):
    """One GPU of a node before a job, for rules to look at: its state, its NVLinks, and what the job needs.

    ``each_gpu`` calls a rule's question with it. ``gpu`` has only a number where nvidia-smi listed no GPUs, and
    ``links`` are all up where it listed none. The property ``is_divided`` is True where MIG divides it; the
    property ``compute_mode`` is its compute mode in lower-case words, such as ``exclusive process``, empty where
    not known.
    """

    gpu: GpuState
    links: Links
    wanted: int
    """Number of NVLinks that should be up."""
    needs: Needs

    @property
    def is_divided(self) -> bool:
        """Whether this GPU is divided by MIG, so that figures of its memory and NVLinks say nothing."""
        return self.gpu.mig == "Enabled"

    @property
    def compute_mode(self) -> str:
        """The compute mode of this GPU in lower-case words, such as ``exclusive process``; empty: not known."""
        return (self.gpu.compute_mode or "").replace("_", " ").lower()


def each_gpu(problem_of: Callable[[GpuAtRest], str]) -> Finder:
    """Return a finder for a rule that asks ``problem_of`` what is wrong with each GPU at rest.

    ``problem_of`` is called with one ``GpuAtRest`` and returns a text; empty: nothing is wrong. A finder is called
    with a ``Fleet`` and yields a ``Found`` for each problem of a node: GPUs of a node with the same text are found
    as one, ``GPU 0-3: persistence mode is off``.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each problem of a node, ``GPU 0-3: ...``, with the numbers of all its GPUs that have
        it.

        It goes node by node, problems in the order in which they are first found. ``problem_of``, the argument of
        ``each_gpu``, is asked about every GPU of every node.
        """
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
    """Yield each GPU of the node with its NVLinks, the number of them that should be up, and ``needs``.

    A GPU's NVLinks are the item of ``node.nvlink.gpus`` at the place of its number. The number that should be up is
    18 where ``needs.gpu_type`` is a type of Hopper or Blackwell, else, as of an unknown type, what the best GPU of
    the node has. Where nvidia-smi listed no GPUs, one without a state stands for each GPU whose NVLinks are known;
    where it listed no NVLinks of a GPU, all count as up.
    """
    links = node.nvlink.gpus
    known = GPUS.get(needs.gpu_type)
    if known and known.generation in ("hopper", "blackwell"):
        wanted = LINKS
    else:
        wanted = max((link.up for link in links), default=0)
    for gpu in node.gpus or [GpuState(index=number) for number in range(len(links))]:
        # Links that nvidia-smi did not list are told once, by ``unknown_links``, and not for each GPU.
        own = links[gpu.index] if gpu.index < len(links) else Links(up=wanted)
        yield GpuAtRest(gpu, own, wanted, needs)


def says_nothing(node: NodeFacts, needs: Needs) -> str:
    """Return a clause with the numbers of the GPUs that do not answer nvidia-smi at all; empty: all do.

    ``GPU 0-3: it does not answer at all``. nvidia-smi still lists a lost GPU, with ``Unknown Error`` for everything
    that it is asked. The GPUs are those of ``node.before``; ``needs`` is not looked at.
    """
    silent = [gpu.index for gpu in node.before.gpus if not gpu.product and not gpu.uuid]
    return f"GPU {ranges(silent)}: it does not answer at all" if silent else ""


def recovery_needed(at_rest: GpuAtRest) -> str:
    """Return what a GPU needs before a job can use it, ``its driver asks for: Reset``; empty: nothing, or not known.

    Empty, too, where it may work until then (``recovery_advised``).
    """
    return _asked_by_driver(at_rest, before_use=True)


def recovery_advised(at_rest: GpuAtRest) -> str:
    """Return what a driver asks for of a GPU that may work until then, ``its driver asks for: Drain and Reset``.

    Empty: nothing, or it is not known, or ``recovery_needed`` reports it.
    """
    return _asked_by_driver(at_rest, before_use=False)


def _asked_by_driver(at_rest: GpuAtRest, *, before_use: bool) -> str:
    """Return what a driver asks for of a GPU, ``its driver asks for: Reset``; empty: nothing, or it is not known.

    With ``before_use`` only what must come before a job can use the GPU, else only what can wait.
    """
    action = at_rest.gpu.recovery
    if not action or bool(_NEEDED.match(action)) != before_use:
        return ""
    return f"its driver asks for: {action}"


def sram_errors(at_rest: GpuAtRest) -> str:
    """Return the number of uncorrectable errors of a GPU's SRAM, ``2 uncorrectable SRAM errors``; empty: none known.

    They are those since its driver loaded.
    """
    count = at_rest.gpu.uncorrected_sram
    return f"{count:.0f} uncorrectable SRAM errors" if count else ""


def memory_errors(at_rest: GpuAtRest) -> str:
    """Return a phrase with the number of a GPU's uncorrectable memory errors,
    ``2 uncorrectable errors since the driver loaded``.

    Empty: none known, or ``sram_errors`` reports the same GPU already.
    """
    count = at_rest.gpu.uncorrected
    return f"{count:.0f} uncorrectable errors since the driver loaded" if count and not sram_errors(at_rest) else ""


def sram_worn(at_rest: GpuAtRest) -> str:
    """Return ``so many SRAM errors that NVIDIA wants it replaced`` if that is so of a GPU; empty: it is not, or not
    known.
    """
    return "so many SRAM errors that NVIDIA wants it replaced" if at_rest.gpu.sram_threshold in _YES else ""


def rows_lost(at_rest: GpuAtRest) -> str:
    """Return ``memory rows could not be remapped``, else ``memory that cannot be repaired``, if that is so of a GPU.

    Empty: it is not, or not known.
    """
    if at_rest.gpu.rows_failed in _YES:
        return "memory rows could not be remapped"
    return "memory that cannot be repaired" if at_rest.gpu.unrepairable in _YES else ""


def rows_waiting(at_rest: GpuAtRest) -> str:
    """Return ``rows to remap at its next reset``, else ``a repair is due at its next reset``, if that is so of a GPU.

    Empty: nothing waits, it is not known, or ``rows_lost`` speaks of the same GPU.
    """
    gpu = at_rest.gpu
    if rows_lost(at_rest):
        return ""
    if gpu.rows_pending in _YES:
        return "rows to remap at its next reset"
    return "a repair is due at its next reset" if _YES[0] in (gpu.channel_repair, gpu.tpc_repair) else ""


def unusable_mode(at_rest: GpuAtRest) -> str:
    """Return why no job can use a GPU: ``divided (MIG)`` or ``its compute mode prohibits all work``; empty: it can be
    used.
    """
    if at_rest.is_divided:
        return "divided (MIG)"
    return "its compute mode prohibits all work" if at_rest.compute_mode == "prohibited" else ""


def exclusive_mode(at_rest: GpuAtRest) -> str:
    """Return ``its compute mode allows only one process`` if that is so of a GPU.

    Empty: it allows more, or none at all (``unusable_mode`` tells that), it is not known, or MIG divides the GPU.
    """
    is_exclusive = at_rest.compute_mode.startswith("exclusive") and not at_rest.is_divided
    return "its compute mode allows only one process" if is_exclusive else ""


def somebody_elses_memory(at_rest: GpuAtRest) -> str:
    """Return how much memory of an idle GPU is in use, ``4000 MiB in use, 2 processes``, where only another job can
    be the reason.

    Empty: it is less than 2048 MiB. Empty, too, where MIG divides the GPU, nothing is known, or it may be the
    node's Grace CPU that uses it. That the GPU is idle is not checked: it must be a node without a job of ours.
    """
    return "" if _memory_may_be_the_cpus(at_rest) else _memory_in_use(at_rest)


def perhaps_somebody_elses(at_rest: GpuAtRest) -> str:
    """Return what is in use of an idle GPU, where a job of somebody else may be the reason or not; empty: nothing.

    That is memory that the node's Grace CPU may have taken (``4000 MiB in use, no visible processes``), else more
    than 20 % utilization (``35 % busy, with no job on it``). Empty, too, where ``somebody_elses_memory`` reports
    the GPU, or MIG divides it.
    """
    if somebody_elses_memory(at_rest):
        return ""
    used, busy = _memory_in_use(at_rest), at_rest.gpu.utilization
    if used:
        return used
    return f"{busy:.0f} % busy, with no job on it" if busy and busy > BUSY and not at_rest.is_divided else ""


def _memory_may_be_the_cpus(at_rest: GpuAtRest) -> bool:
    """Return whether the memory in use of a GPU may be taken by the node's Grace CPU, which treats it as its own.

    True where the job's GPU type is of NVL72 racks and nvidia-smi sees no process on the GPU. Whether any memory is
    in use is not looked at.
    """
    return at_rest.needs.domain_nodes > 1 and not at_rest.gpu.processes


def _memory_in_use(at_rest: GpuAtRest) -> str:
    """Return how much memory of an idle GPU is in use, ``4000 MiB in use, 2 processes``; empty: below 2048 MiB.

    Without a process that nvidia-smi sees it ends ``no visible processes``. Empty, too, where MIG divides the GPU,
    or nothing is known.
    """
    used = at_rest.gpu.memory_used_mib
    if not used or used < FOREIGN_MIB or at_rest.is_divided:
        return ""
    return f"{used:.0f} MiB in use, {at_rest.gpu.processes or 'no visible'} processes"


def no_persistence(at_rest: GpuAtRest) -> str:
    """Return ``persistence mode is off`` if it is for a GPU; empty: it is on, or not known."""
    return "persistence mode is off" if at_rest.gpu.persistence == "Disabled" else ""


def link_trouble(at_rest: GpuAtRest) -> str:
    """Return what is wrong with a GPU's NVLinks, as a phrase; empty: all is well, or MIG divides the GPU.

    Only the first that applies: which are inactive (``NVLinks 3-5 are inactive``), how many are missing
    (``16 of 18 NVLinks are up``), that their rates differ (``NVLinks of different rates, 25 GB/s and 50 GB/s``).
    """
    links = at_rest.links
    if at_rest.is_divided:
        return ""
    # Only the first of these: it explains the next.
    if links.down:
        return f"NVLinks {ranges(links.down)} are inactive"
    if links.up < at_rest.wanted:
        return f"{links.up} of {at_rest.wanted} NVLinks are up"
    return f"NVLinks of different rates, {' and '.join(links.rates)}" if len(links.rates) > 1 else ""


def unknown_links(node: NodeFacts, needs: Needs) -> str:
    """Return why the state of the node's NVLinks is not known, ``NVLinks: `` and the reason; empty: it is known.

    Where nvidia-smi gives no reason, as where it is not installed: ``NVLinks: nvidia-smi nvlink -s shows none``.
    ``needs`` is not looked at.
    """
    if node.nvlink.gpus and not node.nvlink.missing:
        return ""
    return f"NVLinks: {node.nvlink.missing or 'nvidia-smi nvlink -s shows none'}"


def link_errors(node: NodeFacts, needs: Needs) -> str:
    """Return ``bit errors on NVLinks: `` and those bit error rates of the node's NVLinks that are not zero, joined
    by ", ".

    Empty: there are none. ``needs`` is not looked at.
    """
    return f"bit errors on NVLinks: {', '.join(node.nvlink.errors)}" if node.nvlink.errors else ""
