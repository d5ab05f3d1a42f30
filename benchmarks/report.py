#!/usr/bin/env python3
"""How long a report on tens to thousands of runs takes, how much memory, and how large it is.

    python benchmarks/report.py [--runs 10 100 1000 10000] [--beside CHECKOUT]

For each number of runs: an installation in a temporary folder, whose logs ``results`` has read before, and then a
report in each form. Prints wall and CPU time of whole processes, the most memory that they take, and the file's size.
As in an installation, what draws the charts is made beforehand: that alone takes 1.2 s and 110 MB.
``--beside`` does the same with another checkout. Exit status 1 if a report takes more memory or is larger than a limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from many_runs import ROOT
from results import Checkout

MEMORY_MB = 150.0
PAGE_MB = 3.0
FORMS = {"markdown": "report.md", "html": "report.html"}

STANDIN = """
from pathlib import Path

def javascript_bundle(_):
    return Path(__file__).with_name("vega.js").read_text(encoding="utf-8")
"""
"""In place of the package that makes what draws the charts: what that has made."""


def keep_library(folder: Path) -> None:
    """Make what draws the charts, and have Python find the stand-in for its maker in ``folder``."""
    import vl_convert

    folder.mkdir()
    (folder / "vega.js").write_text(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), encoding="utf-8")
    (folder / "vl_convert.py").write_text(STANDIN)


def measured(side: Checkout, folder: Path, form: str) -> tuple[float, float, float, float]:
    """Wall seconds, CPU seconds, MB of memory, MB of the file."""
    file = folder / FORMS[form]
    words = ["report", f"--{form}", str(file)]
    wall, cpu = side.timed(words, side.ended)
    amount, unit = side.memory(words).split()
    assert unit == "kB", unit
    return wall, cpu, int(amount) * 1024 / 1e6, file.stat().st_size / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--beside", type=Path, help="another checkout, which does the same")
    options = parser.parse_args()
    roots = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    within = True
    for count in options.runs:
        with tempfile.TemporaryDirectory(prefix="llmb-report-") as name:
            keep_library(Path(name) / "library")
            for at, root in enumerate(roots):
                side = Checkout(root, Path(name) / f"{at}", count, 0)
                side.path = os.pathsep.join([str(Path(name) / "library"), side.path])
                time.sleep(3)  # files that changed a moment ago are read again
                side.timed(["results"], side.ended)
                for form in FORMS:
                    wall, cpu, memory, size = measured(side, Path(name), form)
                    title = f"{count:6} runs, {form}{side.name}"
                    print(f"{title:32} {wall:6.1f} s  {cpu:6.1f} s CPU  {memory:6.0f} MB memory  {size:7.2f} MB")
                    if side.name == "":
                        within = within and memory <= MEMORY_MB and size <= PAGE_MB
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
