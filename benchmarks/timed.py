"""CPU time of child processes, for the other benchmarks: it varies less than wall time on a machine that others use."""

from __future__ import annotations

import resource


def cpu_seconds() -> float:
    """User and system seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
