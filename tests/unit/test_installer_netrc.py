"""NGC's credentials are replaced as a whole, and no others are touched."""

from __future__ import annotations

import pytest

from llmb_install.parts.netrc_text import added, entries, reached, without

NGC = ("nvcr.io",)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("machine nvcr.io login a password b\n", ""),
        # Words on several lines: half an entry would give its key to the host before it.
        (
            "machine one.example\n  login ann\n  password x\nmachine nvcr.io\n  login $oauthtoken\n  password old\n"
            "machine two.example\n  login bob\n  password y\n",
            "machine one.example\n  login ann\n  password x\nmachine two.example\n  login bob\n  password y\n",
        ),
        ("machine a login b password c machine nvcr.io login d password e\n", "machine a login b password c\n"),
        ("# one\nmachine nvcr.io login a password b\n# two\ndefault login c\n", "# one\n# two\ndefault login c\n"),
        # A value may look like a keyword; a macro ends with an empty line.
        ("machine a login machine password nvcr.io\n", "machine a login machine password nvcr.io\n"),
        ("macdef init\nmachine nvcr.io\n\nmachine nvcr.io password x\n", "macdef init\nmachine nvcr.io\n\n"),
    ],
)  # fmt: skip
def test_an_entry_is_removed_whole_and_no_other_with_it(text: str, kept: str) -> None:
    assert without(text, NGC) == kept


@pytest.mark.parametrize("word", ["login", "account", "password"])
def test_a_value_may_look_like_a_keyword(word: str) -> None:
    (entry,) = entries(f"machine a {word} machine password x\n")
    assert (entry.host, entry.password) == ("a", "x")


def test_hosts_may_look_like_keywords_and_macros_may_have_no_end() -> None:
    text = "machine default password p machine machine password q default password r macdef init\nmachine nvcr.io\n"
    assert [(entry.host, entry.password) for entry in entries(text)] == [("default", "p"), ("machine", "q"), ("", "r")]


def test_passwords_are_found_wherever_they_stand() -> None:
    text = "machine a\nlogin x\n\tpassword p\ndefault login y password q\n"
    assert [(entry.host, entry.password) for entry in entries(text)] == [("a", "p"), ("", "q")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 0),
        ("machine a login b password c", None),
        ("machine a login b\ndefault login c\nmachine d login e\n", 18),
        ("# last\ndefault\n  login c\n", 7),
    ],
)
def test_new_entries_come_before_the_default_which_ends_the_search(text: str, place: int | None) -> None:
    new = "machine nvcr.io login x password y\n"
    found = added(text, new)
    assert found == (f"{text}\n{new}" if place is None else text[:place] + new + text[place:])
    assert [entry.password for entry in reached(found) if entry.host == "nvcr.io"] == ["y"]


def test_what_is_behind_the_default_is_not_found() -> None:
    text = "machine a password b\ndefault password c\nmachine nvcr.io password d\n"
    assert [entry.host for entry in reached(text)] == ["a"]
