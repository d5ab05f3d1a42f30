"""What a report keeps of each run: there may be thousands, so their records, logs and verdicts are read and let go."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb_common.base.files import user_name
from llmb_common.base.printable import printable
from llmb_common.measured.run import MeasuredRun, explain, recorded
from llmb_common.planning.job_plan import JobPlan
from llmb_common.results.configuration import title_of
from llmb_common.results.history import Observed, history_facts
from llmb_common.runs.record import RunRecord

_AT_ONCE = 500
"""Runs whose records are held at the same time."""


@dataclass(frozen=True, eq=False, slots=True)
class SeenRun:
    """What a report keeps in memory of a run that LLMB recorded. Two are equal only where they are the same object.

    ``seen_runs`` makes it. Texts and facts that many runs share are held once. ``plan`` is the run's, and stays
    when its record is dropped; ``title`` is the configuration's; ``started`` Unix time; ``day`` the day of the run,
    which begins at six in the morning, as YYYY-MM-DD; ``hosts`` the names of its nodes; ``gpus`` what its nodes
    reported of theirs, such as ``8 H100``; ``driver``, ``cuda`` and ``nccl`` are versions; ``owner`` is a login
    name. An empty text: not known. The property ``run_id`` is its id, the property ``observed`` the run as the
    history of its configuration takes it; None: it has no step time to compare; ``RecordError``, ``RecipeError`` or
    ``ConfigError`` where its record or configuration cannot be read.
    """

    run: MeasuredRun
    plan: JobPlan
    title: str
    started: float
    day: str
    facts: Mapping[str, str]
    """What may explain the run's speed, but for its nodes, by name, as ``history_facts`` makes it."""
    hosts: tuple[str, ...]
    gpus: str
    driver: str
    cuda: str
    nccl: str
    problems: tuple[str, ...]
    """Sentences on what the run's nodes have shown that speaks against its result."""
    host: str
    """The host from which the run was submitted."""
    owner: str
    queue: str
    """The queue's name behind the scheduler's word for it: ``partition batch``."""
    cause: str
    """Why the run failed, in short; empty where that is not known, and for a run that did not fail."""

    @property
    def run_id(self) -> str:
        """The run's id, eight hexadecimal digits."""
        return self.run.run_id

    @property
    def observed(self) -> Observed | None:
        """The run's place in the history of its configuration; None where it has no step time to compare.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        """
        run, good = self.run, self.run.good
        if good is None:
            return None
        image = run.summary.image
        return Observed(run.run_id, run.configuration, self.title, self.started, self.day, image, good, self.facts)


class _SharedTexts:
    """A store that holds equal facts and texts of many runs once, to save memory; empty at first.

    ``facts`` returns what may explain the speed of a recorded run, texts by name, not to be changed; ``texts`` a
    tuple of the given texts. For equal ones both return the object of the earlier call.
    """

    def __init__(self) -> None:
        self._facts: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._texts: dict[tuple[str, ...], tuple[str, ...]] = {}

    def facts(self, record: RunRecord) -> Mapping[str, str]:
        """Return the facts that may explain the speed of the run in ``record``, by name, not to be changed.

        Equal facts of an earlier call are the same object.
        """
        found = history_facts(record)
        return self._facts.setdefault(tuple(found.items()), found)

    def texts(self, found: Iterable[str]) -> tuple[str, ...]:
        """Return the texts ``found`` as a tuple; an equal tuple of an earlier call is the same object."""
        texts = tuple(map(sys.intern, found))
        return self._texts.setdefault(texts, texts)


def seen_runs(found: Sequence[MeasuredRun]) -> list[SeenRun]:
    """Return what a report keeps of those of ``found`` that LLMB recorded, in their order.

    Finds out why failed runs failed. Each run then drops what it holds in memory and can read again.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    words = _SharedTexts()
    seen = []
    for start in range(0, len(found), _AT_ONCE):
        some = found[start : start + _AT_ONCE]
        explain(some)
        seen += [_as_seen_run(run, record, words) for run, record in recorded(some)]
    return seen


def _as_seen_run(item: MeasuredRun, record: RunRecord, words: _SharedTexts) -> SeenRun:
    """Return what the report keeps of the run ``item`` once its ``record`` is dropped.

    ``words`` holds what runs have in common, and is added to. Why the run failed is found out now, for this run
    alone, unless that was done before. Nothing is dropped here.

    Raises:
        RecordError: the run's record cannot be read
    """
    scheduler, account = record.plan.scheduler, item.account
    item.memory_gib  # noqa: B018 (while its record is at hand)
    return SeenRun(
        run=item,
        plan=record.plan,
        title=sys.intern(title_of(record.plan)),
        started=record.started,
        day=sys.intern(record.day),
        facts=words.facts(record),
        hosts=words.texts(account.hosts),
        gpus=sys.intern(account.gpus),
        driver=sys.intern(account.driver),
        cuda=sys.intern(account.cuda),
        nccl=sys.intern(account.nccl),
        problems=words.texts(item.problems),
        host=sys.intern(str(record.manifest.get("host") or "")),
        owner=sys.intern(_folder_owner(record.paths.folder)),
        queue=f"{scheduler.queue_word} {scheduler.queue}" if scheduler and scheduler.queue else "",
        cause=sys.intern(_cause_text(item)),
    )


def _cause_text(item: MeasuredRun) -> str:
    """Return why a run failed, in words that are the same for failures of one kind: without rank and node.

    ``item`` is the measured run. A fragment, safe to print. Empty where the run did not fail, or nothing is known
    of the cause, which is found out now unless that was done before.

    Raises:
        RecordError: the run's record cannot be read
    """
    if item.why is None:
        return ""
    return printable(item.why.cause.what if item.why.cause else item.why.short)


def _folder_owner(folder: Path) -> str:
    """Return the login name of the user who owns a run's folder, as ``user_name`` has it.

    Empty where the folder is gone or cannot be looked at.
    """
    try:
        return _name_of(folder.stat().st_uid)
    except OSError:
        return ""


_name_of = functools.cache(user_name)
