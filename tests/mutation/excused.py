"""Mutants that change nothing: tests/mutation/excused.yaml, each with its reason."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import yaml

from mutation.mutants import Mutant


class Excuses:
    """``where`` is a file and a function, ``change`` is ``before -> after``, as survivors are printed."""

    def __init__(self, file: Path) -> None:
        entries = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else []
        self._reasons = {(entry["where"], entry["change"]): entry["reason"] for entry in entries or []}
        if len(self._reasons) != len(entries or []) or not all(self._reasons.values()):
            raise SystemExit(f"{file}: each entry once, and with a reason")

    def excuse(self, mutant: Mutant) -> bool:
        return (mutant.place, mutant.change) in self._reasons

    def stale(self, mutants: Collection[Mutant]) -> list[str]:
        """Entries for the files of ``mutants`` that fit none of them any more."""
        files = {mutant.file for mutant in mutants}
        places = {(mutant.place, mutant.change) for mutant in mutants}
        return [
            f"{where}: {change}"
            for where, change in self._reasons
            if where.split()[0] in files and (where, change) not in places
        ]
