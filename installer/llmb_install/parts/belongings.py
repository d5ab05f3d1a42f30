"""What in an installation's folder the installer has put there: only that may ever be removed.

A receipt names it, or it has a name and a content that only the installer gives. Whatever else lies there, in ``bin``
or beside the images, belongs to somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from llmb_common.site.cluster import FILE_NAME
from llmb_install.parts.engine import KINDS
from llmb_install.parts.environment_content import cache_name
from llmb_install.parts.receipts import read_receipt
from llmb_install.parts.wrappers import COMMANDS, is_ours

RECEIPT_SUFFIX = ".receipt.json"
_LINKS = ("llmb", *(engine.name for engine in KINDS.values()))
_BUILD = re.compile(rf"({'|'.join(map(re.escape, _LINKS))})-[0-9a-f]{{8}}(-[0-9a-f]{{6}})?\Z")
_CACHES = tuple(map(cache_name, _LINKS))
_PART = re.compile(r"\..+\.sqsh\.\d+\.[0-9a-f]{8}\.part\Z")
_FOLDERS = ("bin", "venvs", "images", "hugging_face")


def belongings(install: Path) -> list[Path]:
    """Files, links and folders of the installation, without its results and without ``.llmb``."""
    found = [*_commands(install), *_environments(install / "venvs"), *_images(install / "images")]
    found += _model_files(install)
    config = install / FILE_NAME
    return [*found, config] if config.exists() else found


def remove_if_empty(install: Path) -> None:
    """Remove the folders that the installer makes, where nothing is left in them."""
    for name in _FOLDERS:
        folder = install / name
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def _commands(install: Path) -> Iterator[Path]:
    return (path for name in COMMANDS if is_ours(path := install / "bin" / name))


def _environments(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink():
            if path.name in _LINKS and _BUILD.match(str(path.readlink())):
                yield path
        elif path.is_dir() and (_BUILD.match(path.name) or path.name in _CACHES):
            yield path


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
