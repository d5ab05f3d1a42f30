"""Enroot at work: an image's digest, how far an import is, why it failed, and the layers in the cache.

Enroot is silent while it works, so its folders are watched. Some failures say nothing, and one looks like a success. It
compresses layers anew: their names are the digests of what the registry sent, not of the files, and zstd's own checksum
tells whether one is whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.printable import size
from llmb_common.base.programs import run_program
from llmb_install.parts.credentials import cache_folder, enroot_credentials_path, enroot_setting, temporary_folder
from llmb_install.working.command import Finished
from llmb_install.working.reporter import Step

_LAYER = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(rf"{_LAYER.pattern}\.[0-9A-Za-z]{{10}}")
"""A layer that is being downloaded: ``docker::_download_extract`` of Enroot 4.1.2."""
_SECONDS = 1800.0
_ABANDONED_SECONDS = 3600.0


def remove_broken(cache: Path) -> list[Path]:
    """Remove this user's damaged layers from Enroot's ``cache`` and return their paths; Enroot downloads them again.

    They are sorted by name. Each layer is read whole by zstd, for at most 30 minutes each; one that it cannot judge
    stays, as does what is no layer. Empty: none is damaged, zstd is missing, or there is no cache.

    Raises:
        OSError: the cache cannot be listed, or a layer not be removed
    """
    broken = []
    for layer in sorted(cache.iterdir()) if cache.is_dir() else ():
        if not _LAYER.fullmatch(layer.name) or not _is_own_file(layer.lstat()):
            continue
        # Any other status, such as that of a missing zstd, says nothing of the layer.
        if run_program(["zstd", "--test", "--quiet", str(layer)], _SECONDS).status == 1:
            broken.append(layer)
            layer.unlink(missing_ok=True)
    return broken


def remove_abandoned(cache: Path) -> None:
    """Remove this user's partial layers in Enroot's ``cache`` to which nothing was written for over an hour.

    They are of downloads that were killed, and Enroot begins each anew. Another host may use the same cache, so no
    process tells who is at work. Nothing happens where there is no cache.

    Raises:
        OSError: a part cannot be removed
    """
    for path in cache.glob(f"*.{'?' * 10}"):
        with contextlib.suppress(FileNotFoundError):  # one that is whole meanwhile
            status = path.lstat()
            if (
                _PART.fullmatch(path.name)
                and _is_own_file(status)
                and time.time() - status.st_mtime > _ABANDONED_SECONDS
            ):
                path.unlink()


def _is_own_file(status: os.stat_result) -> bool:
    """Return whether ``status`` is that of a regular file that belongs to this user."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


_AGAIN = "run the same command again; layers that are complete are not downloaded again"

# By curl's own number in "curl: (6) Could not resolve host". Enroot's exit status says nothing: while it downloads or
# unpacks, it is the number of layers that failed.
_CURL = {
    5: ("the proxy's name could not be resolved", "check https_proxy"),
    6: ("the registry's name could not be resolved", "check the network and DNS of the machine that imports"),
    7: ("the registry refused the connection", "check the network, the firewall and https_proxy"),
    18: ("a layer broke off while it was downloaded", _AGAIN),
    28: ("the registry did not answer in time", "check the network and https_proxy"),
    35: ("the encrypted connection to the registry failed", "check the proxy and the machine's CA certificates"),
    60: ("the registry's certificate is not trusted here", "check the machine's CA certificates and clock"),
}
_BROKEN_LAYER = re.compile(r"Checksum mismatch: ([0-9a-f]+)|gzip: stdin|pigz: ")
_SILENT = ("Authenticating", "Using credentials")
_UNPACKING = ("Extracting", "Converting")


class Watch:
    """A follower of Enroot's output: it shows how far an import is, and keeps what explains a failure.

    One follows one import. Call it with each line of Enroot's output, as text. It is made from ``step``, whose
    progress line it sets, and ``shown``, which gets what Enroot is doing, such as ``Downloading 3 missing layers``,
    and returns the text for that line, or a function that returns the text of the moment (by default it is the same
    text); what ``shown`` raises passes. The attribute ``doing`` is what Enroot said last that it does,
    ``wrong_architecture`` its warning that the image is for another architecture; both are text and empty as long
    as there was none. The property ``was_unpacking`` tells whether it was unpacking or converting layers last.
    """

    def __init__(self, step: Step, shown: Callable[[str], str | Callable[[], str]] = str) -> None:
        self.doing = ""
        self.wrong_architecture = ""
        self._step, self._shown = step, shown

    def __call__(self, line: str) -> None:
        """Take note of a line that Enroot has printed, and show on the progress line what it is doing.

        ``line`` is one line, colours and all. An ``[INFO]`` line sets ``doing``, a warning of the architecture sets
        ``wrong_architecture``; others change nothing. What ``shown`` raises passes.
        """
        text = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
        if "[WARN]" in text and "architecture" in text:
            self.wrong_architecture = text.partition("]")[2].strip()
        if found := re.match(r"\[INFO\] (.*)", text):
            self.doing = found[1].rstrip(".")
            self._step.update(self._shown(self.doing))

    @property
    def was_unpacking(self) -> bool:
        """Whether Enroot was last seen, by this follower, unpacking layers from its cache, or converting them."""
        return self.doing.startswith(_UNPACKING)


def import_error(
    source: str, done: Finished, watch: Watch, env: Mapping[str, str], *, remote: bool
) -> EnvironmentLacks:
    """Return the error of a failed import of the image ``source``: cause, Enroot's last lines, remedy; not raised.

    ``source`` is its name, such as ``nvcr.io#nvidia/nemo:26.02.01``. ``done`` is how Enroot ended, ``watch`` has
    followed its output, ``env`` is its environment. ``remote``: the import ran on a compute node.
    """
    cause, remedy = _import_failure(source, done, watch, env, remote=remote)
    tail = "\n".join(f"    {line}" for line in done.tail[-5:]) or "    (no output)"
    return EnvironmentLacks(f"{source} was not imported: {cause}\n{tail}", remedy=remedy)


_CHOOSE_ARCHITECTURE = "choose the right --arch, or a release of the image that has it"


def bad_image_error(source: str, problem: str, watch: Watch, *, for_others: bool = False) -> EnvironmentLacks:
    """Return the error of an import of ``source`` that reported success and left an unusable file; not raised.

    ``problem`` is a clause that says what is wrong with the file; ``for_others``: it is sound, for other machines.
    Where ``watch`` has seen Enroot's warning of another architecture, the error says that. ``source`` is the image's
    name.
    """
    if watch.wrong_architecture:
        return EnvironmentLacks(
            f"{source} exists, but not for the compute nodes: {problem}\n    {watch.wrong_architecture}",
            remedy=_CHOOSE_ARCHITECTURE,
        )
    return EnvironmentLacks(
        f"{source} was imported, but the file is unusable: {problem}",
        remedy=_CHOOSE_ARCHITECTURE
        if for_others
        else "check free space and the file system, then run the same command again",
    )


def _import_failure(
    source: str, done: Finished, watch: Watch, env: Mapping[str, str], *, remote: bool
) -> tuple[str, str]:
    """Return why the import of ``source`` failed, as a clause, and what to do, as the text of a remedy.

    This goes by what Enroot printed: ``done`` is how it ended, with its last lines, ``watch`` has followed its output,
    and ``env`` is its environment. Where its output explains nothing, the clause says with which status it ended.
    ``remote``: it ran on a compute node.
    """
    text = "\n".join(done.tail)
    where = " on the compute node" if remote else ""
    if "No space left on device" in text or "Disk quota exceeded" in text:
        temporary = temporary_folder(env)
        return (
            f"the disk is full{where}",
            f"free space in the image folder, in {temporary} (ENROOT_TEMP_PATH) and in Enroot's cache "
            "(ENROOT_CACHE_PATH), then run the same command again",
        )
    if status := re.search(r"returned error(?: code)?: (\d{3})", text):
        return _registry_refusal(int(status[1]), source, watch, env)
    if remote and re.search(r"srun: error: (Unable to allocate|Invalid|.*[Rr]equested)", text):
        return (
            "Slurm allocated no node for the import",
            "check --account and --cpu-partition, or use --install-method local",
        )
    curl = re.search(r"curl: \((\d+)\)", text)
    if curl and int(curl[1]) in _CURL:
        cause, remedy = _CURL[int(curl[1])]
        return cause + where, remedy
    if broken := _BROKEN_LAYER.search(text):
        return (
            f"the registry sent a damaged layer{f' (sha256:{broken[1]})' if broken[1] else ''}",
            f"{_AGAIN}. If it stays so, a proxy damages it, or the registry has it like that",
        )
    if "Could not process JSON input" in text or "Could not parse digest information" in text:
        return "what answered is not a registry", "check https_proxy, and whether this network wants a login first"
    if done.status < 0 or done.status in (137, 143):
        return (
            "Enroot was killed, perhaps because memory ran out",
            "run the same command again, where there is more memory (--install-method srun)",
        )
    if watch.was_unpacking:
        return (
            f"its layers could not be unpacked{where}",
            f"correct what its output says, or empty {cache_folder(env)} (Enroot's cache), then run it again",
        )
    if watch.doing.startswith(_SILENT):
        # Wrong credentials: Enroot ends with status 1 and does not say why.
        return "the registry did not accept the credentials (Enroot does not say so)", _credentials_remedy(source, env)
    return f"enroot ended with status {done.status}", "correct what its output says, then run the same command again"


def _registry_refusal(status: int, source: str, watch: Watch, env: Mapping[str, str]) -> tuple[str, str]:
    """Return why a registry refused an image, by HTTP ``status``, and what the user can do; asks nobody.

    Both are text for a message, the first a clause. ``source`` names the image (for its credentials), ``watch`` knows
    what Enroot was doing, and ``env`` is its environment. An unknown status counts as an error of the registry's own.
    """
    if status == 404 and watch.doing.startswith("Downloading"):
        return "the registry lacks a layer of the image", "tell who runs the registry: the image has to be pushed again"
    if status == 404:
        return "the registry has no such image or tag", "check the image's name in recipe.yaml"
    if status in (401, 403):
        return "the registry refused access", _credentials_remedy(source, env)
    what = "is limiting requests for now" if status == 429 else f"answered with an error of its own ({status})"
    return f"the registry {what}", f"wait some minutes, then {_AGAIN}"


def _credentials_remedy(source: str, env: Mapping[str, str]) -> str:
    """Return what to do about credentials that the registry of ``source`` did not take, as the text of a remedy.

    The registry is what stands before ``#`` in ``source``; without one the text says only "the registry". ``env`` is
    Enroot's environment.
    """
    # Enroot and curl look for the name alone.
    host, port = "the registry", ""
    if "#" in source:
        host, _, port = source.partition("#")[0].partition(":")
    if host == "nvcr.io":
        return (
            "give a valid key with --ngc-api-key; without one, the lines of nvcr.io and authn.nvidia.com in "
            f"{enroot_credentials_path(env)} count, and where there are none NGC_API_KEY"
        )
    without = " (without the port)" if port else ""
    return f"correct the line of {host}{without} in {enroot_credentials_path(env)}"


_RETRIES = "ENROOT_TRANSFER_RETRIES"


def retry_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``ENROOT_TRANSFER_RETRIES`` with the value ``3``, by name: so often Enroot repeats a failed download.

    Empty where the user or the site has set that variable, in ``env`` or Enroot's settings files. Of itself Enroot
    gives up at once. It repeats as curl does: after 429 and 5xx, and where a name is not resolved.
    """
    return {} if enroot_setting(_RETRIES, env) else {_RETRIES: "3"}


_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DIGEST_SECONDS, _WITH_A_NODE_SECONDS = 60.0, 600.0


def digest_of(image: str, architecture: str, prefix: Sequence[str], env: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the registry's digest of ``image``, ``sha256:...``, and an empty text; or None and why it is unknown.

    ``image`` is a name such as ``nvcr.io#nvidia/nemo:26.02.01``. The reason is a clause. ``architecture``: for which
    the image is asked for, such as ``x86_64``. ``prefix``: words that run a command on a compute node, which then has
    ten minutes instead of one; empty: it runs here. ``env``: Enroot's environment. Enroot can ask from 4.0 on. A
    registry that does not answer is no error here: the import will say why.
    """
    argv = [*prefix, "enroot", "digest", "--arch", architecture, f"docker://{image}"]
    seconds = _WITH_A_NODE_SECONDS if prefix else _DIGEST_SECONDS
    # Without retries: the import that follows has its own.
    answer = run_program(argv, seconds, env={**env, _RETRIES: "0"})
    found = answer.output.strip()
    if answer.ok and _DIGEST.fullmatch(found):
        return found, ""
    if "Usage:" in answer.output + answer.errors:
        return None, "this Enroot cannot ask for it (4.0 and later can)"
    return None, answer.why or "the registry did not tell it"


def progress_text(doing: str, output: Path, cache: Path) -> str | Callable[[], str]:
    """Return what the progress line shows while Enroot is ``doing`` something, which begins now.

    ``doing`` is Enroot's own line, such as ``Downloading 3 missing layers``. For a download, or the writing of the
    image (``Creating``), that is a function, whose text says how much has come to the folder ``cache`` or the file
    ``output`` since, and how fast; else ``doing`` itself.

    Raises:
        OSError: the folder ``cache`` cannot be listed
    """
    began, before = time.monotonic(), _file_sizes(cache)

    def downloaded() -> int:
        """Return the bytes in files of Enroot's cache that were not there when the download began.

        The cache and the names of files before are those of the enclosing function. A file whose name was there before
        does not count, even if it has grown.

        Raises:
            OSError: the cache cannot be listed
        """
        return sum(bytes_ for name, bytes_ in _file_sizes(cache).items() if name not in before)

    def written() -> int:
        """Return the bytes of the enclosing function's image file that have been written; 0: it is not there yet.

        Raises:
            OSError: Enroot has just removed the file
        """
        return output.stat().st_size if output.exists() else 0

    measure = {"Downloading": downloaded, "Creating": written}.get(doing.partition(" ")[0])
    if measure is None:
        return doing

    def text() -> str:
        """Return what Enroot is doing and, once there is any, the amount done and the speed since that began.

        For example ``Creating image, 3.0 GB, 1.0 GB/s``. It is a fragment for the progress line; nothing is raised
        where Enroot removes what is looked at. What is measured is from the enclosing function.
        """
        try:
            done = measure()
        except OSError:  # Enroot has just removed what was looked at
            done = 0
        seconds = max(time.monotonic() - began, 0.1)
        return f"{doing}, {size(done)}, {size(done / seconds)}/s" if done else doing

    return text


def _file_sizes(folder: Path) -> dict[str, int]:
    """Return the sizes in bytes of the entries of a folder, by name; empty where the folder is missing.

    Entries that vanish meanwhile are left out, and what is in subfolders is not looked at.

    Raises:
        OSError: the folder cannot be listed
    """
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            found[path.name] = path.stat().st_size
    return found
