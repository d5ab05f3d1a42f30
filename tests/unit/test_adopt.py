"""``llmb-install adopt``: what it takes for an image, what it enters, and what the other commands make of that."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from llmb_common.base.programs import Answer
from llmb_common.executors.base import Container, NodeRequest
from llmb_common.planning.request.values import is_mount
from llmb_common.planning.site.cluster import FILE_NAME, SiteRelease, cluster_config, load_cluster_config
from llmb_install.answers.answers import stored_answers
from llmb_install.commands import upkeep
from llmb_install.installation import Installation, write_site_config
from llmb_install.parts.credentials import KEPT
from llmb_install.parts.image import Image
from llmb_install.working.reporter import Reporter
from support import plans
from support.installer import CLONE, Run, install, run, stored  # noqa: F401  (fixtures)
from support.texts import Texts

# ruff: noqa: F811  (fixtures)

SLURM = {"cluster_type": "slurm", "account": "bench", "gpu_partition": "batch", "gpu_type": "h100"}


class Node:
    """A node on which every image has Megatron-Bridge ``release``, with the functions of 0.6.2."""

    nodes = ("n1",)
    release = "0.7.0"
    printed: str | None = None
    """Of its versions, in place of what a healthy image prints."""
    containers: list[Container]

    def __init__(self) -> None:
        self.containers = []
        self.functions: dict[str, object] | None = None

    @contextlib.contextmanager
    def hold(self, wanted: NodeRequest) -> Iterator[Node]:
        yield self

    def run(self, argv: Sequence[str], seconds: float, *, inside: Container) -> Answer:
        self.containers.append(inside)
        words = argv[5:]
        if words[0] == "-c":
            printed = self.printed or json.dumps({"megatron-bridge": self.release})
            return Answer(0, f"LLMB-VERSIONS {printed}".encode())
        kind = "validation" if "--validation" in words else "catalogue"
        text = (CLONE / "mbridge" / f"{kind}-0.6.2.json").read_text(encoding="utf-8")
        text = text.replace('"release": "0.6.2"', f'"release": "{self.release}"', 1)
        if kind == "catalogue" and self.functions is not None:
            text = json.dumps(json.loads(text) | self.functions)
        Path(words[2]).write_text(text, encoding="utf-8")
        return Answer(0)


@pytest.fixture
def node(install: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Node:
    stored(install, **SLURM, workloads=["pretrain_mbridge"])
    node = Node()
    monkeypatch.setattr("llmb_install.commands.adopt.executor_for", lambda kind: node)
    return node


def test_whatever_the_file_is_called_its_path_is_entered_and_its_folder_can_be_mounted(node, run, install, tmp_path):
    for name in ("nemo:26.10.sqsh", "a,b c.sqsh", "it's.sqsh"):
        (tmp_path / name).touch()
        status, _, err = run("adopt", str(tmp_path / name))
        assert status == 0, err
        assert load_cluster_config(install).releases["0.7.0"].image == str(tmp_path / name)
    assert all(is_mount(mount) for one in node.containers for mount in one.mounts)


def test_a_path_is_entered_as_jobs_find_it(node, run, install, tmp_path, monkeypatch):
    (tmp_path / "ours.sqsh").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for said in ("ours.sqsh", "~/ours.sqsh"):
        assert run("adopt", said)[0] == 0
        assert load_cluster_config(install).releases["0.7.0"].image == str(tmp_path / "ours.sqsh"), said


@pytest.mark.parametrize("release", ["0.6.dev1", "0.7rc1", "0.6.2/../../x", "0.6.2 of ours"])
def test_a_release_that_the_configuration_does_not_take_is_not_entered(node, run, install, tmp_path, release):
    node.release = release
    (tmp_path / "ours.sqsh").touch()
    status, _, err = run("adopt", str(tmp_path / "ours.sqsh"))
    assert status == 2, err
    assert release in err
    assert load_cluster_config(install).releases == {}


@pytest.mark.parametrize("printed", ['{"megatron-br WARNING: no GPU', "{}", "[]", "0", "\x1b[31m"])
def test_versions_that_cannot_be_read_are_told_as_they_are(node, run, install, tmp_path, printed):
    node.printed = printed
    (tmp_path / "ours.sqsh").touch()
    status, _, err = run("adopt", str(tmp_path / "ours.sqsh"))
    assert status == 2, err
    assert "ours.sqsh" in err
    assert "\x1b" not in err
    assert load_cluster_config(install).releases == {}


def test_the_key_of_the_registry_is_there_before_the_import(node, run, install, monkeypatch):
    monkeypatch.setenv("NGC_API_KEY", "nvapi-x")
    monkeypatch.setenv(KEPT, "NGC_API_KEY")
    monkeypatch.setattr(Image, "is_complete", lambda self: False)
    found: list[Path] = []

    def ensure(image: Image, reporter: Reporter, *, anew: bool = False) -> bool:
        found.extend(path for path in install.rglob(".credentials") if "nvapi-x" in path.read_text())
        image.path.touch()
        return True

    monkeypatch.setattr(Image, "ensure", ensure)
    monkeypatch.setattr(Image, "lacks", lambda self: [])
    status, _, err = run("adopt", "nvcr.io#nvidia/nemo:26.10")
    assert status == 0, err
    assert len(found) == 1
    assert load_cluster_config(install).releases["0.7.0"].image == "nvcr.io#nvidia/nemo:26.10"


def test_an_image_without_functions_that_pretrain_is_entered_too(node, run, install, tmp_path):
    node.functions = {"index": [], "functions": {}}
    (tmp_path / "ours.sqsh").touch()
    status, _, err = run("adopt", str(tmp_path / "ours.sqsh"))
    assert status == 0, err
    assert "0.7.0" in load_cluster_config(install).releases


def test_the_image_that_another_of_the_same_release_replaces_is_named(node, run, install, tmp_path):
    for name in ("one.sqsh", "two.sqsh"):
        (tmp_path / name).touch()
    first, second = (run("adopt", str(tmp_path / name)) for name in ("one.sqsh", "two.sqsh"))
    again = run("adopt", str(tmp_path / "two.sqsh"))
    replaced = str(tmp_path / "one.sqsh")
    assert [replaced in err for _, _, err in (second, again)] == [True, False]
    assert first[0] == 0


def squashfs(path: Path) -> Path:
    """A file that begins as an image does."""
    block = struct.pack("<4sIIIIHHHHHHQQ", b"hsqs", 1, 0, 1 << 17, 0, 1, 17, 0, 1, 4, 0, 0, 96)
    path.write_bytes(block.ljust(96, b"\0"))
    return path


def damaged(text: str) -> str:
    return text.replace('"mbs":1', '"mbs":2', 1)


SPOILED: dict[str, Callable[[Path, Path], object]] = {
    "no image": lambda install, image: image.unlink(),
    "half an image": lambda install, image: image.write_bytes(b"half"),
    "another image": lambda install, image: image.write_bytes(image.read_bytes() + b"\0"),
    "no catalogue": lambda install, image: (install / "catalogues" / "catalogue-0.7.0.json").unlink(),
    "no validation": lambda install, image: (install / "catalogues" / "validation-0.7.0.json").write_text("{}"),
    "another catalogue": lambda install, image: rewrite(install, "catalogue", damaged),
    "catalogue of another release": lambda install, image: rewrite(install, "catalogue", of_071),
    "validation of another release": lambda install, image: rewrite(install, "validation", of_071),
}


def test_verify_finds_adopted_images_good(node, run, install, tmp_path):
    assert run("adopt", str(squashfs(tmp_path / "our image.sqsh")))[0] == 0
    assert json.loads(run("verify", "--json")[1])["data"]["parts"]["release 0.7.0"] is None


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_verify_looks_at_adopted_images_and_what_was_read_in_them(node, run, install, tmp_path, spoil, texts: Texts):
    image = squashfs(tmp_path / "our image.sqsh")
    assert run("adopt", str(image))[0] == 0
    spoil(install, image)
    parts = json.loads(run("verify", "--json")[1])["data"]["parts"]
    texts(parts["release 0.7.0"], mask=r"\b[0-9a-f]{64}\b")


def rewrite(install: Path, kind: str, change: Callable[[str], str]) -> None:
    file = install / "catalogues" / f"{kind}-0.7.0.json"
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")


def of_071(text: str) -> str:
    return text.replace('"0.7.0"', '"0.7.1"', 1)


def test_a_release_entered_by_hand_is_looked_at_too(run, install, tmp_path):
    stored(install, **SLURM)
    write_site_config(install, {("releases", "0.7", "catalogue"): str(tmp_path / "mine.json")})
    parts = json.loads(run("verify", "--json")[1])["data"]["parts"]
    assert "mine.json" in parts["release 0.7"]
    assert "llmb-install adopt" not in parts["release 0.7"].splitlines()[-1]


def test_what_is_new_gone_and_changed_against_the_newest_known_release(node, run, tmp_path):
    known = json.loads((CLONE / "mbridge" / "catalogue-0.6.2.json").read_text(encoding="utf-8"))
    names = [row[0] for row in known["index"]]
    functions = dict(known["functions"])
    functions[names[1]] = functions[names[1]] | {"columns": functions[names[1]]["columns"] | {"gbs": 7}}
    functions[names[2]] = functions[names[2]] | {"env": {"NEW": "1"}}
    functions["zebra_9b_pretrain_8gpu_h100_bf16_config"] = functions.pop(names[0])
    index = [["zebra_9b_pretrain_8gpu_h100_bf16_config", "zebra_9b", "pretrain", 8, "h100", "bf16", None]]
    node.functions = {"index": [*index, *known["index"][1:]], "functions": functions}
    data = json.loads(run("adopt", str(squashfs(tmp_path / "ours.sqsh")), "--json")[1])["data"]
    assert (data["functions"], data["against"]) == (450, "0.6.2")
    assert (data["new"], data["gone"]) == ([index[0][0]], [names[0]])
    assert (data["changed"], data["other_variables"]) == ([names[1]], [names[2]])


def test_where_there_is_no_installation_none_was_removed(run, tmp_path, texts: Texts):
    err = run("adopt", "x.sqsh", path=tmp_path / "none")[2]
    texts(err)


def test_the_file_of_an_adopted_image_is_that_image(texts: Texts):
    config = cluster_config(releases={"0.7.0": SiteRelease(image="nvcr.io#nvidia/nemo:26.10")})
    asked = "MODEL_SIZE=qwen3_30b_a3b GPU_TYPE=h100 JOB_TOTAL_GPUS=16 DTYPE=bf16"
    file = "/install/images/nvidia+nemo+26.10.sqsh"
    assert plans.plan("mbridge", config, asked, RUN_CONF_IMAGE=file).engine == "0.7"
    said = plans.refusal("mbridge", config, asked, RUN_CONF_IMAGE="/my images/nvidia+nemo+26.10.sqsh")
    texts(said)


@pytest.mark.parametrize("named", ["nvcr.io#nvidia/nemo:26.02.01", "{images}/nvidia+nemo+26.02.01.sqsh"])
def test_an_adopted_image_outlasts_the_workload_that_came_with_it(run, install, named):
    stored(install, **SLURM)
    images = install / "images"
    images.mkdir()
    image = images / "nvidia+nemo+26.02.01.sqsh"
    image.touch()
    image.with_name(f"{image.name}.receipt.json").write_text('{"schema": 1, "sha256": "0"}')
    write_site_config(install, {("releases", "0.3.1", "image"): named.format(images=images)})
    assert run("remove", "all")[0] == 0
    assert image.exists()
    left = Installation(CLONE, stored_answers(install))
    assert left.unused_images() == []
    (install / ".llmb" / "removing.json").write_text(json.dumps({"schema": 1, "images": [image.name]}))
    with Reporter(None, verbose=False) as reporter:
        upkeep.finish_removal(left, reporter)
    assert image.exists()
    assert (install / FILE_NAME).exists()
