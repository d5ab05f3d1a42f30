"""Programs that a machine may lack where nobody installs packages."""

from __future__ import annotations

import shutil

import pytest

needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs the program ssh-keygen")
