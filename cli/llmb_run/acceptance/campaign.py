"""A campaign on disk: its folder, its lock, and what it began with.

::

    campaigns/<suite>-<digest of user and path>/
        .lock               who works on it now
        1/                  the first campaign of this suite; --again begins 2/
            suite.yaml      as it was
            campaign.json   what must not change (frozen.Frozen)
            health.json     what its nodes were found to be, if the suite asks for that
            result.json     the verdicts; the campaign is over once this exists
            report.html
            <suite>.tar.zst the evidence pack

Nothing here says which runs there are: those are found by their keys, which hold the campaign's id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.errors import EnvironmentLacks, RecordError, RequestError
from llmb_common.files import read_json, try_lock, write_atomic, write_json
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.ownership import is_ours
from llmb_common.runs.paths import experiments_folder
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.structs import from_plain
from llmb_common.trust import me, user_name
from llmb_run.acceptance.frozen import Frozen, changes, freeze
from llmb_run.acceptance.planned import Workload
from llmb_run.acceptance.suite import Suite

_CLOCKS_DIFFER = 24 * 3600
"""Seconds, generously, between the clocks of the machines that made the campaign and its runs."""


@dataclass(frozen=True)
class Campaign:
    """``folder`` is its own, numbered one."""

    folder: Path
    id: str

    @property
    def frozen_file(self) -> Path:
        return self.folder / "campaign.json"

    @property
    def result_file(self) -> Path:
        return self.folder / "result.json"

    @property
    def health_file(self) -> Path:
        return self.folder / "health.json"

    def key(self, workload: int, attempt: int) -> str:
        """The key of a run: both numbers from 1."""
        return f"{self.prefix}{workload}.{attempt}"

    @property
    def prefix(self) -> str:
        return f"accept:{self.id}:"

    def records(self, plans: Sequence[JobPlan]) -> dict[tuple[int, int], RunRecord]:
        """The campaign's runs, by the numbers of workload and attempt: what lies on disk, whatever an index says.

        Raises:
            RecordError: a record of ours cannot be read
        """
        found: dict[tuple[int, int], RunRecord] = {}
        since = _began(self.folder) - _CLOCKS_DIFFER
        places = {(plan.workload_folder, plan.experiment_name) for plan in plans}
        for workload_folder, name in sorted(places):
            for folder in (experiments_folder(workload_folder) / name).glob(f"{name}_*"):
                second = folder.name.removeprefix(f"{name}_").partition("-")[0]
                if not second.isdecimal() or int(second) < since or not is_ours(folder):
                    continue
                record = load_record(folder)
                if record.submission.key.startswith(self.prefix):
                    workload, _, attempt = record.submission.key.removeprefix(self.prefix).partition(".")
                    found[int(workload), int(attempt)] = record
        return found

    def frozen(self) -> Frozen | None:
        """What it began with; None where it has not begun.

        Raises:
            RecordError: the file cannot be read
        """
        if not self.frozen_file.exists():
            return None
        try:
            found: Frozen = from_plain(read_json(self.frozen_file), Frozen)
        except msgspec.ValidationError as error:
            raise RecordError(
                f"{self.frozen_file} is not a campaign's: {error}", remedy="start a new campaign with --again"
            ) from error
        return found

    def result(self) -> dict[str, Any] | None:
        """The verdicts of a campaign that is over."""
        if not self.result_file.exists():
            return None
        value = read_json(self.result_file)
        if not isinstance(value, dict) or value.get("schema") != 1:
            raise RecordError(
                f"{self.result_file} is not a campaign's result", remedy="start a new campaign with --again"
            )
        return value


def _began(folder: Path) -> float:
    """No run of a campaign is older than its folder's suite, which is written before anything starts."""
    try:
        return (folder / "suite.yaml").stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def open_campaign(suite: Suite, campaigns: Path, *, again: bool) -> Iterator[Campaign]:
    """The campaign of ``suite`` that goes on, or the first or, with ``again``, another one; locked meanwhile.

    Raises:
        EnvironmentLacks: another process is working on it
        RecordError: its folder cannot be written
    """
    digest = hashlib.sha256(repr((os.getuid(), str(suite.path))).encode()).hexdigest()[:8]
    home = campaigns / f"{suite.name}-{digest}"
    with contextlib.ExitStack() as cleanup:
        try:
            home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(home / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            cleanup.callback(os.close, descriptor)
            _lock(descriptor, home)
            numbers = [int(path.name) for path in home.iterdir() if path.name.isdecimal()]
            number = max(numbers, default=1)
            if again and Campaign(home / str(number), "").frozen_file.exists():
                number += 1
            folder = home / str(number)
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RecordError(
                f"cannot write {home}: {error.strerror or error}",
                remedy="check free space and permissions there, or keep campaigns elsewhere: --folder DIR",
            ) from error
        known = Campaign(folder, "").frozen()
        # Not of the folder's name: who removes the folder means to start over, and not with the same runs.
        yield Campaign(folder, known.id if known else secrets.token_hex(4))


def _lock(descriptor: int, home: Path) -> None:
    if not try_lock(descriptor):
        who = os.pread(descriptor, 500, 0).decode(errors="replace").strip()
        raise EnvironmentLacks(
            f"this campaign is under way: {who or 'another process is working on it'}",
            remedy="wait for it, or watch its runs: llmb-run watch",
            code="busy",
        )
    text = f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def begin_or_go_on(campaign: Campaign, suite: Suite, workloads: Sequence[Workload]) -> Frozen:
    """What the campaign began with, which is now where it begins.

    Raises:
        RequestError: something is not as it was then; all of that by name
    """
    then = campaign.frozen()
    began = time.time() if then is None else then.began
    now = freeze(suite, workloads, id=campaign.id, began=round(began, 3), user=user_name(me()))
    if then is None:
        write_atomic(campaign.folder / "suite.yaml", suite.text)
        write_json(campaign.frozen_file, msgspec.to_builtins(now))  # last: from here on there is a campaign
        return now
    if found := changes(then, now):
        raise RequestError(
            "the campaign began with other inputs, and its runs would not show one system:\n  " + "\n  ".join(found),
            remedy="restore them and run the same command again, or start a new campaign with --again",
            code="changed-inputs",
        )
    return then
