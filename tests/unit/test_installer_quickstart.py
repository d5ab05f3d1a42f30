"""The quickstart with stand-ins for launch.sh and the parser, and Hugging Face with a stand-in for its library."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.words import Secret
from llmb_install.answers.answers import ANSWERS_FILE, complete_answers, load_recipes, to_yaml
from llmb_install.main import main
from llmb_install.parts.hugging_face import PATTERNS, ModelFiles
from llmb_install.working.reporter import Reporter
from support.iteration_logs import mbridge_log
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]

LAUNCH = """#!/bin/sh
env | sort > {folder}/environment
echo "Traceback of the last rank"
[ -e {folder}/fails ] && exit 7
[ -e {folder}/nothing ] && exit 0
mkdir -p {run}/x
cp {folder}/log {run}/x/log-x.out
echo '{}' > {run}/run.json
"""
PARSER = """#!/bin/sh
echo "x_1  $(cat {folder}/state)  1.0 for $1"
echo "x_1: note: something" >&2
exit $(cat {folder}/status)
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A clone with the recipe of Llama 3.1, whose launch.sh leaves a run; what it does is told in files here."""
    world = tmp_path / "world"
    recipe = world / "clone" / "llama3.1"
    recipe.mkdir(parents=True)
    shutil.copy(ROOT / "llama3.1" / "recipe.yaml", recipe)
    (world / "clone" / "pyproject.toml").touch()
    (world / "clone" / "common").mkdir()
    run = tmp_path / "install" / "workloads" / "pretrain_llama3.1" / "experiments" / "x" / "x_1"
    for path, text in (
        (recipe / "launch.sh", LAUNCH),
        (world / "clone" / "common" / "parse_train_timing_mbridge.sh", PARSER),
    ):
        path.write_text(text.replace("{folder}", str(world)).replace("{run}", str(run)))
    (world / "log").write_text(mbridge_log())
    (world / "state").write_text("Success")
    (world / "status").write_text("0")
    return world


Quickstart = Callable[..., tuple[int, str, str]]


@pytest.fixture
def quickstart(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Quickstart:
    """The command, whose parts are there already but for those in ``made``; no step says that it goes on."""
    monkeypatch.setattr("llmb_install.working.reporter._FIRST_PLAIN", 600.0)

    def quickstart(*words: str, made: Sequence[object] = (), **variables: str) -> tuple[int, str, str]:
        """``made``: what was missing; a list gets what is to be made."""

        def make_missing(artefacts: Sequence[object], reporter: Reporter, *, space_check: bool) -> list[object]:
            assert space_check is ("--no-space-check" not in words)
            if isinstance(made, list):
                made.extend(artefacts)
            return list(made)

        monkeypatch.setattr("llmb_install.commands.quickstart.make_missing", make_missing)
        monkeypatch.setenv("LLMB_REPO", str(world / "clone"))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        status = main(["--quickstart", "--install-path", str(tmp_path / "install"), *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return quickstart


def test_it_trains_and_shows_the_table_and_what_comes_next(
    quickstart: Quickstart, world: Path, tmp_path: Path, texts: Texts
) -> None:
    status, out, err = quickstart()
    assert status == 0
    texts(out, mask=r"1\.0 for \S+")
    assert out.rstrip().endswith("/experiments/x/x_1")
    texts(err)
    asked = "MODEL_SIZE=smoke JOB_TOTAL_GPUS=1 CLUSTER_TYPE=local GPU_TYPE=cpu"
    assert f"cd {world / 'clone' / 'llama3.1'} && {asked} ./launch.sh" in err
    log = next((tmp_path / "install" / ".llmb" / "logs").iterdir()).read_text()
    assert "x_1  Success" in log


def test_an_engine_that_was_made_is_not_called_there_already(quickstart: Quickstart) -> None:
    assert "is already there" not in quickstart("--no-space-check", made=("engine-cpu",))[2]


def test_the_job_gets_the_callers_variables_without_those_of_a_launch(quickstart, world, tmp_path):
    launch = {"MODEL_SIZE": "405b", "DRY_RUN": "true", "PYTHONIOENCODING": "ascii"}
    assert quickstart(**launch, OMP_NUM_THREADS="3", http_proxy="http://p")[0] == 0
    found = dict(line.partition("=")[::2] for line in (world / "environment").read_text().splitlines())
    assert (found["MODEL_SIZE"], found["JOB_TOTAL_GPUS"], found["GPU_TYPE"]) == ("smoke", "1", "cpu")
    assert not {"DRY_RUN", "PYTHONIOENCODING"} & {*found}
    assert found["http_proxy"] == "http://p"
    assert (found["LLMB_INSTALL"], found["LLMB_REPO"]) == (str(tmp_path / "install"), str(world / "clone"))
    assert found["LLMB_PYTHON"] == str(tmp_path / "install" / "venvs" / "llmb" / "bin" / "python")


def test_a_training_that_fails_shows_its_last_lines(
    quickstart: Quickstart, world: Path, tmp_path: Path, texts: Texts
) -> None:
    (world / "fails").touch()
    status, out, err = quickstart()
    assert (status, out) == (1, "")
    texts(err)
    assert f"{tmp_path / 'install'}/.llmb/logs/" in err, "where the log is"


def test_a_training_that_leaves_no_run_is_a_failure(quickstart: Quickstart, world: Path, texts: Texts) -> None:
    (world / "nothing").touch()
    status, _, err = quickstart()
    assert status == 1
    texts(err)


@pytest.mark.parametrize(("state", "status"), [("Failed", "1"), ("Success", "1"), ("Unsuccessful", "0")])
def test_a_run_that_is_no_success_is_a_failure(
    quickstart: Quickstart, world: Path, state: str, status: str, texts: Texts
) -> None:
    (world / "state").write_text(state)
    (world / "status").write_text(status)
    done, out, err = quickstart()
    assert done == 1
    assert out.startswith(f"x_1  {state}")
    texts(err)


def test_an_installation_for_something_else_only_gets_the_engine(quickstart, world, tmp_path, monkeypatch):
    install = tmp_path / "install"
    (install / ".llmb").mkdir(parents=True)
    given = {
        **{"install_path": str(install), "cluster_type": "slurm", "account": "a", "gpu_partition": "g"},
        **{"gpu_type": "h100", "workloads": "all"},
    }
    (install / ANSWERS_FILE).write_text(to_yaml(complete_answers(given, load_recipes(world / "clone"))))
    (install / "cluster_config.yaml").write_text("cluster_type: slurm\n")
    made: list[object] = []
    engine = SimpleNamespace(link=tmp_path / "engine")
    monkeypatch.setattr("llmb_install.installation.Installation.engine", lambda self: engine)
    assert quickstart(made=made)[0] == 0
    assert made == [engine]
    text = (install / "cluster_config.yaml").read_text()
    assert str(tmp_path / "engine" / "bin" / "python") in text
    assert "cluster_type: slurm" in text


# Hugging Face


HUB: Any = SimpleNamespace(folder=Path("/nonexistent"), is_complete=lambda: True)
"""The environment with the packages, which the tests' own has, too."""


class Hub:
    """Stands for ``snapshot_download``: what it was asked, and the files or errors that it gives."""

    def __init__(self, cache: Path, *answers: Exception | None) -> None:
        self.snapshot = cache / "models--meta--llama" / "snapshots" / "0123"
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.files = {"config.json": "{}", "tokenizer.json": "[1]"}

    def __call__(self, repository: str, **options: Any) -> str:
        self.asked.append({"repository": repository, **options})
        answer = self.answers.pop(0) if self.answers else None
        if answer:
            raise answer
        self.snapshot.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (self.snapshot / name).write_text(text)
        return str(self.snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hugging_face")
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    monkeypatch.setattr("llmb_install.parts.hugging_face.check_token", lambda token: "")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    import stamina

    stamina.set_testing(True, attempts=3)
    monkeypatch.setattr("llmb_install.parts.hugging_face._ATTEMPTS", 3)
    return hub


@pytest.fixture(autouse=True)
def _real_waits() -> Any:
    yield
    import stamina

    stamina.set_testing(False)


def ensure(files: ModelFiles) -> bool:
    with Reporter(None, verbose=False) as reporter:
        return files.ensure(reporter)


def response(status: int) -> Any:
    import requests

    answer = requests.Response()
    answer.status_code = status
    answer.request = requests.Request("GET", "https://huggingface.co").prepare()
    return answer


def test_files_are_fetched_once_and_then_found_without_network(hub: Hub, tmp_path: Path) -> None:
    files = ModelFiles("meta/llama@0123", tmp_path, HUB, Secret("hf_x"))
    assert ensure(files)
    fetch, look = hub.asked
    assert fetch == {
        **{"repository": "meta/llama", "revision": "0123", "cache_dir": tmp_path / "hugging_face"},
        **{"allow_patterns": list(PATTERNS), "token": "hf_x", "force_download": False},
    }
    assert (look["local_files_only"], look["revision"], look["allow_patterns"]) == (True, "0123", list(PATTERNS))
    receipt = json.loads((tmp_path / ".llmb" / "receipts" / "hugging_face+meta+llama.json").read_text())
    assert receipt == {
        **{"schema": 1, "repository": "meta/llama", "revision": "0123"},
        "files": {
            "models--meta--llama/snapshots/0123/config.json": 2,
            "models--meta--llama/snapshots/0123/tokenizer.json": 3,
        },
    }
    assert files.is_complete()
    assert files.verify() is None
    assert not ensure(files)
    assert len(hub.asked) == 3, "the thorough check looks once more"
    (hub.snapshot / "config.json").write_text("{} ")
    assert not files.is_complete()


def test_without_a_token_none_is_sent(hub: Hub, tmp_path: Path) -> None:
    ensure(ModelFiles("meta/llama@0123", tmp_path, HUB))
    assert hub.asked[0]["token"] is False


def test_a_repository_without_such_files_is_refused(hub: Hub, tmp_path: Path, texts: Texts) -> None:
    hub.files = {}
    with texts.raises(EnvironmentLacks):
        ensure(ModelFiles("meta/llama@0123", tmp_path, HUB))
    assert not (tmp_path / ".llmb").exists()


def test_a_gated_repository_names_the_page_to_visit(hub: Hub, tmp_path: Path, texts: Texts) -> None:
    from huggingface_hub.errors import GatedRepoError

    hub.answers = [GatedRepoError("no", response=response(403))]
    with texts.raises(EnvironmentLacks):
        ensure(ModelFiles("meta/llama@0123", tmp_path, HUB, Secret("x")))


@pytest.mark.parametrize("token", [None, Secret("x")])
def test_a_hidden_repository_asks_for_a_token(hub, tmp_path, token, monkeypatch, texts: Texts):
    from huggingface_hub.errors import RepositoryNotFoundError

    monkeypatch.setenv("HF_ENDPOINT", "https://mirror")
    hub.answers = [RepositoryNotFoundError("no", response=response(404))]
    with texts.raises(EnvironmentLacks):
        ensure(ModelFiles("meta/llama@0123", tmp_path, HUB, token))


def test_a_token_that_is_rejected_is_named_where_files_do_not_come(
    hub: Hub, tmp_path: Path, monkeypatch, texts: Texts
) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    monkeypatch.setattr("llmb_install.parts.hugging_face.check_token", lambda token: "rejected")
    files = ModelFiles("meta/llama@0123", tmp_path, HUB, Secret("x"))
    hub.answers = [HfHubHTTPError("Invalid credentials", response=response(401))]
    with texts.raises(EnvironmentLacks):
        ensure(files)
    assert ensure(files), "who gets files is not asked"


def test_the_packages_come_from_an_environment_of_their_own(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    packages = tmp_path / "venvs" / "hub-0" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "only_there.py").write_text("")
    its: Any = SimpleNamespace(folder=packages.parents[2], is_complete=lambda: False)
    files = ModelFiles("meta/llama@0123", tmp_path, its)
    assert files.needs == ("hub",)
    assert ensure(files)
    importlib.import_module("only_there")
    assert sys.path.count(str(packages)) == 1
    assert sys.path[-1] == str(packages), "the tool's own come first"
    assert "missing" in (files.verify() or ""), "without them nothing is looked for"


def test_a_server_in_trouble_is_asked_again_and_another_error_is_not(hub: Hub, tmp_path: Path, texts: Texts) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    busy = OSError("no connection in the cache")
    busy.__cause__ = HfHubHTTPError("busy", response=response(500))
    hub.answers = [HfHubHTTPError("slow down", response=response(429)), busy]
    assert ensure(ModelFiles("meta/llama@0123", tmp_path, HUB))
    assert len(hub.asked) == 4
    shutil.rmtree(tmp_path / ".llmb")
    hub.answers = [HfHubHTTPError("bad\nrequest", response=response(499))]
    with texts.raises(EnvironmentLacks):
        ensure(ModelFiles("meta/llama@0123", tmp_path, HUB))
    assert len(hub.asked) == 5


def test_files_that_a_job_would_not_find_are_a_failure(hub: Hub, tmp_path: Path, texts: Texts) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    files = ModelFiles("meta/llama@0123", tmp_path, HUB)
    hub.answers = [None, LocalEntryNotFoundError("nothing here")]
    with texts.raises(EnvironmentLacks):
        ensure(files)
    assert ensure(files)
    hub.answers = [LocalEntryNotFoundError("nothing here")]
    texts(files.verify())
    assert (files.download, files.disk) == (20_000_000, 20_000_000)
