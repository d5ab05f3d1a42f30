"""What is found out of a machine, and cluster_config.yaml: a mistake is reported with its key."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from llmb_common.base.errors import ConfigError
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import ClusterConfig, cluster_config, load_cluster_config
from llmb_common.planning.site.machine import Machine, detect_machine
from support.texts import Texts


class Programs:
    """The only programs of a machine."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        patch.setenv("PATH", str(folder))

    def has(self, name: str, *lines: str, status: int = 0) -> None:
        said = "".join(f"echo '{line}'\n" for line in lines)
        self.runs(name, f"{said}exit {status}")

    def runs(self, name: str, script: str) -> None:
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


def look(cluster: ClusterConfig | None = None, **variables: str) -> Machine:
    return detect_machine(cluster or cluster_config(), read_request(variables))


def test_a_laptop_has_a_cpu(programs: Programs) -> None:
    assert look() == Machine(cluster_type="local", gpu_type="cpu")


@pytest.mark.parametrize(
    ("product", "gpu_type"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_the_driver_names_the_gpus(programs: Programs, product: str, gpu_type: str | None) -> None:
    programs.has("nvidia-smi", product, product)
    programs.has("nsys")
    assert look() == Machine(cluster_type="local", gpu_type=gpu_type, gpus=2, has_nsys=True)


def test_a_driver_that_cannot_see_a_gpu_shows_none(programs: Programs) -> None:
    programs.has("nvidia-smi", "NVIDIA-SMI has failed because it could not communicate with the driver.", status=9)
    assert look() == Machine(cluster_type="local", gpu_type="cpu", gpus=0)


@pytest.mark.parametrize("who", ["request", "site"])
def test_who_asks_for_a_cpu_is_not_asked_about_gpus(programs: Programs, who: str) -> None:
    programs.has("nvidia-smi", "NVIDIA H100 80GB HBM3")
    programs.has("nsys")
    asked = {"GPU_TYPE": "cpu"} if who == "request" else {}
    seen = look(cluster_config(gpu_type="cpu" if who == "site" else None), **asked)
    assert seen == Machine(cluster_type="local", gpu_type="cpu", gpus=0, has_nsys=True)


def test_slurm_is_where_its_client_is_unless_somebody_says_otherwise(programs: Programs) -> None:
    programs.has("sbatch", "slurm 24.05.0")
    assert look().cluster_type == "slurm"
    assert look(CLUSTER_TYPE="local").cluster_type == "local"
    assert look(cluster_config(cluster_type="local")).cluster_type == "local"
    assert look(cluster_config(cluster_type="local"), CLUSTER_TYPE="slurm").cluster_type == "slurm"


def test_without_a_client_only_a_dry_run_can_mean_slurm(programs: Programs) -> None:
    large = {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8"}
    assert look(**large).cluster_type == "local"
    assert look(DRY_RUN="true", **large).cluster_type == "slurm"
    assert look(DRY_RUN="true").cluster_type == "local"
    assert look(DRY_RUN="true", GPU_TYPE="h100").cluster_type == "local"
    assert look(DRY_RUN="true", GPU_TYPE="cpu", JOB_TOTAL_GPUS="2").cluster_type == "local"
    for slurms in ({"SBATCH_ACCOUNT": "a"}, {"SBATCH_PARTITION": "p"}, {"ADDITIONAL_SLURM_PARAMS": "qos=a"}):
        assert look(DRY_RUN="true", **slurms).cluster_type == "slurm"
        assert look(**slurms).cluster_type == "local"
    assert look(CLUSTER_TYPE="slurm").release > (999, 0), "nobody to ask"


@pytest.mark.parametrize(("version", "release"), [("slurm 24.05.0", (24, 5)), ("22.05.8-bcm", (22, 5)), ("", (0, 0))])
def test_the_schedulers_program_says_its_release(programs: Programs, version: str, release: tuple[int, int]) -> None:
    programs.has("sbatch", version)
    assert look()._replace(mpi_types=tuple) == Machine(cluster_type="slurm", release=release)


def test_the_program_is_asked_once_and_again_when_it_was_replaced(programs: Programs, tmp_path: Path) -> None:
    sbatch, calls = tmp_path / "sbatch", tmp_path / "calls"
    for at, version in enumerate(["23.11.1", "24.05.0"]):
        sbatch.write_text(f"#!/bin/sh\necho x >>'{calls}'\necho 'slurm {version}'\n")
        sbatch.chmod(0o755)
        os.utime(sbatch, (at, at))
        for _ in range(3):
            machine = look()
            assert machine.release == tuple(map(int, version.split(".")[:2]))
        assert calls.read_text() == "x\n" * (at + 1)


def test_the_driver_is_asked_once_and_again_where_it_found_none_or_was_replaced(
    programs: Programs, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    for at, (product, asked) in enumerate([("", 3), ("NVIDIA H100 80GB HBM3", 4), ("NVIDIA B200", 5)]):
        programs.runs("nvidia-smi", f"echo x >>'{calls}'\n" + (f"echo '{product}'" if product else "exit 9"))
        os.utime(tmp_path / "nvidia-smi", (at, at))
        types = {look().gpu_type for _ in range(3)}
        assert types == {{"": "cpu", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA B200": "b200"}[product]}
        assert calls.read_text() == "x\n" * asked


@pytest.mark.parametrize(
    ("lines", "types"),
    [
        (
            ("MPI plugin types are...", "\tnone", "\tpmix", "specific pmix plugin versions available: pmix_v4"),
            ("none", "pmix", "pmix_v4"),
        ),
        (("none pmi2 cray_shasta",), ("cray_shasta", "none", "pmi2")),
        (("none openmpi pmix_v3 nonesuch",), ("none", "openmpi", "pmix_v3")),
        ((), ()),
    ],
)
def test_slurm_says_how_it_can_start_ranks(programs: Programs, lines: tuple[str, ...], types: tuple[str, ...]) -> None:
    programs.has("sbatch", "slurm 24.05.0")
    programs.has("srun", *lines)
    assert look().mpi_types() == types


def test_slurm_22_lists_them_on_standard_error(programs: Programs) -> None:
    programs.has("sbatch", "slurm 22.05.8")
    programs.runs("srun", 'test "$*" = --mpi=list && echo "none pmix" >&2')
    assert look().mpi_types() == ("none", "pmix")


def test_it_is_asked_once_and_only_if_somebody_needs_to_know(programs: Programs, tmp_path: Path) -> None:
    programs.has("sbatch", "slurm 24.05.0")
    calls = tmp_path / "calls"
    programs.runs("srun", f"echo x >>'{calls}'; echo pmix")
    machines = [look() for _ in range(3)]
    assert not calls.exists()
    assert [machine.mpi_types() for machine in machines] == [("pmix",)] * 3
    assert calls.read_text() == "x\n"


def test_without_slurm_nobody_says(programs: Programs) -> None:
    assert look(CLUSTER_TYPE="slurm").mpi_types() == look().mpi_types() == ()
    programs.has("sbatch", "slurm 24.05.0")
    assert look().mpi_types() == (), "no srun here"


def load(folder: Path, text: str) -> ClusterConfig:
    (folder / "cluster_config.yaml").write_text(text, encoding="utf-8")
    return load_cluster_config(folder)


def test_without_a_file_or_a_folder_there_are_defaults(tmp_path: Path) -> None:
    assert load_cluster_config(None) == load_cluster_config(tmp_path / "none") == cluster_config()


def test_a_whole_file(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "schema: 1\ngpu_type: h100\nslurm: {account: a-b, gpu_partition: p1, gres: true, additional_params: qos=low}\n"
        "engine: {python: /opt/e/bin/python}\nmounts: ['/data:/data:ro']\nenvironment: {NCCL_IB_HCA: 'mlx5_0:1'}\n",
    )
    assert config.environment == {"NCCL_IB_HCA": "mlx5_0:1"}
    assert config.mounts == ("/data:/data:ro",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "schema: 2",
        "gpu_type: h1000",
        "gpu_type: 100",
        "gpu_type: a100",
        "gpus_per_node: 0",
        "gpus_per_node: eight",
        "slurm:\n  gres: maybe",
        "slurm:\n  runtime: docker",
        "cluster_type: slrum",
        "slurm: batch",
        "slurm:",
        "mounts: /data",
        "environment: {A: }",
        "environment: {B: ok, A: 1}",
        "environment: {HF_TOKEN: 31415}",
        "slurm: {mpi: 'pmix --uid=0'}",
        "slurm: {mpi: ''}",
        "checkpoint_gb_per_second: fast",
        "health: {all_reduce_gb_per_s: 0}",
        "health: {pair: 40}",
        "slurm: {account: 'a b'}",
        'slurm: {gpu_partition: "p\\n#SBATCH --uid=0"}',
        "environment: {1A: x}",
        "environment: {Ü: x}",
        "environment: {NCCL_DEBUG: 1}",
        'environment: {A: "x\\ny"}',
        "environment: {HF_TOKEN: hf_canary}",
        "engine: {python: bin/python}",
        'engine: {releases: {"0.6": "/opt/python\\nrm"}}',
        "image_folder: images",
        "mounts: [data]",
        "acount: a",
        "slurm: {acount: x}",
        "a: 1\na: 2",
        "slurm: [",
    ],
)
def test_a_mistake_is_one_message_with_the_file_and_the_key(tmp_path: Path, text: str, texts: Texts) -> None:
    with texts.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert "cluster_config.yaml" in str(caught.value)
    assert "hf_canary" not in str(caught.value)
    assert caught.value.remedy or "YAML" in str(caught.value) or text in ("", "[]")
    assert not text or re.search(r"cluster_config\.yaml:[1-9]", str(caught.value)), "the line"
    assert caught.value.exit_status == 2


def test_an_inaccessible_file_gives_no_traceback(tmp_path: Path, texts: Texts) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster_config(Path("/" + "x" * 300))
    texts(caught.value, mask="x{300}")
    (tmp_path / "cluster_config.yaml").mkdir()
    with texts.raises(ConfigError):
        load_cluster_config(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "cluster_config.yaml").write_bytes(b"repo: \xff")
    with texts.raises(ConfigError):
        load_cluster_config(other)
