"""What Enroot's exit status and last lines mean. Some failures say nothing, and one looks like a success."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from llmb_common.errors import EnvironmentLacks
from llmb_install.parts.enroot_settings import cache_folder, temporary_folder
from llmb_install.parts.secrets.credentials import enroot_credentials_path
from llmb_install.working.command import Finished
from llmb_install.working.reporter import Step

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
    """Follows Enroot's lines: keeps what matters for an explanation and shows how far the import is.

    ``shown`` gives what stands on the progress line while Enroot is doing something.
    """

    def __init__(self, step: Step, shown: Callable[[str], str | Callable[[], str]] = str) -> None:
        self.doing = ""
        self.wrong_architecture = ""
        self._step, self._shown = step, shown

    def __call__(self, line: str) -> None:
        text = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
        if "[WARN]" in text and "architecture" in text:
            self.wrong_architecture = text.partition("]")[2].strip()
        if found := re.match(r"\[INFO\] (.*)", text):
            self.doing = found[1].rstrip(".")
            self._step.update(self._shown(self.doing))

    @property
    def was_unpacking(self) -> bool:
        """Whether it came no further than to unpack layers that are in the cache."""
        return self.doing.startswith(_UNPACKING)


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
    if status := re.search(r"returned error(?: code)?: (\d{3})", text):
        return _refused(int(status[1]), source, watch, env)
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


def _refused(status: int, source: str, watch: Watch, env: Mapping[str, str]) -> tuple[str, str]:
    """What an HTTP status means."""
    if status == 404 and watch.doing.startswith("Downloading"):
        return "the registry lacks a layer of the image", "tell who runs the registry: the image has to be pushed again"
    if status == 404:
        return "the registry has no such image or tag", "check the image's name in recipe.yaml"
    if status in (401, 403):
        return "the registry refused access", _credentials_remedy(source, env)
    what = "is limiting requests for now" if status == 429 else f"answered with an error of its own ({status})"
    return f"the registry {what}", f"wait some minutes, then {_AGAIN}"


def _credentials_remedy(source: str, env: Mapping[str, str]) -> str:
    # Enroot and curl look for the name alone.
    host, _, port = source.partition("#")[0].partition(":") if "#" in source else ("the registry", "", "")
    if host == "nvcr.io":
        return (
            "give a valid key with --ngc-api-key, or correct the lines of nvcr.io and authn.nvidia.com in "
            f"{enroot_credentials_path(env)}; where they name NGC_API_KEY, set that variable"
        )
    without = " (without the port)" if port else ""
    return f"correct the line of {host}{without} in {enroot_credentials_path(env)}"
