"""Why a run failed: real messages in long logs, in whatever order, with whatever is in front of them."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmb_common.causes.answer import Diagnosis
from llmb_common.causes.lines import location_of, parse_line, printer_of
from llmb_common.causes.places import short_bus
from llmb_common.causes.reading import LONGEST
from llmb_common.causes.table import FailureSignature, signature_of, signatures
from support.failed_logs import PREFIXES, TORCHRUN_KILLED, FailedLog, why
from support.runs import ROOT

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
TRACEBACK = 'Traceback (most recent call last):\n  File "/src/train.py", line 1, in <module>\n'


def named(found: Diagnosis) -> str:
    assert found.cause is not None, found
    return found.cause.line


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (BAD_MOUNT, "pyxis: --container-mounts: source path does not exist: /lustre/datta"),
        (CORRUPT_IMAGE, "File system corruption detected"),
        (NO_PMIX, "Couldn't find the specified plugin name for mpi/pmix"),
        (RANK_OUT_OF_MEMORY, "torch.OutOfMemoryError: CUDA out of memory"),
        ("RuntimeError: CUDA error: out of memory\n", "RuntimeError: CUDA error: out of memory"),
        (f"12: {NCCL}12: ValueError: GBS does not divide\n", "ValueError: GBS does not divide"),
        ("pyxis:     [ERROR] Invalid image format: /images/nemo.sqsh\n", "Invalid image format"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-20T03:40 DUE TO TIME LIMIT ***\n", "TIME LIMIT"),
        (f"{TRACEBACK}triton.runtime.errors.OutOfResources: out of resource: shared memory\n", "OutOfResources"),
        (f"{TRACEBACK}Exception: Current loss scale already at minimum\n", "already at minimum"),
        (f"{TRACEBACK}ValueError: \nInvalid log settings: x, must be a comma separated list\n", "log settings: x"),
        ("enroot-switchroot: failed to execute: /usr/bin/bash: Exec format error\n", "Exec format error"),
        ("python3: /opt/permute.cu:412: void f(P): Assertion `p != nullptr' failed.\n", "Assertion `p != nullptr'"),
        (IMPORT_THAT_WAS_TRIED, "ValueError: GBS does not divide"),
        (f"{TRACEBACK}torch._inductor.exc.InductorError: CalledProcessError: Command '['ptxas']'\n", "InductorError"),
        (f"{TRACEBACK}KeyError: 'x'\n\nDuring handling of ...:\n\n{TRACEBACK}RuntimeError: y\n", "KeyError: 'x'"),
        (f"rank 3: checkpoint /ckpt was not found\n{TRACEBACK}ValueError: q\n", "ValueError: q"),
        (f"{TRACEBACK}ValueError: No backend is available. Please run with NVTE_DEBUG=1\n", "No backend is available"),
        (f"Exception ignored in: <f>\n{TRACEBACK}KeyError: 'x'\n{TRACEBACK}RuntimeError: the last\n", "the last"),
    ],
)
@pytest.mark.parametrize("where", ["training", "batch"])
def test_a_cause_is_found_in_either_log(tmp_path: Path, text: str, cause: str, where: str) -> None:
    """Slurm and Pyxis write to one or the other; the training log exists from the start and may stay empty."""
    summary = "srun: error: gpu1: task 3: Exited with exit code 1\n"
    found = why(tmp_path, NCCL + text, summary) if where == "training" else why(tmp_path, "", text)
    assert cause in named(found)


EXAMPLES = [(item, line) for item in signatures() for line in item.examples]


@pytest.mark.parametrize(("item", "line"), EXAMPLES, ids=[item.id for item, _ in EXAMPLES])
def test_every_signature_knows_its_examples(item: FailureSignature, line: str) -> None:
    found = signature_of(parse_line(line).text)
    assert found is not None
    assert (found.what, found.role) == (item.what, item.role) or found.id.startswith(("xid-79", "sxid-20034"))


ROOTS = [(item, line) for item, line in EXAMPLES if item.role == "root" and "harmless" not in item.traits]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ROOTS)), ids=[item.id for item, _ in ROOTS])
def test_a_root_is_named_in_a_long_log_of_many_ranks(tmp_path: Path, number: int) -> None:
    """Behind each style of prefix, before the first iteration or after some, with its rank or node where it is said."""
    item, text = ROOTS[number]
    style = list(PREFIXES)[number % len(PREFIXES)]
    log = FailedLog(number, style=style)
    steps = 0 if "start" in item.traits else 6 * (number % 2)
    found = why(tmp_path, log.failed([text], steps=steps))
    assert text in named(found)
    assert found.cause is not None
    assert found.cause.number is not None
    assert text in (tmp_path / "log-x.out").read_text().splitlines()[found.cause.number - 1]
    assert found.cause.step == (steps or None)
    if style != "none" and item.id not in ("xid", "sxid", "two-ranks-one-gpu", "nccl-versions") and "ank" not in text:
        assert log.culprit == found.cause.rank or "srun" in text or "slurmstepd" in text


@pytest.mark.parametrize("item", [item for item in signatures() if item.role != "root"], ids=lambda item: item.id)
def test_what_follows_a_failure_is_never_its_cause(tmp_path: Path, item: FailureSignature) -> None:
    for number, text in enumerate(item.examples):
        found = why(tmp_path, FailedLog(number).failed([text]))
        assert found.cause is None or found.cause.kind == "hang"
        assert found.witnesses


FOLLOW = (
    "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by"
    " key '0', but store->get('0') got error: Connection reset by peer",
    "RuntimeError: Rank 5 successfully reached monitoredBarrier, but received errors while waiting for send/recv from"
    " rank 0. Please check rank 0 logs for faulty rank.",
    "RuntimeError: NCCL communicator was aborted on rank 3. Original reason for failure was: watchdog timeout",
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Terminated.",
    "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGTERM",
    "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace above.",
    "ray.exceptions.RayTaskError(RuntimeError): ray::Worker.run() (pid=336, ip=10.99.48.129)",
    "NCCL WARN socketStartConnect: Connect to 10.1.2.3<51159> failed : Software caused connection abort",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "Fatal Python error: Aborted",
    "ValueError: I/O operation on closed file.",
    "RuntimeError: cannot schedule new futures after interpreter shutdown",
    "slurmstepd: error: mpi/pmix_v4: _errhandler: gpu3 [1]: pmixp_client_v2.c:211: Error handler invoked: status = -61",
    "srun: error: Timed out waiting for job step to complete",
    "RuntimeError: Application timeout caused pair closure",
    "EOFError",
)


@pytest.mark.parametrize("number", range(len(FOLLOW)))
def test_no_line_that_follows_is_a_root(tmp_path: Path, number: int) -> None:
    """With a traceback above it, too, and where there is nothing else."""
    log = FailedLog(number, style=list(PREFIXES)[number % len(PREFIXES)])
    frames = ["Traceback (most recent call last):", '  File "/opt/train.py", line 7, in forward']
    found = why(tmp_path, log.failed([*frames, FOLLOW[number]], steps=number % 3))
    assert found.cause is None, found.cause


def test_torchruns_summary_of_several_nodes_names_the_rank_of_the_job(tmp_path: Path) -> None:
    """Beside it the others, which torchrun ended itself; local_rank is the rank on its node."""
    second = TORCHRUN_KILLED.replace("rank      : 1 (local", "rank      : 11 (local").replace("gpu1", "gpu2")
    others = "[1]:\n  host      : gpu2\n  rank      : 12 (local_rank: 4)\n  exitcode  : -15 (pid: 477)\n"
    found = why(tmp_path, second.replace("Root Cause", f"{others}Root Cause"))
    assert found.suspect is not None
    assert (found.suspect.ranks, found.suspect.node) == ((11,), "gpu2")


@pytest.mark.parametrize(
    ("line", "rank", "node"),
    [
        ('{"host":"cn7","level":"ERROR","rank":3,"msg":"RuntimeError: uncorrectable ECC error"}', 3, "cn7"),
        ("(TrainWorker pid=123, ip=10.0.0.3) torch.OutOfMemoryError: CUDA out of memory.", None, "10.0.0.3"),
        ("cn12 | [rank9]: OSError: [Errno 28] No space left on device", 9, "cn12"),
        ("worker-3: 2026-11-22T10:11:12.123Z [rank25]: OSError: [Errno 116] Stale file handle", 25, "worker-3"),
        ("[rank3]: AssertionError: Rank 3: found NaN in local forward loss. Device: 3, node: cn17", 3, "cn17"),
        ("srun: error: Node failure on cn012", None, "cn012"),
        ("[Sun Dec  1 14:54:40 2024] cn7 kernel: NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.", None, "cn7"),
        (
            "kern  :err   : 2025-02-10T16:28:06,502716+00:00 cn7 kernel: EXT4-fs: Remounting filesystem read-only",
            None,
            "cn7",
        ),
        ("Dec  1 14:54:40 cn7 kernel: nfs: server 10.0.0.5 not responding, still trying", None, "cn7"),
        (
            " iteration 2/ 50 | lm loss: nan |\n[rank3]: AssertionError: found NaN. Device: 0, node: cn17",
            3,
            "cn17",
        ),
        ("[cn7:2760180:0:2760180] Caught signal 11 (Segmentation fault: address not mapped)", None, "cn7"),
        (
            "(Worker_TP3 pid=7) ERROR 09-18 00:55:15 [exec.py:596] torch.OutOfMemoryError: CUDA out of memory",
            None,
            None,
        ),
        ("i.pretrain/0 [default5]:[rank13]: torch.OutOfMemoryError: CUDA out of memory.", 13, None),
        (
            "2025-11-09 15:39:31.043 +08:00 [2025-11-09 07:39:30] h28:238:13 [0] ib.cc:4 NCCL WARN NET/IB error",
            None,
            "h28",
        ),
    ],
)
def test_rank_and_node_are_found_in_many_styles(tmp_path: Path, line: str, rank: int | None, node: str | None) -> None:
    found = why(tmp_path, f"{line}\n")
    assert found.cause is not None
    assert (found.cause.rank, found.cause.node) == (rank, node)


STARTS = (
    "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt",
    "    will not load any checkpoints and will start from random",
    "sequence parallel is not supported with a tensor parallel size of 1, disabling it",
    "mce: [Hardware Error]: Machine check events logged",
    "[Hardware Error]: Corrected error, no action required.",
    "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
    "pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:01:00.0",
    "NVRM: Xid (PCI:0000:5d:00): 63, pid=1, Row Remapper: New row marked for remapping",
    "HfHubHTTPError: 429 Client Error: Too Many Requests. Retrying in 1s [Retry 1/5].",
    "wandb: ERROR Error while calling W&B API",
    "slurmstepd: error: couldn't chdir to `/home/x': No such file or directory: going to /tmp instead",
    "W1122 10:00:01.0 12 torch/distributed/run.py:792] No such file or directory",
    "UserWarning: full recomputation is not supported with CUDA graphs",
)


@pytest.mark.parametrize("style", ["label", "none", "dated"])
def test_what_is_said_at_the_start_of_a_healthy_run_is_no_cause(tmp_path: Path, style: str) -> None:
    log = FailedLog(3, style=style)
    start = "".join(log.line(rank % log.ranks, text) for rank, text in enumerate(STARTS))
    assert why(tmp_path, start + log.consequences()).cause is None
    found = why(
        tmp_path, start + log.failed(["RuntimeError: CUDA error: an illegal memory access was encountered"], steps=0)
    )
    assert found.kind == "illegal-access"


def test_a_complaint_after_which_iterations_went_on_is_no_cause(tmp_path: Path) -> None:
    log = FailedLog(1)
    early = log.line(3, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert "ValueError" in named(why(tmp_path, early + log.failed(["ValueError: the last"])))
    later = early + log.steps(1) + log.line(3, "ValueError: the last")
    assert "CUDA out of memory" in named(why(tmp_path, later)), "a single line may have been late"


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_iterations_that_were_printed_before_a_rank_raised_may_arrive_after_it(tmp_path: Path, steps: int) -> None:
    log = FailedLog(4)
    raised = "".join(log.line(3, text) for text in (*TRACEBACK.splitlines(), "RecursionError: maximum recursion depth"))
    text = log.noise(9) + raised + log.steps(steps)
    of_three = f"srun: error: {log.host(3)}: task 3: Exited with exit code 1\n"
    found = why(tmp_path, text + of_three + log.consequences())
    assert (found.kind, found.cause and found.cause.rank) == ("exception", 3)
    of_another = of_three.replace("task 3", "task 4")
    assert why(tmp_path, text + of_another).cause is None, "rank 3 has survived it"


def test_the_traceback_of_a_rank_is_followed_through_the_lines_of_others(tmp_path: Path) -> None:
    log = FailedLog(2)
    frames = ("Traceback (most recent call last):", '  File "/opt/train.py", line 7, in forward', "    x = table[key]")
    text = "".join(log.line(log.culprit, frame) + log.noise(3) for frame in frames)
    found = why(tmp_path, text + log.line(log.culprit, "KeyError: 'qkv'") + log.consequences())
    assert found.cause is not None
    assert (found.cause.kind, found.cause.sure, found.cause.rank) == ("exception", "likely", log.culprit)


FRAMES = ("Traceback (most recent call last):", '  File "/opt/train.py", line 7, in forward')
BY_RICH = ("╭──── Traceback (most recent call last) ────╮", "│ ❱ 150 │   trainer.fit(model, data)            │")


@pytest.mark.parametrize("frames", [FRAMES, BY_RICH])
@pytest.mark.parametrize("style", list(PREFIXES))
def test_a_traceback_that_nobody_caught_counts_behind_any_prefix(tmp_path: Path, style: str, frames: Any) -> None:
    found = why(tmp_path, FailedLog(8, style=style).failed([*frames, "KeyError: 'qkv'"], steps=0))
    assert found.cause is not None
    assert (found.cause.kind, found.cause.sure) == ("exception", "likely")


def test_a_warning_before_a_traceback_makes_it_less_sure(tmp_path: Path) -> None:
    """It may be the warning's, or have nothing to do with it."""
    frames = (
        "WARNING:megatron: could not load the plugin",
        "Traceback (most recent call last):",
        '  File "/opt/a.py", line 7, in f',
        "KeyError: 'a'",
    )
    log = FailedLog(11)
    assert why(tmp_path, log.failed(frames)).kind == "exception"
    later = ("Traceback (most recent call last):", '  File "/opt/b.py", line 7, in g', "ValueError: the last")
    assert "the last" in named(why(tmp_path, log.failed([*frames, *later])))


SAID_BEFORE = (
    "[W1122 10:00:01.123456789 socket.cpp:752] [c10d] The client socket failed to connect to [gpu1]:29500.",
    "[E504 22:44:07.389636235 ProcessGroupNCCL.cpp:1896] x",
    "WARNING:megatron.core.utils: fused_indices_to_multihot has reached end of life.",
    "INFO:megatron.core.optimizer: Setting up optimizer",
)


@pytest.mark.parametrize("before", SAID_BEFORE)
def test_what_a_rank_last_said_takes_nothing_from_its_traceback(tmp_path: Path, before: str) -> None:
    frames = (before, "Traceback (most recent call last):", '  File "/opt/a.py", line 7, in f', "Exception: the last")
    follows = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:55993."
    found = why(tmp_path, FailedLog(12).failed([follows, *frames]))
    assert found.cause is not None
    assert ("the last" in found.cause.line, found.cause.sure) == (True, "likely")


@pytest.mark.parametrize("style", ["none", "torch", "label"])
def test_a_traceback_that_was_logged_gives_way_to_the_one_that_ended_the_rank(tmp_path: Path, style: str) -> None:
    logged = (
        "WARNING:root:going on without it",
        "Traceback (most recent call last):",
        '  File "/opt/a.py", line 7, in f',
    )
    raised = ("Traceback (most recent call last):", '  File "/opt/b.py", line 7, in g', "ValueError: the last")
    lines = [*logged, "ModuleNotFoundError: No module named 'optional_package'", *raised]
    assert "the last" in named(why(tmp_path, FailedLog(14, style=style).failed(lines)))


def test_an_exception_is_more_than_an_early_complaint(tmp_path: Path) -> None:
    complaint = "[gpu1:411] PMIX ERROR: NOT-FOUND in file server/pmix_server.c at line 229\n"
    raised = "Traceback (most recent call last):\n  File 'a.py', line 1\nTimeoutError: The read operation timed out\n"
    assert why(tmp_path, complaint).kind == "pmix-complaint"
    qp = "gpu2:80:99 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out\n"
    assert why(tmp_path, complaint + qp).kind == "rdma-connect"
    assert why(tmp_path, complaint + raised).kind == "timeout"
    killed = "[2023-09-10 11:46:00,885] [ERROR] [launch.py:434:sigkill_handler] ['a.py'] exits with return code = -9\n"
    assert why(tmp_path, complaint + killed).cause is None


BEFORE_INFINIBAND = (
    "proxy.cc:1480 NCCL WARN [Service thread] Could not receive type from localRank 3, res=3, closed=0",
    "proxy.cc:1495 NCCL WARN [Proxy Service 9] Failed to execute operation Connect from rank 9, retcode 2",
    "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu3<51159>",
)
GOT = "NCCL WARN NET/IB : Got completion from peer 10.1.3.2<33057> with"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1", "rdma-connect"),
        ("NCCL WARN Call to ibv_modify_qp failed with error Invalid argument errno 22", "rdma-connect"),
        (f"{GOT} status=12 opcode=129 len=65536 vendor err 129 (Recv)", "ib-retry"),
        (f"{GOT} error 12, opcode 0, len 0, vendor err 129", "ib-retry"),
        (f"{GOT} status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129", "ib-retry"),
        (f"{GOT} status=10 opcode=0 len=0 vendor err 136 (Send)", "rdma-access"),
        (f"{GOT} status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_RECV(128) vendor_err=81", "rdma-access"),
        (f"{GOT} status=5 opcode=1 len=0 vendor err 249 (Recv)", "unknown"),
        ("NCCL WARN NET/IB : mlx5_0:1 async fatal event: local catastrophic error", "rdma-device"),
        ("NCCL WARN Call to ibv_poll_cq() returned -1", "rdma-device"),
        ("NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12", "memlock"),
        ("NCCL WARN Call to ibv_create_qp failed with error Invalid argument", "rdma-setup"),
    ],
)
def test_a_failure_of_infiniband_is_named_whatever_nccl_says_before(tmp_path: Path, line: str, kind: str) -> None:
    before = "".join(f"gpu9:77:99 [2] {text}\n" for text in BEFORE_INFINIBAND)
    found = why(tmp_path, f"{before}gpu9:77:99 [2] {line}\n{FailedLog(4).consequences()}")
    assert (found.kind, found.cause and found.cause.node) == (kind, found.cause and "gpu9")


def test_an_xid_names_the_rank_of_its_gpu(tmp_path: Path) -> None:
    log = FailedLog(9)
    xid = f"Nov 20 03:40:35 {log.host(13)} kernel: NVRM: Xid (PCI:0000:5a:00): 79, pid=1, GPU has fallen off the bus.\n"
    found = why(tmp_path, log.communicators() + log.steps(5) + xid + log.consequences())
    assert found.cause is not None
    assert (found.cause.kind, found.cause.rank, found.cause.node) == ("xid-79", 13, log.host(13))
    assert (found.cause.gpu, found.cause.keep_out, found.of_machine) == ("0000:5a:00", True, True)


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("NVRM: Xid (PCI:0000:5d:00): 63, pid=1, Row Remapper: New row marked for remapping", "noise"),
        ("NVRM: Xid (PCI:0000:5d:00): 45, pid=1, Ch 00000008", "teardown"),
        ("NVRM: Xid (PCI:0000:5d:00): 43, pid=1, Ch 00000008", "cascade"),
        ("NVRM: Xid (PCI:0000:5d:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 00 (0x025001c6 0x00000007)", "noise"),
        ("NVRM: Xid (PCI:0000:5d:00): 145, RLW_REMAP Fatal XC0 i0 Link 00 (0x00000082 0x00000040)", "root"),
        ("NVRM: Xid (PCI:0000:5d:00): 145, RLW_REMAP Fatal XC0 i0 Link 00 (0x00000082 0x00000100)", "noise"),
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 11012, Non-fatal, Single bit ECC", "noise"),
    ],
)
def test_the_number_of_an_xid_decides(line: str, role: str) -> None:
    found = signature_of(line)
    assert found is not None
    assert found.role == role


def test_prefixes_are_taken_off_in_any_order() -> None:
    assert parse_line("[default5]:[rank13]: ValueError: x")[:4] == ("ValueError: x", 13, 5, None)
    assert parse_line(" 3: gpu12:4711:4735 [3] NCCL WARN x")[:5] == ("NCCL WARN x", 3, None, "gpu12", 3)
    assert parse_line("[1,mpirank:24,algo-4]<stderr>:ValueError: x")[:4] == ("ValueError: x", 24, None, "algo-4")
    assert parse_line("[prterun-gpu7-4711@1,24]<stderr>: ValueError: x")[:2] == ("ValueError: x", 24)
    assert printer_of("[1,mpirank:24,algo-4]<stderr>:  File")[0] == "[1,mpirank:24,algo-4]<stderr>:"
    assert parse_line("10.1.0.3: [rank19]: ValueError: x")[:4] == ("ValueError: x", 19, None, "10.1.0.3"), "pdsh"
    assert parse_line("10.1.0.3:29500: refused").host is None, "an address that the text names"
    assert parse_line("12: 2026-11-22 10:05:22 ValueError: x").time == "2026-11-22 10:05:22"
    assert parse_line("python3: can't open file '/x.py'").host is None
    assert parse_line("[rank3]: urllib3.exceptions.ProtocolError: x")[:4] == (
        "urllib3.exceptions.ProtocolError: x",
        3,
        None,
        None,
    )
    assert location_of("srun: error: gpu1: tasks 0-2,5: Killed")[:2] == ((0, 1, 2, 5), "gpu1")
    assert location_of("[PG ID 5 PG GUID 35(TENSOR) Rank 1] Process group watchdog").ranks == (), "the rank in a group"
    assert {short_bus(bus) for bus in ("00000000:5D:00.0", "0000:5d:00", "5d000", "NaN")} == {"5d:00", "NaN"}


def test_an_endless_line_is_cut_and_what_a_terminal_would_act_on_is_escaped(tmp_path: Path) -> None:
    assert named(why(tmp_path, "RuntimeError: " + "x" * 10**6)) == ("RuntimeError: " + "x" * LONGEST)[:LONGEST]
    assert named(why(tmp_path, "ValueError: \x1b]0;owned\x07 \u202e\n")) == "ValueError: \\x1b]0;owned\\x07 \\u202e"


@pytest.mark.slow
def test_a_huge_log_is_read_in_little_memory(tmp_path: Path) -> None:
    """Whoever knows of hardware may speak in the middle of it."""
    log, fallen = (
        tmp_path / "log-x.out",
        "[1.000000] NVRM: Xid (PCI:0000:5a:00): 79, pid=1, GPU has fallen off the bus.",
    )
    with log.open("w") as stream:
        for half in (f"{fallen}\n", "RuntimeError: the last line\n"):
            for _ in range(51):
                stream.write(NCCL * 10_000)
            stream.write(half)
    code = "import sys; from pathlib import Path; from llmb_common.causes.diagnosis import diagnose_logs\n"
    code += "found = diagnose_logs([Path(sys.argv[1])]); print(found.cause.line, found.witnesses[0].line, sep='\\n')"
    limit = 160 << 20
    done = subprocess.run(
        [sys.executable, "-c", code, str(log)],
        env={"PYTHONPATH": str(ROOT / "common")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{fallen}\nRuntimeError: the last line\n", done.stderr
