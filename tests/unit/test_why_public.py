"""Failures from public reports, retyped with other names and addresses: what a person found the cause to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.causes.diagnosis import diagnose_logs
from llmb_common.causes.lines import parse
from llmb_common.causes.table import signature_of

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
}
"""File -> kind, rank and node of the cause."""


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


def test_a_time_limit_before_the_first_step_is_not_answered_with_more_time(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text("slurmstepd: error: *** JOB 4544 ON gpu-1 CANCELLED AT 2026-04-21T17:01:43 DUE TO TIME LIMIT ***\n")
    cause = diagnose_logs([log]).cause
    assert cause is not None
    assert (cause.kind, cause.step) == ("time-limit", None)
    assert "first step" in cause.what
    assert "TIME_LIMIT" not in cause.remedy


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
        ("ValueError: No dot product attention support for the provided inputs!", "gpu-unsupported"),
        ("ImportError: cannot import name 'x' from 'numpy' (/usr/lib/numpy/__init__.py)", "missing-module"),
        ("ImportError: cannot import name 'x' from 'megatron.core' (/opt/megatron)", "releases-mixed"),
    ],
)
def test_a_line_is_what_it_says_and_no_more(line: str, kind: str) -> None:
    found = signature_of(parse(line).text)
    assert found is not None
    assert found.id == kind


@pytest.mark.parametrize(("steps", "kind"), [(0, "unreachable"), (3, "unknown")])
def test_an_address_is_unreachable_only_before_the_first_step(tmp_path: Path, steps: int, kind: str) -> None:
    """Later the same words say that a peer has left, and not why."""
    log = tmp_path / "log.out"
    iteration = " [2026-04-21 15:41:34] iteration {:8d}/      50 | elapsed time per iteration (ms): 1735.8 |\n"
    refused = "[rank5]: socketPollConnect: connect to 10.9.0.4<42307> returned Connection timed out, exceeded error\n"
    log.write_text("".join(map(iteration.format, range(1, steps + 1))) + refused)
    assert diagnose_logs([log]).kind == kind
