"""This machine as the only node that there is."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from llmb_common.errors import RequestError
from llmb_common.executors.holding import MOST_GROUPS, PORT_BASE, PORT_COUNT, Container
from llmb_common.machine.programs import Answer, ask


class ThisMachine(contextlib.AbstractContextManager["ThisMachine"]):
    """Held by nobody, and always there."""

    @property
    def nodes(self) -> Sequence[str]:
        return (_name(),)

    @property
    def addresses(self) -> dict[str, str]:
        return {_name(): "127.0.0.1"}

    @property
    def port(self) -> int:
        return PORT_BASE + os.getpid() % (PORT_COUNT - MOST_GROUPS)

    def run(
        self, argv: Sequence[str], seconds: float, *, inside: Container | None = None, nodes: Sequence[str] = ()
    ) -> Answer:
        return ask(argv, seconds, env=os.environ)

    def unreached(self, answer: Answer) -> Sequence[str]:
        return ()

    def __exit__(self, *exception: object) -> None:
        return None


def here(nodes: str | None, partition: str | None) -> dict[str, str]:
    """This machine, which can be had.

    Raises:
        RequestError: another one is named
    """
    name = _name()
    if partition is not None or nodes not in (None, name):
        raise RequestError(
            f"without Slurm there is no other node than this one, {name}", remedy="leave out --nodes and --partition"
        )
    return {name: ""}


def _name() -> str:
    """As the node's own program says it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
