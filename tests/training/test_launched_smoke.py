"""launch.sh on this machine, from the request to the last step: fresh interpreters, torchrun, the local executor.

On the engine that has to be asked for; the quickstart (``test_quickstart.py``) starts launch.sh on the recipe's own.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from training_jobs import LOSS_TOLERANCE, REPOSITORY, SMOKE_PROFILE, SMOKE_SAVING, SMOKE_SIZE, printed_losses

NAME = "no-such-host.invalid"
ONE_RANK = {"JOB_TOTAL_GPUS": "1"}
"""Ranks that import Megatron are what such a test costs; the quickstart's test has two."""
LOSSES = {1: 6.948628, 2: 6.941751, 3: 6.980688, 4: 6.864447}
"""Its first steps: those of two ranks (``SMOKE_LOSSES``) start from other weights, with TP=2."""


@pytest.fixture(scope="module")
def folder(functions_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the run, on a machine whose name does not resolve (RFC 2606), where we may give it one."""
    install = tmp_path_factory.mktemp("install")
    engines = f'engine: {{python: /nonexistent/python, releases: {{"0.6": "{functions_python}"}}}}'
    (install / "cluster_config.yaml").write_text(f"schema: 1\n{engines}\n")
    given = {"PATH": os.environ["PATH"], "LLMB_PYTHON": sys.executable, "LLMB_INSTALL": str(install)}
    given |= {"PYTHONWARNINGS": "error", "LC_ALL": "C"}  # what somebody exported for a program of theirs
    renamed = ["unshare", "--uts", "sh", "-c", f"hostname {NAME} && exec ./launch.sh"]
    done = subprocess.run(
        renamed if os.geteuid() == 0 else ["./launch.sh"],
        cwd=REPOSITORY / "llama3.1",
        env={
            **given,
            **SMOKE_SIZE,
            **SMOKE_SAVING,
            **SMOKE_PROFILE,
            "LLMB_ENGINE": "0.6",
            "MAX_STEPS": "7",
            "CHECKPOINT_INTERVAL": "4",
            **ONE_RANK,
        },
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return Path(done.stdout.split(": ", 1)[1].strip()).parents[1]


def test_smoke_trains_is_profiled_and_saved(folder: Path) -> None:
    (log,) = folder.glob("*/log-*.out")
    assert '"megatron_bridge": "0.6.' in log.read_text()
    losses = printed_losses(log.read_text())
    first = {step: float(losses[step]) for step in LOSSES}
    assert (len(losses), first) == (7, pytest.approx(LOSSES, abs=LOSS_TOLERANCE))
    assert list(folder.glob("*/*profile*/**/*.json*")), "the PyTorch profiler left no trace"
    assert list(folder.glob("*/checkpoints/iter_0000004/*.distcp"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give this machine a name that does not resolve")
def test_the_host_name_need_not_resolve(folder: Path) -> None:
    """A cloud machine, a minimal container, a laptop on a VPN. torchrun's own choice waits for minutes and fails."""
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo(NAME, None)
    (log,) = folder.glob("*/log-*.out")
    assert f'"hostname": "{NAME}"' in log.read_text()
    assert "Unable to resolve hostname" not in log.read_text(), "each process group looks the name up"


def test_a_run_leaves_an_account_of_its_node_and_no_finding(folder: Path) -> None:
    (file,) = (folder / "nodes").iterdir()  # one writer, and nothing half written
    content = json.loads(file.read_text())
    assert content["rank"] == 0
    assert content["machine"]["kernel"] == os.uname().release
    assert {"before", "load", "after"} <= content.keys()
    shown = json.loads(llmb_run(folder, "show", "--json"))["data"]
    assert shown["evidence"]["nodes"] == 1
    assert shown["evidence"]["findings"] == []
    results = json.loads(llmb_run(folder, "results", "--json"))["data"]
    assert results["runs"][0]["findings"] == []
    record = json.loads((folder / "run.json").read_text())
    assert record["manifest"]["job"]["evidence"] == shown["evidence"]


def test_the_resolved_configuration_is_beside_the_record(folder: Path) -> None:
    resolved = (folder / "config.yaml").read_text()
    plan = json.loads((folder / "job.json").read_text())
    assert f"global_batch_size: {plan['batch']['gbs']}\n" in resolved
    assert "_target_: megatron.bridge.training.config.ConfigContainer\n" in resolved


def test_show_says_where_it_ran(folder: Path) -> None:
    shown = llmb_run(folder, "show")
    assert re.search(r"^ran on +1 node\b", shown, re.MULTILINE)
    assert "findings" not in shown


def llmb_run(folder: Path, *arguments: str, status: int = 0) -> str:
    """What llmb-run prints of the installation that ``folder`` is in."""
    install = next(parent for parent in folder.parents if (parent / "cluster_config.yaml").exists())
    command = ["env", f"LLMB_INSTALL={install}", sys.executable, "-m", "llmb_run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stdout
