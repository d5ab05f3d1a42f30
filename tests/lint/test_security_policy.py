"""SECURITY.md names its guards, and they name it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
THREATS = dict(re.findall(r"^\| (S\d+) \| (.*) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE))


def test_each_threat_has_a_guard_that_cites_it_and_no_guard_cites_another() -> None:
    cited: set[str] = set()
    for folder in ("cli", "common", "installer"):
        for path in (ROOT / folder).rglob("*.py"):
            cited.update(re.findall(r"\b(S\d+) of\s+SECURITY\.md", path.read_text()))
    assert cited == THREATS.keys() != set()


def test_the_guards_that_the_policy_names_exist() -> None:
    for name in re.findall(r"`((?:\w+\.)+\w+)`", " ".join(THREATS.values())):
        if name.endswith((".json", ".yaml")):
            continue
        *modules, last = name.split(".")
        files = [
            path
            for folder in ("common/llmb_common", "installer/llmb_install")
            for path in (
                (ROOT / folder).joinpath(*modules).with_suffix(".py"),
                (ROOT / folder).joinpath(*modules, f"{last}.py"),
            )
            if path.is_file()
        ]
        assert files, name
        assert any(path.stem == last or re.search(rf"^(def|class) {last}\b", path.read_text(), re.M) for path in files)
