"""Images: every way in which an import goes wrong has its cause in words, and a bad file never gets a good name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from install_world import IMAGE_NAME, NEMO, World

from llmb_common.base.errors import EnvironmentLacks
from llmb_install.parts.image import Image
from llmb_install.parts.squashfs import BadImage, Inspector, check_superblock
from llmb_install.working.reporter import Reporter
from support.images import add_to_registry, build_image


@pytest.fixture
def env(world: World, registry: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("PATH", world.env["PATH"])
    return dict(world.env)


@pytest.fixture
def image(world: World) -> Image:
    folder = world.install / "images"
    return Image(NEMO, folder / IMAGE_NAME, "x86_64", world.install / ".llmb" / "receipts")


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Reporter]:
    with Reporter(tmp_path / "logs") as reporter:
        yield reporter


def ensure(image: Image, reporter: Reporter, env: dict[str, str]) -> bool:
    return replace(image, env=env, space_check=False).ensure(reporter)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    ("source", "mode", "remedy"),
    [
        (NEMO.replace("26.02.01", "99"), "", "recipe.yaml"),
        (NEMO.replace("nvcr.io", "nowhere.example"), "", "DNS"),
        (NEMO, "refused", "https_proxy"),
        (NEMO, "tls", "certificates"),
        (NEMO, "unauthorized", "NGC_API_KEY"),
        (NEMO, "disk_full", "ENROOT_TEMP_PATH"),
        (NEMO, "killed", "memory"),
    ],
)
def test_a_failure_says_what_to_do_about_its_cause_and_leaves_nothing(image, reporter, env, source, mode, remedy):
    bad = replace(image, source=source)
    with pytest.raises(EnvironmentLacks) as caught:
        ensure(bad, reporter, env | {"ENROOT_STANDIN_FAIL": mode})
    assert remedy in caught.value.remedy
    assert files_in(image.path.parent) == []


def test_the_wrong_architecture_is_no_success_although_enroot_exits_0(image, reporter, env):
    with pytest.raises(EnvironmentLacks, match=r"\bx86_64\b.*\baarch64\b"):
        ensure(replace(image, architecture="aarch64"), reporter, env)
    assert files_in(image.path.parent) == []


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """``folder`` as a file system mounted read-only: also root cannot write there."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_shared_folder_that_cannot_be_written_keeps_its_receipts_elsewhere(image, reporter, env):
    folder = image.path.parent
    folder.mkdir(parents=True)
    with read_only(folder), pytest.raises(EnvironmentLacks, match=IMAGE_NAME.replace("+", r"\+")):
        ensure(image, reporter, env)
    build_image(image.path)
    with read_only(folder):
        assert ensure(image, reporter, env)
        assert image.is_complete()
        assert image.verify() is None
    assert files_in(folder) == [IMAGE_NAME]
    assert files_in(image.receipts) == [f"{IMAGE_NAME}.receipt.json"]
    os.truncate(image.path, 5000)
    with read_only(folder), pytest.raises(EnvironmentLacks, match=IMAGE_NAME.replace("+", r"\+")):
        ensure(image, reporter, env)


def damage(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def test_content_decides_what_is_an_image(tmp_path: Path) -> None:
    inspector = Inspector()
    good = build_image(tmp_path / "good.sqsh", programs=("bash",))
    assert inspector.check(good, "x86_64") == check_superblock(good)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "README").write_text("no programs")
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["mksquashfs", str(tmp_path / "tree"), str(tmp_path / "data.sqsh"), "-noappend"], **quiet)
    assert check_superblock(tmp_path / "data.sqsh"), "it is a whole squashfs image"
    with pytest.raises(BadImage):
        inspector.check(tmp_path / "data.sqsh", "x86_64")
    empty = tmp_path / "empty.sqsh"
    empty.touch()
    with pytest.raises(BadImage, match=r"\b0 bytes"):
        inspector.check(empty, "x86_64")
    # The directory tables stand at the end: zeros there are noticed by the listing.
    damage(good, check_superblock(good) - 600, bytes(600))
    with pytest.raises(BadImage):
        inspector.check(good, "x86_64")


def test_two_architectures_in_the_registry_give_the_one_that_was_asked_for(image, reporter, env, world):
    add_to_registry(world.registry, "nvcr.io#nvidia/both:1", {}, ("aarch64", "x86_64"), programs=("bash",))
    assert ensure(replace(image, source="nvcr.io#nvidia/both:1"), reporter, env)
    shown = subprocess.run(["unsquashfs", "-cat", str(image.path), "arch"], capture_output=True, check=True)
    assert shown.stdout == b"x86_64\n"
