"""Nodes to keep jobs away from: ``$LLMB_INSTALL/.llmb/exclude.json``, with a reason and an end."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from llmb_common.errors import RecordError, RequestError
from llmb_common.files import read_json, write_json
from llmb_common.slurm.hostlist import expand
from llmb_common.structs import from_plain

SCHEMA = 1


class Exclusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``expires``: Unix time from which on the node is used again; None: until it is removed."""

    node: str
    reason: str
    added: float
    expires: float | None


def exclusions(install: Path) -> list[Exclusion]:
    """The exclusions in force now, by node.

    Raises:
        RecordError: the file cannot be read.
    """
    now = time.time()
    return [item for item in _read(install) if item.expires is None or item.expires > now]


def exclude_nodes(install: Path, nodes: str, reason: str, *, days: float | None = None) -> list[Exclusion]:
    """Exclude the host list ``nodes`` (``n[1-3],x7``); a node on the list gets the new reason and end.

    Returns the list in force.

    Raises:
        RequestError: the host list cannot be read, or there is no reason.
    """
    names = _names(nodes)
    if not reason.strip() or not reason.isprintable():
        raise RequestError("an exclusion needs a reason, on one line", remedy="for example --reason 'slow NVLink'")
    if days is not None and not 0 < days <= 3650:
        raise RequestError(f"{days} days is not a period to exclude a node for", remedy="a positive number of days")
    now = time.time()
    expires = None if days is None else now + days * 86400
    kept = {item.node: item for item in exclusions(install)}
    kept |= {name: Exclusion(name, reason.strip(), now, expires) for name in names}
    _write(install, kept)
    return exclusions(install)


def include_nodes(install: Path, nodes: str) -> list[str]:
    """Take nodes off the list, and return those that were on it.

    Raises:
        RequestError: the host list cannot be read.
    """
    kept = {item.node: item for item in exclusions(install)}
    removed = [name for name in _names(nodes) if kept.pop(name, None) is not None]
    _write(install, kept)
    return removed


def _names(nodes: str) -> list[str]:
    names = expand(nodes)
    if not names:
        raise RequestError("no node is named", remedy="for example node[01-03]")
    return names


def _file(install: Path) -> Path:
    return install / ".llmb" / "exclude.json"


def _read(install: Path) -> list[Exclusion]:
    file = _file(install)
    if not file.exists():
        return []
    value = read_json(file)
    try:
        if value["schema"] != SCHEMA:
            raise RecordError(f"{file} has schema {value['schema']}, this version reads {SCHEMA}")
        found: list[Exclusion] = from_plain(value["nodes"], list[Exclusion])
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise RecordError(f"{file} is not an exclusion list: {error}", remedy="correct or remove the file") from error
    return sorted(found, key=lambda item: item.node)


def _write(install: Path, items: dict[str, Exclusion]) -> None:
    nodes = [msgspec.to_builtins(items[name]) for name in sorted(items)]
    _file(install).parent.mkdir(exist_ok=True)
    write_json(_file(install), {"schema": SCHEMA, "nodes": nodes})
