"""What a campaign's nodes were found to be before it began: ``health.json`` of its folder, and of its pack."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.files import read_json
from llmb_common.base.structs import from_plain
from llmb_common.health.verdicts import Fabric

HEALTH = "health.json"
"""Of a campaign's folder, if its suite asks for that."""


class _Found(msgspec.Struct, frozen=True):
    """What is read of the health check's file; earlier releases wrote no ``fabric`` into it."""

    fabric: tuple[Fabric, ...] = ()


def fabric_of(folder: Path) -> tuple[Fabric, ...]:
    """What was measured between the nodes of the campaign in ``folder``, with its verdict; empty: nothing was.

    Raises:
        RecordError: the file cannot be read, is not JSON, or holds something else
    """
    file = folder / HEALTH
    if not file.exists():
        return ()
    try:
        found: _Found = from_plain(read_json(file), _Found)
    except msgspec.ValidationError as error:
        raise RecordError(
            f"{file} is damaged: {error}", remedy="restore the file, or start the campaign anew"
        ) from error
    return found.fabric
