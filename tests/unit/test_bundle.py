"""A bundle for machines without a network: what is put into it, what it is refused for, and images out of it."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks, LLMBError, RequestError
from llmb_install import arguments, by_click
from llmb_install.answers.answers import complete_answers, load_recipes, to_yaml
from llmb_install.commands.bundle import bundle
from llmb_install.installation import Installation
from llmb_install.parts import bundles
from llmb_install.parts import image as images
from llmb_install.parts.image import Image
from llmb_install.parts.package_index import Sources
from llmb_install.parts.pip_settings import read_index_settings
from llmb_install.working.artefact import require_ready
from llmb_install.working.reporter import Reporter
from support.installer import CLONE
from support.json_answers import assert_as_documented
from support.texts import Texts

HERE = platform.machine()
VERSION = "{}.{}".format(*sys.version_info)
OTHER = "aarch64" if HERE == "x86_64" else "x86_64"
LOCKS = {
    "uv": [f"uv-1.0-py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.whl" for machine in (HERE, OTHER)],
    "tool": [
        *(f"six-2.0-cp3{minor}-cp3{minor}-manylinux_2_{glibc}_{HERE}.whl" for minor in (11, 12) for glibc in (5, 28)),
        f"six-2.0-cp312-cp312-manylinux_2_17_{OTHER}.whl",
        "six-3.0-py3-none-any.whl",
        "win-1.0-py3-none-any.whl",
    ],
    "charts": ["tiny-1.0.tar.gz"],
    "hub": ["asker-1.0-py3-none-any.whl"],
    "engine-cpu": ["deep-1.0+cpu-py3-none-any.whl"],
    "engine-cpu-0.6": ["megatron_core-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"],
}
PINS = {
    "uv": ["uv==1.0"],
    "tool": ["six==2.0", "win==1.0 ; sys_platform == 'win32'"],
    "charts": ["tiny==1.0"],
    "hub": ["asker==1.0"],
    "engine-cpu": ["deep==1.0+cpu"],
    "engine-cpu-0.6": ["megatron-core==1.0"],
}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipes of this clone with locks of its own, whose files are in a folder."""
    clone, index = tmp_path / "clone", tmp_path / "index"
    (clone / "installer" / "locks").mkdir(parents=True)
    index.mkdir()
    for recipe in CLONE.glob("*/recipe.yaml"):
        (clone / recipe.parent.name).symlink_to(recipe.parent)
    for lock, names in LOCKS.items():
        for name in names:
            (index / name).write_text(name)
        hashes = "".join(f" \\\n    --hash=sha256:{hashlib.sha256(name.encode()).hexdigest()}" for name in names)
        text = "".join(f"{pin}{hashes}\n" for pin in PINS[lock])
        (clone / "installer" / "locks" / f"{lock}.txt").write_text(text)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    for name in ("UV_FIND_LINKS", "LLMB_BUNDLE"):
        monkeypatch.setenv(name, "")
    return clone


@pytest.fixture
def make(clone: Path, tmp_path: Path) -> Callable[..., Path]:
    def made(*words: str) -> Path:
        folder = tmp_path / "a bundle, here"
        asked: argparse.Namespace = arguments.parse(["bundle", "--to", str(folder), *words], by_click.read)
        assert_as_documented("llmb-install bundle", bundle(asked, clone, tmp_path / "no installation").data)
        return folder

    return made


def wheels(folder: Path) -> set[str]:
    return {path.name for path in (folder / "wheels").iterdir()}


ONE = ("--platform", HERE, "--python", "3.12")


def test_it_has_the_files_of_the_locks_for_what_was_asked(make: Callable[..., Path]) -> None:
    """Of several that fit the one for the oldest glibc; the source of what has no wheel; nothing for other systems."""
    folder = make(*ONE)
    mine = {f"six-2.0-cp312-cp312-manylinux_2_5_{HERE}.whl", LOCKS["uv"][0], "tiny-1.0.tar.gz", *LOCKS["engine-cpu"]}
    mine |= set(LOCKS["hub"])
    assert wheels(folder) == mine
    about = json.loads((folder / "bundle.json").read_text())
    assert (about["platforms"], about["pythons"], about["engines"], about["images"]) == ([HERE], ["3.12"], ["0.3"], [])
    subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "SHA256SUMS"], cwd=folder, check=True)
    make("--platform", HERE, OTHER, "--python", "3.12")
    assert wheels(folder) == {*mine, LOCKS["uv"][1], f"six-2.0-cp312-cp312-manylinux_2_17_{OTHER}.whl"}
    make("--platform", HERE, "--python", "3.11", "3.12")
    assert wheels(folder) == {*mine, f"six-2.0-cp311-cp311-manylinux_2_5_{HERE}.whl"}, "what it no longer needs goes"


def test_a_package_for_one_python_alone_goes_with_its_neighbours(make: Callable[..., Path]) -> None:
    folder = make("--platform", "x86_64", "--python", "3.11", "--workloads", "mbridge", "--no-images")
    assert {*LOCKS["engine-cpu"], *LOCKS["engine-cpu-0.6"]} < wheels(folder)


def test_one_that_was_killed_is_none_until_it_is_finished(make, clone, monkeypatch, texts: Texts):
    folder = make(*ONE)
    kept = folder / "wheels" / "tiny-1.0.tar.gz"
    before = kept.stat().st_mtime_ns
    (folder / "SHA256SUMS").unlink()
    (half,) = (folder / "wheels").glob("six*")
    half.write_text("half")
    (folder / "wheels" / ".six.whl.77.abcd").touch()
    with texts.raises(EnvironmentLacks, mask=HERE):
        bundles.use_bundle(folder, clone)
    asked: list[str] = []
    links = Sources.links
    monkeypatch.setattr(Sources, "links", lambda self, name, *more, **_: asked.append(name) or links(self, name, *more))
    make(*ONE)
    assert asked == ["six", "six", "tiny"], "wheels that are there are not looked for; a source may have got a wheel"
    assert (kept.stat().st_mtime_ns, half.read_text()) == (before, half.name)
    assert len(wheels(folder)) == 5
    with texts.raises(EnvironmentLacks, mask=HERE):
        make("--python", "3.13")
    assert not (folder / "SHA256SUMS").exists()


def test_requests_that_cannot_be_met(make, tmp_path, monkeypatch, texts: Texts):
    with texts.raises(EnvironmentLacks, mask=HERE):
        make("--python", "3.13")
    with texts.raises(RequestError):
        make("--python", "3.12.1")
    with texts.raises(RequestError):
        make("--python", "3.12", "3.9")
    monkeypatch.setenv("PATH", str(tmp_path))
    with texts.raises(EnvironmentLacks, mask=HERE):
        make(*ONE, "--workloads", "grok1")
    (tmp_path / "a bundle, here" / "mine").touch()
    with texts.raises(RequestError):
        make(*ONE)


@pytest.fixture
def here(make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle for this machine, which says that it has Python 3.12."""
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    return make(*ONE)


def test_packages_come_from_it_and_from_nowhere_else(here: Path, clone: Path) -> None:
    bundles.use_bundle(here, clone)
    told = read_index_settings(os.environ)
    assert told.options == ("--no-index",)
    assert told.variables["UV_FIND_LINKS"] == f"{here.as_uri()}/wheels"
    assert "," not in here.as_uri(), "uv splits it there"
    assert [link.name for link in Sources(told).links("tiny")] == ["tiny-1.0.tar.gz"]


@pytest.mark.parametrize("damage", ["changed", "missing", "no sums", "other machine", "other python", "other release"])
def test_one_that_is_damaged_or_for_others_is_refused(here, clone, monkeypatch, damage, texts: Texts):
    file = here / "wheels" / "tiny-1.0.tar.gz"
    if damage == "changed":
        file.write_text("worse")
    elif damage == "missing":
        file.unlink()
    elif damage == "no sums":
        (here / "SHA256SUMS").write_text("nonsense\n")
    elif damage == "other machine":
        monkeypatch.setattr("platform.machine", lambda: "riscv64")
    elif damage == "other python":
        monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    else:
        (clone / "installer" / "locks" / "uv.txt").write_text("uv==2.0\n")
    with texts.raises(EnvironmentLacks, mask=HERE):
        bundles.use_bundle(here, clone)
    assert os.environ["LLMB_BUNDLE"] == "", "nothing was chosen"


# Images


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """One that is taken from another folder."""
    origin = tmp_path / "bundle" / "images" / "x86_64" / "a+b+1.sqsh"
    origin.parent.mkdir(parents=True)
    origin.write_bytes(b"image")
    receipt = {"schema": 1, "source": "nvcr.io#a/b:1", "architecture": "x86_64", "size": 5, "digest": "sha256:1"}
    receipt["sha256"] = hashlib.sha256(b"image").hexdigest()
    origin.with_name("a+b+1.sqsh.receipt.json").write_text(json.dumps(receipt))
    install = tmp_path / "install"
    target = install / "images" / origin.name
    return Image("nvcr.io#a/b:1", target, "x86_64", install / ".llmb" / "receipts", origin=origin)


def ensure(image: Image) -> bool:
    return image.ensure(Reporter(None, stream=io.StringIO()))


@pytest.mark.parametrize("linked", [True, False])
def test_an_image_is_linked_or_copied_with_its_receipt(image, monkeypatch, linked):
    if not linked:

        def refuse(self: Path, target: Path) -> None:
            raise OSError("another file system")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert [room.bytes for room in image.room()] == [5]
    image.path.parent.mkdir(parents=True)
    assert ensure(image)
    assert image.origin
    assert image.path.samefile(image.origin) == linked
    assert sorted(path.name for path in image.path.parent.iterdir()) == [image.path.name, image.receipt_path().name]
    assert list((image.root / ".llmb" / "tmp").iterdir()) == []
    receipt = json.loads(image.receipt_path().read_text())
    assert receipt["mtime_ns"] == image.path.stat().st_mtime_ns
    assert receipt["digest"] == "sha256:1", "what else it says stays"


@pytest.mark.parametrize("damage", ["content", "other"])
def test_an_image_that_is_not_what_its_receipt_says_is_not_taken(image: Image, damage: str, texts: Texts) -> None:
    assert image.origin
    if damage == "content":
        image.origin.write_bytes(b"imago")
    else:
        image = replace(image, source="nvcr.io#a/b:2")
    with texts.raises(LLMBError):
        ensure(image)
    assert list(image.path.parent.iterdir()) == []


@pytest.mark.parametrize("part", ["a+b+1.sqsh", "a+b+1.sqsh.receipt.json"])
def test_an_image_that_the_bundle_lacks_is_told_before_anything_is_made(image: Image, part: str, texts: Texts) -> None:
    assert image.origin
    assert not image.lacks()
    (image.origin.parent / part).unlink()
    with texts.raises(EnvironmentLacks):
        require_ready([image])
    image.path.parent.mkdir(parents=True)
    image.path.touch()
    assert not image.lacks(), "it may be adopted"


def test_one_that_was_killed_while_it_said_what_it_is_is_finished(make, monkeypatch):
    real = os.fsync

    def killed(descriptor: int) -> None:
        if "bundle.json" in os.readlink(f"/proc/self/fd/{descriptor}"):  # noqa: PTH115
            raise KeyboardInterrupt
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            make(*ONE)
    assert (make(*ONE) / "SHA256SUMS").is_file()


def test_a_bundle_of_an_installation_has_its_images(clone, image, tmp_path, monkeypatch, texts: Texts):
    monkeypatch.setattr(images, "check_superblock", lambda path: 0)
    install, folder = tmp_path / "site", tmp_path / "made"
    answers = {
        "cluster_type": "slurm",
        "gpu_type": "h100",
        "account": "a",
        "gpu_partition": "g",
        "workloads": ["grok1"],
    }
    given = {"install_path": str(install), "runtime": "pyxis", **answers}
    installation = Installation(clone, complete_answers(given, load_recipes(clone)))
    (install / ".llmb").mkdir(parents=True)
    (install / ".llmb" / "answers.yaml").write_text(to_yaml(installation.answers))
    (own,) = installation.images()
    monkeypatch.setenv("PATH", str(tmp_path))
    with texts.raises(EnvironmentLacks, mask=HERE):
        bundle(arguments.parse(["bundle", "--to", str(folder), "--python", "3.12"], by_click.read), clone, install)
    ensure(replace(image, source=own.source, path=own.path, receipts=own.receipts, origin=imported(image, own.source)))
    bundle(arguments.parse(["bundle", "--to", str(folder), "--python", "3.12"], by_click.read), clone, install)
    there = bundles.image_path(folder, "x86_64", own.source)
    assert there.samefile(own.path)
    sums = bundles.read_sums(folder)
    assert sums[str(there.relative_to(folder))] == hashlib.sha256(b"image").hexdigest()
    assert f"{there.relative_to(folder)}.receipt.json" in sums
    assert json.loads((folder / "bundle.json").read_text())["images"] == [own.source]


def imported(image: Image, source: str) -> Path:
    """The image as if it had come from ``source``."""
    assert image.origin
    receipt = image.origin.with_name(f"{image.origin.name}.receipt.json")
    receipt.write_text(json.dumps({**json.loads(receipt.read_text()), "source": source}))
    return image.origin


def test_an_installation_takes_its_images_from_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMB_BUNDLE", str(tmp_path))
    assert bundles.bundled_image("x86_64", "nvcr.io#a/b:1") == tmp_path / "images" / "x86_64" / "a+b+1.sqsh"
    monkeypatch.delenv("LLMB_BUNDLE")
    assert bundles.bundled_image("x86_64", "nvcr.io#a/b:1") is None


def test_a_folder_with_wheels_of_somebody_else_is_no_bundle(
    make: Callable[..., Path], tmp_path: Path, texts: Texts
) -> None:
    folder = tmp_path / "a bundle, here"
    (folder / "wheels").mkdir(parents=True)
    mine = folder / "wheels" / "mine-1.0-py3-none-any.whl"
    mine.touch()
    with texts.raises(RequestError):
        make(*ONE)
    assert mine.exists()
    mine.unlink()
    (folder / "wheels").rmdir()
    make(*ONE)
    (folder / "wheels" / "a folder").mkdir()
    os.mkfifo(folder / "wheels" / "fifo")
    make(*ONE)


def test_the_source_of_a_package_that_has_wheels_for_others_is_not_taken(make, clone, tmp_path, texts: Texts):
    lock = clone / "installer" / "locks" / "tool.txt"
    digest = hashlib.sha256(b"six-2.0.tar.gz").hexdigest()
    lock.write_text(lock.read_text().replace("six==2.0", f"six==2.0 --hash=sha256:{digest}"))
    (tmp_path / "index" / "six-2.0.tar.gz").write_text("six-2.0.tar.gz")
    with texts.raises(EnvironmentLacks, mask=HERE):
        make("--python", "3.13")


@pytest.mark.parametrize(
    "about", ["{}", "[]", '{"platforms": 1, "pythons": [], "locks": ""}', '{"platforms": [1]}', "x"]
)
def test_one_that_does_not_say_what_it_is_for_is_none(here: Path, clone: Path, about: str, texts: Texts) -> None:
    (here / "bundle.json").write_text(about)
    sums = subprocess.run(["sha256sum", "bundle.json"], cwd=here, check=True, capture_output=True, text=True).stdout
    (here / "SHA256SUMS").write_text(sums)
    with texts.raises(EnvironmentLacks):
        bundles.use_bundle(here, clone)
    (here / "SHA256SUMS").unlink()
    os.mkfifo(here / "SHA256SUMS")
    with texts.raises(EnvironmentLacks):
        bundles.use_bundle(here, clone)
