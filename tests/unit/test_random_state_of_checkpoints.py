"""Which random state a checkpoint has, by the keys of its index, and whether a job's ranks look for the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb_train.settings.checkpoint import Loaded, has_random_state


def job(world_size: int, **layout: int) -> Any:
    p = SimpleNamespace(**{"tp": 1, "pp": 1, "cp": 1, "ep": None, **layout})
    return SimpleNamespace(parallelism=p, data_parallel=world_size // (p.tp * p.pp * p.cp))


def saved(folder: Path, layout: str) -> Loaded:
    """A checkpoint whose index has the random states of ``layout`` ("PP.TP" or "PP.TP.DP") among other keys."""
    content = folder / "iter_0000050"
    content.mkdir()
    first = ".".join("0" for _ in layout.split("."))
    (content / ".metadata").write_bytes(
        b"\x8c\x1brng_state/shard_%s_%s\x94 optimizer/shard_0_9\x94" % (first.encode(), layout.encode())
    )
    return Loaded(folder, 50)


@pytest.mark.parametrize(
    ("layout", "asked", "found"),
    [
        ("1.1", job(1), True),
        ("1.1", job(8), True),  # every data-parallel rank takes the same
        ("1.1", job(2, ep=2), False),
        ("1.1.2", job(2, ep=2), True),
        ("1.1.2", job(4, ep=2), False),
        ("1.1.2", job(4, ep=2, cp=2), False),
        ("1.1.4", job(4, ep=2, cp=2), True),
        ("1.1.2", job(2, ep=1), False),
        ("2.4", job(8, pp=2, tp=4), True),
        ("2.4", job(8, pp=4, tp=2), False),
    ],
)
def test_the_ranks_take_the_state_that_was_saved_for_them(tmp_path: Path, layout: str, asked: Any, found: bool) -> None:
    assert has_random_state(asked, saved(tmp_path, layout)) is found


def test_a_checkpoint_of_another_format_is_left_to_the_framework(tmp_path: Path) -> None:
    assert has_random_state(job(8, ep=8), Loaded(tmp_path, 50))
    loaded = saved(tmp_path, "1.1")
    (tmp_path / "iter_0000050" / ".metadata").write_bytes(b"no such key")
    assert has_random_state(job(8, ep=8), loaded)
