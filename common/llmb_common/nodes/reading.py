"""From what nodes wrote or said to facts. Anybody may have written it: sizes are bounded, and nothing is believed to be
of the right kind.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.files import read_plain
from llmb_common.base.structs import from_json, from_plain
from llmb_common.nodes.facts import LOOKS, Folder, NodeFacts, Nodes, Peak, field_of
from llmb_common.nodes.nccl import read_nccl_log

FOLDER = "nodes"
"""In a run's folder: ``<host>.json``, ``<host>.nccl.log``, ``<host>.memory.jsonl``."""
_MOST_NODES = 8192
_MOST_OF_A_NODE = 1 << 20
_MOST_OF_PEAKS = 1 << 16
_MOST_SAMPLES = 100

_FOLDER_LOOK = "folder "
"""What the name of a look into a folder begins with."""
_KINDS = {field.name: field.type for field in msgspec.structs.fields(NodeFacts)}


def read_nodes(run_folder: Path) -> Nodes:
    """Return what the nodes of the run in ``run_folder`` recorded about its last start, sorted by the names of
    their files.

    The last start is that of the record that began last; records of earlier ones are left out. Empty where there
    are no records, or no such folder. Never raises: files that cannot be read or are damaged are named in
    ``unreadable``, of whatever start. At most 8192 files are read.
    """
    folder = run_folder / FOLDER
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json") and entry.name[0] != ".")
    except OSError:
        return Nodes()
    read = {name: _read_node(folder / name) for name in names[:_MOST_NODES]}
    nodes = [node for node in read.values() if node]
    # Not those that only an earlier start of the job had: a requeued job runs on others.
    last = max(nodes, key=lambda node: node.started, default=None)
    kept = (node for node in nodes if last and (node.job, node.restart) == (last.job, last.restart))
    unreadable = (name for name, node in read.items() if node is None)
    return Nodes(tuple(kept), tuple(unreadable))


def _read_node(file: Path) -> NodeFacts | None:
    """Return what one node of a run recorded in ``file``, ``NAME.json``, with its log of NCCL and its ranks' peaks
    of GPU memory.

    These two lie beside it, as ``NAME.nccl.log`` and ``NAME.memory.jsonl``, and may be missing. None where ``file``
    cannot be read, is damaged or larger than 1 MiB.
    """
    try:
        content = read_plain(file, _MOST_OF_A_NODE)  # a larger one is cut, and no JSON
        found: NodeFacts = from_plain(json.loads(content, parse_constant=_refuse_constant), NodeFacts)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        return None
    stem = file.with_suffix("")  # not by what the file says: that may lead elsewhere
    return msgspec.structs.replace(
        found,
        nccl=read_nccl_log(stem.with_name(f"{stem.name}.nccl.log")),
        samples=found.samples[:_MOST_SAMPLES],
        peaks=read_peaks(stem.with_name(f"{stem.name}.memory.jsonl"), found.job, found.restart),
    )


def _refuse_constant(word: str) -> None:
    """Refuse ``word``, one of ``NaN``, ``Infinity`` and ``-Infinity``, which Python's JSON parser would take.

    Raises:
        ValueError: always
    """
    raise ValueError(f"{word} is not JSON")


def read_peaks(file: Path, job: str | None, restart: int) -> tuple[Peak, ...]:
    """Return the peaks of GPU memory that the ranks of one start of a run wrote to ``file``, sorted by rank.

    ``file`` has one JSON object (``Peak``) a line; its first 64 KiB are read. The start is that of ``job`` (None:
    without a Slurm job) and ``restart``; others are left out, as are damaged lines and impossible numbers. A rank
    that wrote twice is there twice. Empty: there are none, or the file is missing or cannot be read.
    """
    try:
        lines = read_plain(file, _MOST_OF_PEAKS).splitlines()
    except OSError:
        return ()
    found: list[Peak] = []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(from_json(line, Peak))
    kept = (
        peak for peak in found if (peak.job, peak.restart) == (job, restart) and 0 < peak.allocated <= peak.reserved
    )
    return tuple(sorted(kept, key=lambda peak: peak.rank))


def read_facts(host: str, answer: Mapping[str, Any]) -> NodeFacts:
    """Return the facts in the JSON ``answer`` of a node that was looked at before a job.

    ``host`` is the node's name. ``answer`` has the key ``begun`` (Unix time; 0 without it) and ``looks``: by the
    name of each look (of ``LOOKS``, or ``folder workload`` of the folder ``workload``) an object with ``value``,
    ``error`` or ``hung``, and perhaps ``seconds``. A look that failed or gave unreadable values is in ``errors``,
    one that did not end in ``hung``; its facts are as by default. Unknown looks are ignored, and no ``answer`` is
    refused.
    """
    fields: dict[str, Any] = {}
    folders: dict[str, Folder] = {}
    hung: dict[str, str] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}
    looks = answer.get("looks")
    for name, look in looks.items() if isinstance(looks, dict) else ():
        is_folder = name.startswith(_FOLDER_LOOK)
        if not isinstance(look, dict) or not (is_folder or name in LOOKS):
            continue
        if isinstance(look.get("seconds"), float | int):
            seconds[name] = float(look["seconds"])
        if "value" not in look:
            if "hung" in look:
                hung[name] = str(look["hung"])
            else:
                errors[name] = str(look.get("error"))
            continue
        try:
            value = from_plain(look["value"], Folder if is_folder else _KINDS[field_of(name)])
        except msgspec.ValidationError as error:
            errors[name] = f"unreadable: {error}"
            continue
        if is_folder:
            folders[name.removeprefix(_FOLDER_LOOK)] = value
        else:
            fields[field_of(name)] = value
    begun = answer.get("begun")
    return NodeFacts(
        host,
        begun=float(begun) if isinstance(begun, float | int) else 0.0,
        folders=folders,
        hung=hung,
        errors=errors,
        seconds=seconds,
        **fields,
    )
