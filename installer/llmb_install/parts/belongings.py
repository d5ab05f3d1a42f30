"""What in an installation's folder the installer has put there: only that may ever be removed.

A receipt names it, or it has a name and a content that only the installer gives. Whatever else lies there, in ``bin``
or beside the images, belongs to somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from llmb_common.site.cluster import FILE_NAME
from llmb_install.parts import wrappers
from llmb_install.parts.environments.engine import ENGINE_NAMES
from llmb_install.parts.environments.environment_content import build_names, cache_name, is_ours
from llmb_install.parts.environments.tool import TOOL
from llmb_install.parts.receipts import read_receipt

RECEIPT_SUFFIX = ".receipt.json"
_PART = re.compile(r"\..+\.sqsh\.\d+\.[0-9a-f]{8}\.part\Z")
_FOLDERS = ("bin", "venvs", "images", "hugging_face")


def belongings(install: Path) -> list[Path]:
    """Files, links and folders of the installation, without its results and without ``.llmb``.

    In the order of removal: what ``llmb-install`` itself needs comes last, so that it can be called again after a kill.
    """
    found = [*_images(install / "images"), *_model_files(install)]
    found += [path for name in ENGINE_NAMES for path in environment_paths(install, name)]
    config = install / FILE_NAME
    found += [config] if config.exists() else []
    return [*found, *environment_paths(install, TOOL), *_commands(install)]


def environment_paths(install: Path, name: str) -> list[Path]:
    """The link of the environment, its builds, finished or not, and the cache of its packages."""
    folder = install / "venvs"
    build = build_names(name)

    def is_its(path: Path) -> bool:
        if path.is_symlink():
            return path.name == name and is_ours(path)
        return path.is_dir() and (build.match(path.name) is not None or path.name == cache_name(name))

    return sorted(filter(is_its, folder.iterdir())) if folder.is_dir() else []


def remove_if_empty(install: Path) -> None:
    """Remove the folders that the installer makes, where nothing is left in them."""
    for name in _FOLDERS:
        folder = install / name
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def _commands(install: Path) -> Iterator[Path]:
    return (path for name in wrappers.COMMANDS if wrappers.is_ours(path := install / "bin" / name))


def _images(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _PART.match(path.name) and path.is_file():
            yield path
        elif path.name.endswith(RECEIPT_SUFFIX) and (receipt := read_receipt(path)) and "sha256" in receipt:
            image = path.with_name(path.name.removesuffix(RECEIPT_SUFFIX))
            if image.is_file():
                yield image
            yield path


def _model_files(install: Path) -> Iterator[Path]:
    for path in sorted((install / ".llmb" / "receipts").glob("hugging_face+*.json")):
        repository = (read_receipt(path) or {}).get("repository")
        folder = install / "hugging_face" / f"models--{str(repository).replace('/', '--')}"
        if repository and folder.is_dir():
            yield folder
