"""The smoke size of every recipe through launch.sh: trained, profiled, saved, and resumed to exactly the same loss."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOSS = re.compile(r"iteration +(\d+)/ *\d+ \|.*?lm loss: (\S+) \|")
LAYOUTS = [
    ("llama3.1", {}),
    ("llama4", {"EP": "2"}),
    ("grok1", {"EP": "2"}),
    ("grok1", {"EP": "1", "PP": "2", "VP": "2", "TP": "1"}),
    ("nemotron4", {"TP": "2"}),
]


def launch(recipe: str, install: Path, **variables: str) -> Path:
    """Run the recipe's smoke size on two ranks of this machine; the run's folder."""
    given = {"LLMB_INSTALL": str(install), "CLUSTER_TYPE": "local", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"}
    environment = {"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, **given, **variables}
    done = subprocess.run(
        ["./launch.sh"], cwd=ROOT / recipe, env=environment, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return Path(done.stdout.split(": ", 1)[1].strip()).parents[1]


def losses(folder: Path) -> dict[int, str]:
    (log,) = folder.glob("*/log-*.out")
    return {int(step): loss for step, loss in LOSS.findall(log.read_text())}


@pytest.mark.parametrize(("recipe", "layout"), LAYOUTS, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "row")
def test_smoke_trains_saves_and_resumes(
    recipe: str, layout: dict[str, str], engine_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "cluster_config.yaml").write_text(f'schema: 1\nengine: {{python: "{engine_python}"}}\n')
    saving = {"ENABLE_CHECKPOINT": "true", "CHECKPOINT_INTERVAL": "3", "MAX_STEPS": "4"}
    profile = {"ENABLE_PROFILE": "true", "PROFILE_START_STEP": "1", "PROFILE_STOP_STEP": "2", "PROFILE_RANKS": "0"}
    whole = launch(recipe, tmp_path, **layout, **saving, **profile)
    assert sorted(losses(whole)) == [1, 2, 3, 4]
    assert list(whole.glob("*/*profile*/**/*.json*")), "the PyTorch profiler left no trace"
    (checkpoint,) = whole.glob("*/checkpoints/iter_0000003")
    resumed = launch(recipe, tmp_path, **layout, LOAD_CHECKPOINT_PATH=str(checkpoint))
    assert losses(resumed) == {4: losses(whole)[4]}
