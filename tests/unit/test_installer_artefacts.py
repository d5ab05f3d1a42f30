"""Artefacts of an installation: what is missing is made once, what is right stays, and damage is seen."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.words import Secret
from llmb_install.answers.answers import complete_answers
from llmb_install.installation import Installation, SiteConfig
from llmb_install.parts.credentials import Secrets, hf_token_file, registry_key
from llmb_install.parts.engine import own_engine
from llmb_install.parts.files import WorkloadFolders, answers_file, commands
from llmb_install.working.artefact import Artefact
from llmb_install.working.reporter import Reporter
from support.installer import CLONE, RECIPES
from support.texts import Texts

ARTEFACTS: dict[str, Callable[[Path], Artefact]] = {
    "answers": lambda home: answers_file(home / ".llmb" / "answers.yaml", "schema: 1\n"),
    "workloads": lambda home: WorkloadFolders((home / "workloads" / "a", home / "workloads" / "b")),
    "commands": lambda home: commands(home / "bin"),
    "hugging-face-token": lambda home: hf_token_file(home, Secret("hf_abc")),
    "key": lambda home: registry_key(home, Secret("nvapi-abc")),
    "site-config": lambda home: SiteConfig(home, {"cluster_type": "local", "gpu_type": "cpu"}),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(tmp_path / "home" / "enroot"))
    return tmp_path / "home"


@pytest.mark.parametrize("name", ARTEFACTS)
def test_it_is_made_once_and_made_again_when_it_is_gone(name: str, home: Path):
    artefact = ARTEFACTS[name](home)
    assert not artefact.is_complete()
    assert artefact.verify()
    assert not home.exists(), "looking writes nothing"

    assert artefact.ensure(Reporter(None))

    assert artefact.is_complete()
    assert artefact.verify() is None
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    assert not artefact.ensure(Reporter(None))
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before

    shutil.rmtree(home)
    assert not artefact.is_complete()
    assert artefact.ensure(Reporter(None))


def test_an_engine_of_the_user_is_used_but_never_made(tmp_path: Path, texts: Texts):
    assert not own_engine(Path(sys.executable)).ensure(Reporter(None))
    lacking = own_engine(tmp_path / "python")
    texts(lacking.verify())
    with texts.raises(EnvironmentLacks):
        lacking.ensure(Reporter(None))


def _installation(path: Path, secrets: Secrets | None = None, **more: object) -> Installation:
    given = {"install_path": str(path), "workloads": ["pretrain_llama3.1", "pretrain_grok1"], **more}
    return Installation(CLONE, complete_answers(given, RECIPES), secrets)


SLURM = {"cluster_type": "slurm", "account": "bench", "gpu_partition": "gpu", "gpu_type": "h100"}


def test_an_installation_is_its_artefacts(home: Path):
    key = Secrets(ngc_api_key=Secret("nvapi-abc"), keep=frozenset({"ngc_api_key"}))
    on_slurm = _installation(home, key, **SLURM, hugging_face=True).artefacts()
    on_cpus = _installation(home, cluster_type="local", gpu_type="cpu").artefacts()

    ids = [artefact.id for artefact in on_slurm]
    assert len(set(ids)) == len(ids)
    assert [name for name in ids if " " not in name] == [
        *("answers", "registry-credentials", "secret-files", "workloads", "tool", "commands", "hub", "site-config")
    ]
    (image,) = [artefact for artefact in on_slurm if artefact.id.startswith("image ")]
    assert image.needs == ("registry-credentials",)
    assert any(name.startswith("hugging-face ") for name in ids)
    assert [artefact.id for artefact in on_cpus] == [
        *("answers", "secret-files", "workloads", "tool", "commands", "engine-cpu", "site-config")
    ]
    assert on_cpus[-1].needs == ("engine-cpu",)
    both = _installation(
        home, cluster_type="local", gpu_type="cpu", workloads=["pretrain_llama3.1", "pretrain_mbridge"]
    )
    assert [artefact.id for artefact in both.artefacts()][-3:] == ["engine-cpu", "engine-cpu-0.6", "site-config"]
    assert both.artefacts()[-1].needs == ("engine-cpu", "engine-cpu-0.6")
    assert all(artefact.show() for artefact in [*on_slurm, *on_cpus])


def test_a_further_engine_comes_with_the_recipes_that_run_on_it(home: Path) -> None:
    """Of what one recipe runs on: its image on a cluster, its environment on a machine without GPUs."""
    cpus = _installation(home, cluster_type="local", gpu_type="cpu", workloads="pretrain_llama3.1", engines="0.6")
    assert cpus.releases() == ["0.3", "0.6"]
    assert [artefact.id for artefact in cpus.artefacts()][-3:] == ["engine-cpu", "engine-cpu-0.6", "site-config"]
    assert cpus.site_values()["engine"] == {
        "python": str(home / "venvs" / "engine-cpu" / "bin" / "python"),
        "releases": {"0.6": str(home / "venvs" / "engine-cpu-0.6" / "bin" / "python")},
    }
    slurm = {"cluster_type": "slurm", "account": "a", "gpu_partition": "p", "gpu_type": "h100"}
    images = _installation(home, **slurm, workloads=["pretrain_grok1", "pretrain_llama3.1"], engines=["0.6"]).images()
    assert [image.source.rpartition(":")[2] for image in images] == ["26.02.01", "26.08"]
    without = _installation(home, **slurm, workloads=["pretrain_llama3.1"]).images()
    assert [image.source.rpartition(":")[2] for image in without] == ["26.02.01"]


def test_the_same_answers_in_another_order_are_no_damage(home: Path, texts: Texts) -> None:
    """Earlier releases wrote them in another one."""
    artefact = _installation(home, cluster_type="local", gpu_type="cpu", workloads="grok1").artefacts()[0]
    artefact.make()
    file = home / ".llmb" / "answers.yaml"
    head, *lines = [line for line in file.read_text().splitlines() if not line.startswith(("workloads", "-"))]
    file.write_text("\n".join([head, "workloads: [pretrain_grok1]", *reversed(lines)]))
    assert artefact.verify() is None
    file.write_text(file.read_text().replace("env_type: venv", "env_type: uv"))
    texts(str(artefact.verify()))
