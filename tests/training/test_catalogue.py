"""The catalogue of performance recipes, written by real engines."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_jobs import REPOSITORY, training_environment

from llmb_train.catalogue import main
from llmb_train.engine import FUNCTIONS

SHIPPED = REPOSITORY / "mbridge" / "catalogue-0.6.2.json"


def test_the_shipped_catalogue_is_what_the_engine_writes_byte_for_byte(functions_engine, tmp_path):
    """All functions, called without a GPU, a network or a token."""
    file, date = tmp_path / "again.json", json.loads(SHIPPED.read_text())["date"]
    status, _, said = functions_engine.cpu.run(["-m", "llmb_train.catalogue", str(file), "--date", date], tmp_path)
    assert status == 0, said
    assert (re.findall(r"^\d+", said), str(file) in said) == (["450"], True)
    assert file.read_bytes() == SHIPPED.read_bytes()


def test_an_engine_without_functions_says_so(engine_python: Path, tmp_path: Path) -> None:
    command = [str(engine_python), "-m", "llmb_train.catalogue", str(tmp_path / "none.json")]
    done = subprocess.run(command, env=training_environment(), capture_output=True, text=True, timeout=1200)
    assert done.returncode == 3
    assert "megatron.bridge.perf_recipes" in done.stderr
    assert "Traceback" not in done.stderr
    assert FUNCTIONS.bridge in done.stderr, "the release that has them"
    assert not (tmp_path / "none.json").exists()


def test_a_path_that_is_wrong_is_said_before_anything_is_called(tmp_path, capsys):
    (tmp_path / "cut.json").write_text('{"functions": {')
    (tmp_path / "other.json").write_text("[]")
    bases = [tmp_path / name for name in ("none.json", "cut.json", "other.json")]
    for words, wrong in (
        ([str(tmp_path / "none" / "x.json")], tmp_path / "none"),
        *(([str(tmp_path / "x.json"), "--base", str(base)], base) for base in bases),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert str(wrong) in re.split(r":? ", capsys.readouterr().err.splitlines()[-1])


CALL = """
import os, types
os.environ["RANK"] = "0"
from llmb_train import cpu
cpu.install()
from llmb_train import functions, perf_recipes
name = "gpt_oss_120b_pretrain_64gpu_h100_bf16_config"
job = types.SimpleNamespace(function=types.SimpleNamespace(name=name))
print("layers", functions._call_function(job).model.num_layers)
perf_recipes.prefer_files()
print("layers", functions._call_function(job).model.num_layers)
try:
    perf_recipes.load("nobody/unknown")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def cached(hugging_face: Path) -> Iterator[Path]:
    """The folder of GPT-OSS in the engine's cache of models."""
    folder = hugging_face / "hub" / "models--openai--gpt-oss-120b"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


def test_a_job_reads_the_models_own_file_where_the_machine_has_it(functions_engine, cached, tmp_path):
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    file = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 30}
    (cached / "snapshots" / "abc" / "config.json").write_text(json.dumps(file))
    (tmp_path / "call.py").write_text(CALL)
    status, out, said = functions_engine.cpu.run([str(tmp_path / "call.py")], tmp_path)
    assert status == 0, said
    assert re.findall(r"^layers (\d+)$", out, re.MULTILINE) == ["36", "30"]
    told = re.findall(r"^LLMB notice: (.*)$", out, re.MULTILINE)
    assert all("openai/gpt-oss-120b" in line for line in told)
    (of_layers,) = (line for line in told if re.search(r"\bnum_layers\b", line))
    assert {"30", "36"} <= set(re.findall(r"\d+", of_layers)), "the file's and the plan's"
    assert re.search(r"^EngineError .*nobody/unknown.*\bconfig\.json\b", out, re.MULTILINE)
