"""What a run's nodes recorded, in short: kept in its record when it ends, read from its folder until then."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec

from llmb_common.base.run_states import is_live
from llmb_common.base.structs import from_plain
from llmb_common.nodes.summary import NodeSummary
from llmb_common.runs.record import RunRecord

KEY = "evidence"
"""In the record's ``manifest["job"]``."""


def make_account(record: RunRecord) -> NodeSummary:
    """Return a summary of what the run's nodes recorded in its folder ``nodes/``, read from there now.

    Where they left no record that can be read, all of it but ``findings`` is as by default. Nothing is written.
    """
    # Here: records of runs that have ended keep it, and all that look at runs would wait for the rules about nodes.
    from llmb_common.nodes.needs import needs_of_run
    from llmb_common.nodes.reading import read_nodes
    from llmb_common.nodes.summarizing import summarize

    return summarize(needs_of_run(record.plan), read_nodes(record.paths.folder))


def account_of(record: RunRecord) -> NodeSummary:
    """Return the summary of what the run's nodes recorded: as kept in the run's record, else as read from its folder.

    The record keeps it since the run ended, under ``evidence`` of the manifest's ``job``. A kept one that is damaged,
    or of a run that is still alive, is not used: the folder is read then. Where the nodes left no record that can be
    read, all of it but ``findings`` is as by default.
    """
    job = record.manifest.get("job")
    kept = job.get(KEY) if isinstance(job, dict) else None
    with contextlib.suppress(msgspec.ValidationError):
        if kept is not None and not is_live(record.state):
            account: NodeSummary = from_plain(kept, NodeSummary)
            return account
    return make_account(record)


def as_json_values(account: object) -> dict[str, Any]:
    """Return a struct, such as a ``NodeSummary``, as the JSON values that reading it from a file would give.

    ``account`` is anything that msgspec encodes as a JSON object. Tuples become lists, and nothing of the result is
    shared with it.
    """
    plain: dict[str, Any] = json.loads(msgspec.json.encode(account))  # lists, as a record that was read has
    return plain
