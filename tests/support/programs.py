"""Programs that a machine may lack where nobody installs packages."""

from __future__ import annotations

import shutil

import pytest

needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
