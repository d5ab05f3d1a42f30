"""Where the installer's answers come from, what is told about them, and what its commands leave."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml

from llmb_common.base.errors import Interrupted, RequestError
from llmb_common.base.words import Secret
from llmb_install.answers.answers import ANSWERS_FILE, complete_answers, required_answers, to_yaml
from llmb_install.answers.detect import Site, parse_sinfo
from llmb_install.answers.given import Given
from llmb_install.answers.questions import Answers
from llmb_install.commands import operations
from llmb_install.commands.operations import describe
from llmb_install.installation import Installation
from llmb_install.parts.credentials import Secrets
from llmb_install.working.artefact import Artefact, Room
from llmb_install.working.reporter import Reporter
from support.file_part import Part
from support.installer import CLONE, RECIPES, Run, install, run, stored  # noqa: F401  (fixtures)
from support.texts import Texts

# ruff: noqa: F811  (fixtures)

LOCAL = ("--cluster-type", "local", "--gpu-type", "cpu", "--workloads", "grok1")
SLURM = ("--cluster-type", "slurm", "--gpu-type", "h100", "--account", "a", "--gpu-partition", "g")


@pytest.fixture
def part(install: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    """The only part of every installation."""
    part = Part(install / ".llmb" / "part", 2 * 10**6, 3 * 10**9)

    def artefacts(self: Installation) -> list[Artefact]:
        part.asked_for.append(self)
        return [part]

    monkeypatch.setattr(Installation, "artefacts", artefacts)
    monkeypatch.setattr(Installation, "environments", lambda self: [])
    return part


def wanted(part: Part) -> Answers:
    """The answers with which it was last asked for."""
    return part.asked_for[-1].answers


# Play files and flags


def test_flags_come_before_a_play_file_and_the_files_folder_before_the_default(
    run: Run, part: Part, install: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = tmp_path / "play.yaml"
    text = "schema: 1\ncluster_type: local\ngpu_type: cpu\nworkloads: [grok1]\nhf_token: hf_x\n"
    play.write_text(f"{text}install_path: {install}\nenv_type: conda\n")
    monkeypatch.setenv("LLMB_INSTALL", str(tmp_path / "elsewhere"))
    assert run("--play", str(play), "--env-type", "uv", "--dry-run", path=None)[0] == 0
    assert (wanted(part).env_type, wanted(part).install_path) == ("uv", str(install))
    secrets = part.asked_for[-1].secrets
    assert (secrets.hf_token.reveal(), secrets.keep) == ("hf_x", {"hf_token"})
    play.write_text(text)
    assert run("--play", str(play), "--dry-run", path=None)[0] == 0
    assert wanted(part).install_path == str(tmp_path / "elsewhere")


PLAY = "schema: 1\ncluster_type: slurm\naccount: a\ngpu_partition: g\ngpu_type: h100\nworkloads: [grok1]\n"


def test_nobody_is_asked_how_ranks_start(run: Run, part: Part, tmp_path: Path) -> None:
    run(*SLURM, "--workloads", "grok1", "--dry-run")
    assert wanted(part).mpi is None
    play = tmp_path / "play.yaml"
    play.write_text(PLAY)
    assert "mpi" not in run("--play", str(play), "--dry-run")[2]
    assert wanted(part).mpi is None


@pytest.mark.parametrize(
    ("mpi", "kept"),
    [
        ("pmix_v5", None),  # what release 0.2 found here, and recorded
        ("none", "none"),
        ("pmi2", "pmi2"),
    ],
)
def test_a_play_file_of_release_0_2_installs(run, part, tmp_path, mpi, kept, texts: Texts) -> None:
    play = tmp_path / "play.yaml"
    play.write_text(f"{PLAY}mpi: {mpi}\n")
    status, _, err = run("--play", str(play), "--dry-run")
    assert (status, wanted(part).mpi) == (0, kept)
    texts(err.splitlines()[0])
    assert part.asked_for[-1].site_values()["slurm"].get("mpi") == kept


@pytest.mark.parametrize("mpi", ["'pmix; rm'", "5"])
def test_a_play_file_whose_mpi_is_no_name_is_refused(
    run: Run, part: Part, tmp_path: Path, mpi: str, texts: Texts
) -> None:
    play = tmp_path / "play.yaml"
    play.write_text(f"{PLAY}mpi: {mpi}\n")
    status, _, err = run("--play", str(play), "--dry-run")
    assert status == 2
    texts(err)


@pytest.mark.parametrize(("site", "mpi"), [(("none", "pmi2"), "none"), (("none", "pmix"), "pmix")])
def test_what_release_0_2_would_have_found_is_left_out(run, part, install, monkeypatch, site, mpi) -> None:
    monkeypatch.setattr("llmb_install.commands.operations.mpi_types", lambda: site)
    stored(install, cluster_type="slurm", account="a", gpu_partition="g", gpu_type="h100", mpi=mpi)
    run("--gres", "--dry-run")
    assert (wanted(part).mpi, wanted(part).gres) == (None, True)


def test_an_installation_keeps_how_its_ranks_start(run: Run, part: Part, install: Path, monkeypatch) -> None:
    stored(install, cluster_type="slurm", account="a", gpu_partition="g", gpu_type="h100", mpi="none")
    run("--gres", "--dry-run")
    assert (wanted(part).mpi, wanted(part).gres) == ("none", True)
    monkeypatch.setattr("llmb_install.commands.operations.mpi_types", tuple)
    run("--gres", "--dry-run")
    assert wanted(part).mpi == "none", "Slurm does not answer: nothing is known to be found"


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("mpi: pmix_v5", "not there"),  # by the installer
        ("mpi: pmi2", "pmi2"),  # by a person, afterwards
        ("mpi: null", None),
        ("", "not there"),
    ],
)
def test_an_update_takes_out_what_the_installer_had_written(run, install, monkeypatch, written, left) -> None:
    every = Installation.artefacts
    mine = ("answers", "site-config")
    monkeypatch.setattr(Installation, "artefacts", lambda self: [p for p in every(self) if p.id in mine])
    monkeypatch.setattr(Installation, "environments", lambda self: [])
    stored(install, cluster_type="slurm", account="a", gpu_partition="g", gpu_type="h100", mpi="pmix_v5")
    before = Installation(CLONE, required_answers(install))
    (site,) = [part for part in every(before) if part.id == "site-config"]
    site.make()
    config = install / "cluster_config.yaml"
    assert "  mpi: pmix_v5\n" in config.read_text()
    config.write_text(config.read_text().replace("  mpi: pmix_v5\n", f"  {written}\n" if written else ""))
    assert run("update")[0] == 0
    assert yaml.safe_load(config.read_text())["slurm"].get("mpi", "not there") == left
    assert required_answers(install).mpi is None
    text = config.read_text()
    assert run("verify")[0] == 0
    assert run("update")[0] == 0
    assert config.read_text() == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workloads", "grok1"], "continuing with the answers of {}\n"),
        (["--cluster-type", "local", "--gpu-type", "cpu", "--workloads", "grok1"], "kept from the answers of {}: "
         "env_type uv, hugging_face yes\n"),
        ([*LOCAL, "--env-type", "uv", "--hugging-face"], ""),
    ],
)  # fmt: skip
def test_what_an_installation_keeps_is_said(run: Run, part: Part, install: Path, words: list[str], said: str) -> None:
    stored(install, env_type="uv", hugging_face=True)
    status, _, err = run(*words, "--dry-run")
    assert (status, err) == (0, said.format(install))


# Others at the same time


@pytest.fixture
def meanwhile(install: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a command gets the lock, another has added llama4_maverick."""
    real = operations.transaction

    @contextmanager
    def late(path: Path, **more: Any) -> Iterator[Reporter]:
        old = required_answers(path)
        changed = replace(old, workloads=tuple(sorted({*old.workloads, "pretrain_llama4_maverick"})))
        (path / ANSWERS_FILE).write_text(to_yaml(changed))
        with real(path, **more) as reporter:
            yield reporter

    monkeypatch.setattr(operations, "transaction", late)


@pytest.mark.parametrize(
    ("words", "workloads"),
    [
        (["add", "nemotron4"], ("grok1", "llama4_maverick", "nemotron4")),
        (["update"], ("grok1", "llama4_maverick")),
        (["--env-type", "uv"], ("grok1", "llama4_maverick")),
    ],
)
def test_what_another_command_did_meanwhile_stays(run, part, install, meanwhile, words, workloads):
    stored(install)
    status, _, err = run(*words)
    assert status == 0, err
    assert wanted(part).workloads == tuple(f"pretrain_{name}" for name in workloads)
    assert wanted(part).env_type == ("uv" if "uv" in words else "venv")


def test_answers_that_somebody_gave_are_not_mixed_with_what_another_command_did(
    run: Run,
    part: Part,
    install: Path,
    meanwhile: None,
    terminal: type[Asking],
    monkeypatch: pytest.MonkeyPatch,
    texts: Texts,
) -> None:
    sit_at_a_terminal(monkeypatch)
    stored(install)
    status, _, err = run()
    assert (status, part.path.exists()) == (3, False)
    said = " ".join(err.split())
    texts(said)


# Site checks


def test_whether_jobs_ask_for_gpus_is_what_slurm_says_unless_somebody_does(run, part, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "llmb_install.answers.detect.all_partitions", lambda: parse_sinfo("g|up|1:00|8|gpu:8\nx|up|1:00|8|(null)")
    )
    play = tmp_path / "play.yaml"
    play.write_text("cluster_type: slurm\ngpu_type: h100\naccount: a\ngpu_partition: g\nworkloads: grok1\n")
    slurm = [*SLURM, "--workloads", "grok1", "--dry-run"]
    for words, gres in (
        (slurm, True),
        ([*slurm, "--gres=false"], False),
        ([*slurm, "--gpu-partition", "x"], False),
        ([*slurm, "--gpu-type", "cpu", "--runtime", "none"], False),
        (["--play", str(play), "--dry-run"], True),
    ):
        assert run(*words)[0] == 0
        assert wanted(part).gres is gres, words


def test_scripted_answers_are_compared_with_slurm_and_recipes_unless_told_not_to(run, part, monkeypatch, texts: Texts):
    asked: list[Given] = []
    monkeypatch.setattr("llmb_install.answers.detect.slurm_problems", lambda given: asked.append(given) or [])
    b200 = [*SLURM[:2], "--gpu-type", "b200", *SLURM[4:], "--workloads", "grok1"]
    status, _, err = run(*b200)
    assert (status, len(asked)) == (2, 1)
    texts(err)
    assert run(*b200, "--no-site-check", "--dry-run")[0] == 0
    assert len(asked) == 1
    assert run(*SLURM, "--workloads", "grok1", "--dry-run")[0] == 0
    assert [given["account"] for given in asked] == ["a", "a"]


def test_an_installation_is_not_questioned_again(run, part, install, monkeypatch, texts: Texts):
    asked: list[Given] = []
    monkeypatch.setattr("llmb_install.answers.detect.slurm_problems", lambda given: asked.append(given) or [])
    stored(install, cluster_type="slurm", account="a", gpu_partition="g", gpu_type="h100", mpi="pmix")
    run("--dry-run", "--no-space-check")
    assert asked == []
    status, _, err = run("--gpu-type", "b200", "--dry-run")
    assert status == 0
    texts(err)
    assert len(asked) == 1


def test_paths_are_checked_before_anything_is_made(run: Run, part: Part, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, _, err = run(*LOCAL, path=tmp_path / "file" / "x")
    assert (status, f"install_path: {tmp_path / 'file'} " in err) == (2, True)
    assert not part.path.exists()


# What is told


def test_a_dry_run_estimates_what_is_to_come(run: Run, part: Part, texts: Texts) -> None:
    texts(run(*LOCAL, "--dry-run")[1])
    part._disk = 0
    texts(run(*LOCAL, "--dry-run")[1])
    data = json.loads(run(*LOCAL, "--dry-run", "--json")[1])["data"]
    assert data["todo"] == [{"step": "part", "does": "make part", "download": 2_000_000, "disk": 0}]


def test_what_comes_next_is_a_line_for_the_shell(run: Run, part: Part, tmp_path: Path, texts: Texts) -> None:
    odd = tmp_path / "it's odd"
    _, out, err = run(*LOCAL, path=odd)
    texts(out)
    quoted = "'" + str(odd).replace("'", "'\"'\"'") + "'"
    assert f'export LLMB_INSTALL={quoted} PATH={quoted}/bin:"$PATH"; llmb-run list' in err
    assert "details" not in err


def test_verbose_shows_details(run: Run, part: Part, texts: Texts) -> None:
    texts(run(*LOCAL, "--verbose")[2])


def test_colleagues_are_let_in_where_only_folders_are_that_there_are(
    run: Run, part: Part, install: Path, texts: Texts
) -> None:
    (install / "bin").mkdir(parents=True)
    (install / "images").mkdir()
    before = os.umask(0o077)
    try:
        _, _, err = run(*SLURM, "--workloads", "grok1", "--into-used-folder")
        assert os.umask(0o022) & 0o005
        part.path.unlink()
        _, _, open_to_all = run(*SLURM, "--workloads", "grok1")
    finally:
        os.umask(before)
    texts(err)
    assert "chmod" not in open_to_all


def test_only_an_install_says_what_comes_next(run: Run, part: Part, install: Path) -> None:
    stored(install)
    status, out, err = run("add", "nemotron4")
    assert (status, out.count("\n")) == (0, 1)
    assert out.endswith(f"{install}: pretrain_grok1, pretrain_nemotron4\n")
    assert "next:" not in err
    assert wanted(part).workloads == ("pretrain_grok1", "pretrain_nemotron4")


def test_without_a_space_check_nothing_is_remembered_of_it(run, part, install, monkeypatch):
    stored(install)
    monkeypatch.setattr(Part, "room", lambda self: [Room(install, 10**15, "it")])
    assert run("update")[0] == 3
    assert run("update", "--no-space-check")[0] == 0
    for words in (["add", "nemotron4"], ["update"]):
        assert run(*words, "--no-space-check", "--dry-run")[0] == 0
        assert wanted(part).space_check is False
        assert run(*words, "--dry-run")[0] == 0
        assert wanted(part).space_check is True


def test_the_summary_names_answers_secrets_and_what_is_to_come(run, part, install, monkeypatch, texts: Texts):
    monkeypatch.setattr(operations, "free_bytes", lambda folder: 7 * 10**9)
    answers = complete_answers(
        {**{"install_path": str(install), "cluster_type": "local", "gpu_type": "cpu", "arch": "x86_64"},
         "workloads": ["grok1", "nemotron4"], "hugging_face": True}, RECIPES
    )  # fmt: skip
    secrets = Secrets(hf_token=Secret("hf_x"), ngc_api_key=Secret("k"))
    lines = describe(Installation(CLONE, answers, secrets)).splitlines()
    assert lines[0] == ""
    texts("\n".join(lines))
    assert not [line for line in lines if line.split()[:1] in (["schema"], ["space_check"], ["account"], ["mpi"])]
    assert lines[-4:-1] == ["  hf_token        given", "  ngc_api_key     given", ""]
    assert re.findall(r"\d[\d.]*", lines[-1].replace(str(install), "")) == ["1", "2", "3.0", "7.0"]
    without = describe(Installation(CLONE, answers))
    assert "given" not in without


def test_the_summary_names_the_other_accounts(install: Path) -> None:
    answers = stored(install, cluster_type="slurm", account="bench", gpu_partition="g", gpu_type="h100")
    for accounts, line in (
        (("bench", "research", "teaching"), "  account         bench (also: research, teaching)"),
        (("bench",), "  account         bench"),
        (("research", "teaching"), "  account         bench"),  # of another cluster, with --no-site-check
    ):
        assert line in describe(Installation(CLONE, answers), accounts).splitlines()


# The dialogue


class Asking:
    """Stands for the dialogue: what it was begun with, and the answers that it gives."""

    begun: ClassVar[list[tuple[dict[str, Any], dict[str, Any]]]] = []

    def __init__(self, site: Site, recipes: object, given: dict[str, Any], defaults: dict[str, Any]) -> None:
        type(self).begun.append((given, defaults))
        self._answers = complete_answers({**defaults, **given, "workloads": ["pretrain_grok1"]}, RECIPES)

    def run(self, secrets: Secrets, summary: Callable[..., str]) -> tuple[Answers, Secrets]:
        assert "install_path" in summary(self._answers, secrets)
        return self._answers, secrets


def sit_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the test itself: pytest has other streams before."""
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, run: Run) -> type[Asking]:
    monkeypatch.setattr("llmb_install.answers.detect.detect_site", lambda: SimpleNamespace(accounts=()))
    monkeypatch.setattr("llmb_install.answers.dialogue.Dialogue", Asking)
    monkeypatch.setattr(Asking, "begun", [])
    return Asking


def test_in_a_terminal_what_is_missing_is_asked(run, part, terminal, install, monkeypatch, texts: Texts):
    sit_at_a_terminal(monkeypatch)
    install.mkdir()
    (install / "thesis").touch()
    status, _, err = run("--cluster-type", "local", "--gpu-type", "cpu")
    assert status == 0, err
    texts(err)
    ((given, defaults),) = terminal.begun
    assert given == {"install_path": str(install), "cluster_type": "local", "gpu_type": "cpu"}
    assert defaults["install_path"] == str(install)
    assert run(*LOCAL, "--dry-run")[0] == 0
    assert len(terminal.begun) == 1, "nothing is missing"
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert run("--cluster-type", "local")[0] == 2


def test_what_slurm_does_not_have_is_said_while_it_can_be_corrected(run, part, terminal, monkeypatch):
    sit_at_a_terminal(monkeypatch)
    monkeypatch.setattr("llmb_install.answers.detect.slurm_problems", lambda given: [RequestError("no account x")])

    def confirm(self: Asking, secrets: Secrets, summary: Callable[..., str]) -> tuple[Answers, Secrets]:
        with pytest.raises(RequestError, match="no account x"):
            summary(self._answers, secrets)
        raise Interrupted("the user leaves")

    monkeypatch.setattr(Asking, "run", confirm)
    assert run("--cluster-type", "local", "--gpu-type", "cpu")[0] == 130


def test_an_installation_is_asked_about_again_where_no_flag_says_anything(run, part, terminal, install, monkeypatch):
    sit_at_a_terminal(monkeypatch)
    stored(install, env_type="uv")
    assert run("--no-space-check", "--dry-run")[0] == 0
    ((given, defaults),) = terminal.begun
    assert given == {"install_path": str(install), "space_check": False}
    assert (defaults["env_type"], defaults["space_check"]) == ("uv", False)
    assert run("--env-type", "venv", "--dry-run")[0] == 0
    assert len(terminal.begun) == 1
