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
    """One entry of the installation's exclusion list: a node that jobs keep away from, or that was put back.

    ``node`` is the node's name. The list has at most one entry for a node. An entry whose ``expires`` equals
    ``added`` excludes nothing: it says that the node was put back at that time. One whose ``expires`` has passed
    has lapsed. Where one is read, unknown fields are refused, and all are required.
    """

    node: str
    reason: str
    """In the words of whoever excluded the node; "put back" where it was put back."""
    added: float
    """Unix time at which the entry was made."""
    expires: float | None
    """Unix time from which on the node is used again; None: not before it is put back."""


_LIST = ("nodes", Exclusion, "an exclusion list")


def exclusions(install: Path) -> list[Exclusion]:
    """Return the exclusions of the installation ``install`` that are in force now, sorted by node name as text.

    Empty where nothing is excluded, or no list was ever written. Nodes that were put back and lapsed entries are left
    out.

    Raises:
        RecordError: the list cannot be read, is damaged, or was written by another version of LLMB
    """
    return _in_force(read_list(_exclusions_path(install), *_LIST))


def _in_force(items: list[Exclusion]) -> list[Exclusion]:
    """Return those of ``items`` that still exclude a node, sorted by node name; empty: none does.

    They have no end, or one in the future.
    """
    now = time.time()
    in_force = [item for item in items if item.expires is None or item.expires > now]
    return sorted(in_force, key=lambda item: item.node)


def used_again(install: Path) -> dict[str, float]:
    """Return the nodes that were put back in the last ``REMEMBERED_DAYS`` (7), each with the Unix time of that.

    A node that was excluded again since is not among them. Empty where there is none, or no exclusion list was ever
    written.

    Raises:
        RecordError: the list cannot be read, is damaged, or was written by another version of LLMB
    """
    return {item.node: item.added for item in _put_back(read_list(_exclusions_path(install), *_LIST))}


def _put_back(items: list[Exclusion]) -> list[Exclusion]:
    """Return those of ``items``, in their order, that say that a node was put back within the last 7 days.

    Empty: none does.
    """
    since = time.time() - REMEMBERED_DAYS * 86400
    return [item for item in items if item.expires == item.added > since]


def exclude_nodes(install: Path, nodes: str, reason: str, *, days: float | None = None) -> list[Exclusion]:
    """Exclude the nodes of the host list ``nodes`` (``n[1-3],x7``) for ``days`` days (None: until put back).

    ``install`` is the installation's folder, whose exclusion list is changed, or made. Returns all exclusions that
    are then in force, those of other nodes included, sorted by node name. A node that is excluded already, or was
    put back, gets the new reason and end. Blanks around ``reason`` are dropped. Whether there are such nodes is not
    checked.

    Raises:
        RequestError: ``nodes`` names no node or cannot be read, ``reason`` is blank or not one line, or ``days`` is
            not above 0 and at most 3650; nothing is written
        RecordError: the list cannot be read or written, as where there is no folder ``install``, or is locked for
            20 s
        OSError: the list cannot be locked for another reason
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
        """Return ``items``, the list until now, with the enclosing function's new exclusions, sorted by node name.

        They replace earlier entries for the same nodes. Entries that have lapsed are dropped, but for notes that a
        node was put back in the last 7 days. ``items`` stays as it is.
        """
        # Notes of nodes that were put back stay: what runs showed of these before must not count again.
        others = [item for item in [*_in_force(items), *_put_back(items)] if item.node not in names]
        return sorted([*others, *new], key=lambda item: item.node)

    change_list(_exclusions_path(install), *_LIST, added)
    return exclusions(install)


def include_nodes(install: Path, nodes: str) -> list[str]:
    """Put the nodes of the host list ``nodes`` (``n[1-3],x7``) back into use; return those that were excluded so far.

    Changes, or makes, the exclusion list of the installation in folder ``install``: each node, whether it was
    excluded or not, is noted as put back now, so that what earlier runs have shown of it no longer counts. The
    answer has names, in the order of ``nodes``, each once; empty where none of the nodes was excluded.

    Raises:
        RequestError: ``nodes`` names no node or cannot be read; nothing is written
        RecordError: the list cannot be read or written, as where there is no folder ``install``, or is locked for
            20 s
        OSError: the list cannot be locked for another reason
    """
    names = _host_names(nodes)
    removed: list[str] = []
    now = time.time()
    back = [Exclusion(name, "put back", now, now) for name in names]

    def without(items: list[Exclusion]) -> list[Exclusion]:
        """Return ``items``, the list until now, with each of the outer function's nodes put back, sorted by node name.

        Entries that have lapsed are dropped, but for notes that a node was put back in the last 7 days. Also adds
        the nodes that were excluded to ``removed`` of the enclosing function.
        """
        in_force = _in_force(items)
        excluded = {item.node for item in in_force}
        removed.extend(name for name in names if name in excluded)
        others = [item for item in [*in_force, *_put_back(items)] if item.node not in names]
        return sorted([*others, *back], key=lambda item: item.node)

    change_list(_exclusions_path(install), *_LIST, without)
    return removed


def _host_names(nodes: str) -> list[str]:
    """Return the node names in the host list ``nodes`` (``n[1-3],x7``), at least one, in its order, each once.

    Raises:
        RequestError: the host list cannot be read, names no node, or contains a word that is no node name
    """
    names = expand(nodes)
    if not names:
        raise RequestError("no node is named", remedy="for example node[01-03]")
    for name in names:
        if not is_node_name(name):
            raise RequestError(f"{name!r} is not the name of a node", remedy="for example node[01-03]")
    return names


def _exclusions_path(install: Path) -> Path:
    """Return the path of the exclusion list, ``.llmb/exclude.json`` in the installation's folder; it need not exist."""
    return install / ".llmb" / "exclude.json"
