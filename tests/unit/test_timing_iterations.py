"""Reading iteration records, intact and damaged."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import pytest

from llmb_common.runs.timing import log_files
from llmb_common.runs.timing.iterations import LogContent, read_log
from llmb_common.runs.timing.records import OF_SPEED, Iteration, iterations_in, last_iterations
from support.iteration_logs import mbridge_line, mbridge_log, nccl_lines, nemo_line, nemo_log, step_time

DATA = Path(__file__).parents[1] / "data" / "logs"


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes) -> LogContent:
        path = tmp_path / "log-x.out"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with FileIO(path) as file:
            return read_log(file)

    return read


def indices(content: LogContent) -> list[int]:
    return [item.index for item in content.iterations]


MBRIDGE_FIGURES = (
    *("consumed samples", "elapsed time per iteration (ms)", "throughput per GPU (TFLOP/s/GPU)", "learning rate"),
    *("global batch size", "lm loss", "loss scale", "grad norm"),
    *("number of skipped iterations", "number of nan iterations"),
)


def test_a_real_log_of_two_ranks():
    with FileIO(DATA / "mbridge_2ranks_cpu.out") as file:
        content = read_log(file)
    assert content.log_format == "mbridge"
    assert indices(content) == list(range(1, 51))
    assert (content.damaged, content.replaced) == (0, ())
    # This one shares its physical line with the other rank's print.
    expected = Iteration(43, 50, 262.4 / 1000, tflops=0.0, loss=6.44914, grad_norm=0.626)
    printed = {"learning_rate": 4.392218e-05, "loss_scale": 1.0, "figures": MBRIDGE_FIGURES}
    assert content.iterations[42] == expected._replace(**printed)


def test_every_field_of_a_megatron_bridge_line(read):
    extra = "load_balancing_loss: 1.003633E+00 | mtp_1 loss: 7.1E+00"
    content = read(mbridge_line(7, loss="6.5", extra=extra, skipped=1, nan=1) + mbridge_line(8, loss="6.4"))
    expected = Iteration(7, 50, 5.7415, tflops=1636.8, loss=6.5, grad_norm=1.019, skipped=True, nan=True)
    printed = {"learning_rate": 1.5e-4, "loss_scale": 1.0}
    further = (*MBRIDGE_FIGURES[:6], "load_balancing_loss", "mtp_1 loss", *MBRIDGE_FIGURES[6:])
    assert content.iterations[0] == expected._replace(**printed, mtp_loss=7.1, figures=further)
    expected = Iteration(8, 50, 5.7415, tflops=1636.8, loss=6.4, grad_norm=1.019)
    assert content.iterations[1] == expected._replace(**printed, figures=MBRIDGE_FIGURES)


def test_every_field_of_a_nemo_line(read):
    content = read(nemo_line(48) + nemo_line(49, tflops=527.8))
    assert content.log_format == "nemo"
    names = (
        *("lr", "global_batch_size", "global_step", "peak_memory_usage", "memory_allocated", "reduced_train_loss"),
        *("train_step_timing in s", "consumed_samples"),
    )
    printed = {"learning_rate": 4.491e-6, "zero_based": True}
    assert content.iterations == (
        Iteration(48, 49, 2.693, loss=12.81, **printed, figures=names),
        Iteration(49, 49, 2.693, loss=12.81, tflops=527.8, **printed, figures=(*names, "TFLOPS_per_GPU")),
    )


def test_megatron_deepspeed_prints_the_time_in_seconds(read):
    text = mbridge_log().replace("iteration (ms): 5741.5 |", "iteration (s): 105.22 |")
    assert [item.seconds for item in read(text).iterations] == [105.22] * 50


@pytest.mark.parametrize(("name", "mean"), [("throughput", "/573.6"), ("compute", " (avg 573.6)")])
def test_primus_prints_the_running_mean_behind_a_steps_own_number(read, name, mean):
    text = mbridge_log().replace("iteration (ms): 5741.5 |", "iteration (ms): 5741.5/6240.9 |")
    text = text.replace("throughput per GPU (TFLOP/s/GPU): 1636.8", f"{name} per GPU (TFLOP/s/GPU): 579.4{mean}")
    content = read(text.replace(" throughput", " hip mem usage/free: 153.8GB/102.2GB | throughput"))
    assert [(item.seconds, item.tflops) for item in content.iterations] == [(5.7415, 579.4)] * 50
    assert content.damaged == 0


@pytest.mark.parametrize("per_epoch", [1, 7, 20])
def test_nemo_counts_iterations_from_0_again_in_each_epoch(read, per_epoch):
    text = ""
    for step in range(120):
        again = f"epoch {step // per_epoch}, iteration {step % per_epoch}/"
        text += nemo_line(step, per_epoch - 1).replace(f"epoch 0, iteration {step}/", again)
    content = read(text)
    assert content.iterations[-1].total == 119
    assert (indices(content), content.restarts, content.damaged) == ([*range(120)], (), 0)


def test_crlf_ansi_prefixes_and_bytes_that_are_not_utf8(read):
    text = mbridge_log().replace(" [2026", "\x1b[32m127: [2026").replace(" |\n", " |\x1b[0m\r\n").encode()
    content = read(b"\xff\xfe\x00" + text.replace(b"done", b"\xc3\x28\x80"))
    assert indices(content) == list(range(1, 51))
    assert content.damaged == 0


def test_a_log_saved_by_grep_with_colours(read):
    text = mbridge_log().replace(
        "elapsed time per iteration", "\x1b[01;31m\x1b[Kelapsed time per iteration\x1b[m\x1b[K"
    )
    assert indices(read(text)) == list(range(1, 51))


@pytest.mark.parametrize("newline", ["", "\n"])
def test_the_other_ranks_print_may_stand_anywhere_in_a_record(read, newline):
    line = mbridge_line(2)
    foreign = step_time().rstrip("\n") + newline
    # The two ends and every place between, except inside the marker that the search is for.
    marker = line.index("elapsed time per iteration")
    for at in [*range(marker + 1), *range(marker + len("elapsed time per iteration"), len(line) + 1)]:
        content = read(mbridge_line(1) + line[:at] + foreign + line[at:] + mbridge_line(3))
        assert indices(content) == [1, 2, 3], line[:at]
        assert content.iterations[1].grad_norm == 1.019


def test_two_records_on_one_physical_line(read):
    assert indices(read(mbridge_line(1).rstrip("\n") + mbridge_line(2))) == [1, 2]
    assert indices(read(nemo_line(0).rstrip("\n") + nemo_line(1))) == [0, 1]


def test_a_cut_at_any_byte_never_invents_a_record_or_a_number(read):
    whole = {item.index: item for item in read(mbridge_log(range(1, 4), 3)).iterations}
    text = mbridge_log(range(1, 4), 3)
    ends = [text.index(mbridge_line(index, 3)) + len(mbridge_line(index, 3)) - 1 for index in (1, 2, 3)]
    for cut in range(len(text)):
        content = read(text[:cut])
        assert indices(content) == [index for index, end in zip((1, 2, 3), ends, strict=True) if cut >= end]
        assert all(item == whole[item.index] for item in content.iterations)


def test_a_cut_nemo_log_never_invents_a_number(read):
    text = nemo_log(range(2), 1)
    for cut in range(len(text)):
        for item in read(text[:cut]).iterations:
            assert item.seconds == 2.693
            assert item.tflops in (None, 527.8)


@pytest.mark.parametrize(
    "value",
    ["", "-5.0", "0.0", "nan", "inf", "1e11", "1e200", "1e999", "5,741.5", "1_0.0", "0x10", "12.3.4", "٣.٠"],
)
def test_a_malformed_time_is_a_damaged_record(read, value):
    content = read(mbridge_line(1) + mbridge_line(2, milliseconds=value) + mbridge_line(3))
    assert (indices(content), content.damaged) == ([1, 3], 1)


def test_a_record_without_the_gradient_norm_of_the_others_is_damaged(read):
    cut = mbridge_line(3).partition(" grad norm")[0] + "\n"
    content = read(mbridge_line(1) + mbridge_line(2) + cut)
    assert (indices(content), content.damaged) == ([1, 2], 1)


def test_a_garbled_number_anywhere_is_a_damaged_record_not_a_missing_number(read):
    content = read(mbridge_line(1) + mbridge_line(2, loss="6.95\x0028E+00") + mbridge_line(3, loss="6.9!"))
    assert (indices(content), content.damaged) == ([1], 2)


def test_a_record_cut_in_the_middle_takes_nothing_from_the_next(read):
    whole = mbridge_line(2)
    before_marker, after_time = whole.index("elapsed"), whole.index(" learning rate")
    glued = read(mbridge_line(1) + whole[:after_time] + mbridge_line(3))
    assert (indices(glued), glued.damaged) == ([1, 3], 1)
    below = read(mbridge_line(1) + whole[:before_marker] + "\n" + mbridge_line(3)[before_marker:] + mbridge_line(4))
    assert (indices(below), below.damaged) == ([1, 4], 1)


def slower(*numbers: int) -> str:
    """Records of an attempt with steps of 9 s."""
    return "".join(mbridge_line(number, milliseconds=9000.0) for number in numbers)


ALL = [*range(1, 51)]


@pytest.mark.parametrize(
    ("log", "read_as", "of_the_first", "replaced", "doubled", "restarts"),
    [
        (slower(*range(1, 41)) + mbridge_log(), ALL, [], 40, 0, (1,)),  # a requeue without checkpoint
        (slower(*range(1, 34)) + mbridge_log(range(31, 51)), ALL, ALL[:30], 3, 0, (31,)),  # from a checkpoint
        (slower(*range(1, 41)) + mbridge_line(40), ALL[:40], ALL[:39], 1, 0, (40,)),
        (slower(*ALL) + mbridge_log(range(1, 11)), ALL[:10], [], 50, 0, (1,)),  # the second attempt died sooner
        ("".join(2 * mbridge_line(index) for index in ALL), ALL, [], 0, 50, ()),
        (slower(*ALL[:35], 37, 36, *ALL[37:]), ALL, ALL, 0, 0, ()),  # lines that come late
        (slower(*ALL[:35], 37, 38, 36, *ALL[38:]), ALL, ALL, 0, 0, ()),
    ],
)
def test_what_is_printed_again_or_late(read, log, read_as, of_the_first, replaced, doubled, restarts):
    content = read(log)
    assert indices(content) == read_as
    assert [item.index for item in content.iterations if item.seconds == 9.0] == of_the_first
    assert (len(content.replaced), content.doubled, content.restarts) == (replaced, doubled, restarts)


def test_another_engines_records_in_the_same_file_do_not_mix(read):
    content = read("| train_step_timing in s: 1.0 |\n" + mbridge_log(range(1, 6)) + nemo_log())
    assert (content.log_format, indices(content)) == ("mbridge", [1, 2, 3, 4, 5])


@pytest.mark.parametrize("prefix", ["", "MODEL_"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_throughput_from_the_step_time_print_where_the_line_has_none(read, prefix, order):
    text = ""
    for index in range(1, 51):
        seconds = 5 + index / 100
        pair = [step_time(seconds, 1000 + index, prefix), mbridge_line(index, milliseconds=1000 * seconds, tflops=None)]
        text += "".join(pair if order == "before" else reversed(pair)) + nccl_lines(20)
    assert [item.tflops for item in read(text).iterations] == [1000.0 + index for index in range(1, 51)]


def untold(index: int = 1, milliseconds: float = 5741.5) -> str:
    """A record without its throughput."""
    return mbridge_line(index, milliseconds=milliseconds, tflops=None)


@pytest.mark.parametrize(
    ("log", "tflops"),
    [
        ("".join(untold(n) + step_time(tflops=1000.0 + n) for n in (1, 2, 3)), [1001.0, 1002.0, 1003.0]),
        # of another duration: of another step, by hundredths
        (step_time(99.0, 3.0) + untold() + step_time(4.0) + untold(2, 4001.2), [None, 1636.8]),
        (step_time(5.74, 7.0) + untold(milliseconds=5745.0), [7.0]),
        (step_time(5.74, 7.0) + untold(milliseconds=5746.0), [None]),
        # further on than the next record
        (untold(1) + untold(2) + untold(3) + step_time(tflops=9.0), [None, None, 9.0]),
        ("Step Time : soon\n" + step_time() + untold(), [1636.8]),
        ("Step Time : 1.2.3s GPU utilization: 4.0MODEL_TFLOP/s/GPU\n" + step_time() + untold(), [1636.8]),
    ],
)
def test_which_step_a_print_of_the_step_time_belongs_to(read, log, tflops):
    assert [item.tflops for item in read(log).iterations] == tflops


def test_records_that_lie_across_the_boundaries_of_blocks(tmp_path, monkeypatch):
    text = nccl_lines(3) + mbridge_log(range(1, 4), 3) + nccl_lines(3)
    path = tmp_path / "log"
    path.write_text(text)
    for block in [*range(1, 40), *range(1020, 1040), len(text) - 1, len(text)]:
        monkeypatch.setattr(log_files, "BLOCK", block)
        with FileIO(path) as file:
            assert indices(read_log(file)) == [1, 2, 3], block


@pytest.mark.parametrize("bar", ["", "| ", " 12%|█▏        | 6/50 [00:34<04:05,  5.58s/it]"])
def test_blocks_of_other_lines_are_skipped_and_lose_nothing(read, monkeypatch, bar):
    monkeypatch.setattr(log_files, "BLOCK", 1 << 16)
    traces = "".join(f"{bar}{line}" for line in nccl_lines(2000).splitlines(keepends=True))
    spread = "".join(traces + mbridge_line(index, 3) for index in range(1, 4)) + traces
    assert indices(read(spread)) == [1, 2, 3]


def test_empty_and_unrelated_files(read):
    for text in ("", "\n", "|" * 5000, "elapsed time per iteration", "| train_step_timing in s: 2.5 |\n"):
        assert read(text).iterations == ()


def test_a_piece_of_a_log_gives_its_whole_records() -> None:
    """What a log has gained: a record cut at either end is none, and both engines' are known."""
    text = mbridge_log(range(1, 21)).encode()
    found = iterations_in(text[text.index(b"\n", 400) : text.rindex(b"elapsed")])
    assert [item.index for item in found] == list(range(found[0].index, 20))
    assert (found[-1].step, found[-1].steps) == (19, 50)
    (*_, last) = iterations_in(nemo_log(range(25)).encode())
    assert (last.index, last.step, last.steps, last.seconds) == (24, 25, 50, 2.693)


@pytest.mark.parametrize("text", [mbridge_log(), nemo_log(), mbridge_log() + nccl_lines(200), "no record\n", ""])
@pytest.mark.parametrize("cut", [0, 1, 100, 300])
def test_the_last_records_of_a_piece_are_the_last_of_all(text: str, cut: int) -> None:
    piece = text.encode()[cut : len(text) - cut]
    found = iterations_in(piece)
    for most in (1, 10, 1000):
        assert last_iterations(piece, most) == found[-most:]
    assert last_iterations(piece, 0) == []


def with_energy(joules: str, watts: str, **more: str) -> Iteration:
    """A record as Megatron prints it with ``logger.log_energy``, which earlier releases of LLMB switched on."""
    extra = f"energy per GPU (J/iter/GPU): {joules} | power per GPU (W/GPU): {watts}"
    (item,) = iterations_in(mbridge_line(1, extra=extra, **more).encode())
    return item


def test_the_fields_of_energy_are_no_figures_of_ours() -> None:
    (plain,) = iterations_in(mbridge_line(1).encode())
    for printed in (("3210.5", "559.2"), ("0.0", "0.0"), ("cut", "")):
        assert with_energy(*printed)._replace(figures=()) == plain._replace(figures=())


@pytest.mark.parametrize("odd", ["nan", "inf", "-inf", "1e400"])
def test_figures_of_speed_that_are_not_finite(odd) -> None:
    found = [with_energy("0.0", "0.0", tflops=odd), with_energy(odd, odd, tflops=odd)]
    assert [(item.tflops, item.not_finite) for item in found] == [(None, ("TFLOPS",)), (None, OF_SPEED)]


def test_a_step_is_shorter_than_four_months() -> None:
    assert len(iterations_in(mbridge_line(1, milliseconds="9.9e9").encode())) == 1
    assert iterations_in(mbridge_line(1, milliseconds="1e10").encode()) == []
    assert [item.seconds for item in iterations_in(nemo_line(0, seconds=9.9e6).encode())] == [9.9e6]


def test_a_record_far_into_a_piece_of_a_log_is_found() -> None:
    noise = "x" * 5000 + "\n"
    assert [item.index for item in iterations_in((noise + mbridge_line(7) + noise + mbridge_line(8)).encode())] == [
        7,
        8,
    ]


def test_rank_0s_own_log_has_times_and_its_steps_are_counted(read):
    content = read("".join(step_time(5.0 + n / 100, 600.0 + n) for n in range(4)))
    assert [(item.index, item.total, item.seconds, item.tflops) for item in content.iterations] == [
        (n + 1, 4, pytest.approx(5.0 + n / 100), 600.0 + n) for n in range(4)
    ]
    assert (content.of_rank_0, content.log_format, content.damaged) == (True, "mbridge", 0)


def test_steps_of_rank_0_are_counted_from_where_its_loop_starts(read):
    begins = "Starting training loop at iteration {}\n"
    content = read(begins.format(20) + 8 * step_time() + begins.format(25) + 5 * step_time())
    assert indices(content) == list(range(21, 31))
    assert content.restarts == (26,)


def test_few_prints_of_rank_0_are_the_beginning_of_a_log_that_was_cut(read):
    assert read(2 * step_time()).iterations == ()
    assert read(5 * step_time() + mbridge_line(1)[:200] + "\n").of_rank_0 is False


def test_a_step_of_no_time_is_counted_and_left_out(read):
    assert indices(read(3 * step_time() + step_time(0.0) + step_time())) == [1, 2, 3, 5]


@pytest.mark.parametrize(
    ("numbers", "interval"),
    [
        *(((10, 20, 30), 10), ((5, 10, 20, 25), 5), ((1, 2, 3), 1), ((5, 10), 1), ((3, 5, 7), 1), ((1, 3, 4), 1)),
        # Megatron-LM prints the first iteration, too.
        *(((1, 10, 20, 30), 10), ((26, 30, 40, 50), 10), ((9, 10, 20, 30), 10), ((1, 10, 20), 1), ((1, 3, 5, 7), 1)),
    ],
)
def test_records_of_several_steps_are_known_by_their_numbers(read, numbers, interval):
    assert read("".join(map(mbridge_line, numbers))).interval == interval


def test_losses_below_zero_are_kept_by_name_and_value(read):
    usual, odd = "load_balancing_loss: 1.2E-02", "load_balancing_loss: -1.2E-02"
    content = read("".join(mbridge_line(n, extra=odd if n == 4 else usual) for n in range(1, 7)))
    assert [item.negative for item in content.iterations] == [(), (), (), (("load_balancing_loss", -0.012),), (), ()]


def test_a_record_counts_all_steps_that_were_skipped(read):
    assert [item.skipped for item in read(mbridge_line(10, skipped=8) + mbridge_line(20)).iterations] == [8, 0]
