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
    """The answers in a file as plain data, by field, and the line of each key by ``$.key``. Values are not checked.

    ``also``: keys that are allowed in it besides, such as secrets; they are returned, too. ``load`` parses the text.

    Raises:
        ConfigError: it cannot be read, is empty, is of a newer release, or has an unknown key (with file and line).
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
    return data, lines


def check_answers(
    given: Given,
    workloads: Iterable[str],
    where: str = "",
    lines: Mapping[str, int] | None = None,
    *,
    missing_too: bool = True,
) -> None:
    """Refuse answers if one is missing, impossible or unknown, or contradicts another.

    ``workloads`` are those that exist; ``where`` is the file's name, ``lines`` its lines by ``$.field``. Without
    ``missing_too`` an answer that is not there is no problem. Contradictions are looked for only where each answer by
    itself is right.

    Raises:
        RequestError: one error with everything that was found.
    """

    def message_start(field: str) -> str:
        """How a message about ``field`` begins: ``FILE:LINE: `` or ``FILE: ``; empty where the answers come from no
        file.
        """
        return place_in(where, (lines or {}).get(f"$.{field}"))

    problems = {
        field: value_problem(known, given.get(field), message_start(field)) for field, known in BY_FIELD.items()
    }
    found = [problem for problem in problems.values() if problem]
    possible = {field: value for field, value in given.items() if not problems.get(field)}
    lacking = [question for question in missing_questions(possible) if not problems[question.field]]
    if lacking and missing_too:
        found.append(_missing_answers_error(lacking, where))
    raise_all(found or _contradictions(given, workloads, message_start))


def _contradictions(given: Given, workloads: Iterable[str], at: Callable[[str], str]) -> Iterator[RequestError]:
    """Yields what contradicts itself among answers that are all there, each of them possible by itself.

    ``workloads`` are those that exist. ``at`` gives the beginning of a message about a field.
    """
    name = str(given["cluster_type"]).lower()
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
    if uses_images(given) and given["gpu_type"].lower() == "cpu":
        yield RequestError(
            f"{at('gpu_type')}the container images are for GPUs, and gpu_type is cpu",
            remedy="choose runtime none for CPU jobs under Slurm, or the GPU type of the cluster",
        )
    for question in QUESTIONS:
        field = question.field
        if question.kind.is_path and (problem := text_problem(question, str(given.get(field) or ""), given)):
            yield RequestError(f"{at(field)}{field}: {problem}", remedy="choose another path")
    try:
        expand_workloads(given["workloads"], workloads, at("workloads"))
    except RequestError as problem:
        yield problem


def place_in(where: str, line: int | None) -> str:
    """What a message about a line of the file ``where`` begins with; empty where there is no file."""
    if line:
        return f"{where}:{line}: "
    return f"{where}: " if where else ""


def listed_engines(value: object) -> list[str]:
    """The releases of Megatron-Bridge in a list, or in text with commas: sorted, each once; empty for anything else."""
    return sorted(set(as_words(value)))


def value_problem(question: Question, value: object, at: str = "") -> RequestError | None:
    """What is wrong with the type, the choice or the form of one answer, whatever the others are; None: nothing.

    None as a ``value`` is no answer, and never wrong. The message begins with ``at``. The error is returned, not
    raised.
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
        if str(value).lower() not in question.choices:
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
    """Whether ``value`` is a list or tuple of texts; an empty one is."""
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def _missing_answers_error(lacking: list[Question], where: str) -> RequestError:
    """The error, code ``missing-answers``, that lists the questions without an answer, one on a line.

    They are named as keys where ``where`` names a play file, else as flags.
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
    """The errors of answers that name a path which cannot be used on this machine; empty where all can.

    Looks at the disk and changes nothing.
    """
    found = []
    for question in QUESTIONS:
        path = given.get(question.field)
        if path and question.kind.is_path and (problem := question.kind.here(str(path))):
            found.append(RequestError(f"{question.field}: {problem}", remedy=question.kind.remedy))
    return found


def text_problem(question: Question, text: str, given: Given) -> str:
    """What is wrong with the typed answer ``text``, by its form and beside the other answers ``given``.

    Empty: nothing. What is on disk plays no part.
    """
    problem = values.unusable_path(text) if question.kind.is_path else question.kind.wrong(text)
    return problem or question.wrong(text, given)


INTO_USED_FOLDER = "--into-used-folder"

# What may be there before: results of an earlier installation, images that somebody has brought, a site's settings.
_EXPECTED = {"workloads", "images", "cluster_config.yaml", "lost+found", ".snapshot"}
MOST_NAMED = 4
"""How much of what is in a used folder a message names."""


def foreign_entries(install: Path) -> list[str]:
    """The names in the folder ``install`` that no installation put there, sorted; empty where the folder is missing.

    Empty also where an installation was begun there before. Results, images and settings of a site do not count.
    """
    if (install / ".llmb").is_dir():
        return []
    try:
        return sorted({path.name for path in install.iterdir()} - _EXPECTED)
    except (FileNotFoundError, NotADirectoryError):
        return []


def require_free_folder(install: Path, *, agreed: bool) -> None:
    """Refuse to install into the folder ``install`` where it holds things of somebody else, unless that is
    ``agreed``.

    A folder that is empty, missing, or has an installation is free.

    Raises:
        RequestError: it holds other things; names some of them.
    """
    raise_all(used_folder_problems(install, agreed=agreed))


def used_folder_problems(install: Path, *, agreed: bool) -> list[RequestError]:
    """The error that the folder ``install`` holds things of somebody else, in a list; empty where it does not.

    Empty, too, where the user has ``agreed`` to install there all the same.
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
    """Write the answers ``given`` to the user's state folder as the file ``name``, readable by this user alone.

    Returns whether they were written: a home that is full or read-only is no reason to stop an installation.
    """
    path = _draft_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(given, indent=2), mode=0o600)
    except (RecordError, OSError):
        return False
    return True


def raise_together(found: Iterable[LLMBError], given: Given) -> None:
    """Raise the errors in ``found`` as one; returns where there is none.

    Before that, the answers ``given`` on the command line are written as a draft, with which the next dialogue in a
    terminal continues, and the remedy says so. Nothing is kept where there are none or the file cannot be written.

    Raises:
        LLMBError: the only error of ``found``, or one that lists them all.
    """
    problems = list(found)
    more = ""
    if problems and given and keep_draft(given):
        more = "; or go on in a terminal: ./installer.py without flags offers the answers of this attempt"
    raise_all(problems, more)


def finish_draft(given: Given) -> None:
    """Note that a dialogue has ended with the answers ``given``: they are saved as what the next one offers.

    The draft of the dialogue is removed. Answers that cannot be saved are given up without a word.
    """
    keep_draft(given, LAST)
    with contextlib.suppress(OSError):
        _draft_path(_DRAFT).unlink()


def read_draft(name: str = _DRAFT) -> Given:
    """The answers saved by a dialogue that was interrupted, or, for ``LAST``, by the last that ended.

    Answers that are not possible by themselves are left out. Empty where there are none or they cannot be read.
    """
    try:
        draft = read_json(_draft_path(name))
    except RecordError:
        return {}
    known = {question.field: question for question in QUESTIONS}
    found = draft.items() if isinstance(draft, dict) else ()
    return {field: value for field, value in found if field in known and not value_problem(known[field], value)}


def _draft_path(name: str) -> Path:
    """The path of the user's file ``name`` in LLMB's state folder: ``$XDG_STATE_HOME/llmb`` or
    ``~/.local/state/llmb``.

    A relative ``XDG_STATE_HOME`` does not count. Makes neither.
    """
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "llmb" / name
