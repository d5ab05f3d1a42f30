"""``uninstall``: what an installation consists of on disk, and its removal.

Only what the installer has put there is removed, unless a run trains in it or waits for it. A receipt names it, or it
has a name and a content that only the installer gives; whatever else lies there, in ``bin`` or beside the images,
belongs to somebody.

Standard library only, so that a damaged tool, or none, can be removed with any Python that the first stage runs on.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sqlite3
import sys
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmb_common.command.outcome import Result
from llmb_common.command.printable import first_few, printable_lines
from llmb_common.errors import EnvironmentLacks, LLMBError, RecordError, RequestError
from llmb_common.index.database import read_index
from llmb_common.machine.files import read_json
from llmb_common.platform.run_states import is_live
from llmb_common.site import FILE_NAME
from llmb_install.arguments import DESPITE_RUNS
from llmb_install.parts import credentials, files
from llmb_install.parts.engine import ENGINE_NAMES, TOOL
from llmb_install.parts.environment_build import build_names, cache_name, is_ours
from llmb_install.parts.files import ANSWERS_FILE, CATALOGUES
from llmb_install.working.artefact import read_receipt
from llmb_install.working.transaction import transaction

RECEIPT_SUFFIX = ".receipt.json"
_PART = re.compile(r"\..+\.sqsh\.\d+\.[0-9a-f]{8}\.part\Z")
_ADOPTED = re.compile(r"(catalogue|validation)-[0-9][0-9A-Za-z.+-]*\.json\Z")
_FOLDERS = ("bin", "venvs", "images", "hugging_face", CATALOGUES)


def _entries(install: Path, name: str) -> list[Path]:
    """What lies in a folder of the installation; nothing where that is a link: other installations may share it."""
    folder = install / name
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(folder.iterdir())


def belongings(install: Path) -> list[Path]:
    """Files, links and folders of the installation, without its results and without ``.llmb``.

    In the order of removal: what ``llmb-install`` itself needs comes last, so that it can be called again after a kill.
    """
    found = []
    for path in _entries(install, "images"):
        if _PART.match(path.name) and path.is_file():
            found.append(path)
        elif path.name.endswith(RECEIPT_SUFFIX) and (receipt := read_receipt(path)) and "sha256" in receipt:
            image = path.with_name(path.name.removesuffix(RECEIPT_SUFFIX))
            found += [image, path] if image.is_file() else [path]
    found += [path for path in _entries(install, CATALOGUES) if _ADOPTED.match(path.name)]
    for path in sorted((install / ".llmb" / "receipts").glob("hugging_face+*.json")):
        repository = (read_receipt(path) or {}).get("repository")
        folder = install / "hugging_face" / f"models--{str(repository).replace('/', '--')}"
        if repository and folder.is_dir() and folder in _entries(install, "hugging_face"):
            found.append(folder)
    found += [path for name in ENGINE_NAMES for path in environment_paths(install, name)]
    if (install / FILE_NAME).exists():
        found.append(install / FILE_NAME)
    found += environment_paths(install, TOOL)
    bin_folder = install / "bin"
    own = [] if bin_folder.is_symlink() else [bin_folder / name for name in files.COMMANDS]
    return [*found, *(path for path in own if files.is_ours(path))]


def environment_paths(install: Path, name: str) -> list[Path]:
    """The link of the environment, its builds, finished or not, and the cache of its packages."""
    build = build_names(name)
    found = []
    for path in _entries(install, "venvs"):
        if path.is_symlink():
            is_its = path.name == name and is_ours(path)
        else:
            is_its = path.is_dir() and (build.match(path.name) is not None or path.name == cache_name(name))
        if is_its:
            found.append(path)
    return found


def remove_if_empty(install: Path) -> None:
    """Remove the folders that the installer makes, where nothing is left in them."""
    for name in _FOLDERS:
        folder = install / name
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def uninstall(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Remove what the installer has made. Results (``workloads/``) stay unless ``--results-too`` says otherwise; what
    others have put beside it stays in any case."""
    if not (path / ANSWERS_FILE).is_file():  # readable or not: a damaged installation can be removed too
        raise files.no_installation(path)
    if not options.yes:
        _require_no_runs(options, path)
        _confirm(path, _targets(options, path))  # without the lock: somebody may think for long
    with transaction(path, verbose=options.verbose, log=False) as reporter:
        _require_no_runs(options, path)
        targets = _targets(options, path)
        for target in targets:
            with reporter.step(f"removing {target}"):
                _remove(target)
        if file := credentials.remove_ngc_key(path):
            reporter.note(f"removed the NGC key from {file}")
        remove_if_empty(path)
        _remove_state(path / ".llmb")
    for folder in (path / ".llmb", path):
        with contextlib.suppress(OSError):  # somebody else's things, or another installer's
            folder.rmdir()
    stays = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    data = {"install_path": str(path), "removed": [str(target) for target in targets], "stays": stays}
    return Result(data, f"removed; still in {path}: {', '.join(stays)}\n" if stays else "")


def _require_no_runs(options: argparse.Namespace, path: Path) -> None:
    if options.despite_runs:
        return
    doing = f"cannot uninstall {path}"
    try:
        from llmb_install.commands.upkeep import require_no_runs

        require_no_runs(path, doing)
    except LLMBError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged environment fails with anything, also later than its import
        if names := _unfinished_on_record(path):
            why = f"note: the tool that asks what became of a job is damaged ({error}): what was last seen counts"
            print(printable_lines(why), file=sys.stderr)
            raise runs_remain(doing, names) from error


def runs_remain(doing: str, names: Sequence[str]) -> EnvironmentLacks:
    """The refusal of ``doing`` because of the runs ``names``."""
    count = "a run has" if len(names) == 1 else f"{len(names)} runs have"
    return EnvironmentLacks(
        f"{doing}: {count} not ended: {first_few(names, 5)}",
        remedy=f"wait for them or end them with llmb-run cancel, then try again; {DESPITE_RUNS} removes anyway",
        code="live-runs",
    )


def _unfinished_on_record(install: Path) -> list[str]:
    """The runs that had not ended when they were last looked at, each with its state.

    Records that cannot be read are left out: a damaged installation can be removed too.
    """
    found = {}
    for folder in _experiments(install):
        for file in folder.glob("*/*/run.json"):
            is_run = not any(path.name.startswith(".") for path in (file.parent, file.parent.parent))
            with contextlib.suppress(RecordError, AttributeError):
                record = read_json(file) if is_run else {}
                if is_live(record.get("state", "FAILED")):
                    found[str(record["run_id"])] = f"{record['run_id']} ({record['workload']}, {record['state']})"
    return sorted(found.values())


def _experiments(install: Path) -> Iterator[Path]:
    """The folders that runs are in: the installation's, and those of others that its index knows."""
    yield from install.glob("workloads/*/experiments")
    with contextlib.suppress(sqlite3.Error), read_index(install) as index:
        for (folder,) in index.execute("SELECT folder FROM roots"):
            yield Path(folder)


def _targets(options: argparse.Namespace, path: Path) -> list[Path]:
    results = path / "workloads"
    return [*belongings(path), *([results] if options.results_too and results.exists() else [])]


def _remove_state(folder: Path) -> None:
    """Remove what is in ``.llmb``: near the end the answers, because while they are there, uninstall can be repeated,
    and then the lock, which tells those who wait for it."""
    last = [folder / ANSWERS_FILE.name, folder / "lock"]
    for entry in [entry for entry in folder.iterdir() if entry not in last and entry.name != "lock.owner"]:
        _remove(entry)
    for entry in last:
        entry.unlink()


def _remove(target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _confirm(path: Path, targets: list[Path]) -> None:
    names = ", ".join(str(target.relative_to(path)) for target in targets)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RequestError(
            f"uninstall of {path} would remove {names}, and there is no terminal to confirm it", remedy="give --yes"
        )
    print(f"This removes from {path}: {names}", file=sys.stderr)
    with contextlib.suppress(termios.error, OSError, ValueError):  # keys that were pressed before are no answer
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    print("Type yes to continue: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise RequestError("not confirmed, so nothing was removed")
