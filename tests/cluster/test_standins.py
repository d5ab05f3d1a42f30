"""The stand-ins for enroot and nsys behave like the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.images import add_to_registry

URI = "docker://nvcr.io#nvidia/nemo:26.02.01"
ARCHITECTURES = ("x86_64", "aarch64")


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    folder = tmp_path / "registry"
    add_to_registry(folder, "nvcr.io#nvidia/nemo:26.02.01", {"/opt/hello": "hello\n"}, ARCHITECTURES)
    add_to_registry(folder, "nvcr.io#nvidia/old:1", {"/opt/hello": "hello\n"}, ("x86_64",))
    return folder


@pytest.fixture
def enroot(standins: Path, registry: Path, tmp_path: Path) -> Runner:
    if shutil.which("mksquashfs") is None:
        pytest.skip("not installed: mksquashfs (package squashfs-tools)")
    return Runner(standins / "enroot", registry, tmp_path)


class Runner:
    def __init__(self, program: Path, registry: Path, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.env = {
            **os.environ,
            "HOME": str(folder),
            "ENROOT_STANDIN_REGISTRY": str(registry),
            "ENROOT_CACHE_PATH": str(folder / "cache"),
            "ENROOT_CONFIG_PATH": str(folder / "config"),
        }

    def __call__(self, *args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), *map(str, args)]
        return subprocess.run(
            command, env={**self.env, **env}, cwd=self.folder, capture_output=True, text=True, timeout=600, check=False
        )


def test_import_makes_a_real_image(enroot: Runner, tmp_path: Path) -> None:
    done = enroot("import", "--output", tmp_path / "nemo.sqsh", "--arch", "aarch64", URI)
    assert done.returncode == 0, done.stderr
    assert "[INFO] Downloading 2 missing layers..." in done.stderr
    listing = ["unsquashfs", "-cat", str(tmp_path / "nemo.sqsh"), "opt/hello", "arch"]
    assert subprocess.run(listing, capture_output=True, text=True, check=True).stdout == "hello\naarch64\n"


def test_layers_are_cached_and_the_default_name_is_enroots(enroot: Runner, tmp_path: Path) -> None:
    assert enroot("import", URI).returncode == 0
    assert (tmp_path / "nvidia+nemo+26.02.01.sqsh").exists()
    again = enroot("import", "-o", "again.sqsh", URI)
    assert "[INFO] Found all layers in cache" in again.stderr


def test_an_existing_file_is_an_error(enroot: Runner, tmp_path: Path) -> None:
    (tmp_path / "nemo.sqsh").touch()
    done = enroot("import", "-o", "nemo.sqsh", URI)
    assert (done.returncode, done.stderr) == (1, f"[ERROR] File already exists: {tmp_path}/nemo.sqsh\n")


def test_the_wrong_architecture_is_only_a_warning(enroot: Runner, tmp_path: Path) -> None:
    done = enroot("import", "-o", "old.sqsh", "--arch", "aarch64", "docker://nvcr.io#nvidia/old:1")
    assert done.returncode == 0
    assert "[WARN]" in done.stderr
    shown = subprocess.run(["unsquashfs", "-cat", str(tmp_path / "old.sqsh"), "arch"], capture_output=True, check=True)
    assert shown.stdout == b"x86_64\n"


@pytest.mark.parametrize(
    ("uri", "mode", "status", "message"),
    [
        ("docker://nvcr.io#nvidia/nemo:99", "", 1, "returned error code: 404 Not Found"),
        ("docker://nowhere.example#nvidia/nemo:26.02.01", "", 6, "Could not resolve host"),
        (URI, "refused", 7, "Failed to connect"),
        (URI, "tls", 35, "TLS"),
        (URI, "disk_full", 1, "No space left on device"),
        (URI, "killed", -9, "Creating squashfs filesystem"),
    ],
)
def test_failures(enroot: Runner, tmp_path: Path, uri: str, mode: str, status: int, message: str) -> None:
    done = enroot("import", "-o", "image.sqsh", uri, ENROOT_STANDIN_FAIL=mode)
    assert done.returncode == status
    assert message in done.stderr
    # The two that break while writing leave a file under the final name that is not an image.
    assert (tmp_path / "image.sqsh").exists() == (mode in ("disk_full", "killed"))


def test_wrong_credentials_are_refused_without_a_word(enroot: Runner, registry: Path, tmp_path: Path) -> None:
    (registry / "nvcr.io" / "credentials").write_text("$oauthtoken secret")
    config = tmp_path / "config" / ".credentials"
    config.parent.mkdir()
    both = "machine nvcr.io login $oauthtoken password {0}\nmachine authn.nvidia.com login $oauthtoken password {0}\n"
    for content in ("", both.format("wrong"), both.format("secret").splitlines()[0]):
        config.write_text(content)
        done = enroot("import", "-o", "image.sqsh", URI)
        assert done.returncode == 1
        assert "[ERROR]" not in done.stderr
    config.write_text(both.format("secret"))
    assert enroot("import", "-o", "image.sqsh", URI).returncode == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting an image needs root")


@needs_root
def test_start_runs_in_the_image(enroot: Runner, container_image: Path, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mounted\n")
    script = "cat /mnt/note; pwd; touch /new && echo writable"
    done = enroot("start", "--rw", "--mount", f"{tmp_path}:/mnt", container_image, "sh", "-c", script)
    assert done.stdout.splitlines() == ["mounted", "/root", "writable"], done.stderr
    assert not Path("/new").exists()
    missing = enroot("start", "--mount", "/nowhere:/mnt", container_image, "true")
    assert missing.returncode == 1
    assert "enroot-mount: failed to mount: /nowhere at " in missing.stderr


@needs_root
def test_roots_are_made_listed_started_and_removed(enroot: Runner, container_image: Path, tmp_path: Path) -> None:
    """Messages and exit codes as seen with 4.1.2."""
    own = {"ENROOT_DATA_PATH": str(tmp_path / "data")}
    assert f"  ENROOT_DATA_PATH={tmp_path}/data\n" in enroot("info", **own).stdout
    made = enroot("create", "--name", "one", "--", container_image, **own)
    assert (made.returncode, made.stderr.splitlines()[0]) == (0, "[INFO] Extracting squashfs filesystem...")
    assert enroot("list", **own).stdout == "one\n"
    again = enroot("create", "--name", "one", container_image, **own)
    assert (again.returncode, again.stderr) == (1, f"[ERROR] File already exists: {tmp_path}/data/one\n")
    wrong = enroot("create", "--name", "a/b", container_image, **own)
    assert (wrong.returncode, wrong.stderr) == (1, "[ERROR] Invalid argument: a/b\n")
    assert enroot("start", "--rw", "one", "touch", "/new", **own).returncode == 0
    assert (tmp_path / "data/one/new").exists(), "every start has the same files"
    assert "Read-only file system" in enroot("start", "one", "touch", "/newer", **own).stderr
    for command in (("start", "two", "true"), ("remove", "-f", "two")):
        gone = enroot(*command, **own)
        assert (gone.returncode, gone.stderr) == (1, f"[ERROR] No such file or directory: {tmp_path}/data/two\n")
    assert enroot("remove", "-f", "one", **own).returncode == 0
    assert enroot("list", **own).stdout == ""
    nowhere = enroot("start", tmp_path / "no.sqsh", "true", **own)
    assert (nowhere.returncode, nowhere.stderr) == (1, f"[ERROR] Invalid argument: {tmp_path}/no.sqsh\n")


@needs_root
def test_start_drops_the_environment_but_for_what_is_named(enroot: Runner, container_image: Path) -> None:
    given = {"PASSED": "p", "QUOTED": '"q r"', "HIDDEN": "h", "SLURM_PROCID": "3", "ENROOT_X": "x", "LINES": "1\n2"}
    names = ["GIVEN=a b", "PASSED", "QUOTED", "UNSET", "ENROOT_X", "LINES"]
    options = [word for name in names for word in ("--env", name)]
    done = enroot("start", *options, container_image, "env", **given)
    inside = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {"IN_IMAGE": "yes", "GIVEN": "a b", "PASSED": "p", "QUOTED": "q r", "UNSET": "", "LINES": "1"}.items() <= (
        inside.items()
    )
    assert not {"HIDDEN", "SLURM_PROCID", "ENROOT_X"} & inside.keys()
    refused = enroot("start", "--env", "A B", container_image, "env")
    assert (refused.returncode, refused.stderr) == (1, "[ERROR] Invalid argument: A B\n")


@needs_root
def test_start_makes_the_root_read_only_unless_told_otherwise(enroot: Runner, container_image: Path) -> None:
    command = [container_image, "touch", "/new"]
    assert "Read-only file system" in enroot("start", *command).stderr
    assert enroot("start", "--rw", *command).returncode == 0
    assert enroot("start", *command, ENROOT_ROOTFS_WRITABLE="yes").returncode == 0


@needs_root
def test_mounts_are_lines_of_an_fstab(enroot: Runner, container_image: Path, tmp_path: Path) -> None:
    source = tmp_path / "a b"
    source.mkdir()
    assert "Invalid argument" in enroot("start", "--mount", f"{source}:/mnt", container_image, "true").stderr
    escaped = str(source).replace(" ", "\\040")
    # A third field is the options, all of them: nothing is bound, and no target made.
    assert "failed to mount" in enroot("start", "--mount", f"{escaped}:/mnt:ro", container_image, "true").stderr
    mount = f"{escaped}:/mnt:none:x-create=auto,rbind,ro"
    assert "Read-only" in enroot("start", "--mount", mount, container_image, "touch", "/mnt/x").stderr


def test_nsys_runs_the_program_and_leaves_a_report(standins: Path, tmp_path: Path) -> None:
    pattern = f"{tmp_path}/profile_%q{{SLURM_JOB_ID}}_%q{{SLURM_LOCALID}}"
    command = ["profile", "-t", "cuda,nvtx", "--capture-range=cudaProfilerApi", "-o", pattern, "sh", "-c", "exit 5"]
    env = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_LOCALID": "3"}
    done = subprocess.run([str(standins / "nsys"), *command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    report = tmp_path / "profile_7_3.nsys-rep"
    assert report.read_text().splitlines() == command
    again = subprocess.run([str(standins / "nsys"), *command], env=env, capture_output=True, text=True, check=False)
    assert "already exists" in again.stderr
