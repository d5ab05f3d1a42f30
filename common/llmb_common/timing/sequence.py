"""Which of a log's records stand: restarts replace, doubled lines count once, swapped lines are put in order.

Ranks, srun and log collectors write through several buffers, so that a line can come twice or one line late. A later
attempt prints iterations again, from the checkpoint that it started at. Both are a step back in the numbers; how far
back, and whether the record is new, tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llmb_common.timing.records import Iteration

_LATE = 2
"""Lines by which buffers put a record out of order; a restart from a checkpoint goes further back, or repeats one."""


@dataclass
class RecordSequence:
    """The records that stand so far, with their places in the file, by iteration."""

    kept: list[tuple[int, Iteration]] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    """Iterations at which a later attempt set in."""
    replaced: int = 0
    """Records of an earlier attempt that a later one printed again, or lost."""
    doubled: int = 0
    """Lines that were printed twice, to the last digit."""

    def add(self, offset: int, record: Iteration) -> None:
        """Take in the next record of the file."""
        kept = self.kept
        if not kept or record.index > kept[-1][1].index:
            kept.append((offset, record))
            return
        recent = {item.index for _, item in kept[-_LATE - 1 :]}
        if any(record == item for _, item in kept[-_LATE:]):
            self.doubled += 1
        elif record.index not in recent and record.index >= kept[-1][1].index - _LATE:
            at = next(at for at in range(len(kept), -1, -1) if at == 0 or kept[at - 1][1].index < record.index)
            kept.insert(at, (offset, record))
        else:
            before = len(kept)
            while kept and kept[-1][1].index >= record.index:
                kept.pop()
            self.replaced += before - len(kept)
            self.restarts.append(record.index)
            kept.append((offset, record))
