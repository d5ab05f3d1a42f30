"""YAML without surprises, with the line where there is one, and mistakes against a schema in words."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from llmb_common.base.errors import ConfigError, RecipeError
from llmb_common.base.strict_yaml import NotFlatError, convert, load_flat, load_struct, load_text, value_on_line
from support.properties import given, st
from support.texts import Texts


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("levels", [6, 30])
def test_nested_aliases_are_refused_before_they_are_expanded(levels: int, texts: Texts) -> None:
    with texts.raises(ConfigError):
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
p:
  q: 1

  "0.7": x # k
  r:
      s: [a]
  # comment
  t: {u: 1, 'v.w': /x y} # k
  x:
  - b
y: {}
z: ü
"""


def test_a_flat_file_is_the_same_without_a_yaml_parser() -> None:
    data, lines = load_flat(FLAT, "x")
    full, all_lines = load_text(FLAT, "x")
    assert data == full
    assert lines | {"$": all_lines["$"]} == all_lines


ENDS = ("a", "b:", "c: ", "- ", "[a, b]", "{a: 1}", "{a: 1, ", "[", "}", ",", " #", "#", "'", "é", "\u2028")
LINES = ("a: 1", "b:", "c: x", "- d", "- e", "'f':", "g: {a: 1, b: x}", "h: [a, 'b']", "i: x # k", "# k", "", "j k")


def test_whatever_is_read_without_a_yaml_parser_is_what_the_parser_reads() -> None:
    chance = random.Random(1)
    read = 0
    for _ in range(4000):
        lines = [chance.choice((0, 0, 2, 2, 4)) * " " + chance.choice(LINES) for _ in range(chance.randint(1, 6))]
        if chance.random() < 0.5:
            lines[chance.randrange(len(lines))] += "".join(chance.choices(ENDS, k=chance.randint(1, 3)))
        text = "\n".join(lines)
        try:
            data, at = load_flat(text, "x")
        except NotFlatError:
            continue
        except ConfigError:
            with pytest.raises(ConfigError):
                load_text(text, "x")
            continue
        full, all_at = load_text(text, "x")
        assert (repr(data), at | {"$": all_at["$"]}) == (repr(full), all_at), text
        read += 1
    assert read > 200


def test_a_value_on_a_line_is_what_the_parser_reads() -> None:
    data, _ = load_text(FLAT, "x")
    alone = {key: value for key, value in data.items() if not isinstance(value, list | dict)}
    assert {key: value_on_line(FLAT, key) for key in alone} == alone
    assert value_on_line("x: {a: 1}\n  a: 2\n# a: 3\nb: 'it''s'", "a") is None, "no key at the top"
    assert value_on_line("b: 'it''s'", "b") is None, "for a parser"


@pytest.mark.parametrize(
    "text",
    [
        *("a: b: c", "a: *x", "a: {b: {c: 1}}", "a: |\n  x", "- a", "a: b\n c", "a: b\n- c", "a: 'it''s'", "# a"),
        *(
            "a:\n  b: c\n d: e",
            "a:\n- b: c",
            "a: b\n  c: d",
            "a: [b,]",
            "a: {b}",
            "a: [b # c]",
            "a: {b: 1, b: 2}",
            "a:\tb",
        ),
        *("a: x:", "a: [b", "a: '\\x41'", "a: [[b]]", "{a: b}", "a: !!str b", "? a", "a: 'b' c", "--- "),
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
def test_a_text_that_is_nested_without_end_does_not_kill_the_parser(part: str, texts: Texts) -> None:
    with texts.raises(ConfigError):
        load_text(part * 60_000, "x")


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: Literal["fast", "slow"] = "fast"
    count: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    flag: bool = False
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    count: int = 0
    names: list[str] = []
    items: list[Item] = []
    groups: dict[str, Item] = {}
    environment: dict[str, str] = {}
    only: Literal["one"] = "one"
    either: int | str = 0
    text: str = ""
    maybe: str | None = None
    api_key: str = ""
    pair: tuple[int, str] = (1, "")
    many: tuple[Literal["x", "yy"], ...] = ()
    place: str | Item = ""
    short: Annotated[str, msgspec.Meta(min_length=1)] = "x"
    tiny: Annotated[float, msgspec.Meta(ge=1e-6)] = 1.0
    lists: dict[str, list[bool]] = {}


QUOTES = "put the value in quotes"
WRITE_LISTS = "write lists: true, or lists: false"
WHOLE = "write a whole number, without a unit or quotes"
REMOVE = "remove the key or correct its name"

MISTAKES = [
    # what a key holds, and what it should hold
    ("flag: yes", "flag is text ('yes'), but true or false is expected", "write flag: true, or flag: false"),
    ("flag:", "flag is empty, but true or false is expected", "write flag: true, or flag: false"),
    ("share: half", "share is text ('half'), but a number is expected", "write a number, without a unit or quotes"),
    ("count: 1.5", "count is a number (1.5), but a whole number is expected", WHOLE),
    ("count: [1]", "count is a list, but a whole number is expected", WHOLE),
    ("count: " + "x" * 58, f"count is text ('{'x' * 58}'), but a whole number is expected", WHOLE),
    ("count: " + "x" * 59, "count is text, but a whole number is expected", WHOLE),
    ("names: one", "names is text ('one'), but a list is expected", "write a list: names: [first, second]"),
    ("names: {a: 1}", "names is a group of keys, but a list is expected", "write a list: names: [first, second]"),
    ("names: [a, 1]", "names[1] is a whole number (1), but text is expected", QUOTES),
    (
        "groups: [a]",
        "groups is a list, but a group of keys is expected",
        "write its keys on separate lines below groups:, indented by two spaces",
    ),
    ("lists: {a: [1]}", "lists[...][0] is a whole number, but true or false is expected", WRITE_LISTS),
    ("either: 1.5", "either is a number (1.5), but a whole number or text is expected", WHOLE),
    ("text: 5", "text is a whole number (5), but text is expected", QUOTES),
    ("text: true", "text is true or false (true), but text is expected", QUOTES),
    ("text: [a]", "text is a list, but text is expected", "write one value"),
    ("text: {a: 1}", "text is a group of keys, but text is expected", "write one value"),
    ("text:", "text is empty, but text is expected", "write a value, or remove the key"),
    ("maybe: 5", "maybe is a whole number (5), but text is expected", QUOTES),
    ("pair: [a, b]", "pair[0] is text ('a'), but a whole number is expected", WHOLE),
    # the value of a secret is not shown
    ("api_key: 12345", "api_key is a whole number, but text is expected", QUOTES),
    # the whole file
    ("5", "the file is a whole number (5), but a group of keys is expected", "start each line with a key and a colon"),
    # limits
    ("share: 1", "share (1) is out of range", "use less than 1"),
    ("share: 0.0", "share (0.0) is out of range", "use more than 0"),
    ("tiny: 0.0", "tiny (0.0) is out of range", "use at least 1e-06"),
    ("items: [{name: a, count: 0}]", "items[0].count (0) is out of range", "use at least 1"),
    ("items: [{name: a, count: 9}]", "items[0].count (9) is out of range", "use at most 8"),
    # choices
    ("only: two", "only ('two') is unknown", "write only: one"),
    ("many: [x, y]", "many[1] ('y') is unknown (did you mean 'yy'?)", "use one of x, yy"),
    (
        "items: [{name: a, kind: fats}]",
        "items[0].kind ('fats') is unknown (did you mean 'fast'?)",
        "use one of fast, slow",
    ),
    ("place: {name: a, kind: x}", "place.kind ('x') is unknown", "use one of fast, slow"),
    ("groups: {a: {name: a, kind: x}}", "groups[...].kind is unknown", "use one of fast, slow"),
    ("short: ''", "short ('') is too short", "write at least 1 character"),
    # keys
    ("txet: a", "unknown key 'txet' (did you mean 'text'?)", REMOVE),
    ("zzz: a", "unknown key 'zzz'", REMOVE),
    ("items: [{nmae: a, name: b}]", "unknown key 'nmae' (did you mean 'name'?) (at items[0])", REMOVE),
    ("items: [{count: 1}]", "the key 'name' is missing (at items[0])", "add it"),
]


@pytest.mark.parametrize(("text", "message", "remedy"), MISTAKES, ids=[text[:30] for text, *_ in MISTAKES])
def test_a_mistake_is_told_with_its_key_and_its_remedy(text: str, message: str, remedy: str) -> None:
    data, lines = load_text(text, "f")
    with pytest.raises(ConfigError) as caught:
        convert(data, lines, Site, "f")
    assert (caught.value.message, caught.value.remedy) == (f"f:1: {message}", remedy)


def test_what_has_no_words_of_its_own_is_told_as_it_is(texts: Texts) -> None:
    data, lines = load_text("pair: [1]", "f")
    with texts.raises(ConfigError):
        convert(data, lines, Site, "f")


@pytest.mark.parametrize(
    "text",
    [
        "items:\n- name: a\n- name: b\n  kind: fats\n",
        # msgspec names no key of a mapping: the first value of the kind that it complains of is meant.
        "environment:\n  A: x\n  B: 5\n  C: 6\n",
        "environment:\n  A: x\n  B: [1]\n",
        "environment:\n  A: x\n  B: 1.5\n",
        "environment:\n  A: x\n  B: true\n",
        "environment:\n  A: x\n  B: {}\n",
        "environment:\n  A: x\n  B:\n",
        "groups:\n  a: {name: x}\n  b: text\n",
        # Deeper inside a mapping, the line is that of the mapping.
        "flag: true\ngroups:\n  a: {name: x}\n  b: {name: y, kind: z}\n",
        "flag: true\ngroups:\n  b: {nmae: y}\n",
    ],
)
def test_the_line_is_that_of_the_value(text: str, texts: Texts) -> None:
    data, lines = load_text(text, "f")
    with texts.raises(ConfigError):
        convert(data, lines, Site, "f")


# YAML itself


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(f"a: {word}", None) for word in ("", "~", "null", "Null", "NULL")],
        *[(f"a: {word}", True) for word in ("true", "True", "TRUE")],
        *[(f"a: {word}", False) for word in ("false", "False", "FALSE")],
        *[(f"a: {word}", word) for word in ("no", "2:00:00", "0x10", "2026-11-20")],
        ("a: 012", 12),
        ("a: +5", 5),
        ("a: -5", -5),
        ("a: " + "9" * 18, 10**18 - 1),
        ("a: 1.", 1.0),
        ("a: .5", 0.5),
        ("a: 1e-5", 1e-5),
        ("a: -1.5E+3", -1500.0),
        ("a: 'null'", "null"),
        ('a: "5"', "5"),
        ("a: |\n  5\n", "5\n"),
        ("a: >\n  5\n  6\n", "5 6\n"),
        ("a: =", "="),
        ("'<<': 1\na: 2", 2),
    ],
)
def test_what_a_scalar_is(text: str, value: object) -> None:
    found = load_text(text, "f")[0]["a"]
    assert (found, type(found)) == (value, type(value))


def test_a_whole_number_beyond_eighteen_digits_is_none() -> None:
    assert isinstance(load_text("a: " + "9" * 19, "f")[0]["a"], float)


def test_every_value_has_its_line() -> None:
    _, lines = load_text("a: 1\nb:\n  - x\n  - c: 2\n", "f")
    assert lines == {"$": 1, "$.a": 1, "$.b": 2, "$.b[0]": 3, "$.b[1]": 4, "$.b[1].c": 4}


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a: 1\nb: 2\na: 3\n", "keep one of the two"),
        ("a: \tb: c: d", "correct that line"),
        ("a: !!python/object:os.system x\n", "write the plain value"),
        ("a: [1, 2\n", "correct that line"),
        ("a: !secret x\n", "write the plain value"),
        ("b: 1\na: &b [*b]\n", "write the value out"),
        ("b: 1\n? [a]\n: 1\n", ""),
        ("b: 1\n<<: {a: 1}\n", "write the keys out"),
        ("b: 1\na: " + "1" * 400 + "\n", ""),
        ("", "restore its content, or name another file"),
        ("\x00", ""),
    ],
)
def test_what_yaml_allows_and_we_do_not(text: str, remedy: str, texts: Texts) -> None:
    with pytest.raises(RecipeError) as caught:
        load_text(text, "f", RecipeError)
    texts(caught.value, mask='(?<=not valid YAML: ).*|  in "<unicode.*')
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(("levels", "refused"), [(49, False), (50, True)])
def test_values_may_be_nested_fifty_deep(levels: int, refused: bool, texts: Texts) -> None:
    text = "[" * levels + "1" + "]" * levels
    if refused:
        with texts.raises(ConfigError):
            load_text(text, "f")
    else:
        load_text(text, "f")


def test_a_file_is_named_with_its_line_and_byte(tmp_path: Path, texts: Texts) -> None:
    file = tmp_path / "f.yaml"
    with texts.raises(ConfigError):
        load_struct(file, Site)
    file.write_bytes(b"text: \xe9\n")
    with texts.raises(RecipeError):
        load_struct(file, Site, RecipeError)
    file.write_text("flag: true\ncount: x\n")
    with texts.raises(RecipeError):
        load_struct(file, Site, RecipeError)
    file.write_text("text: größe\n", encoding="utf-8")
    assert load_struct(file, Site).text == "größe"
