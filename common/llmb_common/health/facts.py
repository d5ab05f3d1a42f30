"""What nodes say of themselves, of which nothing is believed to be of the right kind; and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from llmb_common.decoding.structs import from_plain
from llmb_common.runs.evidence.nodes import Machine, Node, Snapshot

Level = Literal["fail", "warn", "drift", "unknown"]
"""``fail``: a job would stop there, or its result be wrong. ``warn``: worth a look. ``drift``: unlike most nodes.
``unknown``: could not be found out, which is not the same as healthy."""


class Remark(msgspec.Struct, frozen=True):
    """Something found on a node. ``check`` is the name in ``checks.CHECKS``."""

    check: str
    level: Level
    text: str


class Links(msgspec.Struct, frozen=True):
    """NVLinks of one GPU: how many run, which do not, and at which rates."""

    up: int = 0
    down: tuple[int, ...] = ()
    rates: tuple[str, ...] = ()


class Nvlink(msgspec.Struct, frozen=True):
    missing: str | None = None
    gpus: tuple[Links, ...] = ()
    errors: tuple[str, ...] = ()


class Imex(msgspec.Struct, frozen=True):
    missing: str | None = None
    domain: str | None = None
    channels: int = 0


class Port(msgspec.Struct, frozen=True):
    name: str = ""
    phys: str | None = None
    board: str | None = None
    gids: tuple[str, ...] = ()
    errors: dict[str, int | None] = {}  # msgspec copies it


class KernelLog(msgspec.Struct, frozen=True):
    """A node's kernel log. ``lines``: age in seconds, and text. ``missing``: why there are none."""

    missing: str | None = None
    lines: tuple[tuple[float, str], ...] = ()


class System(msgspec.Struct, frozen=True):
    """Sizes in bytes; a limit of None: there is none."""

    memlock: int | None = None
    nofile: int | None = None
    shm_size: int | None = None
    shm_free: int | None = None
    governors: tuple[str, ...] = ()
    idle_states: int | None = None
    idle_disabled: int = 0
    numa_balancing: str | None = None
    numa_nodes: int | None = None
    cmdline: str | None = None
    page_size: int | None = None
    virtual: bool | None = None
    first_outgoing_port: int | None = None
    peermem: bool | None = None
    open_driver: bool | None = None
    peer_mapping: bool | None = None
    gdrcopy: bool | None = None
    clock: float | None = None


class Folder(msgspec.Struct, frozen=True):
    """A folder as a node sees it. ``free``, ``size``: bytes. ``problem``: why nothing can be written there."""

    path: str = ""
    there: bool = False
    free: int | None = None
    size: int | None = None
    problem: str | None = None


class Software(msgspec.Struct, frozen=True):
    """``unpacked``: where Enroot unpacks images. ``starts``: the programs that were to start, and did."""

    os: str | None = None
    ofed: str | None = None
    enroot: str | None = None
    enroot_settings: dict[str, str] = {}
    unpacked: Folder | None = None
    starts: tuple[str, ...] = ()


class Process(msgspec.Struct, frozen=True):
    pid: int
    name: str


class Facts(msgspec.Struct, frozen=True):
    """One node. A look that gave nothing is as by default, and in ``hung`` or ``errors`` with the reason."""

    node: str
    begun: float = 0.0
    machine: Machine = Machine()
    gpus: Snapshot = Snapshot(missing="no answer")
    nvlink: Nvlink = Nvlink(missing="no answer")
    imex: Imex = Imex()
    services: dict[str, dict[str, str]] = {}
    ports: tuple[Port, ...] = ()
    kernel: KernelLog = KernelLog(missing="no answer")
    system: System = System()
    software: Software = Software()
    stuck: tuple[Process, ...] = ()
    folders: dict[str, Folder] = {}
    hung: dict[str, str] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}

    @property
    def evidence(self) -> Node:
        """As a run's account of a node, taken at one moment."""
        return Node(self.node, self.machine, self.gpus, Snapshot(), self.gpus, nccl=None, nccl_missing=None)


_KINDS: dict[str, Any] = {
    "machine": Machine,
    "gpus": Snapshot,
    "nvlink": Nvlink,
    "imex": Imex,
    "services": dict[str, dict[str, str]],
    "ports": tuple[Port, ...],
    "kernel": KernelLog,
    "system": System,
    "software": Software,
    "stuck": tuple[Process, ...],
}


def read_facts(node: str, said: Mapping[str, Any]) -> Facts:
    """What a node said, by what of it is as it should be."""
    found: dict[str, Any] = {}
    folders: dict[str, Folder] = {}
    hung: dict[str, str] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}
    looks = said.get("looks")
    for name, look in looks.items() if isinstance(looks, dict) else ():
        kind = Folder if name.startswith("folder ") else _KINDS.get(name)
        if kind is None or not isinstance(look, dict):
            continue
        if isinstance(look.get("seconds"), float | int):
            seconds[name] = float(look["seconds"])
        if "value" not in look:
            where, how = (hung, look["hung"]) if "hung" in look else (errors, look.get("error"))
            where[name] = str(how)
            continue
        try:
            value = from_plain(look["value"], kind)
        except msgspec.ValidationError as error:
            errors[name] = f"unreadable: {error}"
            continue
        if isinstance(value, Folder):
            folders[name.removeprefix("folder ")] = value
        else:
            found[name] = value
    begun = said.get("begun")
    begun = float(begun) if isinstance(begun, float | int) else 0.0
    return Facts(node, begun, folders=folders, hung=hung, errors=errors, seconds=seconds, **found)
