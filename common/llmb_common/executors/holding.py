"""Nodes that are held for a short time, to ask them something: what is wanted, and what can be done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from llmb_common.machine.processes import Answer
from llmb_common.planning.scheduler import SchedulerPart

PORT_BASE, PORT_COUNT = 21000, 9000
"""Rendezvous ports, by job id: two jobs collide only if they share a node and their ids differ by a multiple of 9000.
Linux uses ports from 32768 up for outgoing connections, and one that holds the rendezvous port ends the job at its
start; 30000 to 32767 are Kubernetes' node ports, 20048 and 20049 those of NFS."""
MOST_GROUPS = 4096
"""Ports that may be in use at once."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which nodes, and for how long. ``scheduler`` says how jobs are submitted here; None where there is none."""

    name: str
    """The name of the job."""
    scheduler: SchedulerPart | None = None
    nodes: Sequence[str] = ()
    """Empty: one, whichever."""
    gpus: int = 1
    """On each node, where they are asked for at all."""
    minutes: int = 3
    wait: int = 60
    """Seconds in the queue."""
    whole: bool = False
    """Nobody else runs there meanwhile."""


@dataclass(frozen=True)
class Container:
    """The image that a program runs in, and what it sees of the machine (``/source:/target``)."""

    image: str
    mounts: Sequence[str] = ()


class Held(Protocol):
    """The nodes, until they are given back."""

    @property
    def nodes(self) -> Sequence[str]:
        """Their names."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses by which the nodes reach each other."""

    @property
    def port(self) -> int:
        """From here on ports are ours, for now."""

    def run(
        self, argv: Sequence[str], seconds: float, *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> Answer:
        """Run a program once on each node, or on some, for at most so long; what all of them print, in no order."""

    def unreached(self, answer: Answer) -> Sequence[str]:
        """The nodes on which that was not started: their failure may have ended it on the others."""
