"""Reading receipts: JSON objects of schema 1; anything else counts as none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmb_common.errors import RecordError
from llmb_common.machine.files import read_json


def read_receipt(path: Path) -> dict[str, Any] | None:
    """The receipt in ``path``; None where it is missing, unreadable or of another schema."""
    try:
        receipt = read_json(path)
    except RecordError:
        return None
    return receipt if isinstance(receipt, dict) and receipt.get("schema") == 1 else None
