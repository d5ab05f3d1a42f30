"""A real container registry on this machine: Debian's docker-registry, filled with skopeo and umoci."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from support.images import PROGRAMS, build_rootfs
from support.processes import die_with_parent

NEEDED = ("docker-registry", "skopeo", "umoci", "mksquashfs")
LOGIN, PASSWORD = "ann", "right-key"
# bcrypt of PASSWORD, the only kind that docker-registry takes; made with crypt(3).
_HTPASSWD = f"{LOGIN}:$2y$05$abcdefghijklmnopqrstuuvndwkNl1YvY4Y7nAly/avh61lfM.nG6\n"
_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_MANIFEST_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


def what_is_missing() -> str:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)} (tests/run as root on Debian or Ubuntu does)" if missing else ""


class Registry:
    """A registry on a free port of 127.0.0.1, as a context manager; ``closed``: it wants LOGIN and PASSWORD.

    ``host`` is its name in an image's reference (``127.0.0.1:43121``).
    """

    def __init__(self, folder: Path, *, closed: bool = False) -> None:
        self.folder = folder
        self._closed = closed
        self.host = ""

    def __enter__(self) -> Registry:
        self.folder.mkdir(parents=True)
        settings = {
            "version": 0.1,
            "log": {"accesslog": {"disabled": False}},
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "storage")}},
            "http": {"addr": "127.0.0.1:0"},
        }
        if self._closed:
            (self.folder / "htpasswd").write_text(_HTPASSWD)
            settings["auth"] = {"htpasswd": {"realm": "test", "path": str(self.folder / "htpasswd")}}
        # JSON is YAML.
        (self.folder / "config.yml").write_text(json.dumps(settings))
        with (self.folder / "log").open("w") as log:
            command = ["docker-registry", "serve", str(self.folder / "config.yml")]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        deadline = time.monotonic() + 100
        while not (found := re.search(r"listening on (127\.0\.0\.1:\d+)", self.log())):
            assert self._process.poll() is None, f"docker-registry ended:\n{self.log()}"
            assert time.monotonic() < deadline, f"docker-registry does not listen:\n{self.log()}"
            time.sleep(0.02)
        self.host = found[1]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """Its output: among other things, a line for every request."""
        return (self.folder / "log").read_text()

    def largest_blob(self) -> Path:
        """The file of the largest layer, to be damaged."""
        return max((self.folder / "storage").rglob("data"), key=lambda path: path.stat().st_size)

    def push(
        self,
        image: str,
        files: Mapping[str, str],
        architectures: Sequence[str] = ("x86_64",),
        env: Mapping[str, str] | None = None,
        programs: Sequence[str] = PROGRAMS,
    ) -> None:
        """Push ``NAME:TAG`` as a manifest list: for each architecture an image of two layers.

        Each holds ``programs`` of this machine, ``files`` (path to text) and a file ``/arch`` that names it.
        """
        name, _, tag = image.partition(":")
        manifests = []
        for architecture in architectures:
            manifest = self._push_one(name, architecture, {**files, "arch": architecture + "\n"}, env or {}, programs)
            platform = {"os": "linux", "architecture": _GO_ARCHITECTURES[architecture]}
            manifests.append({**manifest, "platform": platform})
        body = {"schemaVersion": 2, "mediaType": _MANIFEST_LIST, "manifests": manifests}
        self._request("PUT", f"{name}/manifests/{tag}", _MANIFEST_LIST, json.dumps(body).encode())

    def digest(self, image: str, architecture: str = "") -> str:
        """What the registry calls the content of ``NAME:TAG``, or its part for ``architecture``: ``sha256:...``."""
        name, _, tag = image.partition(":")
        body, headers = self._request("GET", f"{name}/manifests/{tag}", _MANIFEST_LIST)
        if not architecture:
            return headers["Docker-Content-Digest"]
        wanted = _GO_ARCHITECTURES[architecture]
        manifests = json.loads(body)["manifests"]
        return next(one["digest"] for one in manifests if one["platform"]["architecture"] == wanted)

    def _push_one(
        self, name: str, architecture: str, files: Mapping[str, str], env: Mapping[str, str], programs: Sequence[str]
    ) -> dict[str, object]:
        with tempfile.TemporaryDirectory() as scratch:
            layout = f"{scratch}/layout"
            base, top = Path(scratch) / "base", Path(scratch) / "top"
            build_rootfs(base, programs)
            for path, text in files.items():
                target = top / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            variables = [f"--config.env={key}={value}" for key, value in env.items()]
            go_architecture = _GO_ARCHITECTURES[architecture]
            for command in (
                ["init", "--layout", layout],
                ["new", "--image", f"{layout}:x"],
                ["config", "--image", f"{layout}:x", "--architecture", go_architecture, "--os", "linux", *variables],
                ["insert", "--image", f"{layout}:x", str(base), "/"],
                ["insert", "--image", f"{layout}:x", str(top), "/"],
            ):
                subprocess.run(["umoci", *command], check=True, capture_output=True, timeout=600)
            access = ["--dest-creds", f"{LOGIN}:{PASSWORD}"] if self._closed else []
            remote = f"docker://{self.host}/{name}:{architecture}"
            subprocess.run(
                ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", *access, f"oci:{layout}:x", remote],
                check=True,
                capture_output=True,
                timeout=600,
            )
        body, headers = self._request("GET", f"{name}/manifests/{architecture}", _MANIFEST)
        return {"mediaType": _MANIFEST, "digest": headers["Docker-Content-Digest"], "size": len(body)}

    def _request(self, method: str, path: str, kind: str, body: bytes | None = None) -> tuple[bytes, Mapping[str, str]]:
        headers = {"Accept": kind, "Content-Type": kind}
        if self._closed:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{LOGIN}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(f"http://{self.host}/v2/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.read(), answer.headers
