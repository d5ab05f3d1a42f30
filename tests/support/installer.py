"""The installer's commands in this process, and the answers of an installation of which nothing else was made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmb_install.answers.answers import ANSWERS_FILE, complete_answers, load_recipes, to_yaml
from llmb_install.answers.questions import Answers
from llmb_install.main import main
from llmb_install.parts.credentials import KEPT

CLONE = Path(__file__).resolve().parents[2]
RECIPES = load_recipes(CLONE)


@pytest.fixture
def install(tmp_path: Path) -> Path:
    return tmp_path / "install"


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(install: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``llmb-install`` without Slurm and without a terminal."""
    monkeypatch.setenv("LLMB_REPO", str(CLONE))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "NGC_API_KEY", "NGC_CLI_API_KEY", KEPT):
        monkeypatch.setenv(name, "")
    for module in ("installation", "commands.operations", "commands.upkeep"):
        monkeypatch.setattr(f"llmb_install.{module}.load_recipes", lambda clone: RECIPES)
    monkeypatch.setattr("shutil.which", lambda name, *_, **__: None)
    monkeypatch.setattr("llmb_install.commands.operations.mpi_types", lambda: ("none", "pmix_v5"))
    monkeypatch.setenv("XDG_STATE_HOME", str(install.parent / "state"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)

    def run(*words: str, path: Path | None = install) -> tuple[int, str, str]:
        status = main([*words, *(["--install-path", str(path)] if path else [])])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def stored(install: Path, **changes: Any) -> Answers:
    base = {"install_path": str(install), "cluster_type": "local", "gpu_type": "cpu", "workloads": ["pretrain_grok1"]}
    answers = complete_answers({**base, **changes}, RECIPES)
    (install / ".llmb").mkdir(parents=True)
    (install / ANSWERS_FILE).write_text(to_yaml(answers))
    return answers
