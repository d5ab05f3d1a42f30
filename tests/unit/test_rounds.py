"""Several jobs from one command: killed, refused or run twice, it ends with exactly the jobs that were requested."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from llmb_common.errors import RecordError
from llmb_common.index import find_runs
from llmb_common.runs.record import RunRecord
from llmb_common.submission import batch, rounds, single
from llmb_run.main import main
from support import instant
from support.cli import Cli, Done
from support.crashes import run_and_crash, start
from support.fake_slurm import FakeSlurm
from support.processes import wait_until
from support.run_site import RunSite

FIVE = ("submit", "-w", "llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1", "--repeats", "5")


@pytest.fixture
def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fake: FakeSlurm
) -> Cli:
    """llmb-run on an installation with a scripted Slurm."""
    code = tmp_path / "code" / "llmb_train"
    code.mkdir(parents=True)
    (code / "__main__.py").touch()
    monkeypatch.setattr(batch, "training_code", lambda: code)
    return Cli(RunSite(tmp_path, "slurm").install, monkeypatch, capsys)


def left_behind(cli: Cli) -> list[Path]:
    return list(cli.install.rglob(".submitting"))


def with_room_for_two(cli: Cli) -> Done:
    """Five runs are requested, and there is disk space for two."""
    create, left = single.create_run, [None, None]

    def create_while_there_is_room(*arguments: Any) -> RunRecord:
        try:
            left.pop()
        except IndexError:
            raise RecordError(
                f"cannot write: {os.strerror(errno.ENOSPC)}", remedy="free space; then run the same command again"
            ) from None
        return create(*arguments)

    with cli.patch.context() as patch:
        patch.setattr(single, "create_run", create_while_there_is_room)
        return cli(*FIVE, "--no-array")


@pytest.mark.parametrize("more", [(), ("--no-array",)])
@pytest.mark.parametrize("at", [3, 12, 30, 50, 75])
def test_killed_and_run_again(cluster: Cli, fake: FakeSlurm, at: int, more: tuple[str, ...]) -> None:
    command = (*FIVE, *more)
    assert run_and_crash(lambda: main(list(command)), at, cluster.install)
    done = cluster(*command)
    assert (done.status, len(fake.jobs())) == (0, 5), done.err
    assert len(find_runs(cluster.install)) == 5
    assert left_behind(cluster) == []
    assert cluster(*command).status == 0
    assert len(fake.jobs()) == 10, "all are submitted: the same command is a new request"


@pytest.mark.parametrize("repeats", [1, 3])
def test_killed_with_its_runs_outside_the_installation(repeats, tmp_path, monkeypatch, capsys):
    """The index learns of such a folder by the first run that is noted there: killed before, it knows of no job."""
    instant.install_executor(monkeypatch, tmp_path / "instant")
    cli = Cli(RunSite(tmp_path, "instant").install, monkeypatch, capsys)
    monkeypatch.setenv("LLMB_WORKLOAD", str(tmp_path / "mine"))
    command = (*FIVE[:-1], str(repeats), "--no-array")
    (instant.folder() / "die after").touch()
    child = start(lambda: main(list(command)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(instant.accepted()) >= 1, "the scheduler has a job, and nobody was told"
    (instant.folder() / "die after").unlink()
    done = cli(*command)
    assert (done.status, len(instant.accepted())) == (0, repeats), done.err
    assert len(find_runs(cli.install)) == repeats


def test_again_does_not_resume(cluster: Cli, fake: FakeSlurm) -> None:
    with_room_for_two(cluster)
    assert cluster(*FIVE, "--again").status == 0
    assert len(fake.jobs()) == 2 + 5


def test_another_command_or_another_day_is_another_request(cluster, fake, monkeypatch):
    with_room_for_two(cluster)
    assert cluster(*FIVE, "--max-steps", "60").status == 0
    assert len(fake.jobs()) == 2 + 5
    monkeypatch.setattr(rounds, "LEFTOVER_SECONDS", 0)
    assert cluster(*FIVE).status == 0
    assert len(fake.jobs()) == 2 + 10


def test_a_disk_that_is_full_for_a_while(cluster: Cli, fake: FakeSlurm) -> None:
    done = with_room_for_two(cluster)
    assert done.status == 3
    assert "No space left on device" in done.err
    assert "run the same command again" in done.err
    assert len(fake.jobs()) == 2
    assert cluster(*FIVE, "--no-array").status == 0
    assert len(fake.jobs()) == 5


def test_a_chain_killed_and_run_again(cluster: Cli, fake: FakeSlurm) -> None:
    chain = (*FIVE[:-2], "--resume-chain", "3")
    assert run_and_crash(lambda: main(list(chain)), 50, cluster.install)
    assert len(fake.jobs()) in (1, 2)
    assert cluster(*chain).status == 0
    assert len(fake.jobs()) == 3


def test_a_task_file_run_twice_at_once(cluster: Cli, fake: FakeSlurm, tmp_path: Path) -> None:
    """The second waits for the first, and then finds every job on record."""
    tasks = tmp_path / "tasks"
    tasks.write_text("pretrain_llama3.1_smoke:\n(bf16, 1, 6)\n")
    fake.say("sbatch", "slow")

    def bulk() -> None:
        assert main(["bulk", str(tasks), "--no-array"]) == 0

    children = [start(bulk), start(bulk)]
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert (ends, len(fake.jobs())) == ([0, 0], 6)
    assert left_behind(cluster) == []


def test_the_waiting_process_continues_when_the_other_is_killed(cluster: Cli, fake: FakeSlurm) -> None:
    fake.say("sbatch", "slow")
    first = start(lambda: main([*FIVE, "--no-array"]))
    wait_until(lambda: len(fake.jobs()) > 0, "the first job", timeout=30)
    second = start(lambda: main([*FIVE, "--no-array"]))
    time.sleep(0.5)
    os.kill(first, 9)
    assert [os.waitpid(child, 0)[0] for child in (first, second)] == [first, second]
    assert len(fake.jobs()) == 5


def test_leftovers_that_nobody_resumed_are_removed(cluster: Cli) -> None:
    with_room_for_two(cluster)
    (file,) = (path for folder in left_behind(cluster) for path in folder.iterdir())
    os.utime(file, (0, 0))
    assert cluster(*FIVE, "--max-steps", "60").status == 0
    assert left_behind(cluster) == []


def test_a_link_in_place_of_the_lock_is_not_followed(cluster: Cli, tmp_path: Path) -> None:
    with_room_for_two(cluster)
    (file,) = (path for folder in left_behind(cluster) for path in folder.iterdir())
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert cluster(*FIVE).status == 3
    assert not (tmp_path / "elsewhere").exists()
