"""Releases of the NeMo container: which one an image is, what is in it, and which is newer."""

from __future__ import annotations

import re

from llmb_common.platform.engines import CONTAINERS

_IMAGE = re.compile(r"(?:^|[/+#])nemo[:+]([0-9]{2}\.[0-9]{2}(?:\.[0-9]{2})?)(?!\.?[0-9])")


def container_release(image: str | None) -> str | None:
    """``26.02.01`` of ``nvcr.io#nvidia/nemo:26.02.01`` or ``/images/nvidia+nemo+26.02.01.sqsh``.

    None where the name does not say it: a site's own image is whatever it is.
    """
    found = _IMAGE.search(image or "")
    return found[1] if found else None


def bridge_release(image: str | None) -> str | None:
    """The release of Megatron-Bridge in one of NVIDIA's images; None of another, and where there is none."""
    asked = container_release(image)
    return next((held for container, held in CONTAINERS.items() if same_release(asked, container)), None)


def release_order(release: str) -> tuple[int, ...]:
    """To compare releases with: 25.09 is 25.09.00, and older than 25.11."""
    numbers = [int(part) for part in release.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def same_release(one: str | None, other: str | None) -> bool:
    """Whether both are known and name one release."""
    return one is not None and other is not None and release_order(one) == release_order(other)
