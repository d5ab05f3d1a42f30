"""The tables of ``docs/`` that are made from the code, and the JSON Schema: ``python -m tools --write reference``."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec

from llmb_common.base.cluster_types import all_traits
from llmb_common.base.errors import EXIT_STATUS, RecipeError
from llmb_common.base.run_states import OWN_STATES, STATES
from llmb_common.base.strict_yaml import read_text
from llmb_common.causes.table import driver_tables, signatures
from llmb_common.planning.deviations import TABLE
from llmb_common.planning.request.variables import COLUMNS, PATIENCE, VARIABLES
from llmb_common.planning.site.cluster import ClusterConfig, Engine, HealthSettings, SiteRelease
from llmb_install.answers.questions import QUESTIONS
from llmb_run.acceptance.outcome import WORKLOAD
from llmb_run.app import COMMANDS, load_command
from llmb_run.columns import RUN_KEYS, Column, Form
from llmb_run.results.groups import GROUP
from llmb_run.results.run_columns import RUN, STEP
from llmb_run.results.series import HISTORY, SCALING
from llmb_run.tuning.answer import ARM
from tools import dated, json_schema
from tools.markdown import fill, lines

PAGES = ("acceptance.md", "administrators.md", "catalogue.md", "failures.md", "reference.md")

_SHARED = 4
"""An option that so many commands have is listed once."""


def files() -> dict[Path, str]:
    """The pages with their tables, and the schema."""
    docs = json_schema.PAGE.parent
    pages = [dated.FIRST_PAGE, *(docs / name for name in PAGES)]
    found = {page: fill(read_text(page, RecipeError), page.name, TABLES, dated.FIGURES) for page in pages}
    return {**found, docs / "llmb.schema.json": json.dumps(json_schema.document(), indent=1) + "\n"}


class _Recipe(dict[str, str]):
    """For defaults that are a recipe's own."""

    def __missing__(self, key: str) -> str:
        return "the recipe's"


def _columns(columns: Iterable[Column[Any]]) -> Iterator[str]:
    """What each figure is, and where it is shown."""
    yield from ("| JSON | CSV | tables | what it is |", "|---|---|---|---|")
    for column in columns:
        json_name = f"`{column.key}`" if Form.JSON in column.forms else ""
        csv_name = f"`{column.csv_name or column.key}`" if Form.CSV in column.forms else ""
        yield f"| {json_name} | {csv_name} | {column.heading} | {column.means} |"


def _causes() -> Iterator[str]:
    yield from ("| cause | it says | what it means | what to do | whose fault |", "|---|---|---|---|---|")
    for item in signatures():
        if item.role == "root":
            sure = "" if item.sure == "certain" else f" ({item.sure})"
            cells = (_line(item.examples[0]), item.cause, _cell(item.remedy), item.fault)
            yield f"| `{item.id}`: {item.what}{sure} | {' | '.join(cells)} |"


def _no_causes() -> Iterator[str]:
    yield from ("| kind | it says | what it means |", "|---|---|---|")
    for item in signatures():
        if item.role != "root":
            yield f"| `{item.id}` ({item.role}) | {_line(item.examples[0])} | {item.cause} |"


def _deviations() -> Iterator[str]:
    """What jobs do otherwise than NVIDIA's runner, in the words of plans."""
    yield from ("| jobs | here | NVIDIA's runner | because |", "|---|---|---|---|")
    for one, _ in TABLE:
        yield f"| {one.jobs} | {one.here} | {one.nvidia} | {one.why} |"


def _line(text: str) -> str:
    plain = _cell(text).replace("`", "'")
    return f"`{plain[:160]}`"


def _variables() -> Iterator[str]:
    yield from ("| variable | meaning | default | `llmb-run` |", "|---|---|---|---|")
    column = VARIABLES[next(iter(COLUMNS))]
    alike = [name for name in COLUMNS if VARIABLES[name].meaning == column.meaning]
    for name, variable in VARIABLES.items():
        if name not in alike:
            option = "`--set`" if name in COLUMNS else ""
            if variable.option:
                option = f"`{variable.option}`"
            default = variable.default.format_map(_Recipe())
            yield f"| `{name}` | {variable.in_table} | {default} | {option} |"
    yield f"| {' '.join(f'`{name}`' for name in alike)} | {column.in_table} | {column.default} | `--set` |"
    yield from (
        f"| `{name}` | {means} | [depends](../cli/README.md#jobs-supervise-themselves) | |"
        for name, means in PATIENCE.items()
    )


def _settings() -> Iterator[str]:
    yield from ("| key | default | meaning |", "|---|---|---|")
    parts = (
        ("", ClusterConfig),
        *((f"{way.name}.", way.settings_type) for way in all_traits().values()),
        ("engine.", Engine),
        ("releases.NUMBER.", SiteRelease),
        ("health.", HealthSettings),
    )
    for prefix, struct in parts:
        field_docs = docstrings(struct)
        for field in msgspec.structs.fields(struct):
            default = field.default if isinstance(field.default, (str, int, float)) and field.default != "" else None
            if isinstance(default, bool):
                default = str(default).lower()
            shown = "" if default is None else f"`{default}`"
            yield f"| `{prefix}{field.name}` | {shown} | {field_docs[field.name]} |"


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
    yield from ("| option | meaning | command |", "|---|---|---|")
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
    for name in chain.from_iterable(COMMANDS.values()):
        command = load_command(name)
        yield name, command
        verbs = getattr(command, "commands", None) or getattr(command, "verbs", {})
        yield from ((f"{name} {verb}", below) for verb, below in verbs.items())


def _named(option: click.Option) -> str:
    return ", ".join(option.opts) + (f" {option.metavar}" if option.metavar and not option.is_flag else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _states() -> Iterator[str]:
    yield from ("| kind | states |", "|---|---|")
    for kind, means in (("waiting", "has no nodes"), ("running", "has nodes"), ("ended", "is over")):
        yield f"| {kind}: it {means} | {' '.join(f'`{name}`' for name, of in STATES.items() if of == kind)} |"


def _text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    return lines(head, rows, words=len(head))


def _xids() -> Iterator[str]:
    rows = ((xid.xid, xid.meaning, xid.role, xid.remedy, xid.nvidia) for xid in driver_tables().xids)
    return _text(("Xid", "meaning", "role", "what to do", "NVIDIA's resolution"), rows)


def _questions() -> Iterator[str]:
    rows = ((f"`{each.flag}`", f"`{each.field}`", " ".join(each.choices), _cell(each.help)) for each in QUESTIONS)
    return _text(("flag", "key", "values", "meaning"), rows)


def _own_states() -> Iterator[str]:
    rows = ((f"`{name}`", kind, means) for name, (kind, means) in OWN_STATES.items())
    return _text(("LLMB's own", "kind", "meaning"), rows)


def _statuses() -> Iterator[str]:
    return _text(("status", "meaning"), EXIT_STATUS.items())


def _run() -> Iterator[str]:
    return _text(("key", "what it is"), ((f"`{key}`", means) for key, means in RUN_KEYS.items()))


TABLES: dict[str, Callable[..., Iterable[str]]] = {
    "runs": partial(_columns, RUN),
    "steps": partial(_columns, STEP),
    "configurations": partial(_columns, GROUP),
    "scaling": partial(_columns, SCALING),
    "history": partial(_columns, HISTORY),
    "acceptance": partial(_columns, WORKLOAD),
    "tuning": partial(_columns, ARM),
    "causes": _causes,
    "no_causes": _no_causes,
    "xids": _xids,
    "deviations": _deviations,
    **dated.TABLES,
    "variables": _variables,
    "settings": _settings,
    "options": _options,
    "questions": _questions,
    "states": _states,
    "own_states": _own_states,
    "statuses": _statuses,
    "run": _run,
}
