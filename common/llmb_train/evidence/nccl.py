"""NCCL's own account of the network that it chose, from one rank of each node."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

SUBSYSTEMS = "INIT,ENV"
"""INIT has the version, the adapters and the transport of every channel ("via NET/IB/0/GDRDMA"); ENV what it read of
the environment. Both are printed while communicators are made and connected; a collective that runs prints in COLL
(NCCL 2.26 to 2.29: src/transport/net.cc, p2p.cc, shm.cc, nvls.cc, init.cc; the level is compared before anything is
formatted, src/include/debug.h: INFO)."""


def write_log(environ: MutableMapping[str, str], file: Path) -> str | None:
    """Have NCCL, which reads ``environ`` when it is first used, write to ``file``; or say why not."""
    taken = [name for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS") if environ.get(name)]
    if taken:
        return f"{', '.join(taken)} set by the job: NCCL's messages go where that says"
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = SUBSYSTEMS
    environ["NCCL_DEBUG_FILE"] = str(file).replace("%", "%%")  # %h and %p are filled in by NCCL
    return None
