"""What is wrong with answers, wherever they come from: values, contradictions, what is missing, a folder in use.

And the answers of a dialogue that was interrupted, and of the last that ended, in the user's state folder, without
secrets.

Standard library only: the bootstrap reports it before anything is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from llmb_common.base.cluster_types import traits_of
from llmb_common.base.errors import ConfigError, LLMBError, RecordError, RequestError, did_you_mean
from llmb_common.base.files import read_json, write_atomic
from llmb_common.base.printable import first_few
from llmb_common.base.strict_yaml import Lines, load_text
from llmb_install.answers import values
from llmb_install.answers.given import Given, as_words, expand_workloads, uses_images
from llmb_install.answers.questions import BY_FIELD, FIELDS, QUESTIONS, Question, missing_questions
from llmb_install.parts.files import Loader, read_settings
from llmb_install.working.artefact import raise_all

SECRETS = ("hf_token", "ngc_api_key")
"""Keys of a play file that are no answers."""

_MOST_UNKNOWN = 10
"""How many unknown keys a message names: a file that is no play file may have thousands of lines that look like one."""


def read_given(path: Path, also: Collection[str] = (), load: Loader = load_text) -> tuple[Given, Lines]:
    """Return (the unchecked answers in the YAML file ``path`` by field, the line of each key by ``$.key``).

    ``also``: keys that are allowed besides the answers, such as secrets; they are returned among them. ``load``
    (``load_text`` or ``load_flat``) parses the text: it gets that, the path and the class of errors. Keys must be
    spelled in full and in lower case; the message on an unknown one suggests the nearest. Choices may be in any
    case, and are returned in lower case.

    Raises:
        ConfigError: the file is missing or unreadable, is no YAML, is empty, is of a newer release, or has an
            unknown or repeated key; with file and line
        NotFlatError: ``load`` is ``load_flat``, and the file needs a full YAML parser
    """
    data, lines = read_settings(path, load)
    if not data:
        raise ConfigError(
            f"{path}:1: the file is empty",
            remedy="restore it, or remove it and run ./installer.py with the answers again",
        )
    known = {*FIELDS, *also}
    unknown = [
        f"{path}:{lines[f'$.{key}']}: unknown key {key!r}{did_you_mean(key.lower(), known)}"
        for key in data
        if key not in known
    ]
    if unknown:
        more = [f"and {len(unknown) - _MOST_UNKNOWN} more"] if len(unknown) > _MOST_UNKNOWN else []
        raise ConfigError(
            "\n".join([*unknown[:_MOST_UNKNOWN], *more]),
            remedy="remove the key or correct its name; git pull in the clone if a newer release wrote the file",
        )
    return _in_lower_case(data), lines


def _in_lower_case(given: Given) -> Given:
    """Return a copy of ``given`` with the answers to multiple-choice questions in lower case, as recipes spell them.

    ``H100`` becomes ``h100``. Other answers stay, such as names of workloads and what is no choice of its question.
    """
    choices = {question.field: question.choices for question in QUESTIONS if question.choices}
    spelled = dict(given)
    for field, known in choices.items():
        value = given.get(field)
        if isinstance(value, str) and value.lower() in known:
            spelled[field] = value.lower()
    return spelled


def check_answers(
    given: Given,
    workloads: Iterable[str],
    where: str = "",
    lines: Mapping[str, int] | None = None,
    *,
    missing_too: bool = True,
) -> None:
    """Raise unless the answers ``given``, values by field, are complete, possible, and free of contradictions.

    The disk is not looked at. ``workloads`` are the names of those that exist. ``where`` is the file's name ("":
    none) and ``lines`` has its lines by ``$.field`` (None: not known), both for messages. Without ``missing_too``
    an answer may be missing, but for ``cluster_type``, ``gpu_type`` and ``workloads``. Contradictions, unknown
    workloads among them, are looked for only where nothing else is wrong.

    Raises:
        RequestError: the only problem that was found, of code ``missing-answers`` where that is answers that are
            missing, or one error that lists all of them
    """

    def message_start(field: str) -> str:
        """Return how a message on the answer ``field`` begins: ``FILE:LINE: ``, ``FILE: ``, or "" without a file.

        File and lines are those of the enclosing function.
        """
        return place_in(where, (lines or {}).get(f"$.{field}"))

    problems = {
        field: value_problem(known, given.get(field), message_start(field)) for field, known in BY_FIELD.items()
    }
    found = [problem for problem in problems.values() if problem]
    # An impossible answer must not decide which other questions matter.
    possible = {field: value for field, value in given.items() if not problems.get(field)}
    lacking = [question for question in missing_questions(possible) if not problems[question.field]]
    if lacking and missing_too:
        found.append(_missing_answers_error(lacking, where))
    raise_all(found or _contradictions(given, workloads, message_start))


def _contradictions(given: Given, workloads: Iterable[str], at: Callable[[str], str]) -> Iterator[RequestError]:
    """Yield an error for each answer that contradicts another; all must be there, and each possible by itself.

    An answer that does not matter with the others is an error, too, unless it is empty, False, ``none`` or
    ``local``, and so are a container runtime for jobs that use none, images with the ``gpu_type`` ``cpu``, and a
    path that the kind of jobs cannot use. The errors are yielded, not raised. ``workloads`` are those that exist:
    an unknown one is an error. ``at``, called with a field's name, gives the beginning of a message about it.
    """
    name = given["cluster_type"]
    without = not traits_of(name).containers and given.get("runtime") not in (None, "none")
    if without:
        yield RequestError(
            f"{at('runtime')}the {name} executor uses no container, and runtime is {given['runtime']}",
            remedy="choose runtime none, or cluster_type slurm",
        )
    for question in QUESTIONS:
        value = given.get(question.field)
        idle = not question.matters(given) and value not in (None, "", False, "none", "local")
        if idle and not (without and question.field == "runtime"):
            # An answer to a question that does not arise is a mistake, not something to ignore in silence.
            yield RequestError(
                f"{at(question.field)}{question.field} does not matter here: cluster_type is "
                f"{given.get('cluster_type')}, runtime {given.get('runtime') or 'the default'}",
                remedy=f"leave {question.field} out, or correct cluster_type or runtime",
            )
    if uses_images(given) and given["gpu_type"] == "cpu":
        yield RequestError(
            f"{at('gpu_type')}the container images are for GPUs, and gpu_type is cpu",
            remedy="choose runtime none for CPU jobs under Slurm, or the GPU type of the cluster",
        )
    for question in QUESTIONS:
        field = question.field
        if not question.kind.is_path:
            continue
        problem = text_problem(question, str(given.get(field) or ""), given)
        if problem:
            yield RequestError(f"{at(field)}{field}: {problem}", remedy="choose another path")
    try:
        expand_workloads(given["workloads"], workloads, at("workloads"))
    except RequestError as problem:
        yield problem


def place_in(where: str, line: int | None) -> str:
    """Return how a message about the file ``where`` begins: ``FILE:LINE: ``, or ``FILE: `` where ``line`` is None.

    A line 0 counts as None. Empty without a file, which is an empty ``where`` and no line.
    """
    if line:
        return f"{where}:{line}: "
    return f"{where}: " if where else ""


def listed_engines(value: object) -> list[str]:
    """Return the releases of Megatron-Bridge in a list or a comma-separated text, each once, sorted as text.

    ``0.6, 0.3`` gives ``["0.3", "0.6"]``. They are stripped, and empty ones left out; items of a list are not split
    at commas. An empty list for a value of any other kind.
    """
    return sorted(set(as_words(value)))


def value_problem(question: Question, value: object, at: str = "") -> RequestError | None:
    """Return the error of one answer whose type, choice or form is wrong by itself; None: it is right.

    A choice must be in lower case. The error is returned, not raised, and its message begins with ``at``
    (``FILE:LINE: ``, or empty) and the field: ``gpu_type 'h10' is unknown``. None as a ``value`` is no answer, and
    an empty text for a question without choices never wrong. The disk is not looked at.
    """
    problem = ""
    remedy = question.remedy or question.kind.remedy or f"correct {question.field}"
    if value is None:
        return None
    if question.is_switch:
        if not isinstance(value, bool):
            problem = f" is {value!r}, which is neither true nor false"
            remedy = "write true or false, without quotes"
    elif question.choices:
        if value not in question.choices:
            near = did_you_mean(str(value).lower(), question.choices)
            problem = f" {value!r} is unknown{near}"
            remedy = f"use one of {', '.join(question.choices)}"
    elif question.kind.is_list:
        if not isinstance(value, str) and not _is_list_of_text(value):
            problem = f" is {value!r}, which is not a list of texts"
    elif not isinstance(value, str):
        problem = f" is {value!r}, which is not text"
        remedy = question.remedy or "put the value in quotes"
    elif value and (wrong := question.kind.wrong(value)):
        problem = f" is {value!r}, which {wrong}"
    return RequestError(f"{at}{question.field}{problem}", remedy=remedy) if problem else None


def _is_list_of_text(value: object) -> bool:
    """Return whether ``value`` is a list or tuple that holds nothing but strings; True for an empty one.

    False for a string.
    """
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def _missing_answers_error(lacking: list[Question], where: str) -> RequestError:
    """Return the error, code ``missing-answers``, that lists the unanswered questions ``lacking``, one on a line.

    They are in their order, with what each asks and its choices, and named as keys where ``where`` names a play file,
    else as flags. The error is not raised here.
    """
    lines = [(f"{where}: " if where else "") + "more answers are needed to install; missing:"]
    for question in lacking:
        choices = f" [{', '.join(question.choices)}]" if question.choices else ""
        lines.append(f"    {question.field if where else question.flag:18}{question.help}{choices}")
    remedy = "give these flags, give a file with --play FILE, or run it in a terminal to be asked"
    if where:
        remedy = "add them, or give them as flags"
    return RequestError("\n".join(lines), remedy=remedy, code="missing-answers")


def path_problems(given: Given) -> list[RequestError]:
    """Return an error for each answer in ``given`` with a path that cannot be used here; empty where all paths can.

    A folder cannot where it, or the nearest path above it that exists, is no folder, a program where it is missing
    or not executable. In the order of the questions. Looks at the disk and changes nothing. The errors are returned,
    not raised; questions without an answer are skipped.

    Raises:
        RequestError: a path begins with the home of an unknown user
        OSError: a folder above a path is closed to this user
    """
    found = []
    for question in QUESTIONS:
        path = given.get(question.field)
        if path and question.kind.is_path and (problem := question.kind.here(str(path))):
            found.append(RequestError(f"{question.field}: {problem}", remedy=question.kind.remedy))
    return found


def text_problem(question: Question, text: str, given: Given) -> str:
    """Return what is wrong with the typed answer ``text``, by its form and beside the other answers ``given``.

    The result is a clause for a message; empty: nothing is wrong. It begins with ``it`` where a path is wrong or
    the other answers forbid the text (``it contains a colon, ...``), else with a verb:
    ``is not a valid name in Slurm``. What is on disk plays no part, and choices and lists are not checked.
    """
    problem = values.unusable_path(text) if question.kind.is_path else question.kind.wrong(text)
    return problem or question.wrong(text, given)


INTO_USED_FOLDER = "--into-used-folder"

# What may be there before: results of an earlier installation, images that somebody has brought, a site's settings.
_EXPECTED = {"workloads", "images", "cluster_config.yaml", "lost+found", ".snapshot"}
MOST_NAMED = 4
"""How much of what is in a used folder a message names."""


def foreign_entries(install: Path) -> list[str]:
    """Return the names in the folder ``install`` that stand in the way of an installation, sorted; hidden ones, too.

    ``workloads``, ``images``, ``cluster_config.yaml``, ``lost+found`` and ``.snapshot`` do not count. Empty also where
    the folder is missing, is no folder, or holds an installation, even one that was only begun.

    Raises:
        OSError: the folder cannot be listed
    """
    # An installation begins with its lock in there: what else is in the folder is its own, even after a kill.
    if (install / ".llmb").is_dir():
        return []
    try:
        return sorted({path.name for path in install.iterdir()} - _EXPECTED)
    except (FileNotFoundError, NotADirectoryError):
        return []


def require_free_folder(install: Path, *, agreed: bool) -> None:
    """Raise where the folder ``install`` holds things of somebody else, unless the user has ``agreed`` to that.

    A folder is free that is empty, missing or no folder, holds an installation, or only what an installation keeps
    when it is removed, such as results. Nothing is made or changed.

    Raises:
        RequestError: the folder holds other things; the message names up to four of them
        OSError: the folder cannot be listed
    """
    raise_all(used_folder_problems(install, agreed=agreed))


def used_folder_problems(install: Path, *, agreed: bool) -> list[RequestError]:
    """Return the error that the folder ``install`` holds things of somebody else, in a list; empty: it is free.

    Free is one that is empty, missing or no folder, holds an installation, or only what one leaves behind. Empty, too,
    where the user has ``agreed`` to install there all the same. The error is not raised here.

    Raises:
        OSError: the folder cannot be listed
    """
    names = [] if agreed else foreign_entries(install)
    if not names:
        return []
    return [
        RequestError(
            f"install_path: {install} is not empty: it contains {first_few(names, MOST_NAMED)}",
            remedy=f"choose a new or empty directory, or give {INTO_USED_FOLDER} to install there anyway",
        )
    ]


_DRAFT, LAST = "installer-draft.json", "installer-answers.json"


def keep_draft(given: Given, name: str = _DRAFT) -> bool:
    """Write the answers ``given`` as JSON to the file ``name`` in the user's state folder, for this user alone.

    By default that is the draft of an unfinished dialogue. Answers must be JSON values. The folder is made where it
    is missing, and an earlier file is replaced. Returns whether they were written; where they cannot be nothing is
    raised: a home that is full or read-only is no reason to stop an installation.
    """
    path = _draft_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(given, indent=2), mode=0o600)
    except (RecordError, OSError):
        return False
    return True


def raise_together(found: Iterable[LLMBError], given: Given) -> None:
    """Raise the errors in ``found`` as one; return, without a draft, where there is none.

    Before that, ``given``, answers from the command line by field, are saved as a draft, from which the next
    dialogue in a terminal continues; the remedy says so. No draft is written where ``given`` is empty, and one that
    cannot be written is left out.

    Raises:
        LLMBError: the only error of ``found``; of several one that lists them all: a RequestError if the user can
            correct one of them, else an EnvironmentLacks
    """
    problems = list(found)
    more = ""
    if problems and given and keep_draft(given):
        more = "; or go on in a terminal: ./installer.py without flags offers the answers of this attempt"
    raise_all(problems, more)


def finish_draft(given: Given) -> None:
    """Save the answers ``given`` of a finished dialogue for the next one to offer, and remove its draft.

    The next one reads them with ``read_draft(LAST)``. Answers that cannot be saved are dropped without a word, and a
    draft that cannot be removed stays.
    """
    keep_draft(given, LAST)
    with contextlib.suppress(OSError):
        _draft_path(_DRAFT).unlink()


def read_draft(name: str = _DRAFT) -> Given:
    """Return the answers by field that an interrupted dialogue saved; for ``LAST``, the last finished one's.

    ``name`` is that of the file in the user's state folder. Unknown fields, and values that are wrong by
    themselves, are left out. Empty where the file is missing, unreadable or damaged.
    """
    try:
        draft = read_json(_draft_path(name))
    except RecordError:
        return {}
    known = {question.field: question for question in QUESTIONS}
    found = draft.items() if isinstance(draft, dict) else ()
    answers = {field: value for field, value in found if field in known}
    return {field: value for field, value in answers.items() if not value_problem(known[field], value)}


def _draft_path(name: str) -> Path:
    """Return the path of the file ``name`` in the user's state folder of LLMB; nothing is made.

    The folder is ``llmb`` in ``$XDG_STATE_HOME``, or in ``~/.local/state`` where that variable is unset or
    relative. Neither folder nor file need exist.
    """
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "llmb" / name
