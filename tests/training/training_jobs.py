"""Jobs for the training tests: job.json content, runs of it in the engine's Python, and what their logs say."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.base.gpus import generation_of
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_document
from support.processes import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data"
ARCHITECTURES: dict[str, Any] = json.loads((DATA / "architectures.json").read_text(encoding="utf-8"))

FUNCTIONS: dict[str, Any] = json.loads((DATA / "functions.json").read_text(encoding="utf-8"))["functions"]

TIME_LIMIT = 1200
"""Seconds for one run; a tiny one takes a few on two idle cores."""

SMOKE_SIZE = {"CLUSTER_TYPE": "local", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2", "GBS": "2"}
SMOKE_SAVING = {"ENABLE_CHECKPOINT": "true", "CHECKPOINT_INTERVAL": "2", "MAX_STEPS": "3"}
SMOKE_PROFILE = {"ENABLE_PROFILE": "true", "PROFILE_START_STEP": "1", "PROFILE_STOP_STEP": "2", "PROFILE_RANKS": "0"}
"""Variables of launch.sh: a smoke run of two ranks on this machine, which saves, and which is profiled.

Of half the sequences a step that launch.sh plans: each takes two ranks 0.15 s."""

SMOKE_LOSSES = {1: 6.961756, 2: 6.965700, 3: 6.948995}
"""The three steps of Llama 3.1's smoke run: the same on either engine, to the last printed digit on one machine."""
LOSS_TOLERANCE = 3e-4
"""Another processor, or another layout, sums in a different order in bf16."""

_NUMBER = r"([-+0-9.Ee]+|nan|inf)"
_ITERATION = re.compile(
    rf"iteration +(\d+)/ *\d+ \|.*?lm loss: {_NUMBER} \|(?:.*?load_balancing_loss: {_NUMBER} \|)?"
    rf".*?grad norm: {_NUMBER} \|"
)


def make_job(name: str = "llama3", **changes: Any) -> dict[str, Any]:
    """A job.json for a named size or smoke family: one CPU rank, 4 sequences per step.

    A change to an object (``parallelism={"tp": 2}``) changes the given keys of it; others replace the value.
    """
    size = ARCHITECTURES["smoke"].get(name) or ARCHITECTURES["sizes"][name]
    job: dict[str, Any] = {
        "schema": 1,
        "run_id": "20261120-000000-test",
        "experiment_name": f"pretrain_{name}",
        "output_dir": "/nonexistent",
        "engine": "0.3",
        "device": "cpu",
        "gpu_type": "cpu",
        "family": size["family"],
        "model_size": name if name in ARCHITECTURES["sizes"] else "smoke",
        "architecture": copy.deepcopy(size["architecture"]),
        "sequence_length": size["sequence_length"],
        "precision": {"dtype": "bf16", "fp8_recipe": None},
        "world_size": 1,
        "parallelism": {"tp": 1, "pp": 1, "vp": None, "cp": 1, "ep": None, "etp": None, "fsdp": False},
        "batch": {"mbs": 1, "gbs": 4},
        "performance": {
            "cuda_graph": False,
            "recompute_layers": 0,
            "offload_layers": 0,
            "wgrad_deferral": None,
            "moe_routing": "drop" if size["architecture"]["moe"] else None,
        },
        "steps": {"train": 5, "exit_after": None, "waits_from": None},
        "profile": None,
        "checkpoint": {"save": None, "interval": None, "load": None},
        "data_workers": 0,
        "seed": 1234,
    }
    return changed(job, changes)


def make_function_job(family: str = "llama3_8b", **changes: Any) -> dict[str, Any]:
    """A job.json for a reduced copy of a function of Megatron-Bridge 0.6: four layers on one CPU rank.

    ``function={"reduced": None}`` leaves it at its size. Changes as for ``make_job``.
    """
    shipped = FUNCTIONS[family]
    job = make_job()
    del job["architecture"]
    job |= {"engine": "0.6", "family": family, "model_size": f"{family}-smoke", "sequence_length": 64}
    job["function"] = {
        "name": shipped["name"],
        "release": "0.6.2",
        "catalogue": 64 * "0",
        "columns": copy.deepcopy(shipped["columns"]),
        "reduced": {"layers": 4, "hidden": 128, "experts": 4 if shipped["experts"] else None},
    }
    if shipped["experts"]:
        job["parallelism"] |= {"ep": 1, "etp": 1}
    return changed(job, changes)


def document(plan: JobPlan, folder: str = "") -> dict[str, Any]:
    """The content of the job.json of a plan; ``folder``: where it runs."""
    return job_document(plan, dry_run_paths(folder or plan.workload_folder, plan.experiment_name))


def changed(job: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``job`` with other values; of objects only the given keys change."""
    for key, value in changes.items():
        mergeable = isinstance(value, dict) and isinstance(job.get(key), dict)
        job[key] = {**job[key], **value} if mergeable else value
    return job | {"gpu_generation": generation_of(job["gpu_type"])}


def printed_losses(log: str) -> dict[int, str]:
    """Step number -> the loss as the log prints it: equal only where every digit is."""
    return {int(step): loss for step, loss in re.findall(r"iteration +(\d+)/ *\d+ \|.*?lm loss: (\S+) \|", log)}


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
        """Step number -> what the log says about it."""
        found = {}
        for match in _ITERATION.finditer(self.log):
            found[int(match[1])] = Step(float(match[2]), float(match[4]), match[0])
        return found

    @property
    def manifest(self) -> dict[str, Any]:
        (line,) = re.findall(r"^LLMB manifest: (\{.*\})$", self.log, re.MULTILINE)
        content: dict[str, Any] = json.loads(line)
        return content


class Warm:
    """A ``warm_engine.py`` process, started when first needed."""

    def __init__(self, python: Path, environment: dict[str, str]) -> None:
        self._command = [str(python), str(Path(__file__).with_name("warm_engine.py"))]
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def run(self, argv: Sequence[str], folder: Path, ranks: int | None = None) -> tuple[int, str, str]:
        """Run ``argv`` in forks; returns exit status, output and errors. No process is left over, whatever happens."""
        process = self._started()
        assert process.stdin is not None
        with tempfile.TemporaryDirectory() as scratch:
            out, log = Path(scratch) / "out", Path(scratch) / "log"
            request = {"argv": list(argv), "ranks": ranks, "port": free_ports(1)[0], "env": self._environment}
            request |= {"cwd": str(folder), "out": str(log if ranks else out), "log": str(log)}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            group = int(_answer(process))
            try:
                status = int(_answer(process))
            except BaseException:
                process.kill()  # its answer would come too late
                self.stop()
                raise
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            return status, out.read_text(encoding="utf-8") if out.exists() else "", log.read_text(encoding="utf-8")

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, env=self._environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        return self._process

    def stop(self) -> None:
        """End the process by closing its input."""
        if self._process is not None:
            self._process.communicate(timeout=600)
            self._process = None


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], TIME_LIMIT)
    assert ready, f"no answer of the engine within {TIME_LIMIT} s"
    line = process.stdout.readline()
    assert line, f"the engine ended: {process.wait()}"
    return line


@dataclass(frozen=True)
class Engine:
    """The Python that has torch and Megatron-Bridge."""

    python: Path
    cpu: Warm

    def environment(self) -> dict[str, str]:
        return training_environment()

    def train(
        self,
        folder: Path,
        job: dict[str, Any],
        *,
        expect: int = 0,
        script: str | None = None,
    ) -> TrainingRun:
        """Run ``job`` on its ranks in ``folder`` and wait for it; fails on any exit status other than ``expect``.

        ``script``: one of this folder's that takes the place of ``llmb_train``.
        """
        folder.mkdir(parents=True, exist_ok=True)
        job_file = folder / "job.json"
        job_file.write_text(json.dumps({**job, "output_dir": str(folder / "output")}), encoding="utf-8")
        program = [str(Path(__file__).with_name(script))] if script else ["-m", "llmb_train"]
        status, _, log = self.cpu.run([*program, str(job_file)], folder, job["world_size"])
        assert status == expect, log[-8000:]
        return TrainingRun(status, log)

    def ask(self, question: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of ``questions.py`` to each question, by name. A plan stands for its job.json."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "questions.jsonl")
            file.write_text(
                "".join(json.dumps(one, default=document) + "\n" for one in asked.values()), encoding="utf-8"
            )
            answers = self.json_lines("questions.py", question, file)
        return {name: line["answer"] for name, line in zip(asked, answers, strict=True)}

    def json_lines(self, script: str, *arguments: str | Path) -> list[dict[str, Any]]:
        """Run one of this folder's scripts and parse its output, one JSON object per line."""
        path = Path(__file__).with_name(script)
        status, out, log = self.cpu.run([str(path), *map(str, arguments)], path.parent)
        assert status == 0, log[-8000:]
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def training_environment() -> dict[str, str]:
    """This process's environment, with the training code and without another job's ranks."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "MASTER_", "PYTEST_"))}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        inherited.pop(name, None)
    return {**inherited, "PYTHONPATH": str(REPOSITORY / "common"), "OMP_NUM_THREADS": "1"}
