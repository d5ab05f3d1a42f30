"""What users of Slurm, NVIDIA's own llmb-run and other tools type, and what does that here."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

COMMANDS: dict[str, str] = {
    **dict.fromkeys(("run", "start", "launch", "train", "sbatch", "srun"), "llmb-run single -w WORKLOAD -s SIZE"),
    **dict.fromkeys(("submit-all", "submit_all"), "llmb-run submit -w WORKLOAD --scale all"),
    **dict.fromkeys(("benchmark", "bench"), "llmb-run submit -w WORKLOAD, or llmb-run accept smoke"),
    "exemplar": "llmb-run accept exemplar-h100; the others: llmb-run accept suites",
    **dict.fromkeys(("status", "ps", "ls", "history", "sacct"), "llmb-run jobs; one run: llmb-run show RUN"),
    **dict.fromkeys(("queue", "squeue", "top"), "llmb-run jobs --live"),
    **dict.fromkeys(("monitor", "follow", "progress"), "llmb-run watch"),
    **dict.fromkeys(("log", "tail", "output"), "llmb-run logs RUN"),
    **dict.fromkeys(("info", "describe", "inspect"), "llmb-run show RUN"),
    **dict.fromkeys(("stop", "kill", "scancel", "delete"), "llmb-run cancel RUN"),
    **dict.fromkeys(("result", "summary", "parse", "stats", "metrics"), "llmb-run results"),
    "rank": "llmb-run results --rank",
    **dict.fromkeys(("workloads", "recipes", "models"), "llmb-run list"),
    **dict.fromkeys(("explain", "diagnose", "debug"), "llmb-run why RUN"),
    **dict.fromkeys(("rerun", "restart", "resubmit", "requeue"), "llmb-run retry RUN"),
    **dict.fromkeys(("resume", "continue"), "llmb-run retry RUN --resume"),
    "diff": "llmb-run compare RUN RUN",
    **dict.fromkeys(("check", "validate", "preflight", "nodes"), "llmb-run health; one job: llmb-run plan -w WORKLOAD"),
    **dict.fromkeys(("doctor", "install", "update", "uninstall", "verify", "images"), "llmb-install {name}"),
    **dict.fromkeys(("setup", "config", "configure"), "llmb-install install"),
    **dict.fromkeys(("upgrade", "init"), "llmb-install update; a new installation: ./installer.py"),
    **dict.fromkeys(("rm", "remove", "clean"), "llmb-run cancel RUN; the folder of an ended run is yours to remove"),
    "get": "llmb-run jobs",
    "sinfo": "llmb-run health",
    "export": "llmb-run results --format csv; everything of runs: llmb-run archive",
    "profile": "llmb-run single -w WORKLOAD -s SIZE --profile",
    "test": "llmb-run accept smoke",
    "version": "llmb-run --version",
}
"""A command that llmb-run does not have -> the line that does its work; ``{name}`` is the command itself."""

VERBS: dict[str, str] = {
    **dict.fromkeys(("jobs list", "jobs ls", "jobs all"), "llmb-run jobs"),
    "jobs log": "llmb-run logs RUN",
    "jobs logs": "llmb-run logs RUN",
    "jobs info": "llmb-run show RUN",
    "jobs show": "llmb-run show RUN",
    "jobs cancel": "llmb-run cancel RUN",
    "jobs results": "llmb-run results",
    "results list": "llmb-run results",
    "jobs watch": "llmb-run watch",
    "accept list": "llmb-run accept suites",
    "accept exemplar": "llmb-run accept exemplar-h100; the others: llmb-run accept suites",
    **dict.fromkeys(("baseline show", "baseline ls"), "llmb-run baseline list"),
    "baseline add": "llmb-run baseline set RUN...",
    **dict.fromkeys(("baseline rm", "baseline delete"), "llmb-run baseline remove KEY"),
    **dict.fromkeys(("exclude show", "exclude ls"), "llmb-run exclude list"),
    **dict.fromkeys(("exclude rm", "exclude delete"), "llmb-run exclude remove HOSTS"),
    "watch list": "llmb-run watch",
}
"""A command and a first word that names no run -> the line that does what it asks for."""

_SCALE = "--scale GPUS: tasks and nodes follow from it"
_JOB = {
    **dict.fromkeys(("gpus", "num-gpus"), "--scale GPUS"),
    **dict.fromkeys(("nodes", "ntasks", "num-nodes", "ntasks-per-node", "n", "N"), _SCALE),
    **dict.fromkeys(("container-image", "container"), "--image IMAGE"),
    **dict.fromkeys(("mounts", "container-mounts"), "--env RUN_CONF_MOUNTS=/SOURCE:/TARGET"),
    **dict.fromkeys(("steps", "num-steps", "iterations", "train-iters"), "--max-steps N"),
    **dict.fromkeys(("model", "recipe", "m"), "-w WORKLOAD -s SIZE"),
    **dict.fromkeys(("time", "t", "walltime"), "--time-limit TIME"),
    **dict.fromkeys(("precision", "compute-dtype"), "--dtype DTYPE"),
    **dict.fromkeys(("gpu", "gpu-model", "g"), "--gpu-type TYPE"),
    **dict.fromkeys(("load", "load-dir", "load-checkpoint"), "--env LOAD_CHECKPOINT_PATH=FOLDER"),
    **dict.fromkeys(("file", "f"), "llmb-run bulk FILE"),
    **dict.fromkeys(("r", "repeats", "repeat", "array"), "llmb-run submit --repeats N"),
}
"""An option of another program, without its dashes -> what does that for a job; with dashes first, only in a command
that has such an option."""
_SHOWN: dict[str, tuple[str, ...]] = {
    "csv": ("--format csv", "--json"),
    **dict.fromkeys(("report csv", "report format csv"), ("llmb-run results --format csv",)),
    "format": ("--html FILE", "--json"),
    "format json": ("--json",),
    **dict.fromkeys(("format markdown", "format md"), ("--markdown -", "--json")),
    **dict.fromkeys(("format junit", "format xml"), ("--junit -", "--json")),
    "pdf": ("--html FILE, a page to print from a browser",),
    **dict.fromkeys(("output", "o", "out", "file"), ("--html FILE", "what follows the command: ... > FILE")),
    **dict.fromkeys(("tail", "lines", "n", "head", "last", "top"), ("--lines N", "--limit N")),
    **dict.fromkeys(("latest", "newest", "recent"), ("--limit 1",)),
    **dict.fromkeys(("running", "active"), ("--live", "--state RUNNING")),
    "failed": ("--state FAILED", "llmb-run jobs --state FAILED, then llmb-run {command} RUN..."),
    **dict.fromkeys(("a", "all"), ("--all", "--gpu-type TYPE: all for that type", "leave it out: everything is shown")),
    **dict.fromkeys(("user", "u", "mine", "me"), ("leave it out; cancel --all ends only your own runs",)),
    **dict.fromkeys(("gpu", "gpu-model", "g"), ("--gpu-type TYPE",)),
    **dict.fromkeys(("model", "recipe", "m"), ("-w WORKLOAD -s SIZE",)),
    **dict.fromkeys(("run", "job", "job-id", "id", "j"), ("the run as a word of its own: llmb-run {command} RUN",)),
    **dict.fromkeys(("interval", "refresh"), ("leave it out: the screen renews itself",)),
}
"""The same for commands that show something: the first whose option the command has. Before the option may stand its
command, behind it its value; such entries come before those of the option alone."""
_EVERYWHERE = {
    **dict.fromkeys(("V", "v"), "llmb-run --version"),
    **dict.fromkeys(("install", "install-path", "config", "c"), "export LLMB_INSTALL=/path/to/installation"),
}
"""The same before any command."""
_NO_DRY_RUN = "it has no dry run: without the option it acts"
ACTING: dict[str, str] = {
    "retry": "retry starts the run again; llmb-run retry RUN --check starts nothing, and shows what has changed",
    "cancel": "cancel cancels; llmb-run jobs RUN shows the run",
    **dict.fromkeys(("health", "archive", "rebuild"), _NO_DRY_RUN),
    **dict.fromkeys(("baseline", "baseline set", "baseline remove"), _NO_DRY_RUN),
    **dict.fromkeys(("exclude", "exclude add", "exclude remove"), _NO_DRY_RUN),
}
"""A command that starts, changes or deletes something and has no ``--dry-run`` -> what to answer whoever asks for one.
All others without that option only show something. Where a verb acts, its command has an entry, too."""
_STARTING = "--slurm-arg"
"""The commands that have this option take jobs, and so most of the options of jobs in some form."""


def command_instead(name: str) -> str:
    """Return the command line that does what the command ``name`` of another program does.

    Of ``squeue`` it is ``llmb-run jobs --live``. Upper and lower case are the same. It may have words to fill in
    (``RUN``) and alternatives behind ``;`` or a comma. Empty: none is known.
    """
    return COMMANDS.get(name.lower(), "").format(name=name)


def verb_instead(verb: str) -> str:
    """Return the command line meant by ``verb``, a command and a word that names no run.

    Of ``jobs list`` it is ``llmb-run jobs``. One blank is between the two words. Upper and lower case are the same.
    The line may have words to fill in (``RUN``). Empty: none is known.
    """
    return VERBS.get(verb.lower(), "")


def model_instead(word: str) -> str:
    """Return which workloads come near ``word``, a model's name, as a remedy for a command line with it.

    A clause without a period. Empty where none comes near, or ``word`` has no digit. Reads the installation that
    the environment names.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RequestError: ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a path
        RecipeError: a recipe's catalogue cannot be read
    """
    from llmb_common.planning.workspace import Workspace

    return Workspace().nearest_model(word) if any(letter.isdigit() for letter in word) else ""


def option_instead(command: str, option: str, known: Collection[str], arguments: Sequence[str]) -> str:
    """Return what to type in place of ``option``, which another program has and this command has not, as a remedy.

    Empty where nothing is known. The text is an option with its value (``--scale GPUS``), a command line, or a fragment
    such as ``leave it out: ...``. In a command that starts no job, options of jobs are not known.

    Args:
        command: the command that was given the option; empty: it stands before any command
        option: as it was given, with its dashes, without a value
        known: the options that ``command`` has, with their dashes
        arguments: the command line, from which the option's value is taken; ``VALUE`` stands for one that is missing
    """
    from llmb_common.base.removed import OPTIONS
    from llmb_common.executors.slurm.options import option_name

    short = option.lstrip("-")
    if option in OPTIONS.get(command, {}):
        return OPTIONS[command][option]
    name = option_name(option).lower()
    if not command:
        return _EVERYWHERE.get(short, "")
    if name in ("dry-run", "dry_run"):
        return "--dry-run" if "--dry-run" in known else ACTING.get(command, "leave it out: nothing is started")
    if short in ("v", "verbose", "debug", "quiet"):
        return "leave it out: nothing is kept back; llmb-run logs RUN has all that a job printed"
    if name in ("yes", "y", "assume-yes"):
        return "leave it out: no command of llmb-run asks"
    value = option_value(option, arguments)
    if _STARTING not in known:
        return _option_instead_without_jobs(command, short, name, value.lower(), known)
    return _job_option_instead(short, name, value, known)


def _option_instead_without_jobs(command: str, short: str, name: str, value: str, known: Collection[str]) -> str:
    """Return what to type in place of an option, as ``option_instead`` does, in a ``command`` that starts no job.

    ``short`` is the option without its dashes, ``name`` its long name, ``value`` its value, both in lower case.
    """
    with_value = f"{name} {value}"
    keys = (f"{command} {with_value}", with_value, f"{command} {name}", short, name)
    lines = next((_SHOWN[key] for key in keys if key in _SHOWN), ())
    possible = [line for line in lines if _only_if_known(line, known)]
    if command in ACTING:
        possible = [line for line in possible if not line.startswith("leave it out:")]
    if not possible and short == "n" and command == "watch":
        return "leave it out: the screen renews itself"
    return possible[0].format(command=command) if possible else ""


def _job_option_instead(short: str, name: str, value: str, known: Collection[str]) -> str:
    """Return what to type in place of an option of jobs, as ``option_instead`` does, in a command that starts them.

    ``short`` is the option without its dashes, ``name`` its long name in lower case, ``value`` its value.
    """
    from llmb_common.executors.slurm.options import is_option
    from llmb_common.planning.request.variables import COLUMNS, VARIABLES

    for key in (short, name):
        if key in _JOB:
            return _only_if_known(_JOB[key].replace("FOLDER", value), known)
    name = column_named(name) or name
    if name in COLUMNS.values():
        if "," not in value:
            return f"--set {name}={value}"
        vary = f"--vary {name}={value}"
        return vary if "--vary" in known else f"llmb-run sweep {vary}"
    variable = name.upper().replace("-", "_")
    if variable in VARIABLES:
        return _only_if_known(VARIABLES[variable].option or f"--env {variable}={value}", known)
    if is_option(name):
        return f"{_STARTING} {name}={value}"
    return ""


def column_named(name: str) -> str | None:
    """Return the plan's column that Megatron calls ``name``: ``tp`` of ``tensor_model_parallel_size``.

    Dashes in the name are allowed, in place of ``_``, and capitals. None: Megatron's name is of no column.
    """
    from llmb_common.planning.settings import COLUMNS_OF

    plain = name.lower().replace("-", "_")
    return next((column for field, column in COLUMNS_OF.items() if field.rpartition(".")[2] == plain), None)


def _only_if_known(text: str, known: Collection[str]) -> str:
    """Return the remedy ``text``, or an empty text where it begins with an option that is not among ``known``.

    Such an option is ``--scale GPUS``: what counts is its first word, if that begins with two dashes.
    """
    option = text.partition(" ")[0].rstrip(":,")
    return "" if option.startswith("--") and option not in known else text


def option_value(option: str, arguments: Sequence[str], missing: str = "VALUE") -> str:
    """Return the value given with ``option`` on the command line, as the word behind it or after ``=``.

    ``option`` has its dashes; ``arguments`` are the whole line's words. Of several, the first. A word behind it that
    begins with ``-`` is no value, and the search goes on. Where there is none, it is ``missing``, a placeholder for the
    user; what follows ``=`` may be empty.
    """
    for word, following in itertools.pairwise([*arguments, "-"]):
        if word == option and not following.startswith("-"):
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return missing
