"""Plain values to msgspec structs, from any thread."""

from __future__ import annotations

import json
import threading
from typing import Any

_one_at_a_time = threading.Lock()


def from_plain(value: Any, kind: Any) -> Any:
    """``value`` (dicts, lists, strings, ...) as a ``kind``. Raises msgspec.ValidationError.

    One conversion at a time: msgspec (0.22) builds what it knows of a struct type at its first use, by running Python
    code in the middle of which another thread may begin to use the unfinished result. That ends the process with
    SIGSEGV. A conversion never waits for anything, and threads do not convert side by side in any case.
    """
    import msgspec

    with _one_at_a_time:
        return msgspec.convert(value, kind, strict=True)


def json_text(value: Any) -> bytes:
    """As ``files.write_json`` writes it, several times faster: json's C encoder does not indent."""
    import msgspec

    text: bytes = msgspec.json.format(json.dumps(value, allow_nan=False, ensure_ascii=False).encode(), indent=2)
    return text + b"\n"
