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
from llmb_install.answers.checks import other_things, require_free_folder
from llmb_install.parts.belongings import belongings, remove_if_empty
from llmb_install.parts.engine import hub_environment
from llmb_install.parts.enroot import Watch, bad_result, explain
from llmb_install.parts.hugging_face import ModelFiles, check_token
from llmb_install.parts.squashfs import BadImage, Inspector, check_superblock
from llmb_install.working.command import Finished
from llmb_install.working.reporter import Step

SOURCE = "nvcr.io#nvidia/nemo:26.02.01"
ENV = {"HOME": "/home/me", "TMPDIR": "/scratch"}

# Enroot's failures


@pytest.fixture
def watch() -> Watch:
    return Watch(Step("import"))


def failure(watch: Watch, status: int = 1, *lines: str, source: str = SOURCE, remote: bool = False) -> EnvironmentLacks:
    for line in lines:
        watch(line)
    return explain(source, Finished(status, lines), watch, ENV, remote=remote)


REFUSED = "[ERROR] URL https://x returned error code: {}"
DOWNLOADING = "[INFO] Downloading 60 missing layers..."
CURL = "curl: ({}) The requested URL returned error: {}"


@pytest.mark.parametrize(
    ("status", "lines", "cause", "remedy"),
    [
        (1, ["tar: No space left on device"], "the disk is full", "in /scratch (ENROOT_TEMP_PATH)"),
        (1, ["Disk quota exceeded"], "the disk is full", "free space in the image folder"),
        (1, [REFUSED.format("404 Not Found")], "no such image or tag", "the image's name in recipe.yaml"),
        (1, [REFUSED.format("401 Unauthorized")], "refused access", "--ngc-api-key"),
        (1, [REFUSED.format("403 Forbidden")], "refused access", "/home/me/.config/enroot/.credentials"),
        (1, [REFUSED.format("429 ")], "limiting requests for now", "wait some minutes"),
        (1, [REFUSED.format("503 Service Unavailable")], "with an error of its own (503)", "wait some minutes"),
        (1, [DOWNLOADING, CURL.format(22, "404")], "lacks a layer of the image", "has to be pushed again"),
        (7, [DOWNLOADING, *7 * [CURL.format(22, "401")]], "refused access", "--ngc-api-key"),
        (1, [DOWNLOADING, CURL.format(22, "500")], "with an error of its own (500)", "not downloaded again"),
        (1, [DOWNLOADING, CURL.format(18, "x"), "gzip: stdin: unexpected end of file"], "broke off", "not downloaded"),
        (1, [DOWNLOADING, "gzip: stdin: unexpected end of file"], "sent a damaged layer\n", "a proxy damages it"),
        (1, [DOWNLOADING, "Checksum mismatch: 05f9"], "sent a damaged layer (sha256:05f9)", "run the same command"),
        (1, ["[ERROR] Could not process JSON input"], "what answered is not a registry", "a login first"),
        (5, [CURL.format(5, "x")], "the proxy's name could not be resolved", "check https_proxy"),
        (6, [CURL.format(6, "x")], "the registry's name could not be resolved", "DNS of the machine"),
        (7, [CURL.format(7, "x")], "the registry refused the connection", "the firewall"),
        (28, [CURL.format(28, "x")], "the registry did not answer in time", "https_proxy"),
        (35, [CURL.format(35, "x")], "the encrypted connection to the registry failed", "CA certificates"),
        (60, [CURL.format(60, "x")], "certificate is not trusted here", "clock"),
        (-9, [], "Enroot was killed, perhaps because memory ran out", "--install-method srun"),
        (137, [], "Enroot was killed", "more memory"),
        (143, [], "Enroot was killed", "more memory"),
        (1, ["[INFO] Authenticating with user: <anonymous>"], "did not accept the credentials", "NGC_API_KEY"),
        (1, ["[INFO] Using credentials from file: /x"], "(Enroot does not say so)", "NGC_API_KEY"),
        (1, ["mktemp: failed to create directory"], "enroot ended with status 1", "correct what its output says"),
        (1, [DOWNLOADING, "parallel: not found"], "enroot ended with status 1", "correct what its output says"),
        (6, ["[INFO] Extracting image layers...", "tar: x"], "layers could not be unpacked", "/.cache/enroot"),
        (1, ["[INFO] Converting whiteouts...", "0f : Read error"], "layers could not be unpacked", "/.cache/enroot"),
        (2, ["[ERROR] Something else"], "enroot ended with status 2", "run the same command again"),
    ],
)
def test_why_an_import_failed(watch: Watch, status: int, lines: list[str], cause: str, remedy: str) -> None:
    error = failure(watch, status, *lines)
    assert error.message.startswith(f"{SOURCE} was not imported: ")
    assert cause in error.message
    assert remedy in error.remedy
    assert error.message.endswith(f"\n    {lines[-1] if lines else '(no output)'}")


def test_only_the_last_five_lines_are_shown(watch: Watch) -> None:
    shown = failure(watch, 2, *(f"[ERROR] {n}" for n in range(7))).message.splitlines()[1:]
    assert shown == [f"    [ERROR] {n}" for n in range(2, 7)]


def test_on_a_compute_node_it_says_so(watch: Watch) -> None:
    assert "the disk is full on the compute node" in failure(watch, 1, "No space left on device", remote=True).message
    assert "in time on the compute node" in failure(watch, 28, "curl: (28) Timeout", remote=True).message
    refused = failure(watch, 1, "srun: error: Unable to allocate resources: Invalid account", remote=True)
    assert "Slurm allocated no node for the import" in refused.message
    assert "--cpu-partition" in refused.remedy


def test_another_registry_has_a_line_of_its_own(watch: Watch) -> None:
    error = failure(watch, 1, REFUSED.format(401), source="docker.io#library/x:1")
    assert error.remedy == "correct the line of docker.io in /home/me/.config/enroot/.credentials"
    error = failure(watch, 1, REFUSED.format(401), source="lab.example:5000#x/y:1")
    assert error.remedy.startswith("correct the line of lab.example (without the port) in ")
    error = failure(watch, 1, REFUSED.format(401), source="ubuntu")
    assert error.remedy.startswith("correct the line of the registry in ")


def test_an_import_for_another_machine_is_named(watch: Watch) -> None:
    plain = bad_result(SOURCE, "it is cut short", watch)
    assert plain.message == f"{SOURCE} was imported, but the file is unusable: it is cut short"
    assert plain.remedy.startswith("check free space")
    watch("\x1b[33m[WARN] requested architecture arm64 not found, using amd64\x1b[0m")
    other = bad_result(SOURCE, "its programs are for x86_64", watch)
    assert other.message.splitlines() == [
        f"{SOURCE} exists, but not for the compute nodes: its programs are for x86_64",
        "    requested architecture arm64 not found, using amd64",
    ]
    assert other.remedy.startswith("choose the right --arch")


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
    ("content", "problem"),
    [
        (b"hsqs", "it has only 4 bytes"),
        (bytes(200), "it does not begin with a squashfs superblock"),
        (superblock(inodes=0), "its squashfs superblock is damaged"),
        (superblock(version=3), "its squashfs superblock is damaged"),
        (superblock(block=2048), "its squashfs superblock is damaged"),
        (superblock(block=1 << 21), "its squashfs superblock is damaged"),
        (superblock(block=131073), "its squashfs superblock is damaged"),
        (superblock(used=97) + bytes(48), "it is cut short: 96 of 97 bytes are there"),
    ],
)
def test_a_file_that_is_no_whole_image(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(BadImage, match="^" + problem.replace("(", r"\(")):
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


def test_an_image_is_for_the_machines_that_its_programs_are_for(tmp_path: Path, unsquashfs: Path) -> None:
    path = image(tmp_path, superblock(used=96) + bytes(48))
    (tmp_path / "names").write_text("/usr/bin/script\n/etc/passwd\n/usr/bin/zz\n/bin/bash\n")
    (tmp_path / "head").write_bytes(elf(62))
    assert Inspector().check(path, "x86_64") == 96
    with pytest.raises(BadImage, match="its programs are for x86_64, and the compute nodes are aarch64"):
        Inspector().check(path, "aarch64")
    (tmp_path / "head").write_bytes(elf(183))
    assert Inspector().check(path, "aarch64") == 96
    (tmp_path / "head").write_bytes(elf(21))
    with pytest.raises(BadImage, match=r"programs are for an unknown architecture \(ELF machine 21\)"):
        Inspector().check(path, "aarch64")


def test_an_image_without_programs_is_none(tmp_path: Path, unsquashfs: Path) -> None:
    path = image(tmp_path, superblock(used=48))
    for names in ("/usr/bin/script\n", "/etc/passwd\n/opt/bin/tool\n"):
        (tmp_path / "names").write_text(names)
        (tmp_path / "head").write_bytes(elf(62))
        with pytest.raises(BadImage, match="it contains no program in bin or usr/bin"):
            Inspector().check(path, "x86_64")


def test_an_image_that_cannot_be_listed_or_read(tmp_path: Path, unsquashfs: Path) -> None:
    path = image(tmp_path, superblock(used=48))
    with pytest.raises(BadImage, match=r"its content cannot be listed \(cannot list\)"):
        Inspector().check(path, "x86_64")
    (tmp_path / "names").write_text("")
    with pytest.raises(BadImage, match=r"its content cannot be listed \(unsquashfs failed\)"):
        Inspector().check(path, "x86_64")
    Inspector().read_everything(path)
    (tmp_path / "broken").touch()
    with pytest.raises(BadImage, match=r"its content cannot be read \(zlib failed\)"):
        Inspector().read_everything(path)


def test_without_unsquashfs_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentLacks, match="it is needed to check container images") as caught:
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


def test_a_folder_is_free_where_it_holds_only_what_is_expected(tmp_path: Path) -> None:
    for name in ("workloads", "images", "cluster_config.yaml", "lost+found", ".snapshot"):
        (tmp_path / name).mkdir()
    assert other_things(tmp_path) == []
    require_free_folder(tmp_path, agreed=False)
    (tmp_path / "b").touch()
    (tmp_path / "a").touch()
    assert other_things(tmp_path) == ["a", "b"]
    require_free_folder(tmp_path, agreed=True)
    with pytest.raises(
        RequestError, match=r"install_path: .* is not empty: it contains a, b\n  -> .*--into-used-folder"
    ):
        require_free_folder(tmp_path, agreed=False)
    (tmp_path / ".llmb").mkdir()
    assert other_things(tmp_path) == [], "an installation was begun here"
    assert other_things(tmp_path / "nowhere") == []
    assert other_things(tmp_path / "a") == []


# Hugging Face


@pytest.mark.parametrize("text", ["hf_a b", "hf_é", "hf_a\n"])
def test_a_token_with_a_space_is_none(text: str) -> None:
    assert check_token(Secret(text)).startswith("this is not a token")


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


def test_model_files_are_complete_with_every_file_of_the_receipt(tmp_path: Path) -> None:
    hub = hub_environment(tmp_path, tmp_path)
    files = ModelFiles("meta/llama@0123", tmp_path, hub)
    assert (files.id, files.repository, files.revision) == ("hugging-face meta/llama", "meta/llama", "0123")
    assert files.show() == f"fetch tokenizer and configuration of meta/llama to {tmp_path / 'hugging_face'}"
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
    assert files.verify() == f"files of meta/llama are missing or changed in {tmp_path / 'hugging_face'}"
