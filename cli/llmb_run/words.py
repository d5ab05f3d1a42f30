"""Words on a command line, and times and spans as a person reads them."""

from __future__ import annotations

import time
from collections.abc import Iterable


def clock(when: float) -> str:
    """Local time of day, with the date unless it is today's."""
    then, now = time.localtime(when), time.localtime()
    form = "%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, then)


def span(seconds: float) -> str:
    """``42 s``, ``7 min``, ``3 h 05 min``, ``4 d 2 h``."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def since(when: float, *, live: bool) -> str:
    """How long something is in its state since ``when``; of what has ended, since when."""
    return span(time.time() - when) if live else clock(when)


def split(values: Iterable[str]) -> list[str]:
    """The values of an option that may be repeated and may hold commas, in order and without duplicates."""
    parts = (part.strip() for value in values for part in value.split(","))
    return list(dict.fromkeys(part for part in parts if part))
