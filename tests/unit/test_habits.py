"""What users of Slurm, NVIDIA's own llmb-run and other tools type: understood, or answered with the line that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from llmb_run import habits
from llmb_run.app import COMMANDS, HIDDEN, load_command
from support.cli import Cli, commands
from support.texts import Texts

NAMES = [name for section in COMMANDS.values() for name in section]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("jobs list", "llmb-run jobs"),
        ("jobs ls", "llmb-run jobs"),
        ("exemplar", "llmb-run accept exemplar-h100"),
        ("status", "llmb-run jobs"),
        ("queue", "llmb-run jobs --live"),
        ("doctor", "llmb-install doctor"),
        ("run", "llmb-run single -w WORKLOAD"),
        ("plan llama3.1", "llmb-run plan -w llama3.1"),
        ("plan llama3.1 -s 70b --dtype fp8", "llmb-run plan -w llama3.1 -s 70b --dtype fp8"),
        ("single 'my model' 8", "llmb-run list"),
        ("list models", "llmb-run list"),
        ("list llama3.1", "llmb-run list -w llama3.1"),
        ("plan -s 70b", "llmb-run list"),
        ("results --csv", "--format csv"),
        ("jobs --csv", "--json"),
        ("report --csv", "llmb-run results --format csv\n"),
        ("report --format csv", "llmb-run results --format csv\n"),
        ("report --format=json", "--json\n"),
        ("report --format html", "--html FILE\n"),
        ("report --format md", "--markdown -\n"),
        ("jobs --format xml", "--json\n"),
        ("results --output x.csv", "... > FILE"),
        ("results --tail 3", "llmb-run results --limit 3"),
        ("logs x --tail 3", "llmb-run logs x --lines 3"),
        ("jobs --running", "--live"),
        ("show --run x", "llmb-run show RUN"),
        ("submit -f tasks.txt", "llmb-run bulk FILE"),
        ("single -w grok1 --walltime 60", "llmb-run single -w grok1 --time-limit 60"),
        ("jobs -v", "leave it out"),
        ("results --html x", "llmb-run report --html x\n"),
        ("results a1 -w grok1 --markdown='a b'", "llmb-run report a1 -w grok1 '--markdown=a b'\n"),
        ("results --html", "llmb-run report --html FILE\n"),
        ("jobs --html x --nonsense", "llmb-run report --html x\n"),
        ("jobs --vary tp=4", "llmb-run submit --vary tp=4 or "),
        ("show a1 --resume", "llmb-run retry a1 --resume\n"),
        ("exclude remove --all", "llmb-run jobs --all or llmb-run results --all\n"),
        ("plan llama3.1 405b fp8 128", "llmb-run plan -w llama3.1 -s 405b --dtype fp8 --scale 128"),
        ("plan llama3.1_405b", "llmb-run plan -w pretrain_llama3.1 -s 405b"),
        ("plan -w llama-3.1-70b --scale 64", "llmb-run plan -w pretrain_llama3.1 -s 70b --scale 64"),
        ("plan -w deepseek-v3 --gpu-type gb200", "llmb-run plan -w pretrain_mbridge -s deepseek_v3 --gpu-type gb200"),
        ("plan -w grok --scale 512", "llmb-run plan -w pretrain_grok1 --scale 512"),
        ("plan –w grok1 —scale 512", "llmb-run plan -w grok1 --scale 512"),
        ("plan -w=grok1 -scale=512 --max_steps 9", "llmb-run plan -w grok1 --scale 512 --max-steps 9"),
        ("plan workload=grok1 scale=512", "llmb-run plan --workload grok1 --scale 512"),
        ("plan -w grok1 --set tp 4", "llmb-run plan -w grok1 --set tp=4"),
        ("plan -w grok1 --gpus 512 --tp 4 -g h100", "llmb-run plan -w grok1 --scale 512 --set tp=4 --gpu-type h100"),
        ("plan -w grok1 --global-batch-size 64", "llmb-run plan -w grok1 --set gbs=64"),
        ("sweep -w grok1 --vary tp 4 8", "llmb-run sweep -w grok1 --vary tp=4,8"),
        ("sweep -w grok1 --zip tp=4,8 pp=8,4", "llmb-run sweep -w grok1 --zip 'tp=4,8 pp=8,4'"),
        ("ab -w grok1 --vary tp=4", "llmb-run ab -w grok1 --change tp=4"),
        ("ab x y", "llmb-run compare x y"),
        ("single -w grok1 -p batch", "llmb-run single -w grok1 --slurm-arg partition=batch"),
        ("single -w grok1 -p false", "llmb-run single -w grok1\n"),
        ("--dry-run single -w grok1", "llmb-run single --dry-run -w grok1"),
        ("llama3.1 70b", "llmb-run plan -w llama3.1 -s 70b"),
        ("-w llama3.1 -s 70b", "llmb-run plan -w llama3.1 -s 70b"),
        ("'plan -w grok1'", "llmb-run plan -w grok1"),
        ("run llama3.1 70b", "llmb-run single -w llama3.1 -s 70b"),
        ("kill 123", "llmb-run cancel 123"),
        ("resume", "llmb-run retry RUN --resume\n"),
        ("resume 123", "llmb-run retry 123 --resume\n"),
        ("rerun 123", "llmb-run retry 123\n"),
        ("profile grok1 314b", "llmb-run single -w grok1 -s 314b --profile\n"),
        ("why slow", "llmb-run why --slow"),
        ("cancel all", "llmb-run cancel --all"),
        ("show latest", "llmb-run show\n"),
        ("jobs failed", "llmb-run jobs --state FAILED"),
        ("results grok1_314b", "llmb-run results -w pretrain_grok1 -s 314b"),
        ("report day.html", "llmb-run report --html day.html"),
        ("report -o day.html", "llmb-run report --html day.html"),
        ("exclude n1", "llmb-run exclude add n1 --reason TEXT"),
        ("baseline show", "llmb-run baseline list"),
        ("compare", "llmb-run compare "),
        ("plan llama 3.1 405b", "llmb-run plan -w llama3.1 -s 405b"),
        ("405b", "llmb-run plan -w pretrain_llama3.1 -s 405b"),
        ("plan -w grok1 --dry-run", "leave it out"),
        ("single --dry_run --nonsense", "--dry-run\n"),
        ("health n1", "llmb-run health --nodes n1"),
        ("single -w grok1 --scale 512 --profile nsys", "llmb-run single -w grok1 --scale 512 --profile\n"),
        ("single -w grok1 --load /c", "llmb-run single -w grok1 --env LOAD_CHECKPOINT_PATH=/c"),
        ("single -w grok1 --resume-chain 3", "llmb-run submit -w grok1 --resume-chain 3\n"),
        ("submit -w grok1 --repeats x", "for example --repeats 1"),
        ("tune -w grok1 --budget 0", "for example --budget 1"),
        ("single -w grok1 --set tp=4,8", "llmb-run sweep"),
        ("sinlge", "llmb-run single --help"),
        ("sinlge --help", "llmb-run single --help"),
        ("reslts -w grok1 --help", "llmb-run results -w grok1 --help"),
    ],
)
def test_a_habit_is_answered_with_the_line_that_works(cli: Cli, line: str, remedy: str) -> None:
    done = cli(*shlex.split(line))
    assert (done.status, done.out) == (2, "")
    assert remedy in done.err.partition("\n  -> ")[2]


SHOWING = {
    *("list", "plan", "jobs", "why", "results", "watch", "show", "logs", "wait", "compare", "report"),
    *("accept suites", "accept show", "baseline list", "exclude list"),
}
"""The commands that start, change and delete nothing."""


def test_only_a_command_that_does_nothing_may_be_called_without_its_dry_run(cli: Cli, texts: Texts) -> None:
    said = []
    for name in [*(" ".join(words) for words, _ in commands()), *HIDDEN, "baseline", "exclude"]:
        refused = cli(*name.split(), "--dry-run", "--nonsense").err
        has_it = refused.startswith("error: no such option: --nonsense")
        assert ("leave it out" in refused) == (name in SHOWING), name
        if not has_it and name not in SHOWING:
            said.append(f"{name}{refused.partition('  ->')[2]}")
            assert "leave it out: " not in cli(*name.split(), "--all", "--interval").err
    texts("".join(said))


def test_slurms_short_states_are_understood(cli: Cli) -> None:
    assert cli("jobs", "--state", "r,PD").status == 0


@pytest.mark.parametrize("words", [["--env", "HF_TOKEN=abc"], ["--env=HF_TOKEN=abc"]])
def test_no_answer_repeats_a_secret(cli: Cli, words: list[str]) -> None:
    assert "abc" not in cli("single", "-w", "grok1", *words, "--max_steps", "3").err
    assert "--env NAME=VALUE" in cli("jobs", *words).err


def test_nvidias_short_options_are_understood(cli: Cli, texts: Texts) -> None:
    asked = ("submit", "-w", "grok1", "-d", "fp8", "--scale", "512", "--gpu-type", "h100", "-r", "3", "--dry-run")
    texts(cli(*asked).err, about="nothing started")


def test_help_is_a_word_too(cli: Cli) -> None:
    assert cli("help", "plan").out == cli("plan", "--help").out
    assert cli("help").out == cli("--help").out


def test_a_file_of_the_name_of_a_verb_is_a_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    texts(cli("results", "list").err)
    monkeypatch.chdir(tmp_path)
    Path("list").write_text("")
    assert "no such command" not in cli("results", "list").err


def test_no_habit_hides_a_command() -> None:
    assert not {*habits.COMMANDS} & {*NAMES}
    assert {verb.split()[0] for verb in habits.VERBS} <= {*NAMES}


def test_what_is_named_instead_exists() -> None:
    lines = [line.format(name="x") for line in [*habits.COMMANDS.values(), *habits.VERBS.values()]]
    named = [part.split() for line in lines for part in line.replace(";", ",").split(",") if "llmb-run" in part]
    for words in named:
        command, *options = words[words.index("llmb-run") + 1 :]
        if command.startswith("-"):
            continue
        known = {option for parameter in load_command(command).params for option in parameter.opts}
        known.add("--help")
        assert {option for option in options if option.startswith("-")} <= known, words


def test_nvidias_configuration_is_called_that(cli: Cli) -> None:
    (cli.install / "cluster_config.yaml").write_text("schema_version: 2\nllmb_repo: /x\nslurm:\n  account: a\n")
    error = cli("list", "--json").envelope["error"]
    assert error["code"] == "nvidias-config"
    assert "--install-path" in error["remedy"]
    task_file = cli.install / "tasks.yaml"
    task_file.write_text("launcher: {type: slurm}\nworkloads: {}\n")
    (cli.install / "cluster_config.yaml").unlink()
    assert cli("bulk", str(task_file), "--json").envelope["error"]["code"] == "nvidias-config"


@pytest.mark.parametrize(
    ("line", "added"),
    [
        ("plan -w llama3.1 -s 405b", ["--scale", "512"]),
        ("single -w llama3.1 -s 8b --gpu-type h100 --dry-run", ["--scale", "8"]),
        ("plan -w llama3.1 --gpu-type h100 --scale 8", ["-s", "8b"]),
        ("plan -w llama3.1 -s 405b --dtype fp8 --scale 128", ["--gpu-type", "gb200"]),
        ("plan -w mbridge -s qwen3_30b_a3b", ["--gpu-type", "gb200", "--scale", "8"]),
        ("sweep -w llama3.1 -s 8b --vary tp=1,2 --dry-run", ["--scale", "8"]),
        ("tune -w llama3.1 -s 8b --dry-run", ["--scale", "8"]),
        ("ab -w llama3.1 -s 8b --change tp=2 --dry-run", ["--scale", "8"]),
        ("ab --change tp=2 --dry-run", ["-w", "pretrain_llama3.1", "-s", "8b", "--scale", "8"]),
        ("plan -s 314b --scale 512 --gpu-type h100", ["-w", "pretrain_grok1"]),
        ("submit --dry-run", ["-w", "pretrain_llama3.1", "-s", "8b", "--scale", "8"]),
    ],
)
def test_a_line_that_lacks_a_value_is_answered_with_the_whole_line_which_works(
    cli: Cli, line: str, added: list[str]
) -> None:
    refused = cli(*shlex.split(line))
    assert refused.status == 2
    words = shlex.split(refused.err.partition("\n  -> ")[2], comments=True)
    assert words[0] == "llmb-run"
    assert sorted(words[1:]) == sorted([*line.split(), *added])
    assert cli(*words[1:]).status == 0
