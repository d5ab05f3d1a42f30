"""Installing without a terminal: flags, play files, dry runs; and what one does with an installation afterwards.

One real installation for the whole file, tool environment and all; each test leaves it complete.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from install_world import IMAGE_NAMES, NEMO, World, fill_registry, make_world

from llmb_common.planning.site.cluster import load_cluster_config

WORKLOADS = [
    "pretrain_grok1",
    "pretrain_llama3.1",
    "pretrain_llama4_maverick",
    "pretrain_mbridge",
    "pretrain_nemotron4",
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> World:
    """All workloads for Slurm, installed with flags."""
    world = make_world(tmp_path_factory.mktemp("world"), Path(__file__).parents[1] / "support" / "bin")
    fill_registry(world)
    done = world.run(*world.slurm_flags())
    assert done.returncode == 0, done.stderr
    return world


def command(world: World, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the installation's own llmb-install."""
    return world.run(*arguments, env=env, program=[str(world.install / "bin" / "llmb-install")])


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with its size and the time of its last change."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            status = (Path(root) / name).lstat()
            found[f"{root}/{name}"] = (status.st_size, status.st_ctime_ns)
    return found


def test_everything_is_there(installed: World) -> None:
    config = load_cluster_config(installed.install)
    assert (config.cluster_type, config.slurm.account, config.slurm.gpu_partition) == ("slurm", "bench", "gpu")
    assert list(config.workloads) == WORKLOADS
    assert sorted(path.name for path in (installed.install / "workloads").iterdir()) == WORKLOADS
    receipt = json.loads(installed.image.with_name(f"{installed.image.name}.receipt.json").read_text())
    assert (receipt["source"], receipt["architecture"]) == (NEMO, "x86_64")


def test_workloads_that_share_an_image_share_the_download(installed: World) -> None:
    assert installed.imports() == len(IMAGE_NAMES)
    assert len([path for path in (installed.install / "venvs").iterdir() if not path.is_symlink()]) == 1


def test_a_second_run_does_nothing_and_writes_nothing(installed: World) -> None:
    before = snapshot(installed.root)
    # No network: pip and Enroot would fail if they were asked.
    done = installed.run(*installed.slurm_flags(), env={"PIP_INDEX_URL": "http://localhost:1", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert (done.stdout.count("\n"), str(installed.install) in done.stdout) == (1, True)
    assert snapshot(installed.root) == before


def test_the_launcher_finds_the_image(installed: World) -> None:
    env = {"DRY_RUN": "true", "JOB_TOTAL_GPUS": "8", "GPU_TYPE": "h100", "MODEL_SIZE": "8b", "CLUSTER_TYPE": "slurm"}
    clone = Path(__file__).resolve().parents[2]
    env["LLMB_INSTALL"] = str(installed.install)
    done = installed.run(env=env, program=["bash", str(clone / "llama3.1" / "launch.sh")])
    assert done.returncode == 0, done.stderr
    assert "an install'\"'\"'s folder/images/nvidia+nemo+26.02.01.sqsh" in done.stdout


def test_list_verify_and_their_json(installed: World) -> None:
    rows = json.loads(command(installed, "list", "--json").stdout)["data"]["workloads"]
    assert [row["workload"] for row in rows if row["installed"] and row["image_complete"]] == WORKLOADS
    done = command(installed, "verify", "--json")
    parts = json.loads(done.stdout)["data"]["parts"]
    assert (done.returncode, len(parts), any(parts.values())) == (0, 8, False)
    done = command(installed, "verify")
    assert (done.returncode, done.stdout.count("\n"), " 8 " in done.stdout) == (0, 1, True)


def test_verify_finds_a_changed_byte_and_update_repairs_it(installed: World) -> None:
    size = installed.image.stat().st_size
    times = installed.image.stat()
    with installed.image.open("r+b") as stream:
        stream.seek(size // 2)
        byte = stream.read(1)[0]
        stream.seek(size // 2)
        stream.write(bytes([byte ^ 1]))
    # As a faulty disk would: neither size nor time tell.
    os.utime(installed.image, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = command(installed, "verify", "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["command"], said["ok"], said["error"]["code"]) == ("verify", False, "failed")
    parts = said["data"]["parts"]
    assert [name for name, problem in parts.items() if problem] == [f"image {installed.image.name}"]
    done = command(installed, "update", "--no-space-check")
    assert done.returncode == 0, done.stderr
    assert str(installed.image) in done.stderr
    assert command(installed, "verify").returncode == 0


def test_remove_and_add(installed: World) -> None:
    result = installed.install / "workloads" / "pretrain_grok1" / "experiments" / "a result"
    result.touch()
    done = command(installed, "remove", "pretrain_grok1")
    assert done.returncode == 0, done.stderr
    assert "pretrain_grok1" not in load_cluster_config(installed.install).workloads
    assert result.exists()
    assert installed.image.exists(), "the other workloads need it"
    done = command(installed, "remove", "grok1")
    assert (done.returncode, "pretrain_grok1" in done.stderr) == (2, True)
    assert command(installed, "add", "grok1", "--no-space-check").returncode == 0
    assert list(load_cluster_config(installed.install).workloads) == WORKLOADS


def test_a_package_that_lost_one_file_is_repaired_by_the_installer(installed: World) -> None:
    """Every command of the installation fails then, and says what to do. The package still imports, as a namespace."""
    damaged = (installed.install / "venvs" / "llmb").resolve()
    site_packages = next(damaged.glob("lib/python3.*/site-packages"))
    (site_packages / "msgspec" / "__init__.py").unlink()
    for name in ("llmb-run", "llmb-install"):
        done = installed.run("list", program=[str(installed.install / "bin" / name)])
        assert done.returncode == 3
        assert "msgspec/__init__.py" in done.stderr
        assert "Traceback" not in done.stderr
    done = installed.run("verify", "--install-path", str(installed.install))
    assert done.returncode == 1
    assert "msgspec/" in done.stderr
    done = installed.run("update", "--install-path", str(installed.install), "--no-space-check")
    assert done.returncode == 0, done.stderr
    assert (installed.install / "venvs" / "llmb").resolve() != damaged, "it is another one"
    assert command(installed, "verify").returncode == 0


def test_setup_sh_is_the_manual_way(installed: World) -> None:
    assert command(installed, "remove", "pretrain_llama3.1").returncode == 0
    clone = Path(__file__).resolve().parents[2]
    env = {"LLMB_INSTALL": str(installed.install)}
    done = installed.run("--no-space-check", env=env, program=["bash", str(clone / "llama3.1" / "setup.sh")])
    assert done.returncode == 0, done.stderr
    assert "pretrain_llama3.1" in load_cluster_config(installed.install).workloads


def test_a_site_file_of_a_later_release_is_refused_by_every_command(installed: World) -> None:
    path = installed.install / "cluster_config.yaml"
    text = path.read_text()
    path.write_text(text.replace("schema: 1", "schema: 9"))
    for words in (["update"], ["verify"], ["doctor", "--no-compute-node"], ["add", "grok1"]):
        done = command(installed, *words)
        assert done.returncode == (1 if words == ["verify"] else 2), words
        assert re.search(r"\bcluster_config\.yaml:2: .*\b9\b", done.stderr), words
    path.write_text(text)


def test_uninstall_asks_and_keeps_results_and_what_is_not_its_own(installed: World) -> None:
    for name in ("bin/my-tool", "images/other.sqsh", "notes.txt"):
        (installed.install / name).touch()
    done = command(installed, "uninstall")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    (installed.install / ".llmb" / "answers.yaml").write_text("x: [")  # also a damaged one can be removed
    done = command(installed, "uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    files = [path for path in installed.install.rglob("*") if path.is_file() and "workloads" not in path.parts]
    assert sorted(str(path.relative_to(installed.install)) for path in files) == [
        *("bin/my-tool", "images/other.sqsh", "notes.txt")
    ]
    assert sorted(path.name for path in installed.install.iterdir()) == ["bin", "images", "notes.txt", "workloads"]
    assert re.search(rf"{re.escape(str(installed.install))}\b.*\bworkloads\b", done.stdout), "where the results are"
    done = installed.run("verify", "--install-path", str(installed.install))
    assert done.returncode == 3
    assert str(installed.install) in done.stderr
