"""What a plan asks Slurm for: the signal to save early enough, a time limit to train in, segments of NVL72 racks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmb_common.base.errors import ConfigError
from llmb_common.base.words import limit_seconds
from llmb_common.executors.slurm.words import SlurmSettings, best_segment, choose_segment
from llmb_common.planning.job_plan import JobPlan, Preflight
from llmb_common.planning.outlook import most_gpu_hours
from llmb_common.planning.request.variables import VARIABLE_NAMES
from llmb_common.planning.site.cluster import ClusterConfig, cluster_config, load_cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.planning.time_limit import check_time_limit, save_seconds
from support.plans import check_answers, notes, plan, refusal, rows, script_of
from support.texts import Texts

SAVE = "ENABLE_CHECKPOINT=true GPU_TYPE=gb200 TIME_LIMIT=02:00:00"
BIG = f"{SAVE} MODEL_SIZE=405b JOB_TOTAL_GPUS=128"
BARE = f"{BIG} ENABLE_CHECKPOINT=false"
"""50 steps of 5.7 s, and nothing is saved."""


@pytest.mark.parametrize(
    ("size", "gpus", "rate", "seconds"),
    [
        ("8b", "8", 5.0, 120 + 23),  # 112 GB
        ("70b", "64", 5.0, 120 + 198),  # 988 GB
        ("405b", "128", 5.0, 120 + 1137),  # 5.7 TB
        ("405b", "128", 50.0, 120 + 114),
        ("405b", "128", 1.0, 120 + 5682),
    ],
)
def test_the_signal_comes_as_early_as_the_checkpoint_is_large_and_the_site_slow(
    size: str, gpus: str, rate: float, seconds: int
) -> None:
    p = plan(SAVE, cluster_config(checkpoint_gb_per_second=rate), MODEL_SIZE=size, JOB_TOTAL_GPUS=gpus)
    assert f"#SBATCH --signal=B:TERM@{seconds}\n" in script_of(p)
    # A step that takes that long to write has not hung.
    patience = max(1800, 2 * seconds)
    limits = f"start_seconds={1200 + patience} hang_seconds={patience} teardown_seconds={patience}"
    assert f"\n{limits} " in script_of(p)


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        ("", "start_seconds=1200 hang_seconds=600 teardown_seconds=300"),
        ("LOAD_CHECKPOINT_PATH=/ck", "start_seconds=3000 hang_seconds=600 teardown_seconds=300"),
        ("ENABLE_PROFILE=true", "start_seconds=3000 hang_seconds=1800 teardown_seconds=1800"),
    ],
)
def test_reading_a_checkpoint_and_profiling_are_given_time_too(words: str, limits: str) -> None:
    assert f"\n{limits} " in script_of(plan(SAVE, "ENABLE_CHECKPOINT=false MODEL_SIZE=8b JOB_TOTAL_GPUS=8", words))


def test_the_rate_is_5_gb_per_second_unless_the_site_says_another(tmp_path: Path) -> None:
    assert cluster_config().checkpoint_gb_per_second == 5.0
    (tmp_path / "cluster_config.yaml").write_text("checkpoint_gb_per_second: 40\n")
    assert load_cluster_config(tmp_path).checkpoint_gb_per_second == 40.0
    (tmp_path / "cluster_config.yaml").write_text("checkpoint_gb_per_second: 0\n")
    with pytest.raises(ConfigError):
        load_cluster_config(tmp_path)


def test_the_signal_is_at_most_65535_seconds_early() -> None:
    assert save_seconds(405_000_000_000, 0.01) == 65535


def test_a_time_limit_that_saving_fills_is_refused() -> None:
    message = refusal(BIG, "TIME_LIMIT=00:20:00")
    words = ["TIME_LIMIT=00:20:00", "21 minutes", "nothing would be trained", "set a TIME_LIMIT above 21 minutes"]
    check_answers(message, [*words, "checkpoint_gb_per_second"])


def test_a_time_limit_that_the_steps_do_not_fit_into_is_noted_with_one_that_would_do(texts: Texts) -> None:
    (note,) = (note for note in notes(BIG, "TIME_LIMIT=00:25:00").splitlines() if "TIME_LIMIT" in note)
    texts(note)
    assert "TIME_LIMIT" not in notes(BIG, TIME_LIMIT=note.partition("; TIME_LIMIT=")[2][:8])


NOTED = {
    BARE: """
        TIME_LIMIT=00:08:00 -> too short & remaining: 8 minutes & 5 minutes to start and 50 steps of 5.74 s
        TIME_LIMIT=00:01:00 -> too short & remaining: 1 minute;
        TIME_LIMIT=00:11:00 -> !TIME_LIMIT
        TIME_LIMIT=99999 -> !TIME_LIMIT
        TIME_LIMIT=999999w -> !TIME_LIMIT
    """,
    SAVE: """
        MODEL_SIZE=8b JOB_TOTAL_GPUS=8 -> !TIME_LIMIT
        MODEL_SIZE=405b JOB_TOTAL_GPUS=128 TIME_LIMIT=00:20:00 ADDITIONAL_SLURM_PARAMS=signal=USR1@60 -> !TIME_LIMIT
    """,
}


@pytest.mark.parametrize(("words", "answers"), rows(NOTED))
def test_a_limit_is_held_against_start_and_steps_unless_slurms_own_option_is_set(
    words: str, answers: list[str]
) -> None:
    check_answers(notes(words), answers)


@pytest.mark.parametrize(
    ("steps", "step_seconds", "enough"),
    [
        (50, 60.0, "01:05:00"),  # 5 minutes to start, 50 for the steps, 10 to save
        (50, 60.1, "01:06:00"),
        (150, 60.0, "02:45:00"),
        (1000, 600.0, "166:55:00"),
        (10_000, 600.0, "69-10:55:00"),
    ],
)
def test_the_limit_that_would_do_is_enough_to_the_minute(steps: int, step_seconds: float, enough: str) -> None:
    (note,) = limited(600, "00:20:00", steps, step_seconds)
    assert f"TIME_LIMIT={enough} " in note
    assert limited(600, enough, steps, step_seconds) == []


def limited(saving: int, limit: str, steps: int = 50, seconds: float | None = None) -> list[str]:
    """What is said of a job that saves so many seconds before this time limit."""
    made = plan(BIG, "TIME_LIMIT=02:00:00")
    made = replace(made, checkpoint=replace(made.checkpoint, save_seconds=saving), time_limit=limit, max_steps=steps)
    known = Preflight(predicted_step_seconds=seconds, predicted_low=seconds, predicted_high=seconds)
    known = replace(known, knowledge="own runs" if seconds is not None else None)
    return check_time_limit(replace(made, preflight=known), VARIABLE_NAMES)


def test_without_a_published_step_time_the_half_that_saving_takes_is_noted() -> None:
    notices = limited(1200, "00:30:00")
    assert [re.findall(r"\b\d+ minutes\b", note)[-1:] for note in notices] == [["10 minutes"]], "left to train"
    assert limited(600, "00:30:00") == []


IN_SLURMS_WORDS = {
    "5": "00:05:00",
    "90:30": "01:30:30",
    "4:00:00": "04:00:00",
    "2-12": "60:00:00",
    "1-0:30": "24:30:00",
    "1-00:00:10": "24:00:10",
}
"""As sbatch's manual has them."""


@pytest.mark.parametrize(("said", "limit"), IN_SLURMS_WORDS.items())
def test_a_time_among_slurms_options_is_the_plans_limit(said: str, limit: str) -> None:
    made = plan(BARE, f"TIME_LIMIT= ADDITIONAL_SLURM_PARAMS=qos=high;time={said}")
    assert made.time_limit == limit
    script = script_of(made)
    assert [line for line in script.splitlines() if "--time" in line] == [f"#SBATCH --time={limit}"]
    assert f" limit_seconds={limit_seconds(limit)}\n" in script
    assert "#SBATCH --qos=high\n" in script
    assert most_gpu_hours(made) == pytest.approx(limit_seconds(limit) * 128 / 3600)


def test_the_users_limit_comes_before_the_sites_and_that_before_the_recipes() -> None:
    site = cluster_config(slurm=SlurmSettings(additional_params="time=3:00:00;qos=high"))
    assert plan(BARE, site, "TIME_LIMIT=").time_limit == "03:00:00"
    assert plan(BARE, site, "TIME_LIMIT=90").time_limit == "01:30:00"
    assert plan(BARE, site, "TIME_LIMIT= ADDITIONAL_SLURM_PARAMS=time=60").time_limit == "01:00:00"


def test_two_time_limits_contradict_each_other(texts: Texts) -> None:
    texts(refusal(BARE, "TIME_LIMIT=00:20:00 ADDITIONAL_SLURM_PARAMS=time=04:00:00"))
    assert plan(BARE, "TIME_LIMIT=4h ADDITIONAL_SLURM_PARAMS=time=240").time_limit == "04:00:00"


@pytest.mark.parametrize("said", ["0", "UNLIMITED", "INFINITE", "1h", "-1", "1-2-3", "1:2:3:4", "a"])
def test_a_time_without_an_end_or_none_at_all_is_refused(said: str) -> None:
    assert "ADDITIONAL_SLURM_PARAMS: " in refusal(BARE, f"TIME_LIMIT= ADDITIONAL_SLURM_PARAMS=time={said}")
    site = cluster_config(slurm=SlurmSettings(additional_params=f"time={said}"))
    assert "cluster_config.yaml: " in refusal(BARE, site, "TIME_LIMIT=")


def test_the_port_of_the_users_shell_is_not_taken_over_in_silence() -> None:
    assert "MASTER_PORT=29500" in notes(BARE, "MASTER_PORT=29500")
    assert "MASTER_PORT" not in notes(BARE)
    assert "MASTER_PORT" not in notes(BARE, cluster_config(environment={"MASTER_PORT": "29500"})), "the site means it"


def test_a_job_that_saves_nothing_may_be_as_short_as_it_likes() -> None:
    assert "#SBATCH --signal" not in script_of(plan(BARE, "TIME_LIMIT=1"))


NEW, OLD = (Machine(cluster_type="slurm", release=release) for release in ((24, 5), (24, 4)))
RACK = 18


def on_racks(machine: Machine = NEW, cluster: ClusterConfig | None = None, **variables: str) -> JobPlan:
    return plan(machine, cluster, **{"FORCE": "true", "MODEL_SIZE": "8b", **variables})


def segment_line(p: JobPlan) -> str | None:
    return next((line for line in script_of(p).splitlines() if "--segment" in line), None)


@pytest.mark.parametrize(
    ("nodes", "segment"),
    [(1, 1), (2, 2), (16, 16), (17, 17), (18, 18), (19, 1), (20, 10), (32, 16), (36, 18), (64, 16), (288, 18)],
)
def test_all_nodes_up_to_a_rack_then_the_largest_divisor_that_fits_one(nodes: int, segment: int) -> None:
    assert best_segment(nodes, RACK) == segment


@pytest.mark.parametrize("gpu_type", ["gb200", "gb300"])
@pytest.mark.parametrize(("gpus", "segment"), [("4", 1), ("8", 2), ("64", 16), ("256", 16)])
def test_every_job_on_nvl72_asks_for_its_segment(gpu_type: str, gpus: str, segment: int) -> None:
    p = on_racks(GPU_TYPE=gpu_type, JOB_TOTAL_GPUS=gpus)
    assert segment_line(p) == f"#SBATCH --segment={segment}"
    assert not any("segment" in note for note in p.preflight.warnings)


@pytest.mark.parametrize("gpu_type", ["b200", "h100"])
def test_other_gpus_have_no_racks(gpu_type: str) -> None:
    assert segment_line(on_racks(GPU_TYPE=gpu_type, JOB_TOTAL_GPUS="64")) is None


def test_an_awkward_node_count_gets_a_better_one_suggested(texts: Texts) -> None:
    p = on_racks(GPU_TYPE="gb200", JOB_TOTAL_GPUS="76")
    (note,) = (note for note in p.preflight.warnings if "segment" in note)
    texts(note)


def test_the_number_that_is_named_is_better_and_the_nearest() -> None:
    for nodes in range(1, 600):
        segment, notice = choose_segment("gb200", nodes, 4, slurm_segments=True)
        assert segment == best_segment(nodes, RACK)
        assert bool(notice) == (nodes > 18 and best_segment(nodes, RACK) < RACK // 2)
        if notice:
            better = int(notice.partition("; ")[2].split()[0])
            assert best_segment(better, RACK) >= RACK // 2
            assert all(best_segment(between, RACK) < RACK // 2 for between in range(nodes, better))


def test_one_node_needs_no_segment_from_a_slurm_that_has_none(texts: Texts) -> None:
    assert choose_segment("gb200", 1, 4, slurm_segments=False) == (None, "")
    segment, notice = choose_segment("gb200", 2, 4, slurm_segments=False)
    assert segment is None
    texts(notice)


def test_a_slurm_without_the_option_is_not_given_it_and_the_plan_says_so(texts: Texts) -> None:
    p = on_racks(OLD, GPU_TYPE="gb200", JOB_TOTAL_GPUS="64")
    assert segment_line(p) is None
    texts("\n".join(p.preflight.warnings), about="--segment")
    assert not on_racks(OLD, GPU_TYPE="h100", JOB_TOTAL_GPUS="64").preflight.warnings[1:]


def test_fewer_gpus_of_a_node_leave_the_rack_as_it_is() -> None:
    assert segment_line(on_racks(GPU_TYPE="gb200", JOB_TOTAL_GPUS="64", GPUS_PER_NODE="2")) == "#SBATCH --segment=16"


def test_nodes_of_more_gpus_are_no_racks(texts: Texts) -> None:
    p = on_racks(GPU_TYPE="gb200", JOB_TOTAL_GPUS="64", GPUS_PER_NODE="8")
    assert segment_line(p) is None
    texts("\n".join(p.preflight.warnings), about="NVL72")


@pytest.mark.parametrize("who", ["user", "site"])
def test_the_user_and_the_site_have_the_last_word(who: str) -> None:
    site = cluster_config(slurm=SlurmSettings(additional_params="segment=4"))
    asked = {"ADDITIONAL_SLURM_PARAMS": "segment=4"} if who == "user" else {}
    p = on_racks(NEW, site if who == "site" else None, GPU_TYPE="gb200", JOB_TOTAL_GPUS="76", **asked)
    assert segment_line(p) == "#SBATCH --segment=4"
    assert not any("segment" in note for note in p.preflight.warnings)
