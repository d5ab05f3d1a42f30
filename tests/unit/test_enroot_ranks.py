"""How the ranks of a node enter an image that Enroot unpacks for them: slurm/enroot.sh, really run with a small enroot.

That one's ``start`` fails where another start's hooks are running, as the real one does after 30 s, and closes all
files but the first three, as the real one does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from llmb_common.executors.slurm.script import enter_script
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.cluster import cluster_config
from support import plans
from support.processes import wait_until

ENROOT = """#!/bin/bash
set -euo pipefail
data=$ENROOT_DATA_PATH
echo "$*" >> "$data/../calls"
command=$1
shift
case $command in
  info) printf 'Enroot version: 4.1.2\\n\\nEnvironment variables:\\n  ENROOT_DATA_PATH=%s\\n' "$data" ;;
  create)
    [[ ! -e $data/$2 ]] || { echo "[ERROR] File already exists: $data/$2" >&2; exit 1; }
    mkdir "$data/$2"
    if [[ -e $data/../full ]]; then printf 'FATAL ERROR: no space\\n' >&2; exit 1; fi
    ;;
  remove) [[ $1 == -f && -d $data/$2 ]] && rmdir "$data/$2" ;;
  start)
    while [[ $1 == --* ]]; do
      case $1 in --env | --mount) shift 2 ;; *) shift ;; esac
    done
    echo "$SLURM_PROCID $1" >> "$data/../entered"
    if [[ -d $data/$1 ]]; then
      mkdir "$data/$1/hooks" || exit 99
      sleep 0.2
      rmdir "$data/$1/hooks"
    fi
    shift
    for file in /proc/self/fd/*; do
      file=${file##*/}
      if ((file > 2)); then exec {file}>&-; fi
    done
    exec "$@"
    ;;
esac
"""


def plan(*given: str) -> JobPlan:
    site = cluster_config(slurm=SlurmSettings(runtime="enroot"))
    return plans.plan(site, "GPU_TYPE=h100 JOB_TOTAL_GPUS=8 MODEL_SIZE=8b", *given)


class Node:
    """A node on which Enroot keeps roots in ``data``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        self.image = folder / "image.sqsh"
        self.image.write_text("x")
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.tool("enroot", ENROOT)
        self.tool("stat", '#!/bin/bash\nif [[ $1 == -f ]]; then echo xfs; else exec /usr/bin/stat "$@"; fi\n')
        self.tool("df", "#!/bin/bash\necho Avail; echo 2\n")

    def tool(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, rank: int, task: str, *given: str, **variables: str) -> subprocess.Popen[str]:
        """A rank of job 7 that runs ``task`` (bash)."""
        text = re.sub("^image=.*$", f"image={self.image}", enter_script(plan(*given), ["/a:/b"], ["MINE"]), flags=re.M)
        environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "ENROOT_DATA_PATH": str(self.data),
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(rank),
            "FOLDER": str(self.folder),
        }
        return subprocess.Popen(
            ["bash", "-c", text, "bash", task],
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def calls(self, command: str) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == command]

    def entered(self) -> list[str]:
        """The name of each rank's root, or its image."""
        return [line.split()[1] for line in (self.folder / "entered").read_text().splitlines()]

    def left(self) -> set[str]:
        """What is kept of roots, and the locks of them."""
        found = {path.name for path in self.data.iterdir() if not path.name.startswith(".")}
        return found | {path.name for path in self.data.glob(".llmb-*/llmb-*")}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def ended(rank: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = rank.communicate(timeout=120)
    return rank.returncode, errors


TOGETHER = 'touch "$FOLDER/here-$SLURM_PROCID"; until [[ -e $FOLDER/go ]]; do sleep 0.05; done'
"""A rank that stays until it may go."""


def test_the_ranks_of_a_node_share_one_root_that_the_last_removes(node: Node) -> None:
    ranks = [node.start(rank, TOGETHER) for rank in range(4)]
    wait_until(lambda: len(list(node.folder.glob("here-*"))) == 4, "four ranks that run at once", timeout=60)
    assert node.left() == {"llmb-7.0.0"}
    (node.folder / "go").touch()
    assert [ended(rank) for rank in ranks] == [(0, "")] * 4
    assert node.entered() == ["llmb-7.0.0"] * 4
    assert node.calls("create") == [f"--name llmb-7.0.0 -- {node.image}"]
    assert node.calls("remove") == ["-f llmb-7.0.0"]
    assert node.left() == set()


def test_a_rank_that_ends_before_the_others_leaves_them_their_root(node: Node) -> None:
    stays = node.start(0, TOGETHER)
    wait_until((node.folder / "here-0").exists, "the first rank", timeout=60)
    assert ended(node.start(1, "exit 0")) == (0, "")
    assert (node.left(), node.calls("remove")) == ({"llmb-7.0.0"}, [])
    (node.folder / "go").touch()
    assert ended(stays) == (0, "")
    assert node.left() == set()


def test_leftovers_of_killed_jobs_are_swept_and_nothing_else(node: Node) -> None:
    killed = node.start(0, TOGETHER, SLURM_JOB_ID="5", SLURM_RESTART_COUNT="2")
    wait_until((node.folder / "here-0").exists, "a rank of job 5", timeout=60)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    runs = node.start(1, TOGETHER, SLURM_JOB_ID="6")
    wait_until((node.folder / "here-1").exists, "a rank of job 6", timeout=60)
    assert node.left() == {"llmb-6.0.0"}, "and that of job 5 is gone"
    for name in ("llmb-4.0.0", "pyxis_4", "mine"):
        (node.data / name).mkdir()  # not ours, whatever they are called
    assert ended(node.start(2, "exit 0")) == (0, "")
    assert node.left() == {"llmb-6.0.0", "llmb-4.0.0", "pyxis_4", "mine"}
    (node.folder / "go").touch()
    assert ended(runs) == (0, "")


@pytest.mark.parametrize("why", ["room", "create"])
def test_without_a_root_the_image_is_mounted_and_one_rank_says_so(node: Node, why: str) -> None:
    if why == "room":
        node.image.write_text("xx")
    else:
        (node.folder / "full").touch()
    first = ended(node.start(0, "exit 3"))
    assert first[0] == 3
    assert "checkpoint" in first[1]
    stays = node.start(1, TOGETHER, SLURM_STEP_ID="1")
    wait_until((node.folder / "here-1").exists, "a rank", timeout=60)
    assert node.entered() == [str(node.image)] * 2
    assert {path.name for path in node.data.iterdir()} == {f".llmb-{os.getuid()}"}, "not even half a root"
    (node.folder / "go").touch()
    ended(stays)


def test_ranks_of_a_node_agree_that_there_is_no_root(node: Node) -> None:
    (node.folder / "full").touch()
    ranks = [node.start(rank, TOGETHER) for rank in range(3)]
    wait_until(lambda: len(list(node.folder.glob("here-*"))) == 3, "three ranks", timeout=60)
    (node.folder / "go").touch()
    assert sorted(bool(ended(rank)[1]) for rank in ranks) == [False, False, True]


@pytest.mark.parametrize("kind", ["nfs", "lustre", "UNKNOWN (0x19830326)", "fuseblk"])
def test_on_a_file_system_that_nodes_may_share_there_is_no_root(node: Node, kind: str) -> None:
    node.tool("stat", f'#!/bin/bash\nif [[ $1 == -f ]]; then echo "{kind}"; else exec /usr/bin/stat "$@"; fi\n')
    assert ended(node.start(0, "exit 0")) == (0, "")
    assert node.entered() == [str(node.image)]
    assert list(node.data.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="giving away a folder needs root")
def test_locks_in_the_folder_of_somebody_else_are_not_trusted(node: Node) -> None:
    locks = node.data / f".llmb-{os.getuid()}"
    locks.mkdir()
    os.chown(locks, 64_321, 64_321)
    assert ended(node.start(0, "exit 0")) == (0, "")
    assert node.entered() == [str(node.image)]


@pytest.mark.parametrize(("task", "status"), [("exit 7", 7), ("kill -SEGV $$", -signal.SIGSEGV), ("kill -KILL $$", -9)])
def test_a_rank_ends_as_what_it_ran(node: Node, task: str, status: int) -> None:
    """srun says of each how it ended, and ``why`` reads that."""
    assert ended(node.start(0, task)) == (status, "")
    assert node.left() == set()


SAVES = """
import os, pathlib, signal, sys, time

def save(number, frame):
    time.sleep(1)
    (folder / "saved").touch()
    sys.exit(0)

folder = pathlib.Path(os.environ["FOLDER"])
(folder / "starts").touch()
while not (folder / "go").exists():
    time.sleep(0.05)
signal.signal(signal.SIGTERM, save)
(folder / "here-0").touch()
signal.pause()
"""


def test_a_signal_to_the_whole_step_is_ignored_until_the_rank_can_save(node: Node) -> None:
    (node.folder / "saves.py").write_text(SAVES)
    rank = node.start(0, 'exec python3 "$FOLDER/saves.py"', "ENABLE_CHECKPOINT=true")
    wait_until((node.folder / "starts").exists, "a rank that starts", timeout=60)
    os.killpg(rank.pid, signal.SIGTERM)
    (node.folder / "go").touch()
    wait_until((node.folder / "here-0").exists, "a rank that can save", timeout=60)
    assert not (node.folder / "saved").exists()
    os.killpg(rank.pid, signal.SIGTERM)
    assert ended(rank) == (0, "")
    assert (node.folder / "saved").exists()
    assert node.left() == set()


def test_what_saves_nothing_ends_by_a_signal_and_leaves_nothing(node: Node) -> None:
    rank = node.start(0, TOGETHER)
    wait_until((node.folder / "here-0").exists, "the rank", timeout=60)
    os.killpg(rank.pid, signal.SIGTERM)
    assert ended(rank) == (-signal.SIGTERM, "")
    assert node.left() == set()


SIGNALLED_AS_IT_ENDS = """
(sleep 0.5; kill -CONT "$PPID") > /dev/null 2>&1 &
kill -STOP "$PPID"
kill -TERM "$PPID"
exit 7
"""
"""A rank whose end and a signal reach the shell that waits for it in one instant."""


def test_a_signal_does_not_hide_how_a_rank_has_ended(node: Node) -> None:
    ranks = [node.start(rank, SIGNALLED_AS_IT_ENDS) for rank in range(8)]  # one alone may have luck
    assert [ended(rank) for rank in ranks] == [(7, "")] * 8
    assert node.left() == set()
