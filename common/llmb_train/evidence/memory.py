"""Peak memory of every rank's GPU, a line for each in a file of its node: ``nodes/<host>.memory.jsonl``.

The ranks of a node append without waiting for each other: a line is one write of one process of one machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def peaks(cuda: Any) -> dict[str, int]:
    """What PyTorch's allocator had at most since the process began, in bytes, and what the device has.

    ``cuda`` is ``torch.cuda``. Megatron-Bridge never resets its peaks (0.3.1, 0.6.0).
    """
    _, device = cuda.mem_get_info()
    return {
        "allocated": cuda.max_memory_allocated(),
        "reserved": cuda.max_memory_reserved(),
        "device": device,
    }


def append(file: Path, line: dict[str, Any]) -> None:
    """Add a line to ``file``. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(file, flags, 0o644)
    try:
        os.write(descriptor, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(descriptor)
