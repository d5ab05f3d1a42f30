"""pytest-xdist's scheduler with the groups of ``support.groups``; apart from them, so that tests run without xdist."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from support.groups import group_of


class GroupScheduling(LoadScopeScheduling):
    """pytest-xdist's own scheduler, told which tests belong together.

    Its ``loadgroup`` does the same with marks, but groups nothing where pytest is 9.2 or newer (pytest-xdist's #1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
