"""Fixtures of the installer's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from install_world import World, fill_registry, make_world


@pytest.fixture
def world(tmp_path: Path, standins: Path) -> World:
    """A folder in which ``world.run`` runs ``./installer.py`` without a terminal."""
    if shutil.which("mksquashfs") is None:
        pytest.fail("squashfs-tools is needed here; tests/run installs it")
    return make_world(tmp_path, standins)


@pytest.fixture
def registry(world: World) -> Path:
    """The registry with the image of all recipes."""
    fill_registry(world)
    return world.registry
