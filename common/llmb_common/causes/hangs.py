"""Which rank the others waited for: by stacks, flight recorders, and what ranks print when a collective times out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from llmb_common.causes.answer import Cause, Sure
from llmb_common.causes.flight import FLIGHT, never_came, read_dumps
from llmb_common.causes.places import Places
from llmb_common.causes.reading import Reading
from llmb_common.causes.stacks import FOLDER, RankFile, stuck
from llmb_common.causes.waits import Missing
from llmb_common.command.printable import counted, first_few


def find_stuck(
    run_folder: Path | None, ranks: Sequence[RankFile], readings: Iterable[Reading], places: Places
) -> Cause | None:
    """The rank that never came; None where nothing says which. Stacks say where it stood, dumps what it missed."""
    dumps = read_dumps(run_folder / FLIGHT) if run_folder is not None else {}
    recorded = never_came(dumps) if dumps else None
    stacks = stuck(ranks)
    printed = next((found for reading in readings if (found := reading.waits.missing(places.world))), None)
    if recorded and stacks and set(stacks[0].ranks) & set(recorded.ranks):
        return _cause(recorded, stacks[1], "certain", places)
    if stacks and stacks[1] and stacks[0].how == "its stack":
        return _cause(stacks[0], stacks[1], "likely", places)
    for found in (recorded, printed, stacks[0] if stacks else None):
        if found:
            return _cause(found, "", "likely", places)
    return None


def _cause(found: Missing, stood: str, sure: Sure, places: Places) -> Cause:
    first = found.ranks[0]
    hosts = {places.host_of(rank) for rank in found.ranks}
    node = hosts.pop() if len(hosts) == 1 else None
    several = f"{counted(len(found.ranks), 'rank')} ({first_few(found.ranks, 6)})"
    who = f"rank {first}" if len(found.ranks) == 1 else several
    stands = f"; it stood in {stood}" if stood else ""
    return Cause(
        kind="hang",
        what=f"{who} never came to {found.where}{stands}"[:500],
        fault="run",
        sure=sure,
        cause=f"The others waited for it: {found.how}.",
        remedy=f"that rank's own last lines, its stack in {FOLDER}/{first}.txt, and its node",
        rank=first,
        ranks=found.ranks[:64],
        node=node,
        keep_out=node is not None and len(found.ranks) > 1,
    )
