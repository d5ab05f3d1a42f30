"""Writes the pages of ``docs/`` that are made from the code: ``python -m tools.reference --write``.

Without ``--write`` it names the pages that are out of date, exit status 1; a test does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llmb_run.acceptance.outcome import WORKLOAD
from llmb_run.columns import Column, Form
from llmb_run.results.groups import GROUP
from llmb_run.results.run_columns import RUN, STEP
from llmb_run.results.series import HISTORY, SCALING

DOCS = Path(__file__).resolve().parents[1] / "docs"

TABLES: tuple[tuple[str, str, Iterable[Column[Any]]], ...] = (
    ("Runs", "`results`, `show`, `report`, and `runs` in JSON", RUN),
    ("Steps", "`results --iterations`", STEP),
    ("Configurations", "the verdicts of `results`, and `results --group`", GROUP),
    ("Scaling", "`results --scaling`", SCALING),
    ("History", "`results --history`", HISTORY),
    ("Acceptance", "the workloads of `accept`", WORKLOAD),
)


def columns_page() -> Iterator[str]:
    """``docs/columns.md``: what each figure is, and where it is shown."""
    yield "# Columns of results\n"
    yield "In JSON and CSV times are seconds, shares are fractions (0.05 is 5 %), and dates are UTC. A figure that does"
    yield "not exist is empty or null. Made by `tools.reference`.\n"
    for title, shown_by, columns in TABLES:
        yield f"## {title}\n"
        yield f"Shown by {shown_by}.\n"
        yield "| JSON | CSV | tables | what it is |"
        yield "|---|---|---|---|"
        yield from map(_line, columns)
        yield ""


def _line(column: Column[Any]) -> str:
    csv_name = column.csv_name or column.key
    names = [
        f"`{name}`" if form in column.forms else "" for form, name in ((Form.JSON, column.key), (Form.CSV, csv_name))
    ]
    return f"| {' | '.join([*names, column.heading, column.means])} |"


PAGES: dict[str, Callable[[], Iterator[str]]] = {"columns.md": columns_page}


def main(write: bool) -> int:
    texts = {DOCS / name: "\n".join(make()).rstrip() + "\n" for name, make in PAGES.items()}
    stale = [page for page, text in texts.items() if not page.is_file() or page.read_text(encoding="utf-8") != text]
    for page in stale:
        if write:
            page.write_text(texts[page], encoding="utf-8")
        print(f"{'written' if write else 'out of date'}: docs/{page.name}")
    return 1 if stale and not write else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
