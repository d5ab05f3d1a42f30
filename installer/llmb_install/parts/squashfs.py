"""Whether a file is a whole container image for the right architecture, judged by its content, never its name."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.files import open_plain
from llmb_common.base.programs import MOST_BYTES, Answer, run_program

_SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQ")
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
_PROGRAM_FOLDERS = ("bin", "usr/bin", "usr/sbin", "sbin", "usr/local/bin")
_USUAL = ("bash", "dash", "sh", "env", "cat", "ls")
_BLOCK_SIZES = frozenset(2**power for power in range(12, 21))
"""In bytes, 4 KiB to 1 MiB: those that squashfs allows."""
_TRIES = 20
_HEAD = 20
"""Bytes of a program that say which machine it is for."""
_SECONDS = 1800.0


class BadImage(Exception):
    """Raised where a file is not a usable image; its text is a clause, such as ``it has only 3 bytes``.

    It is made from that text alone.
    """


class OtherMachines(BadImage):
    """Raised where an image is sound, but for another architecture than the compute nodes have.

    It is made from its text, a clause as that of ``BadImage``, which names both architectures.
    """


def check_superblock(path: Path) -> int:
    """Check the squashfs superblock of an image file, and return the file system's size in bytes.

    The file may be larger. ``mksquashfs`` writes the superblock last, so that a file from a killed run has none.
    Nothing else is read.

    Raises:
        BadImage: the file cannot be read, is no whole squashfs image, or no regular file, as a FIFO would never end
    """
    try:
        with open_plain(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            block = stream.read(_SUPERBLOCK.size)
    except OSError as error:
        raise BadImage(f"it cannot be read: {error.strerror or error}") from error
    if len(block) < _SUPERBLOCK.size:
        raise BadImage(f"it has only {size} bytes")
    magic, inodes, _, block_size, _, _, _, _, _, major, minor, _, used = _SUPERBLOCK.unpack(block)
    if magic != b"hsqs":
        raise BadImage("it does not begin with a squashfs superblock (an import that was killed leaves such a file)")
    if (major, minor) != (4, 0) or inodes == 0 or block_size not in _BLOCK_SIZES:
        raise BadImage("its squashfs superblock is damaged")
    if used > size:
        raise BadImage(f"it is cut short: {size} of {used} bytes are there")
    return int(used)


class Inspector:
    """A tool that looks into image files with ``unsquashfs``, on this machine or elsewhere.

    ``Image.inspector`` makes it. ``prefix`` is put before its command line to run it elsewhere, for instance the
    words of ``srun``; empty: it runs here. ``check`` looks quickly whether a file is an image for an
    ``architecture``, and returns the size in bytes of the file system in it; ``read_everything`` unpacks every byte
    to nowhere, and returns nothing. Both raise ``BadImage`` where an image is of no use, and EnvironmentLacks where
    ``unsquashfs`` is missing or takes more than half an hour.
    """

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = list(prefix)

    def check(self, path: Path, architecture: str) -> int:
        """Check an image file: superblock, listing, and architecture of its programs; return its size in bytes.

        The size is that of the file system in it. File contents are not read, but for the heads of some programs. The
        superblock is read on this machine, also where ``prefix`` leads elsewhere.

        Raises:
            BadImage: it is damaged, not an image, or for other machines than ``architecture`` (OtherMachines)
            EnvironmentLacks: ``unsquashfs`` is missing or takes more than half an hour
        """
        used = check_superblock(path)
        done = self._unsquashfs("-l", "-d", "", str(path))
        names = done.output.splitlines()
        if not done.ok or not names:
            cause = done.errors.strip().splitlines()
            raise BadImage(f"its content cannot be listed ({cause[-1] if cause else 'unsquashfs failed'})")
        found = self._architecture(path, names)
        if found != architecture:
            raise OtherMachines(f"its programs are for {found}, and the compute nodes are {architecture}")
        return used

    def read_everything(self, path: Path) -> None:
        """Raise where an image file has a damaged block, found by unpacking every byte of it to nowhere.

        Compressed blocks that are damaged fail here. Enroot stores file contents uncompressed (``-noD``), without any
        checksum: only the hash in a receipt can tell whether those are what was imported.

        Raises:
            BadImage: a block of it is damaged
            EnvironmentLacks: ``unsquashfs`` is missing or takes more than half an hour
        """
        done = self._unsquashfs("-quiet", "-no-progress", "-pf", "/dev/null", str(path))
        if not done.ok:
            cause = done.errors.strip().splitlines()
            raise BadImage(f"its content cannot be read ({cause[0] if cause else 'unsquashfs failed'})")

    def _architecture(self, path: Path, names: list[str]) -> str:
        """Return the architecture of an image's programs, ``x86_64`` or ``aarch64``, by the head of one of them.

        Another one is described in words. ``names``: all paths in the image. Up to 20 files in its folders for
        programs, such as ``usr/bin``, are looked at, as some are scripts, shells and the like first.

        Raises:
            BadImage: none of the files that were looked at is a program
            EnvironmentLacks: ``unsquashfs`` is missing or hangs
        """
        programs = [name for name in names if name.lstrip("/").rpartition("/")[0] in _PROGRAM_FOLDERS]
        # One may be a script, which has no architecture: several are tried.
        for name in sorted(programs, key=lambda name: name.rpartition("/")[2] not in _USUAL)[:_TRIES]:
            head = self._unsquashfs("-cat", str(path), name.lstrip("/"), most=_HEAD).stdout
            if head[:4] == b"\x7fELF":
                machine = int.from_bytes(head[18:20], "little")
                return _ELF_MACHINES.get(machine, f"an unknown architecture (ELF machine {machine})")
        raise BadImage("it contains no program in bin or usr/bin, so it is not a container image")

    def _unsquashfs(self, *arguments: str, most: int = MOST_BYTES) -> Answer:
        """Run ``unsquashfs`` with ``arguments``, and return its answer; it is ended after ``most`` bytes of output.

        A failure of the program is in the answer, as is that it was ended so; what it printed before is kept.

        Raises:
            EnvironmentLacks: the program is missing or takes more than half an hour
        """
        answer = run_program([*self._prefix, "unsquashfs", *arguments], _SECONDS, most=most)
        if answer.problem == "no-program":
            raise EnvironmentLacks(
                f"{answer.why}; it is needed to check container images",
                remedy="install squashfs-tools, or import on a compute node with --install-method srun",
            )
        if answer.problem == "no-answer":
            raise EnvironmentLacks(
                answer.why, remedy="check the file system that holds the images, then run the same command again"
            )
        return answer
