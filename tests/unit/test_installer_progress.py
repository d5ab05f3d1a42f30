"""How far an import is, from what the registry says beforehand and from what Enroot's folders show."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmb_install.parts import enroot
from llmb_install.parts.enroot import Manifest
from support.processes import wait_until

LAYERS = (("a" * 64, 2_000_000), ("b" * 64, 10_000_000), ("c" * 64, 8_000_000))
DOWNLOADING = "Downloading 2 missing layers"


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(enroot, "time", clock)
    return clock


def put(folder: Path, name: str, size: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(bytes(size))


def test_a_download_tells_its_total_rate_and_time_left(tmp_path: Path, clock: Clock) -> None:
    cache = tmp_path / "cache"
    put(cache, "a" * 64, 1_900_000)
    put(cache, "b" * 64 + ".killed", 9_000_000)
    text = enroot.shown(DOWNLOADING, tmp_path / "x", cache, None, lambda: Manifest("", LAYERS))
    assert callable(text)
    assert text() == f"{DOWNLOADING}, 18 MB", "what was there before has not come now"
    clock.now = 2.0
    put(cache, "b" * 64 + ".x1", 4_000_000)
    assert text() == f"{DOWNLOADING}, 4 MB of 18 MB, 2 MB/s, 7 s left"
    (cache / ("b" * 64 + ".x1")).rename(cache / ("b" * 64))
    put(cache, "c" * 64 + ".x2", 9_000_000)
    assert text() == f"{DOWNLOADING}, 18 MB of 18 MB, 9 MB/s, 0 s left", "compressed anew, a layer may be larger"


def test_where_the_registry_does_not_say_the_growth_is_shown(tmp_path: Path, clock: Clock) -> None:
    text = enroot.shown(DOWNLOADING, tmp_path / "x", tmp_path / "cache", None, lambda: None)
    assert callable(text)
    assert text() == DOWNLOADING
    clock.now = 3.0
    put(tmp_path / "cache", "a" * 64 + ".x", 3_000_000)
    assert text() == f"{DOWNLOADING}, 3 MB, 1 MB/s"
    text = enroot.shown("Creating squashfs filesystem", tmp_path / "x", tmp_path / "cache", None, lambda: None)
    clock.now = 5.0
    put(tmp_path, "x", 5_000_000)
    assert callable(text)
    assert text() == "Creating squashfs filesystem, 5 MB, 2 MB/s"
    assert enroot.shown("Converting whiteouts", tmp_path, tmp_path, None, lambda: None) == "Converting whiteouts"


def test_layers_that_are_unpacked_count_from_the_uppermost(tmp_path: Path, clock: Clock) -> None:
    doing = "Extracting image layers"
    text = enroot.shown(doing, tmp_path / "x", tmp_path / "cache", tmp_path, lambda: Manifest("", LAYERS))
    assert callable(text)
    assert text() == f"{doing}, 20 MB"
    clock.now = 4.0
    for number in ("0", "1", "2"):
        (tmp_path / "enroot.x" / number).mkdir(parents=True)
    assert text() == f"{doing}, 8 MB of 20 MB, 2 MB/s, 6 s left"


# The registry


class Handler(BaseHTTPRequestHandler):
    """A registry that wants a token, or a password where the image's name begins with ``basic``."""

    seen: list[tuple[str, str]]

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization", "")
        self.seen.append((self.path, allowed))
        host = f"http://{self.headers['Host']}"
        if self.path.startswith("/moved"):
            return self.answer(307, {}, Location=f"{host}/v2/lab/x/manifests/1")
        if self.path.startswith("/token"):
            return self.answer(200, {"token": "t"})
        if not allowed:
            basic = self.path.startswith("/v2/basic")
            wanted = 'Basic realm="x"' if basic else f'Bearer realm="{host}/token",service="s",scope="pull"'
            return self.answer(401, {}, **{"WWW-Authenticate": wanted})
        if self.path.endswith("/manifests/1"):
            several = [{"digest": f"sha256:{name}", "platform": {"architecture": name}} for name in ("arm64", "amd64")]
            return self.answer(200, {"manifests": several}, **{"Docker-Content-Digest": "sha256:1157"})
        assert self.path.endswith("/manifests/sha256:amd64")
        layers = [{"digest": f"sha256:{digest}", "size": size} for digest, size in LAYERS]
        return self.answer(200, {"layers": layers})

    def answer(self, status: int, body: Any, **headers: str) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    seen: list[tuple[str, str]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Handler,), {"seen": seen})) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"ENROOT_ALLOW_HTTP": "y", "ENROOT_CONFIG_PATH": str(tmp_path), "KEY": "k"}


def test_the_registry_is_asked_as_enroot_asks_it(hub: tuple[str, list[tuple[str, str]]], env: dict[str, str]) -> None:
    host, seen = hub
    answer = enroot.ask_registry(f"{host}#lab/nemo:1", "x86_64", env)
    wait_until(lambda: answer() is not None, "an answer", 20)
    assert answer() == Manifest("sha256:1157", LAYERS)
    assert [path for path, _ in seen] == [
        *("/v2/lab/nemo/manifests/1", "/token?service=s&scope=pull", "/v2/lab/nemo/manifests/1"),
        "/v2/lab/nemo/manifests/sha256:amd64",
    ]
    assert [allowed for _, allowed in seen] == ["", "", "Bearer t", "Bearer t"]


def test_a_password_goes_where_enroot_sends_it(hub, env, tmp_path):
    host, seen = hub
    (tmp_path / ".credentials").write_text("machine 127.0.0.1 login ann password $KEY\n")
    assert enroot._manifest(f"{host}#basic/nemo:1", "x86_64", env).digest == "sha256:1157"
    assert seen[-1][1] == "Basic " + base64.b64encode(b"ann:k").decode()
    with pytest.raises(ValueError, match="Bearer"):
        enroot._manifest(f"{host}#lab/nemo:1", "x86_64", env)
    assert not [path for path, _ in seen if path.startswith("/token")], "never in clear to where tokens are made"


def test_a_registry_that_does_not_answer_is_enroots_affair(env: dict[str, str]) -> None:
    threads = threading.active_count()
    answers = [enroot.ask_registry(source, "x86_64", env) for source in ("127.0.0.1:1#a/b:1", "no source", "#")]
    wait_until(lambda: threading.active_count() <= threads, "the end of the questions", 20)
    assert [answer() for answer in answers] == [None, None, None]
