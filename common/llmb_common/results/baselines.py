"""A site's own references: ``$LLMB_INSTALL/.llmb/baselines.json``, one for each configuration and software.

A published result is somebody else's cluster, often with older software. A baseline is this cluster on a good day: it
shows what changed since, to within what repeats of it differ by.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from llmb_common.decoding.kept_lists import read_list, write_list
from llmb_common.errors import RecordError, RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.results.configuration import configuration_key, image_marks, software_of, title_of
from llmb_common.results.decision import level, steady_error
from llmb_common.results.estimate import StepTime
from llmb_common.results.past_runs import PastRuns
from llmb_common.results.references import Reference, by_preference
from llmb_common.runs.evidence.account import Account, account_of
from llmb_common.runs.evidence.expected import held_against, setup_of
from llmb_common.runs.evidence.findings import NodeFinding
from llmb_common.runs.record import RunRecord


class BaselineRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the runs that a baseline is the mean of: its ``StepTime``, in seconds."""

    run_id: str
    seconds: float
    error: float
    stalls: tuple[float, ...] = ()
    steps: int = 0
    day: str = ""
    nodes: str = ""

    @property
    def time(self) -> StepTime:
        """The step time, in the form that a run's own has."""
        known = {"stalls": self.stalls, "steps": self.steps, "day": self.day, "nodes": self.nodes}
        return StepTime(self.seconds, self.error, 0, **known)  # type: ignore[arg-type]


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``key`` is the configuration's, ``title`` what people call it, ``added`` Unix time."""

    key: str
    title: str
    software: str
    added: float
    runs: tuple[BaselineRun, ...]
    setup: dict[str, str | float] = {}  # msgspec copies it
    """What the nodes of these runs were."""

    @property
    def times(self) -> list[StepTime]:
        """The step times of its runs."""
        return [run.time for run in self.runs]

    @property
    def seconds(self) -> float:
        """Mean step time, stalls included."""
        found = level(self.times)
        return math.exp(found.steady + found.stalls)

    def relative_error(self, past: PastRuns) -> float:
        """Standard error of the mean, as a share of it, with what the site's ``past`` says of how runs differ."""
        configuration = f"{self.key} {self.software}"
        others = past.others(configuration, [run.run_id for run in self.runs])
        return steady_error(self.times, past.scatter(configuration), others)


def baselines(install: Path) -> list[Baseline]:
    """All of the installation, by title. Raises RecordError when the file cannot be read."""
    found = read_list(_file(install), "baselines", Baseline, "a list of baselines")
    if not all(item.runs and all(run.seconds > 0 for run in item.runs) for item in found):
        raise RecordError(f"{_file(install)} has a baseline without runs or times", remedy="correct or remove the file")
    return sorted(found, key=_order)


def set_baselines(install: Path, runs: Sequence[tuple[RunRecord, StepTime]]) -> list[Baseline]:
    """Make ``runs`` the baselines of their configurations and software; repeats become one. Returns the new ones.

    Raises:
        RequestError: no runs
    """
    if not runs:
        raise RequestError("no run to make a baseline of", remedy="name successful runs: llmb-run results lists them")
    new: dict[tuple[str, str], Baseline] = {}
    accounts: dict[tuple[str, str], list[Account]] = {}
    images: dict[tuple[str, str], set[str]] = {}
    marks = image_marks([record for record, _ in runs])
    for (record, measured), mark in zip(runs, marks, strict=True):
        key = (configuration_key(record.plan), software_of(record))
        images.setdefault(key, set()).add(mark)
        if len(images[key]) > 1:
            raise RequestError(
                f"{title_of(record.plan)} ran with several images called {key[1]}:{','.join(sorted(images[key]))}",
                remedy="name the runs of one image; llmb-run results --group shows them",
            )
        before = new[key].runs if key in new else ()
        where = (measured.stalls, measured.steps, measured.day, measured.nodes)
        run = BaselineRun(record.paths.run_id, measured.seconds, measured.error, *where)
        accounts.setdefault(key, []).append(account_of(record))
        setup = setup_of(accounts[key])
        new[key] = Baseline(key[0], title_of(record.plan), key[1], round(time.time(), 3), (*before, run), setup)
    kept = {(item.key, item.software): item for item in baselines(install)}
    _write(install, (kept | new).values())
    return sorted(new.values(), key=_order)


def remove_baselines(install: Path, keys: Sequence[str]) -> list[Baseline]:
    """Forget the baselines of these configurations; returns those that there were.

    Raises:
        RequestError: a key that no baseline has
    """
    found = baselines(install)
    known = {item.key for item in found}
    for key in keys:
        if key not in known:
            raise RequestError(f"no baseline {key}", remedy="llmb-run baseline list shows their keys")
    _write(install, [item for item in found if item.key not in keys])
    return [item for item in found if item.key in keys]


def baseline_references(record: RunRecord, known: Sequence[Baseline], past: PastRuns) -> list[Reference]:
    """The baselines of the run's configuration, that of its own software first; none that the run itself is part of."""
    if not known:
        return []  # to say what a run's software is may mean to read its log
    others = [item for item in known if all(run.run_id != record.paths.run_id for run in item.runs)]
    return baselines_for(record.plan, software_of(record), others, past)


def unlike_baselines(record: RunRecord, account: Account, known: Sequence[Baseline]) -> list[NodeFinding]:
    """Where the run's nodes are not as a baseline's were: that of its configuration, else the newest with such GPUs."""
    if any(run.run_id == record.paths.run_id for item in _alike(account, known) for run in item.runs):
        return []
    return unlike_site(account, known, configuration_key(record.plan))


def unlike_site(account: Account, known: Sequence[Baseline], key: str = "") -> list[NodeFinding]:
    """The same of nodes that no run is on record of; ``key`` is that of a configuration."""
    item = max(_alike(account, known), key=lambda item: (item.key == key, item.added), default=None)
    if item is None:
        return []
    return held_against(account, item.setup, f"this site's baseline {item.key}", same_job=item.key == key)


def _alike(account: Account, known: Sequence[Baseline]) -> list[Baseline]:
    """Those of nodes with the same GPUs."""
    return [item for item in known if item.setup and item.setup.get("gpus") == account.gpus]


def baselines_for(plan: JobPlan, software: str, known: Sequence[Baseline], past: PastRuns) -> list[Reference]:
    """The baselines of a plan that runs with ``software``, that of the same software first."""
    key = configuration_key(plan)
    found = []
    for item in known:
        if item.key != key:
            continue
        day = time.strftime("%Y-%m-%d", time.localtime(item.added))
        count = f"{len(item.runs)} run{'s' if len(item.runs) > 1 else ''}"
        found.append(
            Reference(
                kind="baseline",
                seconds=item.seconds,
                software=item.software,
                source=f"this site's baseline of {count}, {day}",
                same_software=item.software == software,
                error=item.relative_error(past),
            )
        )
    return by_preference(found)


def _file(install: Path) -> Path:
    return install / ".llmb" / "baselines.json"


def _order(item: Baseline) -> tuple[str, str]:
    return item.title, item.software


def _write(install: Path, items: Iterable[Baseline]) -> None:
    write_list(_file(install), "baselines", sorted(items, key=_order))
