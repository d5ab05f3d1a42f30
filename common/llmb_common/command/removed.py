"""What release 0.3 removed, and what to write instead.

Each table answers whoever still writes the old name, for one release; release 0.4 empties them. Standard library only:
the installer's first stage reads them too.
"""

from __future__ import annotations

from llmb_common.errors import RequestError

COMMANDS: dict[str, str] = {}
"""A command, or a command and its verb (``archive verify``) -> the line that does its work."""

OPTIONS: dict[str, dict[str, str]] = {
    "install": {"--mpi": "leave it out: each job gets what it needs; slurm.mpi in cluster_config.yaml decides for all"},
}
"""Command -> its removed options -> what to write instead. The commands of both programs: their names differ."""

CONFIG_KEYS: dict[str, str] = {
    "price_per_gpu_hour": "llmb-run plan gives GPU-hours, and no money",
    "currency": "llmb-run plan gives GPU-hours, and no money",
    "watts_per_gpu": "llmb-run plan gives no energy",
}
"""A key of ``cluster_config.yaml`` (``slurm.array_limit``) -> what became of it. Such a key is a note and no error: no
site's jobs stop because LLMB was updated."""


def refuse_command(command: str) -> None:
    """Refuse a command that there was.

    Raises:
        RequestError: it was removed; the remedy is the line that replaces it
    """
    if command in COMMANDS:
        raise RequestError(f"{command} was removed in LLMB 0.3", remedy=COMMANDS[command], code="removed")


def refuse_option(command: str, option: str) -> None:
    """Refuse an option that ``command`` had; ``option`` may have a value behind ``=``.

    Raises:
        RequestError: it was removed; the remedy is what replaces it
    """
    name = option.partition("=")[0]
    instead = OPTIONS.get(command, {}).get(name)
    if instead is not None:
        raise RequestError(f"{command} {name} was removed in LLMB 0.3", remedy=instead, code="removed")
