"""The dialogue's smaller manners: which questions have a way back, hints, refusals, and what Enter leaves out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_installer_dialogue import BACK, CLUSTER, ENTER, GPU, LAPTOP, talk  # noqa: F401  (a fixture)

from llmb_common.base.errors import Interrupted, RequestError
from llmb_common.base.words import Secret
from llmb_install.answers import checks, dialogue
from llmb_install.answers.dialogue import Back, forget_keys, with_way_back
from llmb_install.parts.credentials import Secrets
from support.texts import Texts

# ruff: noqa: F811


def test_only_what_can_be_taken_back_has_a_way_back(talk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x").touch()
    checks.keep_draft({"account": "other"})
    with_one: list[str] = []
    monkeypatch.setattr(dialogue, "with_way_back", lambda question: with_one.append(question.text) or question)
    original = talk.__closure__  # the terminal is made when the dialogue begins
    assert original
    monkeypatch.setattr(
        "test_installer_dialogue.Terminal._question", _named(sys.modules["test_installer_dialogue"].Terminal._question)
    )
    used = str(tmp_path / "used")
    _, _, terminal = talk(Where_to_install=[used], **{used: [True]})
    without = [text for text in terminal.asked if text not in with_one]
    assert [text.partition(" ")[0] for text in without] == ["Continue", used]


def _named(question: Any) -> Any:
    def named(self: Any, text: str, *arguments: Any, **options: Any) -> Any:
        found = question(self, text, *arguments, **options)
        found.text = text
        return found

    return named


def test_answers_that_contradict_each_other_are_corrected_one_by_one(talk, capsys, texts: Texts):
    answers, _, terminal = talk(
        GPU_type=["cpu"], Container_runtime=["pyxis", "none"], Which_one=["runtime"], given={"cluster_type": "slurm"}
    )
    assert (answers.gpu_type, answers.runtime) == ("cpu", "none")
    texts(capsys.readouterr().err)
    assert terminal.asked.count("Which one?") == 1


def test_a_refusal_cannot_steer_the_terminal(talk, monkeypatch, capsys):
    complete, refusals = dialogue.answers_module.complete_answers, ["a\x1b[2Jb"]

    def once(*given: Any) -> Any:
        if refusals:
            raise RequestError(refusals.pop())
        return complete(*given)

    monkeypatch.setattr(dialogue.answers_module, "complete_answers", once)
    talk(Which_one=["account"])
    assert "  a\\x1b[2Jb\n" in capsys.readouterr().err


def test_a_flag_is_not_asked_again_after_going_back(talk: Any) -> None:
    answers, _, terminal = talk(
        given={"account": "team", "runtime": "pyxis"}, GPU_type=[BACK, ENTER], Do_jobs=[ENTER, BACK, ENTER]
    )
    assert (answers.account, answers.runtime) == ("team", "pyxis")
    assert not [text for text in terminal.asked if text.startswith(("Slurm account", "Container runtime"))]


def test_what_was_answered_is_what_enter_accepts_on_the_way_back(talk: Any) -> None:
    answers, _, terminal = talk(Architecture=["aarch64", ENTER], Container_runtime=[BACK, ENTER])
    assert answers.arch == "aarch64"
    assert terminal.asked.count("Architecture of the compute nodes") == 2


def test_what_followed_from_an_answer_is_asked_when_that_is_taken_back(talk: Any) -> None:
    _, _, terminal = talk(
        defaults={"cpu_partition": "cpu"}, Where_images=["local", "srun"], Folder_of_container=[BACK, ENTER]
    )
    assert "Partition for installation jobs" in terminal.asked


def test_hints_say_what_enter_means(talk: Any) -> None:
    answers, _, terminal = talk()
    assert "Folder of container images (Enter: images in the installation)" in terminal.asked
    assert answers.image_folder is None
    answers, _, terminal = talk(defaults={"image_folder": "/shared"})
    assert "Folder of container images" in terminal.asked
    assert answers.image_folder == "/shared"


def test_a_path_may_be_relative_or_at_home(talk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    answers, _, _ = talk(Where_to_install=["  here "], Folder_of_container=["~/images"])
    assert (answers.install_path, answers.image_folder) == (f"{tmp_path}/here", f"{tmp_path}/images")
    assert checks.read_draft() == {}


def test_a_folder_that_cannot_be_written_is_refused_at_the_prompt(talk, tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "closed")
    answers, _, terminal = talk(
        Where_to_install=[str(tmp_path / "closed" / "x"), str(tmp_path / "n")],
        Folder_of_container=[str(tmp_path / "closed")],
    )
    assert [text.split()[0] for text in terminal.refused] == [str(tmp_path / "closed")]
    assert answers.image_folder == str(tmp_path / "closed"), "images may lie in a folder of somebody else"


def test_what_a_flag_says_of_space_stays(talk: Any) -> None:
    assert talk(given={"space_check": False})[0].space_check is False
    assert talk(defaults={"space_check": True})[0].space_check is True


def test_leaving_names_the_way_back_in(talk: Any, texts: Texts) -> None:
    with texts.raises(Interrupted):
        talk(Go_on=["quit"])


def test_a_key_that_there_is_is_not_asked_for_nor_kept(talk: Any) -> None:
    given = Secrets(ngc_api_key=Secret("k"))
    assert talk(secrets=given)[1] == given
    assert "NGC API key" not in " ".join(talk(site=LAPTOP)[2].asked), "no image is imported"


def test_one_partition_of_many_is_the_default(talk: Any) -> None:
    _, _, terminal = talk(defaults={"gpu_partition": "gone"})
    assert terminal.offered["Partition for GPU jobs"] == "gpu", "what Slurm does not have cannot be preselected"


def test_a_change_that_is_taken_back_changes_nothing(talk: Any) -> None:
    answers, _, _ = talk(
        Go_on=["change", ENTER], Which_one=["gpu_type"], GPU_type=[ENTER, "b200"], Architecture=[ENTER, BACK]
    )
    assert (answers.gpu_type, answers.arch) == ("h100", "x86_64")


def test_the_list_of_answers_to_change_shows_them(talk: Any, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    shown: list[str] = []
    terminal = sys.modules["test_installer_dialogue"].Terminal
    select = terminal.select

    def noted(self: Any, text: str, choices: list[Any], **more: Any) -> Any:
        assert more["instruction"] == " ", "no hint beside the question: the welcome has said which keys there are"
        if text == "Which one?":
            shown.extend(choice.title for choice in choices)
        return select(self, text, choices, **more)

    monkeypatch.setattr(terminal, "select", noted)
    talk(Go_on=["change", ENTER], Which_one=["account"])
    texts("\n".join(shown))
    assert not [line for line in shown if line.startswith("Python with torch")], "which does not matter here"


def test_a_site_with_slurm_may_be_used_without_it(talk: Any) -> None:
    answers, _, _ = talk(site=CLUSTER, Where_jobs_run=["local"], GPU_type=["cpu"])
    assert (answers.cluster_type, answers.runtime, answers.account, answers.env_type) == ("local", "none", None, "venv")


# The keyboard


def test_shift_tab_leaves_the_question() -> None:
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.keys import Keys

    left: list[BaseException] = []
    own = KeyBindings()
    own.add("c-x")(lambda event: None)
    for bindings in (None, own):
        question = SimpleNamespace(application=SimpleNamespace(key_bindings=bindings))
        assert with_way_back(question) is question
        (way_back,) = question.application.key_bindings.get_bindings_for_keys((Keys.BackTab,))
        assert way_back.eager()
        way_back.handler(SimpleNamespace(app=SimpleNamespace(exit=lambda exception: left.append(exception))))
        assert isinstance(left.pop(), Back)
    assert question.application.key_bindings.get_bindings_for_keys((Keys.ControlX,)), "its own keys still work"


def test_keys_that_were_typed_too_early_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[object] = []
    monkeypatch.setattr(dialogue.termios, "tcflush", lambda *given: dropped.append(given))
    monkeypatch.setattr(dialogue, "clear_typeahead", lambda given: dropped.append(given))
    forget_keys()
    assert dropped[0] == (sys.stdin, dialogue.termios.TCIFLUSH)
    assert len(dropped) == 2


def test_without_a_terminal_there_are_no_keys_to_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (OSError("closed"), ValueError("no file"), dialogue.termios.error("no terminal")):

        def refuse(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(dialogue.termios, "tcflush", refuse)
        forget_keys()


def test_answers_of_last_time_that_cannot_be_are_not_offered(talk: Any, tmp_path: Path) -> None:
    kept = {"gpu_partition": ["gpu"], "account": {"a": 1}, "gres": "yes", "workloads": 5, "cluster_type": "cloud"}
    for name in ("installer-draft.json", "installer-answers.json"):
        checks.keep_draft({**kept, "gpu_type": "h100"}, name)
        assert checks.read_draft(name) == {"gpu_type": "h100"}
    assert talk()[0].gpu_type == "h100"


def test_of_several_partitions_that_of_known_gpus_is_offered(talk: Any) -> None:
    older = replace(GPU, name="a100q", gpu_name="a100", is_default=True)
    default = replace(GPU, name="batch", is_default=True)
    for partitions in ((older, GPU), (GPU, older)):
        answers, _, _ = talk(site=replace(CLUSTER, partitions=partitions), one_screen=True)
        assert (answers.gpu_partition, answers.gpu_type) == ("gpu", "h100")
    assert talk(site=replace(CLUSTER, partitions=(GPU, default)), one_screen=True)[0].gpu_partition == "batch"
