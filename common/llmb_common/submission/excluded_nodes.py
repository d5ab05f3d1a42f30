"""Nodes to keep jobs away from: ``$LLMB_INSTALL/.llmb/exclude.json``, with a reason and an end.

The list also remembers which nodes were put back, and when: what a run has shown of a node before that is forgotten.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.hostlist import expand
from llmb_common.base.structs import change_list, read_list
from llmb_common.base.words import is_node_name

REMEMBERED_DAYS = 7.0
"""For so long a node is left out by what a run has shown of it, unless somebody puts it back."""


class Exclusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``expires``: Unix time from which on the node is used again; None: until it is removed. An exclusion that ends
    when it begins says that the node was put back then."""

    node: str
    reason: str
    added: float
    expires: float | None


_LIST = ("nodes", Exclusion, "an exclusion list")


def exclusions(install: Path) -> list[Exclusion]:
    """Return the exclusions that are in force now, sorted by node; empty where nothing is excluded.

    Raises:
        RecordError: the file cannot be read.
    """
    return _in_force(read_list(_exclusions_path(install), *_LIST))


def _in_force(items: list[Exclusion]) -> list[Exclusion]:
    """Return those of ``items`` that have not expired, sorted by node."""
    now = time.time()
    in_force = [item for item in items if item.expires is None or item.expires > now]
    return sorted(in_force, key=lambda item: item.node)


def used_again(install: Path) -> dict[str, float]:
    """Return when nodes were put back within the last ``REMEMBERED_DAYS``, as Unix time, by the node's name.

    Raises:
        RecordError: the file cannot be read.
    """
    return {item.node: item.added for item in _put_back(read_list(_exclusions_path(install), *_LIST))}


def _put_back(items: list[Exclusion]) -> list[Exclusion]:
    """Return those of ``items`` that say that a node was put back within the last ``REMEMBERED_DAYS``."""
    since = time.time() - REMEMBERED_DAYS * 86400
    return [item for item in items if item.expires == item.added > since]


def exclude_nodes(install: Path, nodes: str, reason: str, *, days: float | None = None) -> list[Exclusion]:
    """Exclude the nodes of the host list ``nodes`` (``n[1-3],x7``), for ``days`` (None: until they are put back).

    A node on the list gets the new reason and end. The list is written; returns all exclusions in force.

    Raises:
        RequestError: the host list or the number of days is wrong, or there is no reason.
        RecordError: the file cannot be read or written.
    """
    names = _host_names(nodes)
    if not reason.strip() or not reason.isprintable():
        raise RequestError("an exclusion needs a reason, on one line", remedy="for example --reason 'slow NVLink'")
    if days is not None and not 0 < days <= 3650:
        raise RequestError(f"{days} days is not a period to exclude a node for", remedy="a positive number of days")
    now = time.time()
    expires = None if days is None else now + days * 86400
    new = [Exclusion(name, reason.strip(), now, expires) for name in names]

    def added(items: list[Exclusion]) -> list[Exclusion]:
        """Return the list with the new exclusions, without those that have expired."""
        others = [item for item in [*_in_force(items), *_put_back(items)] if item.node not in names]
        return sorted([*others, *new], key=lambda item: item.node)

    change_list(_exclusions_path(install), *_LIST, added)
    return exclusions(install)


def include_nodes(install: Path, nodes: str) -> list[str]:
    """Put nodes back: take them off the list, and forget what runs have shown of them.

    Returns those that were excluded. All are written down as put back now, also those that were not on the list.

    Raises:
        RequestError: the host list cannot be read.
        RecordError: the file cannot be read or written.
    """
    names = _host_names(nodes)
    removed: list[str] = []
    now = time.time()
    back = [Exclusion(name, "put back", now, now) for name in names]

    def without(items: list[Exclusion]) -> list[Exclusion]:
        """Return the list with the nodes put back, without those that have expired; notes which were excluded."""
        in_force = _in_force(items)
        excluded = {item.node for item in in_force}
        removed.extend(name for name in names if name in excluded)
        others = [item for item in [*in_force, *_put_back(items)] if item.node not in names]
        return sorted([*others, *back], key=lambda item: item.node)

    change_list(_exclusions_path(install), *_LIST, without)
    return removed


def _host_names(nodes: str) -> list[str]:
    """Return the names in the host list ``nodes``, at least one.

    Raises:
        RequestError: it cannot be read, names no node, or something that is no node's name
    """
    names = expand(nodes)
    if not names:
        raise RequestError("no node is named", remedy="for example node[01-03]")
    for name in names:
        if not is_node_name(name):
            raise RequestError(f"{name!r} is not the name of a node", remedy="for example node[01-03]")
    return names


def _exclusions_path(install: Path) -> Path:
    """Return the path of the installation's list of excluded nodes."""
    return install / ".llmb" / "exclude.json"
