"""The engine: a graph of steps that may run any number of times.

A step looks at what is there (``done``), not at what was once noted, so that running again does exactly what is
missing. Steps that do not need each other run side by side. A failed step lets the others that run finish, then its
error is raised; nothing new is begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from llmb_common.errors import CheckFailed, LLMBError
from llmb_install.working import command
from llmb_install.working.reporter import Reporter

_SIDE_BY_SIDE = 3


@dataclass(frozen=True)
class Step:
    """One idempotent piece of an installation.

    ``done``: a quick look, without writing, network or lock. ``verify``: the thorough look; what is wrong, or None.
    ``shows``: what it would do, for a dry run. ``download`` and ``disk``: bytes, estimated.
    """

    id: str
    done: Callable[[], bool]
    run: Callable[[Reporter], object]
    verify: Callable[[], str | None]
    needs: tuple[str, ...] = ()
    shows: str = ""
    download: int = 0
    disk: int = 0


def run_missing(steps: Sequence[Step], reporter: Reporter) -> list[str]:
    """Run the steps that are not done, each after those it needs. Returns the ids of those that ran.

    Raises the error of the first step that failed; Ctrl-C ends every program that a step has started.
    """
    waiting = {step.id: step for step in steps if not step.done()}
    ran: list[str] = []
    errors: list[BaseException] = []
    running: dict[Future[object], str] = {}
    with ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE) as pool:
        try:
            while running or (waiting and not errors):
                blocked = set(waiting) | set(running.values())
                for step in [] if errors else [s for s in waiting.values() if not blocked & set(s.needs)]:
                    running[pool.submit(step.run, reporter)] = waiting.pop(step.id).id
                if not running:
                    raise AssertionError(f"steps that wait for each other: {', '.join(waiting)}")
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = running.pop(future)
                    error = future.exception()
                    if error is None:
                        ran.append(name)
                    else:
                        errors.append(error)
        except BaseException:
            # Ctrl-C or SIGTERM while waiting: end the programs, or leaving the pool would wait for them.
            command.stop_all()
            raise
    if errors:
        for other in errors[1:]:
            reporter.note(f"error: {other}")
        raise errors[0]
    return ran


def verify_all(steps: Sequence[Step], reporter: Reporter) -> dict[str, str | None]:
    """The thorough look at every step: what is wrong with each, or None."""
    found: dict[str, str | None] = {}
    for step in steps:
        with reporter.step(f"checking {step.id}") as shown:
            try:
                found[step.id] = step.verify()
            except (LLMBError, OSError) as error:
                found[step.id] = str(error)
            shown.update(found[step.id] or "")
            shown.is_wrong = bool(found[step.id])
    return found


def raise_if_any(found: dict[str, str | None]) -> None:
    bad = {name: problem for name, problem in found.items() if problem}
    if bad:
        lines = "\n".join(f"    {name}: {problem}" for name, problem in bad.items())
        raise CheckFailed(
            f"{len(bad)} of {len(found)} parts of the installation are not right:\n{lines}",
            remedy="run llmb-install update, which repairs what is missing or damaged",
        )
