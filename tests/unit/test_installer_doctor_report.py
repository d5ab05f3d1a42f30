"""doctor from end to end: what it asks, what it makes of the answers, and the report."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_installer_doctor import GOOD, H100, NODE, bad, folders, looked, network, node, settings, smi

from llmb_common.base.errors import RecipeError, SchedulerError
from llmb_common.base.programs import Answer
from llmb_common.executors.base import NodeRequest
from llmb_common.executors.slurm.executor import SlurmExecutor
from llmb_common.executors.slurm.hold import salloc_command
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.health.one_node import NodeReport
from llmb_common.nodes.facts import Adapter, Folder, HostFacts, Snapshot
from llmb_common.planning.site.cluster import ClusterConfig, Engine, cluster_config
from llmb_install.answers.detect import parse_sinfo
from llmb_install.commands import doctor as checks
from llmb_install.commands.doctor import all_checks, doctor
from llmb_install.commands.doctor_facts import SLURM_COMMANDS, Limits, SiteFacts, ask_a_node, gather_facts, slurm_limits
from llmb_train.nodes.ask import frames
from support.texts import Texts

GOOD_REPORT = {
    "space for the installation": "10.0 TB free in /",
    "space for images": "10.0 TB free in /images",
    "Slurm version": "24.11.5",
    "Slurm controller": "answers",
    "PMIx": "none, pmix",
    "GPU partition": "gpu: 8 nodes of 8 GPUs, limit 4:00:00",
    "GRES": "8 GPUs per node",
    "account": "bench",
    "time limit": "120 minutes, set by QOS normal",
    "time to save": "30 s when a job is preempted or cancelled; saving takes up to 300 s (grok1)",
    "task plug-in": "task/cgroup,task/affinity",
    "Pyxis": "srun has its options",
    "writing to an image's files": "jobs may",
    "Enroot on this machine": "4.1.2",
    "a compute node": "gpu1",
    "architecture": "x86_64",
    "GPUs of the node": "2 x NVIDIA H100 80GB HBM3, driver 580.65.06",
    "CUDA of the driver": "13.0",
    "InfiniBand or RoCE": "mlx5_0, mlx5_1",
    "Enroot on the node": "4.1.2",
    "installation on the node": "visible",
    "workload folder on the node": "writable",
    "workload folder in the container": "writable",
    "the image on the node": "nemo.sqsh started, 43 s in all",
    "room to unpack the image": "4.1 GB free at /raid of the node, for about 0 B",
    "GPUs in the container": "2 of 2",
    "clock of the node": "+0.2 s from ours",
}


def report(facts: SiteFacts) -> dict[str, str]:
    return {check.name: check.found for check in all_checks(facts)}


def on_slurm(**changes: Any) -> SiteFacts:
    return replace(GOOD, config=cluster_config(**{"cluster_type": "slurm", "slurm": GOOD.config.slurm, **changes}))


def test_a_good_site_is_described_check_by_check() -> None:
    assert report(GOOD) == GOOD_REPORT
    assert {(check.level, check.remedy) for check in all_checks(GOOD)} == {("ok", "")}
    assert "GPUs of the node" not in report(replace(on_slurm(gpu_type="cpu"), node=looked(before=smi())))


@pytest.mark.parametrize(
    "facts",
    [
        replace(GOOD, free_install=5 * 10**9),
        replace(GOOD, free_images=25 * 10**9),
        replace(GOOD, site=replace(GOOD.site, slurm_version="21.08.0")),
        replace(GOOD, site=replace(GOOD.site, accounts=())),
        replace(GOOD, node=replace(NODE, skew=-5.0)),
        replace(GOOD, node=replace(NODE, skew=None)),
        replace(GOOD, node=None),
        replace(GOOD, install=Path("/not/there"), node=folders(installation=Folder()).node),
        replace(GOOD, site=replace(GOOD.site, partitions=parse_sinfo("gpu|up|45:00|1|gpu:8"))),
        replace(GOOD, site=replace(GOOD.site, partitions=parse_sinfo("gpu|up|infinite|1|gpu:1"))),
        node(before=smi(H100, H100, cuda=None)),
        node(machine=HostFacts(architecture="x86_64", adapters=(Adapter(name="mlx5_0"),))),
        network(memlock=None),
        network(memlock=1 << 35, peermem=None),
        network(peermem=False, open_driver=True),
        on_slurm(gpu_type=None, arch=None),
        on_slurm(gpu_type="h100", cluster_type=None),
        replace(on_slurm(gpu_type="cpu"), node=looked(before=smi("Tesla V100"))),
    ],
)
def test_what_is_just_enough_is_no_finding(facts: SiteFacts) -> None:
    assert bad(facts) == {}


def test_a_site_without_gpus_in_slurm_does_not_ask_for_them(texts: Texts) -> None:
    facts = replace(settings(gres=False), site=replace(GOOD.site, partitions=parse_sinfo("gpu|up|4:00:00|8|(null)")))
    assert bad(facts) == {}
    texts(report(facts)["GRES"])


def test_a_fault_that_hides_others_is_named_alone(texts: Texts) -> None:
    """Without its controller nothing more is known of Slurm; without InfiniBand nobody needs a module for it."""
    down = report(replace(GOOD, controller_is_up=False, node=None))
    assert set(GOOD_REPORT) - set(down) == {
        *("PMIx", "GPU partition", "GRES", "account", "time limit", "time to save", "task plug-in", "Pyxis"),
        *list(GOOD_REPORT)[list(GOOD_REPORT).index("a compute node") :],
    }
    assert list(bad(node(machine=HostFacts(architecture="x86_64")))) == ["InfiniBand or RoCE"]
    assert list(bad(replace(GOOD, local_enroot="", has_unsquashfs=False))) == ["Enroot on this machine"]
    silent = bad(node(before=Snapshot(missing="nvidia-smi did not answer in time"), hung={"nvlink": "killed"}))
    texts(silent["programs of the node"].found)
    assert list(silent) == ["GPUs of the node", "programs of the node"]
    assert "GPU partition" not in report(replace(GOOD, missing_commands=("srun",), controller_is_up=False))


@pytest.mark.parametrize(
    ("runtime", "gone"),
    [
        ("enroot", {"Pyxis", "room to unpack the image"}),
        (
            "none",
            {
                *("Pyxis", "space for images", "writing to an image's files", "Enroot on this machine"),
                *("Enroot on the node", "the image on the node", "room to unpack the image", "GPUs in the container"),
            },
        ),
    ],
)
def test_what_the_runtime_does_not_need_is_not_checked(runtime: str, gone: set[str]) -> None:
    facts = replace(settings(runtime=runtime), container_options=(), has_unsquashfs=runtime == "enroot")
    engine = Engine(python="/a/python")
    facts = replace(
        facts,
        config=msgspec.structs.replace(facts.config, engine=engine),
        node=looked(software=msgspec.structs.replace(NODE.facts.software, starts=("/a/python",))),
    )
    assert bad(facts) == {}
    assert set(GOOD_REPORT) - set(report(facts)) == gone
    assert ("/raid" in report(facts).get("saving when preempted", "")) == (runtime == "enroot")


def test_a_machine_without_slurm_is_described() -> None:
    engine = Engine(python="/a/python", releases={"0.6": "/b/python"})
    facts = replace(
        GOOD,
        config=cluster_config(cluster_type="local", gpu_type="h100", engine=engine),
        site=replace(GOOD.site, local_gpus=("NVIDIA H100", "NVIDIA H100")),
    )
    assert report(facts) == {
        "space for the installation": "10.0 TB free in /",
        "GPUs of this machine": "NVIDIA H100, NVIDIA H100",
        "training engine": "/a/python, /b/python",
    }
    assert bad(facts) == {}
    none = bad(replace(GOOD, config=cluster_config(cluster_type="local", gpu_type="h100", engine=Engine())))
    assert {name: check.found.split()[0] for name, check in none.items()} == {
        "GPUs of this machine": "none",
        "training engine": "none",
    }
    assert "engine.python" in none["training engine"].remedy
    unsaid = bad(replace(GOOD, config=cluster_config(cluster_type="local", engine=engine)))
    assert unsaid == {}, "nobody has said that there are GPUs"


@pytest.mark.parametrize("writable", [True, False])
def test_without_slurm_a_folder_of_runs_that_is_closed_is_a_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    (tmp_path / "workloads").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    config = cluster_config(cluster_type="local", engine=Engine(python="/a/python"))
    facts = replace(GOOD, install=tmp_path, config=config)
    (check,) = [check for check in all_checks(facts) if check.name == "workload folder"]
    assert (check.level, "LLMB_WORKLOAD" in check.remedy) == (("ok", False) if writable else ("doubt", True))


# What is asked


SAID = {
    "scontrol ping": "Slurmctld(primary) at login is UP\n",
    "scontrol show config": "Configuration data as of x\nTaskPlugin              = task/affinity\nA = b = c\n"
    "AccountingStorageType   = accounting_storage/slurmdbd\n",
    "srun --help": "--container-image --container-mounts --container-mount-home --container-writable",
    "enroot version": "4.1.2\n",
    "sinfo -h -o %P|%a|%l|%D|%G": "gpu*|up|4:00:00|8|gpu:h100:8\n",
}


def on_node(**more: Any) -> Answer:
    """What the program on a node says that cannot look at anything."""
    said = {"node": "gpu1", "ended": time.time() + 100, "looks": {}, **more}
    return Answer(0, "\n".join(frames("gpu1", said)).encode())


class Machine:
    """Programs with answers; ``asked`` are the words of each question."""

    def __init__(self) -> None:
        self.said = dict(SAID)
        self.on_path = {*SLURM_COMMANDS, "unsquashfs"}
        self.node: Answer | SchedulerError = on_node()
        self.asked: list[list[str]] = []
        self.wanted: list[NodeRequest] = []
        self.nodes = ("gpu1",)

    @contextlib.contextmanager
    def hold(self, wanted: NodeRequest) -> Iterator[Machine]:
        self.wanted.append(wanted)
        if isinstance(self.node, SchedulerError):
            raise self.node
        yield self

    def run(self, argv: Sequence[str], seconds: float, **more: object) -> Answer:
        assert isinstance(self.node, Answer)
        return self.node

    def ask(self, argv: Sequence[str], seconds: float) -> Answer:
        self.asked.append(list(argv))
        text = self.said.get(" ".join(argv))
        return Answer(1) if text is None else Answer(0, text.encode())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine()
    monkeypatch.setattr("llmb_install.answers.detect.run_program", machine.ask)
    monkeypatch.setattr(SlurmExecutor, "hold", staticmethod(machine.hold))
    monkeypatch.setattr("llmb_install.commands.doctor_facts.mpi_types", lambda: ("none", "pmix"))
    monkeypatch.setattr("shutil.which", lambda name: name if name in machine.on_path else None)
    monkeypatch.setattr("llmb_install.commands.doctor_facts.free_bytes", lambda folder: len(str(folder)))
    monkeypatch.setattr("llmb_install.commands.doctor_facts.load_recipes", lambda clone: {})
    return machine


CONFIG = cluster_config(cluster_type="slurm", slurm=SlurmSettings(account="a", gpu_partition="gpu"))
INSTALL, CLONE = Path("/an/install"), Path("/a/clone")


def test_a_cluster_is_asked_for_everything(machine: Machine) -> None:
    found = gather_facts(CONFIG, INSTALL, CLONE, ask_node=True)
    assert found.site.has_slurm
    assert replace(found, site=GOOD.site) == SiteFacts(
        config=CONFIG,
        install=INSTALL,
        image_folder=INSTALL / "images",
        site=GOOD.site,
        controller_is_up=True,
        mpi_types=("none", "pmix"),
        container_options=("container-image", "container-mount-home", "container-mounts", "container-writable"),
        slurm_config={
            **{"TaskPlugin": "task/affinity", "A": "b = c"},
            "AccountingStorageType": "accounting_storage/slurmdbd",
        },
        has_accounting=True,
        local_enroot="4.1.2",
        has_unsquashfs=True,
        free_install=len("/an/install"),
        free_images=len("/an/install/images"),
        node=found.node,
    )
    assert found.node is not None
    assert (found.node.facts.host, found.node.facts.seconds) == ("gpu1", {})


def test_a_broken_recipe_is_a_finding_and_not_the_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(clone: Path) -> dict[str, Any]:
        raise RecipeError("recipe.yaml:3: no")

    monkeypatch.setattr("llmb_install.commands.doctor_facts.load_recipes", broken)
    found = gather_facts(CONFIG, INSTALL, CLONE, ask_node=False)
    assert found.recipe_error is not None
    assert (found.controller_is_up, found.workloads) == (True, ())


def test_a_block_whose_nodes_cannot_be_counted_is_left_out(machine: Machine) -> None:
    machine.said["scontrol show topology"] = "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[1-\n"
    assert slurm_limits(CONFIG, has_accounting=False).blocks == (4,)


def test_nothing_is_asked_of_a_controller_that_is_down(machine: Machine) -> None:
    machine.said["scontrol ping"] = "Slurmctld(primary) at login is DOWN\n"
    found = gather_facts(CONFIG, INSTALL, CLONE, ask_node=True)
    assert (found.controller_is_up, found.mpi_types, found.container_options) == (False, (), ())
    assert (found.slurm_config, found.has_accounting, found.node) == ({}, False, None)
    assert ["scontrol", "show", "config"] not in machine.asked


def test_a_node_is_only_asked_where_that_was_wanted(machine: Machine) -> None:
    assert gather_facts(CONFIG, INSTALL, CLONE, ask_node=False).node is None


@pytest.mark.parametrize("case", ["local", "no Slurm"])
def test_without_slurm_its_controller_is_not_asked(machine: Machine, case: str) -> None:
    if case == "no Slurm":
        machine.on_path = {"sinfo"}
    config = cluster_config(cluster_type="local") if case == "local" else CONFIG
    found = gather_facts(config, INSTALL, CLONE, ask_node=True)
    assert not found.controller_is_up
    assert ["scontrol", "ping"] not in machine.asked
    missing = {*SLURM_COMMANDS} - machine.on_path
    assert {*found.missing_commands} == missing
    assert found.has_unsquashfs is (case == "local")


def test_a_site_that_says_nothing_of_itself_is_asked_as_a_slurm_site(machine: Machine) -> None:
    machine.said["scontrol show config"] = "AccountingStorageType = (null)\n"
    config = cluster_config(image_folder="/shared")
    found = gather_facts(config, INSTALL, CLONE, ask_node=False)
    assert (found.controller_is_up, found.has_accounting) == (True, False)
    assert (found.image_folder, found.free_images) == (Path("/shared"), len("/shared"))


@pytest.mark.parametrize(("per_node", "gres"), [(4, "--gres=gpu:4"), (None, "--gres=gpu:1")])
def test_the_job_on_a_node_asks_for_gpus_as_jobs_do(machine: Machine, per_node: int | None, gres: str) -> None:
    slurm = SlurmSettings(account="bench", gpu_partition="gpu", gres=True, additional_params="qos=high")
    ask_a_node(cluster_config(gpus_per_node=per_node, slurm=slurm), Path("/i"), Path("/m"))
    (wanted,) = machine.wanted
    assert {gres, "--account=bench", "--partition=gpu", "--qos=high"} <= {*salloc_command(wanted, wanted.scheduler)}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (SchedulerError("Slurm gives no nodes: one; two"), "one; two"),
        (Answer(1, stderr=b"srun: error: gone\n"), "srun: error: gone"),
        (Answer(None, problem="no-answer", why="srun did not answer in 120 s"), "srun did not answer in 120 s"),
        (Answer(0, b"LLMB-HEALTH gpu1 no-python\n"), "Python"),
    ],
)
def test_why_no_node_answered(machine: Machine, answer: Answer | SchedulerError, error: str) -> None:
    machine.node = answer
    found = ask_a_node(CONFIG, Path("/i"), Path("/m"))
    assert error in found.error
    assert found == NodeReport(error=found.error)


@pytest.mark.parametrize("ended", [None, "soon"])
def test_a_node_without_a_clock_is_not_judged_by_it(machine: Machine, ended: object) -> None:
    assert round(ask_a_node(CONFIG, Path("/i"), Path("/m")).skew or 0) == 100
    machine.node = on_node(ended=ended)
    assert ask_a_node(CONFIG, Path("/i"), Path("/m")).skew is None


# What Slurm and the recipes say of limits


SACCTMGR = "sacctmgr -nP show"


def test_the_limits_of_partition_association_and_qos(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmb_install.answers.detect.user_name", lambda _: "ann")
    machine.said |= {
        "scontrol show partition gpu --oneliner": "PartitionName=gpu GraceTime=90 QoS=part MaxTime=04:00:00\n",
        f"{SACCTMGR} associations user=ann account=a format=cluster,partition,maxwall,defaultqos": "c||1-00:00:00|\n"
        "other||5:00|\nc|cpu|1:00|x\n",
        "scontrol show config": "ClusterName             = c\n",
        f"{SACCTMGR} qos format=name,maxwall,gracetime": "normal|02:00:00|00:02:00\npart||00:00:00\nx|00:10:00|\n",
        "scontrol show topology": "BlockName=b0 BlockIndex=0 Nodes=g[1-18] BlockSize=18\n"
        "AggregatedBlock=b0,b1 BlockSize=36\nBlockName=b1 BlockIndex=1 Nodes=g[19-34]\n",
    }
    found = slurm_limits(CONFIG, has_accounting=True)
    assert found == Limits((("your association", 1440), ("QOS normal", 120)), grace=120, blocks=(18, 16))
    asked = SlurmSettings(account="a", gpu_partition="gpu", additional_params="qos=x")
    found = slurm_limits(cluster_config(slurm=asked), has_accounting=True)
    assert (found.walls, found.grace) == ((("your association", 1440), ("QOS x", 10)), 90)
    assert slurm_limits(CONFIG, has_accounting=False).walls == ()
    assert slurm_limits(cluster_config(), has_accounting=False) == Limits(blocks=(18, 16))


# The report


def asked(**changes: Any) -> argparse.Namespace:
    base = {"account": None, "gpu_partition": None, "no_compute_node": False, "verbose": False}
    return argparse.Namespace(**base | changes)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> dict[str, Any]:
    """The facts that doctor gathers are those of a good site; what it gathers them with."""
    seen: dict[str, Any] = {"facts": GOOD}

    def gather(config: ClusterConfig, install: Path, clone: Path, *, ask_node: bool) -> SiteFacts:
        seen.update(config=config, install=install, clone=clone, ask_node=ask_node)
        facts: SiteFacts = seen["facts"]
        return facts

    monkeypatch.setattr(checks, "gather_facts", gather)
    return seen


def test_the_report_has_a_line_for_each_check_and_a_sum(seen, tmp_path, capsys, texts: Texts):
    seen["facts"] = replace(settings(gres=False, account="ann"), site=replace(GOOD.site, accounts=("bench",)))
    result = doctor(asked(), Path("/clone"), tmp_path)
    lines = result.text.splitlines()
    texts(result.text)
    assert [line.split()[0] for line in lines if not line.startswith(" ")][:-1] == [
        check["level"].replace("blocks", "BLOCKS") for check in result.data["checks"]
    ]
    assert result.status == 1
    assert result.data["checks"][0] == {
        **{"name": "space for the installation", "level": "ok", "found": "10.0 TB free in /", "remedy": ""}
    }
    texts(capsys.readouterr().err)


def test_doubts_alone_are_no_failure(seen: dict[str, Any], tmp_path: Path) -> None:
    seen["facts"] = settings(gres=False)
    assert doctor(asked(), Path("/clone"), tmp_path).status == 0


def test_flags_come_before_the_sites_file(seen, tmp_path, capsys):
    (tmp_path / "cluster_config.yaml").write_text("cluster_type: slurm\nslurm: {account: a, gpu_partition: b}\n")
    doctor(asked(account="mine", no_compute_node=True), Path("/clone"), tmp_path)
    assert seen["config"].slurm == SlurmSettings(account="mine", gpu_partition="b")
    assert (seen["install"], seen["ask_node"]) == (tmp_path, False)
    assert "one compute node" not in capsys.readouterr().err
    doctor(asked(gpu_partition="other"), Path("/clone"), tmp_path)
    assert seen["config"].slurm == SlurmSettings(account="a", gpu_partition="other")
    assert seen["ask_node"] is True


@pytest.mark.parametrize(("on_path", "kind"), [({"sbatch"}, "slurm"), (set(), "local")])
def test_an_unknown_site_is_what_is_found(seen, machine, tmp_path, on_path, kind):
    machine.on_path = on_path
    doctor(asked(), Path("/clone"), tmp_path)
    assert seen["config"].cluster_type == kind
