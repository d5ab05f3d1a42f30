"""The log line that says why a run failed: real messages, in their real order."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common.timing.causes import LONGEST, first_cause
from support.cli import Cli
from support.iteration_logs import mbridge_log
from support.runs import ROOT, make_run, steady_log

NCCL = "gpu12:4711:4735 [3] NCCL INFO Channel 07/0 : 12[4] -> 13[5] via P2P/CUMEM/read\n"

# Pyxis 0.24, Enroot 4.1 and Slurm 22.05, as each of them prints it.
BAD_MOUNT = """\
slurmstepd: error: pyxis: --container-mounts: source path does not exist: /lustre/datta
slurmstepd: error: Failed to invoke spank plugin stack
srun: error: gpu1: tasks 0-7: Exited with exit code 1
"""
CORRUPT_IMAGE = """\
slurmstepd: error: pyxis: child 31337 failed with error code: 1
slurmstepd: error: pyxis: failed to create container filesystem for image: /images/nemo.sqsh
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     [INFO] Extracting squashfs filesystem...
slurmstepd: error: pyxis:     FATAL ERROR: File system corruption detected
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd: error: Failed to invoke spank plugin stack
"""
NO_PMIX = """\
srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files
srun: error: cannot find mpi plugin for mpi/pmix
srun: error: MPI: Cannot create context for mpi/pmix
srun: error: MPI: Unable to load any plugin
srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types
"""
RANK_OUT_OF_MEMORY = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/Megatron-Bridge/train.py", line 1, in forward
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 79.11 GiB in use.
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1251, remote process exited
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
# Bridge 0.7 without Transformer Engine; then one rank exits, and gloo says so on another.
IMPORT_THAT_WAS_TRIED = """\
INFO:utils:Import of FP8GlobalStateManager from core.extensions failed with: Traceback (most recent call last):
  File "/src/megatron/bridge/utils/import_utils.py", line 324, in safe_import_from
    return getattr(imported_module, symbol), True
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
AttributeError: module 'megatron.core.extensions.transformer_engine' has no attribute 'FP8GlobalStateManager'

RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:55993.
Traceback (most recent call last):
  File "/src/train.py", line 1, in <module>
ValueError: GBS does not divide
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (BAD_MOUNT, "pyxis: --container-mounts: source path does not exist: /lustre/datta"),
        (CORRUPT_IMAGE, "File system corruption detected"),
        (NO_PMIX, "Invalid MPI type 'pmix'"),
        (RANK_OUT_OF_MEMORY, "torch.OutOfMemoryError: CUDA out of memory"),
        ("RuntimeError: CUDA error: out of memory\n", "RuntimeError: CUDA error: out of memory"),
        (f"12: {NCCL}12: ValueError: GBS does not divide\n", "ValueError: GBS does not divide"),
        ("[ERROR] No such file or directory: /images/nemo.sqsh\n", "No such file or directory: /images/nemo.sqsh"),
        ("bash: line 4: python3: command not found\n", "python3: command not found"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-20T03:40 DUE TO TIME LIMIT ***\n", "TIME LIMIT"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n", "oom_kill"),
        ("llmb_train: error: no checkpoint in /x\n", "no checkpoint in /x"),
        (IMPORT_THAT_WAS_TRIED, "ValueError: GBS does not divide"),
    ],
)
@pytest.mark.parametrize("where", ["training", "batch"])
def test_a_cause_is_found_in_either_log(tmp_path: Path, text: str, cause: str, where: str) -> None:
    """Slurm and Pyxis write to one or the other; the training log exists from the start and may stay empty."""
    training, batch = tmp_path / "log-x.out", tmp_path / "sbatch_x.out"
    training.write_text(NCCL + text if where == "training" else "")
    batch.write_text(text if where == "batch" else "srun: error: gpu1: task 3: Exited with exit code 1\n")
    assert cause in first_cause([training, batch])


def test_a_consequence_is_better_than_the_last_line(tmp_path: Path) -> None:
    training, batch = tmp_path / "log-x.out", tmp_path / "sbatch_x.out"
    training.write_text(NCCL)
    batch.write_text("srun: error: gpu1: task 3: Exited with exit code 9\nsrun: Terminating StepId=7.0\n")
    assert first_cause([training, batch]) == "srun: error: gpu1: task 3: Exited with exit code 9"
    batch.unlink()
    assert first_cause([training, batch]) == NCCL.strip()
    training.write_text("\n \n")
    assert first_cause([training, batch]) == "no output"


def test_an_endless_line_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log-x.out"
    log.write_bytes(b"RuntimeError: " + b"x" * 10**6)
    assert first_cause([log]) == ("RuntimeError: " + "x" * LONGEST)[:LONGEST]


def test_a_huge_log_is_read_in_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "log-x.out"
    with log.open("w") as stream:
        for _ in range(102):
            stream.write(NCCL * 10_000)
        stream.write("RuntimeError: the last line\n")
    assert log.stat().st_size > 80_000_000
    code = "import sys; from pathlib import Path; from llmb_common.timing.causes import first_cause\n"
    code += "print(first_cause([Path(sys.argv[1])]))"
    limit = 64 << 20
    done = subprocess.run(
        [sys.executable, "-c", code, str(log)],
        env={"PYTHONPATH": str(ROOT / "common")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "RuntimeError: the last line\n", done.stderr


def test_exit_code_7_after_the_last_iteration_is_a_failure_everywhere(cli: Cli) -> None:
    """Seen: all 50 iterations, then CUDA out of memory, and the run was reported as a success everywhere."""
    record = make_run(cli.install, state="RUNNING", log=steady_log(50.0) + RANK_OUT_OF_MEMORY)
    record = record.with_state("FAILED", "exit code 7")
    record.save()
    word = record.paths.run_id
    done = cli("results", word)
    assert done.status == 1
    assert "Failed: every iteration is there, but the run ended as FAILED, exit code 7" in done.out
    assert "faster" not in done.out
    data = cli("results", word, "--json").data["runs"][0]
    assert (data["status"], data["reason"], data["verdict"]) == ("Failed", "ended_badly", "not judged")
    assert data["step_seconds"] is None
    shown = cli("show", word).out
    assert "log says   [rank3]: torch.OutOfMemoryError: CUDA out of memory" in shown
    parser = ["bash", str(ROOT / "common" / "parse_train_timing_mbridge.sh"), str(record.paths.folder)]
    parsed = subprocess.run(parser, env={"LLMB_PYTHON": sys.executable}, capture_output=True, text=True, check=False)
    assert (parsed.returncode, " Failed " in parsed.stdout) == (1, True)


def test_show_reads_the_batch_log_if_the_training_log_is_empty(cli: Cli) -> None:
    record = make_run(cli.install, state="FAILED", log="")
    record.paths.batch_log.write_text(NO_PMIX)
    assert "log says   srun: error: Invalid MPI type 'pmix'" in cli("show", record.paths.run_id).out


def test_a_success_has_no_cause(cli: Cli) -> None:
    record = make_run(cli.install, log=mbridge_log() + "DeprecationWarning: an Error that is none\n")
    assert "log says" not in cli("show", record.paths.run_id).out
