"""Jobs for the training tests: job.json content, runs of it in the engine's Python, and what their logs say."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data"
ARCHITECTURES: dict[str, Any] = json.loads((DATA / "architectures.json").read_text(encoding="utf-8"))

TIME_LIMIT = 240
"""Seconds for one run; a tiny one takes about 12 on two cores."""

_NUMBER = r"([-+0-9.Ee]+|nan|inf)"
_ITERATION = re.compile(
    rf"iteration +(\d+)/ *\d+ \|.*?lm loss: {_NUMBER} \|(?:.*?load_balancing_loss: {_NUMBER} \|)?"
    rf".*?grad norm: {_NUMBER} \|"
)


def make_job(name: str = "llama3", **changes: Any) -> dict[str, Any]:
    """A job.json for a named size or smoke family: one CPU rank, 8 sequences a step.

    A change to an object (``parallelism={"tp": 2}``) changes the given keys of it; others replace the value.
    """
    size = ARCHITECTURES["smoke"].get(name) or ARCHITECTURES["sizes"][name]
    job: dict[str, Any] = {
        "schema": 1,
        "run_id": "20261120-000000-test",
        "experiment_name": f"pretrain_{name}",
        "output_dir": "/nonexistent",
        "device": "cpu",
        "gpu_type": "cpu",
        "family": size["family"],
        "model_size": name if name in ARCHITECTURES["sizes"] else "smoke",
        "architecture": copy.deepcopy(size["architecture"]),
        "sequence_length": size["sequence_length"],
        "precision": {"dtype": "bf16", "fp8_recipe": None},
        "world_size": 1,
        "parallelism": {"tp": 1, "pp": 1, "vp": None, "cp": 1, "ep": None, "etp": None, "fsdp": False},
        "batch": {"mbs": 1, "gbs": 8},
        "performance": {
            "cuda_graph": False,
            "recompute_layers": 0,
            "offload_layers": 0,
            "wgrad_deferral": None,
            "moe_routing": "drop" if size["architecture"]["moe"] else None,
        },
        "steps": {"train": 5, "exit_after": None},
        "profile": None,
        "checkpoint": {"save": None, "interval": None, "load": None},
        "data_workers": 0,
        "seed": 1234,
    }
    for key, value in changes.items():
        mergeable = isinstance(value, dict) and isinstance(job[key], dict)
        job[key] = {**job[key], **value} if mergeable else value
    return job


@dataclass(frozen=True)
class Step:
    """One line of the iteration log."""

    loss: float
    grad_norm: float
    text: str


@dataclass(frozen=True)
class TrainingRun:
    status: int
    log: str

    @property
    def steps(self) -> dict[int, Step]:
        """Step number -> what the log says of it."""
        found = {}
        for match in _ITERATION.finditer(self.log):
            found[int(match[1])] = Step(float(match[2]), float(match[4]), match[0])
        return found

    @property
    def manifest(self) -> dict[str, Any]:
        (line,) = re.findall(r"^LLMB manifest: (\{.*\})$", self.log, re.MULTILINE)
        content: dict[str, Any] = json.loads(line)
        return content


@dataclass(frozen=True)
class Engine:
    """The Python that has torch and Megatron-Bridge."""

    python: Path

    def environment(self) -> dict[str, str]:
        """This process's environment, with the training code and without another job's ranks."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "MASTER_", "PYTEST_"))}
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            inherited.pop(name, None)
        return {**inherited, "PYTHONPATH": str(REPOSITORY / "common"), "OMP_NUM_THREADS": "1"}

    def command(self, job_file: Path, ranks: int) -> list[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [str(self.python), *launcher, "-m", "llmb_train", str(job_file)]

    def train(self, folder: Path, job: dict[str, Any], *, expect: int = 0) -> TrainingRun:
        """Run ``job`` on its ranks in ``folder`` and wait for it; another exit status than ``expect`` fails."""
        folder.mkdir(parents=True, exist_ok=True)
        job_file = folder / "job.json"
        job_file.write_text(json.dumps({**job, "output_dir": str(folder / "output")}), encoding="utf-8")
        log = folder / "log.out"
        with log.open("w", encoding="utf-8") as stream:
            process = subprocess.Popen(
                self.command(job_file, job["world_size"]),
                cwd=folder,
                env=self.environment(),
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            status = process.wait(timeout=TIME_LIMIT)
        finally:
            # Whatever happened, no rank may outlive its test.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        text = log.read_text(encoding="utf-8")
        assert status == expect, text[-8000:]
        return TrainingRun(status, text)

    def json_lines(self, script: str, *arguments: str | Path) -> list[dict[str, Any]]:
        """Run one of this folder's scripts and parse its output, one JSON object a line."""
        done = subprocess.run(
            [str(self.python), str(Path(__file__).with_name(script)), *map(str, arguments)],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-8000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
