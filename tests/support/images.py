"""Small real squashfs container images, made of this machine's programs."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAMS = (
    *("bash", "sh", "env", "cat", "cp", "date", "dirname", "basename", "echo", "false", "grep", "head", "hostname"),
    *("id", "ln", "ls", "mkdir", "mktemp", "mv", "nproc", "printenv", "printf", "pwd", "rm", "sed", "seq", "sleep"),
    *("sort", "tail", "tee", "test", "touch", "tr", "true", "uname", "wc"),
)


def copy_program(program: str, root: Path) -> None:
    """Copy ``program`` and the shared libraries it needs to the same places under ``root``."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} is not on this machine, so it cannot be put into an image")
    listed = subprocess.run(["ldd", found], capture_output=True, text=True, timeout=600, check=False).stdout
    libraries = re.findall(r"(/\S+) \(0x", listed)
    for source in (found, *libraries):
        target = root / source.lstrip("/")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    usual = root / "bin" / program
    if not usual.exists():
        usual.parent.mkdir(exist_ok=True)
        usual.symlink_to(found)


def build_rootfs(
    root: Path,
    programs: Sequence[str] = PROGRAMS,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> None:
    """Fill ``root`` with ``programs``, an ``/etc/environment`` of ``env`` and ``files`` (path to text)."""
    for folder in ("etc", "proc", "sys", "dev", "tmp", "run"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for program in programs:
        copy_program(program, root)
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})}
    (root / "etc/environment").write_text("".join(f"{k}={v}\n" for k, v in variables.items()))
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)


def build_image(
    image: Path,
    programs: Sequence[str] = PROGRAMS,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Make squashfs file ``image`` of ``build_rootfs``; about half a second. Returns ``image``."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "rootfs"
        build_rootfs(root, programs, env, files)
        command = ["mksquashfs", str(root), str(image), "-noappend", "-all-root", "-no-progress", "-Xcompression-level"]
        subprocess.run([*command, "1"], check=True, timeout=120, stdout=subprocess.DEVNULL)
    return image


def add_to_registry(
    registry: Path,
    reference: str,
    files: Mapping[str, str],
    architectures: Sequence[str] = (platform.machine(),),
    programs: Sequence[str] = (),
) -> Path:
    """Put an image of two layers into the folder that plays the registry of the ``enroot`` stand-in.

    ``reference`` is ``HOST#IMAGE:TAG``; each architecture's image has ``programs``, ``files`` (path to text) and a
    file ``/arch`` that names it. Returns the image's folder. ``credentials`` and ``fails`` files are up to the test.
    """
    host, _, rest = reference.partition("#")
    image, _, tag = rest.partition(":")
    folder = registry / host / image / tag
    for architecture in architectures:
        with tempfile.TemporaryDirectory() as scratch:
            target = folder / architecture
            target.mkdir(parents=True)
            base, top = Path(scratch) / "base", Path(scratch) / "top"
            build_rootfs(base, programs)
            top.mkdir()
            for name, text in {**files, "arch": architecture + "\n"}.items():
                path = top / name.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            for number, layer in enumerate((base, top), start=1):
                with tarfile.open(target / f"{number}.tar", "w") as archive:
                    archive.add(layer, arcname=".")
    return folder
