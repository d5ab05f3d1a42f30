"""launch.sh on this machine, from the request to the last step: fresh interpreters, torchrun, the local executor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from training_jobs import SMOKE_PROFILE, SMOKE_SAVING, SMOKE_SIZE, printed_losses

ROOT = Path(__file__).resolve().parents[2]


def test_smoke_trains_is_profiled_and_saved(engine_python: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text(f'schema: 1\nengine: {{python: "{engine_python}"}}\n')
    given = {"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, "LLMB_INSTALL": str(tmp_path)}
    done = subprocess.run(
        ["./launch.sh"],
        cwd=ROOT / "llama3.1",
        env={**given, **SMOKE_SIZE, **SMOKE_SAVING, **SMOKE_PROFILE},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    folder = Path(done.stdout.split(": ", 1)[1].strip()).parents[1]
    (log,) = folder.glob("*/log-*.out")
    assert sorted(printed_losses(log.read_text())) == [1, 2, 3, 4]
    assert list(folder.glob("*/*profile*/**/*.json*")), "the PyTorch profiler left no trace"
    assert list(folder.glob("*/checkpoints/iter_0000003/*.distcp"))
