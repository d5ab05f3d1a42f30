"""``data`` of every command's ``--json``: each key and what it is, for ``docs/reference.md``.

``name[]`` is a list of objects, whose own keys are ``name[].key``. The tests hold every JSON that a command prints
against this table (``support.cli``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmb_run.columns import Column, Form
from llmb_run.results.groups import GROUP
from llmb_run.results.run_columns import RUN
from llmb_run.run_json import RUN_KEYS

_LIVE = {
    "live": "whether it can still change",
    "unknown": "why the scheduler could not be asked; null if it was",
    "reason": "why it waits",
    "nodes": "the nodes it has",
    "start": "when it is expected to start, Unix time",
    "step": "the last step of its log",
    "steps": "of so many",
    "step_seconds": "the time of that step",
    "tflops_per_gpu": "of that step, by the log",
    "seconds_left": "about how long it will take",
}
_JOBS = {
    "dry_run": "whether nothing was started",
    "jobs[]": "the jobs of this command: the keys of a run, and",
    "jobs[].job": "what it was asked for, in words",
    "jobs[].error": "why it could not be started",
    "jobs[].script": "with `--dry-run`: the batch script",
    "jobs[].plan": "with `--dry-run`: the plan",
    "jobs[].extras": "checkpoints and profiles of a run that was followed",
    "skipped": "combinations that no recipe supports",
}
_BASELINES = {
    "baselines[]": "the baselines",
    "baselines[].key": "names it, for `baseline remove`",
    "baselines[].title": "its configuration",
    "baselines[].software": "its software",
    "baselines[].runs": "run ids",
    "baselines[].seconds": "steady step time",
    "baselines[].relative_error": "its standard error, as a share",
    "baselines[].setup": "what must be the same for it to count",
    "baselines[].added": "Unix time",
}
_EXCLUDED = {
    "nodes[]": "the excluded nodes",
    "nodes[].node": "host name",
    "nodes[].reason": "as given",
    "nodes[].added": "Unix time",
    "nodes[].expires": "Unix time; null: never",
}
_ARCHIVE = {
    "path": "the file",
    "ok": "whether all is as it was written",
    "files": "how many there are",
    "changed": "files with another content",
    "damaged": "files that cannot be read",
    "missing": "files that are not there",
    "added": "files that nobody wrote",
    "moved": "files in another folder",
    "modes": "files with another mode",
    "notes": "what could not be checked",
}
_PLAN = {
    "plan": "the plan, as `DRY_RUN=json` prints it",
    "sources": "each setting with its value and where it comes from",
    "job_seconds": "the job's length, from and to",
    "gpu_hours": "from and to",
    "watts_per_gpu": "power, and where it is known from",
    "energy_kwh": "from and to",
    "cost": "from and to, in `currency`",
    "currency": "three letters",
    "rank_order": "which dimension varies fastest",
    "groups": "the nodes that each parallel group spans",
    "ranks": "the coordinates of every rank",
}
_HEALTH = {
    "nodes[]": "the nodes that were asked",
    "nodes[].node": "host name",
    "nodes[].status": "the worst of its remarks",
    "nodes[].remarks": "each with check, level, text and remedy",
    "nodes[].facts": "everything that was found out",
    "not_asked": "why each of the others was not",
    "drift": "what differs between nodes",
    "measured": "with `--stress`: what was measured under load",
    "seconds": "how long it took",
    "excluded": "with `--exclude-failed`: the nodes that were excluded",
}

DATA: dict[str, dict[str, str]] = {
    "list": {
        "[]": "a workload",
        "[].workload": "its name",
        "[].recipe": "its folder",
        "[].title": "for people",
        "[].installed": "whether this installation has it",
        "[].sizes": "its sizes",
        "[].variants": "its variants, newest first",
        "[].configurations": "each with size, GPU type, dtype, variant, numbers of GPUs, layouts and step times",
    },
    "plan": _PLAN,
    "single, submit, bulk, retry": _JOBS,
    "sweep": {
        **_JOBS,
        "planned[]": "the combinations that can run",
        "planned[].combination": "the value in each dimension",
        "planned[].plan": "the plan",
        "refused[]": "those that cannot",
        "refused[].combination": "the value in each dimension",
        "refused[].error": "why",
    },
    "repeat": {**_JOBS, "same": "whether nothing differs", "differences": "each with what, then, now and detail"},
    "accept": {
        "schema": "1, the format of this object",
        "suite": "its name",
        "suite_sha256": "of the suite file",
        "campaign": "its id",
        "llmb": "version",
        "folder": "of the campaign",
        "began": "Unix time",
        "dry_run": "whether nothing was started",
        "at_best": "with `--dry-run`: the best outcome that is possible",
        "outcome": "`accepted`, `not accepted` or `not judged`",
        "accepted": "true or false",
        "indication": "whether a reference was of other software",
        "why": "the outcome in words",
        "workloads": "as [Acceptance](columns.md#acceptance); with `--dry-run` each plan, reference and limit",
        "reruns": "each with workload, run and reason",
        "pack": "the evidence pack",
        "pack_sha256": "its digest",
        "signature": "its signature",
        "report": "the HTML report",
    },
    "accept suites": {"suites": "names of the shipped suites", "name": "the suite", "text": "its YAML"},
    "accept verify": {
        **_ARCHIVE,
        "verdict": "judged again: what the pack said, and problems",
        "signature": "its state",
    },
    "accept sign": {"path": "the pack", "signature": "the signature's file"},
    "jobs": {
        "runs[]": "the keys of a run, and",
        "runs[].cause": "why it failed, in a few words",
        "runs[].differing": "what tells it from the other runs listed: `tp=2, NCCL_ALGO=Ring`, or null",
        "runs[].live": "whether it can still change",
        "runs[].step": "the last step of its log",
        "runs[].step_seconds": "the time of that step",
    },
    "show": {
        "record": "`run.json`",
        "nodes": "the nodes it has",
        "reason": "why it waits",
        "start": "when it is expected to start, Unix time",
        "evidence": "what its nodes recorded ([evidence](evidence.md))",
        "straggler": "[whom the others waited for](slow.md#whom-the-others-wait-for)",
        "result": "as in `results`",
        "run_id": "with `--script`: its id",
        "path": "with `--script`: the file",
        "script": "with `--script`: the batch script",
    },
    "why": {
        "runs[]": "the runs",
        "runs[].run": "run id, or path of the log",
        "runs[].status": "of its log",
        "runs[].why": "the diagnosis: cause, remedy, line, rank, node, witnesses; null: it did not fail",
        "runs[].straggler": "with `--slow`: [whom the others waited for](slow.md#whom-the-others-wait-for)",
        "runs[].gap": "with `--slow`: against the published result and this site's best of the same work; what differs",
        "causes": "of many runs: each with kind, count, text and nodes",
        "nodes": "of many runs: how often each node was the cause's",
        "keep_out": "nodes to avoid",
    },
    "wait": {"runs[]": "the keys of a run, and", **{f"runs[].{key}": means for key, means in _LIVE.items()}},
    "cancel": {
        "runs[]": "as in `wait`",
        **{f"runs[].{key}": means for key, means in _LIVE.items()},
        "refused": "each with run and error",
    },
    "results": {
        "runs[]": "the keys of a run, and [Runs](columns.md#runs)",
        "groups[]": "[Configurations](columns.md#configurations)",
        "next": "what to do next: command and reason",
        "boards": "with `--rank`: each model's title, what differs, lines, fastest first, and the fastest's command",
        "scaling": "with `--scaling`: [lines of points](columns.md#scaling)",
        "history": "with `--history`: [configurations over time](columns.md#history)",
        "steps": "with `--iterations`: [steps](columns.md#steps)",
        "alarms": "with `--alarm`: a line for each configuration that became slower",
    },
    "compare": {
        "first": "run ids, how many succeeded, mean step time",
        "second": "likewise",
        "ratio": "mean step time of the second over the first",
        "ratio_low": "lower bound",
        "ratio_high": "upper bound",
        "loss": "the largest relative difference, and at which iteration",
        "unequal_work": "why the two did not do the same work",
        "differences": "each with name, first and second",
    },
    "ab": {
        "schema": "the version of this",
        "folder": "of the campaign",
        "a": "side A, in words",
        "b": "side B",
        "changes": "what B has otherwise, by name",
        "rule": "`resolution` as a share, `most` blocks, `budget` in GPU-hours; null: none",
        "answer": "`faster`, `slower` (B is), `no difference`, `open` or `failed`",
        "why": "why there is no answer; empty where there is one",
        "difference": "B's time against A's, in percent, with its interval over all looks; stalls, noise, drift",
        "per_token": "whether times are for each token and GPU: the sides' steps have other numbers of them",
        "equal_work": "whether it is the same work, by plans and losses",
        "unequal_work": "why a step is not the same work",
        "loss": "the largest relative difference, and at which iteration",
        "gpu_hours": "of all runs",
        "blocks": "each with its number, order, nodes, run ids, whether it counts and was one allocation",
    },
    "tune": {
        "schema": "the version of this",
        "folder": "of the campaign",
        "campaign": "its id, which the keys of its runs hold",
        "dry_run": "true where nothing was started: then only `space` is there",
        "space": "the plan: base, values, how many are legal, chosen from, refused by reason; costs in GPU-hours",
        "base": "the documented job: title and command",
        "winner": "title, what it changes, command, run ids of its whole runs; the base where nothing is faster",
        "ended": "`found`, `unproved`, `nothing faster`, `trials`, `budget` or `base failed`",
        "found": "whether the winner is faster, beyond its interval",
        "gain": "by which share it is faster, of whole runs; null: not proved",
        "gain_low": "lower bound of `gain`",
        "gain_high": "upper bound of `gain`",
        "in_trials": "by which share its steps are shorter, of all trials",
        "bound": "95 %: by which share of the base's step time any configuration of the space may be faster than that",
        "risk": "that another one is faster than the leader by more than `within`",
        "within": "as asked for, as a share",
        "spent_hours": "GPU-hours that its runs held",
        "budget": "GPU-hours; null: no limit",
        "arms": "each configuration that was tried, the fastest first",
        "trials": "every run in the order of their starts",
        "baseline": "key of the baseline that was set",
        "conclusion": "in a sentence",
        "next": "the next command",
    },
    "baseline list, baseline set": _BASELINES,
    "baseline remove": {"removed": "keys"},
    "report": {"files": "which form was written where", "report": "all that the page shows"},
    "archive": {
        "path": "the file",
        "bytes": "its size",
        "runs": "how many it holds",
        "sha256": "of every file in it",
        "left_out": "files that were left out, and why",
    },
    "archive verify": _ARCHIVE,
    "health": _HEALTH,
    "exclude list, exclude add": _EXCLUDED,
    "exclude remove": {"removed": "host names"},
    "rebuild": {"runs": "how many are on record"},
    "llmb-install list": {
        "install_path": "the installation",
        "workloads": "each with title, whether it is installed, its image and whether that is complete",
    },
    "llmb-install install, llmb-install add, llmb-install remove, llmb-install update": {
        "install_path": "the installation",
        "ran": "the steps that were carried out",
        "complete": "true",
        "dry_run": "with `--dry-run`: true",
        "todo": "with `--dry-run`: each step with what it does, downloads and takes",
        "workloads": "after `remove`: those that are left",
        "recorded": "with `--record`: the play file",
    },
    "llmb-install verify": {"install_path": "the installation", "parts": "each part and what is wrong with it"},
    "llmb-install doctor": {"checks": "each with name, status, what was found and what to do"},
    "llmb-install bundle": {
        "bundle": "the folder",
        "schema": "the version of this",
        "llmb": "version",
        "locks": "digest of the clone's locks",
        "platforms": "CPU types",
        "pythons": "versions of Python",
        "engines": "releases of the CPU engine",
        "images": "container images, as recipes name them",
    },
    "llmb-install uninstall": {"install_path": "the folder", "removed": "paths", "stays": "what is left in it"},
}


def unknown_keys(command: str, data: Any) -> list[str]:
    """Keys of the ``data`` that ``command`` printed which are not in the table."""
    documented = next((keys for names, keys in DATA.items() if command in names.split(", ")), None)
    if documented is None:
        return [f"{command}: the command"]
    paths = {*_paths(data, "")}
    told = {path for path in paths if path.partition("[].")[0] in documented}  # a list of small objects, in words
    left = {path for path in paths - told if f"{path}[]" not in documented and not _of_columns(path)}
    return [f"{command}: {path}" for path in sorted(left - documented.keys())]


def _paths(data: Any, path: str) -> Iterator[str]:
    """Keys down to those of objects in a list."""
    if isinstance(data, list):
        for item in data:
            if isinstance(item, Mapping):
                yield from (f"{path}[].{key}" for key in item)
    elif isinstance(data, Mapping):
        for key, value in data.items():
            nested = f"{path}{key}"
            lists = isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
            yield from _paths(value, nested) if lists else (nested,)


def _of_columns(path: str) -> bool:
    """Whether it is a key of a run, or a column of results."""
    stem, _, key = path.rpartition("[].")
    lists: dict[str, tuple[Column[Any], ...]] = {"groups": (*GROUP,), "runs": (*RUN,)}
    columns = {column.key for column in lists.get(stem, ()) if Form.JSON in column.forms}
    return key in columns or (key in RUN_KEYS and stem in ("runs", "jobs"))
