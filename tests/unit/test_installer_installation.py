"""What an installation consists of, part by part, as its answers say; and what the site's file gets from them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.words import Secret
from llmb_install.answers.answers import complete_answers
from llmb_install.installation import Installation, SiteConfig, engine_values
from llmb_install.parts import engine as engine_module
from llmb_install.parts import environment_build
from llmb_install.parts.credentials import (
    Secrets,
    hf_token_file,
    hf_token_path,
    key_path,
    private_files,
    registry_key,
)
from llmb_install.parts.engine import (
    KINDS,
    TOOL_BYTES,
    TOOL_IMPORTS,
    CpuEngine,
    cpu_engine,
    own_engine,
    tool_environment,
)
from llmb_install.parts.environment import Environment
from llmb_install.parts.files import WorkloadFolders, commands
from llmb_install.parts.hugging_face import ModelFiles
from llmb_install.parts.image import Image
from llmb_install.working.artefact import Room
from llmb_install.working.reporter import Reporter
from support.installer import CLONE, RECIPES
from support.texts import Texts

NEMO = RECIPES["pretrain_grok1"].image
SLURM = {"cluster_type": "slurm", "account": "bench", "gpu_partition": "gpu", "gpu_type": "h100"}
ON_CPUS = {"cluster_type": "local", "gpu_type": "cpu"}


@pytest.fixture(autouse=True)
def _recipes_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmb_install.installation.load_recipes", lambda clone: RECIPES)


def installation(path: Path, secrets: Secrets | None = None, **answers: Any) -> Installation:
    given = {"install_path": str(path), "workloads": ["pretrain_llama3.1", "pretrain_grok1"], **answers}
    return Installation(CLONE, complete_answers(given, RECIPES), secrets)


def parts(found: Installation, kind: type) -> list[Any]:
    return [part for part in found.artefacts() if isinstance(part, kind)]


def named(found: Installation, *names: str) -> list[Any]:
    return [part for part in found.artefacts() if part.id in names]


def test_results_have_a_folder_for_each_workload(tmp_path: Path, texts: Texts) -> None:
    (folders,) = parts(installation(tmp_path, **ON_CPUS), WorkloadFolders)
    names = ("pretrain_grok1", "pretrain_llama3.1")
    assert folders.folders == tuple(tmp_path / "workloads" / name / "experiments" for name in names)
    texts(folders.show())


def test_the_answers_are_kept_without_what_was_said_for_one_run(tmp_path: Path, texts: Texts) -> None:
    given = [installation(tmp_path, **ON_CPUS, space_check=check) for check in (True, False)]
    for (part,) in (named(found, "answers") for found in given):
        texts(part.show())
        part.ensure(Reporter(None))
        assert "gpu_type: cpu\n" in (tmp_path / ".llmb" / "answers.yaml").read_text()
    assert all(named(found, "answers")[0].is_complete() for found in given)


def test_images_are_imported_as_the_answers_say(tmp_path: Path) -> None:
    (image,) = installation(tmp_path, **SLURM).images()
    assert image == Image(
        source=NEMO,
        path=tmp_path / "images" / "nvidia+nemo+26.02.01.sqsh",
        architecture="x86_64",
        receipts=tmp_path / ".llmb" / "receipts",
        needs=("registry-credentials",),
        key=key_path(tmp_path),
    )
    key = Secrets(ngc_api_key=Secret("k"))
    more = {"image_folder": "/shared", "install_method": "srun", "cpu_partition": "cpu", "space_check": False}
    (image,) = installation(tmp_path, key, **SLURM, **more, arch="aarch64").images()
    assert image == Image(
        source=NEMO,
        path=Path("/shared/nvidia+nemo+26.02.01.sqsh"),
        architecture="aarch64",
        receipts=tmp_path / ".llmb" / "receipts",
        prefix=(
            *("srun", "--account", "bench", "--partition", "cpu"),
            *("--nodes=1", "--ntasks=1", "--job-name=llmb-install", "--quiet"),
        ),
        space_check=False,
        needs=("registry-credentials",),
        key=key_path(tmp_path),
    )
    assert (image.download, image.disk) == (25_000_000_000, 25_000_000_000)


def test_workloads_with_other_images_have_one_each(tmp_path: Path) -> None:
    images = installation(tmp_path, **SLURM, workloads="all").images()
    assert [image.source for image in images] == sorted({recipe.image for recipe in RECIPES.values()})
    assert installation(tmp_path, **{**SLURM, "gpu_type": "cpu"}, runtime="none").images() == []


def test_images_that_nothing_needs_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("old.sqsh", "nvidia+nemo+26.02.01.sqsh", "theirs.sqsh"):
        (folder / name).touch()
    for name in ("old.sqsh", "nvidia+nemo+26.02.01.sqsh"):
        (folder / f"{name}.receipt.json").write_text('{"schema": 1}')
    assert installation(tmp_path, **SLURM).unused_images() == [folder / "old.sqsh"]
    assert installation(tmp_path, **SLURM, image_folder=str(folder)).unused_images() == [], "it is shared"


def test_model_files_are_fetched_with_the_token_that_there_is(tmp_path: Path) -> None:
    assert installation(tmp_path, **SLURM).model_files() == []
    wanted = {"hugging_face": True, "workloads": "all", **SLURM}
    repositories = sorted({recipe.hugging_face for recipe in RECIPES.values() if recipe.hugging_face})
    found = installation(tmp_path, **wanted).model_files()
    assert [f"{files.repository}@{files.revision}" for files in found] == repositories
    assert [files.cache for files in found] == [tmp_path / "hugging_face"] * len(found)
    assert found[0]._token is None
    hf_token_file(tmp_path, Secret("kept")).make()
    tokens = [
        installation(tmp_path, secrets, **wanted).model_files()[0]._token
        for secrets in (Secrets(), Secrets(hf_token=Secret("new")))
    ]
    assert [token and token.reveal() for token in tokens] == ["kept", "new"]
    assert parts(installation(tmp_path, **wanted), ModelFiles)


def test_secrets_are_stored_where_they_were_given_and_used_where_they_were_found(tmp_path: Path) -> None:
    names = ("hugging-face-token", "registry-credentials", "secret-files")

    def secret_parts(secrets: Secrets, **answers: Any) -> list[Any]:
        return named(installation(tmp_path, secrets, **answers), *names)

    token, key = Secret("hf_x"), Secret("nvapi")
    given = Secrets(hf_token=token, ngc_api_key=key, keep=frozenset({"hf_token", "ngc_api_key"}))
    found = Secrets(hf_token=token, ngc_api_key=key)
    closed = private_files(tmp_path)
    assert secret_parts(given, **SLURM) == [hf_token_file(tmp_path, token), registry_key(tmp_path, key), closed]
    assert secret_parts(found, **SLURM) == [closed]
    assert secret_parts(given, **ON_CPUS) == [hf_token_file(tmp_path, token), closed]
    assert secret_parts(Secrets(), **SLURM) == [closed]


def test_what_would_be_done_about_secrets(tmp_path: Path, texts: Texts) -> None:
    parts = {
        hf_token_path(tmp_path): hf_token_file(tmp_path, Secret("x")),
        key_path(tmp_path): registry_key(tmp_path, Secret("x")),
    }
    for path, part in parts.items():
        assert (str(path) in part.show(), "0600" in part.show()) == (True, True)
        assert str(path) in (part.verify() or "")
    texts(private_files(tmp_path).show())
    assert private_files(tmp_path).verify() is None


def test_the_users_own_engine_is_a_part_where_gpus_need_one(tmp_path: Path, texts: Texts) -> None:
    own = {"cluster_type": "local", "gpu_type": "h100", "engine_python": "/gpu/python"}
    found = installation(tmp_path, **own)
    assert named(found, "engine") == [own_engine(Path("/gpu/python"))]
    assert found.engines() == []
    assert parts(found, SiteConfig)[0].needs == ()
    assert found.site_values()["engine"] == {"python": "/gpu/python"}
    both = installation(tmp_path, **own, workloads=["pretrain_mbridge", "pretrain_grok1"])
    assert both.site_values()["engine"] == {"python": "/gpu/python", "releases": {"0.6": "/gpu/python"}}
    texts(own_engine(Path("/gpu/python")).show())
    assert own_engine(Path("/gpu/python")).id == "engine"


def test_engines_are_those_that_the_recipes_train_in(tmp_path: Path) -> None:
    found = installation(tmp_path, **ON_CPUS, workloads="all", env_type="uv")
    engines = [("engine-cpu", "uv"), ("engine-cpu-0.6", "uv")]
    assert [(engine.name, engine.kind) for engine in found.engines()] == engines
    assert [part.name for part in found.environments()] == ["llmb", "engine-cpu", "engine-cpu-0.6"]
    assert [part.name for part in installation(tmp_path, **SLURM).environments()] == ["llmb"]
    assert found.releases() == ["0.3", "0.6"]
    (tool,) = [part for part in found.artefacts() if part.id == "tool"]
    assert tool == tool_environment(CLONE, tmp_path)
    assert named(found, "commands") == [commands(tmp_path / "bin")]


@pytest.mark.parametrize(
    ("mirror", "asked"),
    [
        (None, "nvcr.io#nvidia/nemo:26.02.01"),
        ("mirror.site", "mirror.site#nvidia/nemo:26.02.01"),
        ("mirror.site:5000/a/b", "mirror.site:5000#a/b/nvidia/nemo:26.02.01"),
    ],
)
def test_a_mirror_has_the_images_under_names_of_its_own(tmp_path: Path, mirror: str | None, asked: str) -> None:
    """Files and receipts keep the name that recipes know."""
    (image,) = installation(tmp_path, **SLURM, registry_mirror=mirror).images()
    assert image.import_command(Path("x"))[-1] == f"docker://{asked}"
    assert (image.source, image.path.name) == ("nvcr.io#nvidia/nemo:26.02.01", "nvidia+nemo+26.02.01.sqsh")


def test_what_the_sites_file_gets_on_slurm(tmp_path: Path) -> None:
    more = {"gres": True, "mpi": "none", "container_writable": False, "cpu_partition": "cpu", "image_folder": "/s"}
    assert installation(tmp_path, **SLURM, **more).site_values() == {
        "cluster_type": "slurm",
        "repo": str(CLONE),
        "gpu_type": "h100",
        "arch": "x86_64",
        "env_type": "venv",
        "image_folder": "/s",
        "workloads": ["pretrain_grok1", "pretrain_llama3.1"],
        "slurm": {
            **{"account": "bench", "gpu_partition": "gpu", "cpu_partition": "cpu", "gres": True, "runtime": "pyxis"},
            **{"mpi": "none", "container_writable": False},
        },
    }
    plain = installation(tmp_path, **SLURM).site_values()
    assert "image_folder" not in plain
    assert plain["slurm"] == {
        **{"account": "bench", "gpu_partition": "gpu", "cpu_partition": "gpu", "gres": False, "runtime": "pyxis"}
    }


def test_what_the_sites_file_gets_on_cpus(tmp_path: Path) -> None:
    found = installation(tmp_path, **ON_CPUS, arch="x86_64", workloads="all")
    (config,) = parts(found, SiteConfig)
    assert (
        config.values
        == found.site_values()
        == {
            "cluster_type": "local",
            "repo": str(CLONE),
            "gpu_type": "cpu",
            "arch": "x86_64",
            "env_type": "venv",
            "workloads": sorted(RECIPES),
            "engine": {
                "python": f"{tmp_path}/venvs/engine-cpu/bin/python",
                "releases": {"0.6": f"{tmp_path}/venvs/engine-cpu-0.6/bin/python"},
            },
        }
    )


def test_the_engine_of_a_release() -> None:
    assert engine_values({"0.3": "/a", "0.6": "/b"}) == {"python": "/a", "releases": {"0.6": "/b"}}
    assert engine_values({"0.3": "/a"}) == {"python": "/a"}
    assert engine_values({"0.6": "/b"}) == {"releases": {"0.6": "/b"}}


def test_the_tools_environment_is_the_clone_with_all_that_it_imports(tmp_path: Path, texts: Texts) -> None:
    tool = tool_environment(Path("/clone"), tmp_path)
    assert (tool.link, tool.editable, tool.kind) == (*(tmp_path / "venvs" / "llmb", Path("/clone")), "venv")
    assert tool.lock == Path("/clone/installer/locks/tool.txt")
    assert tool.smoke == ("llmb_common", "llmb_install", "llmb_run", *TOOL_IMPORTS)
    assert (tool.id, tool.download, tool.disk) == ("tool", 22_000_000, 29_000_000)
    assert tool.room() == [Room(tool.link.parent, TOOL_BYTES, "environment llmb")]
    texts(tool.show())


# The CPU engine


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that the engine has builds for."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("os.confstr", lambda name: "glibc 2.28")


@pytest.mark.usefixtures("linux")
def test_an_engine_is_made_of_its_lock_and_shares_with_the_others(
    monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr(engine_module.uv, "running_version", lambda: (3, 11))
    made = cpu_engine(Path("/clone"), Path("/i"), "uv", release="0.6")
    assert (made.name, made.lock, made.kind) == (
        *("engine-cpu-0.6", Path("/clone/installer/locks/engine-cpu-0.6.txt"), "uv"),
    )
    assert made.link == Path("/i/venvs/engine-cpu-0.6")
    assert made.shares == (Path("/i/venvs/engine-cpu"),)
    assert (made.smoke, made.of_newer_python) == (KINDS["0.6"].smoke, ("megatron-bridge", "megatron-core"))
    assert (made.download, made.disk) == (250_000_000, 1_100_000_000)
    usual = cpu_engine(Path("/clone"), Path("/i"))
    assert (usual.name, usual.of_newer_python) == ("engine-cpu", ())
    assert usual.kind == "venv"
    assert usual.shares == (Path("/i/venvs/engine-cpu-0.6"),)
    texts(usual.show())


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize(
    ("release", "oldest", "newest"), [("0.3", (3, 10), (3, 13)), ("0.6", (3, 11), (3, 13))], ids=["0.3", "0.6"]
)
def test_an_engine_has_pythons_of_its_own(release, oldest, newest, monkeypatch, texts: Texts):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("HOME", "/nowhere")

    monkeypatch.setattr(engine_module.uv, "fetch_python", lambda *told: "no route")

    def made(version: tuple[int, int]) -> CpuEngine:
        monkeypatch.setattr(engine_module.uv, "running_version", lambda: version)
        return cpu_engine(CLONE, Path("/i"), release=release)

    assert made(oldest).python == made(newest).python == sys.executable
    assert made(newest)._python_error() is None
    for version in ((oldest[0], oldest[1] - 1), (newest[0], newest[1] + 1)):
        lack = made(version)._python_error()
        assert lack is not None
        assert "Python {}.{} to {}.{}".format(*oldest, *newest) in lack.message
        texts(lack, mask=r"this is Python [\d.]+")


def test_a_python_that_uv_fetches_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path))
    monkeypatch.setattr(engine_module.uv, "running_version", lambda: (3, 19))
    asked = []

    def fetch(version: str, folder: Path, env: object) -> None:
        asked.append((version, folder))
        program = tmp_path / "cpython-3.12.1-linux" / "bin" / "python3.12"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nprintf '/of/uv\\n3 12\\n'\n")
        program.chmod(0o755)

    monkeypatch.setattr(engine_module.uv, "fetch_python", fetch)
    engine = cpu_engine(CLONE, Path("/i"))
    assert engine.python == ""
    assert engine._python_error() is None
    newest = KINDS["0.3"].pythons[1]
    assert asked == [("{}.{}".format(*newest), Path("/i/venvs/.uv-engine-cpu"))]
    made: list[str] = []
    monkeypatch.setattr(Environment, "ensure", lambda self, reporter, **_: made.append(self.python) or True)
    assert engine.ensure(Reporter(None))
    assert made == ["/of/uv"]


@pytest.mark.parametrize("there", [True, False])
def test_a_cpu_build_of_torch_is_looked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(environment_build, "CPU_TORCH_INDEX", tmp_path.as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    monkeypatch.setattr(engine_module.uv, "uv_on_path", lambda: None)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(engine_module, "python_for", lambda release: "/python")
    monkeypatch.setattr(engine_module.uv, "version_of", lambda path: (3, 12))
    (tmp_path / "torch").mkdir()
    for name in ("2.13.0-cp312-cp312", "2.13.0+cpu-cp311-cp311", "2.13.0+cpu-cp312-cp312t"):
        (tmp_path / "torch" / f"torch-{name}-manylinux_2_28_aarch64.whl").touch()
    (tmp_path / "torch" / "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl").touch()
    if there:
        (tmp_path / "torch" / "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_aarch64.whl").touch()
    engine = cpu_engine(CLONE, tmp_path / "install")
    lack = engine._torch_error()
    assert (lack is None) == there
    assert there or str(lack).startswith("PyTorch 2.13.0+cpu for Python 3.12 cannot be had:\n    ")
    engine.shares[0].mkdir(parents=True)
    assert engine._torch_error() is None, "it is linked from the other engine"


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sys.platform", "darwin"),
        ("platform.machine", lambda: "ppc64le"),
        ("os.confstr", lambda name: "glibc 2.27"),
        ("os.confstr", lambda name: "glibc 1.99"),
        ("os.confstr", lambda name: None),
        ("os.confstr", lambda name: int("x")),
    ],
)
def test_a_machine_without_builds_is_told_so(name, value, monkeypatch, texts: Texts):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(name, value)
    lack = engine_module._no_builds_error()
    assert lack is not None
    texts(lack.message)
    assert "container" in lack.remedy


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize("glibc", ["glibc 2.28", "glibc 2.40", "glibc 3.0"])
def test_a_newer_glibc_will_do(glibc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("os.confstr", lambda name: glibc)
    assert engine_module._no_builds_error() is None


def test_an_engine_needs_room_unless_nobody_is_to_look(tmp_path: Path) -> None:
    engine = cpu_engine(CLONE, tmp_path)
    assert engine.room() == [Room(tmp_path / "venvs", 2_000_000_000, "environment engine-cpu")]


def test_an_engine_of_the_user_is_a_program(tmp_path: Path, texts: Texts) -> None:
    python = tmp_path / "python"
    texts(own_engine(python).verify())
    python.mkdir(mode=0o755)
    assert not own_engine(python).is_complete()
    python.rmdir()
    python.touch(mode=0o644)
    assert not own_engine(python).is_complete()
    os.chmod(python, 0o755)  # noqa: PTH101
    assert own_engine(python).is_complete()
