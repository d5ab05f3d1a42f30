"""What a campaign's nodes were found to be before it began: ``health.json`` of its folder, and of its pack."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmb_common.base.files import read_json
from llmb_common.base.structs import from_plain
from llmb_common.health.verdicts import Fabric

HEALTH = "health.json"
"""Of a campaign's folder, if its suite asks for that."""


class _Found(msgspec.Struct, frozen=True):
    """What is read of it; an earlier release had no ``fabric``."""

    fabric: tuple[Fabric, ...] = ()


def fabric_of(folder: Path) -> tuple[Fabric, ...]:
    """What was measured between the nodes of the campaign in ``folder``. Empty: nothing was.

    Raises:
        RecordError: the file is damaged
    """
    file = folder / HEALTH
    if not file.exists():
        return ()
    found: _Found = from_plain(read_json(file), _Found)
    return found.fabric
