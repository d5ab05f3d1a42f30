"""``llmb-install doctor``."""

from __future__ import annotations

import argparse
from pathlib import Path


def doctor(asked: argparse.Namespace, install: Path) -> int:
    raise NotImplementedError
