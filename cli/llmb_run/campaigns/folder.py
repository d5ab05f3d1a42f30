"""A campaign on disk: its folder, its lock, and its runs.

::

    campaigns/<name>-<digest of user and what it is about>/
        .lock               who works on it now
        1/                  the first campaign; --again begins 2/
            campaign.json   what must not change (frozen.Frozen)
            result.json     what it has found; the campaign is over once this exists

Nothing here says which runs there are: those are found by their keys, which hold the campaign's id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.errors import EnvironmentLacks, RecordError
from llmb_common.machine.files import read_json, try_lock
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.ownership import is_ours
from llmb_common.runs.paths import experiments_folder
from llmb_common.runs.record import RunRecord, load_record

_CLOCKS_DIFFER = 24 * 3600
"""Seconds, generously, between the clocks of the machines that made the campaign and its runs."""

ANEW = "start a new campaign with --again"


@dataclass(frozen=True)
class Campaign:
    """``folder`` is its own, numbered one; ``purpose`` the command's: ``accept``."""

    folder: Path
    id: str
    purpose: str

    @property
    def frozen_file(self) -> Path:
        return self.folder / "campaign.json"

    @property
    def result_file(self) -> Path:
        return self.folder / "result.json"

    def key(self, arm: int, attempt: int) -> str:
        """The key of a run: both numbers from 1."""
        return f"{self.purpose}:{self.id}:{arm}.{attempt}"

    def numbers(self, key: str) -> tuple[int, int] | None:
        """Arm and attempt of the run with this key; None where it is no run of this campaign."""
        found = re.fullmatch(rf"{re.escape(f'{self.purpose}:{self.id}:')}([0-9]{{1,6}})\.([0-9]{{1,6}})", key)
        return (int(found[1]), int(found[2])) if found else None

    def records(self, plans: Sequence[JobPlan]) -> dict[tuple[int, int], RunRecord]:
        """The campaign's runs, by the numbers of arm and attempt: what lies on disk, whatever an index says.

        Raises:
            RecordError: a record of ours cannot be read
        """
        found: dict[tuple[int, int], RunRecord] = {}
        since = _began(self.frozen_file) - _CLOCKS_DIFFER
        places = {(plan.workload_folder, plan.experiment_name) for plan in plans}
        for workload_folder, name in sorted(places):
            for folder in (experiments_folder(workload_folder) / name).glob(f"{name}_*"):
                second = folder.name.removeprefix(f"{name}_").partition("-")[0]
                if not second.isdecimal() or int(second) < since or not is_ours(folder):
                    continue
                record = load_record(folder)
                if numbers := self.numbers(record.submission.key):
                    found[numbers] = record
        return found

    def result(self) -> dict[str, Any] | None:
        """What a campaign that is over has found."""
        return _read(self.result_file, "schema", 1) if self.result_file.exists() else None


def _read(file: Path, name: str, kind: Any) -> dict[str, Any]:
    value = read_json(file)
    known = value.get(name) if isinstance(value, dict) else None
    if not (isinstance(known, kind) if isinstance(kind, type) else known == kind):
        raise RecordError(f"{file} is not a campaign's", remedy=ANEW)
    return dict(value)


def _began(file: Path) -> float:
    """No run of a campaign is older than what it began with, which is written before anything starts."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def open_campaign(campaigns: Path, purpose: str, name: str, about: str, *, again: bool) -> Iterator[Campaign]:
    """The campaign that goes on, or the first or, with ``again``, another one; locked meanwhile.

    ``about`` tells it from others of this name and purpose: the path of its file, or what was asked for.

    Raises:
        EnvironmentLacks: another process is working on it
        RecordError: its folder cannot be written
    """
    digest = hashlib.sha256(repr((os.getuid(), about)).encode()).hexdigest()[:8]
    home = campaigns / f"{name}-{digest}"
    with contextlib.ExitStack() as cleanup:
        try:
            home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(home / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            cleanup.callback(os.close, descriptor)
            _lock(descriptor, home)
            numbers = [int(path.name) for path in home.iterdir() if path.name.isdecimal()]
            number = max(numbers, default=1)
            if again and (home / str(number) / "campaign.json").exists():
                number += 1
            folder = home / str(number)
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RecordError(
                f"cannot write {home}: {error.strerror or error}",
                remedy="check free space and permissions there, or keep campaigns elsewhere: --folder DIR",
            ) from error
        known = Campaign(folder, "", purpose).frozen_file
        # Not of the folder's name: who removes the folder means to start over, and not with the same runs.
        yield Campaign(folder, _read(known, "id", str)["id"] if known.exists() else secrets.token_hex(4), purpose)


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
