"""Two installers at once, and one that is interrupted while a program of its own runs."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from pathlib import Path

from install_world import IMAGE_NAME, IMAGE_NAMES, World

from support.processes import wait_until


def start(world: World, *more: str, **env: str) -> subprocess.Popen[str]:
    argv = [*world.installer, *world.slurm_flags(*more)]
    return subprocess.Popen(
        argv, env=world.env | env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_import(world: World) -> None:
    deadline = time.monotonic() + 150
    while world.imports() == 0:
        assert time.monotonic() < deadline, "no import began"
        time.sleep(0.02)


def test_two_at_once_do_the_work_once(world: World, registry: Path) -> None:
    first = start(world, ENROOT_STANDIN_SECONDS="2")
    wait_for_import(world)
    second = start(world, ENROOT_STANDIN_SECONDS="2")
    _, said_first = first.communicate(timeout=1500)
    _, said_second = second.communicate(timeout=1500)
    assert (first.returncode, second.returncode) == (0, 0), said_first + said_second
    assert re.search(rf"{re.escape(str(world.install))}.*\b{first.pid}\b", said_second), "whom it waits for"
    assert world.imports() == len(IMAGE_NAMES)


def test_two_installations_with_one_image_folder_download_once(world: World, registry: Path) -> None:
    shared = world.root / "shared images"
    other = World(world.root / "other", world.env)
    other.root.mkdir()
    first = start(world, "--image-folder", str(shared), ENROOT_STANDIN_SECONDS="2")
    wait_for_import(world)
    second = start(other, "--image-folder", str(shared))
    for process in (first, second):
        _, said = process.communicate(timeout=1500)
        assert process.returncode == 0, said
    assert world.imports() == len(IMAGE_NAMES)
    assert sorted(path.name for path in shared.iterdir() if path.name != ".llmb") == sorted(
        [*IMAGE_NAMES, *(f"{name}.receipt.json" for name in IMAGE_NAMES)]
    )


def test_an_interruption_ends_programs_and_leaves_nothing_half(world: World, registry: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        begun = start(world, ENROOT_STANDIN_SECONDS="600")
        wait_for_import(world)
        begun.send_signal(number)
        _, said = begun.communicate(timeout=150)
        if number == signal.SIGKILL:
            wait_until(lambda: not downloads(world), "the end of the downloads", 20)
        else:
            assert begun.returncode == 130, said
            assert "Traceback" not in said
        assert not downloads(world)
        assert [path.name for path in (world.install / "images").iterdir()] == []
        (world.root / "enroot.log").unlink()
    done = start(world)
    _, said = done.communicate(timeout=1500)
    assert done.returncode == 0, said
    assert (world.install / "images" / IMAGE_NAME).exists()
    assert list((world.root / "tmp").iterdir()) == []
    assert not list((world.install / ".llmb").glob("llmb-import.*"))


def downloads(world: World) -> list[str]:
    """Processes of Enroot that work for this world, whatever their process group."""
    wanted = f"ENROOT_TEMP_PATH={world.root}/tmp/llmb-import.".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
    return found


def test_a_failed_step_lets_the_others_finish_and_is_told(world: World, registry: Path) -> None:
    done = start(world, ENROOT_STANDIN_FAIL="not_found")
    _, said = done.communicate(timeout=1500)
    assert done.returncode == 3
    assert "recipe.yaml" in said, "where a wrong tag is"
    logs = re.findall(rf"{re.escape(str(world.install))}/\.llmb/logs/\S+", said)
    assert logs
    assert all(Path(log).is_file() for log in logs)
    assert (world.install / "bin" / "llmb-run").exists()
    again = start(world)
    again.communicate(timeout=1500)
    assert again.returncode == 0
