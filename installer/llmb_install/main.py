"""``llmb-install``: the second stage, inside the tool's environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmb_install import arguments
from llmb_install.guard import guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return guarded(lambda: _dispatch(sys.argv[1:] if argv is None else argv))


def _dispatch(argv: Sequence[str]) -> int:
    from llmb_install.quickstart import quickstart

    asked = arguments.parse(argv)
    clone = Path(os.environ.get("LLMB_REPO") or Path(__file__).resolve().parents[2])
    return quickstart(clone, arguments.install_path(asked, clone), verbose=asked.verbose)
