"""Outputs of nccl-tests as an input: every release's format, written by hand after its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.nodes.fabric.measurement import bus_factor
from llmb_common.nodes.fabric.nccl_tests import Column, NcclTest, is_nccl_tests, parse_nccl_tests
from llmb_common.nodes.fabric.published import lookup_date, published_bandwidths
from support.cli import Cli
from support.repository import REPOSITORY
from support.texts import Texts

FOLDER = REPOSITORY / "tests" / "data" / "nccl"
SAMPLE = FOLDER / "two_nodes_2.19.txt"
TEXT = SAMPLE.read_text()


def parsed(text: str) -> NcclTest:
    (test,) = parse_nccl_tests(text)
    return test


OF_2017 = (FOLDER / "of_2017.txt").read_text()
OF_2021 = (FOLDER / "of_2021.txt").read_text()
PER_ITERATION = (FOLDER / "per_iteration.txt").read_text()


def test_figures_of_todays_release() -> None:
    test = parsed(TEXT)
    assert (test.collective, test.version, test.library, test.gpu) == ("all_reduce", "2.19.6", "2.30.7", "NVIDIA B200")
    assert (test.ranks, test.nodes, test.gpus_per_node) == (16, ("node1", "node2"), 8)
    assert [size.bytes for size in test.sizes] == [1 << 30, 1 << 31, 1 << 32, 1 << 33]
    largest = test.largest
    assert largest is not None
    assert largest.out_of_place is not None
    assert largest.in_place is not None
    assert largest.out_of_place.seconds == pytest.approx(23340.0e-6, rel=1e-3)
    assert (largest.out_of_place.wrong, largest.in_place.wrong) == (0, 0)
    assert test.good


def test_bandwidths_follow_from_bytes_and_time_by_our_own_definition() -> None:
    """Theirs and ours are the same, so that figures compare."""
    for size, measured in zip(parsed(TEXT).sizes, parsed(TEXT).measurements(), strict=True):
        assert size.best is not None
        assert measured.algbw_gbps == pytest.approx(size.best.algbw_gbps, rel=1e-3)
        assert measured.busbw_gbps == pytest.approx(size.best.busbw_gbps, rel=1e-3)
        assert (measured.ranks, measured.collective) == (16, "all_reduce")


@pytest.mark.parametrize(
    ("text", "ranks", "seconds", "busbw", "collective"),
    [
        (OF_2017, 4, 0.150e-3, 20.97, "all_reduce"),
        (OF_2021, 4, 35198e-6, 45.76, "all_reduce"),
        (PER_ITERATION, 4, 50e-6, 15.73, "all_gather"),
    ],
)
def test_other_releases(text: str, ranks: int, seconds: float, busbw: float, collective: str) -> None:
    test = parsed(text)
    assert test.ranks == ranks
    assert test.nodes == ("node1", "node2")
    assert test.largest is not None
    assert test.largest.best is not None
    assert test.largest.best.seconds == pytest.approx(seconds)
    assert test.largest.best.busbw_gbps == busbw
    assert test.collective == collective
    assert test.good
    assert not test.checked  # none of these counts wrong values


def test_wrong_values_are_named_and_no_success() -> None:
    (row,) = [line for line in TEXT.splitlines() if line.startswith("  8589934592")]
    test = parsed(TEXT.replace(row, row[:-1] + "3").replace("values : 0 OK", "values : 3 FAILED"))
    assert [size.bytes for size in test.wrong] == [1 << 33]
    assert test.out_of_bounds == 3
    assert not test.good
    assert [bool(item.error) for item in test.measurements()] == [False, False, False, True]


@pytest.mark.parametrize("lines", range(4, 30, 3))
def test_a_truncated_output_is_not_good_and_keeps_its_figures(lines: int) -> None:
    text = "".join(TEXT.splitlines(keepends=True)[:lines])
    for test in parse_nccl_tests(text):
        assert not test.ended
        assert not test.good
        assert len(test.sizes) <= 3


@pytest.mark.parametrize("cut", range(0, len(TEXT), 97))
def test_no_byte_makes_it_raise(cut: int) -> None:
    parse_nccl_tests(TEXT[:cut])
    parse_nccl_tests(TEXT[:cut] + "\x00\ufffd -nan # Avg bus bandwidth : nan \n" + TEXT[cut:])


@pytest.mark.parametrize("names", range(8))
def test_a_truncated_heading_takes_no_row_for_a_result(names: int) -> None:
    """Whatever is left of the heading, a row of as many words, and of half as many, must not end the parsing."""
    heading = next(line for line in TEXT.splitlines() if line.lstrip("# ").startswith("size"))
    words = heading.split()
    shorter = " ".join(words[: len(words) - names])
    for row in TEXT.splitlines():
        for count in range(len(row.split())):
            parse_nccl_tests(TEXT.replace(heading, shorter).replace(row, " ".join(row.split()[:count])))


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[prterun-n1-2651@1,0]<stdout>: ",
        "[1,0][n1:26512]<stdout>: ",
        "Tue Nov  5 10:11:12 2026<stdout>:",
        "Tue Nov  5 10:11:12 2026[1,0]<stdout>:",
        "2026-11-05T10:11:12.123456789Z ",
        "2026-11-05T10:11:12.123456789Z [1,0]<stdout>:",
        "[pod/nccl-launcher-x7/mpi] ",
        "    ",
        " 0: ",
        "12: ",
    ],
)
def test_prefixes_of_mpirun_and_srun(prefix: str) -> None:
    assert parsed("".join(f"{prefix}{line}\n" for line in TEXT.splitlines())) == parsed(TEXT)


def test_other_programs_columns_behind_are_left_out() -> None:
    rows = [f"{line} RING SIMPLE 32" if line.startswith("  ") else line for line in TEXT.splitlines()]
    text = "\n".join(f"{row} algo proto nchannels" if " redop " in row else row for row in rows)
    assert parsed(text).sizes == parsed(TEXT).sizes


def test_an_empty_reduction_of_older_releases() -> None:
    """Of all-to-all, whose line has one word less than its heading."""
    rows = [line.replace(" sum ", "     ") if line.startswith("  ") else line for line in OF_2021.splitlines()]
    found, old = parsed("\n".join(rows)).sizes, parsed(OF_2021).sizes
    assert [(size.bytes, size.type, size.columns) for size in found] == [
        (size.bytes, size.type, size.columns) for size in old
    ]
    assert {size.redop for size in found} == {""}


def test_one_half_of_the_columns_is_out_of_place() -> None:
    heading = "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
    (size,) = parsed(f"{heading}  1024  256  float  sum  -1  20.0  0.05  0.09  0\n").sizes
    assert (size.in_place, size.out_of_place is not None) == (None, True)


def test_what_was_copied_from_a_page_has_lost_its_signs() -> None:
    text = "".join(f"{line.lstrip('#')}\n" for line in OF_2021.splitlines())
    assert (parsed(text).sizes, parsed(text).hosts) == (parsed(OF_2021).sizes, parsed(OF_2021).hosts)


def test_a_test_that_has_concluded_needs_no_average() -> None:
    text = "".join(line for line in TEXT.splitlines(keepends=True) if "Avg bus bandwidth" not in line)
    assert parsed(text + "# Collective test concluded: all_reduce_perf\n").good


@pytest.mark.parametrize("old", ["8589934592 ", "#  Rank  3", "nccl-library=23007", "values : 0"])
def test_a_number_of_thousands_of_digits_is_none(old: str) -> None:
    assert old in TEXT
    (test,) = parse_nccl_tests(TEXT.replace(old, old.rstrip("0123456789 ") + "9" * 5000 + " "))
    assert all(size.bytes <= 1 << 33 for size in test.sizes)


@pytest.mark.parametrize("average", ["nan", "-nan", "inf", "-inf"])
def test_an_average_that_is_no_number_is_a_problem_and_an_end(average: str) -> None:
    (line,) = [line for line in TEXT.splitlines() if line.startswith("# Avg bus bandwidth")]
    test = parsed(TEXT.replace(line, f"# Avg bus bandwidth    : {average}"))
    assert test.ended
    assert not test.good


def test_lines_of_windows_are_the_same() -> None:
    assert parsed(TEXT.replace("\n", "\r\n")) == parsed(TEXT)


def test_one_after_the_other() -> None:
    assert [test.collective for test in parse_nccl_tests(TEXT + PER_ITERATION)] == ["all_reduce", "all_gather"]


def test_programs_that_do_not_know_each_other() -> None:
    """Built without MPI, each rank is a test by itself, and all print."""
    lines = TEXT.splitlines(keepends=True)
    begin = next(at for at, line in enumerate(lines) if line.startswith("# nThread"))
    test = parsed("".join([*lines[:begin], lines[begin], *lines[begin:]]))
    assert test.problems
    assert not test.good


def test_a_failure_is_told_in_its_own_words() -> None:
    said = "node1: Test NCCL failure common.cu:958 'unhandled system error (run with NCCL_DEBUG=INFO for details)'"
    test = parsed(TEXT.replace("# Out of bounds", f"{said}\n# Out of bounds"))
    assert said in test.problems
    assert not test.good


def test_a_line_into_which_another_program_wrote_is_said() -> None:
    (row,) = [line for line in TEXT.splitlines() if line.startswith("  4294967296")]
    test = parsed(TEXT.replace(row, row[:60] + "node2:1:1 [0] NCCL INFO x"))
    assert len(test.sizes) == 3
    assert test.problems


def test_only_in_place() -> None:
    """A replayed trace leaves the first columns empty."""
    (row,) = [line for line in TEXT.splitlines() if line.startswith("  8589934592")]
    test = parsed(TEXT.replace(row, row[:52] + " " * 32 + row[85:]))
    assert test.sizes[-1].out_of_place is None
    assert test.sizes[-1].in_place == parsed(TEXT).sizes[-1].in_place


def test_of_several_groups_the_figures_are_the_first_ones() -> None:
    """NCCL_TESTS_SPLIT: the second half of the ranks is a test of its own, which prints nothing."""
    halves = "".join(
        line.replace("Group  0", "Group  1") if "on      node2" in line else line
        for line in TEXT.splitlines(keepends=True)
    )
    assert parsed(halves).hosts == ("node1",) * 8


def test_missing_ranks_give_no_number_of_them() -> None:
    (line,) = [line for line in TEXT.splitlines() if line.startswith("#  Rank  3")]
    test = parsed(TEXT.replace(line, "..."))
    assert test.ranks == 0
    assert test.measurements() == []


def test_other_text_is_none() -> None:
    assert is_nccl_tests(TEXT)
    assert not is_nccl_tests("iteration 10/50 | elapsed time per iteration (ms): 1000.0\n")
    assert parse_nccl_tests("nothing\n") == []


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [("all_reduce", 16, 1.875), ("all_gather", 16, 0.9375), ("alltoall", 8, 0.875), ("broadcast", 8, 1.0)],
)
def test_bus_factors(collective: str, ranks: int, factor: float) -> None:
    assert bus_factor(collective, ranks) == factor


def test_published_figures_have_sources() -> None:
    found = [*published_bandwidths("b200", 2, 16), *published_bandwidths("gb200", 4, 16)]
    assert [item.busbw_gbps for item in found] == [690.07, 882.51, 191.4]
    assert all(item.source.startswith("https://") for item in found)
    assert lookup_date() >= "2026-11-29"
    assert published_bandwidths("b200", 3, 24) == []


# The commands


def test_results_of_a_file(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    (test,) = cli("results", str(SAMPLE), "--json").data["nccl_tests"]
    assert (test["good"], test["collective"], len(test["sizes"])) == (True, "all_reduce", 4)
    assert [item["busbw_gbps"] for item in test["published"]] == [690.07]
    done = cli("results", str(SAMPLE))
    assert done.status == 0
    texts(done.out.splitlines()[0])
    assert len(cli("results", str(SAMPLE), "--format", "csv").out.splitlines()) == 1 + 2 * 4
    cut = tmp_path / "cut.txt"
    cut.write_text(TEXT[: TEXT.index("# Out of bounds")])
    texts(cli("results", str(cut)).out)


def test_results_does_not_mix(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_text("nothing\n")
    assert "nccl-tests" in cli("results", str(SAMPLE), str(log)).err


@pytest.mark.parametrize("view", ["iterations", "group", "rank", "scaling", "history", "alarm"])
def test_views_of_runs_are_refused(cli: Cli, view: str) -> None:
    done = cli("results", str(SAMPLE), f"--{view}")
    assert (done.status, done.out) == (2, "")
    assert f"--{view}" in done.err


def as_json(test: NcclTest, ranks_of_process: int = 1) -> dict[str, Any]:
    """What ``-J`` writes of a test: of each process the first rank, times in us, NaN and the root as text."""

    def half(column: Column | None) -> dict[str, Any] | None:
        if column is None:
            return None
        figures = {"time": column.seconds * 1e6, "alg_bw": column.algbw_gbps, "bus_bw": column.busbw_gbps}
        return figures | {"nwrong": column.wrong}

    devices = [
        {
            "rank": rank,
            "group": 0,
            "pid": 7,
            "hostname": host,
            "device": 0,
            "device_hex": "0:1b:0",
            "device_info": test.gpu,
        }
        for rank, host in enumerate(test.hosts)
        if rank % ranks_of_process == 0
    ]
    rows = [
        {"size": size.bytes, "count": size.bytes // 4, "type": size.type, "redop": size.redop, "root": "    -1"}
        | {"out_of_place": half(size.out_of_place), "in_place": half(size.in_place), "actual_iterations": 20}
        for size in test.sizes
    ]
    return {
        "version": 2,
        "start_time": "2026-11-30 10:00:00",
        "args": ["/opt/nccl-tests/build/all_reduce_perf_mpi", "-J", "out.json"],
        "env": ["HF_TOKEN=hf_secret"],
        "nccl_version": 23007,
        "config": {"nthreads": 1, "ngpus": ranks_of_process, "parallel_init": "false", "devices": devices},
        "results": rows,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": test.average_busbw_gbps, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-11-30 10:01:00",
    }


@pytest.mark.parametrize("ranks_of_process", [1, 2, 8])
def test_the_file_of_json_says_the_same_as_the_output(ranks_of_process: int) -> None:
    printed = parsed(TEXT)
    text = json.dumps(as_json(printed, ranks_of_process), separators=(",", ":"))
    assert is_nccl_tests(text[:200])
    assert parsed(text) == msgspec.structs.replace(printed, version="", sizes=parsed(text).sizes)
    for size, same in zip(parsed(text).sizes, printed.sizes, strict=True):
        assert (size.bytes, size.type, size.redop) == (same.bytes, same.type, same.redop)
        assert size.in_place is not None
        assert same.in_place is not None
        assert size.in_place.seconds == pytest.approx(same.in_place.seconds)
    assert parsed(text).good


def test_a_file_of_json_that_is_cut_or_odd_says_so() -> None:
    whole = as_json(parsed(TEXT))
    cut = parsed(json.dumps(whole)[:-40])
    assert (cut.good, cut.sizes) == (False, ())
    assert cut.problems[0].startswith("its JSON is cut or damaged")
    whole["results"][0]["in_place"]["time"] = "nan"
    assert parsed(json.dumps(whole, indent=2)).problems == ("1 row without figures",)
    whole = as_json(parsed(TEXT))
    whole["errors"] = ["unhandled system error"]
    whole["out_of_bounds"]["count"] = 3
    del whole["config"]["devices"][3]
    odd = parsed(json.dumps(whole))
    assert odd.problems == ("unhandled system error", "not all ranks are listed, so their number is unknown")
    assert (odd.hosts, odd.out_of_bounds, odd.good) == ((), 3, False)
    whole["results"] = whole["results"][:1]
    whole["results"][0]["out_of_place"] = None
    whole["results"][0]["in_place"]["nwrong"] = None
    (size,) = parsed(json.dumps(whole)).sizes
    assert size.out_of_place is None
    assert size.in_place is not None
    assert size.in_place.wrong is None
