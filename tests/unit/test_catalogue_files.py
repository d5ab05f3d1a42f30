"""Catalogues as they are written: what is left out, what is named, and what a reader makes of a base."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmb_train import hugging_face
from llmb_train.catalogue import columns, document, functions
from support.functions import RECIPE, ROOT

MBRIDGE = ROOT / "mbridge"


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Megatron-Bridge with four definitions that look like recipes, and one that does not."""
    names = [
        "a_pretrain_8gpu_h100_bf16",
        "a_pretrain_8gpu_h100_fp8ds",
        "a_pretrain_8gpu_h100_fp7",
        "b_sft_8gpu_h100_bf16",
    ]
    text = "\n".join(f"def {name}_config():\n    ..." for name in names)
    (tmp_path / "a.py").write_text(f"{text}\n\ndef common_config():\n    ...\n")
    monkeypatch.setattr(functions, "_modules", lambda: iter([("recipes.a", tmp_path / "a.py")]))
    functions.names.cache_clear()
    functions._defined.cache_clear()
    yield
    functions.names.cache_clear()
    functions._defined.cache_clear()


def call(name: str) -> Any:
    if name.startswith("b_"):
        raise RuntimeError("no such\n   device")
    hugging_face.asked.append("openai/gpt-oss-120b")
    return lambda: None


def test_no_function_is_left_out_in_silence(recipes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "find", call)
    monkeypatch.setattr(columns, "row", lambda config: {"columns": {}})
    found, missing = document.rows()
    assert list(found) == ["a_pretrain_8gpu_h100_bf16_config", "a_pretrain_8gpu_h100_fp8ds_config"]
    assert list(missing) == ["a_pretrain_8gpu_h100_fp7_config", "b_sft_8gpu_h100_bf16_config"]
    assert "precision" in missing["a_pretrain_8gpu_h100_fp7_config"]
    assert missing["b_sft_8gpu_h100_bf16_config"] == "RuntimeError: no such device"
    written = json.loads(document.text(found, missing, "2026-11-22"))
    assert (written["missing"], list(written["functions"])) == (missing, list(found))
    assert list(written["assumed"]) == ["openai/gpt-oss-120b"]


def test_a_base_changes_the_file_and_nothing_that_is_read(tmp_path: Path) -> None:
    older = RECIPE.releases["0.6.0"].catalogue
    assert older is not None
    own = json.loads((MBRIDGE / "catalogue-0.6.0.json").read_text())
    base = json.loads((MBRIDGE / own["base"]).read_text())["functions"]
    names = [entry.name for entry in older.index]
    assert (own["release"], own["core"], len(names), len(own["functions"])) == ("0.6.0", "0.19.0", 428, 21)
    whole = {name: own["functions"].get(name) or base[name] for name in names}
    lines = (f"{json.dumps(name)}:{document._line(whole[name])}" for name in names)
    assert hashlib.sha256(",\n".join(lines).encode()).hexdigest() == older.sha256 == own["sha256"]
    found, date = {name: dict(row) for name, row in whole.items()}, own["date"]
    (tmp_path / own["base"]).write_bytes((MBRIDGE / own["base"]).read_bytes())
    again = json.loads(document.text(found, {}, date, tmp_path / own["base"]))
    assert {name: again[name] for name in ("base", "index", "functions", "sha256", "assumed")} == {
        name: own[name] for name in ("base", "index", "functions", "sha256", "assumed")
    }
