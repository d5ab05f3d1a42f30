"""job.json is read strictly: an unknown or missing key is an error that names it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training_jobs import ARCHITECTURES, REPOSITORY, make_function_job, make_job

from llmb_common.runs.timing.iterations import NOTHING_LEFT
from llmb_train.__main__ import main
from llmb_train.errors import EngineError, JobError, NothingLeft, WrongEngine
from llmb_train.job import load_job, parse_job
from llmb_train.steps import StartingPoint, find_checkpoint, last_step, loaded
from support.processes import wait_until
from support.texts import Texts


@pytest.mark.parametrize("name", [*ARCHITECTURES["sizes"], *ARCHITECTURES["smoke"]])
def test_every_benchmarked_architecture_is_a_job(name: str) -> None:
    job = parse_job(make_job(name))
    assert job.architecture.layers == make_job(name)["architecture"]["layers"]
    assert (job.architecture.moe is not None) == (job.family in ("grok1", "llama4"))


def test_integers_stand_for_floats_but_never_for_switches() -> None:
    architecture = {"norm_epsilon": 1, "rotary_percent": 1}
    assert parse_job(make_job(architecture=architecture)).architecture.rotary_percent == 1.0
    with pytest.raises(JobError, match=r"\bperformance\.cuda_graph\b"):
        parse_job(make_job(performance={"cuda_graph": 1}))
    with pytest.raises(JobError, match=r"\bbatch\.gbs\b"):
        parse_job(make_job(batch={"gbs": True}))


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism": {"dp": 2}},
        {"engine": "0.5"},
        {"engine": "0.7.0"},
        {"engine": "newest"},
        {"schema": 2},
        {"family": "llama2"},
        {"world_size": 3, "parallelism": {"tp": 2}},
        {"parallelism": {"tp": 0}},
        {"batch": {"gbs": -8}},
        {"batch": {"mbs": 3}},
        {"architecture": {"moe": {"experts": 8}}},
        {"profile": {"tool": "nsys", "start": 4, "stop": 5, "ranks": ["0"]}},
    ],
    ids=str,
)
def test_a_wrong_job_says_what_is_wrong_in_which_file(tmp_path: Path, texts: Texts, changes: dict[str, Any]) -> None:
    (tmp_path / "job.json").write_text(json.dumps(make_job(**changes)), encoding="utf-8")
    with texts.raises(JobError) as caught:
        load_job(tmp_path / "job.json")
    assert str(caught.value).startswith(f"{tmp_path / 'job.json'}: ")


def test_the_experts_of_a_reduced_copy_must_divide() -> None:
    parse_job(make_function_job("deepseek_v3", parallelism={"ep": 2}))
    with pytest.raises(JobError, match=r"\b4\b.*\bep\b.*\b3\b"):
        parse_job(make_function_job("deepseek_v3", parallelism={"ep": 3}))


def test_a_job_that_names_a_function_needs_a_release_that_has_functions() -> None:
    assert parse_job(make_function_job()).release.bridge == "0.6"
    with pytest.raises(JobError, match=r"\bengine\b.*\b0\.3\b.*\b0\.6\b"):
        parse_job(make_function_job(engine="0.3"))


def test_a_missing_key_is_named() -> None:
    content = make_job()
    del content["seed"]
    with pytest.raises(JobError, match=r"\bseed\b"):
        parse_job(content)


def test_a_file_that_is_missing_or_no_json_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"absent\.json: No such file"):
        load_job(tmp_path / "absent.json")
    for content in (json.dumps(make_job())[:-1].encode(), b"", b"\xff\xfe\x00", b"[" * 100_000):
        (tmp_path / "cut.json").write_bytes(content)
        with pytest.raises(JobError, match=r"cut\.json\b") as caught:
            load_job(tmp_path / "cut.json")
        assert isinstance(caught.value.__cause__, (ValueError, RecursionError))


def _save(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"iter_{step:07d}").mkdir(parents=True)
        (folder / f"iter_{step:07d}" / "__0_0.distcp").touch()
    (folder / "latest_checkpointed_iteration.txt").write_text(f"{steps[-1]}\n", encoding="utf-8")


def test_a_checkpoint_is_the_latest_of_a_folder_or_the_one_named(tmp_path: Path) -> None:
    _save(tmp_path, 20, 50)
    assert find_checkpoint(str(tmp_path)) == StartingPoint(tmp_path, 50)
    assert find_checkpoint(str(tmp_path / "iter_0000020")) == StartingPoint(tmp_path, 20)


@pytest.mark.parametrize(
    "text",
    [None, b"", b"release", b"\xff\xfe", "\u00b2".encode(), b"9" * 5000],
    ids=["none", "empty", "a word", "not UTF-8", "a digit of no number", "too long a number"],
)
def test_a_folder_that_names_no_step_has_no_checkpoint(tmp_path: Path, texts: Texts, text: bytes | None) -> None:
    if text is not None:
        (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(text)
    with texts.raises(JobError):
        find_checkpoint(str(tmp_path))


def test_a_folder_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").mkdir()
    for path, why in ((tmp_path, "Is a directory"), ("x" * 5000, "File name too long"), ("a\0b", "embedded null byte")):
        with pytest.raises(JobError, match=why):
            find_checkpoint(str(path))


def test_a_pipe_in_the_place_of_the_step_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest_checkpointed_iteration.txt")
    with pytest.raises(JobError, match=r"\blatest_checkpointed_iteration\.txt\b"):
        find_checkpoint(str(tmp_path))


def test_a_checkpoint_that_was_not_finished_is_refused(tmp_path: Path) -> None:
    _save(tmp_path, 50)
    (tmp_path / "iter_0000050" / "__0_0.distcp").unlink()
    with pytest.raises(JobError, match=r"iter_0000050\b.*\bdistcp\b"):
        find_checkpoint(str(tmp_path))


def test_a_run_ends_at_its_last_step_or_so_many_after_the_checkpoint(tmp_path: Path) -> None:
    whole = parse_job(make_job(steps={"train": 50}))
    one_more = parse_job(make_job(steps={"train": 50, "exit_after": 1}))
    start = StartingPoint(tmp_path, 50)
    assert [last_step(whole, None), last_step(one_more, start), last_step(one_more, None)] == [50, 51, 1]
    with pytest.raises(JobError, match=r"\b50\b.*\b50\b"):
        last_step(whole, start)


def test_a_job_that_goes_on_takes_its_own_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, load = tmp_path / "own", tmp_path / "asked"
    _save(load, 10)
    job = parse_job(make_job(checkpoint={"save": str(save), "load": str(load)}, steps={"train": 50}))
    monkeypatch.setenv("LLMB_RESUME", "1")
    assert loaded(job) == StartingPoint(load, 10), "it has saved nothing yet"
    _save(save, 20, 30)
    assert loaded(job) == StartingPoint(save, 30)
    monkeypatch.setenv("LLMB_RESUME", "0")
    assert loaded(job) == StartingPoint(load, 10)


def test_a_job_that_goes_on_may_find_nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(tmp_path, 50)
    monkeypatch.setenv("LLMB_RESUME", "1")
    job = parse_job(make_job(checkpoint={"save": str(tmp_path)}, steps={"train": 50}))
    with pytest.raises(NothingLeft) as caught:
        loaded(job)
    assert caught.value.exit_status == 0
    assert NOTHING_LEFT.search(str(caught.value).encode()), "results know the run by these words"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [([], 2), (["-h"], 0), (["--help"], 0), (["-x"], 2), (["-h", "job.json"], 2), (["a", "b"], 2)],
)
def test_other_words_are_answered_with_how_it_is_called(arguments, status, capsys):
    assert main(arguments) == status
    out, said = capsys.readouterr()
    assert (out, said.count("\n"), said.startswith("usage: ")) == ("", 1, True)
    assert "llmb_train" in said.split()


def test_the_first_rank_says_what_is_wrong_with_the_job(tmp_path: Path) -> None:
    """The others stay until the launcher ends them, which it does as soon as one rank has failed."""
    (tmp_path / "job.json").write_text("{}", encoding="utf-8")
    other = rank_of(tmp_path, "1")
    wait_until(lambda: caught_signals(other.pid) >> signal.SIGTERM - 1 & 1, "it stays to be ended", timeout=60)
    first = rank_of(tmp_path, "0")
    said = first.communicate(timeout=60)[1]
    assert (first.returncode, said.count("\n"), said.startswith("llmb_train: error: ")) == (2, 2, True)
    other.terminate()
    assert (*other.communicate(timeout=60), other.returncode) == ("", "", 2)


@pytest.mark.parametrize(("error", "waits"), [(JobError, [2]), (WrongEngine, [3]), (EngineError, [])])
def test_what_the_first_rank_leaves_unsaid_another_says(monkeypatch, capsys, error, waits):
    """What one node alone lacks no other rank can say."""

    def fail(path: Path) -> None:
        raise error("absent")

    monkeypatch.setattr("llmb_train.__main__.load_job", fail)
    monkeypatch.setenv("RANK", "1")
    waited: list[int] = []
    monkeypatch.setattr("llmb_train.__main__._wait_to_be_ended", waited.append)
    assert main(["job.json"]) == error.exit_status
    said = capsys.readouterr().err
    assert (waited, said.count("\n"), said.split()[-1]) == (waits, 1, "absent")


def test_a_path_that_stdout_cannot_encode_ends_no_rank(tmp_path: Path) -> None:
    """Megatron-Bridge prints the paths of its configuration."""
    code = "import sys; from llmb_train import __main__ as program; program.load_job = str; "
    code += "program.run = lambda job, folder: print(folder.name); sys.exit(program.main(sys.argv[1:]))"
    environment = {"PYTHONPATH": str(REPOSITORY / "common"), "PYTHONIOENCODING": "ascii", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", code, str(tmp_path / "b\u00fccher" / "job.json")]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"b\\xfccher\n", b"")


def rank_of(folder: Path, rank: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llmb_train", str(folder / "job.json")]
    given = {**os.environ, "PYTHONPATH": str(REPOSITORY / "common"), "RANK": rank}
    return subprocess.Popen(command, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def caught_signals(pid: int) -> int:
    return int(re.findall(r"SigCgt:\t(\w+)", Path(f"/proc/{pid}/status").read_text())[0], 16)
