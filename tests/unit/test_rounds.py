"""Several jobs from one command: killed, refused or run twice, it ends with exactly the jobs that were requested."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import RecordError
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission import rounds, single
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.rounds import LEFTOVER_SECONDS, digest_of, digest_of_file, open_round
from llmb_run.main import main
from support import instant
from support.cli import Cli, Done
from support.crashes import run_and_crash, start
from support.documented_jobs import documented_rows, plan_of
from support.fake_slurm import FakeSlurm
from support.processes import wait_until
from support.run_site import RunSite, with_small_code
from support.texts import Texts

FIVE = ("submit", "-w", "llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1", "--repeats", "5")


@pytest.fixture
def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fake: FakeSlurm
) -> Cli:
    """llmb-run on an installation with a scripted Slurm."""
    with_small_code(tmp_path, monkeypatch)
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
        return cli(*FIVE)


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 12, 30, 50, 75])
def test_killed_and_run_again(cluster: Cli, fake: FakeSlurm, at: int) -> None:
    assert run_and_crash(lambda: main(list(FIVE)), at, cluster.install)
    done = cluster(*FIVE)
    assert (done.status, len(fake.jobs())) == (0, 5), done.err
    assert len(find_runs(cluster.install)) == 5
    assert left_behind(cluster) == []
    assert cluster(*FIVE).status == 0
    assert len(fake.jobs()) == 10, "all are submitted: the same command is a new request"


@pytest.mark.slow
@pytest.mark.parametrize(("at", "seconds"), [(12, -60), (30, -2), (50, 2), (75, 60)])
def test_killed_and_run_again_on_a_login_node_with_another_clock(
    cluster: Cli, fake: FakeSlurm, at: int, seconds: float
) -> None:
    assert run_and_crash(lambda: main(list(FIVE)), at, cluster.install)
    now = time.time
    with cluster.patch.context() as patch:
        patch.setattr(time, "time", lambda: now() + seconds)
        done = cluster(*FIVE)
    assert (done.status, len(fake.jobs())) == (0, 5), done.err
    assert len(find_runs(cluster.install)) == 5
    assert left_behind(cluster) == []


@pytest.mark.parametrize("repeats", [1, 3])
def test_killed_with_its_runs_outside_the_installation(repeats, tmp_path, monkeypatch, capsys):
    """The index learns of such a folder by the first run that is noted there: killed before, it knows of no job."""
    instant.install_executor(monkeypatch, tmp_path / "instant")
    cli = Cli(RunSite(tmp_path, "instant").install, monkeypatch, capsys)
    monkeypatch.setenv("LLMB_WORKLOAD", str(tmp_path / "mine"))
    command = (*FIVE[:-1], str(repeats))
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


def test_a_disk_that_is_full_for_a_while(cluster: Cli, fake: FakeSlurm, texts: Texts) -> None:
    done = with_room_for_two(cluster)
    assert done.status == 3
    texts(done.err)
    assert len(fake.jobs()) == 2
    assert cluster(*FIVE).status == 0
    assert len(fake.jobs()) == 5


def test_a_limit_of_the_site_among_repeats(cluster: Cli, fake: FakeSlurm, texts: Texts) -> None:
    fake.say("sbatch", "limit")
    done = cluster(*FIVE)
    assert (done.status, len(fake.jobs())) == (3, 3)
    texts(done.err)
    assert done.err.count("AssocMaxSubmitJobLimit") == 1
    fake.say("sbatch", "")
    assert cluster(*FIVE).status == 0
    assert len(fake.jobs()) == 5


def test_a_round_that_goes_on_avoids_the_node_that_its_runs_have_shown_bad(
    cluster: Cli, fake: FakeSlurm, texts: Texts
) -> None:
    fake.say("sbatch", "limit")
    assert cluster(*FIVE).status == 3
    fake.say("sbatch", "")
    (fake.folder / "nodes").write_text("".join(f"gpu{number}|idle|batch*|none\n" for number in range(1, 4)))
    first = load_record(next(row.folder for row in find_runs(cluster.install) if row.job_id == "1"))
    first.paths.events.write_text('{"event": "start", "job_id": "1", "nodes": "gpu2"}\n')
    first.paths.log.write_text("0: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    fake.change("1", state="FAILED")
    done = cluster(*FIVE)
    assert (done.status, len(fake.jobs())) == (0, 5), done.err
    assert [job["options"].count("--exclude=gpu2") for job in fake.jobs()] == [0, 0, 0, 1, 1]  # type: ignore[attr-defined]
    assert first.paths.run_id in done.err
    texts(done.err, about="gpu2 is")


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
        assert main(["bulk", str(tasks)]) == 0

    children = [start(bulk), start(bulk)]
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert (ends, len(fake.jobs())) == ([0, 0], 6)
    assert left_behind(cluster) == []


def test_the_waiting_process_continues_when_the_other_is_killed(cluster: Cli, fake: FakeSlurm) -> None:
    fake.say("sbatch", "slow")
    first = start(lambda: main(list(FIVE)))
    wait_until(lambda: len(fake.jobs()) > 0, "the first job", timeout=30)
    second = start(lambda: main(list(FIVE)))
    time.sleep(0.5)
    os.kill(first, 9)
    assert [os.waitpid(child, 0)[0] for child in (first, second)] == [first, second]
    assert len(fake.jobs()) == 5


def test_a_link_in_place_of_the_lock_is_not_followed(cluster: Cli, tmp_path: Path) -> None:
    with_room_for_two(cluster)
    (file,) = (path for folder in left_behind(cluster) for path in folder.iterdir())
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert cluster(*FIVE).status == 3
    assert not (tmp_path / "elsewhere").exists()


# The files by which the same command, run again, knows what it had begun.


@pytest.fixture
def job(tmp_path: Path) -> JobToSubmit:
    plan = msgspec.structs.replace(plan_of(*next(documented_rows())), workload_folder=str(tmp_path / "workload"))
    return JobToSubmit(plan, Path("/recipes/llama3.1"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the files are."""
    return tmp_path / "workload" / "experiments" / ".submitting"


def quiet(text: str) -> None:
    raise AssertionError(f"nothing is to be said, and not {text!r}")


def begin(job: JobToSubmit, digest: str = "abc", *, again: bool = False, over: bool = False) -> tuple[str, bool]:
    """The round's name, and whether it was begun before."""
    with open_round([job], digest, again=again, say=quiet) as now:
        now.over = over
        return now.name, now.begun is not None


def other(job: JobToSubmit, **changes: object) -> JobToSubmit:
    return replace(job, plan=msgspec.structs.replace(job.plan, **changes))


# What is the same command


def test_the_same_jobs_have_the_same_digest_wherever_they_come_from(job: JobToSubmit) -> None:
    copy = JobToSubmit(msgspec.structs.replace(job.plan), Path(str(job.recipe_folder)))
    assert digest_of([job, copy]) == digest_of([job, job])
    assert len(digest_of([job])) == len(digest_of_file("tasks.yaml")) == 16, "enough, and short in a folder's listing"


def test_any_difference_is_another_command(job: JobToSubmit, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = other(job, max_steps=job.plan.max_steps + 1)
    commands = [
        digest_of([job]),
        digest_of([job, job]),
        digest_of([job, changed]),
        digest_of([changed, job]),
        digest_of([replace(job, recipe_folder=Path("/recipes/llama4"))]),
        digest_of([replace(job, options=Options(exclude="n1"))]),
        digest_of([job], "chain", 3),
        digest_of_file("tasks.yaml"),
        digest_of_file("other.yaml"),
    ]
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    commands += [digest_of([job]), digest_of_file("tasks.yaml")]
    assert len(set(commands)) == len(commands)


# What is continued


def test_a_round_is_continued_until_it_is_over(job: JobToSubmit, folder: Path) -> None:
    first, known = begin(job)
    assert (known, [file.name for file in folder.iterdir()]) == (False, ["abc"])
    assert begin(job) == (first, True)
    assert begin(job, "def")[0] != first, "another command"
    assert begin(job, over=True) == (first, True)
    assert [file.name for file in folder.iterdir()] == ["def"]
    assert begin(job)[0] != first


def test_it_says_when_it_first_began(job: JobToSubmit) -> None:
    before = time.time()
    begin(job)
    with open_round([job], "abc", again=False, say=quiet) as now:
        assert before <= (now.begun or 0) <= time.time()


def test_again_begins_another_and_that_one_is_continued_then(job: JobToSubmit) -> None:
    first, _ = begin(job)
    second, known = begin(job, again=True)
    assert (second != first, known) == (True, False)
    assert begin(job) == (second, True)


@pytest.mark.parametrize("seconds", [-LEFTOVER_SECONDS - 60, 3600])
def test_one_of_another_day_or_of_the_future_is_not_continued(job: JobToSubmit, folder: Path, seconds: float) -> None:
    """A clock that was set back must not keep a round alive."""
    first, _ = begin(job)
    (folder / "abc").write_text(json.dumps({"round": first, "begun": time.time() + seconds}))
    assert begin(job)[1] is False


@pytest.mark.parametrize("seconds", [-60, -2, 2, 60, 240])
def test_one_that_another_machine_began_is_continued_whatever_its_clock(
    job: JobToSubmit, folder: Path, seconds: float
) -> None:
    """With a clock that was two seconds ahead, a killed submission of 10 jobs ended with 18."""
    first, _ = begin(job)
    (folder / "abc").write_text(json.dumps({"round": first, "begun": time.time() + seconds}))
    assert begin(job) == (first, True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"round": "a"}', '{"round": "a", "begun": "noon"}', "null"])
def test_half_a_file_is_a_new_round(job: JobToSubmit, folder: Path, text: str) -> None:
    """Killed while it wrote that, the command had submitted nothing."""
    folder.mkdir(parents=True)
    (folder / "abc").write_text(text + " " * 200)
    name, known = begin(job)
    assert known is False
    assert begin(job) == (name, True), "and the longer text is gone"


# What is left


def test_nothing_is_left_of_rounds_that_are_over(job: JobToSubmit, tmp_path: Path) -> None:
    begin(job, over=True)
    assert list((tmp_path / "workload").iterdir()) == []


def test_descriptors_are_closed(job: JobToSubmit) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    begin(job)
    begin(job, "def", over=True)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_files_of_others_are_readable_and_theirs(job: JobToSubmit, folder: Path) -> None:
    before = os.umask(0)
    try:
        begin(job)
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "abc").stat().st_mode) == 0o644


# Two at a time


def test_whoever_comes_second_waits_says_so_once_and_gets_a_round_of_its_own(job: JobToSubmit, texts: Texts) -> None:
    said: list[str] = []
    waiting = threading.Event()
    names: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        waiting.set()

    def second() -> None:
        with open_round([job], "abc", again=False, say=say) as now:
            names.append(now.name)

    thread = threading.Thread(target=second)
    with open_round([job], "abc", again=False, say=quiet) as now:
        thread.start()
        assert waiting.wait(30)
        assert names == []
        now.over = True
    thread.join(30)
    assert len(said) == 1
    texts(said[0])
    assert names != [now.name], "the first one's was over"


def test_a_place_that_cannot_be_written_is_named(job: JobToSubmit, folder: Path, texts: Texts) -> None:
    folder.parent.mkdir(parents=True)
    folder.touch()
    with texts.raises(RecordError):
        begin(job)
