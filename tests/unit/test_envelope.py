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


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        envelope("results", Result({"mfu": float("nan")}))


def test_it_needs_nothing_but_the_standard_library() -> None:
    """The installer's first stage runs before anything is installed."""
    code = "import sys, llmb_common.envelope; print(*sorted({'msgspec', 'yaml', 'click', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"
