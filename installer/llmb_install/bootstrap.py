"""The first stage, run from the clone with nothing installed: make the tool's environment, then hand over to it.

Standard library only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from llmb_common.errors import EnvironmentLacks
from llmb_install import arguments, environments, pythons
from llmb_install.guard import guarded
from llmb_install.install_lock import install_lock
from llmb_install.reporter import Reporter, size

_TOOL_BYTES = 150_000_000
"""What the tool's environment takes, with some room."""


def bootstrap(clone: Path, argv: Sequence[str]) -> int:
    """Make sure of the tool's environment and run ``llmb-install`` there with the same arguments.

    Returns an exit status only when that failed: otherwise this process becomes ``llmb-install``.
    """
    return guarded(lambda: _bootstrap(clone, argv))


def _bootstrap(clone: Path, argv: Sequence[str]) -> int:
    asked = arguments.parse(argv)
    install = arguments.install_path(asked, clone)
    environment = tool_environment(clone, install)
    if not environment.is_complete():
        require_space(install, _TOOL_BYTES, "LLMB's own environment")
        log_folder = install / ".llmb" / "logs"
        with Reporter(log_folder, verbose=asked.verbose) as reporter, install_lock(install, reporter):
            environments.ensure(environment, reporter)
    os.environ["LLMB_REPO"] = str(clone)
    interpreter = str(environment.interpreter)
    os.execv(interpreter, [interpreter, "-m", "llmb_install", *argv])


def tool_environment(clone: Path, install: Path) -> environments.Environment:
    """The environment of the tool: the clone itself, editable, with its dependencies as locked."""
    python = pythons.find_python(pythons.is_tool_python)
    assert python is not None, "the caller runs on such a Python"
    return environments.Environment(
        link=install / "venvs" / "llmb",
        python=python,
        lock=clone / "installer" / "locks" / "tool.txt",
        smoke=("llmb_common", "llmb_install", "llmb_run"),
        editable=clone,
        extras="install",
    )


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise EnvironmentLacks unless ``needed`` bytes are free where ``folder`` is or will be."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise EnvironmentLacks(
            f"{what} needs {size(needed)} under {folder}, and {size(free)} are free there",
            remedy="free some space or choose another folder with --install-path",
        )
