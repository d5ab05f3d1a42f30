"""Slurm options: what users may set, what belongs to the job script, and how ``#SBATCH`` lines are written."""

from __future__ import annotations

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.executors.slurm.options import (
    limit_in_seconds,
    output_pattern,
    override_additional,
    parse_additional,
    sbatch_line,
)
from support.sbatch_lines import file_of, options_of
from support.texts import Texts

OWNED = {
    "nodes": "JOB_TOTAL_GPUS",
    "ntasks": "JOB_TOTAL_GPUS",
    "ntasks-per-node": "GPUS_PER_NODE",
    "output": "nothing",
    "error": "nothing",
    "wrap": "nothing",
    "array": "llmb-run submit --repeats",
    "wait": "nothing: llmb-run watch",
    "clusters": "nothing: jobs are submitted to the cluster of this login node",
    "test-only": "DRY_RUN=true",
    "help": "nothing",
    "usage": "nothing",
    "version": "nothing",
}


def parse(text: str) -> dict[str, str | None]:
    return dict(parse_additional(text, "here"))


def refusal(text: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(text)
    return caught.value


@pytest.mark.parametrize(("option", "instead"), OWNED.items())
def test_an_option_of_the_job_script_is_refused_with_what_to_use(option: str, instead: str) -> None:
    for text in (f"{option}=2", option, f"--{option}=2", f"exclusive; {option} = 2", f"--{option}"):
        error = refusal(text)
        assert f"--{option} " in error.message
        assert instead in error.remedy


def test_a_refusal_names_the_option_and_what_to_use(texts: Texts) -> None:
    texts(refusal("nodes=2"))
    texts(refusal("account"))


@pytest.mark.parametrize("short", ["outp", "arr", "er", "nod", "node", "n", "o", "wra", "ntasks-per-no", "e"])
def test_an_abbreviation_of_such_an_option_is_refused_too(short: str) -> None:
    """sbatch accepts the abbreviation (seen with 22.05); real options that start the same are not affected."""
    message = refusal(f"{short}=2").message
    assert any(message.startswith(refusal(f"{option}=2").message) for option in OWNED)
    parse("nodelist=n1;nodefile=/f;open-mode=truncate;exclusive;nice=5;no-kill;oversubscribe")


@pytest.mark.parametrize(
    ("short", "meant"), [("job-nam", "job-name"), ("tim", "time"), ("nodel", "nodelist"), ("parti", "partition")]
)
def test_an_abbreviation_of_what_is_read_here_must_be_written_out(short: str, meant: str) -> None:
    """The limit, the nodes and the name would be overlooked."""
    assert meant in refusal(f"{short}=2").remedy


@pytest.mark.parametrize("letter", "NnoeaWhVM")
def test_short_options_do_not_get_round_it_either(letter: str) -> None:
    options = ("nodes", "ntasks", "output", "error", "array", "wait", "help", "version", "clusters")
    option = dict(zip("NnoeaWhVM", options, strict=True))[letter]
    assert refusal(f"-{letter}=2").message == refusal(f"{option}=2").message


WITH_VALUE = {
    **{"A": "account", "p": "partition", "t": "time", "w": "nodelist", "x": "exclude", "C": "constraint", "q": "qos"},
    **{"B": "extra-node-info", "D": "chdir", "F": "nodefile", "G": "gpus", "L": "licenses"},
    **{"S": "core-spec", "b": "begin", "c": "cpus-per-task", "d": "dependency", "i": "input", "m": "distribution"},
}


@pytest.mark.parametrize(("letter", "option"), WITH_VALUE.items())
def test_short_options_are_expanded_and_need_their_value(letter: str, option: str) -> None:
    assert parse(f"-{letter}=v1") == {option: "v1"}
    assert f"--{option} " in refusal(letter).message


@pytest.mark.parametrize(
    ("letter", "option"),
    [("H", "hold"), ("O", "overcommit"), ("Q", "quiet"), ("k", "no-kill"), ("s", "oversubscribe"), ("v", "verbose")],
)
def test_short_options_that_are_flags(letter: str, option: str) -> None:
    assert parse(f"-{letter}") == {option: None}


def test_options_are_read_as_written() -> None:
    text = " nodelist=n[1-2],m3 ;--exclusive=user;; constraint=gpu&memory;comment= a = b ;qos=low;qos=low;"
    assert list(parse(text).items()) == [
        ("nodelist", "n[1-2],m3"),
        ("exclusive", "user"),
        ("constraint", "gpu&memory"),
        ("comment", "a = b"),
        ("qos", "low"),
    ]
    assert parse("") == parse(" ; ") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No Option=1", "'No Option=1' is not a Slurm option"),
        ("=1", "'=1' is not a Slurm option"),
        ("-", "'-' is not a Slurm option"),
        ("9=1", "'9=1' is not a Slurm option"),
        ("a$b=1", "'a$b=1' is not a Slurm option"),
        ("qos batch", "'qos batch' is not a Slurm option"),
        ("qos=", "'qos=' has no value"),
        ("exclusive= ", "'exclusive=' has no value"),
        ("account=a b", "'account=a b' is not a valid Slurm name"),
        ("partition=-x", "'partition=-x' is not a valid Slurm name"),
        ("comment=a\nb", "here contains a line break"),
        ("qos=low\n", "here contains a line break"),
        ("comment=\x7f", "here contains a line break or a control character"),
        ("nodelist=n1;nodelist=n2", "--nodelist is given twice"),
        ("w=n1;nodelist=n2", "--nodelist is given twice"),
        ("exclusive;exclusive=user", "--exclusive is given twice"),
    ],
)
def test_anything_that_is_not_an_option_is_named(text: str, words: str) -> None:
    error = refusal(text)
    assert words in error.message
    assert error.remedy


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "a b",
        "a#b",
        '"',
        "'",
        "\\",
        "a\\",
        '\\"',
        "$(x) `y` $HOME",
        "%j %%",
        "ü€",
        "a;b",
        "-x",
        "~",
        "a\u2028b",
    ],
)
def test_any_value_of_one_line_survives_an_sbatch_line(value: str) -> None:
    line = sbatch_line("comment", value)
    assert options_of(f"#!/bin/bash\n{line}\n#SBATCH --mem=0\n") == {"comment": value, "mem": "0"}


def test_lines_that_need_no_quotes_have_none() -> None:
    assert sbatch_line("gres", "gpu:h100:8") == "#SBATCH --gres=gpu:h100:8"
    assert sbatch_line("constraint", "[a|b]&c*2(d)!e@f+g,h%i/j") == "#SBATCH --constraint=[a|b]&c*2(d)!e@f+g,h%i/j"
    assert sbatch_line("nodes", 4) == "#SBATCH --nodes=4"
    assert sbatch_line("exclusive") == "#SBATCH --exclusive"


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\x0b", "a\n#SBATCH --uid=0", "\udcff"])
def test_a_line_stays_one_line(value: str, texts: Texts) -> None:
    with texts.raises(RequestError):
        sbatch_line("comment", value)


@pytest.mark.parametrize("path", ["/a/b", "/a%j/%%/%", "/a b/'\"$(x)ü#;"])
def test_an_output_path_means_the_file_of_that_name(path: str) -> None:
    options = options_of(sbatch_line("output", output_pattern(path)) + "\n")
    assert file_of(str(options["output"]), j="expanded") == path


def test_a_backslash_would_switch_slurms_patterns_off(texts: Texts) -> None:
    with texts.raises(RequestError) as caught:
        output_pattern("/a\\b")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "second", "remedy"),
    [
        ("nodelist=n1,n2,constraint=gpu", "constraint=", "nodelist=n1,n2;constraint=gpu"),
        ("qos=high,--reservation=r", "--reservation=", "qos=high;--reservation=r"),
        ("qos=high, reservation=r", "reservation=", "qos=high;reservation=r"),
        ("nodelist=n1,exclusive", "exclusive", "nodelist=n1;exclusive"),
    ],
)
def test_a_comma_between_two_options_is_not_part_of_a_value(text: str, second: str, remedy: str) -> None:
    error = refusal(text)
    assert repr(second) in error.message
    assert error.remedy.endswith(remedy)


@pytest.mark.parametrize(
    "text",
    [
        "export=ALL,time=3,qos=x",
        "tres-per-task=cpu=4,mem=8G",
        "acctg-freq=task=60,energy=30",
        "comment=a,qos=b",
        "nodelist=n1,exclusive-node",
        "licenses=a:1,b:2",
        "gres=gpu:8,tmp:1",
    ],
)
def test_values_that_hold_commas_stay_whole(text: str) -> None:
    key, _, value = text.partition("=")
    assert parse(text) == {key: value}


def test_what_the_command_line_says_replaces_what_the_environment_says() -> None:
    assert override_additional("-w=n1;qos=low;exclusive", "nodelist=n2", "qos=high") == "exclusive;nodelist=n2;qos=high"
    assert override_additional("") == ""


# Options of sbatch that need a value: without one sbatch would take the next line of the script for it.


# Of sbatch(1) and Pyxis; those of the job script are not here.
NEED_ONE = """
account acctg-freq bb bbf begin chdir cluster-constraint comment constraint container core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution exclude export
export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
gres-flags hint input licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network
nodefile nodelist ntasks-per-core ntasks-per-gpu ntasks-per-socket open-mode partition power prefer priority profile
qos reservation segment signal sockets-per-node switches thread-spec threads-per-core time time-min tmp tres-bind
tres-per-task uid wckey container-env container-image container-mounts container-name container-save container-workdir
"""
DO_NOT = "contiguous exclusive get-user-env hold ignore-pbs no-kill no-requeue overcommit oversubscribe quiet requeue"


@pytest.mark.parametrize("option", NEED_ONE.split())
def test_an_option_that_needs_a_value_is_refused_without(option: str) -> None:
    assert refusal(f"exclusive;{option}").remedy.endswith(f" {option}=value")
    assert parse_additional(f"{option}=1", "here") == ((option, "1"),)


@pytest.mark.parametrize("option", NEED_ONE.split())
def test_behind_a_comma_it_is_a_second_option(option: str) -> None:
    assert f"'{option}='" in refusal(f"nodelist=n1,{option}=1").message


@pytest.mark.parametrize("option", DO_NOT.split())
def test_flags_stand_alone(option: str) -> None:
    assert parse_additional(option, "here") == ((option, None),)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("29:59", 1799),
        ("1:00:00", 3600),
        ("1-00", 86400),
        ("2-03:04", 183840),
        ("2-03:04:05", 183845),
        ("00:00:30", 30),
        ("0", None),
        ("UNLIMITED", None),
        ("infinite", None),
        ("", None),
    ],
)
def test_the_forms_of_a_time_limit(text: str, seconds: int | None) -> None:
    assert limit_in_seconds(text) == seconds
