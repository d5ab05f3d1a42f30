"""A campaign on disk: its folder, its lock, its runs, and what it began with.

::

    campaigns/<name>-<digest of user and what it is about>/
        .lock               who works on it now
        1/                  the first campaign; --again begins 2/
            campaign.json   what must not change (Frozen)
            result.json     what it has found; the campaign is over once this exists

Nothing here says which runs there are: those are found by their keys, which hold the campaign's id.

All runs of a campaign are to show one system: version of LLMB, recipes, training code, images with their digests, and
plans (and with them the site's configuration and the caller's variables) are compared whenever it goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from llmb_common.base.errors import EnvironmentLacks, Interrupted, RecordError, RequestError
from llmb_common.base.files import effective_user_id, read_json, try_lock, unwritable, user_name, write_json
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.structs import from_plain, misfit_text
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.runs.folders import is_ours
from llmb_common.runs.manifest import make_manifest, origin_of, training_code
from llmb_common.runs.paths import experiments_folder
from llmb_common.runs.record import RunRecord, load_record


@dataclass(frozen=True)
class Arm:
    """One configuration on trial in a campaign of benchmark runs; a campaign numbers its arms from 1.

    ``plan`` is the job of its runs; ``title`` is what messages call it; ``recipe_folder`` is where its recipe is
    (``Path()`` where no run will be started). ``timed``: the step time of its runs counts, else it is enough that they
    succeed. ``strict``: of runs that are not timed, problems that their nodes report, and a bad end after the last
    step, are failures.
    """

    plan: JobPlan
    recipe_folder: Path
    title: str
    timed: bool = True
    strict: bool = False


_CLOCKS_DIFFER = 24 * 3600
"""Seconds, generously, between the clocks of the machines that made the campaign and its runs."""

ANEW = "start a new campaign with --again"


@dataclass(frozen=True)
class Campaign:
    """A series of benchmark runs that one command (``accept``, ``ab``, ``tune``) starts to find an answer.

    ``open_campaign`` makes it; it starts no runs itself, but finds them again by their keys. ``folder`` is the
    campaign's own, called by its number. ``id`` is random, and part of its runs' keys. ``purpose`` is the command's
    name. ``began`` is Unix time. ``key`` returns the key of a run, a text (``ab:3f2a9c1e:1.2``), and ``numbers`` reads
    (arm, attempt), both from 1, from one of this campaign, None from another. ``records``, called with the plans of all
    arms, returns the user's own runs' records by (arm, attempt), in no order, maybe none, and raises ``RecordError``
    for a damaged one. The property ``frozen_file`` is the path of the inputs it began with, the property
    ``result_file`` that of its answer; either may not exist yet. ``result`` returns the answer, a dict, from there;
    None: it is not over; ``RecordError``: the file is damaged.
    """

    folder: Path
    id: str
    purpose: str
    began: float = 0.0
    _others: set[Path] = field(default_factory=set, compare=False)
    """Folders of runs that are not this campaign's. Kept between calls, since a run never changes its owner."""

    @property
    def frozen_file(self) -> Path:
        """The path of ``campaign.json``, which holds the inputs that the campaign began with.

        The file is missing until the campaign begins.
        """
        return self.folder / "campaign.json"

    @property
    def result_file(self) -> Path:
        """The path of ``result.json``, which holds the campaign's answer; missing until the campaign is over."""
        return self.folder / "result.json"

    def key(self, arm: int, attempt: int) -> str:
        """Return the key that marks a run as this campaign's, ``ab:3f2a9c1e:1.2``: purpose, id, arm, attempt.

        ``arm`` and ``attempt`` count from 1.
        """
        return f"{self.purpose}:{self.id}:{arm}.{attempt}"

    def numbers(self, key: str) -> tuple[int, int] | None:
        """Return (arm, attempt), both from 1, of the run of this campaign with ``key``.

        None: it is the key of another campaign's run, or of a run of none.
        """
        found = re.fullmatch(rf"{re.escape(f'{self.purpose}:{self.id}:')}([0-9]{{1,6}})\.([0-9]{{1,6}})", key)
        return (int(found[1]), int(found[2])) if found else None

    def records(self, plans: Sequence[JobPlan]) -> dict[tuple[int, int], RunRecord]:
        """Return the records of the campaign's runs by (arm, attempt), read from the run folders and from no index.

        ``plans`` are those of all arms: they say in which folders to look. The records are in no particular order.
        Empty: no run yet. Runs of other users are left out. Folders that are not the campaign's are remembered, and
        skipped by the next call.

        Raises:
            RecordError: a record of this user cannot be read; one from more than a day before the campaign began is
                skipped
        """
        found: dict[tuple[int, int], RunRecord] = {}
        # Arms may be of one experiment, whose folder is read once.
        for workload_folder, name in sorted({(plan.workload_folder, plan.experiment_name) for plan in plans}):
            for folder in (experiments_folder(workload_folder) / name).glob(f"{name}_*"):
                second = folder.name.removeprefix(f"{name}_").partition("-")[0]
                if folder in self._others or not second.isdecimal() or not is_ours(folder):
                    continue
                try:
                    record = load_record(folder)
                except RecordError:
                    if int(second) > self.began - _CLOCKS_DIFFER:
                        raise
                    continue  # a damaged one of before
                # Its name does not say whose it is: a clock may have been put back by days since the campaign began.
                if numbers := self.numbers(record.submission.key):
                    found[numbers] = record
                else:
                    self._others.add(folder)
        return found

    def result(self) -> dict[str, Any] | None:
        """Return the campaign's answer as ``result.json`` has it.

        None: there is no such file, as the campaign is not over.

        Raises:
            RecordError: the file cannot be read, or is not a campaign's
        """
        return _read_json(self.result_file) if self.result_file.exists() else None


def _read_json(file: Path, **known: type) -> dict[str, Any]:
    """Return the object in a campaign's JSON file, a dict, after checking its fields.

    It has an integer ``schema`` and fields of the ``known`` types, by name; further fields are not checked, and
    stay.

    Raises:
        RecordError: the file is missing, cannot be read, or lacks one of these fields
    """
    value = read_json(file)
    kinds = {"schema": int, **known}
    if not isinstance(value, dict) or not all(isinstance(value.get(name), kind) for name, kind in kinds.items()):
        raise RecordError(f"{file} is not a campaign's", remedy=ANEW)
    return value


_RESUME = "the same command resumes the campaign"


def answered(
    campaigns: Path,
    purpose: str,
    name: str,
    about: str,
    find: Callable[[Campaign], dict[str, Any]],
    show: Callable[[dict[str, Any]], Result],
    *,
    again: bool,
    is_over: Callable[[dict[str, Any]], bool],
) -> Result:
    """Begin a campaign or continue it, and return its result as ``show`` makes it.

    A campaign that is over is only looked up, and a notice says so. The campaign is locked until ``show`` has
    returned. What ``find`` returns is written into the campaign's folder as ``result.json``, replacing an earlier one;
    if it raises, nothing is written.

    Args:
        campaigns: the folder of all campaigns; made if missing
        purpose: the command's name
        name: what the campaign's folder begins with
        about: tells it from others of this name, see ``open_campaign``
        find: carries the campaign out, and returns its result, JSON values; may be called again after any crash
        show: makes the printable result; gets what ``find`` returned, with the campaign's folder, a text, as
            ``folder``
        again: begin a new campaign even where one is on disk
        is_over: gets a result that is on disk, and returns whether nothing is left to do; else ``find`` is called
            again. What it raises passes, but for errors of a wrong shape (KeyError, TypeError ...).

    Raises:
        Interrupted: by the user; the same command resumes it
        EnvironmentLacks: code ``busy``: another process is working on it
        RecordError: its files cannot be read or written, or its result was changed since
        LLMBError: whatever ``find`` or ``is_over`` raises
        OSError: likewise
    """
    with open_campaign(campaigns, purpose, name, about, again=again) as campaign:
        folder = {"folder": str(campaign.folder)}
        try:
            if (result := campaign.result()) is not None and is_over(result):
                shown = show({**result, **folder})
                notice("this campaign is over; --again begins a new one")
                return shown
        # Both functions believe the fields of a file that somebody may have edited.
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(
                f"{campaign.result_file} was changed since it was written: {type(error).__name__}: {error}",
                remedy="remove it: the same command finds the answer again, from the runs on record",
            ) from error
        try:
            result = find(campaign)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted", remedy=_RESUME) from error
        except Interrupted as error:
            raise Interrupted(error.message, remedy="; ".join(filter(None, (error.remedy, _RESUME)))) from error
        write_json(campaign.result_file, result)  # last: it says that nothing is left to do
        return show({**result, **folder})


@contextlib.contextmanager
def open_campaign(campaigns: Path, purpose: str, name: str, about: str, *, again: bool) -> Iterator[Campaign]:
    """Open the newest campaign of this name, or a new one, and hold its lock while the context (``with``) lasts.

    Makes its folder ``NAME-HASH/NUMBER`` in ``campaigns``, if missing, which stays even after an error; the hash is of
    the user and ``about``, which tells campaigns of one name apart: the path of a suite file, or what was asked for.
    The newest has the greatest number. With ``again``, a campaign that has begun (it has a ``campaign.json``) is left
    alone, and a new one gets the next number. A new campaign has a random ``id`` and begins now; one that has begun has
    those of its file. ``purpose`` is the command's name. Never waits for the lock.

    Raises:
        EnvironmentLacks: code ``busy``: another process is working on a campaign of this name
        RecordError: its folder cannot be written, or its ``campaign.json`` not read
    """
    digest = hashlib.sha256(repr((os.getuid(), about)).encode()).hexdigest()[:8]
    home = campaigns / f"{name}-{digest}"
    with contextlib.ExitStack() as cleanup:
        try:
            home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(home / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            cleanup.callback(os.close, descriptor)
            _lock_campaign(descriptor)
            # The newest campaign counts; earlier ones stay beside it.
            numbers = [int(path.name) for path in home.iterdir() if path.name.isdecimal()]
            number = max(numbers, default=1)
            if again and (home / str(number) / "campaign.json").exists():
                number += 1
            folder = home / str(number)
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(home, error, "or keep campaigns elsewhere: --folder DIR") from error
        # Not of the folder's name: who removes the folder means to start over, and not with the same runs.
        campaign = Campaign(folder, secrets.token_hex(4), purpose, round(time.time(), 3))
        if campaign.frozen_file.exists():
            known = _read_json(campaign.frozen_file, id=str, began=float)
            campaign = replace(campaign, id=known["id"], began=known["began"])
        yield campaign


def _lock_campaign(descriptor: int) -> None:
    """Lock the open lock file of a campaign, without waiting, and write into it which process holds it.

    The text also has the machine and the time. The lock ends when ``descriptor`` is closed.

    Raises:
        EnvironmentLacks: code ``busy``: another process has it, which the message names
        OSError: the file cannot be written
    """
    if not try_lock(descriptor):
        owner = os.pread(descriptor, 500, 0).decode(errors="replace").strip()
        raise EnvironmentLacks(
            f"this campaign is under way: {owner or 'another process is working on it'}",
            remedy="wait for it, or watch its runs: llmb-run watch",
            code="busy",
        )
    text = f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


class FrozenArm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One arm of a campaign as ``campaign.json`` keeps it, to see later whether anything has changed.

    ``frozen_now`` makes it, or reading that file. ``title`` is what messages call it. ``plan`` is as ``fixed_values``
    returns it, without predictions and warnings. ``recipe_folder`` is a path, ``recipe_sha256`` the hash of
    ``recipe.yaml``. ``image``: a dict with ``path``, and with ``bytes`` (its size) and ``receipt`` (the text of the
    installer's receipt) where these files exist; None outside containers. The property ``inputs`` has the values that
    must not change, by the names that messages use; the property ``arm`` is the arm made from the saved plan again, to
    start runs of (``msgspec.ValidationError`` if that is no plan). Decoding refuses unknown keys.
    """

    title: str
    plan: dict[str, Any]
    recipe_folder: str
    recipe_sha256: str
    image: dict[str, Any] | None

    @property
    def inputs(self) -> dict[str, Any]:
        """The values of this arm that must not change in a campaign, by the names that messages use.

        They are the hash of ``recipe.yaml`` (under that name), ``image file`` (a dict; {} outside containers), and
        the plan's fields.
        """
        return {"recipe.yaml": self.recipe_sha256, "image file": self.image or {}, **self.plan}

    @property
    def arm(self) -> Arm:
        """The arm to start runs of, made from the saved plan.

        Its predictions are empty, and it is timed and not strict.

        Raises:
            msgspec.ValidationError: the saved plan is not a plan
        """
        plan: JobPlan = from_plain({**self.plan, "preflight": {}}, JobPlan)
        return Arm(plan, Path(self.recipe_folder), self.title)


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a campaign began with, the content of its ``campaign.json``. ``frozen_now`` makes it.

    Reading that file does, too. ``schema`` is the number of the file's form. ``id`` is part of its runs' keys.
    ``began`` is Unix time. ``user`` is a login name, ``llmb`` LLMB's version, ``git`` a dict with ``commit`` and
    ``dirty``, whether anything was changed since (None outside a clone), ``code_sha256`` the hash of the training code.
    ``arm_kind`` is the class of ``arms``, for commands that keep more of each arm. The property ``inputs`` has the
    values, beside those of the arms, that must not change, by the names that messages use; ``changes`` returns a list
    with a line ``name: before -> after`` for each input, of the arms too, that differs from ``now``; empty if none
    does. Decoding refuses unknown keys.
    """

    arm_kind: ClassVar[type[FrozenArm]] = FrozenArm
    schema: int = 1
    id: str
    began: float
    user: str
    llmb: str
    git: dict[str, Any] | None
    code_sha256: str
    arms: Sequence[FrozenArm]

    @property
    def inputs(self) -> dict[str, Any]:
        """The values, beside those of the arms, that must not change in a campaign, by the names that messages use.

        They are LLMB's version (``version of LLMB``), the hash of the training code (``training code``), and the
        number of arms (``number of workloads``).
        """
        known = {"version of LLMB": self.llmb, "training code": self.code_sha256}
        return {**known, "number of workloads": len(self.arms)}

    def changes(self, now: Frozen) -> list[str]:
        """Return a line ``name: before -> after`` for each input of the campaign that is different in ``now``.

        A line about an arm begins with the title that the arm had before and ``: ``; arms are compared by their
        place. Equal lines are one. Empty: nothing has changed. If the number of arms has, the arms themselves are
        not compared.
        """
        found = [*changed_values(self.inputs, now.inputs)]
        if len(self.arms) == len(now.arms):
            for before, after in zip(self.arms, now.arms, strict=True):
                found += [f"{before.title}: {text}" for text in changed_values(before.inputs, after.inputs)]
        return list(dict.fromkeys(found))


F = TypeVar("F", bound=Frozen)


def frozen_now(
    campaign: Campaign, arms: Sequence[Arm], kind: type[F], each: Sequence[Mapping[str, Any]] = (), **more: Any
) -> F:
    """Return the inputs that a campaign would begin with now: software, and each arm with recipe and image.

    Writes nothing. There is at least one arm. ``kind`` is the class to return. ``each`` holds further fields of
    every arm by name, in the order of ``arms`` and as many, or is empty; ``more`` further fields of the campaign.

    Raises:
        EnvironmentLacks: a recipe, the training code or the receipt of an image cannot be read
    """
    folder = training_code()
    origins = {arm.recipe_folder: origin_of(arm.recipe_folder, folder) for arm in arms}
    manifests = [make_manifest(arm.plan, folder, folder, origins[arm.recipe_folder]) for arm in arms]
    return kind(
        **{name: manifests[0][name] for name in ("llmb", "git", "code_sha256")},
        id=campaign.id,
        began=campaign.began,
        user=user_name(effective_user_id()),
        arms=tuple(
            kind.arm_kind(
                title=arm.title,
                plan=fixed_values(plan_as_dict(arm.plan)),
                recipe_folder=str(arm.recipe_folder),
                recipe_sha256=manifest["recipe_sha256"],
                image=manifest["image"],
                **own,
            )
            for arm, manifest, own in zip(arms, manifests, each or [{}] * len(arms), strict=True)
        ),
        **more,
    )


def fixed_values(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the values of ``plan`` that must not change during a campaign: all but ``preflight``, its predictions.

    ``plan`` is as ``plan_as_dict`` returns it. A deep copy, with lists in place of tuples, as they come back from
    JSON.
    """
    # As JSON gives it back: lists, not tuples.
    kept = {name: value for name, value in plan.items() if name != "preflight"}
    found: dict[str, Any] = json.loads(json.dumps(kept))
    return found


def began_with(campaign: Campaign, kind: type[F]) -> F | None:
    """Return the inputs that the campaign began with, from its ``campaign.json``; None: it has not begun.

    ``kind`` is the class to return, one for which that file was written.

    Raises:
        RecordError: the file cannot be read, or is not of ``kind``
    """
    if not campaign.frozen_file.exists():
        return None
    value = read_json(campaign.frozen_file)
    try:
        found: F = from_plain(value, kind)
    except msgspec.ValidationError as error:
        why = misfit_text(error, kind, value)
        raise RecordError(f"{campaign.frozen_file} is not a campaign's: {why}", remedy=ANEW) from error
    return found


def begin_or_go_on(campaign: Campaign, now: F) -> F:
    """Return the inputs that the campaign began with, after checking that they are still the same in ``now``.

    A campaign that has not begun begins here: ``now`` is written into its ``campaign.json``, and returned. The
    inputs of one that has begun must be of the class of ``now``.

    Raises:
        RequestError: code ``changed-inputs``: inputs have changed; the message lists all of them
        RecordError: the file cannot be read or written, or is not of that class
    """
    then = began_with(campaign, type(now))
    if then is None:
        write_json(campaign.frozen_file, msgspec.to_builtins(now))  # from here on there is a campaign
        return now
    if found := then.changes(now):
        raise RequestError(
            "the campaign began with other inputs; its runs would not describe one system:\n  " + "\n  ".join(found),
            remedy=f"restore them and run the same command again, or {ANEW}",
            code="changed-inputs",
        )
    return then


def changed_values(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line, ``name: before -> after``, for each value in which two mappings, such as plans, differ.

    A value inside a nested mapping is called by both keys: ``image digest``; deeper ones are compared as a whole. A
    value that is missing shows as ``none``, and is equal to None. The lines are in the order of ``earlier``, then
    what only ``now`` has. Long values are shortened.
    """
    before, after = _flatten(earlier), _flatten(now)
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield f"{name}: {_short_value(before.get(name))} -> {_short_value(after.get(name))}"


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with each dictionary in them replaced by its items, one level deep, as a new dictionary.

    The name of such an item is both keys, with a blank between them. An empty dictionary leaves nothing; deeper
    ones stay.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= {f"{name} {key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _short_value(value: Any) -> str:
    """Return ``value`` as text for a message, shortened.

    That is the first 12 digits of a SHA-256, else at most 80 characters. Longer text is cut at its end, and then ends
    in ``...``. None is ``none``; what is no text is written as JSON.
    """
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return text[:12]
    return text if len(text) <= 80 else text[:77] + "..."
