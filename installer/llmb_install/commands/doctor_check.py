"""One line of ``doctor``'s report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "doubt", "blocks"]


@dataclass(frozen=True)
class DoctorCheck:
    """One line of the doctor's report; ``remedy`` says what to do where it is not ok."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def check_line(name: str, bad: object, found: str, remedy: str, level: Level = "blocks") -> DoctorCheck:
    """A line of the doctor's report: ``ok``, or the given ``level`` with ``remedy`` where ``bad`` is true."""
    return DoctorCheck(name, level if bad else "ok", found, remedy if bad else "")
