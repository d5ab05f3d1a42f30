"""``uninstall``: what is ours goes, unless a run trains in it or waits for it.

Standard library only, so that a damaged tool, or none, can be removed with any Python that the first stage runs on.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

from llmb_common.base.errors import LLMBError, RecordError, RequestError
from llmb_common.base.files import read_json
from llmb_common.base.outcome import Result
from llmb_common.base.printable import print_message
from llmb_common.base.run_states import is_live
from llmb_common.base.strict_yaml import NotFlatError, load_flat
from llmb_common.runs.index.roots import list_file, run_folders_in
from llmb_install.arguments import runs_remain_error
from llmb_install.parts import credentials, files
from llmb_install.parts.belongings import belongings, remove_if_empty
from llmb_install.parts.files import ANSWERS_FILE, read_settings
from llmb_install.working import scratch
from llmb_install.working.reporter import Reporter
from llmb_install.working.transaction import at_work, install_lock, transaction


def uninstall(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``uninstall``: remove what the installer has made, if the user confirms it or gave ``--yes``.

    ``path`` is the installation's folder, which goes, too, if nothing is left in it. Results (``workloads/``) stay
    unless ``--results-too`` is given; what others have put beside it stays in any case. An NGC key that release 0.2
    put into the user's Enroot credentials is removed there. The result's data has ``install_path``, ``removed``, a
    list of paths in the order of their removal, and ``stays``, the names that are left in the folder, sorted
    (empty: the folder is gone, too, or nothing is in it). ``clone`` plays no part. ``options`` is the parsed
    command line.

    Raises:
        EnvironmentLacks: there is no installation, runs have not ended, or another installer is at work
        RequestError: the user did not confirm, or there is no terminal to ask on
        OSError: something cannot be removed; what was removed before is gone, and the command can be repeated
    """
    if not (path / ANSWERS_FILE).is_file():  # readable or not: a damaged installation can be removed too
        raise files.no_installation_error(path)
    if not options.yes:
        _require_no_runs(options, path)
        _confirm_removal(path, _paths_to_remove(options, path))  # without the lock: somebody may think for long
    with transaction(path, verbose=options.verbose, log=False) as reporter:
        _require_no_runs(options, path)
        targets = _paths_to_remove(options, path)
        for target in targets:
            with reporter.step(f"removing {target}"):
                _remove_path(target)
        try:
            file = credentials.remove_ngc_key(path)
        except RecordError as problem:  # no reason to keep the rest, and nothing that another attempt would change
            reporter.note(f"note: {problem}")
        else:
            if file is not None:
                reporter.note(f"removed the NGC key from {file}")
        _sweep_images(path, reporter)
        remove_if_empty(path)
        _remove_state(path / ".llmb")
    for folder in (path / ".llmb", path):
        with contextlib.suppress(OSError):  # somebody else's things, or another installer's
            folder.rmdir()
    stays = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    data = {"install_path": str(path), "removed": [str(target) for target in targets], "stays": stays}
    return Result(data, f"removed; still in {path}: {', '.join(stays)}\n" if stays else "")


def _require_no_runs(options: argparse.Namespace, path: Path) -> None:
    """Raise where runs of the installation have not ended, unless ``--despite-runs`` was given.

    Where the tool that asks for jobs is damaged, the states on record count, and the user is told. Where the records
    are damaged, nothing is raised. ``path`` is the installation's folder. ``options`` is the parsed command line.

    Raises:
        EnvironmentLacks: code ``live-runs``; names at most five of the runs
    """
    if options.despite_runs:
        return
    doing = f"cannot uninstall {path}"
    try:
        from llmb_install.commands.upkeep import require_no_runs

        require_no_runs(path, doing)
    except LLMBError:
        raise
    except Exception as error:
        if names := _unfinished_on_record(path):
            print_message(
                f"note: the tool that asks for the state of jobs is damaged ({error}): using their last known states"
            )
            raise runs_remain_error(doing, names) from error


def _unfinished_on_record(install: Path) -> list[str]:
    """Return the runs that have not ended by their records, as ``ID (WORKLOAD, STATE)``, sorted; empty: none.

    Runs elsewhere count, too, where their folder is on the installation's list. No scheduler is asked. Records that
    cannot be read, or lack a state, run or workload, are left out: a damaged installation can be removed, too.
    ``install`` is the installation's folder.
    """
    found = {}
    for folder in run_folders_in(map(str, _experiment_folders(install))).found:
        with contextlib.suppress(RecordError, AttributeError, KeyError):
            record = read_json(Path(folder) / "run.json")
            if is_live(record.get("state", "FAILED")):
                found[str(record["run_id"])] = f"{record['run_id']} ({record['workload']}, {record['state']})"
    return sorted(found.values())


def _experiment_folders(install: Path) -> Iterator[Path]:
    """Yield the folders that hold runs: those in the installation, and those elsewhere that are on its list.

    Those in the installation come first. Those elsewhere need not exist, and a folder may come twice. A missing or
    damaged list counts as empty. ``install`` is the installation's folder.
    """
    yield from install.glob("workloads/*/experiments")
    with contextlib.suppress(RecordError, LookupError, TypeError):  # no list, or a damaged one
        yield from map(Path, read_json(list_file(install))["folders"])


def _paths_to_remove(options: argparse.Namespace, path: Path) -> list[Path]:
    """Return the paths that ``uninstall`` removes, in order: what the installer made and then, maybe, the results.

    Results, ``workloads`` in ``path``, are asked for by ``--results-too``. Empty where nothing of it is there.
    ``options`` is the parsed command line.

    Raises:
        OSError: a folder cannot be listed
    """
    targets = list(belongings(path))
    results = path / "workloads"
    if options.results_too and results.exists():
        targets.append(results)
    return targets


def _sweep_images(install: Path, reporter: Reporter) -> None:
    """Remove what this user's killed imports have left in the folder of images, if that has a ``.llmb`` of its own.

    The folder is the one in the answers, else the installation's own; one that several installations share has its
    own lock in ``.llmb``. Nothing is removed while somebody imports there, or where the folder is closed to this
    user; no error is raised. ``reporter`` tells the user what was removed. ``install`` is the installation's
    folder.
    """
    folder = install / "images"
    with contextlib.suppress(LLMBError, NotFlatError):  # damaged answers
        named = read_settings(install / ANSWERS_FILE, load_flat)[0].get("image_folder")
        folder = Path(str(named)) if named else folder
    with contextlib.suppress(LLMBError, OSError):
        if not (folder / scratch.FOLDER).is_dir() or at_work(folder):
            return
        with install_lock(folder, reporter, patience=0, create=False):
            for path in scratch.sweep(folder):
                reporter.note(f"removed {path}")


def _remove_state(folder: Path) -> None:
    """Empty ``folder``, the installation's ``.llmb``; the folder itself and ``lock.owner`` in it stay.

    The answers go last but one, because as long as they are there, uninstall can be repeated. The lock goes last,
    which tells those who wait for it that the installation is gone. The caller holds it.

    Raises:
        OSError: an entry cannot be removed, or answers or lock are missing
    """
    last = [folder / ANSWERS_FILE.name, folder / "lock"]
    for entry in [entry for entry in folder.iterdir() if entry not in last and entry.name != "lock.owner"]:
        _remove_path(entry)
    for entry in last:
        entry.unlink()


def _remove_path(target: Path) -> None:
    """Remove a file, a link, or a folder with its content; one that is gone already is no error.

    Of a link, what it leads to stays.

    Raises:
        OSError: ``target`` cannot be removed; of a folder, some of its content may be gone then
    """
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _confirm_removal(path: Path, targets: list[Path]) -> None:
    """List on stderr what would be removed from the installation ``path``, and wait until the user types ``yes``.

    The word must be in lower case; blanks around it do not count. Removes nothing itself. Each of ``targets`` must lie
    in ``path``.

    Raises:
        RequestError: the user typed anything else, or there is no terminal to ask on (``--yes`` is for that)
    """
    names = ", ".join(str(target.relative_to(path)) for target in targets)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RequestError(
            f"uninstall of {path} would remove {names}, and there is no terminal to confirm it", remedy="give --yes"
        )
    print_message(f"This removes from {path}: {names}")
    with contextlib.suppress(termios.error, OSError, ValueError):  # keys that were pressed before are no answer
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    print("Type yes to continue: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise RequestError("not confirmed, so nothing was removed")
