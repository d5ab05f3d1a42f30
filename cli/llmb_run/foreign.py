"""Options of other programs, as people type them here: what does the same, instead of the nearest name that exists."""

from __future__ import annotations

from collections.abc import Collection

from llmb_common.executors.slurm.options import is_option, option_name
from llmb_common.request.variables import COLUMNS, VARIABLES

_SCALE = "--scale GPUS: tasks and nodes follow from it"
_HERE = {
    **dict.fromkeys(("nodes", "ntasks", "gpus", "num-gpus", "num-nodes", "ntasks-per-node"), _SCALE),
    **dict.fromkeys(("container-image", "container"), "--image IMAGE"),
    **dict.fromkeys(("mounts", "container-mounts"), "--env RUN_CONF_MOUNTS=/SOURCE:/TARGET"),
    **dict.fromkeys(("steps", "num-steps", "iterations"), "--max-steps N"),
    **dict.fromkeys(("model", "recipe"), "-w WORKLOAD -s SIZE"),
    "time": "--time-limit TIME",
    "job-name": "nothing: a job's name holds the run's id",
    "array": "llmb-run submit --repeats N",
}
_STARTING = "--slurm-arg"
"""The commands that have this option take all of these in some form."""


def instead_of(option: str, known: Collection[str], value: str = "VALUE") -> str:
    """What does what ``option`` of another program does with ``value``, in a command with the options ``known``.

    Empty: who knows.
    """
    name = option_name(option).lower()
    if name in ("yes", "y", "assume-yes"):
        return "leave it out: no command of llmb-run asks"
    if _STARTING not in known:
        return ""
    if name in _HERE:
        return _HERE[name]
    if name in COLUMNS.values():
        vary = f"--vary {name}={value}"
        return f"--set {name}={value}" if "," not in value else vary if "--vary" in known else f"llmb-run sweep {vary}"
    variable = name.upper().replace("-", "_")
    if variable in VARIABLES:
        return VARIABLES[variable].option or f"--env {variable}={value}"
    if is_option(name):
        return f"{_STARTING} {name}={value}"
    return ""
