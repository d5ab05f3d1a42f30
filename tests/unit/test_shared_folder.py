"""Doubts: what is said before a job is submitted, and when not.

A folder of runs that compute nodes may not see, and more time or nodes than the partition gives.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

import msgspec
import pytest

from llmb_common.executors.slurm import executor
from llmb_common.executors.slurm.executor import file_system_of, folder_doubts
from llmb_common.planning.job_plan import JobPlan
from llmb_common.submission.preflight import submission_doubts
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.run_site import RunSite
from support.texts import Texts

ELSEWHERE = "n1|192.0.2.1\nn2|192.0.2.2\n"
"""Addresses for documentation (RFC 5737): nobody's."""


class Machine:
    """A root folder with the exports of another machine; plans whose workload folder is there."""

    def __init__(self, root: Path, plan: JobPlan, fake: FakeSlurm) -> None:
        self.root, self._plan, self._fake = root, plan, fake

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def doubts(self, folder: str, nodes: str = ELSEWHERE, **slurm: object) -> list[str]:
        (self._fake.folder / "nodes").write_text(nodes)
        assert self._plan.scheduler is not None
        settings = msgspec.structs.replace(self._plan.scheduler, **slurm)  # type: ignore[arg-type]
        return folder_doubts(msgspec.structs.replace(self._plan, workload_folder=folder, scheduler=settings), self.root)


@pytest.fixture
def machine(tmp_path: Path, plan: JobPlan, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> Machine:
    # Whatever this machine has at these places.
    monkeypatch.setattr(executor, "_nearest_existing", lambda folder: folder)
    monkeypatch.setattr(executor, "file_system_of", lambda folder: "tmpfs")
    return Machine(tmp_path / "root", plan, fake)


def test_a_file_with_nodes_that_cannot_be_read_is_no_doubt(machine: Machine) -> None:
    assert machine.doubts("/home/me/llmb", additional=(("nodelist", "/none/nodes"),)) == []


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "xfs", "ext4", "tmpfs", ""])
def test_a_disk_of_this_machine_is_doubted(machine: Machine, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(executor, "file_system_of", lambda folder: kind)
    assert bool(machine.doubts("/home/me/llmb")) == (kind in ("xfs", "ext4", "tmpfs"))


def test_where_a_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (file_system_of(Path("/proc/self")), file_system_of(Path("/none"))) == ("proc", "")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert file_system_of(Path("/proc/self")) == ""


def test_a_doubt_names_folder_disk_node_and_remedy(machine: Machine, texts: Texts) -> None:
    (doubt,) = machine.doubts("/tmp/llmb")
    texts(doubt)
    for word in ("JobLaunchFailure", "LLMB_INSTALL or LLMB_WORKLOAD", "llmb-install doctor"):
        assert word in doubt


@pytest.mark.parametrize(
    "nodes",
    [
        "localhost|127.0.0.1\n",
        f"{socket.gethostname()}|192.0.2.1\n",  # an interface that is down now
        f"{socket.gethostname()}.cluster.example|192.0.2.1\n",
        "n1|127.0.0.1\nn2|127.0.1.1\n",  # several nodes on one machine
        "",  # Slurm knows none
    ],
)
def test_where_jobs_can_only_run_here_all_is_visible(machine: Machine, nodes: str) -> None:
    assert machine.doubts("/tmp/llmb", nodes) == []


def test_one_node_elsewhere_is_enough(machine: Machine) -> None:
    (doubt,) = machine.doubts("/tmp/llmb", f"localhost|127.0.0.1\n{ELSEWHERE}")
    assert "n1" in doubt


def test_only_the_nodes_that_the_job_may_get_are_asked_for(machine: Machine, fake: FakeSlurm) -> None:
    machine.doubts("/tmp/llmb", partition="gpu", additional=(("nodelist", "n[1-2]"),))
    machine.doubts("/tmp/llmb", partition=None, additional=())
    assert fake.calls("sinfo") == [
        ["--noheader", "--partition=gpu", "--all", "--nodes=n[1-2]", "--format=%n|%o"],
        ["--noheader", "--format=%n|%o"],
    ]


@pytest.mark.parametrize(
    ("file", "line", "exported"),
    [
        ("etc/exports", "/opt/shared  10.0.0.0/8(rw)", True),
        ("etc/exports", '"/opt" *(ro)', True),
        ("etc/exports.d/zfs.exports", "/opt/shared/llmb *(rw)", True),
        ("var/lib/nfs/etab", "/opt/shared\t10.0.0.0/8(rw,sync)", True),
        ("etc/exports", "#/opt/shared *(rw)", False),
        ("etc/exports", "/opt/share *(rw)", False),
    ],
)
def test_an_nfs_server_shares_its_own_disk(machine: Machine, file: str, line: str, exported: bool) -> None:
    machine.write(file, f"# who mounts what\n\n{line}\n")
    assert (machine.doubts("/opt/shared/llmb") == []) == exported


def test_without_an_answer_nothing_is_claimed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert machine.doubts("/tmp/llmb") == []


def test_a_folder_that_cannot_be_looked_at_is_not_doubted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> Path:
        raise PermissionError(folder)

    monkeypatch.setattr(executor, "_nearest_existing", refuse)
    assert machine.doubts("/tmp/llmb") == []


@pytest.fixture
def site(tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    monkeypatch.setattr(executor, "file_system_of", lambda folder: "ext4")
    (fake.folder / "nodes").write_text(ELSEWHERE)
    return RunSite(tmp_path, "slurm")


def test_every_command_that_submits_says_so_once(site, monkeypatch, capsys):
    cli = Cli(site.install, monkeypatch, capsys)
    smoke = ("-w", "llama3.1", "-s", "smoke")
    doubt = f"note: jobs write to {site.install}"
    assert doubt not in cli("single", *smoke, "--scale", "1", "--dry-run").err, "nothing is asked for a dry run"
    assert cli("submit", *smoke, "--scale", "1,2", "--repeats", "2").err.count(doubt) == 1
    run = cli("single", *smoke, "--scale", "1", "--json").data["jobs"][0]["run_id"]
    cli("cancel", run)
    assert cli("retry", run).err.count(doubt) == 1
    assert cli("retry", run, "--exact", "--anyway").err.count(doubt) == 1


def test_two_partitions_are_two_questions_and_one_answer(site: RunSite, fake: FakeSlurm) -> None:
    plans = [site.plan(SBATCH_PARTITION=name) for name in ("batch", "short", "batch")]
    assert len(submission_doubts(plans)) == 1
    assert len([call for call in fake.calls("sinfo") if "--format=%n|%o" in call]) == 2


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("batch*|infinite|1-infinite|8", []),
        ("batch*|2:00:00|1-4|8", []),
        ("batch*|1-00:00:00|4|4", []),
        ("batch*|1:59:59|1-4|4", [["01:59:59", "02:00:00"]]),
        ("batch*|30:00|1-infinite|10", [["00:30:00", "02:00:00"]]),
        ("batch*|infinite|1-3|10", [["3", "4"]]),
        ("batch*|infinite|1-infinite|3", [["3", "4"]]),
        ("batch*|30:00|1-1|9", [["00:30:00", "02:00:00"], ["1", "4"]]),
        ("batch*|30:00|1-1|9\nlarge|4:00:00|1-8|9", []),
        ("nonsense", []),
    ],
)
def test_more_than_the_partition_gives(tmp_path, fake, monkeypatch, limits, said):
    """Of a sweep's plans the largest and the longest are looked at. ``said``: what it gives, and what they ask for."""
    monkeypatch.setattr(executor, "folder_doubts", lambda plan: [])
    (fake.folder / "nodes").write_text(f"{limits}\n")
    site = RunSite(tmp_path, "slurm")
    plan = site.plan()
    longer = msgspec.structs.replace(plan, time_limit="02:00:00")
    larger = msgspec.structs.replace(plan, nodes=4, time_limit="00:20:00")
    found = submission_doubts([plan, longer, plan, larger])
    assert sorted(re.findall(r"\b\d[\d:]*\b", doubt)[:2] for doubt in found) == sorted(said)
    assert all("partition batch" in doubt and "sinfo -o" in doubt for doubt in found)


def test_the_partition_may_be_among_the_additional_options(site: RunSite, fake: FakeSlurm) -> None:
    submission_doubts([site.plan(ADDITIONAL_SLURM_PARAMS="partition=short")])
    calls = fake.calls("sinfo")
    assert calls
    assert all("--partition=short" in call for call in calls)


def test_so_does_launch_sh(site: RunSite, capsys: pytest.CaptureFixture[str]) -> None:
    from llmb_common.submission.launch import run
    from support.run_site import RECIPE

    assert run(RECIPE, site.variables(DRY_RUN="true")) == 0
    before = capsys.readouterr().err.count("note: ")
    assert run(RECIPE, site.variables()) == 0
    assert capsys.readouterr().err.count("note: ") == before + 1


def test_folders_that_do_not_exist_yet_and_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert executor._nearest_existing(tmp_path / "link" / "not" / "yet") == (tmp_path / "real").resolve()
