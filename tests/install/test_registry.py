"""Images from a real registry: docker-registry on this machine, pulled by the Enroot stand-in over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from install_world import World, copy_clone

from support import registry as real_registry
from support.registry import LOGIN, PASSWORD, Registry


@pytest.fixture
def site(world: World) -> World:
    """A world whose Enroot may use HTTP, and which has no folder that plays the registry."""
    if missing := real_registry.what_is_missing():
        pytest.fail(missing)
    del world.env["ENROOT_STANDIN_REGISTRY"]
    world.env["ENROOT_ALLOW_HTTP"] = "yes"
    return world


@pytest.fixture
def hub(site: World) -> Iterator[Registry]:
    with Registry(site.root / "hub") as hub:
        hub.push("lab/nemo:1", {"/opt/x": "x\n"}, env={"NEMO_HOME": "/opt/nemo"})
        yield hub


def clone_with_image(site: World, image: str) -> Path:
    """A clone of this repository whose recipes want ``image``."""
    clone = site.root / "clone"
    copy_clone(clone, {"tests", "docs", "benchmarks"})
    for recipe in clone.glob("*/recipe.yaml"):
        text, number = re.subn(r"^image: .*$", f'image: "{image}"', recipe.read_text(), flags=re.MULTILINE)
        assert number == 1, recipe
        recipe.write_text(text)
    return clone


def content(image: Path, name: str) -> str:
    return subprocess.run(["unsquashfs", "-cat", str(image), name], check=True, capture_output=True, text=True).stdout


def quick(site: World, image: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Install with ``image``, without building the tool's environment."""
    clone = site.root / "clone"
    if not clone.exists():
        clone_with_image(site, image)
    return site.run(*site.slurm_flags(*more), env={"LLMB_REPO": str(clone)}, program=site.installer)


def test_all_workloads_are_installed_with_one_pull(site: World, hub: Registry) -> None:
    clone = clone_with_image(site, f"{hub.host}#lab/nemo:1")
    done = site.run(*site.slurm_flags(), program=[sys.executable, str(clone / "installer.py")])
    assert done.returncode == 0, done.stderr
    image = site.install / "images" / "lab+nemo+1.sqsh"
    assert json.loads(image.with_name(f"{image.name}.receipt.json").read_text())["source"] == f"{hub.host}#lab/nemo:1"
    assert content(image, "opt/x") == "x\n"
    assert "NEMO_HOME=/opt/nemo" in content(image, "etc/environment")
    pulled = Counter(re.findall(r'"GET /v2/lab/nemo/blobs/\S+', hub.log()))
    assert sorted(pulled.values())[:2] == [1, 1], "two layers once; the third is the configuration, often looked at"
    done = site.run("verify", program=[str(site.install / "bin" / "llmb-install")])
    assert done.returncode == 0, done.stderr
    # Complete: the registry is not asked again.
    before = hub.log()
    done = site.run(*site.slurm_flags(), program=[sys.executable, str(clone / "installer.py")])
    assert done.returncode == 0, done.stderr
    assert hub.log() == before


def test_a_damaged_image_is_pulled_again_from_cached_layers(site: World, hub: Registry) -> None:
    assert quick(site, f"{hub.host}#lab/nemo:1").returncode == 0
    image = site.install / "images" / "lab+nemo+1.sqsh"
    image.write_bytes(image.read_bytes()[:4096])
    done = quick(site, f"{hub.host}#lab/nemo:1")
    assert done.returncode == 0, done.stderr
    assert content(image, "opt/x") == "x\n"
    logs = "".join(path.read_text() for path in (site.install / ".llmb" / "logs").iterdir())
    assert "Downloading 2 missing layers" in logs
    assert "Found all layers in cache" in logs


def test_of_a_manifest_list_the_right_architecture_is_taken(site: World, hub: Registry) -> None:
    """And the registry's name for it is on record, where Enroot tells it."""
    hub.push("lab/both:1", {}, ("aarch64", "x86_64"))
    image = site.install / "images" / "lab+both+1.sqsh"
    for version, digest in {"4.1.2": hub.digest("lab/both:1", "x86_64"), "3.5.0": None}.items():
        site.env["ENROOT_STANDIN_VERSION"] = version
        done = quick(site, f"{hub.host}#lab/both:1")
        assert done.returncode == 0, done.stderr
        assert bool(re.search(rf"\bdigest\b.*{re.escape(image.name)}", done.stderr)) == (digest is None)
        assert content(image, "arch") == "x86_64\n"
        receipt = image.with_name(f"{image.name}.receipt.json")
        assert json.loads(receipt.read_text())["digest"] == digest
        image.unlink()


def test_an_image_named_by_its_digest_is_that_one_whatever_its_tag_means_now(site: World, hub: Registry) -> None:
    digest = hub.digest("lab/nemo:1")
    hub.push("lab/nemo:1", {"/opt/x": "moved\n"})
    assert quick(site, f"{hub.host}#lab/nemo:1@{digest}").returncode == 0
    image = site.install / "images" / f"lab+nemo+1@{digest.replace(':', '+')}.sqsh"
    assert content(image, "opt/x") == "x\n"


def test_a_closed_registry_wants_the_right_credentials(site: World) -> None:
    with Registry(site.root / "hub", closed=True) as hub:
        hub.push("lab/nemo:1", {})
        credentials = site.root / "enroot" / ".credentials"
        name = hub.host.partition(":")[0]
        for line in ("", f"machine {name} login {LOGIN} password wrong\n", f"machine {hub.host} login {LOGIN}\n"):
            credentials.write_text(line)
            done = quick(site, f"{hub.host}#lab/nemo:1")
            assert done.returncode == 3
            remedy = done.stderr.partition("\n  -> ")[2]
            assert re.search(rf"\b{re.escape(name)} .*{re.escape(str(credentials))}", remedy), (
                "which line of which file"
            )
        credentials.write_text(f"machine {name} login {LOGIN} password {PASSWORD}\n")
        done = quick(site, f"{hub.host}#lab/nemo:1")
        assert done.returncode == 0, done.stderr
        assert PASSWORD not in done.stderr


def test_broken_layers_are_named_and_what_is_whole_is_not_pulled_again(site: World, hub: Registry) -> None:
    layer = hub.largest_blob()
    whole, name = layer.read_bytes(), layer.parent.name
    half = len(whole) // 2
    damages = {
        whole[:half] + b"damage" + whole[half + 6 :]: f"sha256:{name}",
        whole[:half]: f"sha256:{name}",
        None: " layer ",
    }
    for content_of_layer, said in damages.items():
        layer.unlink()
        if content_of_layer is not None:
            layer.write_bytes(content_of_layer)
        done = quick(site, f"{hub.host}#lab/nemo:1")
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (3, True, False), done.stderr
        assert not list((site.install / "images").iterdir())
    layer.write_bytes(whole)
    assert quick(site, f"{hub.host}#lab/nemo:1").returncode == 0
    pulled = Counter(re.findall(r'"GET /v2/lab/nemo/blobs/sha256:(\w+)', hub.log()))
    others = [digest for digest, number in pulled.items() if digest != name and number == 1]
    assert others, "the other layer was pulled once"


@pytest.mark.parametrize("answer", [b'{"manifests": [5]}', b"[" * 100_000, b"<html>"])
def test_what_is_no_registry_may_answer_anything(site: World, answer: bytes) -> None:
    class Anything(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Anything) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        done = quick(site, f"127.0.0.1:{server.server_port}#lab/nemo:1")
        server.shutdown()
    assert done.returncode == 3
    assert "https_proxy" in done.stderr
    assert "Traceback" not in done.stderr
