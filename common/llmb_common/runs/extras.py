"""What a run was asked for beside training, and what became of it: profiles, checkpoints saved and loaded.

Read from the log, in Megatron-Bridge's words (0.3.1 and 0.6.2, ``training/checkpointing.py``), and from the files; only
for runs whose plan asks for any of it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.printable import counted, printable, size
from llmb_common.base.run_states import is_live
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.iterations import SAVED, read_log
from llmb_common.runs.timing.log_files import find_markers, is_log_name, open_log
from llmb_common.runs.timing.records import Iteration

_LOADED = b"successfully loaded checkpoint from "
_SAVE_TIME = b"save-checkpoint ..."
_STEP = re.compile(rb" *(\d{1,9}) to ")
_SOURCE = re.compile(rb"([^\n]+?) (?:\[ [^\n\]]*\] )?at iteration (\d{1,9})")
_SLOWEST = re.compile(rb"\.*: \([0-9.]+, ([0-9.]+)\)")
_REACH = 5000
"""Bytes of a line that are looked at: a path has at most 4096."""
_MOST_SAVED = 3
"""Checkpoints that have a line each, the newest."""


class ProfileFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A profile that a run was asked for, with the report files that exist of it.

    ``tool`` is ``nsys`` or ``torch``. ``start`` and ``stop`` are the steps as they were asked for
    (``ProfilePlan``): the first profiled one, and the one just before which profiling ends; for ``nsys`` they count
    from 0, one less than in the log. ``ranks`` are the profiled ranks (None: all). ``folder`` is the path of the
    folder for reports, which need not exist, and ``files`` are names in it, sorted, and empty where there are none
    yet; ``bytes`` is their total size. ``Extras`` has it.
    """

    tool: str
    start: int
    stop: int
    ranks: tuple[int, ...] | None
    folder: str
    files: tuple[str, ...]
    bytes: int


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of ``step`` that a run finished saving; ``extras_of`` makes it.

    ``seconds`` is the time on the slowest rank; None: the log does not say. ``folder`` is the path of the
    checkpoint's own folder, ``bytes`` the size of the files directly in it (0 also where it cannot be listed);
    None: it was deleted since.
    """

    step: int
    seconds: float | None
    bytes: int | None
    folder: str


class LoadedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of ``step`` that a run loaded from the folder ``source``, with the losses around that step.

    ``source`` is the path in the log. ``loss_before`` is the loss of ``step`` in the run that saved it,
    ``loss_after`` that of the step after it in this run. None: not known. ``extras_of`` makes it.
    """

    source: str
    step: int
    loss_before: float | None
    loss_after: float | None
    continued: bool | None
    """Whether the loss went on from there, rather than from untrained weights; None: nobody can tell."""


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints and profiles of a run.

    ``folder`` is the path of the run's own; empty, as all else, where the run was asked for none of these.
    ``profile`` None: none was asked for. ``saved`` and ``loaded`` are in the order of the log. ``lines`` returns a
    list of clauses for people: the checkpoints loaded, the newest three saved, how many more there are, the
    profile, and what is missing, with paths in the run's folder relative to it; empty where there is nothing.
    ``as_dict`` returns JSON values: the five fields by name, nested structs as dictionaries, and ``lines``.
    ``extras_of`` makes it.
    """

    folder: str = ""
    profile: ProfileFiles | None = None
    saved: tuple[SavedCheckpoint, ...] = ()
    loaded: tuple[LoadedCheckpoint, ...] = ()
    missing: tuple[str, ...] = ()
    """What was asked for and is not there, as clauses; empty while the run is alive."""

    def lines(self) -> list[str]:
        """Return clauses for people on checkpoints loaded, the newest three saved, the profile, and what is missing.

        They are in this order, the newest checkpoint last; one more says how many were saved before. Paths in the run's
        folder are relative to it. Empty where the run was asked for none of these, or there is nothing yet.
        """
        found = [*map(_loaded_line, self.loaded), *map(_saved_line, self.saved[-_MOST_SAVED:])]
        if (more := len(self.saved) - _MOST_SAVED) > 0:
            found.append(f"and {counted(more, 'checkpoint')} before, from step {self.saved[0].step} on")
        if self.profile is not None and self.profile.files:
            found.append(_profile_line(self.profile))
        return [line.replace(f"{self.folder}/", "") for line in (*found, *self.missing)]

    def as_dict(self) -> dict[str, Any]:
        """Return the run's checkpoints and profiles as JSON values: every field by its name, and ``lines`` as well.

        The keys are ``folder``, ``profile`` (None or a dictionary), ``saved``, ``loaded`` (dictionaries),
        ``missing`` and ``lines`` (texts).
        """
        return {**msgspec.to_builtins(self), "lines": self.lines()}


def extras_of(record: RunRecord) -> Extras:
    """Return the checkpoints and profiles of a run, from its plan, its log and the files on disk, as they are now.

    Its ``missing`` has a clause for what the run was asked for and has not: a loaded checkpoint, a saved one, a
    profile; empty while the run is live. All of it is empty where the run was asked for none. A log that cannot be
    read counts as one that tells of none. Nothing is written.
    """
    checkpoint, profile = record.plan.checkpoint, _profile(record)
    loads = checkpoint.load is not None or checkpoint.resume
    if not (profile or checkpoint.enabled or loads):
        return Extras()
    saved, loaded = _checkpoints(record)
    missing = []
    if not is_live(record.state):
        if loads and not loaded and not (checkpoint.resume and checkpoint.load is None):
            missing.append(f"no checkpoint was loaded from {printable(str(checkpoint.load))}")
        if checkpoint.enabled and not saved:
            missing.append("no checkpoint was saved")
        if profile is not None and not profile.files:
            missing.append(f"no profile in {profile.folder}")
    return Extras(
        folder=str(record.paths.folder),
        profile=profile,
        saved=saved,
        loaded=loaded,
        missing=(*missing,),
    )


def _checkpoints(record: RunRecord) -> tuple[tuple[SavedCheckpoint, ...], tuple[LoadedCheckpoint, ...]]:
    """Return (saved checkpoints, loaded checkpoints) that the run's log tells of, each in the log's order.

    ``record`` is the run's. Each step that was saved, and each step of a folder that was loaded, is there once: as
    the log tells of it last. Both are empty where the log cannot be opened; where reading it fails, they are those
    found before. Saved ones are looked for in the plan's own folder for checkpoints, else in the run's; one that was
    deleted since has no size.
    """
    folder = Path(record.plan.checkpoint.save or record.paths.checkpoints)
    saved: dict[int, SavedCheckpoint] = {}
    loaded: dict[tuple[str, int], LoadedCheckpoint] = {}
    newest: int | None = None
    with contextlib.suppress(OSError), open_log(record.paths.log) as file:  # the run's status says so
        for offset, marker in find_markers(file, (SAVED, _LOADED, _SAVE_TIME)):
            line = os.pread(file.fileno(), _REACH, offset + len(marker))
            if marker == SAVED and (found := _STEP.match(line)):
                newest = int(found[1])
                at = folder / f"iter_{newest:07d}"
                total_bytes = sum(number for _, number in _files_with_sizes(at)) if at.is_dir() else None
                saved[newest] = SavedCheckpoint(step=newest, seconds=None, bytes=total_bytes, folder=str(at))
            # The time of saving is printed behind the report that the checkpoint is saved.
            elif marker == _SAVE_TIME and newest is not None and (found := _SLOWEST.match(line)):
                saved[newest] = msgspec.structs.replace(saved[newest], seconds=float(found[1]) / 1000)
            elif marker == _LOADED and (found := _SOURCE.match(line)):
                source, step = os.fsdecode(found[1]), int(found[2])
                loaded[source, step] = _loaded_checkpoint(source, step, _iterations(record.paths.log))
    return (*saved.values(),), (*loaded.values(),)


def _profile(record: RunRecord) -> ProfileFiles | None:
    """Return the profile that the run's plan asks for, with the report files that exist; None: it asks for none.

    A folder that is missing or cannot be read counts as one without files.
    """
    plan = record.plan.profile
    if plan is None:
        return None
    folder = record.paths.profiles if plan.tool == "nsys" else record.paths.output / "torch_profile"
    suffix = ".nsys-rep" if plan.tool == "nsys" else ".trace.json"
    files = {path.name: number for path, number in _files_with_sizes(folder) if suffix in path.name}
    return ProfileFiles(
        tool=plan.tool,
        start=plan.start,
        stop=plan.stop,
        ranks=plan.ranks,
        folder=str(folder),
        files=(*sorted(files),),
        bytes=sum(files.values()),
    )


def _loaded_checkpoint(source: str, step: int, iterations: Sequence[Iteration]) -> LoadedCheckpoint:
    """Return a loaded checkpoint with the losses around it, and whether the loss went on from there.

    ``iterations`` are those of the run's log. The loss before is that of ``step`` there, where a job was started
    again, else in the log of the run that saved it, which lies beside ``source``, the folder of its checkpoints.
    The loss goes on where it is nearer to the one before than to that of the first step. ``continued`` is None
    where a loss is not known or training had not lowered it.
    """
    after = _loss_at(iterations, step + 1)
    earlier = iterations if _loss_at(iterations, step) is not None else _iterations_beside(Path(source))
    before, first = _loss_at(earlier, step), _loss_at(earlier, 1)
    continued = None
    if after is not None and before is not None and first is not None and before < first:
        continued = abs(after - before) < abs(after - first)
    return LoadedCheckpoint(source=source, step=step, loss_before=before, loss_after=after, continued=continued)


def _loss_at(iterations: Iterable[Iteration], index: int) -> float | None:
    """Return the loss of the iteration with the number ``index``; None where there is none, or it has no loss."""
    return next((item.loss for item in iterations if item.index == index), None)


def _iterations_beside(checkpoints: Path) -> Sequence[Iteration]:
    """Return the iterations of the log that lies beside ``checkpoints``, the folder of checkpoints of some run.

    It lies in the folder above. Of several logs it is any that can be read. Empty where no such log lies there, or
    it has no iterations.
    """
    for path, _ in _files_with_sizes(checkpoints.parent):
        if is_log_name(path.name):
            try:
                return _iterations(path)
            except OSError:
                continue
    return ()


def _iterations(log: Path) -> Sequence[Iteration]:
    """Return the iterations in the training log ``log``, in order; empty where it has none.

    Raises:
        OSError: the log cannot be read
    """
    with open_log(log) as file:
        return read_log(file).iterations


def _files_with_sizes(folder: Path) -> list[tuple[Path, int]]:
    """Return (path, size in bytes) of each file directly in ``folder``, in no order to rely on.

    Links to files count. Empty where the folder, or one of the files, cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return [(Path(entry.path), entry.stat().st_size) for entry in entries if entry.is_file()]
    except OSError:
        return []


def _loaded_line(item: LoadedCheckpoint) -> str:
    """Return a clause for people on a checkpoint that was loaded, and whether the loss went on from there.

    For example
    ``loaded the checkpoint of step 20 from /a/b; loss 9.1 at step 21 after 9.2 at step 20: it continues``;
    ``IT DOES NOT CONTINUE from there`` stands in place of the latter. What is not known is left out, from the
    semicolon on where ``loss_after`` is not.
    """
    words = f"loaded the checkpoint of step {item.step} from {printable(item.source)}"
    if item.loss_after is None:
        return words
    after = f"; loss {item.loss_after:.4g} at step {item.step + 1}"
    before = f" after {item.loss_before:.4g} at step {item.step}" if item.loss_before is not None else ""
    judged = {True: ": it continues", False: ": IT DOES NOT CONTINUE from there", None: ""}[item.continued]
    return words + after + before + judged


def _saved_line(item: SavedCheckpoint) -> str:
    """Return a clause for people on a checkpoint that was saved: its step, how long that took, its size and folder.

    For example ``saved the checkpoint of step 20 in 3.1 s, 204.0 GB: /a/b/iter_0000020``; the time is left out
    where it is not known, and ``deleted since`` stands in place of the size where that is None.
    """
    took = f" in {item.seconds:.1f} s" if item.seconds is not None else ""
    size_text = size(item.bytes) if item.bytes is not None else "deleted since"
    return f"saved the checkpoint of step {item.step}{took}, {size_text}: {printable(item.folder)}"


def _profile_line(item: ProfileFiles) -> str:
    """Return a clause for people on a profile with at least one file: its steps and ranks, and where its files are.

    ``profiled steps 46 to 50 of rank 0 with nsys, 1 file, 12 MB: /a/b.nsys-rep``: of several files it names the folder.
    """
    if item.ranks is None:
        of = "all ranks"
    else:
        word = "rank" if len(item.ranks) == 1 else "ranks"
        of = f"{word} {', '.join(map(str, item.ranks))}"
    files = f"{counted(len(item.files), 'file')}, {size(item.bytes)}"
    where = f"{item.folder}/{item.files[0]}" if len(item.files) == 1 else item.folder
    # For nsys, Megatron counts from 0 and stops before the last step; its log counts from 1.
    first = item.start + 1 if item.tool == "nsys" else item.start
    steps = f"step {item.stop}" if first == item.stop else f"steps {first} to {item.stop}"
    return f"profiled {steps} of {of} with {item.tool}, {files}: {printable(where)}"
