"""Nodes to keep jobs away from: ``$LLMB_INSTALL/.llmb/exclude.json``, with a reason and an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Exclusion:
    """``expires``: Unix time from which on the node is used again; None: until it is removed."""

    node: str
    reason: str
    added: float
    expires: float | None


def exclusions(install: Path) -> list[Exclusion]:
    """The exclusions in force now, by node. Raises RecordError when the file cannot be read."""
    raise NotImplementedError


def exclude_nodes(install: Path, nodes: str, reason: str, *, days: float | None = None) -> list[Exclusion]:
    """Exclude the host list ``nodes`` (``n[1-3],x7``); a node on the list gets the new reason and end.

    Returns the list in force. Raises RequestError for a host list that cannot be read or no reason.
    """
    raise NotImplementedError


def include_nodes(install: Path, nodes: str) -> list[str]:
    """Take nodes off the list; those that were on it. Raises RequestError as above."""
    raise NotImplementedError


def excluded_names(install: Path) -> Sequence[str]:
    """Node names in force, for ``sbatch --exclude``."""
    return [item.node for item in exclusions(install)]
