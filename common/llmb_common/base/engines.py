"""Releases of Megatron-Bridge that recipes train in, and of the containers that hold them. Standard library only."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

DEFAULT_ENGINE = "0.3"
"""What a recipe needs that names no other."""

ENGINES = ("0.3", "0.6")
"""The releases that there are settings for, in order; ``llmb_train.engine`` says what each of them needs. A newer
one is allowed: what it calls otherwise is found in its own classes when the job starts."""

RELEASE = r"[0-9]+\.[0-9]+(?:\.[0-9]+[0-9A-Za-z.+-]*)?"
"""How a release of Megatron-Bridge is written, as a regular expression: 0.7, 0.7.0 or 0.7.0rc1."""

_FACTS = json.loads((Path(__file__).parent / "containers.json").read_text(encoding="utf-8"))

CONTAINERS: dict[str, str] = {tag: known["megatron_bridge"] for tag, known in _FACTS["containers"].items()}
"""Release of Megatron-Bridge by tag of NVIDIA's NeMo containers, in order, as far as known on ``LOOKED_UP``."""

LOOKED_UP: str = _FACTS["looked_up"]

KNOWN_CONTAINERS = f"up to {list(CONTAINERS)[-1]} (looked up {LOOKED_UP})"
"""How far LLMB's knowledge of NVIDIA's containers goes, for messages."""

SOURCES: dict[str, str] = {tag: known["source"] for tag, known in _FACTS["containers"].items() if "source" in known}
"""Where a container's release was found, of those that have no release page of Megatron-Bridge."""

WITHOUT_LAYER_GRAPHS = ("0.6",)
"""Releases that refuse megatron-core's own CUDA graphs where they capture single layers and not whole iterations."""


def minor(release: str) -> str:
    """Return what stands before the second dot of a release of Megatron-Bridge: ``0.6`` of ``0.6.2``.

    All of it where there are fewer dots. Nothing is checked or converted: ``0.7rc1`` comes back as it is.
    """
    return ".".join(release.split(".")[:2])


@functools.cache  # a file of published results has a few releases, thousands of times
def order(release: str) -> tuple[int, ...]:
    """Return the first three numbers of a release, or the fewer that it has, as a tuple to compare releases by.

    (0, 6) of ``0.6`` and (0, 7, 0) of ``0.7.0rc1``; so ``0.6`` comes before ``0.6.0``, and 0.7.0rc1 equals 0.7.0. Other
    characters only separate, so ``0.7rc1`` gives (0, 7, 1); empty of a text without digits.
    """
    return tuple(int(part) for part in re.findall(r"[0-9]+", release)[:3])


def is_of(release: str, name: str) -> bool:
    """Return whether the numbers of ``release`` begin with all those of the series ``name``.

    ``0.7.0`` and ``0.7.0rc1`` are of ``0.7`` and of ``0.7.0``, but ``0.7`` is not of ``0.7.0``. True where ``name`` has
    no number.
    """
    return order(release)[: len(order(name))] == order(name)


def is_newer(release: str) -> bool:
    """Return whether ``release`` of Megatron-Bridge is of a later minor release than all that LLMB has settings for.

    Those are in ``ENGINES``. A later patch of the last known release is not newer; a candidate such as 0.7.0rc1 counts
    as its release. False of a text that is not a release.
    """
    # A later patch of the last known release (0.6.9) uses the same settings, so it is not newer.
    if re.fullmatch(RELEASE, release) is None:
        return False
    return order(minor(release)) > order(ENGINES[-1])


def image_file_name(image: str) -> str:
    """Return Enroot's default file name of an image: what follows the last ``#``, with ``+`` for slashes and colons.

    For ``nvcr.io#nvidia/nemo:26.02.01`` it is ``nvidia+nemo+26.02.01.sqsh``. Without a ``#`` all of ``image`` is used,
    a registry's address before the first slash included.
    """
    path = image.rpartition("#")[2]
    return path.replace("/", "+").replace(":", "+") + ".sqsh"


_IMAGE = re.compile(r"(?:^|[/+#])nemo[:+]([0-9]{2}\.[0-9]{2}(?:\.[0-9]{2})?)(?!\.?[0-9])")


def container_release(image: str | None) -> str | None:
    """Return the release of a container called just ``nemo`` in an image's name or path, such as ``26.02.01``.

    As in ``nvcr.io#nvidia/nemo:26.02.01`` or ``/images/nvidia+nemo+26.02.01.sqsh``; who publishes it is not looked at,
    and letters behind the release do not count. None without an image, and where the name has no such part, as of an
    image that a site has built itself.
    """
    found = _IMAGE.search(image or "")
    return found[1] if found else None


def bridge_release(image: str | None) -> str | None:
    """Return the full release of Megatron-Bridge in one of NVIDIA's NeMo images that LLMB knows, such as ``0.3.1``.

    Told from the image's name alone, in which ``25.09`` equals ``25.09.00``. None of any other image, a later patch of
    a known one included, and without one.
    """
    wanted = container_release(image)
    return next((release for container, release in CONTAINERS.items() if same_release(wanted, container)), None)


def is_later_container(image: str | None) -> bool:
    """Return whether ``image`` is a NeMo container from a later month than all that LLMB knows.

    Told from its name, in which only year and month count. False of later patches of a known container (26.08.02 after
    26.08), of a site's own image and of None.
    """
    wanted = container_release(image)
    if wanted is None:
        return False
    newest = list(CONTAINERS)[-1]
    return release_order(wanted)[:2] > release_order(newest)[:2]


def patched_release(image: str | None) -> str | None:
    """Return the minor release of Megatron-Bridge in an image that is another patch of a NeMo container LLMB knows.

    That is an image of the same year and month: ``0.6`` of ``nemo:26.08.02``, a patch of 26.08. None of any other
    image, of a known container itself, and of None.
    """
    wanted = container_release(image)
    # The release in a known image is known exactly: nothing to infer.
    if wanted is None or bridge_release(image) is not None:
        return None
    month = release_order(wanted)[:2]
    same = [release for tag, release in CONTAINERS.items() if release_order(tag)[:2] == month]
    return minor(same[-1]) if same else None


def release_order(release: str) -> tuple[int, ...]:
    """Return three whole numbers to sort releases of NVIDIA's containers by: year, month and patch.

    What is missing counts as 0. So ``25.09`` equals ``25.09.00`` and is older than ``25.11``. All else in the text is
    ignored.
    """
    return (*order(release), 0, 0)[:3]


def same_release(one: str | None, other: str | None) -> bool:
    """Return whether both releases of a container are known, not None, and the same; ``25.09`` equals ``25.09.00``.

    Only their first three numbers are compared: all else in the texts is ignored, and two texts without a number
    are the same.
    """
    return one is not None and other is not None and release_order(one) == release_order(other)
