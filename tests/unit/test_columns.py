"""Columns: one list from which tables, CSV, JSON, the page and docs/reference.md derive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmb_run import columns
from llmb_run.columns import ALL, TEXT, Column, Form, attribute_at, formatted, item
from support.cli import Cli
from tools import reference
from tools.__main__ import update

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (None, ".3f", ""),
        (5.7415, ".3f", "5.742"),
        (0.0512, ".1%", "5.1"),
        (-0.0001, "+.1%", "+0.0"),
        (-0.05, "+.1%", "-5.0"),
        (5.74147, "g", "5.74147"),
        ("RUNNING", "", "RUNNING"),
        (128, "d", "128"),
    ],
)
def test_how_people_see_a_value(value: Any, spec: str, text: str) -> None:
    assert formatted(value, spec) == text


RUNS: tuple[Column[dict[str, Any]], ...] = (
    Column("name", item("name"), ALL, "", "run"),
    Column("seconds", item("seconds"), ALL, *("", "step", "s", ".2f"), csv_name="step_s"),
    Column("watts", item("watts"), TEXT, *("", "power", "W", ".0f"), optional=True),
    Column("share", item("share"), Form.JSON | Form.PAGE, *("", "spread", "%", ".1%")),
)
ROWS = [{"name": "=a1", "seconds": 1 / 3, "watts": None, "share": 0.5}, {"name": "b", "seconds": None, "watts": None}]


def test_a_figure_is_in_every_form_that_its_column_names() -> None:
    assert columns.table(RUNS, ROWS) == "run  step s\n=a1    0.33\nb\n"
    assert columns.csv_of(RUNS, ROWS) == f"name,step_s\n'=a1,{1 / 3}\nb,\n"
    assert columns.as_dict(RUNS, ROWS[0]) == {"name": "=a1", "seconds": 1 / 3, "share": 0.5}
    assert [column["key"] for column in columns.column_descriptions(RUNS)] == ["name", "seconds", "share"]
    assert columns.cells(columns.of_json(RUNS), Form.MARKDOWN, ROWS)[0] == ["run", "step s"]


@pytest.mark.parametrize("least", [None, 4])
def test_columns_leave_a_narrow_table_on_a_terminal_as_in_a_pipe(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = {"name": "a" * 30, "long": "b" * 20, "word": "PASS"}
    shown: list[Column[dict[str, str]]] = [Column(key, item(key), Form.TABLE, head=key) for key in row]
    piped = columns.fitting(shown, [row], ("long",), 40, least=least)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert columns.fitting(shown, [row], ("long",), 40, least=least) == piped
    assert piped.splitlines()[1] == f"{'a' * 30}  PASS"


def test_an_optional_column_appears_with_its_first_value() -> None:
    assert columns.cells(RUNS, Form.TABLE, [*ROWS, {"watts": 697.4}])[0] == ["run", "step s", "power W"]


def test_attributes_below_none_are_none() -> None:
    assert attribute_at("real.imag")(5) == 0
    assert attribute_at("record.plan")(type("Run", (), {"record": None})) is None


def test_every_figure_of_a_run_has_a_line_in_the_documentation() -> None:
    assert update(reference.files(), write=False) == 0, "python -m tools --write"


@pytest.mark.slow
def test_the_published_schema_takes_answers_and_errors_and_nothing_else(cli: Cli) -> None:
    fastjsonschema = pytest.importorskip("fastjsonschema", reason="fastjsonschema is not installed here")
    schema = fastjsonschema.compile(json.loads((ROOT / "docs" / "llmb.schema.json").read_text()))
    for words in (["list"], ["jobs"], ["show", "nothing"], ["list", "--gpu-type", "h1000"]):
        schema(json.loads(cli(*words, "--json").out))
    answer = json.loads(cli("jobs", "--json").out)
    for change in ({"schema": 2}, {"command": "job"}, {"data": {"runs": [{"run_id": 7}]}}, {"data": {"run": []}}):
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            schema(answer | change)
