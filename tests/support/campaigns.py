"""Acceptance campaigns of tests: an installation whose jobs are over at once, and a suite of two workloads."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.cli import Cli, Done

SUITE = """\
name: two
defaults: {size: smoke, dtype: bf16, scale: 1, repeats: 3, reruns: 4}
tests:
  - workload: pretrain_llama3.1
    reference: {seconds: 0.1, source: a contract}
    env: {STEP_MS: "FIRST"}
  - workload: pretrain_grok1
    scale: 2
    reference: {seconds: 0.1, source: a contract}
    env: {STEP_MS: "SECOND"}
"""


class Site(Cli):
    """llmb-run on an installation whose jobs are over at once; ``suite`` writes the suite file."""

    folder: Path

    def suite(self, first: float = 100, second: float = 100, text: str = SUITE) -> Path:
        path = self.folder / "two.yaml"
        path.write_text(text.replace("FIRST", str(first)).replace("SECOND", str(second)))
        return path

    def accept(self, *arguments: str | Path, **variables: str) -> Done:
        return self("accept", self.folder / "two.yaml", *arguments, **variables)

    @property
    def campaign(self) -> Path:
        (found,) = (self.install / "campaigns").glob("two-*/1")
        return found


def unpacked(pack: Path, into: Path) -> dict[str, bytes]:
    into.mkdir()
    subprocess.run(["tar", "-xf", pack, "-C", into, "--strip-components=1"], check=True)
    return {file.relative_to(into).as_posix(): file.read_bytes() for file in into.rglob("*") if file.is_file()}


def runs_of(done: Done) -> list[int]:
    """How many runs each workload has."""
    return [len(item["runs"]) for item in done.data["workloads"]]


def verdicts(done: Done) -> list[str]:
    """That of each workload."""
    return [item["verdict"] for item in done.data["workloads"]]
