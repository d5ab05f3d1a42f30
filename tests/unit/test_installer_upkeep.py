"""Updating, removing, listing and uninstalling, and what the commands tell afterwards."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_installer_operations import LOCAL, part  # noqa: F401  (a fixture)

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.outcome import Result
from llmb_common.base.words import Secret
from llmb_install.answers.answers import ANSWERS_FILE, to_yaml
from llmb_install.installation import Installation
from llmb_install.parts.credentials import registry_key
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import unfinished
from support.file_part import Part
from support.installer import RECIPES, Run, install, run, stored  # noqa: F401  (fixtures)
from support.texts import Texts

# ruff: noqa: F811  (fixtures)


def test_an_update_makes_damaged_parts_again_under_the_lock(run, part, install, monkeypatch, texts: Texts):
    stored(install)
    part.path.touch()
    part.says = "part is bent"
    pruned: list[str] = []

    class Environment:
        def earlier_builds(self) -> list[Path]:
            return [Path("/old")]

        def prune(self) -> list[Path]:
            assert (install / ".llmb" / "lock.owner").exists()
            pruned.append("yes")
            return [Path("/old")]

    monkeypatch.setattr(Installation, "environments", lambda self: [Environment()])
    status, out, err = run("update")
    assert (status, out) == (0, f"installed in {install}: pretrain_grok1\n")
    texts(err)
    assert pruned == ["yes"]
    texts(run("update", "--dry-run")[1])
    assert pruned == ["yes"]


def test_secrets_of_the_environment_are_used_by_an_update(run, part, install, monkeypatch):
    stored(install)
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    run("update", "--dry-run")
    assert part.asked_for[-1].secrets.hf_token is not None
    run("add", "nemotron4", "--dry-run")
    assert part.asked_for[-1].secrets.hf_token is not None


def test_a_note_of_another_kind_removes_nothing(run: Run, part: Part, install: Path) -> None:
    stored(install)
    note = install / ".llmb" / "removing.json"
    for text in ('{"schema": 1, "images": "all"}', '{"schema": 1}', "{", '{"schema": 9, "images": ["a"]}'):
        note.write_text(text)
        assert run("remove", "nemotron4")[0] == 0
        assert not note.exists()


def of_an_earlier_clone(install: Path) -> None:
    answers = replace(stored(install), workloads=("pretrain_gone", "pretrain_grok1"))
    (install / ANSWERS_FILE).write_text(to_yaml(answers))


def test_a_workload_that_the_clone_lacks_is_named(run: Run, part: Part, install: Path, texts: Texts) -> None:
    of_an_earlier_clone(install)
    status, out, err = run("verify", "--json")
    assert status == 1, err
    assert "remove pretrain_gone" in json.loads(out)["data"]["parts"]["workload pretrain_gone"]
    status, _, err = run("update")
    assert status == 0
    texts(err)


def test_a_workload_of_an_earlier_release_can_be_removed(run: Run, install: Path) -> None:
    of_an_earlier_clone(install)
    assert run("remove", "pretrain_gone")[0] == 0
    assert "pretrain_gone" not in (install / ANSWERS_FILE).read_text()


def test_uninstall_takes_the_key_with_it_and_what_was_left_over(run, install, tmp_path, texts: Texts):
    stored(install)
    registry_key(install, Secret("nvapi")).ensure(Reporter(None))
    unfinished(install, "cluster_config.yaml").touch()
    (install / "cluster_config.yaml").touch()
    (install / "images").mkdir()
    status, out, err = run("uninstall", "--yes")
    assert (status, out) == (0, "")
    texts(err)
    assert not install.exists()


def test_uninstall_takes_back_the_key_that_release_0_2_put_into_the_users_file(run, install, tmp_path, texts: Texts):
    stored(install)
    theirs = tmp_path / "enroot" / ".credentials"
    theirs.parent.mkdir()
    theirs.write_text("machine nvcr.io login $oauthtoken password nvapi\n")
    note = {"schema": 1, "path": str(theirs), "sha256": hashlib.sha256(b"nvapi").hexdigest()}
    (install / ".llmb" / "credentials.json").write_text(json.dumps(note))
    status, _, err = run("uninstall", "--yes")
    assert (status, theirs.exists()) == (0, False)
    texts(err)


def test_a_damaged_installation_can_be_removed(run: Run, install: Path) -> None:
    stored(install)
    (install / ANSWERS_FILE).write_text("{")
    (install / "workloads").mkdir()
    status, out, _ = run("uninstall", "--yes", "--json")
    data = json.loads(out)["data"]
    assert (status, data) == (0, {"install_path": str(install), "removed": [], "stays": ["workloads"]})


def test_results_are_removed_as_a_link_where_they_are_one(run: Run, install: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run").touch()
    stored(install)
    (install / "workloads").symlink_to(tmp_path / "results")
    assert run("uninstall", "--yes", "--results-too")[0] == 0
    assert (tmp_path / "results" / "run").exists()
    assert not install.exists()


@pytest.mark.parametrize("where", ["stdin", "stderr"])
def test_nobody_confirms_without_a_terminal(run, install, monkeypatch, where, texts: Texts):
    stored(install)
    (install / "cluster_config.yaml").touch()
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda there=stream != where: there, raising=False)
    status, _, err = run("uninstall")
    assert status == 2
    texts(" ".join(err.split()))
    assert (install / "cluster_config.yaml").exists()


def test_what_is_listed_knows_a_whole_image(run: Run, install: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(install, cluster_type="slurm", account="a", gpu_partition="g", gpu_type="h100")
    monkeypatch.setattr("llmb_install.parts.image.Image.is_complete", lambda self: True)
    lines = run("list")[1].splitlines()
    assert lines[1].split() == ["pretrain_grok1", "Grok-1", "installed"]
    assert [line[2:30].strip() for line in lines[1:]] == sorted(RECIPES)
    assert all(line[30:67].strip() == RECIPES[line.split()[0]].title for line in lines[1:])
    assert {line[67:] for line in lines[2:]} == {"-"}


def test_both_secrets_are_hidden_whatever_prints_them(
    run: Run, part: Part, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("NGC_CLI_API_KEY", "nvapi")

    def ensure(reporter: Reporter, *, anew: bool) -> bool:
        reporter.note("hf_x and nvapi")
        raise EnvironmentLacks("it failed", remedy="try")

    monkeypatch.setattr(part, "ensure", ensure)
    status, _, err = run(*LOCAL)
    assert status == 3
    texts(err)


def test_the_doctor_needs_no_clone(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: Texts) -> None:
    monkeypatch.setenv("LLMB_REPO", str(tmp_path))
    monkeypatch.setattr("llmb_install.answers.detect.run_program", lambda *_: pytest.fail("Slurm is not here"))
    monkeypatch.setattr("llmb_install.commands.doctor_facts.command_output", lambda *_: "")
    monkeypatch.setattr("llmb_install.answers.detect.command_output", lambda *_: "")
    status, out, _ = run("doctor")
    assert status == 1
    texts(out, about="training engine")


def test_the_quickstart_too_asks_before_a_used_folder(
    run: Run, install: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    begun: list[Path] = []

    def quickstart(asked: object, clone: Path, path: Path) -> Result:
        begun.append(path)
        return Result(text="table\n")

    monkeypatch.setattr("llmb_install.commands.quickstart.quickstart", quickstart)
    install.mkdir()
    (install / "thesis").touch()
    status, _, err = run("--quickstart")
    assert (status, begun) == (2, [])
    texts(err)
    assert run("--quickstart", "--into-used-folder")[:2] == (0, "table\n")
    assert begun == [install]


def test_without_a_clone_in_the_environment_it_is_the_one_it_runs_from(run, monkeypatch):
    monkeypatch.setenv("LLMB_REPO", "")
    assert run("--list-workloads")[1].startswith("pretrain_grok1 ")
