"""Which rank this process is: from ``torchrun``'s variables, or else from Slurm's.

The rest of the program, Megatron-Bridge and torch read ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
``MASTER_PORT``, so what Slurm says is written into these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from llmb_train.errors import EngineError

_PORT_BASE = 21_000
"""The job script's. Below Linux's ephemeral range (32768 up), so that an outgoing connection never holds the port."""
_PORT_COUNT = 9_000
_VARIABLES = (("RANK", "LOCAL_RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"))
NOTICE_PREFIX = "LLMB notice: "


@dataclass(frozen=True)
class Rank:
    """This process's place among the job's ranks: its number, how many there are, and where they meet.

    ``find_rank`` makes it from the environment. ``export`` sets torchrun's variables (``RANK``, ``LOCAL_RANK``,
    ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``) to it in the given mapping, in place of what is there, and
    returns None. ``master_port`` is the TCP port at which rank 0 listens.
    """

    rank: int
    """From 0, over all nodes."""
    local_rank: int
    """From 0, on this node."""
    world_size: int
    """Ranks of the whole job."""
    master_addr: str
    """The host of rank 0, at which the ranks meet."""
    master_port: int

    def export(self, environ: MutableMapping[str, str]) -> None:
        """Set torchrun's variables in ``environ`` to this rank's values, in place of what is there.

        They are ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``.
        """
        environ["RANK"] = str(self.rank)
        environ["LOCAL_RANK"] = str(self.local_rank)
        environ["WORLD_SIZE"] = str(self.world_size)
        environ["MASTER_ADDR"] = self.master_addr
        environ["MASTER_PORT"] = str(self.master_port)


def find_rank(environ: Mapping[str, str]) -> Rank:
    """Return this process's place among the job's ranks, by torchrun's variables in ``environ``, else by Slurm's.

    Where ``RANK`` is set, ``RANK``, ``LOCAL_RANK`` and ``WORLD_SIZE`` count, and otherwise ``SLURM_PROCID``,
    ``SLURM_LOCALID`` and ``SLURM_NTASKS``; the two are not mixed. Without ``MASTER_PORT`` the port follows from
    Slurm's job ID, so that it is the same on all ranks; without both it is a fixed one. Rank 0's host is
    ``MASTER_ADDR``, else the first of Slurm's nodes, else, for one rank, this machine. An empty MASTER_ADDR or
    MASTER_PORT counts as not set. ``environ`` is not changed.

    Raises:
        EngineError: neither is set, a variable is missing or no number, the rank is out of range, or nothing names
            rank 0's host
    """
    names = next((names for names in _VARIABLES if names[0] in environ), None)
    if names is None:
        raise EngineError(
            "this process does not know its rank: neither RANK nor SLURM_PROCID is set",
            remedy="start it with torchrun or srun, or set RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 for one rank",
        )
    rank, local_rank, world_size = (_number(environ, name) for name in names)
    if not 0 <= rank < world_size:
        raise EngineError(f"rank {rank} is out of range for a world size of {world_size}")
    port = _PORT_BASE
    if environ.get("MASTER_PORT"):
        port = _number(environ, "MASTER_PORT")
    elif "SLURM_JOB_ID" in environ:
        # All ranks must come to the same port, and two jobs on one node to different ones.
        port += _number(environ, "SLURM_JOB_ID") % _PORT_COUNT
    return Rank(rank, local_rank, world_size, _master_addr(environ, world_size), port)


def first_rank(environ: Mapping[str, str]) -> bool:
    """Return whether this process is rank 0, by torchrun's variable in ``environ``, else Slurm's; without both True.

    Nothing is checked: a value that is no number, or empty, gives False.
    """
    return environ.get("RANK", environ.get("SLURM_PROCID", "0")) == "0"


def notice(text: str) -> None:
    """Print ``LLMB notice: `` and ``text`` to the job's log, on the first rank alone; other ranks print nothing.

    The log is standard output; the first rank is as ``first_rank`` says of this process's environment.
    """
    if first_rank(os.environ):
        print(NOTICE_PREFIX + text, flush=True)


def first_host(hostlist: str) -> str:
    """Return the first host of a Slurm host list: ``n[09-10,12],m1`` -> ``n09``, ``rack[1-2]n[1-2]`` -> ``rack1n1``.

    ``scontrol show hostnames`` would do, but there is no scontrol inside a container. Blanks around the list are
    dropped.

    Raises:
        EngineError: no host can be read from the list, as from an empty one
    """
    first = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", hostlist.strip())
    if first is None:
        raise EngineError(f"cannot read the host list {hostlist!r}")
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group())


def _master_addr(environ: Mapping[str, str], world_size: int) -> str:
    """Return the host of rank 0: MASTER_ADDR, else the first host of Slurm's list, else, for one rank, this machine.

    A variable that is empty counts as not set; this machine is ``127.0.0.1``.

    Raises:
        EngineError: none of the variables is set, and there are several ranks; or Slurm's list cannot be read
    """
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if hosts:
        return first_host(hosts)
    if world_size == 1:
        return "127.0.0.1"
    raise EngineError(
        "the address of rank 0 is unknown: MASTER_ADDR, SLURM_STEP_NODELIST and SLURM_JOB_NODELIST are all unset",
        remedy="set MASTER_ADDR to the host of rank 0",
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    """Return the number, 0 or more, in the environment variable ``name``.

    Raises:
        EngineError: it is not set, or holds anything but one to ten digits
    """
    text = environ.get(name, "")
    if not re.fullmatch("[0-9]{1,10}", text):
        raise EngineError(f"{name} is {text!r}, expected a number", remedy="start the job with torchrun or srun")
    return int(text)
