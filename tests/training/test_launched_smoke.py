"""launch.sh on this machine, from the request to the last step: fresh interpreters, torchrun, the local executor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from training_jobs import SMOKE_PROFILE, SMOKE_SAVING, SMOKE_SIZE, printed_losses

ROOT = Path(__file__).resolve().parents[2]


def launch(install: Path, **variables: str) -> Path:
    """Run Llama 3.1's smoke size on two ranks; the run's folder."""
    given = {"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, "LLMB_INSTALL": str(install), **SMOKE_SIZE}
    done = subprocess.run(
        ["./launch.sh"],
        cwd=ROOT / "llama3.1",
        env={**given, **variables},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return Path(done.stdout.split(": ", 1)[1].strip()).parents[1]


def losses(folder: Path) -> dict[int, str]:
    (log,) = folder.glob("*/log-*.out")
    return printed_losses(log.read_text())


def test_smoke_trains_saves_and_resumes(engine_python: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text(f'schema: 1\nengine: {{python: "{engine_python}"}}\n')
    whole = launch(tmp_path, **SMOKE_SAVING, **SMOKE_PROFILE)
    assert sorted(losses(whole)) == [1, 2, 3, 4]
    assert list(whole.glob("*/*profile*/**/*.json*")), "the PyTorch profiler left no trace"
    (checkpoint,) = whole.glob("*/checkpoints/iter_0000003")
    resumed = launch(tmp_path, LOAD_CHECKPOINT_PATH=str(checkpoint))
    assert losses(resumed) == {4: losses(whole)[4]}
