"""What a test cluster looks like, and the Slurm configuration files for it.

Everything here is pure: a ``ClusterSpec`` and a ``Layout`` (folder, ports) go in, file contents come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CLUSTER_NAME = "testcluster"
GPUS_PER_BOARD = 8


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one kind. ``simulated`` nodes have no slurmd: the scheduler knows them, but nothing can run there."""

    prefix: str
    count: int
    gpus: int
    gpu_type: str
    simulated: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{i}" for i in range(1, self.count + 1))

    @property
    def hostlist(self) -> str:
        return f"{self.prefix}[1-{self.count}]"


@dataclass(frozen=True)
class Partition:
    """A Slurm partition; ``max_time`` in Slurm's notation."""

    name: str
    nodes: str
    max_time: str
    default: bool = False
    state: str = "UP"


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster to build. ``extra`` adds or replaces single lines of slurm.conf (``{"MinJobAge": "5"}``)."""

    groups: tuple[NodeGroup, ...]
    partitions: tuple[Partition, ...]
    accounting: bool = False
    containers: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def real_nodes(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups if not group.simulated for name in group.names)


H100 = NodeGroup("gpu", 4, 8, "h100")
GB200 = NodeGroup("grace", 2, 4, "gb200")

SMALL = ClusterSpec(
    groups=(H100, GB200),
    partitions=(
        Partition("batch", H100.hostlist, "08:00:00", default=True),
        Partition("short", H100.hostlist, "00:10:00"),
        Partition("gb200", GB200.hostlist, "04:00:00"),
        Partition("closed", "gpu1", "01:00:00", state="DOWN"),
    ),
    containers=True,
)
"""Four nodes of eight GPUs, two of four, all able to run jobs."""

ACCOUNTED = ClusterSpec(
    groups=SMALL.groups,
    partitions=SMALL.partitions,
    accounting=True,
    containers=True,
    extra={"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"},
)
"""SMALL with slurmdbd: accounts ``bench`` and ``other``, QOS ``high`` (preempts ``low``), ``debug``, ``low``."""

_BIG_H100 = NodeGroup("gpu", 256, 8, "h100", simulated=True)
_BIG_GB200 = NodeGroup("grace", 512, 4, "gb200", simulated=True)
SIMULATED = ClusterSpec(
    groups=(_BIG_H100, _BIG_GB200),
    partitions=(
        Partition("batch", _BIG_H100.hostlist, "08:00:00", default=True),
        Partition("h100x128", "gpu[1-128]", "08:00:00"),
        Partition("gb200", _BIG_GB200.hostlist, "08:00:00"),
    ),
)
"""2048 H100 and 2048 GB200 GPUs that only the scheduler believes in: for ``sbatch --test-only``."""


@dataclass(frozen=True)
class Layout:
    """Where one cluster lives: its folder, its ports and the system's plug-in folder."""

    root: Path
    user: str
    controller_port: int
    node_ports: Mapping[str, int]
    accounting_port: int
    database_port: int

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.root / "run" / "munge.sock"

    @property
    def plugin(self) -> Path:
        return self.root / "lib" / "container_standin.so"


def slurm_conf(spec: ClusterSpec, layout: Layout) -> str:
    """Contents of slurm.conf."""
    root = layout.root
    settings = {
        "ClusterName": CLUSTER_NAME,
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmUser": layout.user,
        "SlurmdUser": layout.user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "SlurmctldPort": str(layout.controller_port),
        # Jobs of two clusters on this machine must not share a rendezvous port, which follows from the job id.
        "FirstJobId": str(layout.controller_port),
        "SlurmctldPidFile": f"{root}/run/slurmctld.pid",
        "SlurmctldLogFile": f"{root}/log/slurmctld.log",
        "StateSaveLocation": f"{root}/state",
        "SlurmdPidFile": f"{root}/run/slurmd-%n.pid",
        "SlurmdLogFile": f"{root}/log/slurmd-%n.log",
        "SlurmdSpoolDir": f"{root}/spool/%n",
        "TmpFS": f"{root}/tmp/%n",
        # The machine has neither 96 cores nor GPUs; believe the configuration.
        "SlurmdParameters": "config_overrides",
        "PlugStackConfig": f"{root}/etc/plugstack.conf",
        # No cgroups: the tests must also run inside a container.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0",
        "GresTypes": "gpu",
        "ReturnToService": "1",
        "EnforcePartLimits": "ALL",
        "MessageTimeout": "10",
        "SlurmdTimeout": "300",
        "MinJobAge": "600",
        "KillWait": "2",
        "CompleteWait": "0",
        "EpilogMsgTime": "0",
        "JobRequeue": "1",
        "MailProg": "/bin/true",
        # Cloud nodes (the simulated ones) demand these two, though nothing is ever powered up.
        "ResumeProgram": "/bin/true",
        "SuspendProgram": "/bin/true",
        "SuspendTime": "-1",
        "ResumeTimeout": "5",
    }
    if spec.accounting:
        settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "localhost",
            "AccountingStoragePort": str(layout.accounting_port),
            # With a private munge socket sacctmgr hangs without this.
            "AccountingStoragePass": str(layout.munge_socket),
            "AccountingStorageTRES": "gres/gpu",
            "AccountingStorageEnforce": "associations,limits,qos",
        }
    else:
        settings["AccountingStorageType"] = "accounting_storage/none"
    settings |= dict(spec.extra)
    lines = [f"{key}={value}" for key, value in settings.items()]
    hardware = "CPUs=192 Sockets=2 CoresPerSocket=48 ThreadsPerCore=2 RealMemory=2000000"
    for group in spec.groups:
        common = f"{hardware} Gres=gpu:{group.gpus} Feature={group.gpu_type}"
        if group.simulated:
            port = layout.controller_port + 1  # never contacted
            address = f"NodeHostname=localhost NodeAddr=127.0.0.1 Port={port}"
            lines.append(f"NodeName={group.hostlist} {address} {common} State=CLOUD")
            continue
        for name in group.names:
            address = f"NodeHostname=localhost NodeAddr=127.0.0.1 Port={layout.node_ports[name]}"
            lines.append(f"NodeName={name} {address} {common}")
    lines += [
        f"PartitionName={p.name} Nodes={p.nodes} Default={'YES' if p.default else 'NO'}"
        f" MaxTime={p.max_time} DefaultTime=00:05:00 State={p.state}"
        for p in spec.partitions
    ]
    return "\n".join(lines) + "\n"


def gres_conf(spec: ClusterSpec, layout: Layout) -> str:
    """Contents of gres.conf: Slurm demands device files, links to /dev/null satisfy it."""
    lines = ["AutoDetect=off"]
    lines += [
        f"NodeName={group.hostlist} Name=gpu File={layout.root}/dev/nvidia[0-{group.gpus - 1}]"
        for group in spec.groups
        if not group.simulated
    ]
    lines += [f"NodeName={group.hostlist} Name=gpu Count={group.gpus}" for group in spec.groups if group.simulated]
    return "\n".join(lines) + "\n"


def slurmdbd_conf(layout: Layout, password: str) -> str:
    """Contents of slurmdbd.conf, which Slurm wants at mode 0600."""
    root = layout.root
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "DbdHost": "localhost",
        "DbdPort": str(layout.accounting_port),
        "SlurmUser": layout.user,
        "LogFile": f"{root}/log/slurmdbd.log",
        "PidFile": f"{root}/run/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(layout.database_port),
        "StorageUser": "slurm",
        "StoragePass": password,
        "StorageLoc": "slurm_acct_db",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def hosts(spec: ClusterSpec, system_hosts: str) -> str:
    """/etc/hosts as the nodes see it: every node name is this machine, so that rendezvous by name works."""
    return system_hosts.rstrip("\n") + "\n" + "".join(f"127.0.0.1 {name}\n" for name in spec.real_nodes)
