"""Enroot at work: what a registry says of an image, how far an import is, why it failed, and the layers in the cache.

Enroot is silent while it works, so its folders are watched. Some failures say nothing, and one looks like a success. It
compresses layers anew: their names are the digests of what the registry sent, not of the files, and zstd's own checksum
tells whether one is whole. The registry is asked for what is shown and put on record, nothing else: an answer that does
not come is left to Enroot, which has words for it. Credentials are Enroot's, and go where Enroot would send them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import stat
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from llmb_common.command.printable import size
from llmb_common.errors import EnvironmentLacks
from llmb_common.machine.processes import ask
from llmb_install.parts.credentials import (
    cache_folder,
    enroot_credentials_path,
    enroot_login,
    setting,
    temporary_folder,
)
from llmb_install.working.command import Finished
from llmb_install.working.reporter import Step, duration

_LAYER = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(rf"{_LAYER.pattern}\.[0-9A-Za-z]{{10}}")
"""A layer that is being downloaded: ``docker::_download_extract`` of Enroot 4.1.2."""
_SECONDS = 1800.0
_ABANDONED_SECONDS = 3600.0


def remove_broken(cache: Path) -> list[Path]:
    """Remove our own layers that are damaged; which those were. Enroot downloads what is missing."""
    broken = []
    for layer in sorted(cache.iterdir()) if cache.is_dir() else ():
        if not _LAYER.fullmatch(layer.name) or not _is_own(layer.lstat()):
            continue
        if ask(["zstd", "--test", "--quiet", str(layer)], _SECONDS).status == 1:
            broken.append(layer)
            layer.unlink(missing_ok=True)
    return broken


def remove_abandoned(cache: Path) -> None:
    """Remove our own parts of layers to which nobody has written for an hour: of downloads that were killed. Enroot
    begins each anew. Another host may use the same cache, so that no process tells who is at work."""
    for path in cache.glob(f"*.{'?' * 10}"):
        with contextlib.suppress(FileNotFoundError):  # one that is whole meanwhile
            status = path.lstat()
            if _PART.fullmatch(path.name) and _is_own(status) and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def _is_own(status: os.stat_result) -> bool:
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


_ANSWER_SECONDS = 20.0
_MOST_BYTES = 4 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_KINDS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        *("docker.distribution.manifest.list.v2", "oci.image.index.v1"),
        *("docker.distribution.manifest.v2", "oci.image.manifest.v1"),
    )
)
_SOURCE = re.compile(r"(?P<host>[^#/@]+)#(?P<name>[^:@]+)(:(?P<tag>[^@]+))?(@(?P<digest>sha256:[0-9a-f]+))?")


@dataclass(frozen=True)
class Manifest:
    """``digest``: of what the tag names; ``layers``: of the image for one architecture, the lowest first, digest
    (hexadecimal) and compressed bytes."""

    digest: str
    layers: tuple[tuple[str, int], ...]


def ask_registry(source: str, architecture: str, env: Mapping[str, str]) -> Callable[[], Manifest | None]:
    """Ask the registry of ``source``, in the background; the result gives the answer once it is there."""
    answer: list[Manifest] = []

    def work() -> None:
        with contextlib.suppress(Exception):  # an answer may be anything, and nobody is there to catch it
            answer.append(_manifest(source, architecture, env))

    threading.Thread(target=work, daemon=True).start()
    return lambda: answer[0] if answer else None


def _manifest(source: str, architecture: str, env: Mapping[str, str]) -> Manifest:
    parts = _SOURCE.fullmatch(source)
    if parts is None:
        raise ValueError(source)
    may_be_http = setting("ENROOT_ALLOW_HTTP", env).lower() not in ("", "n", "no", "f", "false")
    address = f"{'http' if may_be_http else 'https'}://{parts['host']}/v2/{parts['name']}/manifests/"
    headers = {"Accept": _KINDS}
    first = address + (parts["digest"] or parts["tag"] or "latest")
    try:
        found, about = _get(first, headers)
    except HTTPError as error:
        with error:
            headers["Authorization"] = _authorization(error.headers["WWW-Authenticate"], parts["host"], env)
        found, about = _get(first, headers)
    if "manifests" in found:
        wanted = _ARCHITECTURES[architecture]
        digest = next(m["digest"] for m in found["manifests"] if m["platform"]["architecture"] == wanted)
        found, _ = _get(address + digest, headers)
    layers = tuple((str(layer["digest"]).rpartition(":")[2], int(layer["size"])) for layer in found["layers"])
    return Manifest(str(about["Docker-Content-Digest"]), layers)


def _authorization(wanted: str, host: str, env: Mapping[str, str]) -> str:
    """The header that answers ``WWW-Authenticate: wanted``, as Enroot finds it."""
    method, _, rest = wanted.partition(" ")
    own = enroot_login(host, env)
    if method.lower() == "basic" and own:
        return _basic(own)
    fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = urllib.parse.urlsplit(fields.pop("realm"))
    login = enroot_login(realm.netloc, env) if own else None
    if method.lower() != "bearer" or (login and realm.scheme != "https"):
        raise ValueError(wanted)
    address = realm._replace(query=urllib.parse.urlencode(fields)).geturl()
    answer, _ = _get(address, {"Authorization": _basic(login)} if login else {})
    return f"Bearer {answer.get('token') or answer['access_token']}"


def _basic(login: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(login).encode()).decode()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Nobody but who was asked gets the credentials."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _get(address: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
    request = urllib.request.Request(address, headers=dict(headers))
    with urllib.request.build_opener(_NoRedirects).open(request, timeout=_ANSWER_SECONDS) as answer:
        return json.loads(answer.read(_MOST_BYTES)), answer.headers


def shown(
    doing: str, output: Path, cache: Path, unpacked: Path | None, known: Callable[[], Manifest | None]
) -> str | Callable[[], str]:
    """What stands on the progress line while Enroot is ``doing`` something, which begins now."""
    began, before = time.monotonic(), _sizes(cache)

    def downloaded() -> tuple[int, int]:
        now = {name: bytes_ for name, bytes_ in _sizes(cache).items() if name not in before}
        manifest = known()
        if manifest is None:
            return sum(now.values()), 0
        missing = {digest: bytes_ for digest, bytes_ in manifest.layers if digest not in before}
        return sum(_of_layer(digest, bytes_, now) for digest, bytes_ in missing.items()), sum(missing.values())

    def begun() -> tuple[int, int]:
        manifest = known()
        sizes = [bytes_ for _, bytes_ in manifest.layers] if manifest else []
        # Enroot begins with the uppermost; each is unpacked into a folder with its number.
        folders = unpacked.glob("enroot.*/[0-9]*") if unpacked else ()
        number = max((int(folder.name) for folder in folders if folder.name.isdigit()), default=0)
        return sum(sizes[::-1][: max(number - 1, 0)]), sum(sizes)

    def written() -> tuple[int, int]:
        return (output.stat().st_size if output.exists() else 0), 0

    measure = {"Downloading": downloaded, "Extracting": begun, "Creating": written}.get(doing.partition(" ")[0])
    if measure is None:
        return doing

    def text() -> str:
        try:
            return _text(doing, *measure(), time.monotonic() - began)
        except OSError:  # Enroot has just removed what was looked at
            return doing

    return text


def _text(doing: str, done: int, total: int, seconds: float) -> str:
    if not done:
        return f"{doing}, {size(total)}" if total else doing
    rate = done / max(seconds, 0.1)
    if not total:
        return f"{doing}, {size(done)}, {size(rate)}/s"
    return f"{doing}, {size(done)} of {size(total)}, {size(rate)}/s, {duration(max(total - done, 0) / rate)} left"


def _of_layer(digest: str, bytes_: int, sizes: Mapping[str, int]) -> int:
    """What has come of a layer of ``bytes_``. Enroot compresses it anew, to about the same size, in a file whose name
    goes on after the digest until the layer is whole."""
    if digest in sizes:
        return bytes_
    return min(bytes_, max((part for name, part in sizes.items() if name.startswith(f"{digest}.")), default=0))


def _sizes(folder: Path) -> dict[str, int]:
    """The sizes of the files in a folder, by name; none where there is nothing yet."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            found[path.name] = path.stat().st_size
    return found
