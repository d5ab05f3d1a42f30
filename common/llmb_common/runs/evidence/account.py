"""A run's evidence in short, as the record keeps it and commands show it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from llmb_common.printable import printable
from llmb_common.runs.evidence.findings import NodeFinding, find
from llmb_common.runs.evidence.nodes import Node, read_nodes
from llmb_common.runs.record import RunRecord
from llmb_common.slurm.states import is_live
from llmb_common.structs import from_plain

KEY = "evidence"
"""In the record's ``manifest["job"]``."""


class Account(msgspec.Struct, frozen=True):
    """What ran where. Texts name what all nodes have, and by how many where they differ."""

    nodes: int = 0
    hosts: tuple[str, ...] = ()
    gpus: str = ""
    driver: str = ""
    cuda: str = ""
    kernel: str = ""
    cpu: str = ""
    nccl: str = ""
    network: str = ""
    transports: dict[str, int] = {}  # msgspec copies it
    power_w: float | None = None
    """Mean over the GPUs, once, under load."""
    findings: tuple[NodeFinding, ...] = ()

    def lines(self) -> list[str]:
        """For people; nothing where no node left anything."""
        if not self.nodes:
            return []
        versions = [("driver", self.driver), ("CUDA", self.cuda), ("NCCL", self.nccl), ("kernel", self.kernel)]
        hosts = f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        power = f", {self.power_w:.0f} W each under load" if self.power_w else ""
        network = [f"network {self.network}"] if self.network else []
        lines = [
            ", ".join(part for part in (hosts, self.gpus + power if self.gpus else "", self.cpu) if part),
            ", ".join([*(f"{name} {value}" for name, value in versions if value), *network]),
        ]
        return [printable(line) for line in lines if line]


def make_account(record: RunRecord) -> Account:
    """Read the run's ``nodes/``."""
    found = read_nodes(record.paths.folder)
    nodes = found.nodes
    power = [gpu.power_w for node in nodes for gpu in node.load.gpus if gpu.power_w]
    transports: Counter[str] = Counter()
    for node in nodes:
        transports.update(node.nccl.transports if node.nccl else {})
    return Account(
        nodes=len(nodes),
        hosts=tuple(node.host for node in nodes),
        gpus=_usual(_gpus_of(node) for node in nodes),
        driver=_usual(node.driver for node in nodes),
        cuda=_usual(node.before.cuda for node in nodes),
        kernel=_usual(node.machine.kernel for node in nodes),
        cpu=_usual(node.machine.cpu for node in nodes),
        nccl=_usual(node.nccl.version if node.nccl else None for node in nodes),
        network=_usual(node.nccl.network if node.nccl else None for node in nodes),
        transports=dict(transports),
        power_w=sum(power) / len(power) if power else None,
        findings=find(record.plan, found),
    )


def account_of(record: RunRecord) -> Account:
    """The account that the record keeps since the run ended, or that of the folder."""
    job = record.manifest.get("job")
    kept = job.get(KEY) if isinstance(job, dict) else None
    if kept is not None and not is_live(record.state):
        try:
            account: Account = from_plain(kept, Account)
        except msgspec.ValidationError:
            return make_account(record)
        return account
    return make_account(record)


def as_plain(account: Account) -> dict[str, Any]:
    """JSON values."""
    plain: dict[str, Any] = json.loads(msgspec.json.encode(account))  # lists, as a record that was read has
    return plain


def _gpus_of(node: Node) -> str | None:
    products = Counter(gpu.product or "unknown GPU" for gpu in node.gpus)
    return ", ".join(f"{count} x {name}" for name, count in products.items()) or None


def _usual(values: Iterable[str | None]) -> str:
    """The value of all; where they differ, each with its count, the commonest first."""
    counts = Counter(value for value in values if value)
    if len(counts) < 2:
        return next(iter(counts), "")
    return " / ".join(f"{value} ({count})" for value, count in counts.most_common(4))
