"""What is said of a failure: plain values, for people and as JSON. Texts are printable."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Role: TypeAlias = Literal["root", "cascade", "witness", "killed", "ended", "teardown", "noise"]
Sure: TypeAlias = Literal["certain", "likely", "possible"]
Fault: TypeAlias = Literal["run", "node", "network", "storage", "site", "scheduler"]

UNKNOWN = "unknown"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a run left. ``file`` is empty where the scheduler or the record says it; ``number`` counts from 1."""

    signature: str
    role: Role
    line: str
    file: str = ""
    number: int | None = None
    ranks: tuple[int, ...] = ()
    node: str | None = None
    gpu: str | None = None
    """The GPU's address on PCIe, or its index on the node."""
    time: str | None = None
    """The time of the line, as printed."""
    count: int = 1
    """How many such lines there are."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What began it. ``line`` is empty where a rank is silent: its witnesses have the lines."""

    kind: str
    """The signature's id; ``hang`` for a rank that was found by what the others, the stacks or the flight recorders
    say."""
    what: str
    fault: Fault
    sure: Sure
    cause: str
    remedy: str
    role: Literal["root"] = "root"
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    """All of them where it is of several."""
    node: str | None = None
    gpu: str | None = None
    step: int | None = None
    """The last iteration before it that the log has."""
    time: str | None = None
    line: str = ""
    file: str = ""
    number: int | None = None
    keep_out: bool = False
    """The node is bad, if it is one."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """``cause`` None: what is known does not say. ``witnesses`` are other lines, the earliest first."""

    cause: Cause | None
    summary: str
    """One line for a table."""
    witnesses: tuple[Evidence, ...] = ()
    suspect: Evidence | None = None
    """Where there is no cause: what ended first, such as a rank that was killed by somebody."""

    @property
    def kind(self) -> str:
        return self.cause.kind if self.cause else UNKNOWN

    @property
    def short(self) -> str:
        """The summary, or nothing where all that is known is how the log ends."""
        return self.summary if self.cause or (self.suspect and self.suspect.role != "noise") else ""

    @property
    def said(self) -> str:
        """The summary with the line that says so."""
        line = self.cause.line if self.cause else self.suspect.line if self.suspect else ""
        return self.summary if not line or line in self.summary else f"{self.summary}: {line}"

    @property
    def of_machine(self) -> bool:
        """Whether a node, the network, the storage or the scheduler is at fault, and neither the run nor a setting."""
        return self.cause is not None and self.cause.fault in ("node", "network", "storage", "scheduler")
