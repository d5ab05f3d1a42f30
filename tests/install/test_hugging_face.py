"""Fetching tokenizer files: too many requests, a gated repository, no network. A local server plays Hugging Face."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from install_world import World

from llmb_common.recipes.loading import load_recipe

REPOSITORY = "meta-llama/Llama-3.1-405B"
ROOT = Path(__file__).resolve().parents[2]
RECIPE = load_recipe(ROOT / "llama3.1")
COMMIT = (RECIPE.hugging_face or "").partition("@")[2]
FILES = {"config.json": b'{"layers": 126}', "tokenizer.json": b"{}", "model-00001.safetensors": b"weights" * 1000}
TOKEN = "hf_canary"


class Hub(ThreadingHTTPServer):
    """Answers as the Hub does. ``busy``: so many requests get 429 first; ``gated``: nobody has access."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.busy = 0
        self.gated = False
        self.asked: list[str] = []
        self.authorizations: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.reply(with_body=False)

    def do_GET(self) -> None:
        self.reply(with_body=True)

    def reply(self, with_body: bool) -> None:
        hub = self.server
        hub.asked.append(self.path)
        hub.authorizations.add(self.headers.get("Authorization", ""))
        if hub.busy:
            hub.busy -= 1
            return self.send(429, b"slow down", with_body, {"Retry-After": "0"})
        if self.path.startswith(f"/api/models/{REPOSITORY}"):
            if "/tree/" in self.path:
                listing = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in FILES.items()]
                return self.send(200, json.dumps(listing).encode(), with_body, {})
            siblings = [{"rfilename": name} for name in FILES]
            return self.send(
                200, json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode(), with_body, {}
            )
        if hub.gated:
            return self.send(403, b"gated", with_body, {"X-Error-Code": "GatedRepo"})
        content = FILES[self.path.rpartition("/")[2]]
        return self.send(200, content, with_body, {"ETag": f'"{len(content)}"', "X-Repo-Commit": COMMIT})

    def send(self, status: int, content: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


def install(world: World, hub: str) -> subprocess.CompletedProcess[str]:
    flags = world.slurm_flags("--hugging-face", workloads="pretrain_llama3.1")
    env = {"HF_ENDPOINT": hub, "HF_TOKEN": TOKEN}
    return world.run(*flags, env=env, program=world.installer)


def test_small_files_come_and_weights_do_not(world: World, registry: Path, hub: Hub) -> None:
    done = install(world, hub.url)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in world.install.glob("hugging_face/models--*/snapshots/*/*"))
    assert names == ["config.json", "tokenizer.json"]
    assert f"Bearer {TOKEN}" in hub.authorizations
    asked = [path for path in hub.asked if "/models/" in path or "/resolve/" in path]
    assert asked
    assert all(COMMIT in path for path in asked), "never the branch, which may move"
    (receipt,) = (world.install / ".llmb" / "receipts").glob("hugging_face+*.json")
    assert json.loads(receipt.read_text())["revision"] == COMMIT
    before = len(hub.asked)
    assert install(world, hub.url).returncode == 0
    assert len(hub.asked) == before, "there is nothing to do"


def test_too_many_requests_are_tried_again(world: World, registry: Path, hub: Hub) -> None:
    hub.busy = 2
    done = install(world, hub.url)
    assert done.returncode == 0, done.stderr


def test_gated_access_names_the_page(world: World, registry: Path, hub: Hub) -> None:
    hub.gated = True
    done = install(world, hub.url)
    assert done.returncode == 3
    assert f"{hub.url}/{REPOSITORY}" in done.stderr.partition("\n  -> ")[2].split()
    hub.gated = False
    assert install(world, hub.url).returncode == 0


def test_no_network_is_said(world: World, registry: Path) -> None:
    done = install(world, "http://127.0.0.1:9")
    assert done.returncode == 3
    assert REPOSITORY in done.stderr
    assert "Traceback" not in done.stderr
