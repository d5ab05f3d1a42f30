"""Fixtures of the installer's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from install_world import NEMO, World, make_world

from support.images import add_to_registry


@pytest.fixture
def world(tmp_path: Path, standins: Path) -> World:
    """A folder in which ``world.run`` runs ``./installer.py`` without a terminal."""
    if shutil.which("mksquashfs") is None:
        pytest.fail("squashfs-tools is needed here; tests/run installs it")
    return make_world(tmp_path, standins)


@pytest.fixture
def registry(world: World) -> Path:
    """The registry with the image of all recipes."""
    add_to_registry(world.registry, NEMO, {"/opt/x": "x\n"}, ("x86_64",), programs=("bash", "cat"))
    return world.registry
