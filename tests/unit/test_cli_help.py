"""Help texts: golden, complete, and with the same wording wherever a command is described."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import click
import pytest

from llmb_common import __version__
from llmb_common.base.errors import RecipeError
from llmb_common.planning.request.variables import VARIABLES
from llmb_run import options
from llmb_run.app import COMMANDS, COMPLETION_VARIABLE, HIDDEN, load_command
from llmb_run.commands.start import single_command
from llmb_run.terminal import split_values
from support.cli import Cli
from support.golden import GOLDEN, check_golden
from support.next_lines import assert_can_be_pasted
from support.runs import make_run

NAMES = [name for section in COMMANDS.values() for name in section]
PAGES = [(), *((name,) for name in (*NAMES, *HIDDEN)), *(("exclude", name) for name in ("list", "add", "remove"))]


RUN_OR_FOLDER = re.compile(r"[0-9a-f]{8}|~/[a-z]+")
"""What an example names: an id, or a folder of logs."""


def file_name(page: tuple[str, ...]) -> str:
    return f"help/{'-'.join(('llmb-run', *page))}.txt"


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_help_matches_the_golden_text(cli: Cli, page: tuple[str, ...]) -> None:
    done = cli(*page, "--help")
    assert (done.status, done.err) == (0, "")
    check_golden(file_name(page), done.out)


def test_no_golden_help_is_left_over() -> None:
    assert {path.name for path in (GOLDEN / "help").glob("llmb-run*")} == {
        file_name(page).removeprefix("help/") for page in PAGES
    }


@pytest.mark.parametrize("page", [page for page in PAGES if page and page[0] not in HIDDEN], ids=" ".join)
def test_each_command_has_examples_that_can_be_pasted(page: tuple[str, ...]) -> None:
    words = " ".join(("llmb-run", *page))
    lines = (GOLDEN / file_name(page)).read_text().splitlines()
    examples = [line.strip() for line in lines if line.startswith(f"  {words}")]
    assert examples or page in [("exclude",), ("baseline",)]
    for line in examples:
        assert len(f"  {line}") <= 80
        assert_can_be_pasted(line, RUN_OR_FOLDER)


@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_command_works_and_is_not_named(cli: Cli, name: str) -> None:
    assert cli(name).status == 0
    assert name not in cli("--help").out.split()
    words = {"COMP_WORDS": f"llmb-run {name[:3]}", "COMP_CWORD": "1", COMPLETION_VARIABLE: "bash_complete"}
    assert name not in cli(**words).out
    assert "did you mean" not in cli(f"{name}d").err


@pytest.mark.parametrize("name", NAMES)
def test_the_line_in_the_overview_is_the_commands_own(name: str) -> None:
    function = load_command(name).callback
    line = next(section[name] for section in COMMANDS.values() if name in section)
    assert inspect.getdoc(function).splitlines()[0] == line


@pytest.mark.parametrize("name", [*NAMES, *HIDDEN])
def test_a_command_hands_on_what_its_action_takes(name: str) -> None:
    """Its options are the arguments of its action, by name; verbs (``baseline set``) are commands as well."""
    command = load_command(name)
    found = [command, *getattr(command, "commands", {}).values(), *getattr(command, "verbs", {}).values()]
    for one in found:
        called = re.search(r"from (llmb_run\.actions\.\w+) import (\w+)", inspect.getsource(one.callback))
        if called is None:
            assert one.commands, "only a group of verbs does nothing itself"
            continue
        action = getattr(importlib.import_module(called[1]), called[2])
        inspect.signature(action).bind(**{option.name: None for option in one.params if option.expose_value})


@pytest.mark.parametrize("variable", [name for name, known in VARIABLES.items() if known.option])
def test_an_option_for_a_variable_of_launch_sh_says_what_the_readmes_say(variable: str) -> None:
    known = VARIABLES[variable]
    (option,) = [found for found in single_command.params if known.option in found.opts]
    assert option.help.startswith(known.in_help)
    assert known.in_table.lower().split()[0].strip(",") in option.help.lower()
    assert option.metavar == (known.metavar or None)


def test_without_arguments_the_overview_is_printed(cli: Cli) -> None:
    done = cli()
    assert done.status == 0
    assert done.out.strip() == cli("--help").out.strip()


@pytest.mark.parametrize(
    ("module", "arguments", "program"),
    [
        ("llmb_run.main", [], "llmb-run"),
        ("llmb_install.main", [], "llmb-install"),
        ("llmb_install.main", ["add"], "llmb-install"),
        ("llmb_common.runs.timing.cli", ["nemo"], "parse_train_timing.sh"),
    ],
)
def test_every_program_says_its_version(module: str, arguments: list[str], program: str) -> None:
    code = f"import sys; from {module} import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == f"{program} {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "-w", "mbridge"]])
def test_nothing_heavy_is_imported_for_help_and_list(tmp_path: Path, arguments: list[str]) -> None:
    """Not even indirectly: each of these takes longer to import than the command itself."""
    (tmp_path / "cluster_config.yaml").write_text("slurm:\n  account: a\nenvironment: {NCCL_DEBUG: WARN}\n")
    code = (
        "import sys; from llmb_run.main import main; main(sys.argv[1:]);"
        "heavy = {'rich', 'requests', 'questionary', 'huggingface_hub', 'sqlite3', 'jinja2', 'yaml'};"
        "heavy |= {'msgspec'} if '--help' in sys.argv else set();"
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *arguments]
    env = {**os.environ, "LLMB_INSTALL": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == ""


def test_a_job_that_is_not_followed_loads_nothing_that_measures_runs(tmp_path: Path) -> None:
    code = "import sys; from llmb_run.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    words = ["single", "-w", "grok1", "-s", "smoke", "--dry-run"]
    env = {**os.environ, "LLMB_INSTALL": str(tmp_path), "CLUSTER_TYPE": "local"}
    done = subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, timeout=600)
    assert done.stdout.startswith("#!/bin/bash")
    assert "llmb_common.measured.measure" not in done.stderr.split()


def test_a_plan_without_checkpoints_loads_nothing_that_submits_jobs(tmp_path: Path) -> None:
    code = "import sys; from llmb_run.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    words = ["plan", "-w", "llama3.1", "-s", "8b", "--dtype", "fp8", "--scale", "8", "--gpu-type", "h100"]
    env = {**os.environ, "LLMB_INSTALL": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, timeout=600)
    assert done.stdout.startswith("fits")
    assert {"llmb_run.starting.submitting", "llmb_common.submission.jobs"} & set(done.stderr.split()) == set()


def run_llmb(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", "llmb_run", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("shell", "words", "known", "unknown"),
    [
        *((shell, "llmb-run re", "results", "list") for shell in ("zsh", "fish")),
        *((shell, "llmb-run accept ./", "file", "smoke") for shell in ("zsh", "fish")),
        ("bash", "llmb-run re", "results", "list"),
        ("bash", "llmb-run single -w pretrain_gr", "pretrain_grok1", "pretrain_llama3.1"),
        ("bash", "llmb-run single -w pretrain_grok1 -s 3", "314b", "405b"),
        ("bash", "llmb-run single -w pretrain_grok1 -s 314b --scale 5", "512", "1024"),
        ("bash", "llmb-run list --gpu-type GB", "gb300", "h100"),
        ("bash", "llmb-run single --engine 0.", "0.6", "0.1"),
        ("bash", "llmb-run jobs --state time", "TIMEOUT", "RUNNING"),
        ("bash", "llmb-run accept smo", "smoke", "gb300"),
        ("bash", "llmb-run accept ./", "file", "smoke"),
        ("bash", "llmb-run accept sh", "show", "gb300"),
        ("bash", "llmb-run accept smoke sh", "", "show"),
        ("bash", "llmb-run report --html ./", "file", "plain"),
        ("bash", "llmb-run exclude re", "remove", "add"),
        ("bash", "llmb-run results --full", "--full-names", "--format"),
        ("bash", "llmb-run sweep -w grok1 --vary t", "tp=", "fsdp="),
        ("bash", "llmb-run ab -w grok1 --change s", "size=", "tp="),
        ("bash", "llmb-run jobs --where FP8", "FP8_RECIPE=", "size="),
        ("bash", "llmb-run sweep -w pretrain_grok1 --vary size=", "size=314b", "size=405b"),
        ("bash", "llmb-run sweep -w grok1 --vary tp=1,", "tp=1,2", "tp=1,1"),
        ("bash", "llmb-run single --set ", "seq_length=", "size="),
    ],
)
def test_completion_knows_commands_options_and_values(
    cli: Cli, shell: str, words: str, known: str, unknown: str
) -> None:
    last = words.split()[-1]
    count = str(len(words.split(" ")) - 1)
    variables = {"COMP_WORDS": words, "COMP_CWORD": last if shell == "fish" else count}
    done = cli(_LLMB_RUN_COMPLETE=f"{shell}_complete", **variables)
    assert known in done.out, done.err
    assert unknown not in done.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_once_and_can_be_shown(shell: str, tmp_path: Path) -> None:
    variables = {"SHELL": f"/usr/bin/{shell}", "HOME": str(tmp_path)}
    shown = run_llmb("--show-completion", **variables)
    assert f"_LLMB_RUN_COMPLETE={shell}_complete" in shown.stdout
    assert (shell == "fish") == ("string split -m 1" in shown.stdout), "fish: whole lines, commas included"
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'")
    for _ in range(2):
        done = run_llmb("--install-completion", **variables)
        assert done.returncode == 0, done.stderr
    (script,) = [path for path in tmp_path.rglob("*llmb-run*") if path.is_file()]
    assert script.read_text() == shown.stdout
    assert str(script) in done.stdout
    lines = (tmp_path / ".bashrc").read_text().splitlines()
    loaders = ["source ~/.local/share/llmb/llmb-run.bash"] if shell == "bash" else []
    assert lines == ["alias ll='ls -l'", *loaders]


def test_bash_loads_the_installed_completion(tmp_path: Path) -> None:
    variables = {"SHELL": "/bin/bash", "HOME": str(tmp_path)}
    assert run_llmb("--install-completion", **variables).returncode == 0
    ask = "source ~/.bashrc; complete -p llmb-run"
    done = subprocess.run(["bash", "-c", ask], env={**os.environ, **variables}, capture_output=True, text=True)
    assert "_llmb_run_completion" in done.stdout, done.stderr


@pytest.mark.parametrize(("typed", "offered"), [("tp=", "1 2 4 8"), ("tp=1,", "1,2 1,4 1,8"), ("fs", "fsdp=")])
def test_bash_replaces_only_what_stands_behind_the_equals_sign(tmp_path: Path, typed: str, offered: str) -> None:
    """It takes ``tp=4`` for three words, and click would see the last alone."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = bin_folder / "llmb-run"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m llmb_run "$@"\n')
    program.chmod(0o755)
    line = f"llmb-run sweep -w grok1 --vary {typed}"
    ask = (
        "source <(llmb-run --show-completion); compopt() { :; }\n"
        f"COMP_LINE='{line}'; COMP_POINT={len(line)}; _llmb_run_completion llmb-run; echo \"${{COMPREPLY[*]}}\""
    )
    variables = {**os.environ, "SHELL": "/bin/bash", "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ask], env=variables, capture_output=True, text=True)
    assert done.stdout == f"{offered}\n", done.stderr


def test_no_completion_for_a_shell_that_nothing_is_known_of() -> None:
    done = run_llmb("--install-completion", SHELL="/bin/tcsh")
    assert (done.returncode, "SHELL=/bin/tcsh" in done.stderr) == (2, True)


def test_an_option_may_be_repeated_and_hold_commas() -> None:
    assert split_values(["a,b", " c ,", "a"]) == ["a", "b", "c"]


def test_words_for_the_shell(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    some = click.Context(click.Command("single"))
    assert options.complete_workloads(some, some.command, "pretrain_g") == ["pretrain_grok1"]
    assert options.complete_dtypes(some, some.command, "") == ["bf16", "fp8", "nvfp4"]
    some.params["workload"] = "pretrain_grok1"
    assert options.complete_dtypes(some, some.command, "f") == ["fp8"]
    assert options.complete_sizes(some, some.command, "") == ["314b", "smoke"]
    record = make_run(cli.install)
    run = record.paths.run_id
    assert options.complete_runs(some, some.command, run[:3]) == [run]
    assert options.complete_runs(some, some.command, "pret") == [record.paths.name]
    assert options.complete_runs(some, some.command, "pre") == [], "of a name, more than a little must be there"
    cli.patch.setattr("llmb_common.runs.index.database._BUSY_SECONDS", 0.0)
    with contextlib.closing(sqlite3.connect(cli.install / ".llmb" / "index.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert options.complete_runs(some, some.command, "") == [run], "of the folders"
    assert capsys.readouterr().err == "", "the notice of that would be in the middle of the line"
    cli.patch.setattr("llmb_common.runs.index.search.find_runs", None)
    assert options.complete_runs(some, some.command, "") == [run], "of the index alone, once there is one"
    (cli.install / "clone" / "mine").mkdir(parents=True)
    (cli.install / "clone" / "mine" / "recipe.yaml").write_text("name: mine\nworkload: pretrain_mine\n")
    (cli.install / "cluster_config.yaml").write_text(f"slurm: {{account: a}}\nrepo: {cli.install}/clone\n")
    assert options.complete_workloads(some, some.command, "") == ["pretrain_mine"], "of the site's clone"
    cli.patch.setenv("LLMB_REPO", "/nonexistent")
    assert options.complete_workloads(some, some.command, "") == []


def test_completion_of_suites_survives_a_broken_recipe(cli: Cli) -> None:
    def broken() -> dict[str, str]:
        raise RecipeError("recipe.yaml:3: no")

    cli.patch.setattr("llmb_run.acceptance.suite.suites", broken)
    some = click.Context(click.Command("accept"))
    (found,) = options.complete_suites(some, click.Argument(["suite"]), "exem")
    assert found.type == "file"


def test_what_commands_take_is_known_without_what_they_do() -> None:
    """Each key that a user presses for completion starts a process: it must not load planners and statistics."""
    asks = (
        "import sys; from llmb_run.app import COMMANDS, load_command\n"
        "for names in COMMANDS.values():\n"
        "    for name in names: load_command(name)\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "llmb_run.commands.start" in loaded
    assert {name for name in loaded if name.startswith(("llmb_run.actions", "llmb_run.results"))} == set()
    assert {
        name
        for name in loaded
        if name.startswith(("llmb_common.measured", "llmb_common.results", "llmb_common.runs.index"))
    } == set()
    assert {"hashlib", "msgspec", "yaml"} & loaded == set()


def test_workloads_are_completed_without_reading_recipes() -> None:
    asks = (
        "import sys; from llmb_common.planning.workspace import Workspace;"
        " print(*Workspace().workload_names(), *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert "pretrain_grok1" in found
    assert {"msgspec", "yaml"} & found == set()
