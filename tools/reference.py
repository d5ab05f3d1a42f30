"""Writes the pages and drawings of ``docs/`` that are made from the code: ``python -m tools.reference --write``.

Without ``--write`` it names the pages that are out of date, exit status 1; a test does the same.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from llmb_common.causes.table import numbers, signatures
from llmb_common.command.outcome import SCHEMA
from llmb_common.errors import EXIT_STATUS
from llmb_common.platform.cluster_types import ways
from llmb_common.request.variables import COLUMNS, PATIENCE, VARIABLES
from llmb_common.run_states import OWN_STATES, STATES
from llmb_common.site.cluster import ClusterConfig, Engine, HealthSettings, SiteRelease
from llmb_install.answers.questions import QUESTIONS
from llmb_run.acceptance.outcome import WORKLOAD
from llmb_run.app import COMMANDS, load_command
from llmb_run.columns import RUN_KEYS, Column, Form
from llmb_run.results.groups import GROUP
from llmb_run.results.run_columns import RUN, STEP
from llmb_run.results.series import HISTORY, SCALING
from llmb_run.tuning.run import ARM
from tools import pictures
from tools.json_data import DATA
from tools.json_schema import schema_page

_SHARED = 4
"""An option that so many commands have is listed once."""


class _Recipe(dict[str, str]):
    """For defaults that are a recipe's own."""

    def __missing__(self, key: str) -> str:
        return "the recipe's"


def reference_page() -> Iterator[str]:
    yield _TEXT["head"]
    yield from _variables()
    yield _TEXT["site"]
    yield from _settings()
    yield _TEXT["options"]
    yield from _options()
    yield _TEXT["installer"]
    for question in QUESTIONS:
        yield f"| `{question.flag}` | `{question.field}` | {' '.join(question.choices)} | {_cell(question.help)} |"
    yield _TEXT["states"]
    for kind, means in (("waiting", "has no nodes"), ("running", "has nodes"), ("ended", "is over")):
        yield f"| {kind}: it {means} | {' '.join(f'`{name}`' for name, of in STATES.items() if of == kind)} |"
    yield "\n| LLMB's own | kind | meaning |\n|---|---|---|"
    yield from (f"| `{name}` | {kind} | {means} |" for name, (kind, means) in OWN_STATES.items())
    yield _TEXT["statuses"]
    yield from (f"| {status} | {means} |" for status, means in EXIT_STATUS.items())
    yield _TEXT["findings"]
    yield _TEXT["json"].replace("SCHEMA", str(SCHEMA))
    yield from (f"| `{key}` | {means} |" for key, means in RUN_KEYS.items())
    for command, keys in DATA.items():
        yield f"\n### `{command.replace(', ', '`, `')}`\n\n| key | type | what it is |\n|---|---|---|"
        for key, told in keys.items():
            kind, _, means = told.partition(": ")
            yield f"| `{key}` | {_cell(kind)} | {means} |"


def _variables() -> Iterator[str]:
    for name, variable in VARIABLES.items():
        if name not in COLUMNS:
            option = f"`{variable.option}`" if variable.option else ""
            default = variable.default.format_map(_Recipe())
            yield f"| `{name}` | {variable.in_table} | {default} | {option} |"
    column = VARIABLES[next(iter(COLUMNS))]
    yield f"| {' '.join(f'`{name}`' for name in COLUMNS)} | {column.in_table} | {column.default} | `--set` |"
    yield from (
        f"| `{name}` | {means} | [depends](../cli/README.md#jobs-supervise-themselves) | |"
        for name, means in PATIENCE.items()
    )


def _settings() -> Iterator[str]:
    parts = (
        ("", ClusterConfig),
        *((f"{way.name}.", way.settings_type) for way in ways().values()),
        ("engine.", Engine),
        ("releases.NUMBER.", SiteRelease),
        ("health.", HealthSettings),
    )
    for prefix, struct in parts:
        told = docstrings(struct)
        for field in msgspec.structs.fields(struct):
            default = field.default if isinstance(field.default, (str, int, float)) and field.default != "" else None
            shown = "" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
            yield f"| `{prefix}{field.name}` | {shown} | {told[field.name]} |"


def docstrings(struct: type) -> dict[str, str]:
    """The string below each field of a class, on one line.

    Raises:
        KeyError: by whoever looks up a field that has none
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(below.value.value.split()).replace("``", "`").replace("|", "\\|")
        for field, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _options() -> Iterator[str]:
    where: dict[tuple[str, str], list[str]] = defaultdict(list)
    for called, command in _commands():
        for option in command.params:
            if isinstance(option, click.Option) and option.help and not option.hidden:
                where[_named(option), option.help].append(called)
    yield from (f"| `{name}` | {_cell(text)} | |" for (name, text), names in where.items() if len(names) >= _SHARED)
    for (name, text), names in sorted(where.items(), key=lambda item: item[1][0]):
        if len(names) < _SHARED:
            yield f"| `{name}` | {_cell(text)} | {', '.join(f'`{called}`' for called in names)} |"


def _commands() -> Iterator[tuple[str, click.Command]]:
    for name in (name for section in COMMANDS.values() for name in section):
        command = load_command(name)
        yield name, command
        verbs = getattr(command, "commands", None) or getattr(command, "verbs", {})
        yield from ((f"{name} {verb}", below) for verb, below in verbs.items())


def _named(option: click.Option) -> str:
    return ", ".join(option.opts) + (f" {option.metavar}" if option.metavar and not option.is_flag else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_TEXT = {
    "head": """\
# Reference

Generated from the code by `python -m tools --write`. Elsewhere: [columns of results](columns.md),
[causes of failures](failures.md), [words](glossary.md).

## Variables

`launch.sh` and `llmb-run` read these from the environment; options of `llmb-run` take precedence. A value from a fixed
list may be in upper or lower case; switches take `true` or `false`. A misspelt name or an impossible value is an
error. Each recipe's README has its own defaults. `NCCL_*`, `UCX_*`, `NVTE_*`, `TORCH_*` and similar variables in your
shell are passed to the job and recorded in the plan.

| variable | meaning | default | `llmb-run` |
|---|---|---|---|""",
    "site": """
## cluster_config.yaml

| key | default | meaning |
|---|---|---|""",
    "options": """
## Options of llmb-run

`llmb-run COMMAND --help` shows those of one command. Options without a command below belong to several.

| option | meaning | command |
|---|---|---|""",
    "installer": """
## Questions of the installer

Each is a flag of `./installer.py` and a key of a play file. `./installer.py --help` shows the other flags.

| flag | key | values | meaning |
|---|---|---|---|""",
    "states": """
## States of a run

Slurm's own words, also for jobs on this machine:

| kind | states |
|---|---|""",
    "statuses": """
## Exit statuses

| status | meaning |
|---|---|""",
    "findings": """
## Findings, checks, causes, verdicts

| what | where |
|---|---|
| findings of a run's nodes | [evidence](evidence.md#what-is-found) |
| checks of `llmb-run health` | [health](health.md#what-is-checked) |
| causes of failures, Xids | [failures](failures.md) |
| verdicts and remarks | [verdicts](verdicts.md) |
| statuses of a log (`Success`, `Failed`, ...) | [log parsers](../common/README.md) |""",
    "json": """
## JSON

With `--json`, a command prints one object, also when it fails:

| key | what it is |
|---|---|
| `schema` | SCHEMA; it grows when old readers could not take a change. Keys may be added without that |
| `command` | what was called |
| `ok` | whether the exit status is 0 |
| `data` | the answer, below; null if there is none |
| `error` | null, or `code`, `message`, `remedy`, `exit_status` and, for a wrong request, `field` |
| `notices` | the lines that people saw on stderr |

The same is in [llmb.schema.json](llmb.schema.json), a JSON Schema (Draft 7) against which the tests check every answer.
`name[]` is a list of objects, `[string]` a list of strings, and `name?` is not always there. Objects in a list of type
`run`, `result` or `group` also have the keys of a run, those of [Runs](columns.md#runs), or those of
[Configurations](columns.md#configurations). The schema describes `plan` and `diagnosis` in full. Times are seconds
unless they say otherwise.

A run has these keys wherever one is printed:

| key | what it is |
|---|---|""",
}


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
            cells = (_code(item.examples[0]), item.cause, item.remedy.replace("|", "\\|"), item.fault)
            yield f"| `{item.id}`: {item.what}{sure} | {' | '.join(cells)} |"
    yield _NO_CAUSES.rstrip()
    yield from (
        f"| `{item.id}` ({item.role}) | {_code(item.examples[0])} | {item.cause} |"
        for item in signatures()
        if item.role != "root"
    )
    yield _XIDS.rstrip()
    yield from (f"| {xid.xid} | {xid.meaning} | {xid.role} | {xid.remedy} | {xid.nvidia} |" for xid in numbers().xids)


def _code(line: str) -> str:
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
