"""What is needed to explain and repeat a result: versions, commit, hashes, host, overrides, and the training code.

The code travels with a run as one zip archive: a queued job does not change under an update.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import platform
import re
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmb_common import __version__
from llmb_common.base.errors import EnvironmentLacks, RecordError
from llmb_common.base.files import sha256_of, unreadable
from llmb_common.base.printable import printable
from llmb_common.base.programs import Answer, run_program
from llmb_common.planning.job_plan import JobPlan


@contextlib.contextmanager
def _naming_what_cannot_be_read() -> Iterator[None]:
    """Return a context, or decorator, that turns an OSError raised in it into an error that names the file.

    Raises:
        EnvironmentLacks: an OSError was raised in the context
    """
    try:
        yield
    except OSError as error:
        raise unreadable(error.filename, error, EnvironmentLacks) from error


@_naming_what_cannot_be_read()
def make_manifest(
    plan: JobPlan, recipe_folder: Path, code: Path, origin: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the manifest of a run as far as it is known at submission, as JSON values; nothing is written.

    Its keys are ``llmb`` and ``python`` (their versions), ``host``, ``utc_offset`` (seconds), ``command`` (a list of
    words), those of ``origin_of``, ``image`` (a dictionary with ``path``, and with ``receipt``, the text of its
    receipt, and ``bytes`` where these files exist; None without an image) and ``environment_overrides``, by name the
    variables that the user's own environment set. ``plan`` is the run's; ``recipe_folder`` is the folder of
    recipe.yaml, ``code`` that of the training code. The job itself adds driver, NCCL and framework versions to its
    log. ``origin`` is ``origin_of`` for the same folders, where many jobs share one; None: it is looked up here.

    Raises:
        EnvironmentLacks: the recipe, the code or the receipt of the image cannot be read
    """
    return {
        "llmb": __version__,
        "python": platform.python_version(),
        "host": platform.node(),
        "utc_offset": time.localtime().tm_gmtoff,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        **(origin or origin_of(recipe_folder, code)),
        "image": _image(plan),
        "environment_overrides": {name: item.value for name, item in plan.env.items() if item.source == "environment"},
    }


@_naming_what_cannot_be_read()
def origin_of(recipe_folder: Path, code: Path) -> dict[str, Any]:
    """Return where a run's recipe and code come from, for its manifest: git state and SHA-256 of both.

    ``recipe_folder`` is the folder of recipe.yaml, ``code`` that of the training code. The keys are ``git`` (an answer
    of ``git_state``; None outside a clone), ``recipe_sha256`` and ``code_sha256``, both in hexadecimal.

    Raises:
        EnvironmentLacks: recipe.yaml or a file of the training code cannot be read
    """
    return {
        "git": git_state(recipe_folder),
        "recipe_sha256": sha256_of(recipe_folder / "recipe.yaml"),
        "code_sha256": hash_of_packed(pack_code(code)),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return ``commit`` (in full) and ``dirty`` (a tracked file was changed) of the clone that holds ``folder``.

    None outside a clone, without git, before the first commit, or if git takes longer than 20 seconds. In a clone
    that belongs to somebody else git refuses to work, because its configuration may name programs; reading the
    commit runs none, but ``dirty`` is None there. Nothing in the clone is changed.
    """
    status = _run_git(folder, "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
    if not status.ok:
        head = _run_git(folder, "-c", "safe.directory=*", "rev-parse", "HEAD")
        return {"commit": head.output.strip(), "dirty": None} if head.ok else None
    commit = re.search(r"^# branch\.oid ([0-9a-f]+)$", status.output, re.MULTILINE)  # "(initial)" without a commit
    changed = any(not line.startswith("# ") for line in status.output.splitlines())
    return {"commit": commit[1], "dirty": changed} if commit else None


def _run_git(folder: Path, *arguments: str) -> Answer:
    """Run git with ``arguments`` in ``folder`` for at most 20 seconds; return its exit status and output.

    A git that is missing, fails or takes longer is part of the answer (``ok`` False) and not raised.
    """
    # Without optional locks: looking at a clone must not be in the way of who works in it.
    return run_program(["git", "--no-optional-locks", "-C", str(folder), *arguments], 20)


def image_receipt(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what the installer noted of a run's image, from the run's manifest: ``sha256``, ``source`` and more.

    ``manifest`` is that of a record, whose ``image`` has the note as JSON text under ``receipt``. Nothing of it is
    checked. Empty where there is no such note, or it is damaged.
    """
    with contextlib.suppress(TypeError, ValueError, RecursionError, KeyError):
        receipt = json.loads(manifest["image"]["receipt"])
        return receipt if isinstance(receipt, dict) else {}
    return {}


def image_line(manifest: dict[str, Any]) -> str:
    """Return the path, digest and source of a run's image as one line for people; empty where the run had none.

    ``/a/x.sqsh, sha256:1a2b..., of nvcr.io/...``. ``manifest`` is that of a record, as ``make_manifest`` returns it.
    Without a digest it says ``no digest on record``; a source that is not known is left out. Nothing in the manifest
    is relied on, each part is cut at 300 characters, and control characters are replaced.
    """
    image = manifest.get("image")
    if not isinstance(image, dict):
        return ""
    known = image_receipt(manifest)
    digest = f"sha256:{known['sha256']}" if known.get("sha256") else "no digest on record"
    parts = [image.get("path", "?"), digest]
    if known.get("source"):
        parts.append(f"of {known['source']}")
    return printable(", ".join(str(part)[:300] for part in parts))


def _image(plan: JobPlan) -> dict[str, Any] | None:
    """Return ``path``, ``receipt`` and ``bytes`` of the plan's image; None where the plan has no image.

    ``path`` is as the plan has it; ``receipt`` is the text of the file that the installer left beside the image,
    with hash and source; ``bytes`` is the image's size. The latter two have no entry where there is no such file.

    Raises:
        OSError: the receipt cannot be read
    """
    if plan.image is None:
        return None
    path = Path(plan.image)
    value: dict[str, Any] = {"path": plan.image}
    receipt = path.with_name(path.name + ".receipt.json")
    if receipt.is_file():
        value["receipt"] = receipt.read_text(encoding="utf-8", errors="replace")
    if path.is_file():
        value["bytes"] = path.stat().st_size
    return value


def training_code() -> Path:
    """Return the folder of this installation's ``llmb_train``, which is copied into runs and never imported here.

    Raises:
        EnvironmentLacks: it is missing
    """
    folder = Path(__file__).resolve().parents[2] / "llmb_train"
    if not (folder / "__main__.py").is_file():
        raise EnvironmentLacks(f"the training code {folder} is missing", remedy="reinstall LLMB")
    return folder


def pack_code(code: Path) -> bytes:
    """Return the Python and JSON files of the package in folder ``code`` as a zip archive that Python can import from.

    Subfolders count, and names in it begin with that of ``code``: ``llmb_train/config.py``. The same files give the
    same bytes. Nothing is written.

    Raises:
        OSError: a file cannot be read
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(path for path in code.rglob("*") if path.suffix in (".py", ".json")):
            name = f"{code.name}/{path.relative_to(code).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())  # ZipInfo: a fixed date
    return buffer.getvalue()


def hash_of_packed(code: bytes) -> str:
    """Return one SHA-256, in hexadecimal, over names and contents of the files in ``code``, a result of ``pack_code``.

    Raises:
        RecordError: ``code`` is no zip archive, or is damaged
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            for name in archive.namelist():
                content = hashlib.sha256(archive.read(name)).hexdigest()
                digest.update(f"{name.partition('/')[2]}\0{content}\n".encode())
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RecordError(f"the packed training code cannot be read: {error}") from error
    return digest.hexdigest()
