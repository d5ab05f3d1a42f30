"""What Enroot's exit status and last lines mean. Some failures say nothing, and one looks like a success."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from llmb_common.errors import EnvironmentLacks
from llmb_common.printable import size
from llmb_install.parts.credentials import enroot_credentials_path
from llmb_install.parts.enroot_settings import temporary_folder
from llmb_install.working.command import Finished
from llmb_install.working.reporter import Step

# curl's exit status, which Enroot passes on.
_CURL = {
    5: ("the proxy's name could not be resolved", "check https_proxy"),
    6: ("the registry's name could not be resolved", "check the network and DNS of the machine that imports"),
    7: ("the registry refused the connection", "check the network, the firewall and https_proxy"),
    28: ("the registry did not answer in time", "check the network and https_proxy"),
    35: ("the encrypted connection to the registry failed", "check the proxy and the machine's CA certificates"),
    60: ("the registry's certificate is not trusted here", "check the machine's CA certificates and clock"),
}


class Watch:
    """Follows Enroot's lines: keeps what matters for an explanation and shows how far the import is.

    Enroot is silent while it downloads and compresses: ``cache`` and ``output`` are watched for their growth.
    """

    def __init__(self, step: Step, output: Path, cache: Path) -> None:
        self.authenticated = False
        self.said_error = False
        self.wrong_architecture = ""
        self._step, self._output, self._cache = step, output, cache

    def __call__(self, line: str) -> None:
        text = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
        if "Authentication succeeded" in text:
            self.authenticated = True
        if "[ERROR]" in text:
            self.said_error = True
        if "[WARN]" in text and "architecture" in text:
            self.wrong_architecture = text.partition("]")[2].strip()
        if found := re.match(r"\[INFO\] (.*)", text):
            doing = found[1].rstrip(".")
            watched = {"Downloading": self._cache, "Creating": self._output}.get(doing.partition(" ")[0])
            self._step.update(_growth(doing, watched) if watched else doing)


def _growth(doing: str, path: Path) -> Callable[[], str]:
    """A text for the progress line that says how much has been added to ``path`` since now, and how fast."""
    before, began = _bytes_in(path), time.monotonic()

    def text() -> str:
        grown, seconds = _bytes_in(path) - before, time.monotonic() - began
        return f"{doing}, {size(grown)}, {size(grown / max(seconds, 0.1))}/s" if grown > 0 else doing

    return text


def _bytes_in(path: Path) -> int:
    """Size of a file, or of the files in a folder; 0 where there is nothing yet."""
    try:
        if path.is_dir():
            return sum(entry.stat().st_size for entry in path.iterdir() if entry.is_file())
        return path.stat().st_size
    except OSError:
        return 0


def explain(source: str, done: Finished, watch: Watch, env: Mapping[str, str], *, remote: bool) -> EnvironmentLacks:
    """The error for an import that ended with ``done.status`` other than 0."""
    cause, remedy = _cause(source, done, watch, env, remote=remote)
    tail = "\n".join(f"    {line}" for line in done.tail[-5:]) or "    (no output)"
    return EnvironmentLacks(f"{source} was not imported: {cause}\n{tail}", remedy=remedy)


def bad_result(source: str, problem: str, watch: Watch) -> EnvironmentLacks:
    """The error for an import that reported success and left a file that is unusable."""
    if watch.wrong_architecture:
        return EnvironmentLacks(
            f"{source} exists, but not for the compute nodes: {problem}\n    {watch.wrong_architecture}",
            remedy="choose the right --arch, or a release of the image that has it",
        )
    return EnvironmentLacks(
        f"{source} was imported, but the file is unusable: {problem}",
        remedy="check free space and the file system, then run the same command again",
    )


def _cause(source: str, done: Finished, watch: Watch, env: Mapping[str, str], *, remote: bool) -> tuple[str, str]:
    text = "\n".join(done.tail)
    where = " on the compute node" if remote else ""
    if "No space left on device" in text or "Disk quota exceeded" in text:
        temporary = temporary_folder(env)
        return (
            f"the disk is full{where}",
            f"free space in the image folder, in {temporary} (ENROOT_TEMP_PATH) and in Enroot's cache "
            "(ENROOT_CACHE_PATH), then run the same command again",
        )
    if "404 Not Found" in text:
        return "the registry has no such image or tag", "check the image's name in recipe.yaml"
    if "401 Unauthorized" in text or "403 Forbidden" in text:
        return "the registry refused access", _credentials_remedy(source, env)
    if "429 Too Many Requests" in text:
        return "the registry is limiting requests for now", "wait some minutes, then run the same command again"
    if remote and re.search(r"srun: error: (Unable to allocate|Invalid|.*[Rr]equested)", text):
        return (
            "Slurm allocated no node for the import",
            "check --account and --cpu-partition, or use --install-method local",
        )
    if done.status in _CURL:
        cause, remedy = _CURL[done.status]
        return cause + where, remedy
    if done.status < 0 or done.status in (137, 143):
        return (
            "Enroot was killed, perhaps because memory ran out",
            "run the same command again, where there is more memory (--install-method srun)",
        )
    if not watch.authenticated and not watch.said_error:
        # Wrong credentials: Enroot ends with status 1 and does not say why.
        return "the registry did not accept the credentials (Enroot does not say so)", _credentials_remedy(source, env)
    return f"enroot ended with status {done.status}", "correct what its output says, then run the same command again"


def _credentials_remedy(source: str, env: Mapping[str, str]) -> str:
    host = source.partition("#")[0] if "#" in source else "the registry"
    if host == "nvcr.io":
        return (
            "give a valid key with --ngc-api-key, or correct the lines of nvcr.io and authn.nvidia.com in "
            f"{enroot_credentials_path(env)}; where they name NGC_API_KEY, set that variable"
        )
    return f"correct the line of {host} in {enroot_credentials_path(env)}"
