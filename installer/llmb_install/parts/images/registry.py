"""What a registry says of an image before anything is downloaded: its digest, and the size of each layer.

For what is shown and put on record, nothing else: an answer that does not come is left to Enroot, which has words for
it. Credentials are Enroot's, and go where Enroot would send them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError

from llmb_install.parts.enroot_settings import setting
from llmb_install.parts.secrets.credentials import enroot_login

_SECONDS = 20.0
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


def ask(source: str, architecture: str, env: Mapping[str, str]) -> Callable[[], Manifest | None]:
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
    with urllib.request.build_opener(_NoRedirects).open(request, timeout=_SECONDS) as answer:
        return json.loads(answer.read(_MOST_BYTES)), answer.headers
