"""What may be a value of one line, a name in Slurm, a variable of a job: each rule once.

``cluster_config.yaml``, the documented variables, task files and the installer's answers all ask here. Standard library
only: the installer's bootstrap asks too.
"""

from __future__ import annotations

import re

from llmb_common.secrets import is_secret_name

# Several partitions are a list with commas. Everything that a shell would read otherwise is left out.
_SLURM_NAME = re.compile(r"\w[\w.,:@+/=-]*")

_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_BASH = {"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID", "IFS", "SECONDS", "GROUPS", "DIRSTACK"}
_BASH |= {"BASHPID", "BASH_ENV", "BASH_REMATCH", "FUNCNAME", "LINENO", "OPTIND", "PIPESTATUS", "RANDOM", "_"}
_SCRIPT = {"LLMB_EXPERIMENT", "LLMB_RESUME", "LLMB_RUN_DIR", "MASTER_ADDR"}


def line_problem(text: str) -> str:
    """Why ``text`` is not one line of UTF-8 text, to be put after its name; empty when it is."""
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        return "holds a line break or a control character"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "is not UTF-8 text"
    return ""


def is_slurm_name(text: str) -> bool:
    """Whether ``text`` can name an account or a partition (or several, with commas)."""
    return _SLURM_NAME.fullmatch(text) is not None


def is_variable_name(name: str) -> bool:
    return _VARIABLE.fullmatch(name) is not None


def job_variable_problem(name: str, value: str) -> str:
    """Why a job's environment cannot hold ``name`` with ``value``, beginning with the name; empty when it can.

    The job script's own variables are in lower case, as no program's are, except for ``http_proxy`` and its kin.
    """
    if not is_variable_name(name):
        return f"{name!r} is not a variable name"
    if is_secret_name(name):
        return f"{name} is a secret, and these values stand in every job script"
    if name in _BASH:
        return f"{name} belongs to bash, which runs the job script"
    if name in _SCRIPT or (name.islower() and not name.endswith("_proxy")):
        return f"{name} is set by the job script"
    if problem := line_problem(value):
        return f"{name} {problem}"
    return ""


def mount_problem(path: str, runtime: str) -> str:
    """Why ``path`` cannot be mounted by ``pyxis`` or ``enroot``, to be put after it; empty when it can.

    Both write an fstab: Pyxis (0.24, pyxis_slurmstepd.c) as ``echo "SOURCE TARGET FLAGS"`` in a script that Enroot
    sources, so that bash reads the path; Enroot (4.1.2, runtime.sh) refuses white space, and its static build decodes
    no ``\\040``.
    """
    if "," in path or ":" in path:
        return "holds a comma or a colon, which container mounts cannot say"
    if set(path) & set('$`"\\'):
        return 'holds one of $ ` " \\, which Pyxis would hand to a shell'
    if runtime == "enroot" and any(c.isspace() for c in path):
        return "holds white space, which Enroot refuses in mounts"
    return line_problem(path)


def is_experiment_name(name: object) -> bool:
    """Whether ``name`` can be one: a plain word that stays where it is put, in paths, job names and on a terminal."""
    return isinstance(name, str) and len(name) <= 200 and _EXPERIMENT.match(name) is not None
