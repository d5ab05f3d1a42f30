"""Logs as the two engines write them, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterable


def mbridge_line(
    index: int,
    total: int = 50,
    *,
    milliseconds: float | str = 5741.5,
    tflops: float | str | None = "of the time",
    loss: str | None = "falling",
    grad_norm: str = "1.019",
    nan: int = 0,
    skipped: int = 0,
    extra: str = "",
) -> str:
    """What the last rank prints. ``loss`` None leaves it out, as Megatron does for NaN; "falling": from 6.958428 on.

    ``tflops`` "of the time": for the same work whatever ``milliseconds`` says.
    """
    if loss == "falling":
        loss = f"{6.958428 * 0.999 ** (index - 1):.6E}"
    if tflops == "of the time":
        tflops = round(1636.8 * 5741.5 / milliseconds, 1) if isinstance(milliseconds, float | int) else 1636.8
    parts = [
        f" [2026-11-20 03:40:35] iteration {index:8d}/{total:8d}",
        f"consumed samples: {8 * index:12d}",
        f"elapsed time per iteration (ms): {milliseconds}",
        *([] if tflops is None else [f"throughput per GPU (TFLOP/s/GPU): {tflops}"]),
        "learning rate: 1.500000E-04",
        "global batch size:     8",
        *([] if loss is None else [f"lm loss: {loss}"]),
        *([extra] if extra else []),
        "loss scale: 1.0",
        f"grad norm: {grad_norm}",
        f"number of skipped iterations: {skipped:3d}",
        f"number of nan iterations: {nan:3d}",
    ]
    return " | ".join(parts) + " |\n"


def step_time(seconds: float = 5.7415, tflops: float = 1636.8, prefix: str = "MODEL_") -> str:
    """What rank 0 prints; 0.1.0rc4 has no ``MODEL_``."""
    return f"Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}{prefix}TFLOP/s/GPU\n"


def mbridge_log(indices: Iterable[int] = range(1, 51), total: int = 50) -> str:
    """A healthy log of both ranks' prints, among the other things that a log contains."""
    head = "Starting training loop at iteration 0\n"
    return head + "".join(step_time() + mbridge_line(index, total) for index in indices) + "done\n"


def saved_line(index: int) -> str:
    """What rank 0 prints when a checkpoint is complete."""
    return f"  successfully saved checkpoint from iteration {index:7d} to /run/checkpoints [ t 1/2, p 1/1 ]\n"


TOLD_LINE = " [2026-11-20 03:40:35] exiting program after receiving SIGTERM.\n"
"""What Megatron-Bridge prints after the save that a signal asked for."""


def nemo_line(index: int, total: int = 49, *, seconds: float = 2.693, tflops: float | None = None) -> str:
    suffix = "" if tflops is None else f" | TFLOPS_per_GPU: {tflops}"
    return (
        f"Training epoch 0, iteration {index}/{total} | lr: 4.491e-06 | global_batch_size: 256 | "
        f"global_step: {index} | peak_memory_usage: 72972500992 | memory_allocated: 34466545664 | "
        f"reduced_train_loss: 12.81 | train_step_timing in s: {seconds} | "
        f"consumed_samples: {256 * (index + 1)}{suffix}\n"
    )


def nemo_log(indices: Iterable[int] = range(50), total: int = 49) -> str:
    return "".join(nemo_line(index, total, tflops=527.8) for index in indices)


def nccl_lines(count: int) -> str:
    line = (
        "node001:1007:2007 [7] NCCL INFO AllReduce: opCount {:x} sendbuff 0x7ffb4713c200 recvbuff 0x7ffb4713c200 "
        "count 1 datatype 1 op 0 root 0 comm 0x55556b100660 [nranks=128] stream 0x5555630c58b0\n"
    )
    return "".join(map(line.format, range(count)))


def memory_print(rank: int, iterations: int, allocated: float, reserved: float) -> str:
    """What Megatron-Bridge prints of a rank that is the first of its replicas, in 10^9 bytes."""
    names = ("allocated", "active", "inactive", "reserved", "max-allocated", "max-active", "max-inactive")
    figures = [f"mem-{name}-gigabytes: {allocated if name == 'max-allocated' else 34.466}" for name in names]
    figures += [f"mem-max-reserved-gigabytes: {reserved}", "mem-alloc-retires: 0", "mem-allocated-count: 2718"]
    return f"[Rank {rank}] (after {iterations} iterations) memory (GB) | {' | '.join(figures)}\n"
