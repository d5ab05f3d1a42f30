"""A suite: the workloads of an acceptance campaign, in the words of a task file, and what each must reach.

::

    name: h100-128
    health: true                      # before all: look at the nodes (llmb-run health), and leave out those that fail
    prescreen:                        # first; a failure or a problem of a node ends the campaign
      - {workload: pretrain_llama3.1, size: 8b, scale: 128, max_steps: 10}
    defaults:                         # for every test that does not say otherwise
      gpu_type: h100
      scale: 128
      required: 0.95                  # of the reference's performance, to be exceeded
      repeats: 3                      # runs before the first verdict
      reruns: 12                      # how many more may be added, for whatever reason
    tests:
      - workload: pretrain_llama3.1
        size: [8b, 70b]               # a list is a sweep, as in a task file
        dtype: [fp8, bf16]
      - workload: pretrain_grok1
        reference: {seconds: 12.5, source: contract 4711}
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from llmb_common.decoding.strict_yaml import read_text
from llmb_common.errors import ConfigError, did_you_mean
from llmb_common.results.sequential import REPEATS, REQUIRED, RERUNS
from llmb_run.acceptance.shipped import suites
from llmb_run.place import Place
from llmb_run.starting.requests import Ask
from llmb_run.starting.task_files import At, Sweep, Task, asks_of_task, read_content

T = TypeVar("T")

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Few = Annotated[int, msgspec.Meta(ge=1, le=100)]
Reruns = Annotated[int, msgspec.Meta(ge=0, le=100)]


class Stated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reference that the suite itself states, of a contract for instance."""

    seconds: Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


Wanted: TypeAlias = Literal["required", "optional", "none"]
"""``required``: the site's baseline or a published result, without which the suite is refused. ``optional``: where
there is none, it is enough that the runs succeed. ``none``: that is enough in any case."""


class Defaults(Sweep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    repeats: Few | None = None
    reruns: Reruns | None = None
    required: Share | None = None
    reference: Wanted | Stated | None = None


class SuiteTest(Task, frozen=True, kw_only=True, forbid_unknown_fields=True):
    repeats: Few | None = None
    reruns: Reruns | None = None
    required: Share | None = None
    reference: Wanted | Stated | None = None


class SuiteFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
    tests: tuple[SuiteTest, ...]
    defaults: Defaults = Defaults()
    health: bool = False
    prescreen: tuple[SuiteTest, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One workload: what to run, how often, and what it must reach. ``where`` is file and line of the suite."""

    ask: Ask
    where: str
    repeats: int
    reruns: int
    required: float
    reference: Wanted | Stated
    prescreen: bool = False


@dataclass(frozen=True)
class Suite:
    """A suite, complete; the pre-screen's tests come first. ``path`` is absolute, or a name of ``shipped.suites``."""

    path: Path
    name: str
    text: str
    tests: tuple[Entry, ...]
    health: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def find_suite(word: str) -> tuple[Path, str]:
    """The suite that ``word`` names, a path or the name of one that comes with LLMB: its ``Suite.path``, and its text.

    Raises:
        ConfigError: there is none, or it cannot be read
    """
    path = Path(word)
    if path.is_file():
        return path.resolve(), read_text(path)
    known = suites()
    if word in known:
        return path, known[word]
    raise ConfigError(
        f"there is no suite {word}{did_you_mean(word, known)}",
        remedy=f"the path of a suite file, or one of {', '.join(known)}",
        code="unknown-suite",
    )


def read_suite(path: Path, text: str, place: Place) -> Suite:
    """The suite ``text``, which was read from ``path``.

    Raises:
        ConfigError: something in it is wrong; with file and line
    """
    content, at = read_content(text, str(path), SuiteFile)
    tests = [test for found in _entries(content, at) for test in _swept(*found, content.defaults, place, at)]
    return Suite(path, content.name, text, tuple(tests), content.health)


def terms(text: str, name: str) -> list[Entry]:
    """What the suite ``text`` demands of each of its tests, one for each, however many workloads it sweeps over.

    Raises:
        ConfigError: something in it is wrong; with ``name`` and line
    """
    return [entry for entry, _, _ in _entries(*read_content(text, name, SuiteFile))]


def _entries(content: SuiteFile, at: At) -> list[tuple[Entry, SuiteTest, str]]:
    """Each test with what it demands, and its path in the file."""
    sections = (("prescreen", content.prescreen), ("tests", content.tests))
    return [
        (_entry(item, content.defaults, at(path), section == "prescreen"), item, path)
        for section, items in sections
        for number, item in enumerate(items)
        if (path := f"$.{section}[{number}]")
    ]


def _entry(item: SuiteTest, defaults: Defaults, where: str, prescreen: bool) -> Entry:
    # What the tests must reach is nothing to the pre-screen: it only has to run.
    other = Defaults(repeats=1, reruns=1, reference="none") if prescreen else defaults
    return Entry(
        ask=Ask(workload=""),
        where=where,
        repeats=_said(item.repeats, other.repeats, REPEATS),
        reruns=_said(item.reruns, other.reruns, RERUNS),
        required=_said(item.required, other.required, REQUIRED),
        reference=_said(item.reference, other.reference, "required"),
        prescreen=prescreen,
    )


def _swept(entry: Entry, item: SuiteTest, path: str, defaults: Defaults, place: Place, at: At) -> list[Entry]:
    """Every workload of one test."""
    asks = [ask for ask in asks_of_task(item, defaults, place, path, at) if ask.repeat == 1]
    if any(ask.profile for ask in asks):
        raise ConfigError(f"{entry.where}: a profiled run is slower, and proves nothing", remedy="leave profile out")
    return [replace(entry, ask=ask) for ask in asks]


def _said(own: T | None, default: T | None, otherwise: T) -> T:
    return own if own is not None else default if default is not None else otherwise
