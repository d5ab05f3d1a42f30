"""Which runs a command is about: words that name one, or filters."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from llmb_common.base.errors import LLMBError, RequestError, did_you_mean, result_or_error
from llmb_common.base.notices import notice
from llmb_common.base.printable import counted
from llmb_common.base.run_states import ENDED_STATES, LIVE_STATES
from llmb_common.base.words import span_seconds
from llmb_common.planning.workspace import Workspace
from llmb_common.results.configuration import values_of
from llmb_common.runs.folders import is_ours, refusal
from llmb_common.runs.index.runs import RunFilter, RunRow, round_named
from llmb_common.runs.index.search import find_run, find_runs
from llmb_common.runs.record import RunRecord, load_record
from llmb_run.terminal import split_values


def run_filter(
    workspace: Workspace,
    *,
    workload: Sequence[str] = (),
    size: Sequence[str] = (),
    dtype: Sequence[str] = (),
    scale: Sequence[str] = (),
    state: Sequence[str] = (),
    where: Sequence[str] = (),
    since: str | None = None,
    live: bool | None = None,
    limit: int | None = None,
) -> RunFilter:
    """Return the filter for runs that a command's options describe; several values of one option are alternatives.

    A run must fit all options. An empty list or None filters nothing. Upper and lower case are the same, but for
    values in ``where``.

    Args:
        workspace: knows the recipes
        workload: names of recipes or workloads; each text of this and the next four lists may be several, with
            commas
        size: model sizes (``405b``); whether a recipe has them is not checked
        dtype: as recipes call them (``fp8``), likewise
        scale: numbers of GPUs as text, from 1 to 999999999
        state: names of states, or Slurm's short forms (``states_of``)
        where: ``NAME=VALUE,VALUE``, one of the values in each; records are read for it, and a run whose record
            cannot be read does not fit
        since: a time span such as ``7d`` (``seconds_of``): runs that are no older, as of now
        live: True: runs that have not ended; False: those that have; None: all
        limit: how many runs at most, the newest; None: all

    Raises:
        RequestError: no recipe has the workload, or an option has an impossible value
        ConfigError: a workload is given, and ``cluster_config.yaml`` is wrong or not trusted
        RecipeError: no recipe has the workload, and a recipe's catalogue cannot be read to suggest one
    """
    scales = split_values(scale)
    for text in scales:
        if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
            raise RequestError(f"--scale {text} is not a number of GPUs", remedy="for example --scale 128")
    return RunFilter(
        workloads=tuple(workspace.workload(name).recipe.workload for name in split_values(workload)),
        model_sizes=tuple(name.lower() for name in split_values(size)),
        dtypes=tuple(name.lower() for name in split_values(dtype)),
        gpus=tuple(int(text) for text in scales),
        states=tuple(states_of(state)),
        since=None if since is None else time.time() - seconds_of(since, "--since"),
        fits=_fits_of(where) if where else None,
        live=live,
        limit=limit,
    )


def _fits_of(where: Sequence[str]) -> Callable[[RunRow], bool]:
    """Return a function that says whether a run's job has the values that ``--where`` asks for.

    ``where`` holds ``NAME=VALUE,VALUE``: one of the values is to be the job's, for every NAME. Names and values are
    those that tables of results use, values in the same case; ``-`` fits a job that has no such value, and of a
    path its last part suffices. The function takes a run's row, reads the run's record, and returns False where
    that cannot be read.

    Raises:
        RequestError: a text is not of that form, names nothing that jobs are known by, or names one thing twice
    """
    # Planning is a tenth of what ``jobs`` and ``results`` import, and hardly anybody asks for it.
    from llmb_run.starting.command_line import VARIABLE_OF
    from llmb_run.starting.sweeps import dimensions_of

    called = {"scale": "gpus", "size": "model_size"} | {variable: field for field, variable in VARIABLE_OF.items()}
    wanted = {called.get(name, name): values for name, values in dimensions_of(where, "--where").items()}

    def fits(row: RunRow) -> bool:
        """Return whether the job of the run in ``row`` has a value in ``wanted`` of ``_fits_of`` for each of its names.

        Values are compared as text, in the same case; of a path its last part suffices. A job that lacks a value,
        or a name altogether, has ``-``. False where the run's record, which is read for it, cannot be read.
        """
        record = result_or_error(load_record, row.folder)
        if isinstance(record, LLMBError):
            return False
        environment = {name: item.value for name, item in record.plan.env.items()}
        known = values_of(record.plan) | environment
        for name, values in wanted.items():
            value = known.get(name, "-")
            # An image is also known by its file's name, as tables have it.
            file_name = value.rpartition("/")[2]
            if value not in values and file_name not in values:
                return False
        return True

    return fits


def filters_text(filters: Mapping[str, Any]) -> str:
    """Return the options that runs were chosen by, as text behind a noun: `` size 405b, dtype fp8``.

    ``filters`` are arguments of ``run_filter``, several values as a tuple (a list is written as one value); the
    text has them in the order of this mapping, and begins with a blank. Several values are joined with commas.
    Options that are None, empty or False are left out; empty: there are no others.
    """
    text = ""
    for name, value in filters.items():
        if value:
            values = value if isinstance(value, tuple) else (value,)
            text += f" {name} {','.join(map(str, values))},"
    return text.rstrip(",")


def none_matches(filters: Mapping[str, Any], noun: str = "run") -> str:
    """Return the message that no run matches the filters, without a full stop: ``no run matches size 405b``.

    ``filters`` are arguments of ``run_filter``, several values as a tuple. If all of them are empty, it is
    ``no run has been recorded yet``. ``noun``: another word for run, in the singular.
    """
    return f"no {noun} matches{filters_text(filters)}" if any(filters.values()) else f"no {noun} has been recorded yet"


_SHORT = {
    **{"PD": "PENDING", "R": "RUNNING", "CF": "CONFIGURING", "CG": "COMPLETING", "S": "SUSPENDED", "CD": "COMPLETED"},
    **{"F": "FAILED", "TO": "TIMEOUT", "CA": "CANCELLED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PR": "PREEMPTED"},
}
"""Slurm's short forms of its states, as ``squeue`` prints them."""


def states_of(values: Sequence[str]) -> list[str]:
    """Return the values of ``--state`` as full names of states in capitals (``PENDING``), in order, repeated ones too.

    Values are full names or Slurm's short forms (``PD``), in any case. A value may be a list with commas; blanks
    around its parts do not matter. Empty for no values.

    Raises:
        RequestError: there is no such state
    """
    known = sorted(LIVE_STATES | ENDED_STATES)
    names = [_SHORT.get(name.upper(), name) for name in split_values(values)]
    for name in names:
        if name.upper() not in known:
            raise RequestError(
                f"--state {name} is unknown{did_you_mean(name.upper(), known)}", remedy=f"one of {', '.join(known)}"
            )
    return [name.upper() for name in names]


def seconds_of(text: str, option: str) -> float:
    """Return the time span ``text`` in seconds: a number with s, m, h, d or w (``90m``, ``7d``), or ``HH:MM:SS``.

    The number is whole, of at most six digits; 0 is a span, and a number without a unit is none. Units may be in
    capitals. Days may stand before hours (``1-00:00:00``). Messages name ``option``, such as ``--since``, that it
    comes from.

    Raises:
        RequestError: it is not a time span
    """
    seconds = span_seconds(text)
    if seconds is None:
        raise RequestError(
            f"{option} {text} is not a time span", remedy="a number and s, m, h, d or w: 90m, 2h, 7d; or HH:MM:SS"
        )
    return float(seconds)


def select_rows(workspace: Workspace, words: Sequence[str], wanted: RunFilter, *, others: str = "") -> list[RunRow]:
    """Return the rows of the runs that ``words`` name, in their order and each once.

    A word may be a run id or its beginning, a name, a job id, a folder, or name all jobs of one command
    (``sweep-3f2a9c1e``); then ``wanted`` does not apply, nor ``others``. Of several runs with one name or job id it
    is the newest, this user's before another's. Without words, returns the runs that match ``wanted``, newest
    first, maybe none. States are as the index has them: no scheduler is asked.

    ``others``: what a command does not do with runs of other users unless they are named; they are left out then,
    and a notice on stderr begins with these words. Empty: they are in the answer. ``workspace``: whose installation
    has the runs.

    Raises:
        RequestError: there is no installation, a word names no run, or is the beginning of several run ids
        RecordError: the list of folders outside the installation cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    install = workspace.require_install()
    if words:
        named = list(chain.from_iterable(_runs_of(install, word) for word in words))
        return list({row.folder: row for row in named}.values())
    rows = find_runs(install, wanted)
    chosen = [row for row in rows if not others or is_ours(row.folder)]
    if len(chosen) < len(rows):
        notice(f"{others}: {counted(len(rows) - len(chosen), 'run')} of other users; llmb-run jobs shows all")
    return chosen


def _runs_of(install: Path, word: str) -> list[RunRow]:
    """Return the run that ``word`` names, or all runs that one command started (``sweep-3f2a9c1e``); at least one.

    ``word`` may also be a folder, a name, a run id or its beginning, or a job id; a number is a job id or a whole
    run id, never a beginning. Of several with one name or job id it is the newest, this user's before another's;
    those of a command come newest first. ``install``: the installation's folder.

    Raises:
        RequestError: there is none (code ``no-run``), or the word is the beginning of several run ids
            (``ambiguous``)
        RecordError: the list of folders outside the installation cannot be read
    """
    beginning = round_named(word)
    if not beginning:
        return [find_run(install, word)]
    rows = find_runs(install, RunFilter(round=beginning))
    if not rows:
        raise RequestError(f"no runs of {word!r}", remedy="llmb-run jobs lists the runs", code="no-run")
    return rows


def require_own(folders: Iterable[Path]) -> None:
    """Refuse run ``folders`` of other users, by the owner of the folder, and folders that are no run's.

    A plan in there names programs and mounts, which would be used with our rights. Passes without folders.

    Raises:
        RecordError: one of the folders is another user's (code ``not-yours``), has no record or cannot be opened;
            that of the first such folder
    """
    for folder in folders:
        if problem := refusal(folder):
            raise problem


def load_rows(rows: Sequence[RunRow]) -> tuple[list[RunRecord], list[tuple[str, LLMBError]]]:
    """Return (records, problems): the records of ``rows`` in their order, and what could not be read.

    Raises nothing. The problems, in order too, are pairs of run id (or, without one, name) and error.
    """
    loaded = [(row, result_or_error(load_record, row.folder)) for row in rows]
    records = [item for _, item in loaded if not isinstance(item, LLMBError)]
    problems = [(row.run_id or row.name, item) for row, item in loaded if isinstance(item, LLMBError)]
    return records, problems


def readable_records(rows: Sequence[RunRow]) -> list[RunRecord]:
    """Return the records of those of ``rows`` that can be read, in their order; a notice says why each other cannot."""
    records, problems = load_rows(rows)
    for _, error in problems:
        notice(error.message)
    return records


def one_folder(workspace: Workspace, word: str | None) -> Path:
    """Return the folder of the run that ``word`` names; None: of the newest run of all users.

    ``word`` is a run id or its beginning, a name, a job id or a folder; a number is no beginning of a run id. Of
    several of one name or job id, it is the newest, this user's before another's. The folder need not be this
    user's. ``workspace``: whose installation has the runs.

    Raises:
        RequestError: there is no such run or no installation, or the word is the beginning of several run ids
        RecordError: the list of folders outside the installation cannot be read
        OSError: the folder that the installation is in may not be looked at
    """
    if word is not None:
        return find_run(workspace.require_install(), word).folder
    newest = find_runs(workspace.require_install(), RunFilter(limit=1))
    if not newest:
        raise RequestError(
            "no run has been recorded yet", remedy="llmb-run single starts one; llmb-run list shows what"
        )
    return newest[0].folder
