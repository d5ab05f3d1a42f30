"""A canary: wherever a secret comes from, it is in no file but its own, no output and no argument list."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from install_world import CLONE, World, files_with

TOKEN = "hf_canarycanarycanary"
KEY = "nvapi-canarycanarycanary"


@pytest.fixture
def closed_registry(registry: Path) -> Path:
    """A registry that wants the key, on both of NGC's hosts."""
    (registry / "nvcr.io" / "credentials").write_text(f"$oauthtoken {KEY}")
    return registry


@contextmanager
def watched_processes() -> Iterator[dict[int, set[str]]]:
    """Every argument list seen in /proc meanwhile, by process."""
    seen: dict[int, set[str]] = {}
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                seen.setdefault(int(folder.name), set()).add(line)
            time.sleep(0.003)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def install(world: World, way: str) -> subprocess.CompletedProcess[str]:
    """An installation that gets both secrets in this way."""
    flags, env = world.slurm_flags(workloads="pretrain_llama3.1"), {}
    if way == "environment":
        env = {"HF_TOKEN": TOKEN, "NGC_API_KEY": KEY}
    elif way == "flags":
        flags += ["--hf-token", TOKEN, f"--ngc-api-key={KEY}"]
    else:
        play = world.root / "play.yaml"
        play.write_text(
            f"schema: 1\ncluster_type: slurm\naccount: bench\ngpu_partition: gpu\ngpu_type: h100\nhf_token: {TOKEN}\n"
            f"ngc_api_key: {KEY}\nworkloads: [pretrain_llama3.1]\nspace_check: false\n"
        )
        flags = ["--play", str(play), "--install-path", str(world.install)]
    return world.run("--verbose", *flags, env=env, program=world.installer)


@pytest.mark.parametrize("way", ["flags", "play file"])
def test_secrets_are_in_their_own_private_files_only(world: World, closed_registry: Path, way: str) -> None:
    with watched_processes() as seen:
        done = install(world, way)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    (world.root / "play.yaml").unlink(missing_ok=True)
    (closed_registry / "nvcr.io" / "credentials").unlink()
    home = world.install.name
    assert files_with(TOKEN, world.root) == [f"{home}/.llmb/hf_token"]
    assert files_with(KEY, world.root) == [f"{home}/.llmb/enroot/.credentials"]
    for path in (world.install / ".llmb" / "hf_token", world.install / ".llmb" / "enroot" / ".credentials"):
        assert path.stat().st_mode & 0o777 == 0o600
    # The driver's own arguments are the user's; everything that it starts must be clean.
    children = {line for lines in seen.values() for line in lines if "fault_driver.py" not in line}
    assert any("enroot import" in line for line in children), "the watcher saw nothing"
    assert not [line for line in children if TOKEN in line or KEY in line]


def test_secrets_that_only_the_environment_has_are_used_and_stored_nowhere(world: World, closed_registry: Path) -> None:
    """Every shell of a user may export them; nobody has asked to keep them. Enroot reads the variable itself."""
    done = install(world, "environment")
    assert done.returncode == 0, done.stderr
    assert world.image.exists()
    (closed_registry / "nvcr.io" / "credentials").unlink()
    assert files_with(TOKEN, world.root) == []
    assert files_with(KEY, world.root) == []
    assert not list(world.root.rglob(".credentials"))


def test_recorded_answers_hold_no_secret(world: World, registry: Path) -> None:
    answers = world.root / "answers.yaml"
    flags = world.slurm_flags("--record", str(answers), "--hf-token", TOKEN)
    done = world.run(*flags, program=world.installer)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in answers.read_text()
    assert not world.install.exists()


def test_the_second_stage_gets_secrets_in_its_environment_not_its_arguments(world: World, registry: Path) -> None:
    with watched_processes() as seen:
        done = world.run(*world.slurm_flags("--dry-run", "--hf-token", TOKEN))
    assert done.returncode == 0, done.stderr
    assert "hugging-face-token" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    second = [line for lines in seen.values() for line in lines if re.search(r"llmb_install/__main__\.py ", line)]
    assert any(str(world.install) in line for line in second), f"not seen among {len(seen)} processes of {CLONE}"
    assert not [line for line in second if TOKEN in line]


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(world: World, closed_registry: Path, mask: int) -> None:
    program = ["bash", "-c", f'umask {mask:03o}; exec "$0" "$@"', *world.installer]
    flags = world.slurm_flags(workloads="pretrain_llama3.1")
    done = world.run(*flags, "--hf-token", TOKEN, "--ngc-api-key", KEY, program=program)
    assert done.returncode == 0, done.stderr
    assert (world.install / ".llmb" / "hf_token").stat().st_mode & 0o777 == 0o600
    assert (world.install / "cluster_config.yaml").stat().st_mode & 0o777 == 0o644
    assert (world.install / "bin" / "llmb-run").stat().st_mode & 0o777 == 0o755
    for path in world.install.rglob("*"):
        assert path.is_symlink() or not path.stat().st_mode & 0o002, f"everybody may write {path}"
