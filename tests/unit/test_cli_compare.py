"""Two runs side by side: the step time with its interval, the loss, and what differs."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from llmb_common.results.comparison import Contender, compare_times, loss_difference, ranked
from llmb_common.results.steps import StepTime
from support.cli import Cli
from support.gpu_nodes import write_node
from support.iteration_logs import mbridge_line
from support.runs import PUBLISHED, losses, make_run, steady_log, took
from support.texts import Texts

# Times


def test_two_single_runs_do_not_show_a_few_per_cent_and_repeats_do() -> None:
    assert not compare_times([took(10.0)], [took(10.5)]).is_real
    assert compare_times([took(10.0)] * 6, [took(10.5)] * 6).is_real
    assert compare_times([took(10.0)], [took(13.0)]).is_real


def test_the_interval_holds_the_truth() -> None:
    """Runs that differ by 3 %, one side 4 % slower; three runs a side."""
    source = random.Random(11)
    held = 0
    for _ in range(2000):
        sides = [[took(mean * (1 + source.gauss(0, 0.03))) for _ in range(3)] for mean in (10.0, 10.4)]
        change = compare_times(*sides)
        held += change.low <= 1.04 <= change.high
    assert 0.97 <= held / 2000 <= 0.995


def test_a_side_without_runs_is_refused(texts: Texts) -> None:
    with texts.raises(ValueError):
        compare_times([], [took(1.0)])


# Many sides: those that cannot be told apart share a place


def contender(name: str, seconds: float, *, tokens: float = 1000, runs: int = 3, noise: float = 0.0) -> Contender:
    dice = random.Random(name)
    times = [seconds * (1 + noise * dice.gauss(0, 1)) for _ in range(runs)]
    return Contender(name, [StepTime(time, time / 1000, 10, mean=time, steps=40) for time in times], tokens)


def test_the_fastest_is_first_and_what_is_as_fast_shares_its_place() -> None:
    found = ranked([contender("slow", 2.0), contender("same", 1.001), contender("fast", 1.0), contender("slower", 2.6)])
    assert [(item.of, place) for item, place, _ in found] == [("fast", 1), ("same", 1), ("slow", 3), ("slower", 4)]
    assert found[0][2] is None
    assert [behind.ratio for _, _, behind in found[2:] if behind] == [pytest.approx(2.0), pytest.approx(2.6)]


def test_batches_and_scales_are_compared_by_the_token() -> None:
    """Twice the tokens in 1.5 times the time is faster."""
    found = ranked([contender("small", 1.0, tokens=1000), contender("large", 1.5, tokens=2000)])
    assert [(item.of, place) for item, place, _ in found] == [("large", 1), ("small", 2)]
    assert [behind.ratio for _, _, behind in found if behind] == [pytest.approx(4 / 3)]


def test_each_is_compared_with_the_first_of_its_place_so_a_slow_slope_ends_a_place() -> None:
    found = ranked([contender(str(number), 1.0 + 0.02 * number) for number in range(8)])
    places = [place for _, place, _ in found]
    assert places[0] == places[1] == 1
    assert places[-1] > 1
    assert places == sorted(places)


def test_five_runs_of_each_that_lie_apart_share_no_place() -> None:
    def side(name: str, values: tuple[float, ...]) -> Contender:
        return Contender(name, [took(value) for value in values], 1000)

    fast, slow = side("fast", (9.06, 9.08, 9.11, 9.13, 9.17)), side("slow", (9.34, 9.36, 9.39, 9.43, 9.48))
    assert [(item.of, place) for item, place, _ in ranked([slow, fast])] == [("fast", 1), ("slow", 2)]


def test_nobody_and_a_single_one_have_an_order() -> None:
    assert ranked([]) == []
    assert [place for _, place, _ in ranked([contender("alone", 1.0, runs=1)])] == [1]


# Loss


def test_the_largest_difference_of_the_loss_is_found() -> None:
    assert loss_difference(losses(7.0, 6.0, 5.0), losses(7.0, 6.6, 5.1)) == (2, pytest.approx(0.1))
    assert loss_difference(losses(7.0), losses(7.0)) == (1, 0.0)


# The command


def test_two_runs_are_compared(cli: Cli, texts: Texts) -> None:
    first = make_run(cli.install, log=steady_log(5000))
    slow = steady_log(6000).replace("lm loss: 6.958428E+00", "lm loss: 6.958500E+00")
    second = make_run(cli.install, log=slow, variables=PUBLISHED | {"NCCL_ALGO": "Ring"}, job_id="102")
    done = cli("compare", first.paths.run_id, second.paths.run_id)
    assert done.status == 0
    texts(done.out)
    assert ["env", "NCCL_ALGO", "-", "Ring"] in [line.split() for line in done.out.splitlines()]
    data = cli("compare", first.paths.run_id, second.paths.run_id, "--json").data
    assert data["ratio"] == pytest.approx(1.2)
    assert data["differences"] == [{"name": "env NCCL_ALGO", "first": "-", "second": "Ring"}]


def test_the_times_beside_a_ratio_are_those_that_it_is_of(cli: Cli, texts: Texts) -> None:
    """Of steady steps of 5 s, one side had a stall of 25 s; it is in its mean, and the steady steps stand beside it."""
    usual, stalled = (mbridge_line(40, milliseconds=milliseconds) for milliseconds in (5000, 30000))
    first = make_run(cli.install, log=steady_log(5000).replace(usual, stalled)).paths.run_id
    second = make_run(cli.install, log=steady_log(5100), job_id="102").paths.run_id
    done = cli("compare", first, second)
    table = done.out[done.out.index("   first run") :].splitlines()
    head, *rows = (re.split("  +", line.strip()) for line in table[:3])
    times = [[float(row[head.index(name) - len(head)]) for name in ("step s", "steady s")] for row in rows]
    data = cli("compare", first, second, "--json").data
    assert times[1][0] / times[0][0] == pytest.approx(data["ratio"], abs=1e-3)
    assert data["ratio"] < 1 < times[1][1] / times[0][1]
    assert [data[side]["step_seconds"] for side in ("first", "second")] == pytest.approx(
        [row[0] for row in times], 1e-3
    )
    assert data["first"]["steady_step_seconds"] == pytest.approx(5.0)
    texts(done.out, about="without them")


def test_repeats_form_one_side(cli: Cli, texts: Texts) -> None:
    ids = [
        make_run(cli.install, log=steady_log(milliseconds), job_id=str(101 + number)).paths.run_id
        for number, milliseconds in enumerate((5000, 5010, 4990, 5400, 5390, 5410))
    ]
    alone = cli("compare", ids[0], ids[3], "--json").data
    together = cli("compare", ",".join(ids[:3]), ",".join(ids[3:]), "--json").data
    assert (together["first"]["successful"], together["second"]["successful"]) == (3, 3)
    assert together["ratio"] == pytest.approx(1.08)
    assert together["ratio_high"] - together["ratio_low"] < alone["ratio_high"] - alone["ratio_low"]
    texts(cli("compare", ids[0], ids[3]).out, about="difference")
    out = cli("compare", ",".join(ids[:3]), ",".join(ids[3:])).out
    assert re.search(r"more time than A's \(97\.7 % interval: \+[.0-9]+ % to \+[.0-9]+ %\)\n", out)


def test_sides_that_lie_apart_are_different_or_say_what_would_tell(cli: Cli, texts: Texts) -> None:
    first, second = (
        [
            make_run(cli.install, log=steady_log(milliseconds), job_id=str(milliseconds)).paths.run_id
            for milliseconds in side
        ]
        for side in ((9060, 9080, 9110, 9130, 9170), (9340, 9360, 9390, 9430, 9480))
    )
    few = cli("compare", ",".join(first[:2]), ",".join(second[:2]))
    texts(few.out, about="every run")
    swapped = cli("compare", ",".join(second[:2]), ",".join(first[:2]))
    texts(swapped.out, about="every run")
    mixed = cli("compare", f"{first[0]},{second[0]}", f"{first[1]},{second[1]}")
    texts(mixed.out, about="difference")
    assert "every run" not in mixed.out
    data = cli("compare", ",".join(first), ",".join(second), "--json").data
    assert 1 < data["ratio_low"] < data["ratio"] == pytest.approx(1.0318, abs=1e-3)


def test_what_differs_is_listed_with_its_values(cli: Cli) -> None:
    first = make_run(cli.install, log=steady_log(5000))
    second = make_run(
        cli.install,
        log=steady_log(5000),
        variables=PUBLISHED | {"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:25.09.00", "TP": "4"},
        job_id="102",
    )
    for record, digest in ((first, "aa"), (second, "bb")):
        manifest = {**record.manifest, "image": {"path": "x", "receipt": f'{{"sha256": "{digest}"}}'}}
        replace(record, manifest=manifest).save()
    found = {
        item["name"]: (item["first"], item["second"])
        for item in cli("compare", first.paths.run_id, second.paths.run_id, "--json").data["differences"]
    }
    assert found["tp"] == ("2", "4")
    assert found["software"] == ("nemo:26.02.01", "nemo:25.09.00")
    assert found["image digest"] == ("aa", "bb")
    assert "overridden" not in found, "the values themselves are there"
    assert not {"experiment_name", "time_limit", "gbs"} & found.keys()


def test_another_loss_is_another_job(cli: Cli, texts: Texts) -> None:
    first = make_run(cli.install, log=steady_log(5000))
    log = "".join(mbridge_line(index, milliseconds=5000, loss="7.5") for index in range(1, 51))
    second = make_run(cli.install, log=log, job_id="102")
    texts(cli("compare", first.paths.run_id, second.paths.run_id).out, about="loss")


def test_equal_runs_have_nothing_that_differs(cli: Cli, texts: Texts) -> None:
    first, second = (make_run(cli.install, log=steady_log(5000), job_id=str(number)) for number in (101, 102))
    done = cli("compare", first.paths.run_id, second.paths.run_id)
    texts(done.out, about="difference")


def test_a_side_without_a_good_run_has_no_times(cli: Cli, texts: Texts) -> None:
    good = make_run(cli.install, log=steady_log(5000))
    bad = make_run(cli.install, state="FAILED", log=steady_log(5000)[:2000], job_id="102")
    done = cli("compare", good.paths.run_id, bad.paths.run_id)
    assert done.status == 1
    texts(done.out, about="compared")
    assert cli("compare", good.paths.run_id, bad.paths.run_id, "--json").data["ratio"] is None


def test_a_run_that_is_not_there_is_named(cli: Cli) -> None:
    good = make_run(cli.install, log=steady_log(5000))
    assert cli("compare", good.paths.run_id, "nosuchrun").status == 2
    assert cli("compare", good.paths.run_id, ",").status == 2


def test_a_run_counts_once_and_on_one_side(cli: Cli, texts: Texts) -> None:
    one, two = (make_run(cli.install, log=steady_log(5000), job_id=str(number)).paths.run_id for number in (101, 102))
    assert cli("compare", f"{one},{one}", two, "--json").data["first"] == {
        "run_ids": [one],
        "successful": 1,
        "step_seconds": pytest.approx(5.0),
        "steady_step_seconds": pytest.approx(5.0),
    }
    done = cli("compare", f"{one},{two}", two)
    assert done.status == 2
    texts(done.err)


def test_every_run_of_a_side_is_looked_at(cli: Cli) -> None:
    """What differs, and the loss, may be another repeat's than the first."""
    ids = []
    for number, changes in enumerate(({}, {}, {}, {"TP": "4"})):
        log = steady_log(5000) if number < 3 else steady_log(5000).replace("6.958428E+00", "7.5E+00")
        ids.append(make_run(cli.install, log=log, variables=PUBLISHED | changes, job_id=str(number)).paths.run_id)
    data = cli("compare", ",".join(ids[:2]), ",".join(ids[2:]), "--json").data
    assert {"name": "tp", "first": "2", "second": "2 (1) / 4 (1)"} in data["differences"]
    assert data["loss"]["relative_difference"] == pytest.approx(7.5 / 6.958428 - 1)


def test_another_model_is_not_the_same_work_however_near_the_loss(cli: Cli, texts: Texts) -> None:
    other = {"GPU_TYPE": "gb200", "MODEL_SIZE": "70b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "64"}
    one = make_run(cli.install, log=steady_log(5000))
    two = make_run(cli.install, log=steady_log(4000), variables=other, job_id="102")
    done = cli("compare", one.paths.run_id, two.paths.run_id)
    texts(done.out, about="same work")
    assert "the same work\n" not in done.out


def test_what_is_odd_about_a_run_is_said(cli: Cli, texts: Texts) -> None:
    spiky = "".join(mbridge_line(index, milliseconds=20000 if index == 40 else 5000) for index in range(1, 51))
    one, two = make_run(cli.install, log=steady_log(5000)), make_run(cli.install, log=spiky, job_id="102")
    texts(cli("compare", one.paths.run_id, two.paths.run_id).err)


def test_a_value_that_is_cut_ends_in_dots(cli: Cli) -> None:
    """A bare slash or comma at the end looked like the last of them."""
    ids = []
    for number in (101, 102):
        record = make_run(cli.install, log=steady_log(5000), job_id=str(number))
        for at in range(16):
            write_node(record.paths.folder, f"gpu{number + at:04}")
        ids.append(record.paths.run_id)
    (line,) = (line for line in cli("compare", *ids).out.splitlines() if line.startswith("hosts "))
    cells = re.split("  +", line)[1:]
    assert [(len(cell), cell[-3:]) for cell in cells] == [(60, "...")] * 2


def test_what_nodes_were_is_compared(cli: Cli) -> None:
    ids = []
    for number, path in ((101, "/GDRDMA"), (102, "")):
        record = make_run(cli.install, log=steady_log(5000), job_id=str(number))
        channel = f"n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0{path}\n"
        write_node(record.paths.folder, "n1", log=channel)
        ids.append(record.paths.run_id)
    out = cli("compare", *ids).out
    assert "gpudirect" in out
    assert "NET/IB/GDRDMA" in out
