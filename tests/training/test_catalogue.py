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

SHIPPED = REPOSITORY / "mbridge" / "catalogue-0.6.2.json"


def test_the_shipped_catalogue_is_what_the_engine_writes_byte_for_byte(functions_engine, tmp_path):
    """All functions, called without a GPU, a network or a token."""
    file, date = tmp_path / "again.json", json.loads(SHIPPED.read_text())["date"]
    status, _, said = functions_engine.cpu.run(["-m", "llmb_train.catalogue", str(file), "--date", date], tmp_path)
    assert status == 0, said
    assert said == f"450 functions in {file}\n"
    assert file.read_bytes() == SHIPPED.read_bytes()


def test_an_engine_without_functions_says_so(engine_python: Path, tmp_path: Path) -> None:
    command = [str(engine_python), "-m", "llmb_train.catalogue", str(tmp_path / "none.json")]
    done = subprocess.run(command, env=training_environment(), capture_output=True, text=True, timeout=1200)
    assert done.returncode == 3
    assert "this Megatron-Bridge has no megatron.bridge.perf_recipes" in done.stderr
    assert "release 0.6 and later have it" in done.stderr
    assert not (tmp_path / "none.json").exists()


def test_a_path_that_is_wrong_is_said_before_anything_is_called(tmp_path, capsys):
    for words, said in (
        ([str(tmp_path / "none" / "x.json")], f"error: {tmp_path}/none is not a directory\n"),
        ([str(tmp_path / "x.json"), "--base", str(tmp_path / "y.json")], f"there is no catalogue {tmp_path}/y.json\n"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert capsys.readouterr().err.endswith(said)


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
    assert "config.json of openai/gpt-oss-120b: num_layers is 30; planned with 36" in told
    assert all(line.startswith("config.json of openai/gpt-oss-120b: ") for line in told)
    assert "EngineError the numbers of nobody/unknown are not known to LLMB, and its config.json" in out
    assert "put the file into the Hugging Face cache" in out
