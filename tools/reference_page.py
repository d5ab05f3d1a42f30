"""``docs/reference.md``: variables, settings, options, states, exit statuses and JSON, from the code that has them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator

import click
import msgspec

from llmb_common.command.envelope import SCHEMA
from llmb_common.errors import EXIT_STATUS
from llmb_common.platform.cluster_types import ways
from llmb_common.request.variables import COLUMNS, PATIENCE, VARIABLES
from llmb_common.run_states import OWN_STATES, STATES
from llmb_common.site.cluster import ClusterConfig, Engine, HealthSettings, SiteRelease
from llmb_install.answers.questions import QUESTIONS
from llmb_run.app import COMMANDS, load_command
from llmb_run.columns import RUN_KEYS
from tools.json_data import DATA

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
