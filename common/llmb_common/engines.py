"""The engines that recipes train in, by the release of Megatron-Bridge in them. Standard library only."""

from __future__ import annotations

DEFAULT_ENGINE = "0.3"
"""What a recipe needs that names no other."""
