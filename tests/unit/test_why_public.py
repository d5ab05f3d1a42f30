"""Failures from public reports, retyped with other names and addresses: what a person found the cause to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.causes.diagnosis import diagnose_logs
from llmb_common.causes.lines import parse_line
from llmb_common.causes.table import signature_of
from support.texts import Texts

CASES = Path(__file__).resolve().parents[1] / "data" / "why"

FOUND = {
    "w02_bootstrap_wrong_nic.out": ("unreachable", 508, "gpu-230"),
    "w04_hf_cache.out": ("hub", 0, "gpu-144"),
    "w06_import_version.out": ("releases-mixed", 3, "gpu-12"),
    "w08_illegal_p2p.out": ("illegal-access", 493, "gpu-228"),
    "w11_runpyxis.out": ("container", None, None),
    "w12_seccomp.out": ("container", 0, "cn034"),
    "w13_shadow.out": ("gpu-hook", 22, "hkn0417"),
    "w14_cudagraph_eval.out": ("exception", 2, None),
    "w21_pmix_wedge.out": ("pmix-wedge", None, "gpu-141"),
    "w26_stalehandle_pyxis.out": ("container", 0, "node10"),
    "w27_taskprolog.out": ("task-prolog", 0, "sp-0003"),
    "w28_switchroot.out": ("container", 1, "hpc-pg0-2"),
    "checkpoint_missing_key.log": ("checkpoint-layout", 2, "hgx-b017"),
    "dataloader_killed.log": ("worker-killed", 31, "hgx-b022"),
    "efa_unreachable.log": ("ib-retry", 19, "hgx-b019"),
    "gpfs_stale.log": ("file-system", 9, "hgx-b018"),
    "munge_down.log": ("munge", None, None),
    "worker_enospc.log": ("disk-full", 9, "hgx-b018"),
    "userns_two_nodes.out": ("user-namespace", 0, "w1"),
    "launch_timed_out.out": ("launch", None, "n1"),
    "start_link_local.out": ("unreachable", None, "n122-085"),
    "start_no_route.out": ("unreachable", None, "node5"),
    "mnnvl_import.out": ("mnnvl", None, "gb-job-0"),
    "torchrun_ecc.out": ("ecc", 3, None),
    "fsx_timed_out.out": ("file-system", 6, "ip-10-1-2-3"),
    "worker_exited.out": ("worker-ended", 11, "k8-1"),
    "worker_segfault.out": ("worker-crashed", 11, "k8-1"),
    "efa_endpoint.out": ("libfabric", None, "ip-10-36-29-253"),
    "ompi_pmi.out": ("mpi-pmi", 0, "n2109"),
    "model_name.out": ("hub", 0, "a1"),
    "ranks_over_gpus.out": ("no-gpu", 4, "gpu-1"),
    "ib_last_error.out": ("ib-retry", 391, "gpu-204"),
    "ib_watchdog.out": ("ib-retry", 391, "gpu-204"),
    "triton_noexec.out": ("noexec", 2, "gpu01"),
    "ptxas_missing.out": ("compiler", 9, "s1"),
    "shm_apart.out": ("shared-memory-apart", 1, "gpu-31"),
    "ucx_register.out": ("rdma-setup", 5, "dgx5"),
}
"""File -> kind, rank and node of the cause."""


OOM = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/w/train.py", line 9, in <module>\n'
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


@pytest.mark.parametrize("name", FOUND)
def test_a_public_failure_has_the_cause_that_a_person_found(name: str) -> None:
    file = CASES / name
    batch = file.with_suffix(".batch")
    cause = diagnose_logs([file, batch] if batch.exists() else [file]).cause
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node) == FOUND[name]


def test_no_public_failure_is_left_out() -> None:
    assert {path.name for path in CASES.iterdir() if path.suffix != ".batch"} == set(FOUND)


def test_a_job_that_never_began_a_step_does_not_need_more_time() -> None:
    cause = diagnose_logs([CASES / "w02_bootstrap_wrong_nic.out"]).cause
    assert cause is not None
    assert "NCCL_SOCKET_IFNAME" in cause.remedy
    assert "TIME_LIMIT" not in cause.remedy
    assert cause.peer == "10.9.226.174"


def test_a_time_limit_before_the_first_step_is_not_answered_with_more_time(tmp_path: Path, texts: Texts) -> None:
    log = tmp_path / "log.out"
    log.write_text("slurmstepd: error: *** JOB 4544 ON gpu-1 CANCELLED AT 2026-04-21T17:01:43 DUE TO TIME LIMIT ***\n")
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.step) == ("time-limit", None)
    texts(cause.what)
    assert "TIME_LIMIT" not in cause.remedy


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("userns_two_nodes.out", id="a line without a node, where the tasks of two nodes ended"),
        pytest.param("ranks_over_gpus.out", id="what may be a setting, on the only node"),
        pytest.param("mnnvl_import.out", id="what may be a setting, on the only node that has spoken"),
        pytest.param("torchrun_ecc.out", id="a rank whose node nothing says"),
    ],
)
def test_a_node_that_may_be_healthy_is_not_kept_out(name: str) -> None:
    cause = diagnose_logs([CASES / name]).cause
    assert cause is not None
    assert not cause.keep_out


@pytest.mark.parametrize(
    "summary", ["ChildFailedError:", "failed (exitcode: 1) local_rank: 3 (pid: 212) of binary: python"]
)
def test_tasks_are_launchers_and_no_ranks_under_torchrun(tmp_path: Path, summary: str) -> None:
    ended = "srun: error: gpu-9: task 3: Exited with exit code 1\n"
    (tmp_path / "torchrun.out").write_text(f"torch.distributed.elastic.multiprocessing.errors.{summary}\n{OOM}{ended}")
    (tmp_path / "srun.out").write_text(f"{OOM}{ended}")
    launched = diagnose_logs([tmp_path / "torchrun.out"]).cause
    alone = diagnose_logs([tmp_path / "srun.out"]).cause
    assert launched is not None
    assert alone is not None
    assert (launched.rank, launched.node) == (3, None)
    assert (alone.rank, alone.node) == (3, "gpu-9")


LAUNCHED = (
    "1: E0808 10:31:20.1 2001 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1"
    " (pid: 4009) of binary: python\n1:   host      : gpu-9\n1:   rank      : 9 (local_rank: 1)\n"
    "1:   exitcode  : 1 (pid: 4009)\nsrun: error: gpu-9: task 1: Exited with exit code 1\n"
)


def test_the_number_of_a_launcher_in_front_of_a_line_is_no_rank(tmp_path: Path) -> None:
    """With ``srun --label`` and torchrun; where a task is a rank, its number is the rank."""
    log = tmp_path / "log.out"
    log.write_text(OOM.replace("[rank3]", "1: [rank9]") + LAUNCHED)
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.rank, cause.node) == (9, "gpu-9")
    for ended, rank, ranks in ((LAUNCHED, 9, ()), ("srun: error: gpu-8: tasks 0-7: Aborted\n", 1, (1,))):
        log.write_text(OOM.replace("[rank3]", "1") + ended)
        cause = diagnose_logs([log]).cause
        assert cause is not None
        assert (cause.rank, cause.ranks) == (rank, ranks)


def test_ranks_behind_the_numbers_of_launchers_are_missed_as_others_are(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    timed_out = (
        "{0}: [rank{1}]:[E421 14:29:05.2 ProcessGroupNCCL.cpp:682] [Rank {1}] Watchdog caught collective operation"
        " timeout: WorkNCCL(SeqNum=39, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n"
    )
    log.write_text("".join(timed_out.format(rank // 8, rank) for rank in range(16) if rank != 5) + LAUNCHED)
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank) == ("hang", 5)


def test_a_rank_that_aborts_because_it_lost_a_peer_is_not_where_a_gpu_was_lost(tmp_path: Path) -> None:
    """Where the line that tells of the GPU names no node, what srun says of tasks tells it."""
    aborts = "gpu-1: [rank1]: terminate called after throwing 'c10::DistBackendError'\ngpu-1: [rank1]: {}\n"
    log = tmp_path / "log.out"
    log.write_text(
        "slurmstepd: error: NVML: Failed to get usage(15): GPU is lost\n"
        + aborts.format("Fatal Python error: Aborted")
        + "srun: error: gpu-2: task 12: Aborted (core dumped)\nsrun: error: gpu-1: tasks 0-7: Terminated\n"
    )
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node, cause.keep_out) == ("off-the-bus", 12, "gpu-2", True)


def test_nccls_reason_follows_what_stands_before_its_error(tmp_path: Path) -> None:
    """Its own exception is no reason to doubt it; a rank that was killed before is."""
    steps, error = (CASES / "ib_last_error.out").read_text().split("\n\n")
    log = tmp_path / "log.out"
    log.write_text(f"{steps}\nsrun: error: gpu-7: task 5: Killed\n{error}")
    assert diagnose_logs([log]).kind == "unknown"


@pytest.mark.parametrize("label", ["391: ", "48: "])
def test_nccls_reason_is_found_behind_the_numbers_of_tasks(tmp_path: Path, label: str) -> None:
    """Where ``srun --label`` puts them in front of all lines, be they the ranks or launchers of them."""
    log = tmp_path / "log.out"
    lines = (CASES / "ib_watchdog.out").read_text().splitlines(keepends=True)
    log.write_text("".join(line if line.startswith("srun") else label + line for line in lines))
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank) == ("ib-retry", 391)


@pytest.mark.parametrize(("before", "kind"), [("", "ib-retry"), ("RuntimeError: Broken pipe\n", "unknown")])
def test_what_an_older_pytorch_says_before_it_gives_nccls_reason_is_no_failure_of_another(
    tmp_path: Path, before: str, kind: str
) -> None:
    log = tmp_path / "log.out"
    log.write_text(
        f"{before}[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out.\n"
        "[E ProcessGroupNCCL.cpp:460] To avoid data inconsistency, we are taking the entire process down.\n"
        "terminate called after throwing an instance of 'std::runtime_error'\n"
        "  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nNET/IB : Got completion from peer 10.2.1.7<39138> with error 12, opcode 0, vendor err 129\n"
    )
    assert diagnose_logs([log]).kind == kind


def test_the_rank_for_which_the_others_waited_has_said_why(tmp_path: Path) -> None:
    timed_out = (
        "[rank{0}]:[E421 14:29:05.2 ProcessGroupNCCL.cpp:682] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=388, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n"
    )
    others = "".join(timed_out.format(rank) for rank in range(392) if rank != 391)
    log = tmp_path / "log.out"
    log.write_text(others)
    waited = diagnose_logs([log]).kind
    log.write_text((CASES / "ib_last_error.out").read_text() + others)
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (waited, cause.kind, cause.rank) == ("unknown", "ib-retry", 391)


HARMLESS = (
    "ib-7:10:11 [7] sharp_plugin.c:320 NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP job(-11)",
    "ib-7:10:11 [0] transport.cc:323 NCCL WARN Cannot initialize CollNet, using point-to-point network instead",
    "ib-7:10:11 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    "slurmstepd: error: couldn't chdir to `/home/u': No such file or directory: going to /tmp instead",
    "slurmstepd: error: task_p_post_term: rmdir(/sys/fs/cgroup/cpuset/slurm7/slurm7.1_0) failed Device busy",
    "slurmstepd: error: Unable to send job complete message: Unable to contact slurm controller (connect failure)",
    "slurmstepd: error: acct_gather_filesystem/lustre: _read_lustre_counters: can't find Lustre stats",
    "slurmstepd-ib-7: error: task/cgroup: task[0] unable to set taskset '0x0'",
    "fatal: unable to access 'https://github.com/x/': SSL certificate problem: unable to get local issuer certificate",
    "fatal: detected dubious ownership in repository at '/opt/Megatron-Bridge'",
    "E0000 00:00:17 4711 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory",
    "ERROR: ld.so: object '/l.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.",
    "UserWarning: Plan failed with a cudnnException: cudnnFinalize Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED",
    "DEBUG:DotProductAttention:Disabling FusedAttention as no backend supports the provided input",
    "WARNING:2026-08-01 12:00:00 7:7 init.cpp:155] getCuptiStatus() failed with error CUPTI_ERROR_NOT_INITIALIZED (15)",
    "ERROR:2026-08-01 12:00:00 7:7 DeviceProperties.cpp:47] gpuGetDeviceCount failed with code 35",
    "ERROR 07-31 22:10:35 [config.py:29] Please make sure your triton is compatible. No module named 'triton_kernels'",
)


@pytest.mark.parametrize("end", ["Exited with exit code 1", "Killed"])
@pytest.mark.parametrize("line", HARMLESS)
def test_what_does_no_harm_is_not_why_a_rank_ended(tmp_path: Path, line: str, end: str) -> None:
    log = tmp_path / "log.out"
    log.write_text(f"{line}\nsrun: error: ib-9: task 15: {end}\n")
    assert diagnose_logs([log]).kind == "unknown"


def test_ranks_that_wait_for_each_other_have_survived_what_pmix_complains_of(tmp_path: Path) -> None:
    complaint = "[g0:4711] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168\n"
    log = tmp_path / "log.out"
    log.write_text(complaint)
    assert diagnose_logs([log]).kind == "pmix-complaint"
    log.write_text(
        f"{complaint}[rank3]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited\n"
    )
    assert diagnose_logs([log]).kind == "unknown"


def test_a_host_that_cannot_be_resolved_is_no_node(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text("slurmstepd: error: pyxis:     [ERROR] Could not resolve host: nvcr.io\n")
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.node) == ("host-name", None)


def test_no_rank_is_named_for_what_the_scheduler_did(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    preempted = "slurmstepd: error: *** STEP 77.0 ON c0 CANCELLED AT 2026-11-20T03:40:35 DUE TO PREEMPTION ***\n"
    log.write_text(f"{preempted}srun: error: c1: task 11: Exited with exit code 1\n")
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node) == ("preempted", None, None)


def test_a_job_that_trained_every_step_does_not_need_more_time(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    iteration = " [2026-04-21 15:41:34] iteration {:8d}/      50 | elapsed time per iteration (ms): 1735.8 |\n"
    limit = "slurmstepd: error: *** JOB 4544 ON gpu-1 CANCELLED AT 2026-04-21T17:01:43 DUE TO TIME LIMIT ***\n"
    remedies = []
    for last in (49, 50):
        log.write_text("".join(map(iteration.format, range(1, last + 1))) + limit)
        cause = diagnose_logs([log]).cause
        assert cause is not None
        assert cause.kind == "time-limit"
        remedies.append("TIME_LIMIT" in cause.remedy)
    assert remedies == [True, False]


def test_what_nccl_says_of_sizes_counts_though_it_hedges(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text(
        "gpu-3:42:61 [0] transport/net_socket.cc:493 NCCL WARN NET/Socket : peer 10.0.2.11<45012> message truncated : "
        "receiving 524288 bytes instead of 65536. If you believe your socket network is in healthy state, there may be "
        "a mismatch in collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks\n"
        "srun: error: gpu-3: task 8: Exited with exit code 1\n"
    )
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node, cause.keep_out) == ("sizes-differ", 8, "gpu-3", False)


def test_what_fails_after_the_last_step_leaves_the_figures() -> None:
    assert diagnose_logs([CASES / "w14_cudagraph_eval.out"]).trained
    assert not diagnose_logs([CASES / "gpfs_stale.log"]).trained


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("sbatch: unrecognized option '--container-image=/i.sqsh'", "pyxis-missing"),
        ("slurmstepd: error: spank: Failed to load plugin: dlopen(/x/spank_pyxis.so): cannot open", "spank-missing"),
        ("slurmstepd: error: chdir(/lustre/x): No such file or directory", "folder-missing"),
        ("slurmstepd: error: Munge decode failed: Expired credential", "munge"),
        (
            "unsquashfs: FATAL ERROR: dir_scan: failed to make directory /e/nemo, because File exists",
            "enroot-data-shared",
        ),
        ("FATAL ERROR: Can't find a valid SQUASHFS superblock on x.sqsh", "image-damaged"),
        ("RuntimeError: NVIDIA B300 with CUDA capability sm_103 is not compatible with the current", "gpu-unsupported"),
        ("ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'", "gpu-unsupported"),
        ("ValueError: No dot product attention support for the provided inputs!", "no-kernel"),
        ("ImportError: cannot import name 'x' from 'numpy' (/usr/lib/numpy/__init__.py)", "missing-module"),
        ("ImportError: cannot import name 'x' from 'megatron.core' (/opt/megatron)", "releases-mixed"),
        ('slurmstepd: error: Warning: SPANK plugin "pyxis" option "container-image" not found', "spank-missing"),
        ("python3: can't open file '/tmp/pretrain.py': [Errno 2] No such file or directory", "folder-missing"),
        ("python3: can't open file '/opt/pretrain.py': [Errno 2] No such file or directory", "missing-program"),
        ("[ERROR] /etc/enroot/hooks.d/90-aws-ofi-nccl.sh exited with return code 1", "hook"),
        ("[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1", "gpu-hook"),
        ("slurmstepd: error: container_g_join failed: 119383", "launch"),
        ("slurmstepd: error: execve(): /tmp/slurmd/job00089/slurm_script: No such file or directory", "launch"),
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable", "compiler"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "no-gpu"),
        ("slurmstepd: error: pyxis:     [ERROR] Could not resolve host: nvcr.io", "host-name"),
        ("[ERROR] Could not resolve host: nvcr.io", "host-name"),
        (
            "srun: fatal: cpus-per-task set by two different environment variables SLURM_CPUS_PER_TASK=16",
            "slurm-options",
        ),
        ("srun: fatal: No command given to execute.", "error"),
        ("misc/utils.cc:88 NCCL WARN Call to stat failed: No such file or directory", "folder-missing"),
        ("connect to 127.0.0.1<37211> returned Connection refused, exceeded error retry count", "unreachable"),
        ("connect to 10.9.226.174<42307> returned Connection refused, exceeded error retry count", "peer-left"),
        ("slurmstepd: error: pyxis: container exited too soon", "pyxis-summary"),
        ("RuntimeError: received 0 items of ancdata", "process-limit"),
        ("CUDA error: the provided PTX was compiled with an unsupported toolchain.", "old-driver"),
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", "no-gpu"),
        ("Cuda failure 101 'invalid device ordinal'", "cuda"),
        ("OSError: [Errno 37] No locks available: '/home/u/x.lock'", "file-system"),
        ("TimeoutError: [Errno 110] Connection timed out", "peer-left"),
        ("UCX  ERROR   no active messages transport to <no debug data>: rc_verbs/mlx5_0:1", "rdma-connect"),
        ("ValueError: Failed to load configuration from meta-llama/Meta-Llama-3-70B after 3 attempts.", "hub"),
        ("srun: error: Something is wrong with the boot of the nodes.", "not-booted"),
        ("slurmstepd: error: Failed to invoke task plugins: task_p_pre_launch error", "launch"),
        ("slurmstepd: error: Exceeded step memory limit at some point.", "host-memory"),
        ("enroot-aufs2ovlfs: failed to set whiteout attributes: /c/: Operation not permitted", "image-links"),
        ("RuntimeError: Gloo connectFullMesh failed with [../tcp/pair.cc:144] no error", "unreachable"),
        ("RuntimeError: Gloo connectFullMesh failed with [../pair.cc:534] Connection closed by peer", "peer-left"),
        ("ucp_mm.c:76 UCX  ERROR failed to register address 0x302000000 on md[5]: Input/output error", "error"),
        ("[c10d] getpeername failed, error Transport endpoint is not connected", None),
        ("cat: /lustre/UCX/tokens.idx: Input/output error", "file-system"),
        ("transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed'", "nvls"),
        ("transport/nvls.cc:165 NCCL WARN Cuda failure 'invalid argument'", "nvls"),
        ("transport/nvls.cc:165 NCCL WARN Cuda failure 2 'out of memory'", "nccl-memory"),
        (
            "RuntimeError: CUDA error: the remote procedural call between the MPS server and the MPS client failed",
            "mps",
        ),
        ("The MPS server for user 1000 is up, its log is /tmp/error.log", None),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "no-gpu"),
        ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.", "no-gpu"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 500: named symbol not found", "no-gpu"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 2: out of memory", "exception"),
        ("NVRM: API mismatch: the client has the version 535.104.05, but", "no-gpu"),
        ("CUDA error: API call is not supported in the installed CUDA driver", "old-driver"),
        ("mlx5_core 0000:5e:00.0: poll_health:823:(pid 0): Fatal error 1 detected", "rdma-device"),
        ("mlx5_core 5e:00.0: wait_func:1137: QP timeout. Will cause a leak of a command resource", "rdma-device"),
        ("NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4", "rdma-setup"),
        ("RuntimeError: CUDA driver error: invalid device ordinal", "cuda"),
        ("RuntimeError: CUDA error: invalid device ordinal", "no-gpu"),
        ("Assertion failed: /m/DeepEP/kernels/x.cu:259, condition: num_recv_tokens != 0", "device-assert"),
        ("CUDA error: peer access is not supported between these two devices", "peer-access"),
        ("ib_mlx5dv_md.c:115  UCX  DEBUG mlx5_1: mlx5dv_devx_obj_create(MKEY) failed: Remote I/O error", "advice"),
        ("ib_mlx5_log.c:177 UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB (synd 0x15)", "ib-retry"),
        ("NCCL WARN NET/IB : req 0/1 collective mismatch error, local size 4964 remote size 65", "sizes-differ"),
        ("[gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 53 vs 51", "sizes-differ"),
        ("OpenBLAS blas_thread_init: pthread_create: Resource temporarily unavailable", "process-limit"),
        ("what():  Resource temporarily unavailable", "process-limit"),
        ("OMP: Error #34: System unable to allocate necessary resources for OMP thread:", "process-limit"),
        ("OSError: [Errno 28] inotify watch limit reached", "process-limit"),
        (
            "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11, error message = 'x')",
            "file-lock",
        ),
        ("NotImplementedError: FileSystem does not appear to support flock; use SoftFileLock instead", "file-lock"),
        (
            "ValueError: Failed to load configuration from o/m: The file lock '/r/x.lock' could not be acquired.",
            "file-lock",
        ),
        ("RuntimeError: could not acquire lock on /home/u/.cache/x.lock", "file-lock"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "process-limit"),
        (
            "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']",
            "temporary-folder",
        ),
        (
            "RuntimeError: torch_shm_manager at 'x': could not generate a random directory for manager socket",
            "temporary-folder",
        ),
        ("KeyError: 'getpwuid(): uid not found: 28788'", "user-unknown"),
        ("OSError: No username set in the environment", "user-unknown"),
        ("srun: error: Task launch for StepId=915.0 failed on node e7: User not found on host", "user-unknown"),
        (
            "requests.exceptions.SSLError: (host='huggingface.co', '[SSL: CERTIFICATE_VERIFY_FAILED] not yet valid')",
            "certificate",
        ),
        ("slurmstepd: error: pyxis:     curl: (60) SSL certificate problem: unable to get local issuer", "certificate"),
        ("wandb: ERROR certificate verify failed: self-signed certificate in certificate chain", "advice"),
        (
            "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'x by peer'))",
            "server",
        ),
        (
            "urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(1 bytes read)', Broken pipe)",
            "server",
        ),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co'): Max retries exceeded",
            "hub",
        ),
        (
            "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)",
            "controller",
        ),
        ("sbatch: error: Batch job submission failed: I/O error writing script/environment to file", "controller"),
        ("srun: error: Unable to create step for job 57: Error generating job credential", "controller"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "rejected"),
        ("srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 4410", "job-unknown"),
        ("srun: error: Unable to confirm allocation for job 4410: Invalid job id specified", "job-unknown"),
        (
            "Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding",
            "mixed-libraries",
        ),
        ("Fatal Python error: init_sys_streams: can't initialize sys standard streams", "error"),
        ("Fatal Python error: deallocating None", "segfault"),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 34: CUDA driver is a stub library",
            "mixed-libraries",
        ),
        ("UnicodeEncodeError: 'ascii' codec can't encode character in position 5: ordinal not in range(128)", "locale"),
        ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0x80 in position 0: invalid start byte", "garbled"),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "garbled"),
        ("Unable to load any of {libcudnn_graph.so.9.1.0, libcudnn_graph.so.9, libcudnn_graph.so}", "library-missing"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "compiler"),
        ('    raise JSONDecodeError("Extra data", s, end)', "advice"),
        (
            "RuntimeError: unable to open shared memory object </torch_1_9> in x mode: Too many open files (24)",
            "process-limit",
        ),
        (
            "RuntimeError: unable to open shared memory object </torch_1_9> in x mode: No space left (28)",
            "shared-memory",
        ),
        (
            "Could not load library l.so. Error: x, version 8 not defined in file l.so.8 with link time reference",
            "mixed-libraries",
        ),
        ("[ERROR] Failed to mount: /home/f/ubuntu.sqsh", "container"),
        ("slurmstepd: error: pyxis:     mount: drop permissions failed.", "container"),
        (
            "slurmstepd: error: pyxis:     enroot-mount: failed to mount: /data at /e/pyxis_1/data: Permission denied",
            "mount",
        ),
        ("RuntimeError: Parent directory /lustre/ckpt/iter_0000010 does not exist.", "file-missing"),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456", "compiler"),
        (
            "CUDA error: operation would make the legacy stream depend on a capturing blocking stream",
            "capture-forbidden",
        ),
        ("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing", "capture-forbidden"),
        ("RuntimeError: CUDA error: operation failed due to a previous error during capture", "capture"),
        ("CUDA error: cudaErrorStreamCaptureInvalidated", "capture"),
        ("cuDNN Error: [cudnn_frontend] Error: No execution plans support the graph.", "no-kernel"),
        ("cublaslt_gemm.cu:291 in function g: cuBLAS Error: the requested functionality is not supported", "no-kernel"),
        ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmStridedBatchedEx(handle)`", "no-kernel"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`", "cuda"),
        ("python3: /opt/x.cu:20: void f(at::Tensor, int): Assertion `n == 8 * ranks' failed.", "library-assert"),
        ("/a/Indexing.cu:1289: f: block: [12,0,0], thread: [64,0,0] Assertion `i < n` failed.", "device-assert"),
        (
            '/a/IndexKernel.h:94: f: block: [12,0,0], thread: [64,0,0] Assertion `i < n && "out of bounds"` failed.',
            "device-assert",
        ),
        ("x/cublaslt_gemm.cu:750 in function g: cuBLAS Error: the function failed to launch on the GPU", "cuda"),
        ("cast.cu:12 in function f: CUDA Error: launch out of resources", "cuda"),
        ("RuntimeError: Triton Error [CUDA]: launch out of resources", "cuda"),
        ("UDS: Sending data over socket /tmp/ub-1-3 failed : No such file or directory (2)", "userbuffers"),
        ("userbuffers/userbuffers.cu:90: CUDA Error: an illegal memory access was encountered", "illegal-access"),
        ("AssertionError: FP8 needs a height divisible by 8 and a width divisible by 16, but got [896, 712]", "layout"),
        ("RuntimeError: cast.cuh:540 in function q: Assertion failed: last_dim % MXFP8_BLOCK_SIZE == 0.", "layout"),
        ("AttributeError: module 'megatron.core.parallel_state' has no attribute 'get_x'", "releases-mixed"),
        ("AttributeError: partially initialized module 'megatron' has no attribute 'core'", "exception"),
        ("AttributeError: module 'numpy' has no attribute 'bool'", "exception"),
        ("AssertionError: num_layers value from checkpoint (32) is not equal to the input", "checkpoint-layout"),
        ("Unable to load optimizer from checkpoint /c/o.pt. Specify --no-load-optim", "checkpoint-layout"),
        ("ValueError: loaded state dict doesn't match the size of optimizer's group", "checkpoint-layout"),
        ("hydra.errors.ConfigCompositionException: Could not override 'model.x'.", "arguments"),
        ("RuntimeError: the custom CUDA extension weight_gradient module is not found.", "missing-module"),
        ("torch.AcceleratorError: CUDA error: invalid argument", "cuda-refused"),
        ("RuntimeError: Triton Error [CUDA]: invalid argument", "cuda-refused"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host-memory"),
        (
            "(raylet) [2026-08-01 09:57:19,206 E 3 3] (raylet) node_manager.cc:3277: 2 Workers (tasks / actors) killed"
            " due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 82, IP: 172.24.0.226)",
            "host-memory",
        ),
        ("    | KeyError: 'blend'", "exception"),
        ("(TrainController pid=3000) AttributeError: 'GPTModel' object has no attribute 'x'", "exception"),
        ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded", "checkpoint-refused"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "checkpoint-damaged"),
        ("core.CheckpointingException: Common file /c/iter_10/common.pt does not exist", "checkpoint-missing"),
        ("core.CheckpointingException: Object shard /c/x.pt not found", "checkpoint-missing"),
        ("core.CheckpointingException: Global shape mismatch for loaded tensor", "checkpoint-layout"),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: C",
            "sizes-differ",
        ),
        ("AssertionError: bad header, cannot read: /data/gpt_text_document.idx", "data"),
        ("RuntimeError: PassManager::run failed", "compiler"),
        ("AssertionError: Torch not compiled with CUDA enabled", "mixed-libraries"),
        (
            "cublaslt_gemm.cu:408 in function g: cuBLAS Error: an unsupported value or parameter was passed",
            "cuda-refused",
        ),
        ("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx(handle)`", "cuda-refused"),
        ("RuntimeError: CUDA driver error: operation not supported", "cuda-refused"),
        ("CUDA error: operation not supported on global/shared address space", "cuda"),
        ("RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0)", "mixed-libraries"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "mixed-libraries"),
        ("CUDA error: CUBLAS_STATUS_ARCH_MISMATCH when calling `cublasGemmEx(handle)`", "gpu-unsupported"),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "no-kernel"),
        (
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) "
            "returned from rmStatus @ kernel_ce_gv100.c:106",
            "off-the-bus",
        ),
        ("detected NVSwitch fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 33", "nvlink"),
        ("detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 33", None),
        ("NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local access violation work queue error", "rdma-access"),
        ("NET/IB : mlx5_1:1 async fatal event on QP (0x7f): invalid request local work queue error", "rdma-access"),
        ("NET/IB : mlx5_1:1 async fatal event on QP (0x7f): local work queue catastrophic error", "rdma-device"),
        (
            "The node 'gpu-2_7_0' has failed to send a keep-alive heartbeat to the rendezvous '47' due to an error of "
            "type RendezvousConnectionError.",
            "peer-left",
        ),
        (
            "The node 'gpu-2_7_0' has failed to send a keep-alive heartbeat to the rendezvous '47' due to an error of "
            "type RendezvousTimeoutError.",
            "peer-left",
        ),
        (
            "The node 'gpu-2_7_0' has failed to shutdown the rendezvous '47' due to an error of type "
            "RendezvousConnectionError.",
            "peer-left",
        ),
        (
            "srun: error: Task launch for StepId=77.4 failed on node n3: Unable to layout tasks on given cpus",
            "cpu-bind",
        ),
        ("srun: error: Task launch for StepId=77.4 failed on node n3: Unable to satisfy cpu bind request", "cpu-bind"),
        ("slurmstepd: error: execve(): /usr/bin/bash: Argument list too long", "environment-long"),
        ("OSError: [Errno 7] Argument list too long: '/usr/bin/python3'", "environment-long"),
        ("slurmstepd: error: execve(): python3: No such file or directory", "missing-program"),
        ("/var/spool/slurmd/job00077/slurm_script: line 9: $'\\r': command not found", "line-ends"),
        ("/usr/bin/env: ‘bash\\r’: No such file or directory", "line-ends"),
        ("/w/run.sh: /bin/bash^M: bad interpreter: No such file or directory", "line-ends"),
        ("/usr/bin/env: ‘pwsh’: No such file or directory", "missing-program"),
        ("slurmstepd: error: Could not open stdout file /scratch/u/x_7.out: No such file or directory", "file-missing"),
        ("slurmstepd: error: Could not open stderr file /scratch/u/x_7.out: Disk quota exceeded", "disk-full"),
        (
            "srun: error: Unable to create step for job 5: Required node not available (down, drained or reserved)",
            "node-down",
        ),
        ("srun: error: Unable to create step for job 5: Error configuring interconnect", "interconnect"),
        ("srun: error: Unable to create step for job 5: Memory required by task is not available", "rejected"),
        (
            "nvidia-container-cli: mount error: file creation failed: /e/libcuda.so.1: file exists",
            "image-driver",
        ),
        ("nvidia-container-cli: mount error: open failed: /proc/1/cgroup: permission denied", "gpu-hook"),
        ("slurmstepd: error: pyxis:     Write on output file failed because Disk quota exceeded", "image-space"),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/u/x'", "disk-full"),
        ("exec /opt/nvidia/nvidia_entrypoint.sh: exec format error", "architecture"),
        ("OSError: libx.so: wrong ELF class: ELFCLASS32", "architecture"),
        (
            "ERROR: ld.so: object 'l.so' from LD_PRELOAD cannot be preloaded (wrong ELF class: ELFCLASS32): ignored.",
            "architecture",
        ),
        ("slurmstepd: error: pyxis:     Could not open /lustre/nemo.sqsh, because Permission denied", "permission"),
        (
            "FATAL:   container creation failed: mount /s->/s error: while mounting /s: mount source /s doesn't exist",
            "mount",
        ),
        (
            "FATAL:   container creation failed: mount: while mounting /v/m: destination /m doesn't exist in",
            "mount",
        ),
        (
            "FATAL:   container creation failed: while mounting image /proc/self/fd/3: failed to find loop device",
            "container",
        ),
        ("sqlite3.OperationalError: database or disk is full", "disk-full"),
        ("sqlite3.OperationalError: database is locked", "file-lock"),
        ('Exception: Lock acquisition failed: "/lustre/hf/hub/blobs/abc.lock"', "file-lock"),
        (
            "OSError: Unable to open file (truncated file: eof = 96, sblock->base_addr = 0, stored_eof = 2048)",
            "checkpoint-damaged",
        ),
        ("OSError: [Errno 526] Unknown error 526: '/vast/part_0007.bin'", "file-system"),
        ("sqlite3.OperationalError: no such table: runs", "exception"),
        ("AssertionError: SRE module mismatch", "mixed-libraries"),
        ("srun: error: timeout waiting for task launch, started 56 of 64 tasks", "launch"),
        ("srun: error: n1: tasks 0-7: User defined signal 1", "rank-ended"),
        ("scontrol: fatal: Could not establish a configuration source", "slurm-config"),
        ('Lmod has detected the following error:  The following module(s) are unknown: "cuda/12.4"', "site-module"),
        ("ERROR: Unable to locate a modulefile for 'cuda/12.4'", "site-module"),
        ("mkdir: cannot create directory '/local/cache': Permission denied", "command-refused"),
        ("slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/enroot': Permission denied", "container"),
        ("ls: cannot open directory '/lustre/x': Permission denied", "permission"),
        ("slurmstepd: error: execve(): /home/u/run.sh: Exec format error", "no-interpreter"),
        ("OSError: [Errno 8] Exec format error: '/w/run.sh'", "no-interpreter"),
        ("slurmstepd: error: execve(): /opt/venv/bin/python3: Exec format error", "architecture"),
        ("enroot-switchroot: failed to execute: /etc/rc.sh2: Exec format error", "architecture"),
        ("srun: error: Unable to create step for job 5: Invalid Trackable RESource (TRES) specification", "gres"),
        (
            "FATAL:   could not open image /i/n.sif: failed to retrieve path: lstat /i/n.sif: no such file",
            "image-missing",
        ),
        ("/bin/bash: line 1: /opt/venv/bin/torchrun: cannot execute: required file not found", "missing-program"),
        ("RuntimeError: Data processing error: CAS service error : IO Error: Timer expired (os error 62)", "exception"),
        ("NCCL WARN UDS: Binding to socket /tmp/nccl-socket-2-e6 failed : Address already in use (98)", "nccl"),
        ("slurmstepd: error: pyxis:     Can't find a SQUASHFS superblock on /r/38.0.squashfs", "enroot-data-shared"),
        (
            "[2025-10-16 22:16:08] ip-1:9:7 [0] rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: x",
            "libfabric",
        ),
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "gpu-hook",
        ),
        ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "gpu-hook"),
        ("RuntimeError: Data processing error: CAS service error : Request failed after 5 retries", "hub"),
        ("[0] [0] RuntimeError: Data processing error: CAS service error : Request failed after 5 retries", "hub"),
        ("KeyError: \"a.weight from model not in state dict: ['b.weight']\"", "checkpoint-layout"),
    ],
)
def test_a_line_is_what_it_says_and_no_more(line: str, kind: str | None) -> None:
    found = signature_of(parse_line(line).text)
    assert (found and found.id) == kind


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "kind"), [(0, "unreachable"), (3, "unknown")])
def test_an_address_is_unreachable_only_before_the_first_step(tmp_path: Path, steps: int, kind: str) -> None:
    """Later the same words say that a peer has left, and not why."""
    log = tmp_path / "log.out"
    iteration = " [2026-04-21 15:41:34] iteration {:8d}/      50 | elapsed time per iteration (ms): 1735.8 |\n"
    refused = "[rank5]: socketPollConnect: connect to 10.9.0.4<42307> returned Connection timed out, exceeded error\n"
    log.write_text("".join(map(iteration.format, range(1, steps + 1))) + refused)
    assert diagnose_logs([log]).kind == kind


@pytest.mark.parametrize(("steps", "kind"), [(0, "rendezvous"), (3, "unknown")])
def test_ranks_that_have_trained_had_found_each_other(tmp_path: Path, steps: int, kind: str) -> None:
    """Whoever lost the rendezvous after that has not lost it by itself."""
    log = tmp_path / "log.out"
    iteration = " [2026-04-21 15:41:34] iteration {:8d}/      50 | elapsed time per iteration (ms): 1735.8 |\n"
    lost = "1: torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store\n"
    log.write_text("".join(map(iteration.format, range(1, steps + 1))) + lost)
    assert diagnose_logs([log]).kind == kind


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("client socket has timed out after 60000ms while trying to connect to (192.0.0.1, 1234).", "192.0.0.1"),
        ("client socket has timed out: failed to connect to any network address of (gpu-1, 29500).", "gpu-1"),
        ("client socket has timed out: failed to connect to [gpu-1]:29400 (errno: 110).", "gpu-1"),
    ],
)
def test_the_address_that_could_not_be_reached_is_named(tmp_path: Path, text: str, peer: str) -> None:
    log = tmp_path / "log.out"
    log.write_text(f"[rank8]: torch.distributed.DistNetworkError: The {text}\n")
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.peer) == ("rendezvous", peer)


def test_munge_that_fails_after_the_first_step_is_no_cause(tmp_path: Path) -> None:
    """Ranks need it only to start: a node that goes down takes it along."""
    log = tmp_path / "log.out"
    iteration = " [2026-04-21 15:41:34] iteration {:8d}/      50 | elapsed time per iteration (ms): 1735.8 |\n"
    munge = 'slurmstepd: error: Munge encode failed: Failed to access "/run/munge/m.2": No such file or directory\n'
    failed = "slurmstepd: error: *** JOB 162 ON c0 CANCELLED AT 2026-04-21T17:01:43 DUE TO NODE FAILURE ***\n"
    log.write_text(munge + failed)
    before = diagnose_logs([log]).kind
    log.write_text("".join(map(iteration.format, range(1, 4))) + munge + failed)
    assert (before, diagnose_logs([log]).kind) == ("munge", "node-failed")


def test_a_cache_that_is_on_the_nodes_own_disk_is_to_be_split_by_rank(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text(
        "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/torchinductor_u/4/x.cubin.tmp.pid_9'\n"
    )
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert cause.kind == "jit-cache"
    assert "one for each rank" in cause.remedy


SHARED = "No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 264192 Hardware limit:232448"


def test_a_kernel_without_enough_shared_memory_is_no_lack_of_memory(tmp_path: Path) -> None:
    """Nor is it one that is tried and left out, which TorchInductor prints while it chooses among kernels."""
    raised = OOM.replace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "{}")
    log = tmp_path / "log.out"
    log.write_text(raised.format(f"torch._inductor.exc.InductorError: RuntimeError: {SHARED}"))
    assert diagnose_logs([log]).kind == "compiler"
    tried = f"E0512 11:00:01.1 811 torch/_inductor/select_algorithm.py:1905] [2/0] {SHARED}\n"
    log.write_text(tried + raised.format("ValueError: q"))
    assert diagnose_logs([log]).kind == "exception"


@pytest.mark.parametrize("size", ["more than 1EB memory", "17179869184.00 GiB"])
def test_an_impossible_size_after_a_timeout_is_no_lack_of_memory(tmp_path: Path, size: str) -> None:
    """It was received in the collective that failed."""
    timed_out = (
        "[rank3]:[E421 14:29:05.2 ProcessGroupNCCL.cpp:682] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=388, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n"
    )
    log = tmp_path / "log.out"
    log.write_text(OOM.replace("2.00 GiB", size))
    alone = diagnose_logs([log]).kind
    log.write_text(timed_out + OOM.replace("2.00 GiB", size))
    assert (alone, diagnose_logs([log]).kind) == ("absurd-size", "unknown")


def test_what_a_capture_does_not_permit_is_no_fault_of_the_gpu(tmp_path: Path) -> None:
    """The watchdog says it, too, of a capture that it has disturbed."""
    log = tmp_path / "log.out"
    log.write_text(
        "[rank0]:[E512 11:02:44.1 ProcessGroupNCCL.cpp:2057] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group"
        " watchdog thread terminated with exception: CUDA error: operation not permitted when stream is capturing\n"
        "[rank0]: RuntimeError: CUDA error: operation failed due to a previous error during capture\n"
        "srun: error: n1: task 0: Aborted (core dumped)\n"
    )
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank, cause.keep_out) == ("capture-forbidden", 0, False)
    assert "Xid" not in cause.remedy


def test_a_refused_call_is_the_cause_of_the_kernel_that_fails_after_it(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text(
        OOM.replace(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "RuntimeError: CUDA error x.cpp:112 'invalid resource handle'",
        )
        + "[rank3]:   what():  CUDA error x.cpp:278 'an illegal memory access was encountered'\n"
    )
    assert diagnose_logs([log]).kind == "cuda-refused"


def test_a_rank_that_its_watchdog_ended_is_not_why_the_job_ended(tmp_path: Path) -> None:
    """Where nobody says for which rank the others waited, that they did says more than how one of them ended."""
    timed_out = (
        "[rank{0}]:[E421 14:29:05.2 ProcessGroupNCCL.cpp:682] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={1}, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n"
    )
    ended = "srun: error: n1: task {}: Aborted (core dumped)\n"
    log = tmp_path / "log.out"
    waits = timed_out.format(1, 39) + timed_out.format(0, 41)
    log.write_text(waits + ended.format(0))
    assert diagnose_logs([log]).summary.startswith("unknown: 2 ranks waited in vain")
    log.write_text(waits + ended.format(2))
    assert "task 2: Aborted" in diagnose_logs([log]).summary


def raised(*lines: str, prefix: str = "[rank3]: ") -> str:
    """Return a traceback of one rank, of which ``lines`` are the exception's."""
    return "".join(f"{prefix}{line}\n" for line in (*FRAMES, *lines))


FRAMES = ("Traceback (most recent call last):", '  File "/w/train.py", line 9, in <module>', "    main()")


@pytest.mark.parametrize(
    ("message", "kind", "quoted"),
    [
        (["The detected CUDA version (11.8) mismatches the version"], "exception", "RuntimeError: The detected CUDA"),
        (["", "  The NVIDIA driver on your system is too old"], "old-driver", "RuntimeError: The NVIDIA driver"),
        ([], "exception", "RuntimeError:"),
    ],
)
def test_a_message_that_begins_below_its_exception_is_quoted(
    tmp_path: Path, message: list[str], kind: str, quoted: str
) -> None:
    """Lines of other ranks may stand between the two."""
    mine = raised("RuntimeError: ", *message).splitlines(keepends=True)
    others = raised("RuntimeError: ", "another", prefix="[rank5]: ").splitlines(keepends=True)
    log = tmp_path / "log.out"
    log.write_text("".join(mine[:4] + others[:4] + mine[4:] + others[4:]))
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank) == (kind, 3)
    assert cause.line.startswith(f"[rank3]: {quoted}")


def test_an_exception_without_the_usual_words_in_its_name_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text(raised("torch._dynamo.exc.Unsupported: Data-dependent branching"))
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert "Data-dependent" in cause.line
    log.write_text(raised("io.UnsupportedOperation: fileno"))
    assert diagnose_logs([log]).kind == "exception"


def test_what_destructors_say_of_a_rank_that_raised_is_not_its_cause(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text(
        raised('RuntimeError: !handles_.at(i) INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":487, please report')
        + "[rank3]: terminate called after throwing an instance of 'c10::Error'\n"
        "[rank3]:   what():  CUDA driver error: invalid argument\n"
    )
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank) == ("exception", 3)
    assert "INTERNAL ASSERT" in cause.line


def test_of_two_ranks_that_disagree_none_is_blamed(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text(
        raised("RuntimeError: disagreement between rank0 and rank6: rank0: [-48], rank6: [2]", prefix="g1: ")
    )
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.rank, cause.node) == (None, "g1")


def test_the_node_that_ran_low_on_memory_is_the_one_that_ray_names(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text(
        "(raylet) [2026-08-01 09:57:19,206 E 3 3] (raylet) node_manager.cc:3277: 2 Workers (tasks / actors) killed due"
        " to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 82, IP: 172.24.0.226) over\n"
        "srun: error: g7: task 0: Exited with exit code 1\n"
    )
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node) == ("host-memory", None, "172.24.0.226")


def test_rank_0_is_a_rank_too(tmp_path: Path) -> None:
    """A node's fault goes to the line that names a place, and 0 is one."""
    ecc = "{}: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    log = tmp_path / "log.out"
    log.write_text(ecc.format(0) + ecc.format(8))
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank) == ("ecc", 0)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "launch"),
        ("/etc/profile.d/site.sh: line 3: $'\\r': command not found", "line-ends"),
        ("squeue: fatal: Could not establish a configuration source", "slurm-config"),
        ("ERROR: Unable to locate a modulefile for 'cuda/12.4'", "site-module"),
        ("mkdir: cannot create directory '/local/cache': Permission denied", "command-refused"),
    ],
)
def test_what_fails_at_the_start_did_not_where_the_other_log_has_steps(tmp_path: Path, line: str, kind: str) -> None:
    """The batch script does much before it starts the ranks; of two files no line is before another."""
    log, batch = tmp_path / "log.out", tmp_path / "batch.out"
    iteration = " [2026-04-21 15:41:34] iteration {:8d}/      50 | elapsed time per iteration (ms): 1735.8 |\n"
    batch.write_text(f"{line}\nsrun: error: g-5: task 40: Exited with exit code 1\n")
    log.write_text("")
    before = diagnose_logs([log, batch]).kind
    log.write_text("".join(map(iteration.format, range(1, 4))))
    assert (before, diagnose_logs([log, batch]).kind) == (kind, "unknown")


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15", "time-limit"),
        ("KeyboardInterrupt", "time-limit"),
        ("RuntimeError: basic_ios::clear: iostream error", "disk-full"),
    ],
)
def test_what_a_rank_raises_because_of_a_signal_is_no_cause(tmp_path: Path, first: str, kind: str) -> None:
    log, batch = tmp_path / "log.out", tmp_path / "batch.out"
    begins = '3: Traceback (most recent call last):\n3:   File "/w/train.py", line 9, in save\n'
    log.write_text(
        f"{begins}3: {first}\n3: \n3: During handling of the above exception, another exception occurred:\n3: \n"
        f"{begins}3: RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 448 vs 342\n"
    )
    batch.write_text("slurmstepd: error: *** JOB 4544 ON g-1 CANCELLED AT 2026-04-21T17:01:43 DUE TO TIME LIMIT ***\n")
    assert diagnose_logs([log, batch]).kind == kind


@pytest.mark.parametrize("ended", ["task 9: Exited with exit code 1", "tasks 8-15: Aborted (core dumped)"])
def test_a_node_whose_tasks_ended_first_is_not_the_one_that_failed(tmp_path: Path, ended: str) -> None:
    """Ranks elsewhere lose their peer there, and end; the node that has failed says nothing any more."""
    log = tmp_path / "log.out"
    failed = "slurmstepd: error: *** STEP 81.0 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE ***\n"
    log.write_text(f"srun: error: n2: {ended}\n{failed}")
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node, cause.keep_out) == ("node-failed", None, None, False)


def test_what_ray_lists_as_possible_ends_of_a_process_is_none_of_them(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text(
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit type:"
        " SYSTEM_ERROR There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to"
        " high memory usage. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n"
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    )
    found = diagnose_logs([log])
    assert found.cause is None
    assert "was killed (SIGKILL)" not in found.summary


EXITED = "srun: error: n3: task 20: Exited with exit code 1"
LOST_PEER = (
    "[rank2]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
UPLOAD = raised("botocore.exceptions.ClientError: An error occurred (403): Forbidden", prefix="")


@pytest.mark.parametrize(
    ("above", "after", "kind"),
    [
        ("ERROR:uploader:Upload failed for step 50", "srun: error: n3: task 20: Killed", "unknown"),
        ("ERROR:uploader:Upload failed for step 50", "[rank2]: [Rank 2] Timeout at NCCL work: 12", "error"),
        ("ERROR:uploader:Upload failed for step 50", EXITED, "exception"),
        ("ERROR:uploader:Upload failed for step 50", f"{EXITED}\nsrun: error: n3: task 21: Killed", "exception"),
        ("ERROR:uploader:Upload failed for step 50", f"{LOST_PEER}\nsrun: error: n3: task 21: Killed", "exception"),
        ("[rank20]: about to begin", "srun: error: n3: task 20: Killed", "exception"),
        ("[g0:4711] PMIX ERROR: NOT-FOUND", "srun: error: n3: task 20: Killed", "exception"),
    ],
)
def test_a_traceback_that_was_logged_as_an_error_is_not_why_a_rank_was_killed(
    tmp_path: Path, above: str, after: str, kind: str
) -> None:
    """Its rank has gone on. One that ended by itself has not, and one whose exception no logger printed."""
    log = tmp_path / "log.out"
    log.write_text(f"{above}\n{UPLOAD}{after}\n")
    assert diagnose_logs([log]).kind == kind


@pytest.mark.parametrize(
    ("exception", "silent", "found"),
    [
        ("ValueError: bad shape", 3, ("exception", 3)),
        ("ValueError: bad shape", 5, ("hang", 5)),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", None, ("illegal-access", 3)),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", None, ("nvlink", 3)),
    ],
)
def test_a_rank_that_others_waited_for_has_not_gone_on_after_an_error_that_it_logged(
    tmp_path: Path, exception: str, silent: int | None, found: tuple[str, int]
) -> None:
    """Nor has one whose GPU has failed, whatever it logged then."""
    log = tmp_path / "log.out"
    waits = (
        f"[rank{rank}]:[E1122 10:11:12.345678901 ProcessGroupNCCL.cpp:628] [Rank {rank}] Watchdog caught collective"
        " operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n"
        for rank in range(16)
        if rank != silent
    )
    log.write_text(f"[rank3]: ERROR:train:failed\n{raised(exception)}{''.join(waits)}")
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.rank) == found


def test_a_mere_word_on_containers_is_no_fault_of_their_node(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    said = 'time="2026-02-01T10:00:00Z" level=info msg="Found 9 CDI devices, 1 unsupported"'
    log.write_text(f"{said}\n{raised('KeyError: 1')}")
    assert diagnose_logs([log]).kind == "exception"
    refused = (
        "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported"
    )
    log.write_text(f"{refused}\n")
    assert diagnose_logs([log]).kind == "gpu-hook"


def test_an_error_that_is_logged_together_with_its_traceback_counts(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    begins = "(Worker pid=18, ip=10.1.2.3) [2026-02-01 11:16:52] [ERROR] [train-1 1 / 8][PID 18] Traceback (most recent"
    log.write_text(f"{begins} call last):\n" + "".join(f"{line}\n" for line in (*FRAMES[1:], "KeyError: 'qkv'")))
    assert diagnose_logs([log]).kind == "exception"
    with log.open("a") as file:
        file.write("srun: error: n3: task 1: Killed\n")
    assert diagnose_logs([log]).kind == "unknown"


@pytest.mark.parametrize(
    ("above", "first", "then", "kind"),
    [
        pytest.param(
            "ERROR:train:step 7", "ConnectionError: refused, will retry", "", "exception", id="words do not excuse it"
        ),
        pytest.param(
            "ERROR:train:step 7",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "srun: error: n3: task 3: Killed\n",
            "cuda-memory",
            id="certain to be a cause",
        ),
        pytest.param(
            "W1122 10:11:12.1 41 torch/x.py:12] step 7",
            "PermissionError: [Errno 13] Permission denied: '/l'",
            raised("KeyError: 'x'"),
            "exception",
            id="a warning of torch, and another exception after it",
        ),
        pytest.param(
            "[rank3]: WARNING:x:step 7",
            "PermissionError: [Errno 13] Permission denied: '/l'",
            "[rank3]: ERROR:train:step 8\n" + raised("KeyError: 'x'"),
            "exception",
            id="a warning, and another exception that is logged as an error",
        ),
    ],
)
def test_how_a_traceback_is_logged_says_whether_it_counts(
    tmp_path: Path, above: str, first: str, then: str, kind: str
) -> None:
    log = tmp_path / "log.out"
    prefix = "" if above.startswith("[rank3]") else "[rank3]: "
    log.write_text(f"{prefix}{above}\n{raised(first)}{then}")
    assert diagnose_logs([log]).kind == kind


def test_what_was_said_of_other_things_before_a_traceback_has_not_logged_it(tmp_path: Path) -> None:
    """The words of the exception then do not make it a mere remark."""
    log = tmp_path / "log.out"
    log.write_text(
        "[rank0]: DEBUG:DotProductAttention:Disabling FusedAttention as no backend supports the provided input\n"
        + raised(
            "ValueError: No dot product attention backend is available. Please see why, for disabling all backends",
            prefix="[rank0]: ",
        )
    )
    assert diagnose_logs([log]).kind == "no-kernel"
