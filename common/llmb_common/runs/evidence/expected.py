"""What an accepted run's nodes were, and where a later run's are not: a fault that all nodes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmb_common.command.printable import printable
from llmb_common.runs.evidence.account import Account
from llmb_common.runs.evidence.findings import NodeFinding, Severity

EXPECTATION = "expectation"
CLOCK = "clock_mhz"
SLOWER = 0.9
"""The median clock under load below this share of the accepted run's: between runs of a job it differs by less."""

_FACTS: dict[str, tuple[Severity, str]] = {
    "driver": ("note", "driver"),
    "adapters": ("problem", "network adapters in use"),
    "gpudirect": ("problem", "GPUDirect RDMA"),
    "nvlink": ("problem", "NVLink joins"),
    "fabric": ("problem", "NVLink fabric"),
    "pcie": ("problem", "PCIe"),
    "power_limit": ("problem", "power limit"),
    "clocks": ("problem", "clocks"),
}
_OF_THE_JOB = ("gpudirect", "nvlink")
"""What also depends on the job, as clocks under load do: only runs of the same configuration are held against it."""


def setup_of(accounts: Sequence[Account]) -> dict[str, str | float]:
    """What the nodes of accepted runs were, as far as those agree; empty where they left no account."""
    setups = [{name: getattr(account, name) for name in ("gpus", *_FACTS)} for account in accounts]
    kept = {name: value for name, value in setups[0].items() if value and all(it[name] == value for it in setups)}
    clocks = [account.clock_mhz for account in accounts if account.clock_mhz]
    return kept | ({CLOCK: sum(clocks) / len(clocks)} if clocks else {})


def held_against(account: Account, setup: Mapping[str, str | float], what: str, *, same_job: bool) -> list[NodeFinding]:
    """Where the run's nodes are not as they were in an accepted run, which ``what`` names. What either does not know is
    not compared."""
    found: list[tuple[Severity, str]] = []
    for name, (severity, word) in _FACTS.items():
        was, now = setup.get(name), getattr(account, name)
        if was and now and was != now and (same_job or name not in _OF_THE_JOB):
            found.append((severity, f"{word} {now}, and {was} in {what}"))
    clock = setup.get(CLOCK)
    if same_job and isinstance(clock, float) and account.clock_mhz and account.clock_mhz < SLOWER * clock:
        found.append(("problem", f"clocks under load {account.clock_mhz:.0f} MHz, and {clock:.0f} in {what}"))
    return [NodeFinding(EXPECTATION, severity, printable(text)[:500]) for severity, text in found]
