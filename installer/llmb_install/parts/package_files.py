"""The files of installed packages: those of one environment in another; the package that is a clone.

The CPU engines have torch and sixty more packages in common, 1.5 GB of them. Hard links take neither room nor the
minute that unpacking and compiling takes. pip only ever replaces files, so that neither environment changes the other.
Standard library only, as ``environment_build``, which calls this.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from llmb_common import __version__
from llmb_common.base.packages import damaged_files, record_hash

_METADATA = ".dist-info"


def add_clone(environment: Path, clone: Path) -> None:
    """Make the Python of ``environment`` import the packages of ``clone`` in place, like an editable install.

    ``environment`` is the folder of a Python environment, which must be there; ``clone`` is an absolute path. Writes
    ``llmb.pth`` and the metadata of a package ``llmb`` into its packages; the metadata must not be there yet.

    Raises:
        OSError: a file cannot be written, or the metadata is there
    """
    packages = next(environment.glob("lib/python3.*/site-packages"))
    # Python reads this file as the locale's encoding, which may not have the letters of a path.
    folders = [os.fsencode(clone / name) for name in ("common", "cli", "installer")]
    line = f"import os, sys; sys.path.extend(map(os.fsdecode, {folders}))\n".encode("ascii")
    digest = record_hash(hashlib.sha256(line).digest())
    metadata = packages / f"llmb-{__version__}{_METADATA}"
    metadata.mkdir()
    (packages / "llmb.pth").write_bytes(line)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: llmb\nVersion: {__version__}\n", "ascii")
    (metadata / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}}))
    (metadata / "RECORD").write_text(f"llmb.pth,sha256={digest},{len(line)}\n", "ascii")


def link_packages(source: Path, target: Path, wanted: Collection[str]) -> list[str]:
    """Hard-link packages of the environment ``source`` into ``target``; return those linked, as ``NAME==VERSION``.

    Both are folders, or links to them. The packages are sorted by their metadata folders. ``wanted`` names them as
    returned, in lower case with ``-``; others are not linked. Nothing happens, and the list is empty, where the
    Pythons differ, where the file system has no hard links, where a file of ``source`` is damaged, or where either
    folder is missing or has no Python packages. Packages that ``target`` has, in whatever version, stay. After an
    error what was linked stays.

    Raises:
        OSError: a file cannot be read or linked
    """
    source = source.resolve()  # its link may move while we read
    source_packages = next(source.glob("lib/python3.*/site-packages"), None)
    target_packages = next(target.glob("lib/python3.*/site-packages"), None)
    if (
        source_packages is None
        or target_packages is None
        or source_packages.parent.name != target_packages.parent.name
        or not _can_link(source_packages, target_packages)
    ):
        return []
    present = {_requirement(metadata).partition("==")[0] for metadata in target_packages.glob(f"*{_METADATA}")}
    found = {_requirement(metadata): metadata for metadata in sorted(source_packages.glob(f"*{_METADATA}"))}
    lacking = [name for name in found if name.partition("==")[0] not in present]
    chosen = {name: found[name] for name in lacking if name in wanted}
    # A damaged file would be shared by both environments, and repairing one would not mend the other.
    if not chosen or any(damaged_files(source)):
        return []
    for metadata in chosen.values():
        _link_package(metadata, target_packages)
    return list(chosen)


def _link_package(metadata: Path, there: Path) -> None:
    """Hard-link the files of the package with the folder ``metadata`` into the ``site-packages`` folder ``there``.

    Its programs stay behind: each names the Python that it was installed for. Its record is written last, which makes
    it an installed package. After an error, what was linked stays.

    Raises:
        OSError: a file cannot be read, linked or written, or is there already
    """
    record = metadata / "RECORD"
    with record.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.reader(stream) if row and not row[0].startswith(("..", "/"))]
    for name in (row[0] for row in rows):
        if name == f"{metadata.name}/RECORD":
            continue
        file = there / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # compiled files may be missing
            file.hardlink_to(metadata.parent / name)
    # Byte code, which uv writes but does not list as pip does.
    modules = {row[0] for row in rows if row[0].endswith(".py")}
    for folder in {PurePosixPath(name).parent for name in modules}:
        for compiled in (metadata.parent / folder / "__pycache__").glob("*.pyc"):
            target = there / folder / "__pycache__" / compiled.name
            stem = compiled.name.partition(".")[0]
            if f"{folder / stem}.py" in modules and not target.exists():
                target.parent.mkdir(exist_ok=True)
                target.hardlink_to(compiled)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    # Last: it makes the package an installed one.
    (there / metadata.name / "RECORD").write_text(text.getvalue(), encoding="utf-8")


def _requirement(metadata: Path) -> str:
    """Return the requirement of an installed package, ``huggingface-hub==1.33.0``, by its metadata folder's name.

    The folder is such as ``huggingface_hub-1.33.0.dist-info``. The name is in lower case, with ``-`` for ``_`` and
    ``.``; nothing is read.
    """
    name, _, version = metadata.name.removesuffix(_METADATA).rpartition("-")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def _can_link(here: Path, there: Path) -> bool:
    """Return whether files of the folder ``here`` can be hard-linked into ``there``; tried with one file.

    That link is removed. Both are ``site-packages`` folders. False where the link cannot be made, or ``here`` has no
    package.
    """
    probe = there / f".llmb-link-{os.getpid()}"
    source = next(here.glob(f"*{_METADATA}/RECORD"), None)
    try:
        if source is None:
            return False
        probe.hardlink_to(source)
        probe.unlink()
    except OSError:
        return False
    return True
