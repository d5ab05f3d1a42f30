"""What answers must agree with: each other, this machine, Slurm, the recipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.errors import ConfigError, EnvironmentLacks, RequestError
from llmb_install.answers import detect
from llmb_install.answers.answers import (
    ANSWERS_FILE,
    Answers,
    complete_answers,
    has_rows,
    load_recipes,
    read_play,
    required_answers,
    stored_answers,
    to_yaml,
)
from llmb_install.answers.checks import path_problems, text_problem
from llmb_install.answers.detect import Site, parse_sinfo
from llmb_install.answers.given import answer_text, expand_workloads, on_slurm, uses_images
from llmb_install.answers.questions import BY_FIELD, QUESTIONS, merged_answers, missing_questions, with_defaults
from llmb_install.answers.values import engine_problem, folder_problem
from support.installer import RECIPES
from support.texts import Texts

SLURM = {
    **{"install_path": "/x", "cluster_type": "slurm", "account": "bench", "gpu_partition": "gpu", "gpu_type": "h100"},
    "workloads": ["pretrain_grok1"],
}
LOCAL = {"install_path": "/x", "cluster_type": "local", "gpu_type": "cpu", "workloads": ["pretrain_grok1"]}


def answers(**changes: Any) -> Answers:
    return complete_answers({**SLURM, **changes}, RECIPES)


# Play files


@pytest.fixture
def play(tmp_path: Path) -> Callable[[str], Path]:
    def play(text: str) -> Path:
        path = tmp_path / "play.yaml"
        path.write_text(text)
        return path

    return play


@pytest.mark.parametrize(
    "text",
    [
        "- a\n",
        "schema: 1\ngpu_tpye: h100\n",
        "schema: 1\nhf_tokn: x\n",
        "arhc: x\ngpu: x\n",
        "schema: 1\nNGC_API_KEY: x\n",
        "".join(f"k{n}: x\n" for n in range(12)),
        "schema: 1\n\nhf_token: 5\n",
        "ngc_api_key: [a]\n",
        "gpu_type: h100\nschema: 7\n",
    ],
)
def test_a_play_file_that_is_wrong(play: Callable[[str], Path], text: str, texts: Texts) -> None:
    path = play(text)
    with texts.raises(ConfigError) as caught:
        read_play(path)
    assert "k11" not in text or caught.value.message.endswith("unknown key 'k9'\nand 2 more")


def test_secrets_of_a_play_file_are_kept_because_they_were_given(play: Callable[[str], Path]) -> None:
    given, secrets, lines = read_play(play("schema: 1\nhf_token: a\nngc_api_key: b\ngpu_type: h100\n"))
    assert (secrets.hf_token, secrets.ngc_api_key) != (None, None)
    assert secrets.hf_token and secrets.hf_token.reveal() == "a"  # noqa: PT018
    assert secrets.ngc_api_key and secrets.ngc_api_key.reveal() == "b"  # noqa: PT018
    assert secrets.keep == {"hf_token", "ngc_api_key"}
    assert given == {"schema": 1, "gpu_type": "h100"}
    assert lines["$.gpu_type"] == 4
    _, secrets, _ = read_play(play("schema: 1\nhf_token: ''\nngc_api_key: null\n"))
    assert (secrets.hf_token, secrets.ngc_api_key, secrets.keep) == (None, None, frozenset())


def test_a_recorded_file_is_for_people(texts: Texts) -> None:
    text = to_yaml(answers(image_folder="/Bücher"))
    lines = text.splitlines()
    texts(lines[0])
    assert lines[1:4] == ["schema: 1", "install_path: /x", "cluster_type: slurm"], "in the order of the questions"
    assert "image_folder: /Bücher" in lines
    assert "mpi" not in text, "what nobody said is not said"


# Defaults


def test_a_slurm_site_for_cpus_needs_no_container() -> None:
    found = answers(gpu_type="cpu", runtime="none")
    assert (found.on_slurm, found.uses_images) == (True, False)
    assert answers().uses_images
    local = complete_answers(LOCAL, RECIPES)
    assert (local.on_slurm, local.uses_images, local.runtime, local.cpu_partition) == (False, False, "none", None)


def test_the_architecture_of_cpus_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert complete_answers(LOCAL, RECIPES).arch == "aarch64"
    assert with_defaults({"gpu_type": "H100"})["arch"] == "x86_64", (
        "which the first stage asks before it is in lower case"
    )
    assert answers().arch == "x86_64", "an H100's host"


def test_paths_are_absolute_whatever_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = answers(install_path="here", image_folder="~/images")
    assert (found.install_path, found.image_folder) == (f"{tmp_path}/here", f"{tmp_path}/images")
    gpus = complete_answers({**LOCAL, "gpu_type": "h100", "engine_python": "bin/python"}, RECIPES)
    assert gpus.engine_python == f"{tmp_path}/bin/python"
    assert answers(image_folder=None).image_folder is None


def test_all_are_those_that_the_gpus_can_run() -> None:
    for_b200 = {name for name, recipe in RECIPES.items() if has_rows(recipe, "b200")}
    assert "pretrain_grok1" not in for_b200
    for written in ("all", ["all"], ("all",)):
        assert set(answers(gpu_type="b200", workloads=written).workloads) == for_b200
    assert set(answers(gpu_type="b200", workloads="grok1,all").workloads) == set(RECIPES), "named as well"
    assert set(complete_answers({**LOCAL, "workloads": "all"}, RECIPES).workloads) == set(RECIPES), (
        "each has a smoke size"
    )


# Contradictions


@pytest.mark.parametrize("nothing", [None, "", False, "none", "local"])
def test_an_idle_answer_that_says_nothing_is_no_contradiction(nothing: object) -> None:
    assert complete_answers({**LOCAL, "runtime": "none", "gres": False, "image_folder": None}, RECIPES)
    field = {"none": "runtime", "local": "install_method", False: "gres"}.get(nothing, "account")  # type: ignore[call-overload]
    assert complete_answers({**LOCAL, field: nothing}, RECIPES)


def test_an_unknown_workload_has_its_line(texts: Texts) -> None:
    with texts.raises(RequestError):
        complete_answers({**SLURM, "workloads": ["x"]}, RECIPES, where="play.yaml", lines={"$.workloads": 7})


def test_what_is_missing_is_listed_with_its_choices(texts: Texts) -> None:
    with texts.raises(RequestError) as caught:
        complete_answers({"install_path": "/x", "cluster_type": "local"}, RECIPES)
    assert [line.split()[0] for line in caught.value.message.splitlines()[1:]] == ["--gpu-type", "--workloads"]
    assert caught.value.code == "missing-answers"
    with texts.raises(RequestError) as caught_in_file:
        complete_answers({"cluster_type": "slurm"}, RECIPES, where="p.yaml")
    first, *rest = caught_in_file.value.message.splitlines()
    texts(first)
    assert [line.split()[0] for line in rest] == ["account", "gpu_partition", "gpu_type", "workloads"]


# Paths


def test_a_path_is_judged_as_text_for_what_it_is_used_for(texts: Texts) -> None:
    assert "colon" in text_problem(BY_FIELD["install_path"], "/a:b", LOCAL)
    assert text_problem(BY_FIELD["image_folder"], "/a:b", SLURM) == ""
    assert "comma" in text_problem(BY_FIELD["install_path"], "/a,b", SLURM)
    assert text_problem(BY_FIELD["install_path"], "/a,b", LOCAL) == "", "nothing is mounted"
    for text in ("/a$b", "/a{b", "/a}b"):
        assert "setuptools" in text_problem(BY_FIELD["install_path"], text, LOCAL), text
        assert text_problem(BY_FIELD["install_path"], text, {**LOCAL, "gpu_type": "h100"}) == "", "nothing is built"
    assert text_problem(BY_FIELD["install_path"], "/a$1", LOCAL) == ""
    texts(text_problem(BY_FIELD["image_folder"], "/a\nb", SLURM))
    assert text_problem(BY_FIELD["install_path"], "/a b", {**SLURM, "runtime": "enroot"}) != text_problem(
        BY_FIELD["install_path"], "/a b", LOCAL
    )


def test_a_folder_can_be_made_below_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert folder_problem(str(tmp_path / "a" / "b")) == folder_problem("~/a") == folder_problem("a") == ""
    for inside in ("file", "file/x", "~/file/x"):
        texts(folder_problem(inside))


def test_an_engine_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    python = tmp_path / "python"
    python.touch(mode=0o644)
    texts(engine_problem("~/python"))
    python.chmod(0o755)
    assert engine_problem("~/python") == ""
    assert str(tmp_path) in engine_problem(str(tmp_path))
    (found,) = path_problems({"engine_python": str(tmp_path)})
    texts(f"{found.message}\n  -> {found.remedy}")
    assert not path_problems({"engine_python": str(python), "install_path": str(tmp_path), "image_folder": None})


@pytest.mark.parametrize("field", ["install_path", "image_folder"])
def test_a_folder_that_cannot_be_made_is_named_by_its_answer(field: str, tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "file").touch()
    (found,) = path_problems({field: str(tmp_path / "file" / "x")})
    texts(f"{found.message}\n  -> {found.remedy}")


# Slurm


Slurm = Callable[..., None]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    def slurm(partitions: str = "gpu|up|1:00|8|gpu:8\ncpu|up|1:00|4|(null)", accounts: str = "bench,other") -> None:
        monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(detect, "all_partitions", lambda: parse_sinfo(partitions))
        monkeypatch.setattr(detect, "accounts_of_user", lambda: tuple(filter(None, accounts.split(","))))

    slurm()
    return slurm


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_partition": "gpus"},
        {"cpu_partition": "night"},
        {"account": "mine"},
        {"gpu_partition": "cpu", "gres": True},
    ],
)  # fmt: skip
def test_what_slurm_does_not_have_is_refused(slurm: Slurm, change: dict[str, Any], texts: Texts) -> None:
    (found,) = detect.slurm_problems({**SLURM, **change})
    texts(f"{found.message}\n  -> {found.remedy}")


def test_all_that_slurm_does_not_have_is_said_at_once(slurm: Slurm) -> None:
    wrong = {"account": "mine", "gpu_partition": "gpus", "cpu_partition": "night"}
    fields = [found.message.partition(":")[0] for found in detect.slurm_problems({**SLURM, **wrong})]
    assert fields == ["gpu_partition", "cpu_partition", "account"]


def test_what_slurm_has_or_does_not_say_is_accepted(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    def problems(**change: Any) -> list[RequestError]:
        return list(detect.slurm_problems({**SLURM, **change}))

    for change in ({"gres": True}, {"cpu_partition": "cpu", "account": "other"}, {"gpu_partition": "cpu"}):
        assert not problems(**change)
    slurm(accounts="")
    assert not problems(account="mine")
    slurm(partitions="")
    assert not problems(gpu_partition="gone")
    slurm()
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not problems(gpu_partition="gone")


def test_a_single_machine_is_not_compared_with_slurm(slurm: Slurm) -> None:
    assert not list(detect.slurm_problems(LOCAL))


def test_workloads_that_the_gpus_cannot_run_are_refused(texts: Texts) -> None:
    assert not list(detect.row_problems(SLURM, RECIPES))
    assert not list(detect.row_problems({**SLURM, "gpu_type": "b200", "workloads": "all"}, RECIPES))
    (found,) = detect.row_problems({**SLURM, "gpu_type": "b200", "workloads": "grok1"}, RECIPES)
    texts(f"{found.message}\n  -> {found.remedy}")
    assert detect.without_rows(["pretrain_grok1", "gone"], RECIPES, "b200") == ["pretrain_grok1"]


# Questions


def test_a_cluster_type_that_does_not_exist_is_no_slurm() -> None:
    assert [on_slurm({"cluster_type": name}) for name in ("slurm", "local", "flux", None)] == [
        *(True, False, False, False)
    ]
    assert not uses_images({"cluster_type": "slurm", "runtime": "none"})
    assert uses_images({"cluster_type": "slurm"})
    assert not uses_images({"runtime": "pyxis"})


def test_what_is_asked_where_it_matters() -> None:
    def asked(**given: Any) -> list[str]:
        return [q.field for q in QUESTIONS if q.matters(given) and q.asked(given)]

    always = ["install_path", "cluster_type", "gpu_type", "arch", "hugging_face", "workloads"]
    assert asked() == always
    assert asked(cluster_type="local", gpu_type="cpu") == [*always[:4], "env_type", *always[4:]]
    assert asked(cluster_type="local", gpu_type="h100") == [*always[:4], "engine_python", *always[4:]]
    slurm = asked(cluster_type="slurm", gpu_type="h100", install_method="srun")
    assert slurm == [
        *("install_path", "cluster_type", "account", "gpu_partition", "gres", "gpu_type", "arch", "runtime"),
        *("install_method", "cpu_partition", "image_folder", "hugging_face", "workloads"),
    ]
    assert "cpu_partition" not in asked(cluster_type="slurm", gpu_type="h100", install_method="local")


def test_required_answers_must_say_something() -> None:
    odd = {"cluster_type": "local", "gpu_type": 5, "workloads": "all"}
    assert [q.field for q in missing_questions(odd)] == ["engine_python"], "a number is judged elsewhere"
    fields = {"account": "", "gpu_partition": None, "workloads": []}
    assert [q.field for q in missing_questions({**SLURM, **fields})] == list(fields)
    assert [(q.flag, q.is_switch) for q in QUESTIONS if q.field == "gpu_partition"] == [("--gpu-partition", False)]


@pytest.mark.parametrize("field", ["arch", "runtime", "mpi", "install_method"])
def test_a_default_that_came_from_an_answer_goes_with_it(field: str) -> None:
    source = {
        "arch": {"gpu_type": "gb200"},
        **{key: {"cluster_type": "x"} for key in ("runtime", "mpi", "install_method")},
    }
    old = {**SLURM, "arch": "x86_64", "runtime": "pyxis", "mpi": "pmix", "install_method": "srun"}
    assert field not in merged_answers(old, source[field])
    assert merged_answers(old, {"account": "new"})[field] == old[field]


def test_names_of_workloads(texts: Texts) -> None:
    known = ["pretrain_b", "pretrain_a", "other"]
    assert expand_workloads("a, other ,a", known) == ["other", "pretrain_a"]
    assert expand_workloads(("pretrain_b", " "), known) == ["pretrain_b"]
    assert expand_workloads("all", known) == sorted(known)
    with texts.raises(RequestError):
        expand_workloads(["c"], known, "play:3: ")
    with texts.raises(RequestError):
        expand_workloads([5], known)
    for nothing in ("", [], None, 5):
        with texts.raises(RequestError):
            expand_workloads(nothing, known, "at: ")


def test_answers_for_people() -> None:
    assert [answer_text(value) for value in (None, True, False, ["a", "b"], ("a",), "x", 5)] == [
        *("default", "yes", "no", "a, b", "a", "x", "5")
    ]


# What is on disk


def test_an_installation_that_was_moved_is_where_it_is_now(tmp_path: Path, texts: Texts) -> None:
    assert stored_answers(tmp_path) is None
    with texts.raises(EnvironmentLacks):
        required_answers(tmp_path)
    (tmp_path / ".llmb").mkdir()
    (tmp_path / ANSWERS_FILE).write_text(to_yaml(answers()))
    found = required_answers(tmp_path)
    assert found == answers(install_path=str(tmp_path))
    (tmp_path / ANSWERS_FILE).write_text("- a\n")
    with texts.raises(ConfigError):
        stored_answers(tmp_path)


def test_a_clone_has_recipes(tmp_path: Path, texts: Texts) -> None:
    with texts.raises(EnvironmentLacks) as caught:
        load_recipes(tmp_path)
    assert "LLMB_REPO" in caught.value.remedy


# Suggestions


def site(partitions: str, **changes: Any) -> Site:
    base = {
        **{"has_slurm": True, "slurm_version": "24.05", "accounts": (), "architectures": (), "gpu_type": ""},
        **{"local_gpus": (), "partitions": parse_sinfo(partitions)},
    }
    return Site(**{**base, **changes})


def test_a_site_that_says_little_gets_the_documented_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    quiet = site("a|up|1|1|(null)\nb*|up|1|1|(null)")
    found = {q.field: q.suggested(quiet, {"gpu_type": "gb200"}) for q in QUESTIONS}
    assert (found["gpu_partition"], found["account"], found["gres"]) == ("b", "", False)
    assert (found["arch"], found["cpu_partition"]) == ("aarch64", "a")
    assert BY_FIELD["gpu_partition"].suggested(site(""), {}) == ""
    down = site("a|down|1|1|(null)\nb*|up|1|1|gpu:8")
    assert BY_FIELD["cpu_partition"].suggested(down, {"gpu_partition": "b"}) == "b", "where jobs can run"
    two = site("", architectures=("aarch64", "x86_64"))
    assert BY_FIELD["arch"].suggested(two, {"gpu_type": "h100"}) == "x86_64"


def test_partitions_to_choose_from() -> None:
    none_with_gpus = site("long-name|up|1:00|2|(null)\nb|down|infinite|1|(null)")
    assert BY_FIELD["gpu_partition"].listed(none_with_gpus) == {
        "long-name": "long-name  2 nodes, limit 1:00",
        "b": "b          1 nodes, limit infinite, down",
        "another one": "another one",
    }
