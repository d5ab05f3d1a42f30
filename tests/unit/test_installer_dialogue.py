"""The questions of the installer, answered by a script in the place of a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_common.base.errors import Interrupted, RequestError
from llmb_common.base.words import Secret
from llmb_install.answers import checks
from llmb_install.answers import dialogue as dialogue_module
from llmb_install.answers.detect import Partition, Site, fitting_earlier_answers
from llmb_install.answers.dialogue import Back, Dialogue
from llmb_install.answers.questions import BY_FIELD, OTHER, QUESTIONS, Answers
from llmb_install.parts.credentials import Secrets
from support.installer import RECIPES
from support.texts import Texts

GPU = Partition("gpu", is_default=False, up=True, time_limit="4:00:00", nodes=16, gpus_per_node=8, gpu_name="h100")
CPU = Partition("cpu", is_default=True, up=False, time_limit="infinite", nodes=4, gpus_per_node=0, gpu_name="")
CLUSTER = Site(
    has_slurm=True,
    slurm_version="24.05",
    partitions=(GPU, CPU),
    accounts=("bench", "other"),
    architectures=("x86_64",),
    gpu_type="h100",
    local_gpus=(),
    has_pyxis=True,
)
LAPTOP = Site(
    has_slurm=False, slurm_version="", partitions=(), accounts=(), architectures=("x86_64",), gpu_type="", local_gpus=()
)

ENTER = object()
BACK = object()


class Terminal:
    """Answers each question by its first words with the next of the answers for it; Enter where there is none."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            words if words.startswith("/") else words.replace("_", " "): list(given) for words, given in answers.items()
        }
        self.asked: list[str] = []
        self.offered: dict[str, Any] = {}
        self.refused: list[str] = []

    def _question(self, text: str, default: Any, validate: Callable[[Any], bool | str] | None = None) -> Any:
        def ask() -> Any:
            self.asked.append(text)
            self.offered[text] = default
            queue = next((queue for words, queue in self.answers.items() if text.startswith(words) and queue), [])
            while True:
                answer = queue.pop(0) if queue else ENTER
                if answer is BACK:
                    raise Back
                if isinstance(answer, BaseException):
                    raise answer
                answer = default if answer is ENTER else answer
                accepted = validate(answer) if validate else True
                if accepted is True:
                    return answer
                self.refused.append(str(accepted))
                assert queue, f"{text}: {answer!r} is refused ({accepted}), and nothing else is left to say"

        return SimpleNamespace(application=SimpleNamespace(key_bindings=None), unsafe_ask=ask)

    def text(self, text: str, default: str = "", validate: Any = None) -> Any:
        return self._question(text, default, validate)

    def confirm(self, text: str, default: bool = True) -> Any:
        return self._question(text, default)

    def password(self, text: str) -> Any:
        return self._question(text, "")

    def select(self, text: str, choices: list[Any], default: Any = None, instruction: str = "") -> Any:
        values = [choice if isinstance(choice, str) else choice.value for choice in choices]
        assert default is None or default in values
        return self._question(text, default if default is not None else values[0], lambda value: value in values)

    def checkbox(self, text: str, choices: list[Any], instruction: str, validate: Any) -> Any:
        self.offered["choices"] = {choice.value: choice.title for choice in choices}
        return self._question(text, [choice.value for choice in choices if choice.checked], validate)

    @staticmethod
    def Choice(title: str, value: Any = None, checked: bool = False) -> Any:
        return SimpleNamespace(title=title, value=value, checked=checked)


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Answers, Secrets, Terminal]]:
    """One session; ``words`` are what the user answers, by the first words of the question. Without ``one_screen`` it
    is where "change" has led."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("llmb_install.answers.detect.shutil.which", lambda name: None)

    def talk(
        site: Site = CLUSTER,
        given: dict[str, Any] | None = None,
        defaults: dict[str, Any] | None = None,
        secrets: Secrets | None = None,
        one_screen: bool = False,
        **words: Any,
    ) -> tuple[Answers, Secrets, Terminal]:
        terminal = Terminal(**({"Where_to_install": [str(tmp_path / "llmb")]} | words))
        monkeypatch.setattr(dialogue_module, "questionary", terminal)
        dialogue = Dialogue(site, RECIPES, given or {}, defaults or {})
        dialogue._one_screen = one_screen
        talk.terminal = terminal  # type: ignore[attr-defined]
        answers, kept = dialogue.run(secrets or Secrets(), lambda answers, secrets: "the summary")
        return answers, kept, terminal

    return talk


def test_enter_accepts_what_was_detected(talk: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers, secrets, terminal = talk()
    assert (answers.install_path, answers.cluster_type) == (str(tmp_path / "llmb"), "slurm")
    assert (answers.account, answers.gpu_partition, answers.gres) == ("bench", "gpu", True)
    assert (answers.gpu_type, answers.arch, answers.runtime, answers.install_method) == (
        *("h100", "x86_64", "pyxis", "srun"),
    )
    assert answers.cpu_partition == "gpu", "the only one that is up"
    assert answers.workloads == tuple(sorted(RECIPES))
    assert secrets == Secrets(keep=frozenset({"ngc_api_key"}))
    assert "the summary" in capsys.readouterr().err
    assert terminal.asked[-1] == "Go on?"
    assert not checks.read_draft(), "an answered dialogue leaves no draft"


# One screen


def test_what_was_detected_is_one_screen_and_one_question(talk, tmp_path, capsys):
    answers, secrets, terminal = talk(one_screen=True, defaults={"install_path": str(tmp_path / "there")})
    assert terminal.asked == ["Go on?"]
    assert (answers.install_path, answers.account, answers.gpu_partition) == (str(tmp_path / "there"), "bench", "gpu")
    assert (answers.gpu_type, answers.gres, answers.workloads) == ("h100", True, tuple(sorted(RECIPES)))
    assert secrets == Secrets()
    assert "the summary" in capsys.readouterr().err
    assert checks.read_draft(checks.LAST)["account"] == "bench"
    assert not checks.read_draft()


def test_change_leads_to_all_questions_and_then_to_one_of_them(talk: Any) -> None:
    words = {"Go_on": ["change", "change", ENTER], "Slurm_account": ["other"], "Which_one": ["gpu_type"]}
    answers, _, terminal = talk(one_screen=True, GPU_type=[ENTER, "gb200"], **words)
    assert (answers.account, answers.gpu_type) == ("other", "gb200")
    order = [text for text in terminal.asked if text in ("Go on?", "Slurm account", "GPU type", "Which one?")]
    assert order == ["Go on?", "Slurm account", "GPU type", "Go on?", "Which one?", "GPU type", "Go on?"]


def test_quitting_the_screen_installs_nothing(talk: Any, texts: Texts) -> None:
    with texts.raises(Interrupted):
        talk(one_screen=True, Go_on=["quit"])
    assert checks.read_draft(checks.LAST) == {}
    assert checks.read_draft()["account"] == "bench", "its message says that answers are kept"


def test_only_what_nobody_knows_is_asked_before_it(talk: Any, tmp_path: Path) -> None:
    quiet = Site(True, "24.05", (replace(GPU, gpu_name=""),), (), ("x86_64",), "", ())
    _, _, terminal = talk(one_screen=True, site=quiet, Slurm_account=["team"])
    assert [text.partition(" (")[0] for text in terminal.asked] == [
        *("Where to install", "Slurm account", "GPU type", "Go on?")
    ]
    used = tmp_path / "used"
    used.mkdir()
    (used / "thesis").touch()
    _, _, terminal = talk(one_screen=True, site=LAPTOP, defaults={"install_path": str(used)})
    assert [text.partition(" ")[0] for text in terminal.asked] == ["Where", "Go"]


def test_shift_tab_before_the_screen_leads_to_the_questions(talk: Any) -> None:
    local = {"cluster_type": "local", "gpu_type": "h100"}
    words = {"GPU_type": ["cpu"], "Architecture": [BACK], "Python_with": [BACK]}
    answers, _, terminal = talk(one_screen=True, site=LAPTOP, defaults=local, **words)
    assert answers.gpu_type == "cpu"
    assert "Architecture of the compute nodes" in terminal.asked


def test_what_does_not_fit_any_more_is_asked(talk: Any, tmp_path: Path) -> None:
    old = {"engine_python": str(tmp_path / "gone"), "runtime": "docker", "workloads": ["pretrain_gone"]}
    old |= {"cluster_type": "slurm", "gpu_type": "h100"}
    words = {"Container_runtime": ["none"], "Workloads": [["pretrain_grok1"]], "Python_with": [sys.executable]}
    _, _, terminal = talk(one_screen=True, defaults=old, **words)
    asked = [text.partition(" ")[0] for text in terminal.asked]
    assert asked == ["Where", "Container", "Python", "Workloads", "Go"]


def test_earlier_answers_of_the_user_are_offered_where_they_fit() -> None:
    last = {
        "install_path": "/old",
        "cluster_type": "slurm",
        "account": "other",
        "gpu_partition": "gpu",
        "gpu_type": "h100",
    }
    assert fitting_earlier_answers(last, CLUSTER) == {
        key: value for key, value in last.items() if key != "install_path"
    }
    for change in (
        {"account": "gone"},
        {"gpu_partition": "gone"},
        {"cpu_partition": "gone"},
        {"cluster_type": "local"},
    ):
        assert fitting_earlier_answers({**last, **change}, CLUSTER) == {}
    assert fitting_earlier_answers(last, LAPTOP) == {}
    assert fitting_earlier_answers({"cluster_type": "local", "gpu_type": "cpu"}, LAPTOP) == {
        "cluster_type": "local",
        "gpu_type": "cpu",
    }
    assert fitting_earlier_answers({}, CLUSTER) == {}


# All questions


def test_what_a_flag_says_is_not_asked(talk: Any) -> None:
    answers, _, terminal = talk(given={"cluster_type": "local", "gpu_type": "cpu"}, site=LAPTOP)
    assert (answers.cluster_type, answers.gpu_type, answers.runtime) == ("local", "cpu", "none")
    assert not [text for text in terminal.asked if text.startswith(("Where jobs", "GPU type", "Slurm account", "NGC"))]
    assert answers.env_type == "venv"


def test_what_was_answered_last_time_is_what_enter_accepts(talk: Any) -> None:
    answers, _, terminal = talk(defaults={"account": "other", "gpu_type": "h100", "workloads": ["pretrain_grok1"]})
    assert (answers.account, answers.workloads) == ("other", ("pretrain_grok1",))
    assert terminal.offered["Slurm account"] == "other"


def test_a_name_that_slurm_does_not_show_is_typed(talk: Any, texts: Texts) -> None:
    answers, _, terminal = talk(Slurm_account=[OTHER, "a b", "", "team-x"])
    assert answers.account == "team-x"
    texts("\n".join(terminal.refused))


def test_shift_tab_asks_the_question_before_once_more(talk: Any) -> None:
    answers, _, terminal = talk(GPU_type=[BACK, ENTER], Partition_for_GPU_jobs=[ENTER, "cpu"])
    order = [text for text in terminal.asked if text.startswith(("Partition for GPU", "Do jobs", "GPU type"))]
    assert order[:5] == [
        "Partition for GPU jobs",
        "Do jobs request their GPUs with --gres=gpu:N?",
        "GPU type",
        "Do jobs request their GPUs with --gres=gpu:N?",
        "GPU type",
    ]
    assert answers.gpu_partition == "gpu"


def test_shift_tab_at_the_first_question_stays_there(talk: Any, tmp_path: Path) -> None:
    answers, _, terminal = talk(Where_to_install=[BACK, str(tmp_path / "there")])
    assert answers.install_path == str(tmp_path / "there")
    assert [text[:16] for text in terminal.asked[:2]] == ["Where to install"] * 2


def test_shift_tab_at_the_end_asks_the_last_question_again(talk: Any) -> None:
    answers, _, terminal = talk(Go_on=[BACK, ENTER], Workloads=[ENTER, ["pretrain_grok1"]])
    assert answers.workloads == ("pretrain_grok1",)
    assert terminal.asked.count("Go on?") == 2
    assert sum(text.startswith("NGC API key") for text in terminal.asked) == 1, "secrets are asked for once"


def test_one_answer_is_changed_and_what_follows_from_it_is_asked_again(talk: Any) -> None:
    words = {"Go_on": ["change", ENTER], "Which_one": ["gpu_type"], "GPU_type": [ENTER, "gb200"]}
    answers, _, terminal = talk(site=CLUSTER, **words)
    assert answers.gpu_type == "gb200"
    assert terminal.asked.count("Architecture of the compute nodes") == 2
    assert terminal.asked.count("Slurm account") == 1


def test_changing_nothing_leaves_all_as_it_was(talk: Any) -> None:
    answers, _, _ = talk(Go_on=["change", ENTER], Which_one=[BACK])
    assert answers.account == "bench"


def test_leaving_keeps_the_answers_for_next_time(talk: Any, tmp_path: Path, texts: Texts) -> None:
    with texts.raises(Interrupted):
        talk(Go_on=["quit"], Slurm_account=["other"])
    kept = json.loads((tmp_path / "state" / "llmb" / "installer-draft.json").read_text())
    assert kept["account"] == "other"
    answers, _, terminal = talk(one_screen=True)
    assert [re.findall(r"\d+", text) for text in terminal.asked] == [[str(len(kept))], []]
    assert (answers.account, terminal.asked.count("Slurm account")) == ("other", 0)


def test_a_draft_that_is_refused_is_what_enter_accepts(talk: Any) -> None:
    checks.keep_draft({"account": "other", "unknown": "x"})
    answers, _, terminal = talk(Continue_with=[False])
    assert "Slurm account" in terminal.asked
    assert answers.account == "other"


def test_a_flag_comes_before_a_draft(talk: Any) -> None:
    checks.keep_draft({"account": "other"})
    answers, _, terminal = talk(given={"account": "third"})
    assert answers.account == "third"
    assert not terminal.asked[0].startswith("Continue")


def test_ctrl_c_says_that_the_answers_are_kept(talk: Any, texts: Texts) -> None:
    with texts.raises(Interrupted):
        talk(GPU_type=[KeyboardInterrupt()])
    assert checks.read_draft()["account"] == "bench"
    assert "gpu_type" not in checks.read_draft()


def test_a_draft_that_cannot_be_read_is_none(talk: Any, tmp_path: Path) -> None:
    path = tmp_path / "state" / "llmb" / "installer-draft.json"
    path.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"schema": 1}'):
        path.write_text(text)
        assert checks.read_draft() == {}
    checks.keep_draft({"account": "a"})
    assert path.stat().st_mode & 0o777 == 0o600
    assert checks.read_draft() == {"account": "a"}
    checks.finish_draft({"account": "b"})
    checks.finish_draft({"account": "b"})
    assert (checks.read_draft(), checks.read_draft(checks.LAST)) == ({}, {"account": "b"})


def test_a_home_that_takes_no_draft_does_not_stop_the_dialogue(talk: Any, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    answers, _, _ = talk()
    assert answers.account == "bench"
    assert checks.read_draft() == {}


def test_a_folder_with_other_things_in_it_is_a_question(talk: Any, tmp_path: Path, texts: Texts) -> None:
    used = tmp_path / "used"
    used.mkdir()
    for name in "abcdef":
        (used / name).touch()
    text = f"{used} is not empty (it contains a, b, c, d and 2 more). Install there anyway?"
    answers, _, terminal = talk(Where_to_install=[str(used), str(tmp_path / "new")])
    assert text in terminal.asked
    assert terminal.offered[text] is False
    assert answers.install_path == str(tmp_path / "new")
    answers, _, _ = talk(Where_to_install=[str(used)], **{str(used): [True]})
    assert answers.install_path == str(used)
    with texts.raises(RequestError):
        talk(given={"install_path": str(used)})


def test_paths_are_checked_at_the_prompt(talk: Any, tmp_path: Path, texts: Texts) -> None:
    file = tmp_path / "file"
    file.touch()
    _, _, terminal = talk(Where_to_install=["/a:b", f"{file}/x", "a\nb", str(tmp_path / "n")])
    assert len(terminal.refused) == 3
    texts("\n".join(terminal.refused))
    folder = next(text for text in terminal.asked if text.startswith("Where to install"))
    texts(folder)


def test_free_space_is_shown_where_a_folder_is_suggested(talk: Any, tmp_path: Path) -> None:
    _, _, terminal = talk(defaults={"install_path": str(tmp_path / "llmb")}, Where_to_install=[ENTER])
    assert re.fullmatch(rf"Where to install \([0-9.]+ [MGT]B free at {tmp_path / 'llmb'}\)", terminal.asked[0])


def test_gpu_jobs_on_this_machine_need_a_python_of_their_own(talk: Any, tmp_path: Path, texts: Texts) -> None:
    program = tmp_path / "python"
    program.touch(mode=0o755)
    answers, _, terminal = talk(
        site=LAPTOP, Where_jobs_run=["local"], GPU_type=["h100"], Python_with=["", str(tmp_path / "none"), str(program)]
    )
    assert answers.engine_python == str(program)
    texts("\n".join(terminal.refused))


def test_workloads_without_a_configuration_for_the_gpus_are_not_chosen(talk: Any, texts: Texts) -> None:
    answers, _, terminal = talk(GPU_type=["b200"], Workloads=[[], ENTER, ["pretrain_llama3.1"]])
    titles = terminal.offered["choices"]
    texts(f"{titles['pretrain_grok1']}\n{titles['pretrain_llama3.1']}")
    texts("\n".join(terminal.refused))
    assert "pretrain_grok1" not in answers.workloads


def test_secrets_are_asked_for_where_they_are_needed(talk, monkeypatch, capsys):
    monkeypatch.setattr(
        "llmb_install.parts.hugging_face.check_token", lambda token: "rejected" if "x" in token.reveal() else ""
    )
    _, secrets, _ = talk(Fetch_tokenizers=[True], Hugging_Face_token=["hf_x", " hf_good "], NGC_API_key=[" nvapi "])
    assert (secrets.hf_token.reveal(), secrets.ngc_api_key.reveal()) == ("hf_good", "nvapi")
    assert secrets.keep == {"hf_token", "ngc_api_key"}
    assert "\n  rejected\n" in "\n" + capsys.readouterr().err
    given = Secrets(hf_token=Secret("mine"), ngc_api_key=Secret("key"))
    _, secrets, terminal = talk(Fetch_tokenizers=[True], secrets=given)
    assert not [text for text in terminal.asked if "token (" in text or "API key" in text]
    assert (secrets.hf_token, secrets.keep) == (given.hf_token, frozenset())


# Suggestions


def suggestions(site: Site, given: dict[str, Any]) -> dict[str, Any]:
    return {question.field: question.suggested(site, given) for question in QUESTIONS}


def test_choices_say_what_slurm_knows_of_them(texts: Texts) -> None:
    assert BY_FIELD["account"].listed(CLUSTER) == {"bench": "bench", "other": "other", OTHER: OTHER}
    assert BY_FIELD["account"].listed(LAPTOP) == {}
    assert BY_FIELD["gpu_partition"].listed(CLUSTER) == {
        "gpu": BY_FIELD["cpu_partition"].listed(CLUSTER)["gpu"],
        OTHER: OTHER,
    }
    texts(BY_FIELD["gpu_partition"].listed(CLUSTER)["gpu"])
    texts(BY_FIELD["cpu_partition"].listed(CLUSTER)["cpu"])
    assert list(BY_FIELD["cpu_partition"].listed(CLUSTER)) == ["gpu", "cpu", OTHER]
    texts(BY_FIELD["cluster_type"].listed(LAPTOP)["local"])
    texts(BY_FIELD["install_method"].listed(LAPTOP)["local"])
    assert BY_FIELD["arch"].listed(LAPTOP) == {"x86_64": "x86_64", "aarch64": "aarch64"}
    assert BY_FIELD["install_path"].listed(CLUSTER) == {}


def test_suggestions_follow_from_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmb_install.answers.detect.shutil.which", lambda name: None)
    found = suggestions(CLUSTER, {"cluster_type": "slurm", "gpu_partition": "gpu"})
    assert {field: value for field, value in found.items() if value != ""} == {
        **{"cluster_type": "slurm", "account": "bench", "gpu_partition": "gpu", "cpu_partition": "gpu", "gres": True},
        **{"gpu_type": "h100", "arch": "x86_64", "runtime": "pyxis", "install_method": "srun"},
        **{"container_writable": True, "env_type": "venv", "hugging_face": False},
    }
    plain = suggestions(LAPTOP, {"gpu_type": "cpu"})
    assert (plain["cluster_type"], plain["account"], plain["gpu_partition"], plain["gres"]) == ("local", "", "", False)
    assert (plain["gpu_type"], plain["runtime"], plain["cpu_partition"]) == ("cpu", "none", None)
    assert suggestions(LAPTOP, {"cluster_type": "slurm"})["gpu_type"] == "", "nobody knows"
    assert BY_FIELD["gpu_type"].guess == "h100"


def test_enroot_here_is_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmb_install.answers.detect.shutil.which", lambda name: f"/usr/bin/{name}")
    assert suggestions(LAPTOP, {})["install_method"] == "local"
    assert suggestions(LAPTOP, {})["runtime"] == "enroot"
    assert suggestions(CLUSTER, {})["runtime"] == "pyxis"
