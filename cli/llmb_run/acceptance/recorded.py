"""A campaign that somebody has carried out, on disk: its own folder, or its evidence pack, unpacked.

A pack comes from anybody. What only ``tar`` can have made of it, such as links, is refused before anything is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmb_common.base.errors import RecordError, RequestError
from llmb_common.base.files import read_plain
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.paths import RunPaths, experiments_folder
from llmb_common.runs.record import RunRecord, load_record
from llmb_run.campaigns.campaign import Campaign

MOST_BYTES = 4 << 30
MOST_FILES = 200_000
"""More than the logs and records of a campaign have."""


@dataclass(frozen=True)
class CampaignFiles:
    """Where the parts of a campaign on disk lie: in its own folder, or in an unpacked evidence pack.

    ``files_of`` makes it.
    """

    campaign: Path
    """The folder with what the campaign began with."""
    verdicts: Path
    """The file with its result, ``verdicts.json`` of a pack, else ``result.json``; not there while it is under way."""
    is_pack: bool
    """Its runs lie beside ``campaign``; else in the installation where they ran."""


def files_of(folder: Path) -> CampaignFiles:
    """Return where the parts of the campaign in ``folder`` lie, an unpacked evidence pack or its own folder.

    A pack is first searched for anything unsafe. Whether the result is there is not looked at.

    Raises:
        RequestError: ``folder`` is neither, or is missing, or a file
        RecordError: the pack has something in it that ``accept`` never packs, such as a link, or is far too large
        OSError: the pack cannot be looked through
    """
    if folder.is_file():
        raise RequestError(
            f"{folder} is a file; accept show reads the folder that is in it",
            remedy=f"tar -xf {folder}, then llmb-run accept show and the folder that this makes",
        )
    if (folder / "campaign" / "campaign.json").exists():
        _refuse_unsafe(folder)
        return CampaignFiles(folder / "campaign", folder / "campaign" / "verdicts.json", is_pack=True)
    if (folder / "campaign.json").exists() and not (folder / "verdicts.json").exists():
        return CampaignFiles(folder, folder / "result.json", is_pack=False)
    raise RequestError(
        f"{folder} is neither an unpacked evidence pack nor the folder of a campaign",
        remedy="name the folder that has campaign/campaign.json or campaign.json in it",
    )


def _refuse_unsafe(folder: Path) -> None:
    """Raise if an unpacked evidence pack, which anybody may have made, has links, devices, or far too much in it.

    That is over 4 GiB, or over 200000 files and folders. A folder in it that cannot be listed is passed over.

    Raises:
        RecordError: it has; the message names the file or the size
        OSError: a file in it cannot be looked at
    """
    size = count = 0
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                raise RecordError(
                    f"{path} is a link or a device; evidence packs contain none",
                    remedy="get the original from its author",
                )
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
            count += 1
    problem = ""
    if size > MOST_BYTES:
        problem = f"it has {size / 2**30:,.1f} GiB, and a pack has at most {MOST_BYTES >> 30}"
    elif count > MOST_FILES:
        problem = f"it has {count:,} files and folders, and a pack has at most {MOST_FILES:,}"
    if problem:
        raise RecordError(
            f"{folder} is not an evidence pack: {problem}",
            remedy="name the folder into which the pack alone was unpacked",
        )


class _PackedPaths(RunPaths, frozen=True):
    """The paths of a run in an unpacked evidence pack, where run folders lie side by side.

    ``RecordedCampaign.records`` makes it. ``experiments`` is the folder that the pack was unpacked into. The property
    ``folder`` is the run's folder, ``experiments`` / ``name`` (elsewhere there is a folder for the experiment between
    them), whether it exists or not; all other paths follow from that. The other fields are those of ``RunPaths``.
    """

    @property
    def folder(self) -> Path:
        """The run's folder in the unpacked pack, ``experiments`` and the run's name: no folder per experiment there.

        Whether it exists is not checked.
        """
        return self.experiments / self.name


@dataclass(frozen=True)
class RecordedCampaign(Campaign):
    """A campaign that anybody may have carried out, whose runs are only read, to be judged again.

    ``folder`` is the one that ``CampaignFiles.campaign`` names, and ``is_pack`` as there: the runs lie beside it;
    else in the installation where they ran. The other fields are those of ``Campaign``. ``records`` returns the runs'
    records as a dict by (arm, attempt), both numbers from 1, empty where there are none, without runs of something
    else, and outside a pack without those of other users than the campaign's; ``plans`` are those of all arms, in
    order. It raises ``RecordError`` for a damaged record or two of the same run, and outside a pack OSError where
    the campaign's own file is missing.
    """

    is_pack: bool = False

    def records(self, plans: Sequence[JobPlan]) -> dict[tuple[int, int], RunRecord]:
        """Return the records of the campaign's runs, by the numbers (from 1) of arm and attempt, whoever owns them.

        ``plans``: those of all arms, in their order; they say where runs outside a pack lie. Left out are runs of
        something else, and outside a pack those that the campaign's owner does not own. In records of a pack, ``paths``
        says where the runs lie now. In no particular order; empty where there are none.

        Raises:
            RecordError: a record cannot be read, or two are of the same run
            OSError: the campaign's own file is missing (outside a pack)
        """
        found: dict[tuple[int, int], RunRecord] = {}
        for folder in self._folders(plans):
            record = load_record(folder)
            number = self.numbers(record.submission.key)
            if number is None or number[0] > len(plans):
                continue  # a run of something else
            if number in found:
                raise RecordError(f"{folder.name} and {found[number].paths.name} are one and the same run")
            if self.is_pack:
                paths = record.paths
                here = _PackedPaths(folder.parent, paths.experiment_name, paths.stamp, paths.run_id)
                record = replace(record, paths=here)
            found[number] = record
        return found

    def _folders(self, plans: Sequence[JobPlan]) -> Iterator[Path]:
        """Yield the folders that may hold runs of the campaign, sorted: all of a pack, or its owner's that name its id.

        ``plans`` are those of its arms, and say in which experiments to look; not used of a pack. A folder counts
        only with a ``run.json`` in it.

        Raises:
            OSError: the campaign's own file is missing (outside a pack)
        """
        if self.is_pack:
            yield from (file.parent for file in sorted(self.folder.parent.glob("*/run.json")))
            return
        owner = self.frozen_file.stat().st_uid
        homes = {experiments_folder(plan.workload_folder) / plan.experiment_name for plan in plans}
        for home in sorted(homes):
            for file in sorted(home.glob(f"{home.name}_*/run.json")):
                # Anybody may put a folder into a shared installation.
                if file.lstat().st_uid == owner and self._names(file):
                    yield file.parent

    def _names(self, record: Path) -> bool:
        """Return whether the file ``record``, a run's ``run.json``, contains the campaign's id; False if unreadable.

        It is not parsed: it may be the damaged record of a run of something else.
        """
        try:
            return self.id.encode() in read_plain(record)
        except OSError:
            return False
