"""A sweep on this machine's CPU, with real training: planned, trained, ranked, and its winner planned again."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FAMILIES = ["grok1", *(["llama3.1"] if os.environ.get("LLMB_TEST_FAMILIES") == "all" else [])]


@pytest.fixture(scope="module")
def site(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    install = tmp_path_factory.mktemp("install")
    (install / "cluster_config.yaml").write_text(
        f"schema: 1\ncluster_type: local\ngpu_type: cpu\nengine: {{python: {engine_python}}}\n"
    )
    return install


def llmb_run(site: Path, *words: str) -> Any:
    environment = {"PATH": os.environ["PATH"], "LLMB_INSTALL": str(site), "HOME": os.environ["HOME"]}
    command = [sys.executable, "-m", "llmb_run", *words, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)["data"]


def test_families_are_swept_over_mbs_and_ranked(site: Path) -> None:
    """Each on one rank: ranks that import Megatron are what such a test costs."""
    words = ("-s", "smoke", "--max-steps", "4", "--zip", "scale=1,1,1 tp=1,1,2 mbs=2,1,1")
    data = llmb_run(site, "sweep", "-w", ",".join(FAMILIES), *words, "--megatron", "optimizer.weight_decay=0.2")
    assert [job["state"] for job in data["jobs"]] == ["COMPLETED"] * 2 * len(FAMILIES)
    refused = [(item["combination"]["tp"], item["error"]["code"]) for item in data["refused"]]
    assert refused == [("2", "does-not-divide")] * len(FAMILIES)
    boards = llmb_run(site, "results", "--rank", "--window", "2-4")["boards"]
    assert [board["title"].split()[0] for board in boards] == FAMILIES
    for board in boards:
        assert "mbs" in board["differing"]
        assert {line["values"]["mbs"] for line in board["lines"]} == {"1", "2"}
        first, second = board["lines"]
        assert first["tokens_per_second_per_gpu"] >= second["tokens_per_second_per_gpu"] > 0
        assert (first["place"], second["place"] in (1, 2)) == (1, True)
        program, *command = shlex.split(board["command"])
        again = llmb_run(site, *command, "--dry-run")["jobs"][0]["plan"]
        assert (program, str(again["mbs"])) == ("llmb-run", first["values"]["mbs"])
        assert again["megatron"] == {"optimizer.weight_decay": 0.2}
