"""Making the missing parts of an installation; safe to repeat any number of times.

Artefacts that do not need each other are made side by side. When one fails, those that are being made are finished,
then its error is raised; nothing new is begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from llmb_common.errors import CheckFailed, LLMBError
from llmb_install.working import command
from llmb_install.working.artefact import Artefact
from llmb_install.working.readiness import require_ready
from llmb_install.working.reporter import Reporter

_SIDE_BY_SIDE = 3


def missing(artefacts: Iterable[Artefact]) -> list[Artefact]:
    """The artefacts that are not complete."""
    return [artefact for artefact in artefacts if not artefact.is_complete()]


def make_missing(
    artefacts: Iterable[Artefact], reporter: Reporter, damaged: Mapping[str, str | None] | None = None
) -> list[str]:
    """Make what is missing, and anew what ``damaged`` names with its problem, each artefact after those it needs.
    Returns the ids of those that were made.

    Ctrl-C ends every program that one of them has started.

    Raises:
        EnvironmentLacks: what is missing on this machine for any of them; nothing was begun.
        CheckFailed: what is damaged and not the installer's to make again.
        LLMBError: the error of the first that failed.
    """
    damaged = damaged or {}
    waiting = {artefact.id: artefact for artefact in artefacts if artefact.id in damaged or not artefact.is_complete()}
    require_ready(waiting.values())
    ran: list[str] = []
    stay: dict[str, str | None] = {}
    errors: list[BaseException] = []
    running: dict[Future[bool], str] = {}
    with ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE) as pool:
        try:
            while running or (waiting and not errors):
                blocked = set(waiting) | set(running.values())
                for ready in [] if errors else [a for a in waiting.values() if not blocked & set(a.needs)]:
                    begun = pool.submit(ready.ensure, reporter, anew=ready.id in damaged)
                    running[begun] = waiting.pop(ready.id).id
                if not running:
                    raise AssertionError(f"artefacts that wait for each other: {', '.join(waiting)}")
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = running.pop(future)
                    error = future.exception()
                    if error is not None:
                        errors.append(error)
                    elif name in damaged and not future.result():
                        stay[name] = damaged[name]
                    else:
                        ran.append(name)
        except BaseException:
            # Ctrl-C or SIGTERM while waiting: end the programs, or leaving the pool would wait for them.
            command.stop_all()
            raise
    if errors:
        for other in errors[1:]:
            reporter.note(f"error: {other}")
        raise errors[0]
    if problem := problem_in(stay, "correct that by hand: the installer does not make it again"):
        raise problem
    return ran


def verify_all(artefacts: Iterable[Artefact], reporter: Reporter) -> dict[str, str | None]:
    """The thorough look at every artefact: what is wrong with each, or None."""
    found: dict[str, str | None] = {}
    for artefact in artefacts:
        with reporter.step(f"checking {artefact.id}") as shown:
            try:
                found[artefact.id] = artefact.verify()
            except (LLMBError, OSError) as error:
                found[artefact.id] = str(error)
            shown.update(found[artefact.id] or "")
            shown.is_wrong = bool(found[artefact.id])
    return found


def problem_in(found: Mapping[str, str | None], remedy: str) -> CheckFailed | None:
    """The error that names what ``verify_all`` found wrong, if anything; ``remedy`` for what no hand has to correct."""
    bad = [f"    {name}: {problem}" for name, problem in found.items() if problem]
    if not bad:
        return None
    # An error has its own remedy: a mistake by hand, which no update takes out of a file.
    by_hand = [line for line in bad if "\n  -> " in line]
    remedies = ["correct by hand what has a line to write"] if by_hand else []
    remedies += [remedy] if len(by_hand) < len(bad) else []
    return CheckFailed(
        "\n".join([f"{len(bad)} of {len(found)} parts of the installation are damaged or missing:", *bad]),
        remedy="; then ".join(remedies),
    )
