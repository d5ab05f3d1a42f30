"""YAML without surprises, and with the line where there is one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmb_common.decoding.strict_yaml import NotFlatError, convert, load_flat, load_struct, load_text
from llmb_common.errors import ConfigError, RecipeError


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    version: str = ""
    count: int = 0


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: list[Item]
    limit: str | None = None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("2:00:00", "2:00:00"),
        ("true", True),
        ("012", 12),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("0x10", "0x10"),
        ("~", None),
        ("'26.10'", "26.10"),
        ("26.10", 26.1),
        ("2026-11-20", "2026-11-20"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    assert load_text(f"a: {text}", "x")[0] == {"a": value}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "x:3: duplicate key 'a' (first on line 1)\n  -> keep one of the two"),
        ("a: [1, 2\n", "x:2: not valid YAML"),
        ("a: !!python/object:os.system x\n", "x:1: the tag"),
        ("a: !secret x\n", "x:1: the tag '!secret'"),
        ("a: &b [*b]\n", "x:1"),
        ("<<: {a: 1}\n", "x:1: merge keys (<<) are not supported\n  -> write the keys out"),
        ("? [a]\n: 1\n", "x:1: a key must be a plain word"),
        ("", "x: the file is empty"),
        ("a: \tb: c: d", "x:1: not valid YAML"),
    ],
)
def test_what_is_surprising_is_an_error_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "x")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("items:\n  - name: a\n    verison: b\n", "file:3: unknown key 'verison' (did you mean 'version'?)"),
        ("items:\n  - name: a\n    version: 26.10\n", "put the value in quotes"),
        ("items:\n  - count: 1\n", "file:2: the key 'name' is missing"),
        ("items:\n  - name: a\n    count: many\n", "file:3: items[0].count is text ('many'), but a whole number"),
        ("limit: 5\nitems: []\n", "file:1: limit is a whole number (5), but text is expected"),
    ],
)
def test_mistakes_against_the_schema_name_the_line_and_the_remedy(text: str, words: str) -> None:
    data, lines = load_text(text, "file")
    with pytest.raises(ConfigError) as caught:
        convert(data, lines, Site, "file")
    assert words in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read"):
        load_struct(tmp_path / "none.yaml", Site, RecipeError)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_struct(tmp_path / "latin.yaml", Site)


@given(st.text(max_size=60))
def test_no_text_raises_any_other_exception(text: str) -> None:
    with contextlib.suppress(ConfigError):
        load_text(text, "x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1e999", "f.yaml:1: the number 1e999 is too large"),
        ("a:\n  - " + "1" * 5000, "f.yaml:2: the number 1+ is too large"),
        ("[" * 60 + "]" * 60, "f.yaml:1: nested too deeply"),
        ("[" * 5000 + "]" * 5000, "nested too deeply|not valid YAML"),
    ],
)
def test_nonsense_is_an_error_and_not_a_traceback(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_text(text, "f.yaml")


def bomb(levels: int) -> str:
    """``levels`` lines, each nine times the one before: 280 bytes mean 9 to the power of levels."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("levels", [6, 30])
def test_nested_aliases_are_refused_before_they_are_expanded(levels: int) -> None:
    with pytest.raises(ConfigError, match=r"^tasks\.yaml: more than 200000 values, with those of aliases"):
        load_text(bomb(levels), "tasks.yaml")


def test_ordinary_aliases_and_long_files_are_read() -> None:
    data, _ = load_text("a: &a {x: 1}\nb: *a\nc: *a\n", "file")
    assert data == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}}
    data, _ = load_text("".join(f"- {{n: {number}}}\n" for number in range(20_000)), "file")
    assert len(data) == 20_000


FLAT = """\
# comment
a: 1
b: x y  # who # pays
c: 'q # r'
d: "z"   # k
e: [a, 'b', 0.6]  # k
f:
- a
- "b"
g: # a list
  - c
h: a,b
i: /a:b
j: true
k: null
l: ~/x
m:
n: []
o: a#b
"""


def test_a_flat_file_is_the_same_without_a_yaml_parser() -> None:
    data, lines = load_flat(FLAT, "x")
    full, all_lines = load_text(FLAT, "x")
    assert data == full
    assert lines == {path: line for path, line in all_lines.items() if path in lines}
    assert set(lines) == {f"$.{key}" for key in full}


@pytest.mark.parametrize(
    "text",
    [
        *("a: b: c", "a: *x", "a: {b: 1}", "a: |\n  x", "- a", "a: b\n c", "a: b\n- c", "a: 'it''s'"),
        *("a:\n  b: c", "a: x:", "a: [b", "a: '\\x41'", "a: [[b]]", "{a: b}", "a: !!str b", "? a", "a: 'b' c", "--- "),
    ],
)
def test_any_other_text_is_left_to_the_parser(text: str) -> None:
    with pytest.raises(NotFlatError):
        load_flat(text, "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: [x]\na: 2", "x:3: duplicate key 'a' \\(first on line 1\\)"),
        ("a: 1\nb x\nc: 2", "x:2: not valid YAML"),
    ],
)
def test_a_slip_in_a_flat_file_needs_no_parser_to_be_told(text: str, said: str) -> None:
    for load in (load_flat, load_text):
        with pytest.raises(ConfigError, match=said.replace("x:2:", "x:[23]:")):
            load(text, "x")
    with pytest.raises(ConfigError, match=said):
        load_flat(text, "x")


@pytest.mark.parametrize("part", ["[", "- ", "? ", "{a: ", "[a, {b: "])
def test_a_text_that_is_nested_without_end_does_not_kill_the_parser(part: str) -> None:
    with pytest.raises(ConfigError, match="x: nested too deeply"):
        load_text(part * 60_000, "x")
