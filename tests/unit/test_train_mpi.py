"""Ranks that are about to start MPI, with stand-ins for PyTorch and Transformer Engine."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from llmb_train import __main__ as main
from llmb_train import mpi
from llmb_train.errors import WrongEngine
from support.texts import Texts

TWO = SimpleNamespace(parallelism=SimpleNamespace(tp=2))
ONE = SimpleNamespace(parallelism=SimpleNamespace(tp=1))
BY_PMIX = {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.7.0"}


def configured(overlap: bool = True, backend: str | None = "nccl") -> SimpleNamespace:
    section = SimpleNamespace(tp_comm_overlap=overlap, tp_comm_bootstrap_backend=backend)
    return SimpleNamespace(comm_overlap=section, model=SimpleNamespace())


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """How Transformer Engine was built, and whether PyTorch has MPI; ``asked`` counts the questions."""
    says = SimpleNamespace(built_with_mpi=False, torch_has_mpi=False, asked=0)

    def ubuf_built_with_mpi() -> bool:
        says.asked += 1
        return bool(says.built_with_mpi)

    for name in ("torch", "transformer_engine", "transformer_engine.pytorch", "transformer_engine_torch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules["torch"])["distributed"] = SimpleNamespace(is_mpi_available=lambda: says.torch_has_mpi)
    vars(sys.modules["transformer_engine_torch"])["ubuf_built_with_mpi"] = ubuf_built_with_mpi
    return says


def test_the_overlap_over_nccl_needs_no_mpi(engine: SimpleNamespace) -> None:
    engine.torch_has_mpi = True  # as in NVIDIA's images
    mpi.require_starter(TWO, configured(), {})
    assert engine.asked == 1
    del vars(sys.modules["transformer_engine_torch"])["ubuf_built_with_mpi"]  # a release that does not tell
    mpi.require_starter(TWO, configured(), {})


@pytest.mark.parametrize(
    ("built", "backend"),
    [
        (True, "nccl"),
        (False, "mpi"),
        (False, None),
    ],
)
def test_mpi_is_refused_to_ranks_that_were_not_started_for_it(
    engine: SimpleNamespace, built: bool, backend: str | None, texts: Texts
) -> None:
    engine.built_with_mpi, engine.torch_has_mpi = built, True
    with texts.raises(WrongEngine):
        mpi.require_starter(TWO, configured(backend=backend), {"PMIX_MCA_gds": "hash", "SLURM_PROCID": "0"})
    for variable in ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        mpi.require_starter(TWO, configured(backend=backend), {variable: "0"})


def test_without_a_backend_and_without_mpi_there_is_none_to_start(engine: SimpleNamespace) -> None:
    mpi.require_starter(TWO, configured(backend=None), {})


def test_nobody_is_asked_where_nothing_overlaps(engine: SimpleNamespace) -> None:
    engine.built_with_mpi = True
    mpi.require_starter(TWO, configured(overlap=False), {})
    mpi.require_starter(ONE, configured(), {})
    mpi.require_starter(TWO, SimpleNamespace(comm_overlap=None, model=SimpleNamespace()), {})
    mpi.require_starter(TWO, configured(), BY_PMIX)
    assert engine.asked == 0
    alone = SimpleNamespace(comm_overlap=None, model=SimpleNamespace(tp_comm_overlap=True))
    with pytest.raises(WrongEngine):
        mpi.require_starter(TWO, alone, {})


class Reached(Exception):
    """That the rank went on."""


class Configuration(SimpleNamespace):
    @property
    def logger(self) -> None:
        raise Reached


@pytest.mark.parametrize(("transformer_engine", "ends"), [(True, WrongEngine), (False, Reached)])
def test_a_rank_asks_before_it_trains_and_only_with_transformer_engine(
    engine, tmp_path, monkeypatch, transformer_engine, ends
):
    engine.built_with_mpi = True
    found = SimpleNamespace(device="cpu", transformer_engine=transformer_engine)
    job = SimpleNamespace(world_size=1, device="cpu", release="0.3", parallelism=TWO.parallelism)
    monkeypatch.setattr(main, "find_rank", lambda _: SimpleNamespace(world_size=1, rank=0, export=lambda _: None))
    monkeypatch.setattr(main.engines, "find_engine", lambda *_: found)
    for name in ("Node", "HangReporter"):
        monkeypatch.setattr(main, name, lambda *_: SimpleNamespace(start=lambda *_, **__: None))
    monkeypatch.setattr(main.refusals, "check", lambda *_: None)
    monkeypatch.setattr(main, "_import_pretrain", lambda *_, **__: None)
    monkeypatch.setattr(main, "_configuration", lambda *_: (Configuration(**vars(configured())), None))
    monkeypatch.setattr(main.named_settings, "apply", lambda *_: None)
    monkeypatch.setattr(main.gc, "disable", lambda: None)
    with pytest.raises(ends):
        main.run(job, tmp_path)


def test_a_working_folder_that_was_removed_is_come_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with main._outside_working_folder():
        assert Path.cwd() == Path("/")
    with pytest.raises(FileNotFoundError):
        Path.cwd()
