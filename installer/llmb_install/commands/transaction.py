"""How a command changes an installation: alone, and in one go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmb_install.working.install_lock import install_lock
from llmb_install.working.leftovers import remove_leftovers
from llmb_install.working.reporter import Reporter


@contextmanager
def transaction(
    install: Path, *, verbose: bool, hidden: tuple[str, ...] = (), new: bool = False, log: bool = True
) -> Iterator[Reporter]:
    """Hold the installation's lock. What a command goes by (answers, belongings, runs) it reads in here: another may
    have come first.

    ``hidden``: secrets that must not be shown, whatever prints them. ``new``: there may be no installation yet.

    Raises:
        EnvironmentLacks: the lock is held for too long; or the installation was removed meanwhile.
    """
    with Reporter(None, verbose=verbose) as reporter, install_lock(install, reporter, create=new):
        if log:  # not before: while we wait, the folder may be removed
            reporter.log_into(install / ".llmb" / "logs")
        for secret in hidden:
            reporter.hide(secret)
        try:
            remove_leftovers(install)
            yield reporter
        except BaseException:
            reporter.say_where_the_log_is()
            raise
