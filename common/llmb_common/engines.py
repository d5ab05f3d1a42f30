"""The engines that recipes train in, by the release of Megatron-Bridge in them. Standard library only."""

from __future__ import annotations

DEFAULT_ENGINE = "0.3"
"""What a recipe needs that names no other."""

ENGINES = ("0.3", "0.6")
"""The releases that there are settings for; ``llmb_train.releases`` says what each of them needs."""

CONTAINERS = {
    "25.09": "0.1.0",
    "25.11": "0.2.0",
    "26.02": "0.3.0",
    "26.02.01": "0.3.1",
    "26.04": "0.4.0",
    "26.04.01": "0.4.2",
    "26.06": "0.5.0",
    "26.06.01": "0.5.1",
    "26.08": "0.6.0",
}
"""Release of Megatron-Bridge in NVIDIA's NeMo containers, as its release notes say: "NeMo Framework 26.08" stands over
those of 0.6.0 (github.com/NVIDIA-NeMo/Megatron-Bridge/releases). 0.6.2 is on the package index, and in no container."""

WITHOUT_LAYER_GRAPHS = ("0.6",)
"""Releases that refuse megatron-core's own CUDA graphs where they capture single layers and not whole iterations."""


def image_file_name(image: str) -> str:
    """Enroot's default file name of an image: ``nvcr.io#nvidia/nemo:26.02.01`` -> ``nvidia+nemo+26.02.01.sqsh``."""
    path = image.rpartition("#")[2]
    return path.replace("/", "+").replace(":", "+") + ".sqsh"
