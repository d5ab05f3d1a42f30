"""What was read in an image that an installation has adopted: whether its files are whole and belong to the image."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

from llmb_common.base.engines import is_of
from llmb_common.base.errors import LLMBError
from llmb_common.planning.site.cluster import SiteRelease
from llmb_common.recipes.catalogue import Catalogue, read_validation
from llmb_common.recipes.rows import Variant
from llmb_install.parts.squashfs import BadImage, check_superblock
from llmb_install.working.artefact import read_receipt
from llmb_install.working.scratch import write_record


def receipt_path(folder: Path, release: str) -> Path:
    """Return the file in the catalogues' ``folder`` that notes which image ``release`` was read in.

    It is ``adopted-RELEASE.json``, with the release as it is given. The file need not exist.
    """
    return folder / f"adopted-{release}.json"


def write_receipt(folder: Path, release: str, image: Path) -> None:
    """Write the file that notes that ``release`` was read in the image file ``image`` as it is now.

    It is JSON with ``schema``, ``image`` (its path), ``size`` and ``mtime_ns``. The catalogues' ``folder`` is made
    where it is missing, but not the one above it; an earlier file is replaced.

    Raises:
        RecordError: the file cannot be written
        OSError: the folder cannot be made, or the image is missing
    """
    folder.mkdir(exist_ok=True)
    write_record(folder.parent, receipt_path(folder, release), {"schema": 1, "image": str(image), **_file_state(image)})


def _file_state(image: Path) -> dict[str, Any]:
    """Return ``size`` in bytes and ``mtime_ns`` of an image file, one of which changes when the file is replaced.

    They are the keys of the dictionary, with whole numbers; ``mtime_ns`` is in nanoseconds.

    Raises:
        OSError: the file is missing
    """
    status = image.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def problem_with(folder: Path, name: str, own: SiteRelease, image: Path | None, base: Variant) -> str | None:
    """Return what is wrong with the adopted release ``name``, with a remedy; None: nothing.

    The result is two lines: the problem, and behind ``->`` the command that mends it or, where no image is named,
    other advice. It does not end in a line break.

    Args:
        folder: the folder of the catalogues, with the receipts
        name: the release as the configuration names it: 0.7.0 or 0.7
        own: what the configuration says of the release
        image: the image's file; None where the configuration names no image
        base: the variant that plain pretraining runs, to read the catalogue with

    Raises:
        OSError: the image cannot be looked at
    """
    problem = _release_problem(folder, name, own, image, base)
    if problem is None:
        return None
    again = f"llmb-install adopt {quote(own.image)}" if own.image else "write the file again, or name another one"
    return f"{problem}\n  -> {again}"


def _release_problem(folder: Path, name: str, own: SiteRelease, image: Path | None, base: Variant) -> str | None:
    """Return what is wrong with an adopted release, its image or its catalogue, as a sentence; None: nothing.

    It has no full stop. The image is looked at first: that it is there, has a superblock, and is still the file of the
    receipt, if there is one. The receipt of the release ``name`` is in ``folder``; ``own`` is what the configuration
    says of the release, and ``base`` the variant to read its catalogue with.

    Raises:
        OSError: the image cannot be looked at
    """
    if image is not None:
        if not image.is_file():
            return f"its image {image} is missing"
        try:
            check_superblock(image)
        except BadImage as bad:
            return f"its image {image} is damaged: {bad}"
        receipt = read_receipt(receipt_path(folder, name))
        if receipt is not None:
            recorded = {key: receipt.get(key) for key in ("size", "mtime_ns")}
            if recorded != _file_state(image):
                return f"its image {image} is another one than the one that its functions were read in"
    try:
        return _wrong_file(name, own, base)
    except LLMBError as error:
        return error.message


def _wrong_file(name: str, own: SiteRelease, base: Variant) -> str | None:
    """Return what is wrong with the catalogue or the validation of an adopted release, as a sentence; None: nothing.

    It names the file and has no full stop. Both must be of the release ``name``. Either may be absent from ``own``,
    what the configuration says of the release, and is then not checked. ``base``: the variant to read the catalogue
    with.

    Raises:
        LLMBError: one of the files cannot be read
    """
    if own.catalogue is not None:
        catalogue = Catalogue(Path(own.catalogue), base)
        if not is_of(catalogue.release, name):
            return f"{own.catalogue} is of Megatron-Bridge {catalogue.release}"
        if not catalogue.is_intact():
            return f"{own.catalogue} is damaged: its functions are not those of its SHA-256"
    if own.validation is not None:
        validation = read_validation(Path(own.validation))
        if not is_of(validation.release, name):
            return f"{own.validation} is of Megatron-Bridge {validation.release}"
    return None
