"""The installer's command line: its help, what a line means, and what is refused."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmb_common.base.errors import ConfigError, RequestError
from llmb_install import arguments, by_argparse, by_click
from llmb_install.answers.answers import stored_answers
from llmb_install.arguments import given_by_flags
from llmb_install.options import COMMANDS
from support.golden import GOLDEN, check_golden
from support.texts import Texts

Parse = Callable[[list[str]], argparse.Namespace]
READERS: dict[str, arguments.Reader] = {"first stage": by_argparse.read, "llmb-install": by_click.read}
"""Each test of a command line is one of both: they have to agree."""


@pytest.fixture(params=READERS)
def parse(request: pytest.FixtureRequest) -> Parse:
    return functools.partial(arguments.parse, read=READERS[request.param])


def file_name(command: str) -> str:
    return f"help/llmb-install-{command}.txt"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_matches_the_golden_text(command, parse, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        parse([command, "--help"])
    assert ended.value.code == 0
    check_golden(file_name(command), capsys.readouterr().out)


@pytest.mark.parametrize("columns", ["30", "66", "80", "200"])
def test_the_first_stage_lays_out_its_help_as_click_does(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    for command in COMMANDS:
        shown = []
        for read in READERS.values():
            with pytest.raises(SystemExit):
                arguments.parse(["help", command], read)
            shown.append(capsys.readouterr().out)
        assert shown[0] == shown[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_in_the_help_is_a_line_that_works(command: str, parse: Parse) -> None:
    words = COMMANDS[command].example.split()
    assert parse(words).command == command


def test_no_golden_help_is_left_over() -> None:
    found = {f"help/{path.name}" for path in (GOLDEN / "help").glob("llmb-install*")}
    assert found == {file_name(command) for command in COMMANDS}


@pytest.mark.parametrize(
    ("started", "shown"), [("/clone/installer.py", "./installer.py"), ("/x/llmb-install", "llmb-install"), ("-c", None)]
)
def test_the_help_speaks_of_the_program_that_was_started(started, shown, parse, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [started])
    for words, usage in ((["--help"], "[--quickstart"), (["doctor", "--help"], "doctor [OPTIONS]")):
        with pytest.raises(SystemExit):
            parse(words)
        assert capsys.readouterr().out.startswith(f"Usage: {shown or 'llmb-install'} {usage}")


def test_without_a_word_nothing_is_asked_for(parse: Parse) -> None:
    assert {name: value for name, value in vars(parse([])).items() if value} == {"command": "install"}
    assert given_by_flags(parse([])) == {}


@pytest.mark.parametrize(
    ("words", "means"),
    [
        (["install", "--json"], {"command": "install", "json": True}),
        (["--play", "a", "--into-used-folder"], {"command": "install", "play": "a", "into_used_folder": True}),
        (["--record", "a", "--no-site-check"], {"command": "install", "record": "a", "no_site_check": True}),
        (["--list-workloads", "--verbose"], {"command": "install", "list_workloads": True, "verbose": True}),
        (["--quickstart"], {"command": "install", "quickstart": True}),
        (["add", "a", "--dry-run", "b"], {"command": "add", "workloads": ["a", "b"], "dry_run": True}),
        (
            ["bundle", "--to=x", "--python", "3.11", "3.12", "--json"],
            {"command": "bundle", "to": "x", "python": ["3.11", "3.12"], "json": True},
        ),
        (["bundle", "--python=3.11", "--to", "x"], {"command": "bundle", "to": "x", "python": ["3.11"]}),
        (["add", "a", "b", "--dry-run"], {"command": "add", "workloads": ["a", "b"], "dry_run": True}),
        (["remove", "a"], {"command": "remove", "workloads": ["a"]}),
        (["list", "--install-path", "/x"], {"command": "list", "install_path": "/x"}),
        (["update", "--no-space-check"], {"command": "update", "no_space_check": True}),
        (["uninstall", "--yes", "--results-too"], {"command": "uninstall", "yes": True, "results_too": True}),
        (
            ["doctor", "--account", "a", "--gpu-partition", "b", "--no-compute-node"],
            {"command": "doctor", "account": "a", "gpu_partition": "b", "no_compute_node": True},
        ),
    ],
)
def test_what_a_line_asks_for(parse: Parse, words: list[str], means: dict[str, object]) -> None:
    assert {name: value for name, value in vars(parse(words)).items() if value} == means


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--gres"], {"gres": True}),
        (["--gres", "true"], {"gres": True}),
        (["--gres", "false", "--hugging-face"], {"gres": False, "hugging_face": True}),
        (["--gpu-type", "H100", "--cluster-type", "Slurm"], {"gpu_type": "h100", "cluster_type": "slurm"}),
        (["--account", "Bench", "--workloads", "a,b"], {"account": "Bench", "workloads": "a,b"}),
        (["--no-space-check"], {"space_check": False}),
        (["--install-path", "/x", "--json"], {"install_path": "/x"}),
    ],
)
def test_answers_on_the_command_line(parse: Parse, words: list[str], given: dict[str, object]) -> None:
    assert given_by_flags(parse(words)) == given


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu-type", "h1000"],
        ["--gres", "maybe"],
        ["bundle", "--to", "x", "--platform", "arm"],
        ["add"],
        ["adopt"],
        ["adopt", "a", "b"],
        ["bundle"],
        ["bundle", "--to"],
        ["--account", "--json"],
        ["bundle", "--to", "x", "--python", "--json"],
        ["--json=1"],
        ["list", "--dry-run"],
        ["remove", "a", "--hf-token", "x"],
        ["list", "--yes"],
        ["list", "-x"],
        ["list", "--instal-path", "/a b"],
        ["--jsonn=1"],
        ["--json", "verify"],
        ["list", "verify"],
        ["grok1"],
        ["verfy", "--json"],
    ],
)
def test_what_is_not_known_is_named(parse: Parse, words: list[str], texts: Texts) -> None:
    with texts.raises(RequestError) as caught:
        parse(words)
    assert caught.value.code == "usage"


def test_a_line_with_a_secret_is_not_repeated(parse: Parse, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    monkeypatch.setenv(arguments.KEPT, "HF_TOKEN")
    with texts.raises(RequestError) as caught:
        parse(["--jsonn"])
    monkeypatch.delenv(arguments.KEPT)
    for words in (["--hf-tokn", "hf_canary"], ["--hf-tokn=hf_canary"], ["add", "--ngc-apikey", "hf_canary", "grok1"]):
        with texts.raises(RequestError) as caught:
            parse(words)
        assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["--play", "a"],
        ["--record", "a"],
        ["--list-workloads"],
        ["--dry-run"],
        ["--json"],
        ["--gres"],
        ["--workloads", "all"],
    ],
)
def test_the_quickstart_leaves_nothing_else_to_decide(parse: Parse, words: list[str], texts: Texts) -> None:
    with texts.raises(RequestError):
        parse(["--quickstart", *words])


def test_of_several_the_first_by_name_is_refused(parse: Parse, texts: Texts) -> None:
    words = ["--workloads", "all", "--record", "a", "--json", "--gres", "--arch", "x86_64", "--env-type", "uv"]
    with texts.raises(RequestError):
        parse(["--quickstart", *words])


def test_a_secret_is_one_word(texts: Texts) -> None:
    for secret in ("a b", "a\n", "\ta"):
        with texts.raises(RequestError):
            arguments.take_secrets(["--hf-token", secret])
    with texts.raises(RequestError):
        arguments.take_secrets(["--ngc-api-key"])
    assert arguments.take_secrets(["--hf-token=--odd", "x"]) == (
        ["x"],
        {"HF_TOKEN": "--odd", arguments.KEPT: "HF_TOKEN"},
    )
    assert arguments.take_secrets(["--json"]) == (["--json"], {}), "nothing is to be kept where nothing was given"


def test_where_to_install(parse: Parse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLMB_INSTALL", raising=False)
    assert arguments.install_path(parse([]), Path("/clone")) == Path("/clone/llmb_install")
    monkeypatch.setenv("LLMB_INSTALL", "/there")
    assert arguments.install_path(parse([]), Path("/clone")) == Path("/there")
    assert arguments.install_path(parse(["--install-path", "here"]), Path("/clone")) == tmp_path / "here"
    assert arguments.install_path(parse(["list", "--install-path", "~/x"]), Path("/clone")) == tmp_path / "x"


@pytest.mark.parametrize("kind", ["fifo", "endless", "circle"])
def test_answers_that_never_end_are_not_waited_for(tmp_path: Path, kind: str, texts: Texts) -> None:
    answers = tmp_path / ".llmb" / "answers.yaml"
    answers.parent.mkdir()
    os.mkfifo(answers) if kind == "fifo" else answers.symlink_to("/dev/zero" if kind == "endless" else answers)
    assert arguments.real_path(tmp_path) == tmp_path
    with texts.raises(ConfigError):
        stored_answers(tmp_path)


def test_help_that_nobody_gets_is_an_error(parse: Parse, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with texts.raises(OSError):
            parse(["add", "--help"])


# ``--json`` of the installer: the envelope that llmb-run has, for results and for errors, whatever the command.


CLONE = Path(__file__).resolve().parents[2]


def installer(*words: str, path: Path) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [sys.executable, "-m", "llmb_install", *words, "--json", "--install-path", str(path)],
        env={**os.environ, "LLMB_REPO": str(CLONE)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = json.loads(done.stdout)
    assert list(said) == ["schema", "command", "ok", "data", "error", "notices"]
    assert said["ok"] == (done.returncode == 0)
    return done.returncode, said, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "command", "keys"),
    [
        (["list"], "list", ["install_path", "workloads"]),
        (["--list-workloads"], "install", ["workloads"]),
        (
            ["--cluster-type", "local", "--gpu-type", "cpu", "--workloads", "all", "--dry-run"],
            "install",
            ["dry_run", "install_path", "todo"],
        ),
    ],
)
def test_a_result_is_data_in_the_envelope(words: list[str], command: str, keys: list[str], tmp_path: Path) -> None:
    status, said, _ = installer(*words, path=tmp_path / "none")

    assert (status, said["schema"], said["command"], said["error"]) == (0, 1, command, None)
    assert sorted(said["data"]) == keys


def test_a_site_with_a_blocker_has_its_checks_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text("cluster_type: slurm\n")

    status, said, _ = installer("doctor", "--no-compute-node", path=tmp_path)

    assert (status, said["command"], said["ok"], said["error"]) == (1, "doctor", False, None)
    assert {check["level"] for check in said["data"]["checks"]} >= {"blocks"}


@pytest.mark.parametrize(
    ("words", "command", "code", "exit_status"),
    [
        (["verify"], "verify", "environment", 3),
        (["uninstall"], "uninstall", "environment", 3),
        (["update", "--no-such-flag"], "update", "usage", 2),
        (["--workloads", "no-such"], "install", "missing-answers", 2),
    ],
)
def test_an_error_names_the_command_and_is_told_to_people_too(
    words, command, code, exit_status, tmp_path, texts: Texts
):
    status, said, shown = installer(*words, path=tmp_path / "none")

    assert (status, said["command"], said["data"]) == (exit_status, command, None)
    assert (said["error"]["code"], said["error"]["exit_status"]) == (code, exit_status)
    texts(shown)


def test_a_damaged_installation_is_reported_part_by_part_and_as_an_error(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / ".llmb").mkdir()
    (tmp_path / ".llmb" / "answers.yaml").write_text(
        "schema: 1\ninstall_path: x\ncluster_type: local\ngpu_type: h100\nworkloads: [pretrain_grok1]\n"
        "arch: x86_64\ninstall_method: local\nruntime: none\nenv_type: venv\n"
    )

    status, said, shown = installer("verify", path=tmp_path)

    assert (status, said["error"]["code"]) == (1, "failed")
    assert f"{tmp_path}/bin" in said["data"]["parts"]["commands"]
    assert said["data"]["parts"]["secret-files"] is None
    texts(shown)
