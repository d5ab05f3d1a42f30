"""Answers: strict, typed, the same from flags and play files; and parsing of Slurm's and Enroot's output."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.base import cluster_types
from llmb_common.base.errors import RequestError
from llmb_common.base.gpus import gpu_types
from llmb_install import arguments, by_argparse, by_click
from llmb_install.answers.answers import complete_answers
from llmb_install.answers.checks import read_given, value_problem
from llmb_install.answers.detect import gpus_in
from llmb_install.answers.given import recipe_heads
from llmb_install.answers.questions import BY_FIELD, FIELDS, QUESTIONS, merged_answers, missing_questions
from support.installer import CLONE, RECIPES
from support.texts import Texts

SLURM = {
    "install_path": "/x",
    "cluster_type": "slurm",
    "account": "bench",
    "gpu_partition": "gpu",
    "gpu_type": "h100",
    "workloads": "all",
}


def test_an_answer_is_asked_for_or_known_otherwise() -> None:
    assert FIELDS - {q.field for q in QUESTIONS} == {"schema", "space_check", "mpi"}
    assert BY_FIELD["cluster_type"].choices == cluster_types.names()
    assert BY_FIELD["gpu_type"].choices == gpu_types()
    assert {q.field for q in QUESTIONS if q.is_switch} == {"gres", "container_writable", "hugging_face"}
    for question in QUESTIONS:
        assert set(question.labels) <= set(question.choices), question.field
        assert {question.follows, question.same_as} <= {"", *BY_FIELD}, question.field


def test_a_default_is_possible_and_the_help_says_it() -> None:
    for given in ({"cluster_type": "slurm", "gpu_type": "h100"}, {"cluster_type": "local", "gpu_type": "cpu"}):
        for question in QUESTIONS:
            default = question.default({**given, "gpu_partition": "gpu"})
            assert value_problem(question, default) is None
            assert default is None or "default: " in question.help, question.field


def test_a_file_may_have_its_choices_in_any_case(tmp_path: Path) -> None:
    file = tmp_path / "play.yaml"
    file.write_text("cluster_type: Slurm\ngpu_type: GB200\nruntime: NONE\nengine_python: /opt/Python\ngres: true\n")
    given, _ = read_given(file)
    assert given == {
        "cluster_type": "slurm",
        "gpu_type": "gb200",
        "runtime": "none",
        "engine_python": "/opt/Python",
        "gres": True,
    }


def test_defaults_depend_on_the_answers() -> None:
    answers = complete_answers(SLURM, RECIPES)
    assert (answers.arch, answers.runtime, answers.install_method, answers.env_type) == (
        "x86_64",
        "pyxis",
        "local",
        "venv",
    )
    assert answers.cpu_partition == "gpu"
    assert complete_answers({**SLURM, "gpu_type": "gb200"}, RECIPES).arch == "aarch64"
    local = {**SLURM, "cluster_type": "local", "account": None, "gpu_partition": None}
    assert complete_answers({**local, "gpu_type": "cpu"}, RECIPES).runtime == "none"
    assert complete_answers({**local, "engine_python": "/gpu/bin/python"}, RECIPES).engine_python == "/gpu/bin/python"


def test_gpu_jobs_outside_a_container_bring_their_engine(texts: Texts) -> None:
    given = {**SLURM, "runtime": "none"}
    assert [q.field for q in missing_questions(given)] == ["engine_python"]
    assert [q.field for q in missing_questions({**given, "gpu_type": "cpu"})] == []
    with texts.raises(RequestError):
        complete_answers({**SLURM, "engine_python": "/x"}, RECIPES)


ON_CPUS = {"cluster_type": "local", "gpu_type": "cpu", "account": None, "gpu_partition": None}


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_type": "h1000"},
        {"runtime": "dockr"},
        {"gres": "yes"},
        {"gres": 1},
        {"install_path": 5},
        {"account": ["a"]},
        {"engine_python": 3},
        {"account": "-x"},
        {"registry_mirror": "https://mirror"},
        {"workloads": {"a": 1}},
        {"workloads": ["pretrain_grok1", None]},
        {"engines": 0.6},
        {"engines": "0.5"},
        {"engines": ["0.6"], "workloads": "pretrain_grok1"},
        {"install_path": "/a\nb"},
        {"install_path": "/a:b"},
        {"install_path": "/a,b"},
        {"image_folder": "/a\tb"},
        {"gpu_type": "cpu"},
        {"runtime": "none", "gpu_type": "cpu", "image_folder": "/i"},
        {**ON_CPUS, "account": "a"},
        {**ON_CPUS, "runtime": "pyxis"},
    ],
)  # fmt: skip
def test_answers_that_cannot_be_meant(change: dict[str, object], texts: Texts) -> None:
    given = {**SLURM, **change}
    with texts.raises(RequestError):
        complete_answers(given, RECIPES)
    for lines, where in (({}, "play.yaml: "), (dict.fromkeys((f"$.{field}" for field in given), 7), "play.yaml:7: ")):
        with pytest.raises(RequestError) as caught:
            complete_answers(given, RECIPES, where="play.yaml", lines=lines)
        assert caught.value.message.startswith(where)


def test_changing_an_answer_resets_the_answers_that_depend_on_it() -> None:
    old = {**SLURM, "arch": "x86_64", "cpu_partition": "gpu", "runtime": "pyxis", "install_method": "local"}
    assert "arch" not in merged_answers(old, {"gpu_type": "gb200"})
    assert merged_answers(old, {"gpu_type": "gb200", "arch": "x86_64"})["arch"] == "x86_64"
    assert merged_answers(old, {"gpu_type": "h100"}) == old
    assert "cpu_partition" not in merged_answers(old, {"gpu_partition": "new"})
    assert merged_answers({**old, "cpu_partition": "cpu"}, {"gpu_partition": "new"})["cpu_partition"] == "cpu"
    # Slurm's answers do not apply to a single machine; what the new answers say is kept, right or wrong.
    local = merged_answers(old, {"cluster_type": "local", "gpu_type": "cpu"})
    assert local == {"install_path": "/x", "cluster_type": "local", "gpu_type": "cpu", "workloads": "all"}
    assert merged_answers(old, {"cluster_type": "local", "account": "bench"})["account"] == "bench"


def test_what_is_missing_depends_on_where_jobs_run() -> None:
    assert [q.field for q in missing_questions({})] == ["cluster_type", "gpu_type", "workloads"]
    slurm = [q.field for q in missing_questions({"cluster_type": "slurm"})]
    assert slurm == ["account", "gpu_partition", "gpu_type", "workloads"]


def test_workload_names_without_a_yaml_parser_are_those_of_the_recipes() -> None:
    heads = recipe_heads(CLONE)
    assert {name: (head["image"], head.get("engine", "0.3")) for name, head in heads.items()} == {
        name: (recipe.image, recipe.engine) for name, recipe in RECIPES.items()
    }


def test_secrets_leave_the_arguments() -> None:
    words, found = arguments.take_secrets(["--hf-token", "a", "--json", "--ngc-api-key=b"])
    assert words == ["--json"]
    assert found == {"HF_TOKEN": "a", "NGC_API_KEY": "b", arguments.KEPT: "HF_TOKEN,NGC_API_KEY"}


@pytest.mark.parametrize("words", [["--hf-token"], ["--hf-token="], ["--hf-token", ""], ["--hf-token", "--json"]])
def test_a_secret_without_a_value_does_not_swallow_the_next_flag(words: list[str], texts: Texts) -> None:
    with texts.raises(RequestError):
        arguments.take_secrets(words)


@pytest.mark.parametrize(
    "words",
    [
        [""],
        ["--json", ""],
        ["--install-path", ""],
        ["--install-path="],
        ["--record", "", "--json"],
        ["add", "", "pretrain_grok1"],
        ["list", "more"],
        ["--jsonn"],
        ["verfy"],
    ],
)
@pytest.mark.parametrize("read", [by_click.read, by_argparse.read])
def test_an_unset_variable_is_not_an_argument(words: list[str], read: arguments.Reader, texts: Texts) -> None:
    with texts.raises(RequestError) as caught:
        arguments.parse(words, read)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:8", ("", 8)),
        ("gpu:h100:8(S:0-1)", ("h100", 8)),
        ("gpu:nvidia_h100_80gb_hbm3:4,gpu:nvidia_h100_80gb_hbm3:4", ("nvidia_h100_80gb_hbm3", 8)),
        ("gres/craynetwork:4,gpu:a:2", ("a", 2)),
        ("gres/gpu:a:2", ("a", 2)),
        ("gpu:h100:6(S:0-1),gpu:1g.10gb:14(S:0-1)", ("h100", 6)),
        ("gpu:nvidia_h100_80gb_hbm3_1g.10gb+me:1,gpu:nvidia_h100_80gb_hbm3_1g.10gb:6", ("", 0)),
        ("gpu:gtx_1080_ti:2,gpu:h100:8,shard:h100:64", ("h100", 8)),
        ("vgpu:4,gpu_mem:80G", ("", 0)),
        ("gpu:h100:no_consume:8", ("h100", 8)),
        ("(null)", ("", 0)),
    ],
)
def test_gpus_in_a_gres_text(text: str, expected: tuple[str, int]) -> None:
    assert gpus_in(text) == expected
