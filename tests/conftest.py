"""Fixtures for all tests. How to use the cluster ones: CONTRIBUTING.md."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import engine, slurm_config
from support.golden import UPDATING
from support.groups import arrange, shuffle
from support.images import build_image
from support.processes import MEMORY, has_room
from support.slurm_cluster import SlurmCluster, what_is_missing
from support.slurm_config import ClusterSpec
from support.texts import Texts, texts_of

STANDINS = Path(__file__).parent / "support" / "bin"
# pytest-xdist, among others, sets the last two, which hide the size of the terminal from programs.
_HIDDEN = (
    "SLURM",
    "SBATCH_",
    "SRUN_",
    "PYXIS_",
    "ENROOT_",
    "XDG_",
    "LLMB_",
    "HF_",
    "NGC_",
    "WANDB_",
    "NSYS_",
    "COLUMNS",
    "LINES",
)

_ENVIRONMENT = pytest.MonkeyPatch()

gc.disable()  # while tests are collected


def pytest_configure(config: pytest.Config) -> None:
    """Hide the caller's settings from the tests: Slurm's, LLMB's, tokens, and everything under HOME."""
    if UPDATING and os.environ.get("CI", "").lower() in ("true", "1"):
        raise pytest.UsageError("LLMB_TEST_UPDATE_GOLDEN=1 compares nothing, which is no test: unset it where CI=true")
    # Ignored in a script's background job and under nohup. Programs inherit it, so a test's signal would not end them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in list(os.environ):
        if name.startswith(_HIDDEN) and not name.startswith("LLMB_TEST_"):
            _ENVIRONMENT.delenv(name)
    # Outside the clusters of the tests, Slurm refuses at once: without a file it looks for one in the network.
    _ENVIRONMENT.setenv("SLURM_CONF", os.devnull)
    if hasattr(config, "workerinput"):
        return  # a worker inherits the rest, and shares the empty HOME, of the process that started it
    # What machines need to install packages at all may be set up under the real HOME.
    home = Path.home()
    kept = {"PIP_CONFIG_FILE": ".config/pip/pip.conf", "PIP_CACHE_DIR": ".cache/pip", "PYENV_ROOT": ".pyenv"}
    for name, place in kept.items():
        if name not in os.environ and (home / place).exists():
            _ENVIRONMENT.setenv(name, str(home / place))
    empty_home = tempfile.mkdtemp(prefix="llmb-home-")
    config.add_cleanup(lambda: shutil.rmtree(empty_home, ignore_errors=True))
    config.add_cleanup(_ENVIRONMENT.undo)
    _ENVIRONMENT.setenv("HOME", empty_home)
    # What a run has on record is written through to the disk (fsync). In memory nobody waits for that.
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ and has_room(MEMORY):
        _ENVIRONMENT.setenv("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    _ENVIRONMENT.setenv("LC_ALL", "C.UTF-8")
    _ENVIRONMENT.setenv("TZ", "UTC")  # runs are counted by the days of who reads them
    time.tzset()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat what tests/run skipped and which linters failed, where nobody can miss it."""
    notes = Path(os.environ.get("LLMB_TEST_NOTES", os.devnull))
    text = notes.read_text() if notes.exists() else ""
    if UPDATING:
        text += "LLMB_TEST_UPDATE_GOLDEN=1: golden files were written, not compared; read git diff tests/golden\n"
    if text:
        terminalreporter.section("from tests/run")
        terminalreporter.write(text)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests run, and the order in which they start: support/groups.py."""
    if seed := os.environ.get("LLMB_TEST_ORDER"):
        shuffle(items, seed)
    arrange(items)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: the garbage collector need not look at them again and again.

    Nor at every 700 new objects; Hypothesis, once imported, is called each time.
    """
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests may run in parallel: support/groups.py."""
    from support.scheduling import GroupScheduling  # a single file of tests runs without pytest-xdist

    return GroupScheduling(config, log)


@pytest.fixture
def texts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Texts]:
    """The golden table of texts of the test's module: ``texts(done.err)`` compares with the test's next entry."""
    seen = texts_of(request, tmp_path_factory.getbasetemp())
    failed = request.session.testsfailed
    yield seen
    if request.session.testsfailed == failed:
        seen.finish()


def _lacking(what: str, reason: str) -> None:
    """Skip with the reason, or fail if tests/run has promised that everything is installed."""
    if os.environ.get("LLMB_TEST_CLUSTER") == "required":
        pytest.fail(f"{what} required here (LLMB_TEST_CLUSTER=required), but: {reason}")
    pytest.skip(f"no {what}: {reason}")


def _start(spec: ClusterSpec) -> Iterator[SlurmCluster]:
    if what_is_missing(spec):
        spec = replace(spec, containers=False)  # an ordinary user's cluster, for tests without containers
    missing = what_is_missing(spec)
    if missing:
        _lacking("Slurm cluster", missing)
    with SlurmCluster(spec) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmCluster]:
    """The cluster behind ``slurm``, for fixtures of a wider scope: clean up your own jobs."""
    yield from _start(slurm_config.SMALL)


@pytest.fixture(scope="session")
def slurm_accounting_session() -> Iterator[SlurmCluster]:
    """The cluster behind ``slurm_accounting``, for fixtures of a wider scope."""
    yield from _start(slurm_config.ACCOUNTED)


@pytest.fixture
def slurm(slurm_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """gpu[1-4] with 8 GPUs and grace[1-2] with 4, containers, no accounting. Emptied after each test."""
    yield slurm_session
    slurm_session.cancel_everything()


@pytest.fixture
def slurm_accounting(slurm_accounting_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """Like ``slurm``, with slurmdbd: accounts bench and other, QOS low, normal, high, debug."""
    yield slurm_accounting_session
    slurm_accounting_session.cancel_everything()


@pytest.fixture(scope="session")
def slurm_simulated() -> Iterator[SlurmCluster]:
    """2048 H100 and 2048 GB200 GPUs that exist only in the scheduler, for ``sbatch --test-only``."""
    yield from _start(slurm_config.SIMULATED)


@pytest.fixture(scope="session")
def containers() -> None:
    """For tests that run containers: skips the test if the clusters' nodes cannot."""
    missing = what_is_missing(slurm_config.SMALL)
    if missing:
        _lacking("containers", missing)


@pytest.fixture(scope="session")
def container_image(containers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real squashfs image with a shell and coreutils; its environment sets ``IN_IMAGE=yes``."""
    image = tmp_path_factory.mktemp("image") / "small.sqsh"
    return build_image(image, env={"IN_IMAGE": "yes"})


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The Python of the CPU training engine. Never skips: without an engine the suite cannot test training."""
    return engine.python()


@pytest.fixture(scope="session")
def functions_python() -> Path:
    """The Python of the CPU engine with Megatron-Bridge 0.6, which has recipes as functions. Never skips."""
    return engine.python(engine.SECOND)


@pytest.fixture(scope="session")
def standins() -> Path:
    """The folder with stand-ins for ``enroot`` and ``nsys``; put it at the front of PATH."""
    return STANDINS
