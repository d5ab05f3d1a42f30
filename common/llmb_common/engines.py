"""The engines that recipes train in, by the release of Megatron-Bridge in them. Standard library only."""

from __future__ import annotations

DEFAULT_ENGINE = "0.3"
"""What a recipe needs that names no other."""

ENGINES = ("0.3", "0.6")
"""The releases that there are settings for; ``llmb_train.releases`` says what each of them needs."""

WITHOUT_LAYER_GRAPHS = ("0.6",)
"""Releases that refuse megatron-core's own CUDA graphs where they capture single layers and not whole iterations."""


def image_file_name(image: str) -> str:
    """Enroot's default file name of an image: ``nvcr.io#nvidia/nemo:26.02.01`` -> ``nvidia+nemo+26.02.01.sqsh``."""
    path = image.rpartition("#")[2]
    return path.replace("/", "+").replace(":", "+") + ".sqsh"
