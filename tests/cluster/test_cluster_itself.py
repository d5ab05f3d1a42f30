"""The test cluster is what the other tests assume: real Slurm, real images, real failures."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support import slurm_cluster
from support.images import build_image
from support.processes import free_ports, wait_until
from support.slurm_cluster import SlurmCluster
from support.slurm_config import SMALL


def run_in_container(
    slurm: SlurmCluster, image: Path, script: str, *options: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = ["srun", "--nodes=1", "--ntasks=1", f"--container-image={image}", *options, "sh", "-c", script]
    return slurm.run(command, check=False, env=env)


# Jobs


def test_a_job_on_two_nodes_sees_their_gpus(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = "srun --ntasks-per-node=2 sh -c 'echo \"$SLURMD_NODENAME $SLURM_LOCALID $CUDA_VISIBLE_DEVICES\"'"
    job = slurm.submit("--nodes=2", "--gres=gpu:8", f"--output={tmp_path}/out", "--wrap", script)
    assert slurm.wait_for_state(job) == "COMPLETED"
    gpus = "0,1,2,3,4,5,6,7"
    expected = [f"{node} {local} {gpus}" for node in ("gpu1", "gpu2") for local in (0, 1)]
    assert sorted((tmp_path / "out").read_text().splitlines()) == expected


def test_nodes_have_names_and_find_each_other_by_them(slurm: SlurmCluster) -> None:
    if not slurm.own_hostnames:
        pytest.skip("no host names for nodes: needs root")
    done = slurm.run(["srun", "--nodes=1", "--nodelist=gpu3", "sh", "-c", "hostname; getent hosts gpu4"])
    assert done.stdout.split() == ["gpu3", "127.0.0.1", "gpu4"]


def test_gb200_nodes_have_four_gpus(slurm: SlurmCluster) -> None:
    fits = ["srun", "--partition=gb200", "--gres=gpu:4", "printenv", "CUDA_VISIBLE_DEVICES"]
    assert slurm.run(fits).stdout.strip() == "0,1,2,3"
    too_many = slurm.run(["srun", "--partition=gb200", "--gres=gpu:8", "true"], check=False)
    assert "Requested node configuration is not available" in too_many.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--partition=nowhere"], "invalid partition specified: nowhere"),
        (["--partition=short", "--time=01:00:00"], "Requested time limit is invalid"),
        (["--nodes=99"], "Node count specification invalid"),
        (["--gpus-per-goat=1"], "unrecognized option '--gpus-per-goat=1'"),
    ],
)
def test_impossible_jobs_are_rejected(slurm: SlurmCluster, options: list[str], message: str) -> None:
    done = slurm.run(["sbatch", *options, "--wrap", "true"], check=False)
    assert done.returncode != 0
    assert message in done.stderr


# Ends that are not success


def test_waiting_for_the_wrong_end_fails_at_once(slurm: SlurmCluster) -> None:
    job = slurm.submit("--output=/dev/null", "--wrap", "false")
    with pytest.raises(AssertionError, match="is FAILED, wanted COMPLETED"):
        slurm.wait_for_state(job, "COMPLETED")


# Containers


def test_a_container_sees_its_image_and_not_the_machine(slurm: SlurmCluster, container_image: Path) -> None:
    script = f"echo $IN_IMAGE; hostname; test -e {container_image} && echo leaked; test -e /usr/bin/gcc && echo leaked"
    done = run_in_container(slurm, container_image, script + "; pwd")
    assert done.stdout.split() == ["yes", "gpu1", "/"]
    assert done.stderr == ""


def test_mounts_flags_and_working_folder(slurm: SlurmCluster, container_image: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in").write_text("from outside\n")
    (tmp_path / "out").mkdir()
    mounts = f"--container-mounts={tmp_path}/data:/data:ro,{tmp_path}/out:/out"
    script = "pwd; cat in; cp in /out/copy; touch /data/new 2>/dev/null || echo read-only"
    done = run_in_container(slurm, container_image, script, mounts, "--container-workdir=/data")
    assert done.stdout.splitlines() == ["/data", "from outside", "read-only"]
    assert (tmp_path / "out" / "copy").read_text() == "from outside\n"


def test_the_root_is_read_only_unless_asked(slurm: SlurmCluster, container_image: Path) -> None:
    script = "echo x > /new 2>/dev/null && echo wrote; echo x > /tmp/new && echo tmp"
    assert run_in_container(slurm, container_image, script).stdout.split() == ["tmp"]
    assert run_in_container(slurm, container_image, script, "--container-writable").stdout.split() == ["wrote", "tmp"]
    assert not Path("/new").exists()


@pytest.mark.usefixtures("containers")
def test_the_image_wins_over_the_environment_except_where_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    image = build_image(tmp_path / "env.sqsh", env={"WHO": "image", "WHOLE": "image"})
    caller = {"WHO": "caller", "WHOLE": "caller", "OTHER": "caller"}
    show = "echo $WHO $WHOLE $OTHER"
    assert run_in_container(slurm, image, show, env=caller).stdout.split() == ["image", "image", "caller"]
    named = run_in_container(slurm, image, show, "--container-env=OTHER,WHOLE", env=caller)
    assert named.stdout.split() == ["image", "caller", "caller"]


def test_home_is_mounted_only_on_request(slurm: SlurmCluster, container_image: Path, tmp_path: Path) -> None:
    (tmp_path / "mark").touch()
    env = {"HOME": str(tmp_path)}
    script = "test -e $HOME/mark && echo mounted || echo absent"
    with_home = run_in_container(slurm, container_image, script, "--container-mount-home", env=env)
    without = run_in_container(slurm, container_image, script, "--no-container-mount-home", env=env)
    assert (with_home.stdout.split(), without.stdout.split()) == (["mounted"], ["absent"])


@pytest.mark.usefixtures("containers")
def test_a_missing_image_says_so(slurm: SlurmCluster) -> None:
    done = run_in_container(slurm, Path("/nowhere/nemo.sqsh"), "true")
    assert done.returncode != 0
    assert "pyxis: failed to create container filesystem" in done.stderr
    assert "pyxis:     [ERROR] No such file or directory: /nowhere/nemo.sqsh" in done.stderr


def test_a_truncated_image_says_so(slurm: SlurmCluster, container_image: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.sqsh"
    half.write_bytes(container_image.read_bytes()[:50_000])
    done = run_in_container(slurm, half, "true")
    assert done.returncode != 0
    assert f"pyxis:     [ERROR] Failed to mount: {half}" in done.stderr
    half.write_bytes(b"<html>")
    assert f"[ERROR] Invalid image format: {half}" in run_in_container(slurm, half, "true").stderr


def test_a_missing_mount_source_says_so(slurm: SlurmCluster, container_image: Path) -> None:
    done = run_in_container(slurm, container_image, "true", "--container-mounts=/nowhere:/data")
    assert done.returncode != 0
    assert "enroot-mount: failed to mount: /nowhere at " in done.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--container-mounts=", "pyxis: --container-mounts: argument required"),
        ("--container-mounts=data:/data", "pyxis: could not add mount entry: data:/data"),
        ("--container-mounts=/a:", "pyxis: --container-mounts: invalid format: /a:"),
        ("--container-env=A,,B", "pyxis: --container-env: invalid format: A,,B"),
    ],
)
def test_wrong_options_are_refused(slurm: SlurmCluster, container_image: Path, option: str, message: str) -> None:
    done = run_in_container(slurm, container_image, "true", option)
    assert done.returncode != 0
    assert message in done.stderr


# Large and accounted clusters


# Life and death of the cluster itself


def test_nothing_is_left_of_a_killed_test_run(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Kill a process that owns a cluster with a running job: no daemon, job or folder outlives the next start."""
    plain = replace(SMALL, containers=False)
    program = tmp_path / "owner.py"
    program.write_text(
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from support.slurm_cluster import SlurmCluster\n"
        "from dataclasses import replace\n"
        "from support.slurm_config import SMALL\n"
        "cluster = SlurmCluster(replace(SMALL, containers=False))\n"
        "cluster.__enter__()\n"
        "job = cluster.submit('--output=/dev/null', '--wrap', 'sleep 1234')\n"
        "cluster.wait_for_state(job, 'RUNNING')\n"
        "print(cluster.root, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    root = Path(owner.stdout.readline().strip())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert root.exists()
    with SlurmCluster(plain):
        assert not root.exists()
        # Those that were killed may take a moment to go.
        wait_until(lambda: processes_mentioning(root) == [], "the end of the dead cluster's processes", timeout=60)


@pytest.mark.parametrize("place", [0, 4], ids=["controller", "node"])
def test_a_port_that_somebody_takes_first_is_replaced(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(SMALL, containers=False)
    with socket.create_server(("", 0)) as somebody:
        taken = [somebody.getsockname()[1]]

        def ports(count: int) -> list[int]:
            found = free_ports(count)
            if taken:
                found[place] = taken.pop()
            return found

        monkeypatch.setattr(slurm_cluster, "free_ports", ports)
        with SlurmCluster(plain) as cluster:
            assert taken == []
            assert cluster.wait_for_state(cluster.submit("--output=/dev/null", "--wrap", "true")) == "COMPLETED"


def processes_mentioning(root: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(root).encode() in text:
            found.append(process.name)
    return found
