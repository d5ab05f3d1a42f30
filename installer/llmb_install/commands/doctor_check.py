"""One line of ``doctor``'s report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "doubt", "blocks"]


@dataclass(frozen=True)
class DoctorCheck:
    """One line of doctor's report: what was looked at, whether that is good, and what to do if not.

    ``check_line`` makes most of them.
    """

    name: str
    """What was looked at, such as ``GPU partition``."""
    level: Level
    """``ok``; ``doubt``, with which jobs may run; or ``blocks``, with which they cannot."""
    found: str
    """What is there now, for people."""
    remedy: str = ""
    """What to do where it is not ok; else empty."""


def check_line(name: str, bad: object, found: str, remedy: str, level: Level = "blocks") -> DoctorCheck:
    """Return a line of doctor's report: ``ok``, or of the given ``level`` with ``remedy`` where ``bad`` is truthy.

    ``found``, what is there now, is in it in both cases. ``name`` is what was looked at, such as ``GPU partition``.
    """
    return DoctorCheck(name, level if bad else "ok", found, remedy if bad else "")
