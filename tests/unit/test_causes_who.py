"""Whom a cause names: for whom the others waited, who was killed, which node failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmb_common.causes.diagnosis import diagnose_logs
from llmb_common.causes.places import Places
from llmb_common.causes.reading import read_complaints
from support.failed_logs import TORCHRUN_KILLED, FailedLog, why
from support.texts import Texts


def in_group(log: FailedLog, rank: int, seq: int, group: str, seat: int) -> str:
    """As PyTorch 2.9 says it of a group that not all ranks are in: ``seat`` is the rank's number there."""
    prefix = "[E1122 10:11:12.345678901 ProcessGroupNCCL.cpp:"
    work = f"WorkNCCL(SeqNum={seq}, OpType=ALLGATHER, NumelIn=4, NumelOut=4, Timeout(ms)=600000)"
    return log.line(
        rank, f"{prefix}628] [Rank {seat}] Watchdog caught collective operation timeout: {work} ran for 600060"
    ) + log.line(
        rank,
        f"{prefix}2168] [PG ID 2 PG GUID {group} Rank {seat}]  failure detected by watchdog at work sequence id: {seq}"
        f" PG status: last enqueued work: {seq + 2}, last completed work: {seq - 1}",
    )


def timeout(log: FailedLog, rank: int, seq: int = 1580) -> str:
    work = f"WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000)"
    return log.line(
        rank,
        f"[E1122 10:11:12.345678901 ProcessGroupNCCL.cpp:628] [Rank {rank}] Watchdog caught collective operation"
        f" timeout: {work} ran for 600060 milliseconds before timing out.",
    )


@pytest.mark.parametrize("style", ["label", "torch", "none", "host"])
def test_of_a_collective_that_timed_out_the_rank_that_did_not_wait_is_named(tmp_path: Path, style: str) -> None:
    log = FailedLog(5, style=style)
    waited = "".join(timeout(log, rank) for rank in range(log.ranks) if rank != log.culprit)
    found = why(tmp_path, log.noise(50) + log.communicators() + log.steps(5) + waited + log.consequences())
    assert found.cause is not None
    assert (found.cause.kind, found.cause.rank, found.cause.line) == ("hang", log.culprit, "")
    assert found.cause.node == log.host(log.culprit)
    assert {"ALLREDUCE", "1580)"} <= set(found.summary.split())


def test_a_rank_that_is_behind_is_named(tmp_path: Path) -> None:
    log = FailedLog(6)
    waited = "".join(timeout(log, rank, 1580 - (rank == log.culprit)) for rank in range(log.ranks))
    found = why(tmp_path, log.steps(5) + waited + log.consequences())
    assert found.cause is not None
    assert (found.cause.kind, found.cause.rank) == ("hang", log.culprit)


def test_how_many_ranks_there_are_is_seen_where_many_have_waited(tmp_path: Path, texts: Texts) -> None:
    log = FailedLog(5)
    waited = [timeout(log, rank) for rank in range(8) if rank != 3]
    found = why(tmp_path, log.steps(5) + "".join(waited))
    assert (found.kind, found.cause and found.cause.rank) == ("hang", 3)
    assert found.cause is not None
    texts(found.cause.cause)
    assert why(tmp_path, log.steps(5) + "".join(waited[:3])).cause is None
    many = "".join(timeout(log, rank) for rank in range(22))
    assert why(tmp_path, log.communicators() + many).cause is None, "ten of 32 were ended before they could say so"


def test_where_all_ranks_waited_nobody_knows(tmp_path: Path) -> None:
    log = FailedLog(7)
    found = why(tmp_path, log.steps(5) + "".join(timeout(log, rank) for rank in range(log.ranks)) + log.consequences())
    assert found.cause is None
    assert found.summary.startswith("unknown: ")
    assert found.witnesses[0].role == "witness"
    assert len(found.witnesses[0].ranks) == log.ranks


def tensor(log: FailedLog, rank: int, seq: int = 5000) -> str:
    return in_group(log, rank, seq + rank // 8, f"{9 + rank // 8}(TENSOR_MODEL_PARALLEL_GROUP)", rank % 8)


def data(log: FailedLog, rank: int, seq: int = 120) -> str:
    return in_group(log, rank, seq, f"{40 + rank % 8}(DATA_PARALLEL_GROUP)", rank // 8)


def stage(log: FailedLog, rank: int) -> str:
    """Each sends as often as it likes."""
    return in_group(log, rank, 300 + rank, "60(PIPELINE_MODEL_PARALLEL_GROUP)", rank // 8).replace("ALLGATHER", "SEND")


@pytest.mark.parametrize(
    ("waited", "ranks"),
    [
        (lambda log: [(tensor if rank // 8 == 1 else data)(log, rank) for rank in range(32) if rank != 13], (13,)),
        (lambda log: [tensor(log, rank) for rank in range(8, 15)], ()),
        (lambda log: [tensor(log, rank) for rank in (*range(7), *range(8, 13), 14, 15, *range(16, 32))], (7, 13)),
        (lambda log: [(data if rank % 8 == 4 else tensor)(log, rank) for rank in range(32) if rank != 20], (20,)),
        (lambda log: [tensor(log, rank) for rank in range(32)], ()),
        (lambda log: [tensor(log, rank) for rank in (8, 9, 10)], ()),
        (lambda log: [data(log, rank, 120 - (rank == 20)) for rank in range(32)], (20,)),
        (lambda log: [(stage if rank % 8 == 2 else tensor)(log, rank) for rank in range(32) if rank != 26], (26,)),
    ],
    ids=["of a node", "last", "two nodes", "across nodes", "nobody", "few", "behind", "stages"],
)
@pytest.mark.parametrize("style", ["torch", "both"])
def test_ranks_wait_in_groups_that_count_for_themselves(tmp_path: Path, waited: Any, ranks: Any, style: str) -> None:
    """8 ranks of a node in tensor groups, the same rank of all nodes in data groups; of a group only its last may be
    missing without a trace."""
    log = FailedLog(5, style=style)
    lines = waited(log)
    log.random.shuffle(lines)
    found = why(tmp_path, log.communicators() + log.steps(5) + "".join(lines) + log.consequences())
    assert (found.cause.ranks if found.cause else ()) == ranks


def dated(log: FailedLog, rank: int, clock: str) -> str:
    return "".join(
        f"{rank}: 2026-11-22 {clock} {text}\n" for text in (*FRAMES, "torch.OutOfMemoryError: CUDA out of memory")
    )


FRAMES = ("Traceback (most recent call last):", '  File "/opt/train.py", line 7, in forward')


@pytest.mark.parametrize(("clock", "rank"), [("10:11:10,5", 20), ("10:10:13", 20), ("10:10:11", 3), ("10:11:13", 3)])
def test_a_clock_is_believed_as_far_as_lines_may_be_late(tmp_path: Path, clock: str, rank: int) -> None:
    log = FailedLog(5, style="label")
    found = why(tmp_path, dated(log, 3, "10:11:12") + log.consequences() + dated(log, 20, clock))
    assert found.cause is not None
    assert found.cause.rank == rank


CHECKPOINT = (
    *FRAMES,
    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([7])",
    "Traceback (most recent call last): (RANK 7)",
    *FRAMES[1:],
    "KeyError: 'optimizer.state'",
)


@pytest.mark.parametrize(
    "texts", [CHECKPOINT, ("[Rank 0]: Ranks 7, 9 failed to pass monitoredBarrier in 1800000 ms",)], ids=["", "barrier"]
)
def test_a_rank_may_speak_of_another(tmp_path: Path, texts: tuple[str, ...]) -> None:
    log = FailedLog(3)
    lines = "".join(log.line(0, text) for text in texts)
    found = why(tmp_path, log.communicators() + log.steps(3) + lines + log.consequences())
    assert found.cause is not None
    assert (found.cause.rank, found.cause.node) == (7, log.host(7))


def test_what_a_rank_raised_after_others_had_complained_did_not_begin_it(tmp_path: Path) -> None:
    """It was alive when another was gone, however sure its own line is."""
    log = FailedLog(3)
    first = "".join(log.line(4, text) for text in (*FRAMES, "KeyError: 'lm loss'"))
    later = "".join(log.line(9, text) for text in (*FRAMES, "OSError: [Errno 5] Input/output error"))
    found = why(tmp_path, log.steps(3) + first + log.consequences() + later)
    assert (found.kind, found.cause and found.cause.rank) == ("exception", 4)
    assert why(tmp_path, log.steps(3) + later + first + log.consequences()).kind == "file-system"
    assert why(tmp_path, log.steps(3) + first + later + log.consequences()).kind == "file-system", "the surer one"


def test_a_killed_rank_is_named_but_not_as_the_cause(tmp_path: Path, texts: Texts) -> None:
    """By whom a process was killed its own end does not say; the kernel's or Slurm's record of a full memory does."""
    found = why(tmp_path, TORCHRUN_KILLED)
    assert found.cause is None
    texts(found.summary)
    record = "[9218.12] Memory cgroup out of memory: Killed process 476 (python3) total-vm:1kB\n"
    confirmed = why(tmp_path, TORCHRUN_KILLED, record)
    assert confirmed.kind == "host-memory"


def test_what_is_killed_after_a_rank_has_ended_is_not_the_suspect(tmp_path: Path) -> None:
    ended = "srun: error: gpu1: task 5: Aborted (core dumped)\nsrun: error: gpu4: tasks 32-39: Killed\n"
    found = why(tmp_path, "", ended)
    assert found.suspect is not None
    assert (found.suspect.ranks, found.suspect.node) == ((5,), "gpu1")


def test_a_rank_that_ended_in_silence_is_the_suspect_where_others_only_lost_it(tmp_path: Path) -> None:
    """A network that retries in vain may be one that works, and a peer that is gone."""
    log = FailedLog(5)
    retried = (
        "NCCL WARN NET/IB : Got completion from peer 10.1.3.2<33057> with status=12 opcode=129 len=6 vendor err 129"
    )
    lost = "".join(log.line(rank, retried) for rank in (1, 9, 30))
    ended = "srun: error: {}: task {}: Exited with exit code 255\n"
    found = why(tmp_path, log.steps(5) + lost, ended.format(log.host(11), 11))
    assert found.suspect is not None
    assert (found.kind, found.suspect.ranks, found.suspect.node) == ("unknown", (11,), log.host(11))
    assert why(tmp_path, log.steps(5) + lost, ended.format(log.host(9), 9)).kind == "ib-retry"


def test_the_node_that_failed_is_not_the_one_that_says_so(tmp_path: Path) -> None:
    """slurmstepd says on which node it writes, srun which one failed: the healthy one must not be kept out."""
    said = (
        "slurmstepd: error: *** JOB 7 ON gpu1 CANCELLED AT 2026-11-24T05:34:01 DUE TO NODE FAILURE, SEE SLURMCTLD LOG"
        " FOR DETAILS ***\n"
    )
    alone = why(tmp_path, "", said)
    assert (alone.kind, alone.cause and alone.cause.node) == ("node-failed", None)
    found = why(tmp_path, "", f"{said}srun: error: Node failure on gpu17\n")
    assert (found.kind, found.cause and found.cause.node) == ("node-failed", "gpu17")


def test_a_node_is_kept_out_only_where_others_do_not_say_the_same(tmp_path: Path) -> None:
    """A path that is wrong is missing everywhere; srun says first of another node that it ended."""
    says = "slurmstepd-{}: error: pyxis: --container-mounts: source path does not exist: /lustre/datta\n"
    ended = "srun: error: gpu3: tasks 0-1: Exited with exit code 1\nsrun: error: gpu4: tasks 2-3: Terminated\n"
    one = why(tmp_path, says.format("gpu4"), ended)
    assert one.cause is not None
    assert (one.kind, one.cause.node, one.cause.keep_out) == ("mount", "gpu4", True)
    both = why(tmp_path, says.format("gpu4") + says.format("gpu3"), ended)
    assert both.cause is not None
    assert (both.cause.node, both.cause.keep_out) == ("gpu4", False)
    alone = why(tmp_path, says.format("gpu4"))
    assert alone.cause is not None
    assert not alone.cause.keep_out, "the only node of a job"


@pytest.mark.parametrize(
    ("of_another", "keep_out"),
    [("Terminated", True), ("Exited with exit code 143", True), ("Exited with exit code 1", False)],
)
def test_who_was_told_to_end_does_not_share_the_blame(tmp_path: Path, of_another: str, keep_out: bool) -> None:
    """A shell that SIGTERM ends exits with 143; srun sends it to all as soon as one task has failed."""
    log = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    ended = (
        "srun: error: gpu1: task 0: Exited with exit code 1\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=12635.0\n"
        f"srun: error: gpu4: task 3: {of_another}\n"
    )
    found = why(tmp_path, log, ended)
    assert found.cause is not None
    assert (found.cause.node, found.cause.keep_out) == ("gpu1", keep_out)


BUS_ERROR = "srun: error: gpu4: tasks 2-3: killed by signal: Bus error\n"
PREEMPTED = "slurmstepd: error: *** JOB 7 ON gpu3 CANCELLED AT 2026-11-28T05:34:01 DUE TO PREEMPTION ***\n"
OTHERS = "srun: error: gpu3: tasks 0-1: Terminated\nsrun: error: gpu4: tasks 2-3: Exited with exit code 1\n"
CPU_BIND = "srun: error: Task launch for StepId=7.0 failed on node gpu4: Unable to satisfy cpu bind request\n"
PEER_GONE = (
    "gpu4:20:30 [0] NCCL WARN NET/IB: Got completion from peer 10.1.0.3<45678> with status=12 opcode=0 vendor err 129\n"
)
LIBRARY = "gpu4: [rank2]: ImportError: libibverbs.so.1: cannot open shared object file: No such file or directory\n"


@pytest.mark.parametrize(
    ("log", "batch", "kind", "keep_out"),
    [
        pytest.param("", CPU_BIND + OTHERS, "cpu-bind", False, id="the partition's fault"),
        pytest.param("", BUS_ERROR + OTHERS, "shared-memory", True, id="a bus error"),
        pytest.param("", PREEMPTED + BUS_ERROR + OTHERS, "preempted", False, id="a bus error of a job that was ended"),
        pytest.param(PEER_GONE, OTHERS, "ib-retry", False, id="whoever reports a broken link"),
        pytest.param(LIBRARY, OTHERS, "library-missing", True, id="a library that one node of several lacks"),
        pytest.param(
            LIBRARY + LIBRARY.replace("gpu4: [rank2]", "gpu3: [rank0]"),
            OTHERS,
            "library-missing",
            False,
            id="a library that the image lacks",
        ),
    ],
)
def test_only_a_line_about_the_nodes_own_parts_speaks_against_it(
    tmp_path: Path, log: str, batch: str, kind: str, keep_out: bool
) -> None:
    found = why(tmp_path, log, batch)
    assert found.cause is not None
    assert (found.kind, found.cause.keep_out) == (kind, keep_out)


def test_a_link_that_failed_has_two_ends(tmp_path: Path, texts: Texts) -> None:
    found = why(tmp_path, PEER_GONE, OTHERS)
    assert found.cause is not None
    assert (found.cause.node, found.cause.peer) == ("gpu4", "10.1.0.3")
    texts(found.summary)


def test_without_any_complaint_the_last_line_is_a_witness(tmp_path: Path, texts: Texts) -> None:
    harmless = "gpu12:4711:4735 [3] NCCL INFO Channel 07/0 : 12[4] -> 13[5] via P2P/CUMEM/read\n"
    texts(why(tmp_path, f"{harmless}\nthe end\n \n").summary)
    texts(why(tmp_path, "\n \n").summary)
    texts(diagnose_logs([tmp_path / "nowhere"]).summary)


def test_where_a_rank_is_follows_from_the_first_of_its_node() -> None:
    places = Places(per_node=8, first={"a": 0, "b": 8, "d": 24})
    assert [places.host_of(rank) for rank in (0, 7, 8, 15, 16, 24, 32)] == ["a", "a", "b", "b", None, "d", None]


IN_USE = "Address already in use"


@pytest.mark.parametrize(
    ("line", "kind", "node"),
    [
        (f"slurmstepd: error:  mpi/pmix_v4: pmixp_usock_create_srv: cn7 [1]: {IN_USE} (98)", "pmi-socket", "cn7"),
        (f"[cn7:12255] pmix_ptl_base: bind() failed for socket 18: {IN_USE}", "pmi-socket", "cn7"),
        (f"[PE_2]:inet_listen_socket_setup:bind() failed [fd=3, port=1371 err='{IN_USE}']", "pmi-socket", None),
        (f"cn7:20:30 [4] misc/socket.cc:409 NCCL WARN Call to bind failed: {IN_USE}", "ports-used-up", "cn7"),
        ("Call to connect to 10.4.2.11<41633> failed : Cannot assign requested address", "ports-used-up", None),
        (f"srun: error: Unable to create step for job 7: {IN_USE}", "ports-used-up", None),
        (f"OSError: [Errno 98] {IN_USE}", "port-in-use", None),
        (f"[E socket.cpp:435] [c10d] The server socket failed to bind (errno: 98 - {IN_USE}).", "address-in-use", None),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0", "old-driver", None),
        ("Call failed: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED", "no-gpu", None),
        ("OSError: [Errno 28] No space left on device: '/tmp/torchinductor_root/a.py'", "disk-full", None),
        ("OSError: [Errno 30] Read-only file system: '/root/.triton'", "read-only", None),
        ("PermissionError: [Errno 13] Permission denied: '/root/.triton/cache'", "permission", None),
        ("AssertionError: One or both of the .idx and .bin files cannot be found at the path prefix /d", "data", None),
        ("corrupted size vs. prev_size", "segfault", None),
        ("Fatal glibc error: CPU does not support x86-64-v3", "architecture", None),
        ("cn7:20:30 [1] mnnvl.cc:62 NCCL WARN MNNVL (cliqueSize 16) is available but not working", "mnnvl", "cn7"),
        ("[1732680000.123457] [cn7:20:0] x.c:99 UCX  ERROR mlx5dv_devx_obj_create(QP) failed", "rdma-setup", "cn7"),
        ("slurmstepd-cn7: error: pyxis:     curl: (6) Could not resolve host: nvcr.io", "host-name", "cn7"),
        ("triton.runtime.errors.PTXASError: Internal Triton PTX codegen error", "compiler", None),
        ("  what():  cufile: failed to register the buffer", "exception", None),
    ],
)
def test_words_that_several_causes_share_are_told_apart(tmp_path: Path, line: str, kind: str, node: str | None) -> None:
    found = why(tmp_path, f"{line}\n")
    assert (found.kind, found.cause and found.cause.node) == (kind, node)


@pytest.mark.parametrize("ranks", [1, 9, 80])
def test_of_a_fault_that_ranks_share_the_summary_says_so(tmp_path: Path, ranks: int, texts: Texts) -> None:
    log = FailedLog(5, ranks=128)
    text = "".join(log.line(8 + rank, "run.py: error: unrecognized arguments: --tp") for rank in range(ranks))
    texts(why(tmp_path, log.communicators() + text).summary)


def test_a_kernel_that_gave_up_waiting_ends_its_own_gpus_work(tmp_path: Path) -> None:
    log = FailedLog(5, style="both")
    gave_up = log.line(3, "DeepEP timeout check failed: rank = 3, thread = 5, value = 1024)")
    failed = (
        "Traceback (most recent call last):",
        '  File "/opt/a.py", line 7, in f',
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
    )
    own, of_another = ("".join(log.line(rank, text) for text in failed) for rank in (3, 4))
    assert why(tmp_path, gave_up + own).kind == "deepep"
    assert why(tmp_path, gave_up + of_another).kind == "illegal-access"


def test_who_was_ended_by_others_may_have_survived_what_it_raised(tmp_path: Path) -> None:
    log = FailedLog(4)
    raised = "".join(log.line(3, text) for text in ("Traceback (most recent call last):", "KeyError: 'qkv'"))
    ends = f"srun: error: {log.host(3)}: task 3: {{}}\n"
    assert why(tmp_path, raised + log.steps(2) + ends.format("Exited with exit code 1")).kind == "exception"
    assert why(tmp_path, raised + log.steps(2) + ends.format("Terminated")).cause is None


def test_iterations_of_an_earlier_start_are_not_those_before_a_failure(tmp_path: Path) -> None:
    log = FailedLog(4)
    earlier = log.steps(6)
    (tmp_path / "log").write_text(earlier + log.line(3, "torch.OutOfMemoryError: CUDA out of memory."))
    found = read_complaints(tmp_path / "log", len(earlier))
    assert (found.step, [item.signature.id for item in found.complaints]) == (None, ["cuda-memory"])


def test_what_a_rank_raised_counts_also_where_it_arrives_late(tmp_path: Path) -> None:
    log = FailedLog(4)
    texts = ("Traceback (most recent call last):", "OSError: [Errno 30] Read-only file system: '/root/.triton'")
    raised = "".join(log.line(log.culprit, text) for text in texts)
    found = why(tmp_path, log.steps(2) + log.consequences() + raised)
    assert (found.kind, found.cause and found.cause.rank) == ("read-only", log.culprit)
    shell = log.line(log.culprit, "touch: cannot touch '/root/.x': Read-only file system")
    assert why(tmp_path, shell + log.failed(["KeyError: 'x'"], steps=0)).kind == "exception", "a shell goes on"


RECEIVER = (
    "DeepEP dispatch NVL receiver timeout, channel: 3, RDMA: 0, nvl: 7, src RDMA: 1, src nvl: 1, start: 0, end: 0"
)


@pytest.mark.parametrize("printed", [RECEIVER, "DeepEP timeout check failed: rank = 3, thread = 5, value = 1024)"])
def test_a_time_out_of_deepep_is_no_illegal_access_whoever_prints_it(tmp_path: Path, printed: str) -> None:
    """CUDA prints for a kernel, without the rank's prefix."""
    log = FailedLog(5, style="torch")
    failed = (
        "Traceback (most recent call last):",
        '  File "/opt/a.py", line 7, in f',
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
    )
    own = "".join(log.line(3, text) for text in failed)
    assert why(tmp_path, log.steps(5) + 3 * f"{printed}\n" + own).kind == "deepep"
    assert why(tmp_path, log.steps(5) + own + 3 * f"{printed}\n").kind == "illegal-access", "others wait for it"


TORCHRUN = """E1122 10:11:12.345000 4711 api.py:882] failed (exitcode: -11) local_rank: 3 (pid: 4714) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:11:12
  host      : gpu-12
  rank      : 11 (local_rank: 3)
  exitcode  : -11 (pid: 4714)
  traceback : Signal 11 (SIGSEGV) received by PID 4714
"""


@pytest.mark.parametrize(
    "said",
    [
        "Fatal Python error: Segmentation fault",
        "[gpu-12:4714:0:4714] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x0)",
    ],
)
def test_the_rank_of_a_segfault_is_in_the_lines_of_torchrun_below_it(tmp_path: Path, said: str) -> None:
    found = why(tmp_path, FailedLog(5).steps(5) + f"{said}\n" + TORCHRUN)
    assert found.cause is not None
    assert (found.kind, found.cause.rank, found.cause.node) == ("segfault", 11, "gpu-12")
    assert found.cause.line.startswith(said[:20])


def test_the_rank_of_a_bus_error_is_there_as_well(tmp_path: Path) -> None:
    ended = TORCHRUN.replace("-11", "-7").replace("Signal 11 (SIGSEGV)", "Signal 7 (SIGBUS)")
    found = why(tmp_path, FailedLog(5).steps(5) + "Fatal Python error: Bus error\n" + ended)
    assert found.cause is not None
    assert (found.kind, found.cause.rank, found.cause.node) == ("bus-error", 11, "gpu-12")


def test_rank_0s_own_log_says_that_steps_were_trained(tmp_path: Path) -> None:
    steps = 30 * "Step Time : 5.74s GPU utilization: 612.3MODEL_TFLOP/s/GPU\n"
    limit = "slurmstepd: error: *** JOB 4544 ON gpu-1 CANCELLED AT 2026-04-21T17:01:43 DUE TO TIME LIMIT ***\n"
    found = why(tmp_path, steps + limit)
    assert found.cause is not None
    assert (found.kind, found.cause.step) == ("time-limit", 30)
