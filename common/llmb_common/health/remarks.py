"""What is said of a node."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["fail", "warn", "drift", "unknown"]
"""``fail``: a job would stop there, or its result be wrong. ``warn``: worth a look. ``drift``: unlike most nodes.
``unknown``: could not be found out, which is not the same as healthy."""


class Remark(msgspec.Struct, frozen=True):
    """``check``: its name in ``checks.CHECKS``."""

    check: str
    level: Level
    text: str
