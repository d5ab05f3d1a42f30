"""What a run did beside training: checkpoints saved and loaded, profiles; and resumed runs, over their own steps."""

from __future__ import annotations

import re
from pathlib import Path

from llmb_common.measured.measure import measure_run
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.extras import extras_of
from llmb_common.runs.record import RunRecord
from support.cli import Cli
from support.iteration_logs import mbridge_line, saved_line
from support.runs import PUBLISHED, make_run
from support.texts import Texts

SAVING = {**PUBLISHED, "ENABLE_CHECKPOINT": "true", "CHECKPOINT_INTERVAL": "25"}
TIMER = "    save-checkpoint ................................: (466.37, 4890.61)\n"


def steps(first: int, last: int, total: int = 100, **fields: str) -> str:
    return "".join(mbridge_line(index, total, **fields) for index in range(first, last + 1))


def loaded_line(folder: Path, step: int) -> str:
    return f"  successfully loaded checkpoint from {folder} [ t 1/2, p 1/1 ] at iteration {step}\n"


def saving_run(install: Path) -> RunRecord:
    """50 steps with two checkpoints, of which the older was removed since."""
    log = steps(1, 25, 50) + saved_line(25) + TIMER + steps(26, 50, 50) + saved_line(50)
    record = make_run(install, log=log, variables=SAVING)
    folder = record.paths.checkpoints / "iter_0000050"
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(bytes(2_000_000))
    return record


def resumed_run(install: Path, earlier: RunRecord, log: str = "", **variables: str) -> RunRecord:
    source = earlier.paths.checkpoints
    found = loaded_line(source, 50) + (log or steps(51, 100))
    return make_run(install, log=found, variables={**PUBLISHED, "LOAD_CHECKPOINT_PATH": str(source), **variables})


def test_saved_checkpoints_are_told_with_step_time_and_size(tmp_path: Path, texts: Texts) -> None:
    record = saving_run(tmp_path)
    found = extras_of(record)
    assert [(item.step, item.seconds, item.bytes) for item in found.saved] == [
        (25, 4.89061, None),
        (50, None, 2_000_000),
    ]
    texts("\n".join(found.lines()), mask=record.plan.experiment_name)


def test_of_many_checkpoints_the_newest_are_told(tmp_path: Path) -> None:
    log = "".join(mbridge_line(index) + saved_line(index) for index in range(1, 51))
    lines = extras_of(make_run(tmp_path, log=log, variables=SAVING)).lines()
    assert [re.findall(r"\d+", line)[0] for line in lines[:3]] == ["48", "49", "50"]
    assert [re.findall(r"\d+", line) for line in lines[3:]] == [["47", "1"]], "how many before, from which step on"


def test_a_loaded_checkpoint_is_told_with_whether_the_loss_goes_on(tmp_path: Path, texts: Texts) -> None:
    earlier = saving_run(tmp_path)
    source = earlier.paths.checkpoints
    (loaded,) = extras_of(resumed_run(tmp_path, earlier)).loaded
    assert (loaded.source, loaded.step, loaded.loss_before, loaded.continued) == (str(source), 50, 6.625521, True)
    anew = extras_of(resumed_run(tmp_path, earlier, steps(51, 100, loss="6.951000E+00")))
    assert [item.continued for item in anew.loaded] == [False]
    (line,) = anew.lines()
    texts(line, mask=r"from \S+;")
    earlier.paths.log.unlink()
    (line,) = extras_of(resumed_run(tmp_path, earlier)).lines()
    assert str(source) in line
    texts(line, mask=r"from \S+;")


def test_a_job_that_was_started_again_is_held_against_its_own_log(tmp_path: Path) -> None:
    source = tmp_path / "gone" / "checkpoints"
    log = steps(1, 30, 50) + saved_line(30) + loaded_line(source, 30) + steps(31, 50, 50)
    (loaded,) = extras_of(make_run(tmp_path, log=log, variables=SAVING)).loaded
    assert (loaded.step, loaded.continued) == (30, True)


def test_a_profile_is_told_with_steps_ranks_files_and_size(tmp_path: Path, texts: Texts) -> None:
    record = make_run(tmp_path, log=steps(1, 50, 50), variables={**PUBLISHED, "ENABLE_PROFILE": "true"})
    ended = extras_of(record)
    assert [line.split()[-1] for line in ended.lines()] == [f"{record.plan.experiment_name}/nsys_profile"]
    assert len(ended.missing) == 1
    assert extras_of(record.with_state("RUNNING")).missing == (), "it may come"
    record.paths.profiles.mkdir(exist_ok=True)
    for rank, size in ((0, 3_000_000), (7, 1_000_000)):
        (record.paths.profiles / f"profile_101_{rank}.nsys-rep").write_bytes(bytes(size))
    (line,) = extras_of(record).lines()
    texts(line)


def test_what_was_asked_for_and_is_not_there_is_told(tmp_path: Path, texts: Texts) -> None:
    unsaved = extras_of(make_run(tmp_path, log=steps(1, 50), variables=SAVING))
    nothing = make_run(tmp_path, variables={**PUBLISHED, "LOAD_CHECKPOINT_PATH": "/nowhere"}, state="FAILED")
    texts("\n".join([*unsaved.lines(), *extras_of(nothing).lines()]))
    assert (len(unsaved.missing), unsaved.saved) == (1, ())
    assert extras_of(make_run(tmp_path, log=steps(1, 50))).as_dict()["lines"] == [], "nothing was asked for"


def test_a_resumed_run_is_measured_over_its_own_steps(cli: Cli, texts: Texts) -> None:
    slow_start = steps(51, 70, milliseconds="9000.0") + steps(71, 100)
    record = resumed_run(cli.install, saving_run(cli.install), slow_start, MAX_STEPS="100")
    for _ in ("read", "kept"):
        found = measure_run(record, Workspace()).timing
        assert (found.status.state, str(found.window)) == ("Success", "85-94")
        assert found.seconds.mean == 5.7415
    asked = cli("results", record.paths.folder, "--window", "60-62", "--json").data["runs"][0]
    assert (asked["window"], asked["step_seconds_mean"]) == ({"first": 60, "last": 62}, 9.0)
    one_step = resumed_run(cli.install, record, steps(51, 51))
    status = measure_run(one_step, Workspace()).timing.status
    assert (status.reason, status.iteration) == ("window_not_reached", 51)
    texts(status.message)


def test_every_command_says_the_same_of_it(cli: Cli, texts: Texts) -> None:
    record = saving_run(cli.install)
    lines = extras_of(record).lines()
    word = record.paths.run_id
    shown = cli("show", word).out
    assert all(line in shown for line in lines)
    texts(shown, about="besides")
    assert cli("show", word, "--json").data["result"]["extras"]["lines"] == lines
    assert cli("results", "--json").data["runs"][0]["extras"]["saved"][1]["step"] == 50
    written = cli("report", word).out
    texts(written, about="## ")
    assert [written.count(line.partition(",")[0]) for line in lines] == [1, 1]
