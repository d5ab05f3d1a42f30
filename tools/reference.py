"""Writes the pages and drawings of ``docs/`` that are made from the code: ``python -m tools.reference --write``.

Without ``--write`` it names the pages that are out of date, exit status 1; a test does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llmb_common.causes.table import numbers, signatures
from llmb_run.acceptance.outcome import WORKLOAD
from llmb_run.columns import Column, Form
from llmb_run.results.groups import GROUP
from llmb_run.results.run_columns import RUN, STEP
from llmb_run.results.series import HISTORY, SCALING
from llmb_run.tuning.outcome import ARM
from tools import pictures
from tools.json_schema import schema_page
from tools.reference_page import reference_page

DOCS = Path(__file__).resolve().parents[1] / "docs"

TABLES: tuple[tuple[str, str, Iterable[Column[Any]]], ...] = (
    ("Runs", "`results`, `show`, `report`, and `runs` in JSON", RUN),
    ("Steps", "`results --iterations`", STEP),
    ("Configurations", "the verdicts of `results`, and `results --group`", GROUP),
    ("Scaling", "`results --scaling`", SCALING),
    ("History", "`results --history`", HISTORY),
    ("Acceptance", "the workloads of `accept`", WORKLOAD),
    ("Tuning", "the table of `tune`", ARM),
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


_FAILURES = """\
# Why a run failed

`llmb-run why RUN` reads everything that a run left behind: its logs and events, the scheduler's state, what its nodes
and ranks wrote, kernel messages if they are readable, stacks, and PyTorch's flight recorders. It names the first line
that is a cause of its own (a *root*), its rank and node, and what to do. It never names a line that only follows
another failure, or a complaint after which iterations continued. If nothing names a cause, the answer is *unknown*,
with the lines that might help. `llmb-run why --since 7d` counts causes by kind and node, and says which nodes to
avoid. `llmb-run why job.out` reads logs that LLMB did not write.

This page is generated from the tables that the command uses: `signatures.yaml` and `xid.json` in `llmb_common/causes`.

## My run failed

| cause | it says | what it means | what to do | whose fault |
|---|---|---|---|---|
"""
_NO_CAUSES = """
## Lines that are no cause

| kind | it says | what it means |
|---|---|---|
"""
_XIDS = """
## Xids

For Xids 144 to 150, NVIDIA's table of NVLink 5 events decides, based on the text of the line. Fatal SXids of the
NVSwitch driver are roots.

| Xid | meaning | role | what to do | NVIDIA's resolution |
|---|---|---|---|---|
"""


def failures_page() -> Iterator[str]:
    """``docs/failures.md``: what ``llmb-run why`` knows."""
    yield _FAILURES.rstrip()
    for item in signatures():
        if item.role == "root":
            sure = "" if item.sure == "certain" else f" ({item.sure})"
            cells = (_cell(item.examples[0]), item.cause, item.remedy.replace("|", "\\|"), item.fault)
            yield f"| `{item.id}`: {item.what}{sure} | {' | '.join(cells)} |"
    yield _NO_CAUSES.rstrip()
    yield from (
        f"| `{item.id}` ({item.role}) | {_cell(item.examples[0])} | {item.cause} |"
        for item in signatures()
        if item.role != "root"
    )
    yield _XIDS.rstrip()
    yield from (f"| {xid.xid} | {xid.meaning} | {xid.role} | {xid.remedy} | {xid.nvidia} |" for xid in numbers().xids)


def _cell(line: str) -> str:
    plain = line.replace("|", "\\|").replace("`", "'")
    return f"`{plain[:160]}`"


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "columns.md": columns_page,
    "failures.md": failures_page,
    "reference.md": reference_page,
    "llmb.schema.json": schema_page,
    "images/sweep.svg": pictures.sweep,
    "images/verdict.svg": pictures.verdict,
    "images/flow.svg": pictures.flow,
}


def main(write: bool) -> int:
    texts = {DOCS / name: "\n".join(make()).rstrip() + "\n" for name, make in PAGES.items()}
    stale = [page for page, text in texts.items() if not page.is_file() or page.read_text(encoding="utf-8") != text]
    for page in stale:
        if write:
            page.parent.mkdir(exist_ok=True)
            page.write_text(texts[page], encoding="utf-8")
        print(f"{'written' if write else 'out of date'}: {page.relative_to(DOCS.parent)}")
    return 1 if stale and not write else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
