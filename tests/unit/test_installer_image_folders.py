"""Images in folders that cannot be used, in shared ones, and where nobody says how much room there is."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.programs import Answer
from llmb_install.parts import credentials, enroot, squashfs
from llmb_install.parts import image as images
from llmb_install.parts.hugging_face import PATTERNS
from llmb_install.parts.image import Image
from llmb_install.parts.squashfs import Inspector
from llmb_install.working import transaction
from llmb_install.working.command import Finished
from llmb_install.working.reporter import Reporter, Step
from llmb_install.working.scratch import unfinished
from support.other_user import OTHER, as_other_user, shared_folder
from support.texts import Texts


@pytest.fixture(autouse=True)
def no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enroot, "run_program", lambda *_, **__: Answer(1))


@pytest.fixture
def shared(tmp_path: Path) -> Image:
    """An image in a folder beside the installation."""
    return Image("nvcr.io#a/b:1", tmp_path / "shared" / "a.sqsh", "x86_64", tmp_path / "i" / ".llmb" / "receipts")


def ensure(image: Image) -> bool:
    return image.ensure(Reporter(None, stream=io.StringIO()))


def test_a_folder_that_cannot_be_made_is_named(shared: Image, texts: Texts) -> None:
    shared.path.parent.touch()
    with texts.raises(EnvironmentLacks):
        ensure(shared)


@pytest.mark.parametrize("state", ["missing", "unusable"])
def test_a_folder_of_somebody_else_needs_its_owner(
    shared: Image, monkeypatch: pytest.MonkeyPatch, state: str, texts: Texts
) -> None:
    shared.path.parent.mkdir()
    if state == "unusable":
        shared.path.write_text("x")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with texts.raises(EnvironmentLacks):
        ensure(shared)


def test_a_shared_folder_is_locked_and_a_private_one_is_not(shared: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    shared.path.parent.mkdir()
    earlier = [shared.path.with_name(f".{name}.sqsh.17.0123abcd.part") for name in ("a", "b")]
    for part in earlier:
        part.touch()
    monkeypatch.setattr(images, "_require_space", lambda image: None)
    monkeypatch.setattr(
        images, "_import_image", lambda image, *_: seen.append((image.path.parent / ".llmb" / "lock.owner").exists())
    )
    assert ensure(shared)
    assert [part.exists() for part in earlier] == [False, True], "another installation may still write the other"
    private = Image(shared.source, shared.receipts.parent.parent / "images" / "a.sqsh", "x86_64", shared.receipts)
    assert ensure(private)
    assert seen == [True, False]


def test_what_another_installation_imported_meanwhile_is_not_imported_again(shared, monkeypatch):
    looks = [True, False]
    monkeypatch.setattr(Image, "is_complete", lambda self: looks.pop())
    monkeypatch.setattr(images, "_import_image", lambda *_: pytest.fail("it is there"))
    assert ensure(shared)
    assert looks == []


@pytest.mark.parametrize(
    ("answer", "free"),
    [
        (Answer(0, b"Filesystem\n/dev/x 100 50 1000 5% /x\n"), 1_024_000),
        (Answer(0, b"/dev/x 100 50 7\n"), 7168),
        (Answer(0, b"Filesystem\n/dev/x 100 50 - 5% /x\n"), None),
        (Answer(0, b"/dev/x 100 50\n"), None),
        (Answer(0, b" \n"), None),
        (Answer(1, b"/dev/x 100 50 1000 5% /x\n"), None),
    ],
)
def test_room_on_another_node_is_what_df_says(monkeypatch, answer, free):
    asked: list[list[str]] = []
    monkeypatch.setattr(images, "run_program", lambda argv, seconds: asked.append(argv) or answer)
    assert images._free_on_node(Path("/f"), ("srun", "-N1")) == free
    assert asked == [["srun", "-N1", "df", "-Pk", "/f"]]


def test_a_receipt_that_lies_elsewhere_is_made_there(shared: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.path.parent.mkdir()
    shared.path.write_bytes(b"abc")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    images._write_receipt(shared, shared.path, adopted=True)
    own = shared.receipts / "a.sqsh.receipt.json"
    assert shared.receipt_path() == own
    assert json.loads(own.read_text())["size"] == 3


def test_a_copy_in_a_read_only_folder_is_believed_after_one_reading(shared, monkeypatch, texts: Texts):
    """``cp`` gives it another time than its receipt says, which cannot be corrected there."""
    shared.path.parent.mkdir()
    shared.path.write_bytes(b"abc")
    images._write_receipt(shared, shared.path, adopted=False)
    os.utime(shared.path, ns=(1, 1))
    (beside,) = shared.path.parent.glob("*.json")
    before = beside.read_bytes()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(images, "check_superblock", lambda path: 3)
    monkeypatch.setattr(Inspector, "check", lambda *_: 3)
    assert not shared.is_complete()
    assert ensure(shared)
    assert shared.is_complete()
    assert shared.verify() is None
    assert beside.read_bytes() == before
    assert json.loads((shared.receipts / beside.name).read_text())["mtime_ns"] == 1
    shared.path.write_bytes(b"xyz")
    with texts.raises(EnvironmentLacks):
        ensure(shared)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_two_users_take_turns_in_a_folder_that_both_may_write() -> None:
    def lock() -> None:
        transaction.open_as_folder(folder)
        with transaction.install_lock(folder, Reporter(None)):
            pass

    with shared_folder() as folder:
        for user in (OTHER, OTHER + 1, OTHER):
            as_other_user(lock, user)
        begun = folder / ".llmb" / "tmp"
        for user in (OTHER, OTHER + 1):
            as_other_user(lambda: unfinished(folder, "a.sqsh").touch(), user)
        assert len(list(begun.iterdir())) == 2
        begun.chmod(0o755)

        def refused_too() -> None:
            with pytest.raises(EnvironmentLacks, match=r"/tmp\b.*\b64321\b"):
                lock()

        as_other_user(refused_too, OTHER + 1)
        as_other_user(lock)
        (folder / ".llmb" / "lock").chmod(0o600)

        def refused() -> None:
            with pytest.raises(EnvironmentLacks, match=r"/lock\b.*\b64321\b") as caught:
                lock()
            assert f" chmod g+w {folder}/.llmb " in caught.value.remedy

        as_other_user(refused, OTHER + 1)
        as_other_user(lock)
        as_other_user(lock, OTHER + 1)


def test_each_part_of_an_import_is_shown(shared: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def enroot(argv: list[str], *_: object, **__: object) -> Finished:
        Path(argv[3]).write_bytes(bytes(2000))
        return Finished(0, ())

    monkeypatch.setattr("llmb_install.working.command.run", enroot)
    monkeypatch.setattr(Step, "update", lambda self, text: shown.append(text))
    monkeypatch.setattr(Inspector, "check", lambda *_: 2000)
    monkeypatch.setattr(Inspector, "read_everything", lambda *_: None)
    monkeypatch.setattr(images, "check_superblock", lambda path: 2000)
    quick = replace(shared, space_check=False)
    assert ensure(quick)
    assert shown == ["asking for its digest", "checking it", "reading it for its receipt", "2 kB"]
    shown.clear()
    os.utime(quick.path, ns=(1, 1))
    assert ensure(quick)
    assert shown == ["checking the file that is there", "comparing it with its receipt", "already there, 2 kB"]
    shown.clear()
    quick.receipt_path().unlink()
    assert ensure(quick)
    assert shown == [
        *("checking the file that is there", "reading all of it", "reading it for its receipt"),
        "already there, 2 kB",
    ]


def test_tokenizers_of_every_kind_are_fetched_and_weights_never() -> None:
    def fetched(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in PATTERNS)

    small = ["config.json", "generation_config.json", "special_tokens_map.json", "o200k.tiktoken"]
    small += ["tokenizer.json", "tokenizer.model", "tokenizer_config.json"]
    assert all(map(fetched, small))
    assert not any(map(fetched, ["model.safetensors", "pytorch_model.bin", "consolidated.00.pth", "README.md"]))


# What Enroot would use


def test_where_enroot_works_without_any_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(credentials, "ENROOT_CONFIG", tmp_path / "none")
    monkeypatch.setenv("HOME", "/home/ann")
    assert credentials.temporary_folder({}) == Path("/tmp")
    assert credentials.temporary_folder({"TMPDIR": "/scratch"}) == Path("/scratch")
    assert credentials.cache_folder({"HOME": "/h"}) == Path("/h/.cache/enroot")
    assert credentials.cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/enroot")
    assert credentials.cache_folder({}) == Path("/.cache/enroot")
    assert credentials.enroot_credentials_path({"HOME": "/h"}) == Path("/h/.config/enroot/.credentials")
    assert credentials.enroot_credentials_path({}) == Path("/home/ann/.config/enroot/.credentials")
    assert credentials.enroot_credentials_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/enroot/.credentials")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("/a/$USER/b", "/a/ann/b"),
        ("/a/${USER}", "/a/ann"),
        ("${SCRATCH-/s}/x", "/s/x"),
        ("${USER:-nobody}", "ann"),
        ("$NOBODY/x", "/x"),
        ("'/quoted'", "/quoted"),
        ("`whoami`", ""),
        ("$(whoami)", ""),
    ],
)
def test_values_of_enroots_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, text: str) -> None:
    monkeypatch.setattr(credentials, "ENROOT_CONFIG", tmp_path / "enroot.conf")
    (tmp_path / "enroot.conf").write_text(f"ENROOT_DATA_PATHS /no\nENROOT_DATA_PATH {value}\n")
    assert credentials.enroot_setting("ENROOT_DATA_PATH", {"USER": "ann"}) == text


# unsquashfs


def test_programs_are_tried_the_usual_ones_first_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    tried: list[str] = []

    def ask(argv: list[str], seconds: float, *, most: int) -> Answer:
        tried.append(argv[-1])
        assert argv[:4] == ["srun", "unsquashfs", "-cat", "/x"]
        assert most == 20
        return Answer(0, b"#!/bin/sh")

    monkeypatch.setattr(squashfs, "run_program", ask)
    names = [*(f"/usr/bin/a{number:02}" for number in range(30)), "/opt/bin/ls", "/bin/sh", "/usr/local/bin/cat"]
    with texts.raises(squashfs.BadImage):
        Inspector(("srun",))._architecture(Path("/x"), names)
    assert tried[:3] == ["bin/sh", "usr/local/bin/cat", "usr/bin/a00"]
    assert len(tried) == 20


@pytest.mark.parametrize(
    "problem",
    ["no-program", "no-answer"],
)
def test_an_unsquashfs_that_does_not_answer_says_nothing_of_the_image(monkeypatch, problem, texts: Texts):
    monkeypatch.setattr(squashfs, "run_program", lambda *_, **__: Answer(None, problem=problem, why="it is stuck"))
    with texts.raises(EnvironmentLacks):
        Inspector().read_everything(Path("/x"))


def test_all_of_an_image_is_read_without_writing_it(monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(squashfs, "run_program", lambda argv, *_, **__: asked.append(argv) or Answer(0))
    Inspector().read_everything(Path("/x"))
    assert asked == [["unsquashfs", "-quiet", "-no-progress", "-pf", "/dev/null", "/x"]]
    monkeypatch.setattr(squashfs, "run_program", lambda *_, **__: Answer(1))
    with texts.raises(squashfs.BadImage):
        Inspector().read_everything(Path("/x"))


@pytest.mark.parametrize(("folder_mode", "mode"), [(0o2775, 0o644), (0o2770, 0o640), (0o700, 0o600)])
def test_an_image_is_open_to_whoever_shares_its_folder(shared, monkeypatch, folder_mode, mode):
    def enroot(argv: list[str], *_: object, **__: object) -> Finished:
        output = Path(argv[argv.index("--output") + 1])
        output.touch(mode=0o600)  # as umask 077 has it
        return Finished(0, ())

    monkeypatch.setattr(images.command, "run", enroot)
    monkeypatch.setattr(Inspector, "check", lambda *_: 0)
    shared.path.parent.mkdir()
    shared.path.parent.chmod(folder_mode)
    ensure(replace(shared, space_check=False, env={"ENROOT_TEMP_PATH": str(shared.path.parent.parent)}))
    assert shared.path.stat().st_mode & 0o777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_an_image_that_is_closed_to_us_is_not_replaced() -> None:
    with shared_folder() as top:
        closed = Image("nvcr.io#a/b:1", top / "images" / "a.sqsh", "x86_64", top / "i" / ".llmb" / "receipts")
        closed.path.parent.mkdir()
        closed.path.parent.chmod(0o777)
        closed.path.touch(mode=0o600)

        def other() -> None:
            with pytest.raises(EnvironmentLacks, match=r"a\.sqsh\b.*\broot\b.*\n.*chmod go\+r"):
                ensure(closed)
            with pytest.raises(EnvironmentLacks, match=r"a\.sqsh\b.*\broot\b"):
                closed.ensure(Reporter(None, stream=io.StringIO()), anew=True)

        as_other_user(other)
        assert closed.path.exists()
