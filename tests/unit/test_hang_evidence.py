"""What is left of a hang: stacks of ranks, PyTorch's flight recorders; and files that only look like them."""

from __future__ import annotations

import json
import math
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from llmb_common.causes.collectives import missing_ranks
from llmb_common.causes.diagnosis import diagnose, diagnose_logs
from llmb_common.causes.hangs import NotADumpError, read_dumps, read_plain_pickle, read_ranks
from llmb_run.actions.why import cause_lines
from support.cli import Cli
from support.runs import make_run, steady_log
from support.texts import Texts

WAITS = (("/site-packages/torch/distributed/distributed_c10d.py", 2935, "all_reduce"), ("/opt/train.py", 40, "step"))
STUCK = (
    ("/usr/lib/python3.12/queue.py", 171, "get"),
    ("/opt/data.py", 17, "read_next_batch"),
    ("/opt/train.py", 38, "step"),
)

BACKWARD = (
    ("/site-packages/megatron/core/tensor_parallel/layers.py", 618, "backward"),
    ("/site-packages/torch/autograd/function.py", 325, "apply"),
)
EVIDENCE = Path(__file__).resolve().parents[1] / "data" / "hangs"


def write_rank(
    folder: Path,
    rank: int,
    frames: tuple[tuple[str, int, str], ...] = (),
    host: str = "",
    restart: int = 0,
    job: str = "7",
) -> None:
    """As llmb_train's rank and Python's faulthandler write it."""
    lines = [
        f"rank {rank} local {rank % 2} host {host or f'gpu{rank // 2}'} pid {470 + rank} job {job} restart {restart}"
    ]
    if frames:
        lines += [
            "Thread 0x00007fd1abd6a6c0 (most recent call first):",
            '  File "/threading.py", line 1 in _bootstrap',
            "",
        ]
        lines += ["Current thread 0x00007fd1acad5040 (most recent call first):"]
        lines += [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
        lines += ['  File "/opt/train.py", line 1 in <module>']
    (folder / "ranks").mkdir(exist_ok=True)
    (folder / "ranks" / f"{rank}.txt").write_text("\n".join(lines) + "\n")


def entry(sequence: int, *, done: bool = False, group: tuple[str, str] = ("1", "DATA_PARALLEL")) -> dict[str, Any]:
    return {
        "process_group": group,
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "state": "completed" if done else "scheduled",
        "is_p2p": False,
        "retired": done,
    }


def write_dump(folder: Path, rank: int, *entries: dict[str, Any]) -> None:
    config = {"1": {"desc": "DATA_PARALLEL", "ranks": "[0, 1, 2, 3]"}, "2": {"desc": "PIPELINE", "ranks": "[2, 3]"}}
    (folder / "flight").mkdir(exist_ok=True)
    dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}
    (folder / "flight" / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def copy_evidence(name: str, folder: Path) -> None:
    """What ranks of a real run wrote, cut; the dumps are kept as an archive has them."""
    shutil.copytree(EVIDENCE / name / "ranks", folder / "ranks")
    (folder / "flight").mkdir()
    for file in (EVIDENCE / name / "flight").iterdir():
        (folder / "flight" / file.stem).write_bytes(pickle.dumps(json.loads(file.read_bytes()), protocol=2))


def hung(cli: Cli) -> Any:
    return make_run(cli.install, state="FAILED", log=steady_log(50.0, 5))


def test_stack_and_recorder_together_are_certain(cli: Cli, texts: Texts) -> None:
    record = hung(cli)
    for rank in range(4):
        write_rank(record.paths.folder, rank, STUCK if rank == 2 else WAITS)
        write_dump(record.paths.folder, rank, entry(9, done=True), *([] if rank == 2 else [entry(10)]))
    found = diagnose(record)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.rank, found.cause.node, found.cause.sure) == ("hang", 2, "gpu1", "certain")
    texts(found.summary)


def test_stacks_alone_say_who_and_where(cli: Cli) -> None:
    record = hung(cli)
    for rank in range(4):
        write_rank(record.paths.folder, rank, STUCK if rank == 3 else WAITS)
    found = diagnose(record)
    assert found.cause is not None
    assert (found.cause.rank, found.cause.sure) == (3, "likely")


def test_a_rank_that_does_not_answer_is_named(cli: Cli, texts: Texts) -> None:
    record = hung(cli)
    for rank in range(4):
        write_rank(record.paths.folder, rank, () if rank == 1 else WAITS)
    found = diagnose(record)
    assert found.cause is not None
    assert found.cause.rank == 1
    texts(found.cause.cause)


@pytest.mark.parametrize(("name", "world"), [("one_of_two_stopped", 2), ("tensor_parallel_partner_stopped", 4)])
def test_a_rank_that_wrote_nothing_comes_before_one_that_waits_for_it(
    name: str, world: int, cli: Cli, texts: Texts
) -> None:
    """Real runs on a CPU whose rank 1 was stopped (SIGSTOP); 0 waits for what it began asynchronously."""
    record = hung(cli)
    copy_evidence(name, record.paths.folder)
    assert len(read_ranks(record.paths.folder)) == world
    found = diagnose(record)
    assert found.cause is not None
    assert (found.cause.rank, found.cause.ranks, found.cause.sure) == (1, (1,), "likely")
    texts("\n".join(cause_lines(found)))


def test_silence_in_files_and_dumps_is_one_witness(cli: Cli) -> None:
    """The members of the groups are known: 2 waits for 3, and the others for both."""
    record = hung(cli)
    for rank in range(3):
        write_rank(record.paths.folder, rank, BACKWARD if rank == 2 else WAITS)
        write_dump(record.paths.folder, rank, entry(4, group=("2", "PIPELINE")) if rank == 2 else entry(10))
    write_rank(record.paths.folder, 3)
    found = diagnose(record)
    assert found.cause is not None
    assert (found.cause.rank, found.cause.ranks, found.cause.sure) == (3, (3,), "likely")


@pytest.mark.parametrize("dumps", [True, False])
def test_a_lost_file_does_not_hide_who_stands_elsewhere(cli: Cli, *, dumps: bool) -> None:
    record = hung(cli)
    for rank in range(4):
        write_rank(record.paths.folder, rank, () if rank == 1 else STUCK if rank == 2 else WAITS)
        if dumps and rank != 1:
            write_dump(record.paths.folder, rank, entry(9, done=True), *([] if rank == 2 else [entry(10)]))
    found = diagnose(record)
    assert found.cause is not None
    assert 2 in found.cause.ranks
    assert "read_next_batch" in found.summary


def test_a_rank_without_a_stack_that_waits_by_its_dump_is_not_the_one(cli: Cli) -> None:
    record = hung(cli)
    for rank in range(4):
        write_rank(record.paths.folder, rank, () if rank == 1 else WAITS)
        write_dump(record.paths.folder, rank, entry(10))
    assert diagnose(record).cause is None


def test_of_two_ranks_none_is_named_where_none_waits(cli: Cli) -> None:
    record = hung(cli)
    write_rank(record.paths.folder, 0, STUCK)
    write_rank(record.paths.folder, 1)
    assert diagnose(record).cause is None


def test_where_all_stand_at_the_same_place_nobody_is_named(cli: Cli) -> None:
    record = hung(cli)
    for rank in range(4):
        write_rank(record.paths.folder, rank, WAITS)
        write_dump(record.paths.folder, rank, entry(10))
    assert diagnose(record).cause is None


def test_a_rank_that_waits_for_another_itself_is_not_the_one(tmp_path: Path) -> None:
    """0 and 1 wait for 3 in one group; 3 waits for 2 in another."""
    other = ("2", "PIPELINE")
    for rank, entries in enumerate(([entry(10)], [entry(10)], [], [entry(4, group=other)])):
        write_dump(tmp_path, rank, entry(9, done=True), entry(3, done=True, group=other), *entries)
    missing = missing_ranks(read_dumps(tmp_path / "flight"), "their dumps")
    assert missing is not None
    assert missing.ranks == (2,)


def test_only_the_last_start_of_a_job_counts(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, host="old1")
    write_rank(tmp_path, 1, host="new1", restart=1)
    assert [item.host for item in read_ranks(tmp_path)] == ["new1"]
    write_rank(tmp_path, 2, host="newest1", job="10")
    assert [item.host for item in read_ranks(tmp_path)] == ["newest1"], "10 comes after 7"


def test_a_process_that_torchrun_names_is_a_rank(tmp_path: Path, texts: Texts) -> None:
    write_rank(tmp_path, 5, host="gpu9")
    log = tmp_path / "log-x.out"
    log.write_text("traceback : Signal 9 (SIGKILL) received by PID 475\n")
    texts(diagnose_logs([log]).summary)


def _again_and_again(value: Any) -> Any:
    for _ in range(40):
        value = [value, value]
    return value


class _Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("unpickled",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(_Calls()),
        pickle.dumps(Path("/")),
        pickle.dumps(b"bytes", protocol=4),
        b"\x80\x02c__builtin__\neval\n.",
        pickle.dumps(_again_and_again([]), protocol=2),
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"\x80\x02}r\x00\x00\x01\x00.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x80\x02]h\x07.",
        b"\x80\x02}(u",
        b"",
        b"not a pickle",
    ],
)
def test_nothing_but_plain_values_is_built_of_a_dump(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotADumpError):
        read_plain_pickle(content)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", [2, 4])
def test_plain_values_are_read_as_they_are(protocol: int) -> None:
    value = {"a": [1, -5, 1 << 40, 2.5, None, True], "b": ({}, (1, 2), ("x", 1, False)), "ü": "text" * 100, "t": ()}
    assert read_plain_pickle(pickle.dumps(value, protocol=protocol)) == value


def test_damaged_dumps_are_left_out(tmp_path: Path) -> None:
    write_dump(tmp_path, 0, entry(1))
    (tmp_path / "flight" / "rank_1").write_bytes(b"\x80\x02}.")
    (tmp_path / "flight" / "rank_2").write_bytes(pickle.dumps({"pg_config": 5, "entries": 7}, protocol=2))
    (tmp_path / "flight" / "rank_3").symlink_to("rank_0")
    write_dump(tmp_path, 4, {**entry(1), "process_group": ()})
    write_dump(tmp_path, 5, {**entry(1), "collective_seq_id": math.inf})
    assert list(read_dumps(tmp_path / "flight").entries) == [0]


@pytest.mark.parametrize("ranks", ["[" + "9" * 100_000 + "]", "(" * 5000 + ")" * 5000, "[1,", "0 0", 7])
def test_what_a_dump_says_of_a_group_is_no_program(tmp_path: Path, ranks: object) -> None:
    (tmp_path / "flight").mkdir()
    dump = {"pg_config": {"1": {"ranks": ranks}}, "entries": [entry(1)]}
    (tmp_path / "flight" / "rank_0").write_bytes(pickle.dumps(dump, protocol=2))
    assert list(read_dumps(tmp_path / "flight").entries) == [0]


def test_an_archive_has_dumps_as_text(cli: Cli, tmp_path: Path) -> None:
    record = hung(cli)
    write_rank(record.paths.folder, 0, WAITS)
    write_dump(record.paths.folder, 0, entry(10))
    pack = tmp_path / "pack.tar.gz"
    assert cli("archive", record.paths.run_id, "--output", str(pack)).status == 0
    with tarfile.open(pack) as tar:
        names = {name.partition(f"{record.paths.name}/")[2]: name for name in tar.getnames()}
        dump = tar.extractfile(names["flight/rank_0.json"])
        assert dump is not None
        assert json.load(dump)["entries"][0]["collective_seq_id"] == 10
        assert "ranks/0.txt" in names
