"""``--json`` of the installer: the envelope that llmb-run has, for results and for errors, whatever the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[2]


def installer(*words: str, path: Path) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [sys.executable, "-m", "llmb_install", *words, "--json", "--install-path", str(path)],
        env={**os.environ, "LLMB_REPO": str(CLONE)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = json.loads(done.stdout)
    assert list(said) == ["schema", "command", "ok", "data", "error", "notices"]
    assert said["ok"] == (done.returncode == 0)
    return done.returncode, said, done.stderr


@pytest.mark.parametrize(
    ("words", "command", "keys"),
    [
        (["list"], "list", ["install_path", "workloads"]),
        (["--list-workloads"], "install", ["workloads"]),
        (
            ["--cluster-type", "local", "--gpu-type", "cpu", "--workloads", "all", "--dry-run"],
            "install",
            ["dry_run", "install_path", "todo"],
        ),
    ],
)
def test_a_result_is_data_in_the_envelope(words: list[str], command: str, keys: list[str], tmp_path: Path) -> None:
    status, said, _ = installer(*words, path=tmp_path / "none")

    assert (status, said["schema"], said["command"], said["error"]) == (0, 1, command, None)
    assert sorted(said["data"]) == keys


def test_a_site_with_a_blocker_has_its_checks_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text("cluster_type: slurm\n")

    status, said, _ = installer("doctor", "--no-compute-node", path=tmp_path)

    assert (status, said["command"], said["ok"], said["error"]) == (1, "doctor", False, None)
    assert {check["level"] for check in said["data"]["checks"]} >= {"blocks"}


@pytest.mark.parametrize(
    ("words", "command", "code", "exit_status"),
    [
        (["verify"], "verify", "environment", 3),
        (["uninstall"], "uninstall", "environment", 3),
        (["update", "--no-such-flag"], "update", "request", 2),
        (["--workloads", "no-such"], "install", "missing-answers", 2),
    ],
)
def test_an_error_names_the_command_and_is_told_to_people_too(words, command, code, exit_status, tmp_path):
    status, said, shown = installer(*words, path=tmp_path / "none")

    assert (status, said["command"], said["data"]) == (exit_status, command, None)
    assert (said["error"]["code"], said["error"]["exit_status"]) == (code, exit_status)
    assert f"error: {said['error']['message']}" in shown


def test_a_damaged_installation_is_reported_part_by_part_and_as_an_error(tmp_path: Path) -> None:
    (tmp_path / ".llmb").mkdir()
    (tmp_path / ".llmb" / "answers.yaml").write_text(
        "schema: 1\ninstall_path: x\ncluster_type: local\ngpu_type: h100\nworkloads: [pretrain_grok1]\n"
        "arch: x86_64\ninstall_method: local\nruntime: none\nenv_type: venv\n"
    )

    status, said, shown = installer("verify", path=tmp_path)

    assert (status, said["error"]["code"]) == (1, "failed")
    assert said["data"]["parts"]["commands"] == f"a command in {tmp_path}/bin is missing or changed"
    assert said["data"]["parts"]["secret-files"] is None
    assert "error: 5 of 6 parts of the installation are damaged or missing:" in shown
