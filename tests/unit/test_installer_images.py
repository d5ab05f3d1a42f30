"""Images and other belongings of an installation: what Enroot's failures mean, what a whole image is, what is ours."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.base.errors import EnvironmentLacks, RequestError
from llmb_common.base.words import Secret
from llmb_install.answers.checks import foreign_entries, require_free_folder
from llmb_install.parts.belongings import belongings, remove_if_empty
from llmb_install.parts.engine import hub_environment
from llmb_install.parts.enroot import Watch, bad_image_error, import_error
from llmb_install.parts.hugging_face import ModelFiles, check_token
from llmb_install.parts.squashfs import BadImage, Inspector, check_superblock
from llmb_install.working.command import Finished
from llmb_install.working.reporter import Step
from support.texts import Texts

SOURCE = "nvcr.io#nvidia/nemo:26.02.01"
ENV = {"HOME": "/home/me", "TMPDIR": "/scratch"}

# Enroot's failures


@pytest.fixture
def watch() -> Watch:
    return Watch(Step("import"))


def failure(watch: Watch, status: int = 1, *lines: str, source: str = SOURCE, remote: bool = False) -> EnvironmentLacks:
    for line in lines:
        watch(line)
    return import_error(source, Finished(status, lines), watch, ENV, remote=remote)


REFUSED = "[ERROR] URL https://x returned error code: {}"
DOWNLOADING = "[INFO] Downloading 60 missing layers..."
CURL = "curl: ({}) The requested URL returned error: {}"


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (1, ["tar: No space left on device"]),
        (1, ["Disk quota exceeded"]),
        (1, [REFUSED.format("404 Not Found")]),
        (1, [REFUSED.format("401 Unauthorized")]),
        (1, [REFUSED.format("403 Forbidden")]),
        (1, [REFUSED.format("429 ")]),
        (1, [REFUSED.format("503 Service Unavailable")]),
        (1, [DOWNLOADING, CURL.format(22, "404")]),
        (7, [DOWNLOADING, *7 * [CURL.format(22, "401")]]),
        (1, [DOWNLOADING, CURL.format(22, "500")]),
        (1, [DOWNLOADING, CURL.format(18, "x"), "gzip: stdin: unexpected end of file"]),
        (1, [DOWNLOADING, "gzip: stdin: unexpected end of file"]),
        (1, [DOWNLOADING, "Checksum mismatch: 05f9"]),
        (1, ["[ERROR] Could not process JSON input"]),
        (5, [CURL.format(5, "x")]),
        (6, [CURL.format(6, "x")]),
        (7, [CURL.format(7, "x")]),
        (28, [CURL.format(28, "x")]),
        (35, [CURL.format(35, "x")]),
        (60, [CURL.format(60, "x")]),
        (-9, []),
        (137, []),
        (143, []),
        (1, ["[INFO] Authenticating with user: <anonymous>"]),
        (1, ["[INFO] Using credentials from file: /x"]),
        (1, ["mktemp: failed to create directory"]),
        (1, [DOWNLOADING, "parallel: not found"]),
        (6, ["[INFO] Extracting image layers...", "tar: x"]),
        (1, ["[INFO] Converting whiteouts...", "0f : Read error"]),
        (2, ["[ERROR] Something else"]),
    ],
)
def test_why_an_import_failed(watch: Watch, status: int, lines: list[str], texts: Texts) -> None:
    error = failure(watch, status, *lines)
    texts(f"{error.message}\n  -> {error.remedy}")
    assert error.message.endswith(f"\n    {lines[-1] if lines else '(no output)'}")


def test_only_the_last_five_lines_are_shown(watch: Watch) -> None:
    shown = failure(watch, 2, *(f"[ERROR] {n}" for n in range(7))).message.splitlines()[1:]
    assert shown == [f"    [ERROR] {n}" for n in range(2, 7)]


def test_on_a_compute_node_it_says_so(watch: Watch, texts: Texts) -> None:
    texts(failure(watch, 1, "No space left on device", remote=True).message)
    texts(failure(watch, 28, "curl: (28) Timeout", remote=True).message)
    refused = failure(watch, 1, "srun: error: Unable to allocate resources: Invalid account", remote=True)
    texts(refused.message)
    assert "--cpu-partition" in refused.remedy


def test_another_registry_has_a_line_of_its_own(watch: Watch, texts: Texts) -> None:
    error = failure(watch, 1, REFUSED.format(401), source="docker.io#library/x:1")
    texts(error.remedy)
    error = failure(watch, 1, REFUSED.format(401), source="lab.example:5000#x/y:1")
    texts(error.remedy)
    error = failure(watch, 1, REFUSED.format(401), source="ubuntu")
    texts(error.remedy)


def test_an_import_for_another_machine_is_named(watch: Watch, texts: Texts) -> None:
    plain = bad_image_error(SOURCE, "it is cut short", watch)
    texts(f"{plain.message}\n  -> {plain.remedy}")
    watch("\x1b[33m[WARN] requested architecture arm64 not found, using amd64\x1b[0m")
    other = bad_image_error(SOURCE, "its programs are for x86_64", watch)
    first, enroots = other.message.splitlines()
    assert (first.startswith(SOURCE), first.endswith(": its programs are for x86_64")) == (True, True)
    assert enroots == "    requested architecture arm64 not found, using amd64"
    texts(other.remedy)


# Whole images


def superblock(magic: bytes = b"hsqs", inodes: int = 5, block: int = 131072, version: int = 4, used: int = 96) -> bytes:
    return struct.pack("<4sIIIIHHHHHHQQ", magic, inodes, 0, block, 0, 1, 17, 0, 1, version, 0, 0, used)


def image(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "x.sqsh"
    path.write_bytes(content)
    return path


def test_a_whole_image_says_how_large_it_is(tmp_path: Path) -> None:
    assert check_superblock(image(tmp_path, superblock(used=96) + bytes(96))) == 96
    assert check_superblock(image(tmp_path, superblock(block=4096, inodes=1, used=48))) == 48
    assert check_superblock(image(tmp_path, superblock(block=1 << 20, used=48))) == 48


@pytest.mark.parametrize(
    "content",
    [
        b"hsqs",
        bytes(200),
        superblock(inodes=0),
        superblock(version=3),
        superblock(block=2048),
        superblock(block=1 << 21),
        superblock(block=131073),
        superblock(used=97) + bytes(48),
    ],
    ids="short zeros inodes version block-small block-large block-odd cut".split(),
)
def test_a_file_that_is_no_whole_image(tmp_path: Path, content: bytes, texts: Texts) -> None:
    with texts.raises(BadImage):
        check_superblock(image(tmp_path, content))


@pytest.fixture
def unsquashfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that lists ``names``, and gives every program the head in ``head``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "unsquashfs"
    program.write_text(
        f"""#!/bin/sh
cd {tmp_path}
case $1 in
  -l) [ -e names ] && exec cat names; echo one >&2; echo "cannot list" >&2; exit 1;;
  -cat) case $3 in */script) echo '#!/bin/sh';; *) cat head;; esac;;
  -quiet) [ -e broken ] && {{ echo "zlib failed" >&2; exit 1; }}; exit 0;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


def elf(machine: int) -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(40)


def test_an_image_is_for_the_machines_that_its_programs_are_for(tmp_path: Path, unsquashfs: Path, texts: Texts) -> None:
    path = image(tmp_path, superblock(used=96) + bytes(48))
    (tmp_path / "names").write_text("/usr/bin/script\n/etc/passwd\n/usr/bin/zz\n/bin/bash\n")
    (tmp_path / "head").write_bytes(elf(62))
    assert Inspector().check(path, "x86_64") == 96
    with texts.raises(BadImage):
        Inspector().check(path, "aarch64")
    (tmp_path / "head").write_bytes(elf(183))
    assert Inspector().check(path, "aarch64") == 96
    (tmp_path / "head").write_bytes(elf(21))
    with texts.raises(BadImage):
        Inspector().check(path, "aarch64")


def test_an_image_without_programs_is_none(tmp_path: Path, unsquashfs: Path, texts: Texts) -> None:
    path = image(tmp_path, superblock(used=48))
    for names in ("/usr/bin/script\n", "/etc/passwd\n/opt/bin/tool\n"):
        (tmp_path / "names").write_text(names)
        (tmp_path / "head").write_bytes(elf(62))
        with texts.raises(BadImage):
            Inspector().check(path, "x86_64")


def test_an_image_that_cannot_be_listed_or_read(tmp_path: Path, unsquashfs: Path, texts: Texts) -> None:
    path = image(tmp_path, superblock(used=48))
    with texts.raises(BadImage):
        Inspector().check(path, "x86_64")
    (tmp_path / "names").write_text("")
    with texts.raises(BadImage):
        Inspector().check(path, "x86_64")
    Inspector().read_everything(path)
    (tmp_path / "broken").touch()
    with texts.raises(BadImage):
        Inspector().read_everything(path)


def test_without_unsquashfs_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with texts.raises(EnvironmentLacks) as caught:
        Inspector().read_everything(tmp_path / "x")
    assert "squashfs-tools" in caught.value.remedy


# What is ours


def receipt(path: Path, **values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 1, **values}))
    return path


def test_what_the_installer_made_and_nothing_else_is_ours(tmp_path: Path) -> None:
    venvs, images = tmp_path / "venvs", tmp_path / "images"
    for name in (
        "llmb-01234567",
        "engine-cpu-01234567-abcdef",
        "mine",
        "llmb-xyz",
        "engine-cpu-01234567-abc",
        "hub-01234567-abcdef",
        ".uv-engine-cpu",
        ".uv-x",
    ):
        (venvs / name).mkdir(parents=True)
    (venvs / "llmb").symlink_to("llmb-01234567")
    (venvs / "engine-cpu").symlink_to("/elsewhere")
    (venvs / "other").symlink_to("llmb-01234567")
    (venvs / "llmb-89abcdef").touch()
    images.mkdir()
    ours = [images / "a.sqsh", receipt(images / "a.sqsh.receipt.json", sha256="0")]
    ours[0].touch()
    ours.append(receipt(images / "gone.sqsh.receipt.json", sha256="0"))
    for name in ("theirs.sqsh", ".b.sqsh.part"):
        (images / name).touch()
    receipt(images / "theirs.sqsh.receipt.json", size=3)
    receipt(tmp_path / ".llmb" / "receipts" / "hugging_face+a+b.json", repository="a/b")
    receipt(tmp_path / ".llmb" / "receipts" / "hugging_face+c.json", repository="c/d")
    receipt(tmp_path / ".llmb" / "receipts" / "hugging_face+e.json")
    model = tmp_path / "hugging_face" / "models--a--b"
    model.mkdir(parents=True)
    (tmp_path / "hugging_face" / "models--None").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llmb-run").write_text("#!/bin/sh\necho mine\n")
    expected = {
        *ours,
        model,
        venvs / "llmb",
        venvs / "llmb-01234567",
        venvs / "engine-cpu-01234567-abcdef",
        venvs / "hub-01234567-abcdef",
        venvs / ".uv-engine-cpu",
    }
    found = belongings(tmp_path)
    assert set(found) == expected
    assert len(found) == len(expected)
    (tmp_path / "cluster_config.yaml").touch()
    assert set(belongings(tmp_path)) == {*expected, tmp_path / "cluster_config.yaml"}


def test_an_empty_folder_has_no_belongings(tmp_path: Path) -> None:
    assert belongings(tmp_path) == []


def test_only_empty_folders_of_ours_are_removed(tmp_path: Path) -> None:
    for name in ("bin", "venvs", "images", "hugging_face", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "images" / "x").touch()
    (tmp_path / "bin").rmdir()
    (tmp_path / "bin").symlink_to("other")
    remove_if_empty(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "images", "other"]


def test_a_folder_is_free_where_it_holds_only_what_is_expected(tmp_path: Path, texts: Texts) -> None:
    for name in ("workloads", "images", "cluster_config.yaml", "lost+found", ".snapshot"):
        (tmp_path / name).mkdir()
    assert foreign_entries(tmp_path) == []
    require_free_folder(tmp_path, agreed=False)
    (tmp_path / "b").touch()
    (tmp_path / "a").touch()
    assert foreign_entries(tmp_path) == ["a", "b"]
    require_free_folder(tmp_path, agreed=True)
    with texts.raises(RequestError):
        require_free_folder(tmp_path, agreed=False)
    (tmp_path / ".llmb").mkdir()
    assert foreign_entries(tmp_path) == [], "an installation was begun here"
    assert foreign_entries(tmp_path / "nowhere") == []
    assert foreign_entries(tmp_path / "a") == []


# Hugging Face


@pytest.mark.parametrize("text", ["hf_a b", "hf_é", "hf_a\n"])
def test_a_token_with_a_space_is_none(text: str, texts: Texts) -> None:
    texts(check_token(Secret(text)))


@pytest.mark.parametrize(("status", "problem"), [(200, ""), (500, ""), (401, "Hugging Face rejects the token")])
def test_a_token_is_shown_to_hugging_face(monkeypatch: pytest.MonkeyPatch, status: int, problem: str) -> None:
    asked: dict[str, Any] = {}

    def get(url: str, headers: dict[str, str], timeout: float) -> Any:
        asked.update(url=url, **headers)
        return SimpleNamespace(status_code=status)

    monkeypatch.setattr("requests.get", get)
    assert check_token(Secret("hf_x")).startswith(problem)
    assert bool(check_token(Secret("hf_x"))) is bool(problem)
    assert asked == {"url": "https://huggingface.co/api/whoami-v2", "Authorization": "Bearer hf_x"}


def test_an_unreachable_hugging_face_says_nothing_against_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    def get(*arguments: Any, **options: Any) -> Any:
        raise requests.ConnectionError("no route")

    monkeypatch.setattr("requests.get", get)
    assert check_token(Secret("hf_x")) == ""


def test_model_files_are_complete_with_every_file_of_the_receipt(tmp_path: Path, texts: Texts) -> None:
    hub = hub_environment(tmp_path, tmp_path)
    files = ModelFiles("meta/llama@0123", tmp_path, hub)
    assert (files.id, files.repository, files.revision) == ("hugging-face meta/llama", "meta/llama", "0123")
    texts(files.show())
    assert not files.is_complete()
    path = tmp_path / ".llmb" / "receipts" / "hugging_face+meta+llama.json"
    file = tmp_path / "hugging_face" / "models--meta--llama" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    good: dict[str, Any] = {"repository": "meta/llama", "revision": "0123"}
    receipt(path, **good, files={"models--meta--llama/config.json": 2})
    assert files.is_complete()
    assert not ModelFiles("meta/llama@4567", tmp_path, hub).is_complete(), "another commit"
    for wrong in ({}, {"models--meta--llama/config.json": 3}, {"models--meta--llama/other": 2}):
        receipt(path, **good, files=wrong)
        assert not files.is_complete()
    texts(files.verify())
