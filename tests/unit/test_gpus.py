"""The table of GPU types, and which type a product is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common import gpus


@pytest.mark.parametrize("gpu_type", [name for name, gpu in gpus.GPUS.items() if gpu.products])
def test_every_product_of_the_table_is_recognized(gpu_type: str) -> None:
    assert {gpus.type_of(product) for product in gpus.GPUS[gpu_type].products} == {gpu_type}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvidia_h100_80gb_hbm3", "h100"),  # as Slurm's AutoDetect=nvml calls it in a GRES
        ("H100", "h100"),
        ("h100-sxm5", "h100"),
        ("H100SXM", "h100"),
        ("nvidia_gb200", "gb200"),
        ("nvidia_b300_sxm6_ac", "b300"),
        ("NVIDIA H100", "h100"),
    ],
)
def test_other_spellings_of_a_known_gpu(name: str, kind: str) -> None:
    assert gpus.type_of(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e", "gh200"),
        *("NVIDIA H20", "NVIDIA H20-3e", "NVIDIA H800", "NVIDIA A100-SXM4-80GB"),
        *("NVIDIA H100 NVL", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "h100nvl", "nvidia_h100_pcie", "h200_nvl"),
        *("nvidia_h100_80gb_hbm3_1g.10gb", "NVIDIA B300 SXM6 AC MIG 1g.34gb"),
        "",
    ],
)
def test_relatives_with_a_similar_name_are_not_taken_for_a_known_gpu(name: str) -> None:
    assert gpus.type_of(name) is None


@pytest.mark.parametrize("gpu_type", gpus.GPUS)
def test_a_type_that_borrows_rows_borrows_them_of_its_own_generation(gpu_type: str) -> None:
    lender = gpus.GPUS[gpus.rows_of(gpu_type)]
    assert lender.rows_of is None
    assert lender.generation == gpus.GPUS[gpu_type].generation
    assert lender.memory_gb <= gpus.GPUS[gpu_type].memory_gb
    assert lender.per_node == gpus.GPUS[gpu_type].per_node


def test_no_gpu_of_the_table_is_among_the_others() -> None:
    assert not gpus.OTHERS & set(gpus.gpu_types())


def test_the_table_needs_nothing_that_is_to_be_installed(tmp_path: Path) -> None:
    library = Path(gpus.__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(library)!r}); import llmb_common.gpus as g; print(*g.gpu_types())"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == list(gpus.gpu_types()), done.stderr
