"""Importing an image with stand-ins for enroot and unsquashfs: what becomes of files, receipts and leftovers."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.files import sha256_of
from llmb_install.parts.image import Image
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import unfinished
from support.programs import needs_zstd
from support.texts import Texts

SOURCE = "nvcr.io#nvidia/nemo:26.02.01"

# A whole image: a superblock that says it is 200 bytes long, and the rest.
WHOLE = struct.pack("<4sIIIIHHHHHHQQ", b"hsqs", 5, 0, 131072, 0, 1, 17, 0, 1, 4, 0, 0, 200).ljust(200, b"x")

DIGEST = "sha256:" + "5e1f" * 16
ENROOT = """#!/bin/sh
[ "$1" != digest ] || {{ echo {digest}; exit; }}
echo "$@" >> {folder}/calls
[ -e {folder}/fails ] && {{ cat {folder}/fails; exit 1; }}
[ -e {folder}/nothing ] && exit 0
for layer in "$ENROOT_CACHE_PATH"/????????????????????????????????????????????????????????????????; do
    [ ! -e "$layer" ] || zstd -dq -c "$layer" > /dev/null || {{ echo '[INFO] Extracting image layers...'; exit 1; }}
done
[ -z "$(ls -A "$ENROOT_TEMP_PATH")" ] && touch "$ENROOT_TEMP_PATH/layer" && echo "$ENROOT_TEMP_PATH" > {folder}/unpacked
cp {folder}/image "$3"
"""
UNSQUASHFS = """#!/bin/sh
case $1 in
  -l) echo /bin/bash;;
  -cat) cat {folder}/head;;
  -quiet) [ ! -e {folder}/unreadable ] || {{ echo "zlib failed" >&2; exit 1; }};;
esac
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stand-ins at the front of PATH, which tells them what to do."""
    folder = tmp_path / "world"
    (folder / "bin").mkdir(parents=True)
    for name, text in (("enroot", ENROOT), ("unsquashfs", UNSQUASHFS)):
        program = folder / "bin" / name
        program.write_text(text.format(folder=folder, digest=DIGEST))
        program.chmod(0o755)
    (folder / "image").write_bytes(WHOLE)
    (folder / "head").write_bytes(b"\x7fELF" + bytes(14) + (62).to_bytes(2, "little"))
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return folder


@pytest.fixture
def image(tmp_path: Path, world: Path) -> Image:
    install = tmp_path / "install"
    return Image(
        source=SOURCE,
        path=install / "images" / "nemo.sqsh",
        architecture="x86_64",
        receipts=install / ".llmb" / "receipts",
        space_check=False,
    )


def ensure(image: Image, *, anew: bool = False) -> bool:
    with Reporter(None, verbose=False) as reporter:
        return image.ensure(reporter, anew=anew)


def calls(world: Path) -> list[str]:
    file = world / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_an_image_is_imported_once_and_has_a_receipt(image: Image, world: Path, texts: Texts) -> None:
    assert not image.is_complete()
    texts(image.verify())
    assert ensure(image)
    assert image.path.read_bytes() == WHOLE
    assert image.is_complete()
    assert image.verify() is None
    receipt = json.loads(image.receipt_path().read_text())
    assert receipt.pop("date").endswith("+00:00")
    status = image.path.stat()
    assert receipt == {
        **{"schema": 1, "source": SOURCE, "architecture": "x86_64", "size": 200, "mtime_ns": status.st_mtime_ns},
        **{"sha256": sha256_of(image.path), "adopted": False, "digest": DIGEST},
    }
    assert image.receipt_path() == image.path.with_name("nemo.sqsh.receipt.json")
    assert sorted(path.name for path in image.path.parent.iterdir()) == ["nemo.sqsh", "nemo.sqsh.receipt.json"]
    assert not ensure(image)
    (line,) = calls(world)
    assert line.startswith(f"import --output {image.install}/.llmb/tmp/nemo.sqsh.")
    assert line.endswith(f" --arch x86_64 docker://{SOURCE}")
    unpacked = Path((world / "unpacked").read_text().strip())
    assert unpacked.parent == world.parent
    assert not unpacked.exists(), "a folder of the import's own, gone with its end"
    assert [str(path.relative_to(image.install)) for path in image.receipts.parent.rglob("*")] == [".llmb/tmp"]


def test_without_room_for_layers_the_variable_is_named(image: Image, world: Path, texts: Texts) -> None:
    with texts.raises(EnvironmentLacks) as caught:
        ensure(replace(image, env=dict(os.environ) | {"ENROOT_TEMP_PATH": "/nowhere"}))
    assert "ENROOT_TEMP_PATH" in caught.value.remedy


def test_what_an_import_would_run(image: Image) -> None:
    plain = f"enroot import --output {image.path} --arch x86_64 docker://{SOURCE}"
    assert image.show().replace("'", "") == plain
    assert replace(image, prefix=("srun", "-p", "cpu")).show().replace("'", "") == f"srun -p cpu {plain}"
    assert (image.id, image.is_private) == ("image nemo.sqsh", True)
    assert not replace(image, path=Path("/shared/nemo.sqsh")).is_private


@pytest.mark.parametrize(
    "change",
    [
        lambda image: os.utime(image.path, ns=(1, 1)),
        lambda image: image.path.write_bytes(WHOLE + b"y"),
        lambda image: image.path.write_bytes(b"x" * 200),
        lambda image: image.receipt_path().unlink(),
    ],
)
def test_a_file_that_its_receipt_does_not_describe_is_not_complete(image: Image, change: object, texts: Texts) -> None:
    ensure(image)
    change(image)  # type: ignore[operator]
    assert not image.is_complete()
    texts(str(image.verify()))


def test_another_source_or_architecture_is_another_image(image: Image) -> None:
    ensure(image)
    assert not replace(image, source="nvcr.io#nvidia/nemo:26.04").is_complete()
    assert not replace(image, architecture="aarch64").is_complete()


def test_a_file_without_a_receipt_is_adopted_where_it_is_whole(image: Image, world: Path) -> None:
    image.path.parent.mkdir(parents=True)
    image.path.write_bytes(WHOLE)
    assert ensure(image)
    assert calls(world) == []
    assert json.loads(image.receipt_path().read_text())["adopted"] is True
    assert image.is_complete()


@pytest.mark.parametrize("damage", ["unreadable", "cut", "other machine"])
def test_one_that_is_not_whole_is_imported_again(image: Image, world: Path, damage: str, texts: Texts) -> None:
    image.path.parent.mkdir(parents=True)
    image.path.write_bytes(WHOLE[:150] if damage == "cut" else WHOLE)
    if damage == "unreadable":
        (world / "unreadable").touch()
    if damage == "other machine":
        (world / "head").write_bytes(b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little"))
        with texts.raises(EnvironmentLacks):
            ensure(image)
        return
    assert ensure(image)
    assert len(calls(world)) == 1
    assert image.is_complete()


def test_what_is_no_file_is_never_opened(image: Image, world: Path, texts: Texts) -> None:
    image.path.parent.mkdir(parents=True)
    os.mkfifo(image.path)
    assert not image.is_complete()
    assert ensure(image), "a FIFO is replaced"
    assert image.is_complete()
    image.discard()
    image.path.mkdir()
    with texts.raises(EnvironmentLacks):
        ensure(image)
    assert len(calls(world)) == 1


def test_a_copy_with_another_time_is_still_what_its_receipt_says(image: Image, world: Path) -> None:
    ensure(image)
    os.utime(image.path, ns=(1, 1))
    assert ensure(image)
    assert len(calls(world)) == 1, "it was compared and not imported"
    assert image.is_complete()
    receipt = json.loads(image.receipt_path().read_text())
    assert (receipt["mtime_ns"], receipt["adopted"]) == (1, False)


def test_content_that_the_receipt_contradicts_is_imported_again(image: Image, world: Path) -> None:
    ensure(image)
    image.path.write_bytes(WHOLE[:-1] + b"z")
    os.utime(image.path, ns=(1, 1))
    assert ensure(image)
    assert len(calls(world)) == 2
    assert image.path.read_bytes() == WHOLE
    assert ensure(replace(image, source="nvcr.io#nvidia/nemo:26.04"))
    assert len(calls(world)) == 3, "its receipt is for another source"


@pytest.mark.parametrize("shared", [False, True])
def test_a_failed_import_leaves_nothing(image: Image, world: Path, shared: bool, texts: Texts) -> None:
    """And a folder that several share is rid of what was left before: under its own lock nobody else is at work."""
    if shared:
        image = replace(image, path=world / "shared" / "nemo.sqsh")
    image.path.parent.mkdir(parents=True)
    left = unfinished(image.root, "other.sqsh")
    left.touch()
    (world / "fails").write_text("[ERROR] URL https://x returned error code: 404 Not Found\n")
    with texts.raises(EnvironmentLacks):
        ensure(image)
    assert [path.name for path in image.path.parent.iterdir()] == ([".llmb"] if shared else [])
    assert (image.root == image.path.parent) == shared
    assert list(left.parent.iterdir()) == ([] if shared else [left]), "another import of this command"


@needs_zstd
def test_a_damaged_layer_in_the_cache_is_named_and_downloaded_again(image, world, capsys, texts: Texts):
    cache = world / "cache"
    cache.mkdir()
    whole, cut, partial, foreign = (cache / name for name in ("a" * 64, "b" * 64, "b" * 64 + ".x1", "layout"))
    for layer in (whole, cut, partial):
        subprocess.run(["zstd", "-q", "-o", str(layer)], input=b"layer" * 1000, check=True)
    for layer in (cut, partial, foreign):
        layer.write_bytes(whole.read_bytes()[:-3])
    assert ensure(replace(image, env=dict(os.environ) | {"ENROOT_CACHE_PATH": str(cache)}))
    texts(capsys.readouterr().err)
    assert sorted(cache.iterdir()) == [whole, partial, foreign]
    assert len(calls(world)) == 2


def test_parts_of_layers_that_nobody_downloads_any_more_are_removed(image: Image, world: Path) -> None:
    cache = world / "cache"
    cache.mkdir()
    names = ("a" * 64 + ".N5nCo1TFeH", "b" * 64 + ".b7TbUEHrFs", "x.0123456789")
    dead, alive, foreign = (cache / name for name in names)
    for path in (dead, alive, foreign):
        path.touch()
    for path in (dead, foreign):
        os.utime(path, (0, 0))
    assert ensure(replace(image, env=dict(os.environ) | {"ENROOT_CACHE_PATH": str(cache)}))
    assert sorted(cache.iterdir()) == [alive, foreign]


def test_layers_of_somebody_else_and_failures_that_stay_are_told(image: Image, world: Path, texts: Texts) -> None:
    cache = world / "cache"
    cache.mkdir()
    (cache / ("c" * 64)).symlink_to(world / "image")
    with texts.raises(EnvironmentLacks):
        ensure(replace(image, env=dict(os.environ) | {"ENROOT_CACHE_PATH": str(cache)}))
    assert len(calls(world)) == 1
    assert list(cache.iterdir()) == [cache / ("c" * 64)]


def test_an_import_that_leaves_no_file_is_a_failure(image: Image, world: Path, texts: Texts) -> None:
    (world / "nothing").touch()
    with texts.raises(EnvironmentLacks):
        ensure(image)


def test_without_enroot_it_says_what_else_can_be_done(image: Image, world: Path, texts: Texts) -> None:
    (world / "bin" / "enroot").unlink()
    with texts.raises(EnvironmentLacks) as caught:
        ensure(image)
    assert "--install-method srun" in caught.value.remedy


def test_a_damaged_image_stays_until_there_is_another(image: Image, world: Path) -> None:
    ensure(image)
    before = image.path.stat()
    image.path.write_bytes(image.path.read_bytes()[:-1] + b"y")
    os.utime(image.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    damaged = image.path.read_bytes()
    assert image.is_complete()
    assert (image.verify() or "").startswith(f"{image.path} ")
    (world / "fails").touch()
    with pytest.raises(EnvironmentLacks):
        ensure(image, anew=True)
    assert (image.path.read_bytes(), image.is_complete()) == (damaged, True)
    (world / "fails").unlink()
    assert ensure(image, anew=True)
    assert image.verify() is None


def test_room_is_asked_for_before_the_import(
    image: Image, world: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    room = {"images": 24_000_000_000}
    monkeypatch.setattr("llmb_install.parts.image.free_bytes", lambda folder: room.get(folder.name, 10**12))
    scratch = world.parent / "scratch"
    scratch.mkdir()
    careful = replace(image, space_check=True, env=dict(os.environ) | {"TMPDIR": str(scratch)})
    with texts.raises(EnvironmentLacks):
        ensure(careful)
    room.update(images=10**12, scratch=59_000_000_000)
    with texts.raises(EnvironmentLacks):
        ensure(careful)
    room["scratch"] = 60_000_000_000
    assert calls(world) == []
    assert ensure(careful)


def test_room_on_the_compute_node_is_what_df_says_there(image: Image, world: Path, texts: Texts) -> None:
    program = world / "bin" / "on-node"
    program.write_text('#!/bin/sh\n[ "$1" = df ] || exec "$@"\necho Filesystem\necho "/dev/x 100 50 1000 5% /x"\n')
    program.chmod(0o755)
    with texts.raises(EnvironmentLacks):
        ensure(replace(image, space_check=True, prefix=("on-node",)))
    program.write_text('#!/bin/sh\n[ "$1" = df ] || exec "$@"\nexit 1\n')
    assert ensure(replace(image, space_check=True, prefix=("on-node",))), "where df does not say, nothing is wrong"


def test_a_receipt_goes_with_its_image(image: Image) -> None:
    ensure(image)
    image.discard()
    assert list(image.path.parent.iterdir()) == []
    image.discard()
