"""launch.sh on this machine, from the request to the last step: fresh interpreters, torchrun, the local executor.

On the engine that has to be asked for; ``test_evidence.py`` starts launch.sh on the recipe's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_jobs import LOSS_TOLERANCE, SMOKE_LOSSES, SMOKE_PROFILE, SMOKE_SAVING, SMOKE_SIZE, printed_losses

ROOT = Path(__file__).resolve().parents[2]


def test_smoke_trains_is_profiled_and_saved(functions_python: Path, tmp_path: Path) -> None:
    engines = f'engine: {{python: /nonexistent/python, releases: {{"0.6": "{functions_python}"}}}}'
    (tmp_path / "cluster_config.yaml").write_text(f"schema: 1\n{engines}\n")
    given = {"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, "LLMB_INSTALL": str(tmp_path)}
    done = subprocess.run(
        ["./launch.sh"],
        cwd=ROOT / "llama3.1",
        env={**given, **SMOKE_SIZE, **SMOKE_SAVING, **SMOKE_PROFILE, "LLMB_ENGINE": "0.6"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    folder = Path(done.stdout.split(": ", 1)[1].strip()).parents[1]
    (log,) = folder.glob("*/log-*.out")
    assert '"megatron_bridge": "0.6.' in log.read_text()
    losses = printed_losses(log.read_text())
    assert {step: float(loss) for step, loss in losses.items()} == pytest.approx(SMOKE_LOSSES, abs=LOSS_TOLERANCE)
    assert list(folder.glob("*/*profile*/**/*.json*")), "the PyTorch profiler left no trace"
    assert list(folder.glob("*/checkpoints/iter_0000003/*.distcp"))
