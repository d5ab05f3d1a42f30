"""The JSON object and the text that both commands print: one typed result, one place."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from llmb_common.envelope import Result, envelope, print_result
from llmb_common.errors import CheckFailed


def test_a_result_is_text_for_people_and_one_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({"runs": 2}, "2 runs\n", remarks=["next: llmb-run jobs"])
    assert print_result("rebuild", result, as_json=False) == 0
    assert capsys.readouterr() == ("2 runs\n", "next: llmb-run jobs\n")
    assert print_result("rebuild", result, as_json=True, notices=["look"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "schema": 1,
        "command": "rebuild",
        "ok": True,
        "data": {"runs": 2},
        "error": None,
        "notices": ["look"],
    }
    assert printed.err == "next: llmb-run jobs\n"


def test_an_error_beside_data_is_still_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({"runs": []}, error=CheckFailed("not ended", remedy="wait", code="timeout"))
    assert print_result("wait", result, as_json=True) == 1
    printed = capsys.readouterr()
    value = json.loads(printed.out)
    assert (value["ok"], value["data"], value["error"]["code"]) == (False, {"runs": []}, "timeout")
    assert printed.err == "error: not ended\n  -> wait\n"


def test_bad_news_without_an_error_is_not_ok() -> None:
    value = json.loads(envelope("doctor", Result({"checks": []}, status=1)))
    assert (value["ok"], value["error"]) == (False, None)


def test_text_is_harmless_to_a_terminal_and_a_script_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_result("show", Result(text="a\x1b[31mb\n", remarks=["\x1b[2J"]), as_json=False)
    assert capsys.readouterr() == ("a\\x1b[31mb\n", "\\x1b[2J\n")
    print_result("show", Result(text="echo '\x1b[31m'\n", for_programs=True), as_json=False)
    assert capsys.readouterr().out == "echo '\x1b[31m'\n"


def test_only_what_is_printed_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    def never() -> str:
        raise AssertionError("nobody needs it")

    print_result("show", Result(data=never, text=lambda: "text\n"), as_json=False)
    assert capsys.readouterr().out == "text\n"
    print_result("show", Result(data=lambda: {"größe": 1}, text=never), as_json=True)
    printed = capsys.readouterr().out
    assert json.loads(printed)["data"] == {"größe": 1}
    assert '\n  "data": {\n    "größe": 1\n  }' in printed, "people read it, too"


@pytest.mark.parametrize(
    ("terminal", "as_json", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_the_next_step_is_for_people_at_a_terminal(terminal, as_json, shown, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert print_result("install", Result(hint="next: \x1bsource it", status=5), as_json=as_json) == 5
    assert capsys.readouterr().err == ("next: \\x1bsource it\n" if shown else "")


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        envelope("results", Result({"mfu": float("nan")}))


def test_it_needs_nothing_but_the_standard_library() -> None:
    """The installer's first stage runs before anything is installed."""
    code = "import sys, llmb_common.envelope; print(*sorted({'msgspec', 'yaml', 'click', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "\n"
