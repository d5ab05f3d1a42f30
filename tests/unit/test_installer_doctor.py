"""What doctor reports: each fault with its remedy, and nothing on a good site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import RecipeError
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.health.one_node import ContainerProbe, NodeReport, parse_values
from llmb_common.nodes.facts import Adapter, Folder, GpuState, HostFacts, NodeFacts, Snapshot, Software
from llmb_common.planning.site.cluster import ClusterConfig, Engine, cluster_config
from llmb_install.answers.detect import Site, parse_sinfo
from llmb_install.commands.doctor import DoctorCheck, all_checks
from llmb_install.commands.doctor_facts import Limits, SiteFacts, WorkloadNeeds, ask_a_node
from support.health_fleets import fleet
from support.texts import Texts

H100 = "NVIDIA H100 80GB HBM3"


def smi(*products: str, driver: str | None = "580.65.06", cuda: str | None = "13.0") -> Snapshot:
    return Snapshot(driver=driver, cuda=cuda, gpus=tuple(GpuState(product=product) for product in products))


NODE = NodeReport(
    facts=NodeFacts(
        "gpu1",
        machine=HostFacts(architecture="x86_64", adapters=(Adapter(name="mlx5_0"), Adapter(name="mlx5_1"))),
        before=smi(H100, H100),
        software=Software(
            enroot="4.1.2",
            unpacked=Folder("/raid", there=True, free=4096000000),
            roots=Folder("/raid", there=True, free=4096000000, kind="xfs"),
        ),
        folders=dict.fromkeys(("installation", "images", "workload"), Folder(there=True)),
    ),
    inside=ContainerProbe(
        parse_values("started=yes root=ext2/ext3 workloads=seen workloads=written gpu=0 gpu=1".split()),
        status=0,
        seconds=43.2,
    ),
    writes=True,
    skew=0.2,
)
GOOD = SiteFacts(
    config=cluster_config(
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
    slurm_config={"TaskPlugin": "task/cgroup,task/affinity", "EnforcePartLimits": "ALL", "KillWait": "30 sec"},
    workloads=(WorkloadNeeds("grok1", 30, 45, 300), WorkloadNeeds("nemotron4", 30, 30, 120)),
    limits=Limits(walls=(("QOS normal", 120),)),
    image=Path("/images/nemo.sqsh"),
    has_accounting=True,
    local_enroot="4.1.2",
    has_unsquashfs=True,
    free_install=10**13,
    free_images=10**13,
    node=NODE,
)


def bad(facts: SiteFacts) -> dict[str, DoctorCheck]:
    return {check.name: check for check in all_checks(facts) if check.level != "ok"}


def _own_images(there: bool = True) -> SiteFacts:
    """With an image folder outside the installation, which the node sees or does not."""
    config = _config(image_folder="/images", slurm=GOOD.config.slurm)
    return replace(GOOD, config=config, node=folders(images=Folder(there=there)).node)


def _config(**changes: object) -> ClusterConfig:
    base = {"cluster_type": "slurm", "gpu_type": "h100", "arch": "x86_64"}
    return cluster_config(**{**base, **changes})  # type: ignore[arg-type]


def settings(**changes: object) -> SiteFacts:
    base = {"account": "bench", "gpu_partition": "gpu", "gres": True}
    return replace(GOOD, config=_config(slurm=SlurmSettings(**{**base, **changes})))  # type: ignore[arg-type]


def looked(**changes: Any) -> NodeReport:
    """The good node, of which these looks gave something else."""
    return replace(NODE, facts=msgspec.structs.replace(NODE.facts, **changes))


def node(**changes: Any) -> SiteFacts:
    return replace(GOOD, node=looked(**changes))


def folders(**changes: Folder) -> SiteFacts:
    return node(folders={**NODE.facts.folders, **changes})


def within(**values: list[str]) -> SiteFacts:
    """In the container something else was said."""
    return replace(GOOD, node=replace(NODE, inside=replace(NODE.inside, values=NODE.inside.values | values)))


def network(**changes: object) -> SiteFacts:
    """A node with these properties of its system, otherwise healthy."""
    healthy = fleet()["n1"]
    system = msgspec.structs.replace(healthy.system, **{"open_driver": False, **changes})
    return node(system=system, machine=msgspec.structs.replace(healthy.machine, architecture="x86_64"))


def _preempting(grace: int) -> SiteFacts:
    return replace(
        GOOD, slurm_config=GOOD.slurm_config | {"PreemptMode": "REQUEUE"}, limits=replace(GOOD.limits, grace=grace)
    )


def _rack(version: str, *blocks: int) -> SiteFacts:
    """A good site of GB200 under that release of Slurm."""
    config = _config(gpu_type="gb200", slurm=GOOD.config.slurm)
    site = replace(GOOD.site, slurm_version=version)
    return replace(GOOD, site=site, config=config, limits=replace(GOOD.limits, blocks=blocks or None), node=None)


@pytest.mark.parametrize(
    ("facts", "name", "level", "found", "remedy"),
    [
        (replace(GOOD, recipe_error=RecipeError("recipe.yaml:3: no", remedy="correct it")), "recipes", "blocks",
         "recipe.yaml:3: no", "correct it"),
        (replace(GOOD, controller_is_up=False), "Slurm controller", "blocks", "does not answer", "scontrol ping"),
        (replace(GOOD, missing_commands=("srun",)), "Slurm commands", "blocks", "", "login node"),
        (replace(GOOD, mpi_types=("none", "pmi2")), "PMIx", "doubt", "none, pmi2", "all others need no PMIx"),
        (settings(mpi="pmix_v9"), "srun --mpi=pmix_v9", "blocks", "", "remove slurm.mpi"),
        (replace(GOOD, container_options=()), "Pyxis", "blocks", "srun has no --container-image", "runtime"),
        (replace(GOOD, container_options=GOOD.container_options[:3]), "writing to an image's files", "blocks", "",
         "slurm.container_writable: false"),
        (settings(container_writable=False), "writing to an image's files", "doubt",
         "slurm.container_writable is false", "the site forbids it"),
        (replace(GOOD, local_enroot=""), "Enroot on this machine", "doubt", "not found", "--install-method srun"),
        (replace(GOOD, has_unsquashfs=False), "unsquashfs", "blocks", "not found", "squashfs-tools"),
        (replace(GOOD, has_accounting=False), "account", "doubt", "Slurm accounting is not enabled",
         "accepted silently"),
        (replace(GOOD, slurm_config=GOOD.slurm_config | {"EnforcePartLimits": "NO"}), "limits", "doubt", "", "forever"),
        (replace(GOOD, free_images=10**9), "space for images", "doubt", "", "image folder"),
        (settings(account="ann"), "account", "blocks", "ann is not one of your accounts: bench", "slurm.account"),
        (settings(gpu_partition="nowhere"), "GPU partition", "blocks", "nowhere does not exist", "gpu, old, short"),
        (settings(gpu_partition="old"), "GPU partition", "blocks", "", "it is down"),
        (settings(gpu_partition="short"), "time limit", "blocks", "10 minutes, set by partition short", "TIME_LIMIT"),
        (replace(GOOD, limits=Limits(walls=(("QOS debug", 40),))), "time limit", "doubt", "", "(grok1 45)"),
        (replace(GOOD, limits=Limits(walls=(("QOS debug", 30),))), "time limit", "doubt", "", "(grok1 45)"),
        (replace(GOOD, limits=Limits(walls=(("QOS debug", 29),))), "time limit", "blocks", "",
         "grok1 45, nemotron4 30"),
        (_preempting(299), "time to save", "doubt", "", "CHECKPOINT_INTERVAL"),
        (folders(workload=Folder()), "workload folder on the node", "blocks", "", "all nodes mount"),
        (folders(workload=Folder(there=True, problem="no")), "workload folder on the node", "blocks", "", "read-write"),
        (within(workloads=["seen"]), "workload folder in the container", "blocks", "", "read-write"),
        (replace(GOOD, node=replace(NODE, writes=False)), "workload folder", "doubt", "", "LLMB_WORKLOAD"),
        (node(hung={"nvidia-smi": "killed"}), "programs of the node", "blocks", "", "drain gpu1"),
        (within(hung=["nvidia-smi"]), "programs of the node", "blocks", "", "kernel log"),
        (replace(GOOD, image=None), "the image on the node", "doubt", "", "llmb-install add"),
        (replace(GOOD, node=replace(NODE, inside=ContainerProbe())), "the image on the node", "blocks",
         "nemo.sqsh did not start in time: no message", "llmb-install verify"),
        (within(gpu=["0"]), "GPUs in the container", "blocks", "", "98-nvidia.sh"),
        (settings(gres=False), "GRES", "doubt", "Slurm has 8 GPUs per node, but jobs do not request them",
         "slurm.gres: true"),
        (replace(GOOD, site=replace(GOOD.site, partitions=parse_sinfo("gpu|up|4:00:00|8|gpu:h100:8,gpu:a100:1"))),
         "kinds of GPU", "doubt", "gpu has h100, a100: a job may get any of them", "SBATCH_GPUS_PER_NODE=h100:8"),
        (replace(GOOD, node=NodeReport(error="none was free")), "a compute node", "doubt", "", "--no-compute-node"),
        (node(machine=HostFacts(architecture="aarch64", adapters=NODE.facts.machine.adapters)), "architecture",
         "blocks", "", "wrong architecture"),
        (node(before=smi()), "GPUs of the node", "blocks", "nvidia-smi shows none", "driver"),
        (node(before=smi("NVIDIA B200")), "GPUs of the node", "doubt", "", "says h100"),
        (node(before=smi("NVIDIA H100 NVL")), "GPUs of the node", "doubt", "", "says h100"),
        (node(before=smi(H100, H100, cuda="12.4")), "CUDA of the driver", "doubt", "", "update the driver"),
        (node(machine=HostFacts(architecture="x86_64")), "InfiniBand or RoCE", "doubt", "no device", "TCP"),
        (network(peermem=False), "GPUDirect RDMA", "doubt",
         "neither nvidia_peermem nor the open driver: no GPUDirect RDMA", "nvidia_peermem"),
        (network(memlock=1 << 26), "locked memory", "blocks", "a process may lock only 67 MB of memory",
         "PropagateResourceLimitsExcept"),
        (node(software=Software()), "Enroot on the node", "blocks", "not found", "compute nodes"),
        (folders(installation=Folder()), "installation on the node", "blocks", "not visible", "all nodes share"),
        (_own_images(there=False), "images on the node", "blocks", "",
         "/images must be on a file system that all nodes share"),
        (replace(GOOD, node=replace(NODE, skew=-240.0)), "clock of the node", "doubt", "", "time synchronization"),
        (replace(GOOD, free_install=4 * 10**9), "space for the installation", "doubt", "4.0 GB free in /", ""),
        (replace(GOOD, missing_commands=("srun", "sbatch")), "Slurm commands", "blocks", "not found: srun, sbatch", ""),
        (replace(GOOD, mpi_types=()), "PMIx", "doubt", "nothing listed", "jobs with TP above 1"),
        (replace(GOOD, site=replace(GOOD.site, slurm_version="")), "Slurm version", "doubt", "unknown", ""),
        (replace(GOOD, site=replace(GOOD.site, slurm_version="21.07.9")), "Slurm version", "doubt", "21.07.9", ""),
        (settings(account=None), "account", "doubt", "none is set", ""),
        (settings(gpu_partition=None), "GPU partition", "doubt", "none is set", ""),
        (node(before=smi("NVIDIA H200", driver=None)), "GPUs of the node", "doubt", "1 x NVIDIA H200, driver ?", ""),
        (replace(GOOD, node=replace(NODE, skew=5.1)), "clock of the node", "doubt", "+5.1 s from ours", ""),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_remedy(facts: SiteFacts, name: str, level: str, found: str, remedy: str) -> None:
    """``found`` is empty where another test looks at it."""
    (check,) = bad(facts).values()
    assert (check.name, check.level) == (name, level)
    assert check.found == (found or check.found)
    assert check.remedy
    assert remedy in check.remedy


def test_only_an_image_folder_of_its_own_is_looked_for_on_the_node() -> None:
    (check,) = [check for check in all_checks(_own_images()) if check.name == "images on the node"]
    assert (check.level, check.found) == ("ok", "readable")
    assert bad(folders(images=Folder())) == {}, "the installation is seen"
    slurm = SlurmSettings(account="bench", gpu_partition="gpu", runtime="none")
    bare = _config(image_folder="/images", slurm=slurm)
    assert "images on the node" not in bad(replace(folders(images=Folder()), config=bare)), "jobs have no image"


def test_a_site_configured_without_pmix_has_no_findings() -> None:
    facts = replace(settings(mpi="none"), mpi_types=("none", "pmi2"))
    assert bad(facts) == {}
    assert "srun --mpi=none" in {check.name for check in all_checks(facts)}


@pytest.mark.parametrize(
    ("version", "blocks", "found"),
    [
        ("23.11.10", (18, 18), "23.11.10"),
        ("24.05.0", (), "topology/block"),
        ("25.05.4", (18, 16), "16"),
    ],
)
def test_slurm_that_cannot_keep_segments_in_racks(version: str, blocks: tuple[int, ...], found: str) -> None:
    (check,) = bad(_rack(version, *blocks)).values()
    assert (check.name, check.level, found in check.found.replace(":", "").split()) == (
        "Slurm and NVL72 racks",
        "doubt",
        True,
    )
    assert check.remedy


@pytest.mark.parametrize(("version", "blocks"), [("24.05.0", (18, 18)), ("24.11.5", (20,)), ("25.11.0", (16, 18))])
def test_slurm_that_can(version: str, blocks: tuple[int, ...], texts: Texts) -> None:
    assert bad(_rack(version, *blocks)) == {}
    (check,) = [check for check in all_checks(_rack(version, *blocks)) if check.name == "Slurm and NVL72 racks"]
    texts(check.found)


def test_only_racks_ask_for_segments() -> None:
    assert bad(replace(GOOD, site=replace(GOOD.site, slurm_version="23.11.10"))) == {}


def test_time_to_save_matters_where_jobs_are_preempted(texts: Texts) -> None:
    assert bad(_preempting(300)) == {}
    nothing_to_save = all_checks(replace(_preempting(0), workloads=()))
    assert "time to save" not in {check.name for check in nothing_to_save}
    assert bad(replace(_preempting(0), slurm_config=GOOD.slurm_config | {"PreemptMode": "OFF"})) == {}
    (check,) = [check for check in all_checks(GOOD) if check.name == "time to save"]
    texts(check.found)


def _failed(status: int | None, *lines: str) -> str:
    """What is found of an image that did not start."""
    inside = ContainerProbe(lines=lines, status=status)
    return bad(replace(GOOD, node=replace(NODE, inside=inside)))["the image on the node"].found


def test_why_an_image_does_not_start(tmp_path: Path, texts: Texts) -> None:
    said = ["slurmstepd: error: pyxis: couldn't start container", "srun: error: gpu1: task 0: Exited with exit code 1"]
    texts(_failed(1, *said))
    texts(_failed(1, *said[1:]))
    for late in (124, 137, None):
        texts(_failed(late))


def test_room_to_unpack_an_image(tmp_path: Path) -> None:
    image = tmp_path / "nemo.sqsh"
    image.write_bytes(b"x" * 8193)
    short = looked(software=Software(enroot="4.1.2", unpacked=Folder("/raid", there=True, free=8192)))
    facts = replace(GOOD, image=image, node=short)
    assert bad(facts) == {}, "it has started, so there was room"
    failed = replace(short, inside=ContainerProbe())
    found = bad(replace(facts, node=failed))["room to unpack the image"]
    assert (found.level, "ENROOT_DATA_PATH" in found.remedy, "/raid" in found.found) == ("blocks", True, True)
    mounted = replace(facts, node=replace(short, inside=ContainerProbe({"root": ["overlayfs"]})))
    assert "room to unpack the image" not in {check.name for check in all_checks(mounted)}


@pytest.mark.parametrize(
    "roots",
    [
        None,
        Folder("/home/u", there=True, free=10**12, kind="nfs"),
        Folder("/home/u", there=True, free=10**12),
        Folder("/raid", there=True, free=16385, kind="xfs"),
    ],
)
def test_an_image_that_enroot_mounts_is_lost_with_a_preemption(
    tmp_path: Path, roots: Folder | None, texts: Texts
) -> None:
    image = tmp_path / "nemo.sqsh"
    image.write_bytes(b"x" * 8193)
    facts = replace(
        settings(runtime="enroot"), image=image, node=looked(software=Software(enroot="4.1.2", roots=roots))
    )
    assert bad(facts) == {}, "nobody preempts here"
    found = bad(replace(facts, slurm_config=_preempting(300).slurm_config, limits=replace(GOOD.limits, grace=300)))
    assert {name: check.level for name, check in found.items()} == {"saving when preempted": "doubt"}
    (check,) = found.values()
    texts(check.found)
    texts(check.remedy)


def test_without_containers_the_engine_is_started_on_the_node() -> None:
    engine = Engine(python="/a/python", releases={"0.6": "/b/python"})
    slurm = SlurmSettings(account="bench", gpu_partition="gpu", gres=True, runtime="none")
    for known, level in ((("/a/python", "/b/python"), None), (("/a/python",), "blocks"), ((), "blocks")):
        config = _config(slurm=slurm, engine=engine)
        found = bad(replace(GOOD, config=config, node=looked(software=Software(starts=known))))
        assert {name: check.level for name, check in found.items()} == (
            {"training engine on the node": level} if level else {}
        )
    (check,) = bad(replace(GOOD, config=_config(slurm=slurm))).values()
    assert (check.name, check.found.split()[0]) == ("training engine on the node", "none")


def test_slurms_own_message_explains_why_no_node_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    said = "salloc: error: Unable to allocate resources: Invalid account or account/partition combination specified"
    (tmp_path / "salloc").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "salloc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    node = ask_a_node(cluster_config(), tmp_path, tmp_path)
    texts(node.error)
