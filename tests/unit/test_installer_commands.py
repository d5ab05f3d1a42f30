"""The installer's commands in this process: what they would do, record, refuse and show."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_install import arguments
from llmb_install.answers.answers import ANSWERS_FILE, complete_answers, to_yaml
from llmb_install.installation import Installation
from llmb_install.main import main
from llmb_install.parts.files import answers_file
from llmb_install.working.artefact import Artefact
from llmb_install.working.reporter import Reporter
from llmb_install.working.transaction import install_lock
from support.file_part import Part
from support.installer import RECIPES, Run, install, run, stored  # noqa: F401  (fixtures)
from support.texts import Texts

# ruff: noqa: F811  (fixtures)

ALL = sorted(RECIPES)
LOCAL = ("--cluster-type", "local", "--gpu-type", "cpu", "--workloads", "all")

SLURM = {
    **{"cluster_type": "slurm", "gpu_type": "h100", "account": "a", "gpu_partition": "g"},
    "workloads": ["pretrain_grok1", "pretrain_llama3.1"],
}


def test_a_dry_run_lists_what_is_missing_and_makes_nothing(run: Run, install: Path, texts: Texts) -> None:
    status, out, _ = run(*LOCAL, "--dry-run")
    assert status == 0
    lines = out.splitlines()
    steps = [line for line in lines if not line.startswith(" ")]
    assert steps[0] == "answers"
    texts(steps[-1])
    assert not install.exists()
    status, out, _ = run(*LOCAL, "--dry-run", "--json")
    data = json.loads(out)["data"]
    assert (data["install_path"], data["dry_run"]) == (str(install), True)
    assert [row["step"] for row in data["todo"]] == steps[:-1]
    assert all(set(row) == {"step", "does", "download", "disk"} for row in data["todo"])


def test_answers_are_recorded_and_played_back(run: Run, install: Path, tmp_path: Path, texts: Texts) -> None:
    play = tmp_path / "play.yaml"
    status, out, err = run(*LOCAL, "--record", str(play))
    assert (status, out) == (0, "")
    texts(err)
    assert f"install_path: {install}" in play.read_text()
    assert json.loads(run(*LOCAL, "--record", str(play), "--json")[1])["data"] == {"recorded": str(play)}
    one = run("--play", str(play), "--dry-run")
    assert one[0] == 0
    assert one[1] == run(*LOCAL, "--dry-run")[1]


def test_the_catalogue_of_workloads(run: Run) -> None:
    status, out, _ = run("--list-workloads")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ALL
    assert out.splitlines()[0].split()[1:] == ["Grok-1", RECIPES["pretrain_grok1"].image]
    rows = json.loads(run("--list-workloads", "--json")[1])["data"]["workloads"]
    assert rows[0] == {
        **{"workload": "pretrain_grok1", "title": "Grok-1", "sizes": ["314b", "smoke"]},
        "image": RECIPES["pretrain_grok1"].image,
    }


def test_a_folder_with_other_things_is_refused(run: Run, install: Path, texts: Texts) -> None:
    install.mkdir()
    (install / "thesis.tex").touch()
    status, _, err = run(*LOCAL)
    assert status == 2
    texts(err)
    assert run(*LOCAL, "--dry-run")[0] == 0, "which makes nothing"


def test_flags_change_the_answers_of_an_installation_and_the_others_are_named(run, install, texts: Texts):
    stored(install, workloads=["pretrain_grok1"])
    status, out, err = run("--workloads", "nemotron4", "--dry-run")
    assert status == 0
    texts(err)
    assert "answers\n" in out, "the answers are written anew"
    status, out, err = run(*LOCAL[:4], "--workloads", "grok1", "--dry-run")
    assert err == ""
    assert "answers\n" not in out


def test_workloads_are_added_to_those_there_are(run: Run, install: Path, texts: Texts) -> None:
    stored(install, workloads=["pretrain_grok1"])
    status, out, _ = run("add", "nemotron4", "--dry-run")
    assert status == 0
    assert "answers\n" in out
    assert run("add", "nemotron5", "--dry-run")[0] == 2
    status, _, err = run("add", "grok1", path=install / "none")
    assert status == 3
    texts(err)


def test_a_further_engine_is_added_to_a_workload_that_runs_on_it(run: Run, install: Path, texts: Texts) -> None:
    stored(install, workloads=["pretrain_grok1", "pretrain_llama3.1"])
    assert "engine-cpu-0.6" not in run("add", "llama3.1", "--dry-run")[1]
    status, out, _ = run("add", "llama3.1", "--engines", "0.6", "--dry-run")
    assert (status, "engine-cpu-0.6\n" in out) == (0, True)
    status, _, err = run("add", "grok1", "--engines", "0.6", "--dry-run")
    assert status == 2
    texts(err)


def test_what_is_installed_and_what_could_be(run: Run, install: Path) -> None:
    status, out, _ = run("list")
    assert (status, out.splitlines()[0].startswith(f"{install}: ")) == (0, True)
    assert out.splitlines()[1].split() == ["pretrain_grok1", "Grok-1", "-"]
    stored(install, **SLURM)
    lines = run("list")[1].splitlines()
    assert lines[0] == str(install)
    assert [line.split("  ")[-1].strip() for line in lines[1:]] == ["image missing", "image missing", "-", "-", "-"]
    rows = json.loads(run("list", "--json")[1])["data"]["workloads"]
    assert [row["workload"] for row in rows] == ALL
    assert [row["installed"] for row in rows] == [True, True, False, False, False]
    assert rows[0]["image"] == str(install / "images" / "nvidia+nemo+26.02.01.sqsh")
    assert rows[0]["image_complete"] is False


def test_without_images_a_workload_is_installed_all_the_same(run: Run, install: Path) -> None:
    stored(install, workloads=["pretrain_grok1"])
    assert run("list")[1].splitlines()[1].split() == ["pretrain_grok1", "Grok-1", "installed"]
    row = json.loads(run("list", "--json")[1])["data"]["workloads"][0]
    assert (row["image"], row["image_complete"]) == (None, None)


def test_a_place_that_is_no_clone_is_refused(run, monkeypatch, tmp_path, texts: Texts):
    monkeypatch.setenv("LLMB_REPO", str(tmp_path))
    status, _, err = run("list")
    assert status == 3
    texts(err)


def test_a_long_path_stays_on_its_line(tmp_path: Path) -> None:
    path = f"/lustre/{'a long name ' * 20}end"
    given = {"install_path": path, "cluster_type": "local", "gpu_type": "cpu", "workloads": "all"}
    assert f"install_path: {path}" in to_yaml(complete_answers(given, RECIPES)).splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a folder twice")
@pytest.mark.parametrize("name", ["install", "it's odd", "a #b"])
def test_a_folder_that_is_mounted_twice_has_the_name_that_it_was_installed_by(tmp_path: Path, name: str) -> None:
    install, twice = tmp_path / name, tmp_path / "twice"
    (install / ".llmb").mkdir(parents=True)
    twice.mkdir()
    subprocess.run(["mount", "--bind", install, twice], check=True)
    try:
        assert arguments.real_path(twice) == twice
        answers = complete_answers(
            {"cluster_type": "local", "gpu_type": "cpu", "workloads": "all", "install_path": str(install)}, RECIPES
        )
        (install / ".llmb" / "answers.yaml").write_text(to_yaml(answers))
        assert arguments.real_path(twice) == install
        (tmp_path / "copy" / ".llmb").mkdir(parents=True)
        shutil.copy(install / ".llmb" / "answers.yaml", tmp_path / "copy" / ".llmb")
        assert arguments.real_path(tmp_path / "copy") == tmp_path / "copy", "another one"
    finally:
        subprocess.run(["umount", twice], check=True)


# What is made


@pytest.fixture
def things(install: Path, monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """The only parts of every installation, beside its answers."""
    things = [Part(install / name) for name in ("one", "two with hf_secret")]

    def artefacts(self: Installation) -> list[Artefact]:
        answers = answers_file(self.path / ANSWERS_FILE, to_yaml(self.answers))
        return [answers, *things]

    monkeypatch.setattr(Installation, "artefacts", artefacts)
    monkeypatch.setattr(Installation, "environments", lambda self: [])
    return things


def test_what_is_missing_is_made_once_and_secrets_are_hidden(run, install, things, monkeypatch, texts: Texts):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    status, out, err = run(*LOCAL, "--verbose")
    assert (status, out) == (0, f"installed in {install}: {', '.join(ALL)}\n")
    texts(err)
    assert "hf_secret" not in "".join(log.read_text() for log in (install / ".llmb" / "logs").iterdir())
    status, out, err = run(*LOCAL)
    assert (status, out.count("\n")) == (0, 1)
    texts(out)
    assert "next:" not in err
    assert len(list((install / ".llmb" / "logs").iterdir())) == 1, "nothing is logged where nothing is done"
    texts(run(*LOCAL, "--dry-run")[1])
    things[0].path.unlink()
    data = json.loads(run(*LOCAL, "--json")[1])["data"]
    assert data == {"install_path": str(install), "ran": ["one"], "complete": True}


def test_an_installation_that_is_reached_by_a_link_is_the_same_one(
    run, install, things, tmp_path, capsys, texts: Texts
):
    link = tmp_path / "an other's name"
    link.symlink_to(install)
    assert run(*LOCAL, path=link)[0] == 0
    assert f"install_path: {install}\n" in (install / ANSWERS_FILE).read_text()
    for path in (install, link):
        texts(run(*LOCAL, path=path)[1])
    play = tmp_path / "play.yaml"
    play.write_text((install / ANSWERS_FILE).read_text().replace(str(install), str(link)))
    assert main(["--play", str(play)]) == 0
    texts(capsys.readouterr().out)


def test_a_failure_says_where_its_log_is(run, install, things, monkeypatch, texts: Texts):
    def ensure(reporter: Reporter, *, anew: bool) -> bool:
        raise EnvironmentLacks("no room", remedy="make some")

    monkeypatch.setattr(things[1], "ensure", ensure)
    status, _, err = run(*LOCAL)
    assert status == 3
    texts(err)
    assert things[0].path.exists()


def test_an_update_that_cannot_make_another_leaves_what_is_damaged(run, install, things, monkeypatch, texts: Texts):
    assert run(*LOCAL)[0] == 0
    for thing in things:
        thing.says = "bad"
    monkeypatch.setattr(things[1], "lacks", lambda: [EnvironmentLacks("no network")])
    status, _, err = run("update")
    assert status == 3
    texts(err)
    assert [thing.says for thing in things] == ["bad", "bad"]


def test_an_update_names_what_it_does_not_make(run, install, things, monkeypatch, texts: Texts):
    assert run(*LOCAL)[0] == 0
    for thing in things:
        thing.says = "bad"
    monkeypatch.setattr(things[0], "ensure", lambda reporter, *, anew: False)
    status, _, err = run("update")
    assert (status, things[1].says) == (1, None)
    texts(err)


def test_the_thorough_check_reads_every_part(run: Run, install: Path, things: list[Part], texts: Texts) -> None:
    assert run(*LOCAL)[0] == 0
    parts = json.loads(run("verify", "--json")[1])["data"]["parts"]
    assert (len(parts), any(parts.values())) == (3, False)
    status, out, _ = run("verify")
    assert (status, out.startswith(f"{install}: ")) == (0, True)
    assert re.findall(r"\d+", out.removeprefix(str(install))) == ["3"], "its parts"
    things[1].says = "it is damaged"
    status, out, err = run("verify")
    assert (status, out) == (1, "")
    texts(err)
    with install_lock(install, Reporter(None)):
        status, _, err = run("verify")
    assert (status, "llmb-install update" in err) == (1, False)
    texts(err)


def test_an_image_of_an_earlier_release_is_named(run: Run, install: Path, things: list[Part], texts: Texts) -> None:
    assert run(*LOCAL)[0] == 0
    old = install / "images" / "old.sqsh"
    old.parent.mkdir()
    old.write_bytes(bytes(5000))
    assert "old.sqsh" not in run(*LOCAL)[2], "without a receipt it is somebody else's"
    old.with_name("old.sqsh.receipt.json").write_text('{"schema": 1}')
    texts(run(*LOCAL)[2])


@pytest.mark.parametrize(("umask", "told"), [(0o077, True), (0o027, True), (0o022, False)])
def test_on_slurm_it_says_whether_colleagues_can_use_it(run, install, things, umask, told, texts: Texts):
    words = ("--cluster-type", "slurm", "--gpu-type", "h100", "--account", "a", "--gpu-partition", "g")
    before = os.umask(umask)
    try:
        status, _, err = run(*words, "--workloads", "grok1")
    finally:
        os.umask(before)
    assert status == 0, err
    assert (f"umask {umask:03o}" in err) is told
    texts(err)
