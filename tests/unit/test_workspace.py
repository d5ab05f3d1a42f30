"""The workloads of an installation: found by name, each recipe read once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes import loading

ROOT = Path(__file__).parents[2]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the recipes that are read, in turn."""
    folders: list[str] = []
    load = loading.load_recipe

    def counted(folder: Path) -> object:
        folders.append(folder.name)
        return load(folder)

    monkeypatch.setattr(loading, "load_recipe", counted)
    return folders


@pytest.mark.parametrize("name", ["pretrain_grok1", "grok1", "Grok1"])
def test_a_workload_is_found_by_both_names_and_read_once(read: list[str], name: str) -> None:
    workspace = Workspace()
    found = [workspace.workload(name) for _ in range(3)]
    assert {entry.recipe.workload for entry in found} == {"pretrain_grok1"}
    assert read == ["grok1"]
    assert len(workspace.catalog) > 1
    assert sorted(read) == sorted({*read}), "nor is it read again for the list of all"


def test_a_recipe_that_cannot_be_read_is_said_once(
    read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "grok1", tmp_path / "grok1")
    (tmp_path / "grok1/recipe.yaml").write_text("workload: pretrain_grok1\nsizes: 3\n")
    monkeypatch.setenv("LLMB_REPO", str(tmp_path))
    workspace = Workspace()
    for _ in range(3):
        with pytest.raises(RequestError):
            workspace.workload("grok1")
    assert read == ["grok1"]
    assert capsys.readouterr().err.count("left out: ") == 1
