"""What an installation consists of on disk.

Only what the installer has put there counts: a receipt names it, or it has a name and a content that only the installer
gives. Whatever else lies there, in ``bin`` or beside the images, belongs to somebody. Standard library only, so that a
damaged tool, or none, can be removed.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from llmb_common.planning.site import FILE_NAME
from llmb_install.parts import files
from llmb_install.parts.engine import ENGINE_NAMES, HUB, TOOL
from llmb_install.parts.environment_build import build_names, cache_name, is_environment_link
from llmb_install.parts.files import CATALOGUES
from llmb_install.working import scratch
from llmb_install.working.artefact import read_receipt

RECEIPT_SUFFIX = ".receipt.json"
_PART = re.compile(r"\..+\.sqsh\.\d+\.[0-9a-f]{8}\.part\Z")
"""An import that the installer of release 0.2 left unfinished."""
_ADOPTED = re.compile(r"(catalogue|validation|adopted)-[0-9][0-9A-Za-z.+-]*\.json\Z")
_FOLDERS = ("bin", "venvs", "images", "hugging_face", CATALOGUES)


def _entries(install: Path, name: str) -> list[Path]:
    """Return the paths in the folder ``name`` of the installation, sorted; empty where the folder is missing.

    Empty also where the folder is a link: other installations may share it. ``install`` is the installation's
    folder.

    Raises:
        OSError: the folder cannot be listed
    """
    folder = install / name
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(folder.iterdir())


def belongings(install: Path) -> list[Path]:
    """Return what the installer has made in the installation ``install``, in the order of removal; removes nothing.

    These are images with their receipts and parts of images, adopted catalogues, models that it has downloaded,
    environments, the cluster's configuration, and its scripts in ``bin``. A folder stands for all that is in it.
    Results and ``.llmb`` are not among them. What ``llmb-install`` itself needs comes last, so that it can be called
    again after a kill. Left out are files that are not the installer's own, such as images without a receipt, and what
    is in a folder that is a link.

    Raises:
        OSError: a folder cannot be listed
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
        # The name under which huggingface_hub keeps a repository in its cache.
        folder = install / "hugging_face" / f"models--{str(repository).replace('/', '--')}"
        if repository and folder.is_dir() and folder in _entries(install, "hugging_face"):
            found.append(folder)
    for name in (*ENGINE_NAMES, HUB):
        found += environment_paths(install, name)
    if (install / FILE_NAME).exists():
        found.append(install / FILE_NAME)
    found += environment_paths(install, TOOL)
    bin_folder = install / "bin"
    own = [] if bin_folder.is_symlink() else [bin_folder / name for name in files.COMMANDS]
    return [*found, *(path for path in own if files.is_own_script(path))]


def environment_paths(install: Path, name: str) -> list[Path]:
    """Return what belongs to the environment ``name`` in ``venvs``: its link, builds and package cache; sorted.

    ``install`` is the installation's folder, ``name`` that of the link, such as ``llmb``. Builds need not be
    finished. Only what the installer has made; empty where there is nothing of it, or ``venvs`` is a link.

    Raises:
        OSError: the folder cannot be listed
    """
    build = build_names(name)
    found = []
    for path in _entries(install, "venvs"):
        if path.is_symlink():
            is_its = path.name == name and is_environment_link(path)
        else:
            has_its_name = build.match(path.name) is not None or path.name == cache_name(name)
            is_its = path.is_dir() and has_its_name
        if is_its:
            found.append(path)
    return found


def remove_if_empty(install: Path) -> None:
    """Remove the folders that the installer makes in ``install``, where nothing is left in them.

    They are ``bin``, ``venvs``, ``images``, ``hugging_face`` and that of adopted catalogues. A link or mount stays, as
    does a folder that cannot be removed; no error is raised.
    """
    for folder in (install / name for name in _FOLDERS):
        if folder.is_symlink():
            continue
        begun = folder / scratch.FOLDER  # there where the folder is on another file system
        for path in (begun, begun.parent, folder):
            with contextlib.suppress(OSError):
                path.rmdir()
