"""Killed or out of disk at any point, the installer ends in the same installation when it is run again."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from install_world import Drive, World, fill_registry, forks, make_world

LLAMA = "pretrain_llama3.1"

# What rightly differs between two runs: logs, the lock, and times.
_APART = re.compile(r"\.llmb/(logs|lock)")


def drive(world: World, kind: str, at: int, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return world.run(*(arguments or world.slurm_flags(workloads=LLAMA)), env=env, program=world.driver(kind, at))


def tree(install: Path) -> dict[str, str]:
    """Relative path of everything in the installation, with a hash of its content and its mode.

    Independent of where the installation stands: its own path and the hash in an environment's name are left out.
    """
    found: dict[str, str] = {}
    for path in sorted(install.rglob("*")):
        name = str(path.relative_to(install))
        if _APART.match(name):
            continue
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_dir():
            content = "folder"
        else:
            data = path.read_bytes().replace(str(install).encode(), b"INSTALL")
            data = re.sub(rb'"(mtime_ns|sha256|digest|date|inputs)": [^\n]*', b"", data)
            # mksquashfs puts the time into its file.
            content = "image" if name.endswith(".sqsh") else hashlib.sha256(data).hexdigest()[:12]
        found[_without_hash(name)] = f"{_without_hash(content)} {path.lstat().st_mode:o}"
    return found


def _without_hash(text: str) -> str:
    return re.sub(r"\bllmb-[0-9a-f]{8}(-[0-9a-f]{6})?\b", "llmb-HASH", text)


@dataclass
class Whole:
    """An uninterrupted installation: its tree, and what happened at each point at which it could have been broken.

    A point is what happens, to which path, and a hash of what is on the disk just before; the first one is number 1.
    """

    tree: dict[str, str]
    points: list[tuple[str, str, str]]

    def to_kill(self) -> list[int]:
        """Points before which something has changed on the disk: killed at any other one, it leaves the same."""
        states = [state for _, _, state in self.points]
        return [n for n, state in enumerate(states, start=1) if n == 1 or state != states[n - 2]]

    def to_refuse(self) -> list[int]:
        """One thing of each path that a disk can refuse: opening it, writing, renaming and so on in turns.

        The way out of each is that of one function (``machine.files``), wherever the path is: the unit tests of it.
        """
        of_path: dict[str, dict[str, int]] = {}
        for number, (what, path, _) in enumerate(self.points, start=1):
            if what != "start":
                of_path.setdefault(_WITHOUT_NUMBERS.sub("", path), {}).setdefault(what, number)
        chosen = []
        for turn, numbers in enumerate(of_path.values()):
            every = list(numbers.values())
            chosen.append(every[turn % len(every)])
        return sorted(chosen)

    def to_refuse_before_the_lock(self) -> list[int]:
        """Those of ``to_refuse`` up to the lock: only there does the installer look at the reason."""
        lock = next(n for n, (_, path, _) in enumerate(self.points, start=1) if path.endswith("/.llmb/lock"))
        return [n for n in self.to_refuse() if n <= lock]


_WITHOUT_NUMBERS = re.compile(r"\.\d+\.[0-9a-f]{8}|(?<=lock\.owner)\.[0-9a-f]+")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, standins: Path) -> Whole:
    world = make_world(tmp_path_factory.mktemp("whole"), standins)
    fill_registry(world)
    note = world.root / "count"
    done = drive(world, "count", 0, FAULT_COUNT_FILE=str(note))
    assert done.returncode == 0, done.stderr
    whole = Whole(tree(world.install), [(what, path, state) for what, path, state in json.loads(note.read_text())])
    assert len(whole.to_kill()) > 30, "the driver sees too little"
    assert len(whole.to_refuse()) > 20, "the driver sees too little"
    return whole


def at_each(points: list[int], world: World, whole: Whole, break_it: Callable[[Drive, World, int], None]) -> None:
    """``break_it`` in a fresh folder at each of ``points``, then run again; two folders at a time."""

    def one(drive: Drive, at: int) -> None:
        root = world.root / f"at {at}"
        # Enroot's cache is each one's own: a layer that the other is still writing would look complete.
        fresh = World(root, world.env | {"HOME": str(world.root), "ENROOT_CACHE_PATH": str(root / "cache")})
        fresh.root.mkdir()
        break_it(drive, fresh, at)
        again = drive(fresh, "none", 0, *fresh.slurm_flags(workloads=LLAMA))
        assert again.returncode == 0, f"point {at}: {again.stderr}"
        assert tree(fresh.install) == whole.tree, f"point {at}"
        shutil.rmtree(fresh.root)

    def some(first: int) -> None:
        folder = world.root / f"forks {first}"
        folder.mkdir()
        with forks(folder) as drive:
            for at in points[first::2]:
                one(drive, at)

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(some, (0, 1)))


@pytest.mark.usefixtures("registry")
def test_killed_at_any_point_it_is_completed_by_running_again(world: World, whole: Whole) -> None:
    def kill(drive: Drive, fresh: World, at: int) -> None:
        killed = drive(fresh, "kill", at, *fresh.slurm_flags(workloads=LLAMA))
        assert killed.returncode == -9, f"point {at}: {killed.stderr}"

    at_each(whole.to_kill(), world, whole, kill)


def test_a_removal_killed_at_any_point_leaves_no_image_for_ever(world: World, registry: Path) -> None:
    world.env["LLMB_INSTALL"] = str(world.install)
    remove = ("remove", "llama3.1")
    note = world.root / "count"
    for _ in range(2):  # the first removal builds the index of runs, too
        assert drive(world, "none", 0).returncode == 0
        assert drive(world, "count", 0, *remove, FAULT_COUNT_FILE=str(note)).returncode == 0
    points = len(json.loads(note.read_text()))
    with forks(world.root) as in_fork:
        for at in range(2, points + 1, max(points // 8, 1)):
            assert in_fork(world, "none", 0, *world.slurm_flags(workloads=LLAMA)).returncode == 0
            assert world.image.exists()
            assert in_fork(world, "kill", at, *remove).returncode == -9
            # Done already, or done now: "is not installed" is the answer where nothing was left to do.
            assert in_fork(world, "none", 0, *remove).returncode in (0, 2)
            assert [path.name for path in world.image.parent.iterdir()] == [], f"point {at}"


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("kind", "text", "where"),
    [
        ("ENOSPC", "No space left on device", Whole.to_refuse),
        ("EACCES", r"you cannot write to .*: Permission denied", Whole.to_refuse_before_the_lock),
        ("EROFS", r"you cannot write to .*: Read-only file system", Whole.to_refuse_before_the_lock),
    ],
    ids=["ENOSPC", "EACCES", "EROFS"],
)
def test_a_disk_that_refuses_gives_an_error_and_success_once_it_does_not(world, whole, kind, text, where):
    def refuse(drive: Drive, fresh: World, at: int) -> None:
        refused = drive(fresh, kind, at, *fresh.slurm_flags(workloads=LLAMA))
        # A step may do without what was refused (say, the removal of a temporary file): then it succeeds.
        if refused.returncode != 0:
            assert refused.returncode == 3, f"point {at}: {refused.stderr}"
            assert re.search(text, refused.stderr), f"point {at}: {refused.stderr}"
            assert "Traceback" not in refused.stderr, f"point {at}: {refused.stderr}"
            assert "  -> " in refused.stderr, f"point {at}: {refused.stderr}"

    at_each(where(whole), world, whole, refuse)
