"""What doctor reports: each fault with its remedy, and nothing on a good site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.site.cluster import ClusterConfig, Engine, SlurmSettings
from llmb_install.detect import Site, parse_sinfo
from llmb_install.doctor.checks import Check, all_checks, limit_minutes
from llmb_install.doctor.facts import Facts, Node, ask_one_node, parse_node

NODE = Node(
    values=parse_node(
        "host=gpu1\narch=x86_64\nmemlock=unlimited\ngpu=NVIDIA H100 80GB HBM3, 580.65.06, 81559 MiB\n"
        "gpu=NVIDIA H100 80GB HBM3, 580.65.06, 81559 MiB\ncuda=13.0\nenroot=4.1.2\ninfiniband=mlx5_0\n"
        "infiniband=mlx5_1\npeermem=yes\ninstall=yes\nimages=yes\n"
    ),
    skew=0.2,
)
GOOD = Facts(
    config=ClusterConfig(
        cluster_type="slurm",
        gpu_type="h100",
        arch="x86_64",
        slurm=SlurmSettings(account="bench", gpu_partition="gpu", gres=True),
    ),
    install=Path("/"),
    image_folder=Path("/images"),
    site=Site(
        has_slurm=True,
        slurm_version="24.11.5",
        partitions=parse_sinfo("gpu*|up|4:00:00|8|gpu:h100:8(S:0-1)\nold|down|4:00:00|8|gpu:8\nshort|up|10:00|8|gpu:8"),
        accounts=("bench",),
        architectures=("x86_64",),
        gpu_type="h100",
        local_gpus=(),
    ),
    controller_is_up=True,
    mpi_types=("none", "pmix"),
    container_options=("container-image", "container-mount-home", "container-mounts", "container-writable"),
    slurm_config={"TaskPlugin": "task/cgroup,task/affinity", "EnforcePartLimits": "ALL"},
    has_accounting=True,
    local_enroot="4.1.2",
    has_unsquashfs=True,
    free_install=10**13,
    free_images=10**13,
    node=NODE,
)


def bad(facts: Facts) -> dict[str, Check]:
    return {check.name: check for check in all_checks(facts) if check.level != "ok"}


def _own_images(**values: list[str]) -> Facts:
    """With an image folder outside the installation; ``values`` of the node."""
    config = _config(image_folder="/images", slurm=GOOD.config.slurm)
    return replace(GOOD, config=config, node=replace(NODE, values=NODE.values | values))


def _config(**changes: object) -> ClusterConfig:
    base = {"cluster_type": "slurm", "gpu_type": "h100", "arch": "x86_64"}
    return ClusterConfig(**{**base, **changes})  # type: ignore[arg-type]


def settings(**changes: object) -> Facts:
    base = {"account": "bench", "gpu_partition": "gpu", "gres": True}
    return replace(GOOD, config=_config(slurm=SlurmSettings(**{**base, **changes})))  # type: ignore[arg-type]


def node(**changes: list[str]) -> Facts:
    return replace(GOOD, node=replace(NODE, values={**NODE.values, **changes}))


def test_a_good_site_has_no_findings() -> None:
    assert bad(GOOD) == {}
    assert len(all_checks(GOOD)) > 15


@pytest.mark.parametrize(
    ("facts", "name", "level", "remedy"),
    [
        (replace(GOOD, controller_is_up=False), "Slurm controller", "blocks", "scontrol ping"),
        (replace(GOOD, missing_commands=("srun",)), "Slurm commands", "blocks", "login node"),
        (replace(GOOD, mpi_types=("none", "pmi2")), "srun --mpi=pmix", "blocks", "slurm.mpi: none"),
        (settings(mpi="pmix_v9"), "srun --mpi=pmix_v9", "blocks", "slurm.mpi: none"),
        (replace(GOOD, container_options=()), "Pyxis", "blocks", "runtime"),
        (
            replace(GOOD, container_options=GOOD.container_options[:3]),
            "writing to an image's files",
            "blocks",
            "slurm.container_writable: false",
        ),
        (settings(container_writable=False), "writing to an image's files", "doubt", "the site forbids it"),
        (replace(GOOD, local_enroot=""), "Enroot on this machine", "doubt", "--install-method srun"),
        (replace(GOOD, has_unsquashfs=False), "unsquashfs", "blocks", "squashfs-tools"),
        (replace(GOOD, has_accounting=False), "account", "doubt", "accepted silently"),
        (replace(GOOD, slurm_config={"TaskPlugin": "task/none"}), "task plug-in", "doubt", "affinity"),
        (replace(GOOD, slurm_config=GOOD.slurm_config | {"EnforcePartLimits": "NO"}), "limits", "doubt", "forever"),
        (replace(GOOD, free_images=10**9), "space for images", "doubt", "image folder"),
        (settings(account="ann"), "account", "blocks", "slurm.account"),
        (settings(gpu_partition="nowhere"), "GPU partition", "blocks", "gpu, old, short"),
        (settings(gpu_partition="old"), "GPU partition", "blocks", "it is down"),
        (settings(gpu_partition="short"), "time limit of the partition", "blocks", "TIME_LIMIT"),
        (settings(gres=False), "GRES", "doubt", "slurm.gres: true"),
        (replace(GOOD, node=Node(error="none was free")), "a compute node", "doubt", "--no-compute-node"),
        (node(arch=["aarch64"]), "architecture", "blocks", "wrong architecture"),
        (node(gpu=[]), "GPUs of the node", "blocks", "driver"),
        (node(gpu=["NVIDIA B200, 580.1, 183359 MiB"]), "GPUs of the node", "doubt", "says h100"),
        (node(gpu=["NVIDIA H100 NVL, 580.1, 95830 MiB"]), "GPUs of the node", "doubt", "says h100"),
        (node(cuda=["12.4"]), "CUDA of the driver", "doubt", "update the driver"),
        (node(infiniband=[]), "InfiniBand or RoCE", "doubt", "TCP"),
        (node(peermem=[]), "GPUDirect RDMA", "doubt", "nvidia_peermem"),
        (node(memlock=["65536"]), "locked memory", "blocks", "unlimited"),
        (node(enroot=[]), "Enroot on the node", "blocks", "compute nodes"),
        (node(install=[]), "installation on the node", "blocks", "all nodes share"),
        (
            _own_images(images=[]),
            "images on the node",
            "blocks",
            "/images must be on a file system that all nodes share",
        ),
        (replace(GOOD, node=replace(NODE, skew=-240.0)), "clock of the node", "doubt", "time synchronization"),
    ],
)
def test_each_fault_is_named_with_its_remedy(facts: Facts, name: str, level: str, remedy: str) -> None:
    found = bad(facts)
    assert list(found) == [name]
    assert found[name].level == level
    assert remedy in found[name].remedy


def test_only_an_image_folder_of_its_own_is_looked_for_on_the_node() -> None:
    (check,) = [check for check in all_checks(_own_images()) if check.name == "images on the node"]
    assert (check.level, check.found) == ("ok", "readable")
    assert bad(node(images=[])) == {}, "the installation is seen"
    bare = _config(image_folder="/images", slurm=SlurmSettings(account="bench", gpu_partition="gpu", runtime="none"))
    assert "images on the node" not in bad(replace(node(images=[]), config=bare)), "jobs have no image"


def test_a_site_configured_without_pmix_has_no_findings() -> None:
    facts = replace(settings(mpi="none"), mpi_types=("none", "pmi2"))
    assert bad(facts) == {}
    assert "srun --mpi=none" in {check.name for check in all_checks(facts)}


def test_old_slurm_on_nvl72_racks() -> None:
    site = replace(GOOD.site, slurm_version="23.11.10")
    assert bad(replace(GOOD, site=site)) == {}
    facts = replace(GOOD, site=site, config=_config(gpu_type="gb200", slurm=GOOD.config.slurm), node=None)
    assert list(bad(facts)) == ["Slurm and NVL72 racks"]


def test_asking_for_gres_that_is_not_there() -> None:
    site = replace(GOOD.site, partitions=parse_sinfo("gpu|up|4:00:00|8|(null)"))
    assert bad(replace(GOOD, site=site))["GRES"].level == "blocks"


def test_a_machine_without_slurm() -> None:
    config = ClusterConfig(cluster_type="local", gpu_type="cpu", engine=Engine(python="/engine/bin/python"))
    assert bad(replace(GOOD, config=config)) == {}
    lacking = bad(replace(GOOD, config=ClusterConfig(cluster_type="local", gpu_type="h100")))
    assert {name: check.level for name, check in lacking.items()} == {
        "GPUs of this machine": "blocks",
        "training engine": "blocks",
    }


def test_time_limits() -> None:
    texts = ["30:00", "4:00:00", "1-00:00:00", "infinite"]
    assert [limit_minutes(text) for text in texts] == [30, 240, 1440, None]


def test_sruns_own_message_explains_why_no_node_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified"
    (tmp_path / "srun").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    node = ask_one_node(ClusterConfig(), tmp_path, tmp_path)
    assert node.error == (
        "no node answered: Unable to allocate resources: Invalid account or account/partition combination specified"
    )
