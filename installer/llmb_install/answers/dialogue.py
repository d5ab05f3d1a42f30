"""The questions in a terminal: one screen of what was detected, then, to change it, every question with its default.

Answers are checked at the prompt, and a draft of them survives Ctrl-C.
"""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import questionary
from prompt_toolkit.application.current import get_app_session
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings

from llmb_common.base.errors import Interrupted, RequestError
from llmb_common.base.files import user_path
from llmb_common.base.printable import first_few, print_message
from llmb_common.base.words import Secret
from llmb_common.recipes.recipe import Recipe
from llmb_install.answers import answers as answers_module
from llmb_install.answers import checks
from llmb_install.answers.detect import Site, has_rows
from llmb_install.answers.given import Given, answer_text, uses_images
from llmb_install.answers.questions import BY_FIELD, OTHER, QUESTIONS, Answers, Question, merged_answers
from llmb_install.parts.credentials import Secrets


class Back(Exception):
    """Raised out of a question when the user presses Shift-Tab to return to the question before it.

    It is made without arguments.
    """


def forget_keys() -> None:
    """Discard the keys that the user typed before a question is shown, as they would answer it unseen.

    Where standard input is no terminal, nothing typed there is discarded; no error is raised.
    """
    with contextlib.suppress(termios.error, OSError, ValueError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    # The keys that came together with the last answer: prompt_toolkit keeps them for the next question.
    clear_typeahead(get_app_session().input)


def with_way_back(question: Any) -> Any:
    """Change the questionary ``question`` so that Shift-Tab ends it with ``Back``, and return the same object.

    Its other keys stay. It must not have been asked yet.
    """
    keys = KeyBindings()

    @keys.add("s-tab", eager=True)
    def _back(event: KeyPressEvent) -> None:
        """End the question that is shown: whoever waits for its answer gets ``Back`` raised.

        ``event`` is prompt_toolkit's, for the key.
        """
        event.app.exit(exception=Back())

    application = question.application
    application.key_bindings = merge_key_bindings([*filter(None, [application.key_bindings]), keys])
    return question


class Dialogue:
    """One session of the installer's questions in a terminal; ``run`` asks them, and is called once.

    It is made from ``site``, what was detected on this machine, the ``recipes`` by workload, ``given``, the answers
    from flags by field, which are not asked again unless the user picks one to change, and ``defaults``, earlier
    answers by field, which are offered for Enter to accept. ``run`` returns (answers, secrets) that the user has
    confirmed, after seeing the text that ``summary`` makes of the two. It raises Interrupted where the user ends it,
    RequestError where the folder from the flags is refused, OSError where that folder cannot be looked at,
    RecipeError where a recipe's catalogue cannot be read, and what ``summary`` raises but for RequestError. Drafts
    of the answers are written meanwhile; nothing is installed.
    """

    def __init__(self, site: Site, recipes: Mapping[str, Recipe], given: Given, defaults: Given) -> None:
        self._site = site
        self._recipes = recipes
        self._fixed = dict(given)
        self._defaults = defaults
        self._given: Given = dict(given)
        self._asked_secrets: dict[str, Secret | None] = {}
        self._one_screen = True
        """Whether only what nobody knows is asked, until the user wants to change something."""

    def run(self, secrets: Secrets, summary: Callable[[Answers, Secrets], str]) -> tuple[Answers, Secrets]:
        """Ask the user for what is missing and return (answers, secrets), which the user has confirmed.

        Of ``secrets``, those already known, none is asked for; the answer has them too. ``summary``, called with
        answers and secrets, makes the text that is shown for confirmation; a RequestError that it raises is shown,
        and an answer asked again. The draft of an interrupted dialogue is offered first. The answers so far are
        saved as a draft; at the end they are saved for the next dialogue, and the draft is removed. What cannot be
        saved is left out without a word.

        Raises:
            Interrupted: Ctrl-C, or the user chose to quit
            RequestError: the folder from the flags holds other things, and the user declined to install there, or
                is in the home of an unknown user
            LLMBError: ``summary`` raised another one, or a recipe's catalogue cannot be read
            OSError: the folder of the installation cannot be listed, its free space not be told, or ``summary``
                failed
        """
        try:
            # Keys that were pressed while the environment was built are no answers.
            forget_keys()
            # A folder from the command line needs no question, but one that holds other things does.
            folder = self._fixed.get("install_path")
            if folder and not self._confirm_used_folder(user_path(str(folder), str(folder))):
                raise RequestError("nothing was installed", remedy="choose another folder with --install-path")
            kept = {key: value for key, value in checks.read_draft().items() if key not in self._fixed}
            if kept and _ask_in_terminal(
                questionary.confirm(f"Continue with your {len(kept)} answers from last time?"), way_back=False
            ):
                self._given = {**kept, **self._fixed}
            else:
                self._defaults = {**self._defaults, **kept}
            answers, secrets = self._until_confirmed(secrets, summary)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; your answers so far are kept", remedy="run the same command again to continue with them"
            ) from None
        checks.finish_draft(self._given)
        return answers, secrets

    def _until_confirmed(
        self, given_secrets: Secrets, summary: Callable[[Answers, Secrets], str]
    ) -> tuple[Answers, Secrets]:
        """Ask, show the ``summary`` of the answers, and let the user change them until the user confirms them.

        Returns (the confirmed answers, ``given_secrets`` with those that were typed). ``summary`` is called with
        these two and returns text. A RequestError, by the answers together or by ``summary``, is shown, and the
        user changes one answer; it is not raised.

        Raises:
            Interrupted: the user chose to quit; the answers are saved as a draft
            KeyboardInterrupt: Ctrl-C
            LLMBError: ``summary`` raised another one
            OSError: the folder of the installation cannot be listed, its free space not be told, or ``summary``
                failed
            RecipeError: a recipe's catalogue cannot be read
        """
        self._ask_all()
        while True:
            try:
                secrets = self._ask_secrets(given_secrets)
                answers = self._complete_answers()
                print_message(summary(answers, secrets))
                if self._confirm():
                    return answers, secrets
                self._change_answers()
            except RequestError as problem:  # noqa: PERF203  (a person is waited for)
                print_message(f"  {problem}")
                self._one_screen = False
                self._change_one()
            except Back:
                self._ask_all(back=True)

    def _ask_all(self, *, back: bool = False) -> None:
        """Ask each question that still needs an answer, in their order; Shift-Tab asks the one before again.

        ``back``: begin with the last one that was asked. Answers are filled in, and drafts of them written.

        Raises:
            OSError: the folder of the installation cannot be listed, or its free space not be told
            KeyboardInterrupt: Ctrl-C
            RecipeError: a recipe's catalogue cannot be read
        """
        position = self._take_back(len(QUESTIONS)) if back else 0
        while position < len(QUESTIONS):
            try:
                self._ask_if_needed(QUESTIONS[position])
                position += 1
            except Back:  # noqa: PERF203
                self._one_screen = False
                position = self._take_back(position)

    def _take_back(self, position: int) -> int:
        """Forget the answer to the last changeable question before ``position``; return that question's index.

        Both are indexes in ``QUESTIONS``. Changeable is one that the dialogue asks, that matters, and that has an
        answer, not from a flag, be it typed or only detected. The answer becomes what Enter accepts next time;
        answers to later questions are dropped, too, but for those from flags. Where no such question was answered,
        nothing changes and ``position`` itself is returned.
        """
        for earlier in range(position - 1, -1, -1):
            question = QUESTIONS[earlier]
            field = question.field
            can_change = field in self._given and field not in self._fixed and question.asked(self._given)
            if can_change and question.matters(self._given):
                self._defaults = {**self._defaults, field: self._given.pop(field)}
                for later in QUESTIONS[earlier + 1 :]:
                    # Defaults of questions that were not asked: they may follow from the answer that changes.
                    if later.field not in self._fixed:
                        self._given.pop(later.field, None)
                return earlier
        return position

    def _confirm_used_folder(self, folder: Path) -> bool:
        """Return whether to install into ``folder``: True if it is free, else what the user answers when asked now.

        A free folder is missing or empty, is an installation, or has only what one leaves behind, such as results.
        Enter is a no.

        Raises:
            OSError: the folder cannot be listed
            KeyboardInterrupt: Ctrl-C
        """
        names = checks.foreign_entries(folder)
        if not names:
            return True
        few = first_few(names, checks.MOST_NAMED)
        text = f"{folder} is not empty (it contains {few}). Install there anyway?"
        return bool(_ask_in_terminal(questionary.confirm(text, default=False), way_back=False))

    def _ask_if_needed(self, question: Question) -> None:
        """Fill in the answer to ``question`` from what is known or by asking; nothing where it does not matter.

        An answer that is there already stays. Once the user has answered, all answers are saved in the draft. A
        question that the dialogue does not ask takes an earlier answer, if there is one. Until the user has gone
        back or changed something, a known answer is taken without asking.

        Raises:
            Back: the user wants the question before this one
            KeyboardInterrupt: Ctrl-C
            OSError: the folder of the installation cannot be listed, or its free space not be told
            RecipeError: a recipe's catalogue cannot be read
        """
        field = question.field
        if field in self._given or not question.matters(self._given):
            return
        if not question.asked(self._given):
            if self._defaults.get(field) is not None:
                self._given[field] = self._defaults[field]
            return
        known = self._known_answer(question) if self._one_screen else []
        self._given[field] = known[0] if known else self._ask(question)
        if not known:
            checks.keep_draft(self._given)

    def _known_answer(self, question: Question) -> list[Any]:
        """Return the answer that need not be asked, in a list: an earlier one, or what was detected; empty: ask.

        The list has one item, as ``_ask`` would return it. Empty where nobody knows the answer, or the known one is
        impossible on this machine. ``[None]``: the question may stay without an answer. A switch always has an
        answer, False where nobody knows. Of earlier workloads only those that the GPU type has configurations for
        are taken.

        Raises:
            OSError: the suggested installation folder cannot be listed, or its free space not be told
            RecipeError: a recipe's catalogue cannot be read
        """
        field, value = question.field, self._suggestion(question)
        if field == "workloads":
            fitting = self._workloads_for_gpu()
            names = [name for name in self._defaults.get("workloads") or fitting if name in fitting]
            return [names] if names else []
        if question.is_switch:
            return [bool(value)]
        text = str(value or "")
        if not text:
            return [] if question.required or not question.may_be_empty else [None]
        if question.choices:
            return [text] if text in question.choices else []
        if _typed_problem(question, text, self._given):
            return []
        if not question.kind.is_path:
            return [text]
        path = user_path(text, text)
        return [] if field == "install_path" and checks.foreign_entries(path) else [str(path)]

    def _workloads_for_gpu(self) -> list[str]:
        """Return the names of the workloads that have a configuration for the answered GPU type, sorted.

        Empty where none has, or no GPU type has been answered; the answer must be in lower case. ``cpu`` fits all.

        Raises:
            RecipeError: a recipe's catalogue cannot be read
        """
        gpu_type = str(self._given.get("gpu_type"))
        return [name for name, recipe in sorted(self._recipes.items()) if has_rows(recipe, gpu_type)]

    def _ask(self, question: Question) -> Any:
        """Ask the user ``question`` in the form that fits it, and return the answer.

        That is True or False for a switch, a list of names for workloads, else text, of a path absolute; None for
        an empty answer. Where choices are listed, another one may be typed if the list offers that. Nothing is
        stored, neither in the dialogue nor in a draft.

        Raises:
            Back: the user wants the question before this one
            KeyboardInterrupt: Ctrl-C
            OSError: the folder to install into cannot be listed, or its free space not be told
            RecipeError: a recipe's catalogue cannot be read
        """
        if question.field == "workloads":
            return self._ask_workloads()
        if question.is_switch:
            return bool(
                _ask_in_terminal(questionary.confirm(question.prompt + "?", default=bool(self._suggestion(question))))
            )
        choices = question.listed(self._site)
        suggestion = self._suggestion(question) or question.guess
        if choices:
            default = suggestion if suggestion in choices else None
            rows = [questionary.Choice(title, value=value) for value, title in choices.items()]
            chosen = _ask_in_terminal(
                questionary.select(question.prompt, choices=rows, default=default, instruction=" ")
            )
            if chosen != OTHER:
                return chosen
            suggestion = ""
        return self._ask_text(question, str(suggestion or ""))

    def _ask_text(self, question: Question, suggestion: str) -> str | None:
        """Ask ``question`` as a line of typed text, checked at the prompt, and return it stripped; None for empty.

        Empty is an answer only where the question is not required and may be left empty. A path comes back absolute.
        ``suggestion`` is there to be edited. An installation folder that holds other things must be confirmed, or the
        question is asked again.

        Raises:
            Back: the user wants the question before this one
            KeyboardInterrupt: Ctrl-C
            OSError: the folder to install into cannot be listed, or its free space not be told
        """
        optional = question.may_be_empty and not question.required

        def valid(text: str) -> bool | str:
            """Return True where ``text`` may be the answer, else the text that the prompt shows against it.

            The question is the enclosing function's. An empty or blank ``text`` is an answer only where the
            question is not required and may be left empty.

            Raises:
                OSError: a folder above the path in ``text`` is closed to this user
            """
            if not text.strip():
                return True if optional else f"an answer is required{question.way_out}; Shift-Tab: back"
            return _typed_problem(question, text.strip(), self._given) or True

        hint = question.hint(suggestion)
        text = str(
            _ask_in_terminal(questionary.text(f"{question.prompt}{hint}", default=suggestion, validate=valid))
        ).strip()
        if question.field == "install_path" and not self._confirm_used_folder(user_path(text, text)):
            return self._ask_text(question, suggestion)
        if question.kind.is_path and text:
            return str(user_path(text, text))
        return text or None

    def _ask_workloads(self) -> list[str]:
        """Ask which workloads to install and return their names, in full; the user must choose at least one.

        All recipes are listed, sorted by name. Those without a configuration for the GPU type say so and are not
        preselected.

        Raises:
            Back: the user wants the question before this one
            KeyboardInterrupt: Ctrl-C
            RecipeError: a recipe's catalogue cannot be read
        """
        gpu_type, fitting = str(self._given.get("gpu_type")), self._workloads_for_gpu()
        chosen = self._defaults.get("workloads") or fitting
        choices = [
            questionary.Choice(
                f"{name}  ({recipe.title})" + ("" if name in fitting else f"  no configuration for {gpu_type}"),
                value=name,
                checked=name in chosen and name in fitting,
            )
            for name, recipe in sorted(self._recipes.items())
        ]
        keys = "(space: select, a: all, Enter: continue)"
        prompt = questionary.checkbox(
            "Workloads", choices=choices, instruction=keys, validate=lambda some: bool(some) or "select at least one"
        )
        return list(_ask_in_terminal(prompt))

    def _ask_secrets(self, secrets: Secrets) -> Secrets:
        """Return a copy of ``secrets`` with those added that are needed and missing, asking for each at most once.

        What is in ``secrets`` stays. The Hugging Face token is asked for where tokenizers are fetched, the NGC key
        where images are used and the user has gone back or changed something in this dialogue. A secret that was
        asked for is marked to be kept in the installation, even if none was typed.

        Raises:
            Back: the user wants the question before this one
            KeyboardInterrupt: Ctrl-C
        """
        token = secrets.hf_token
        key = secrets.ngc_api_key
        keep = set(secrets.keep)
        if token is None and self._given.get("hugging_face"):
            if "hf_token" not in self._asked_secrets:
                self._asked_secrets["hf_token"] = _ask_token()
            token = self._asked_secrets["hf_token"]
            keep.add("hf_token")
        if key is None and uses_images(self._given) and not self._one_screen:
            if "ngc_api_key" not in self._asked_secrets:
                prompt = "NGC API key (only for images that need one; Enter: none)"
                text = _ask_in_terminal(questionary.password(prompt)).strip()
                self._asked_secrets["ngc_api_key"] = Secret(text) if text else None
            key = self._asked_secrets["ngc_api_key"]
            keep.add("ngc_api_key")
        return Secrets(hf_token=token, ngc_api_key=key, keep=frozenset(keep))

    def _confirm(self) -> bool:
        """Ask the user, after the summary, to install, change or quit; return True for install, False for change.

        Keys that were typed before count as no answer.

        Raises:
            Interrupted: the user chose to quit; the answers are saved as a draft, if that can be written
            Back: the user wants the last question again
            KeyboardInterrupt: Ctrl-C
        """
        # The summary is to be read: what was typed before it was there does not confirm it.
        forget_keys()
        choice = _ask_in_terminal(questionary.select("Go on?", choices=["install", "change", "quit"], instruction=" "))
        if choice == "quit":
            if not checks.keep_draft(self._given):
                raise Interrupted("nothing was installed, and your answers could not be kept")
            raise Interrupted(
                "nothing was installed; your answers are kept", remedy="run it again to continue with them"
            )
        return bool(choice == "install")

    def _change_answers(self) -> None:
        """Let the user change answers: the first time by asking every question again, later only one at a time.

        The first time is as long as the user has neither gone back nor changed anything in this dialogue: until
        then only what could not be detected was asked. Answers from flags stay; the others become what Enter
        accepts. The dialogue's answers are changed, and drafts written.

        Raises:
            OSError: the folder of the installation cannot be listed, or its free space not be told
            KeyboardInterrupt: Ctrl-C
            RecipeError: a recipe's catalogue cannot be read
        """
        if not self._one_screen:
            self._change_one()
            return
        self._one_screen = False
        self._defaults = {**self._defaults, **self._given}
        self._given = dict(self._fixed)
        self._ask_all()

    def _change_one(self) -> None:
        """Let the user choose one question and answer it again, then ask those whose answers depended on it.

        Every question that matters can be chosen, also one that a flag has answered. Shift-Tab restores all answers
        as they were before this call. The draft is written in any case.

        Raises:
            OSError: the folder of the installation cannot be listed, or its free space not be told
            KeyboardInterrupt: Ctrl-C
            RecipeError: a recipe's catalogue cannot be read
        """
        questions = [question for question in QUESTIONS if question.matters(self._given)]
        choices = [
            questionary.Choice(f"{item.prompt}: {answer_text(self._given.get(item.field))}", value=item.field)
            for item in questions
        ]
        before = dict(self._given), dict(self._defaults)
        try:
            field = _ask_in_terminal(questionary.select("Which one?", choices=choices, instruction=" "))
            question = BY_FIELD[field]
            self._defaults = {**self._defaults, **self._given}
            self._given = merged_answers(self._given, {field: self._ask(question)})
            # Those that came from the old answer are asked again, with what the new one suggests.
            self._defaults = {key: value for key, value in self._defaults.items() if key in self._given}
            for item in QUESTIONS:
                self._ask_if_needed(item)
        except Back:
            # As if it had not been asked to change.
            self._given, self._defaults = before
        checks.keep_draft(self._given)

    def _complete_answers(self) -> Answers:
        """Return the full set of this dialogue's answers: those that make a difference, and defaults for all others.

        Raises:
            RequestError: an answer is missing, wrong, or contradicts another
            RecipeError: a recipe's catalogue cannot be read
        """
        relevant = [question.field for question in QUESTIONS if question.matters(self._given)]
        given = {key: value for key, value in self._given.items() if key in relevant or key == "space_check"}
        return answers_module.complete_answers(given, self._recipes)

    def _suggestion(self, question: Question) -> Any:
        """Return what Enter accepts for ``question``: the earlier answer, else what this machine or LLMB suggests.

        As an answer of that question is: text, a bool, a list of names. An earlier answer does not count once the
        answer that it depends on has changed. Empty or None where nobody knows.
        """
        old = merged_answers(self._defaults, self._given)
        if question.field in old:
            return old[question.field]
        return question.suggested(self._site, self._given)


def _ask_in_terminal(question: questionary.Question, *, way_back: bool = True) -> Any:
    """Ask ``question`` in the terminal and return the user's answer, of the type that such a question has.

    A bool for a confirmation, the choice's value for a selection, a list of these for a checkbox, else text.

    Raises:
        KeyboardInterrupt: Ctrl-C
        Back: Shift-Tab, unless ``way_back`` is False
    """
    return (with_way_back(question) if way_back else question).unsafe_ask()


def _ask_token() -> Secret | None:
    """Ask for the Hugging Face token, again while Hugging Face rejects it, and return it; None: the user has none.

    It is stripped, and not stored here. Where Hugging Face cannot be asked, the token counts as accepted.

    Raises:
        Back: the user wants the question before this one
        KeyboardInterrupt: Ctrl-C
    """
    from llmb_install.parts.hugging_face import check_token

    while text := _ask_in_terminal(questionary.password("Hugging Face token (Enter: none)")).strip():
        problem = check_token(Secret(text))
        if not problem:
            return Secret(text)
        print_message(f"  {problem}")
    return None


def _typed_problem(question: Question, text: str, given: Given) -> str:
    """Return what is wrong with the typed answer ``text``, beside the answers ``given`` and on this machine.

    The result is a clause for the prompt, of the first thing that is wrong, as of ``text_problem`` or such as
    ``/a/b is not a directory``; empty: nothing is. The disk is looked at. ``text`` must be stripped and not empty.

    Raises:
        OSError: a folder above the path in ``text`` is closed to this user
    """
    return checks.text_problem(question, text, given) or question.kind.here(text) or question.refused(text)
