"""Long logs of many ranks with a failure in them: noise before, the lines that matter, what other ranks print after.

Hosts, ranks, order, prefixes and times depend on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from llmb_common.causes.answer import Diagnosis
from llmb_common.causes.diagnosis import diagnose_logs
from support.iteration_logs import mbridge_line

PREFIXES: dict[str, Callable[[int, str, str], str]] = {
    "none": lambda rank, host, time: "",
    "label": lambda rank, host, time: f"{rank:3d}: ",
    "torch": lambda rank, host, time: f"[rank{rank}]: ",
    "both": lambda rank, host, time: f"{rank}: [rank{rank}]: ",
    "mpi": lambda rank, host, time: f"[1,{rank}]<stderr>:",
    "dated": lambda rank, host, time: f"{rank}: {time} ",
    "host": lambda rank, host, time: f"{host}: [rank{rank}]: ",
    "collected": lambda rank, host, time: f"{time.replace(' ', 'T')}.221Z {host} [rank{rank}]: ",
    "lightning": lambda rank, host, time: f"[rank: {rank}] ",
    "tee": lambda rank, host, time: f"[default{rank % 8}]:[rank{rank}]: ",
}
"""What is in front of a rank's lines."""

HARMLESS = (
    "ImportError: optional flash_attn not found",
    "WARNING: Failed to import apex, falling back to torch: No module named 'apex'",
    "/usr/lib/python3/dist-packages/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated.",
    "INFO:megatron.core.optimizer: Setting up optimizer with config OptimizerConfig(error_injection_rate=0)",
    "> rank does not exist in checkpoint, will use defaults",
    "[W1122 10:00:01.123456789 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to"
    " [gpu1]:29500 (errno: 97 - Address family not supported by protocol).",
    "UserWarning: torch.distributed.reduce_op is deprecated, ERROR_ON_DEPRECATED is off",
    "error_injection_type: transient_error, exit_on_missing_checkpoint: False, check_for_nan_in_loss: True",
)

CASCADE = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or"
    " there was a network error, NCCL version 2.27.5",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.7]:3411",
    "[E1122 10:11:19.000000001 ProcessGroupNCCL.cpp:2021] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process"
    " group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error",
    "torch.distributed.DistStoreError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote"
    " server shutdown or crash?",
)

TEARDOWN = (
    "W1122 10:11:20.000000 4000 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4711 closing"
    " signal SIGTERM",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "slurmstepd: error: *** STEP 77.0 ON {first} CANCELLED AT 2026-11-22T10:11:21 ***",
    "[rank0]:[W1122 10:11:22.000000001 ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was"
    " not called before program exit",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
)


class FailedLog:
    """``ranks`` ranks on hosts of eight, of which ``culprit`` fails."""

    def __init__(self, seed: int, ranks: int = 32, style: str = "label") -> None:
        self.random = random.Random(seed)
        self.ranks, self.style = ranks, style
        first = self.random.randrange(100, 900)
        stem = self.random.choice(["gpu", "dgx-", "cn", "node-a"])
        self.hosts = [f"{stem}{first + number}" for number in range(ranks // 8)]
        self.culprit = self.random.randrange(1, ranks)
        self.second = 0

    def host(self, rank: int) -> str:
        return self.hosts[rank // 8]

    def nccl(self, rank: int) -> str:
        """What NCCL prints in front of its lines."""
        return f"{self.host(rank)}:{4000 + rank}:{5000 + rank} [{rank % 8}] NCCL INFO"

    def line(self, rank: int, text: str) -> str:
        self.second += 1
        time = f"2026-11-22 10:{self.second // 60 % 60:02d}:{self.second % 60:02d}"
        return PREFIXES[self.style](rank, self.host(rank), time) + text + "\n"

    def noise(self, count: int) -> str:
        """Start-up lines of all ranks, NCCL's among them, in any order."""
        lines = []
        for _ in range(count):
            rank = self.random.randrange(self.ranks)
            channel = f"{self.nccl(rank)} Channel 07/0 : {rank}[4] -> 13[5] via P2P/CUMEM/read"
            text = self.random.choice(HARMLESS) if self.random.random() < 0.1 else channel
            lines.append(self.line(rank, text))
        return "".join(lines)

    def communicators(self) -> str:
        """What NCCL says of each rank's place."""
        return "".join(
            f"{self.nccl(rank)} ncclCommInitRankConfig comm 0x55 rank {rank} nranks {self.ranks} cudaDev {rank % 8} "
            f"nvmlDev {rank % 8} busId {16 * (rank % 8) + 10:x}000 commId 0x1 - Init COMPLETE\n"
            for rank in range(self.ranks)
        )

    def steps(self, count: int) -> str:
        return "".join(self.line(self.ranks - 1, mbridge_line(index).strip()) for index in range(1, count + 1))

    def consequences(self) -> str:
        """What the other ranks print, then torchrun and Slurm."""
        others = [rank for rank in range(self.ranks) if rank != self.culprit]
        self.random.shuffle(others)
        after = [self.line(rank, self.random.choice(CASCADE).format(rank=rank)) for rank in others]
        after += [f"{text.format(first=self.hosts[0])}\n" for text in TEARDOWN]
        after += [f"srun: error: {host}: tasks {8 * n}-{8 * n + 7}: Terminated\n" for n, host in enumerate(self.hosts)]
        return "".join(after)

    def failed(self, texts: Sequence[str], steps: int = 6, before: int = 300) -> str:
        """The whole log; ``texts`` are the culprit's own lines."""
        own = "".join(self.line(self.culprit, text) for text in texts)
        started = self.noise(before) + self.communicators() + self.steps(steps) + self.noise(20)
        return started + own + self.consequences()


TORCHRUN_KILLED = """\
W1122 10:11:20.000000 470 torch/distributed/elastic/api.py:900] Sending process 475 closing signal SIGTERM
E1122 10:11:21.000000 470 torch/distributed/elastic/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 476) of bash
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
bash FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:11:20
  host      : gpu1
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 476)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 476
"""


def why(tmp_path: Path, text: str, batch: str = "") -> Diagnosis:
    """What is said of a run with these two logs."""
    training, other = tmp_path / "log-x.out", tmp_path / "sbatch_x.out"
    training.write_text(text)
    other.write_text(batch)
    return diagnose_logs([training, other])
