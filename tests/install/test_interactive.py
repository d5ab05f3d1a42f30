"""The dialogue in a pseudo-terminal: from the first prompt to the end, and with Ctrl-C in the middle."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from install_world import World, files_with

from llmb_common.planning.site.cluster import load_cluster_config

TOKEN = "hf_canary with a space"
KEY = "nvapi-canarycanarycanary"
ENTER, DOWN, BACK = "\r", "\x1b[B", "\x1b[Z"


@pytest.fixture
def site(world: World, registry: Path) -> World:
    """A machine whose Slurm has two partitions; its commands answer as Slurm's do."""
    programs = {
        "sbatch": "exit 0",
        "sinfo": 'case "$*" in --version) echo "slurm 22.05.8" ;; *) printf "%s\\n" "gpu*|up|4:00:00|8|gpu:h100:8" '
        '"cpu|up|1-00:00:00|4|(null)" ;; esac',
        "sacctmgr": 'case "$*" in *associations*) printf "k|bench\\nk|other\\n" ;; *) echo bench ;; esac',
        "scontrol": "echo 'NodeName=gpu1 Arch=x86_64 CoresPerSocket=1'",
        "srun": "echo '      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'",
        "nvidia-smi": "exit 9",
    }
    folder = world.root / "programs"
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    world.env["PATH"] = f"{folder}:{world.env['PATH']}"
    return world


class Terminal:
    """A user at the keyboard."""

    def __init__(self, world: World) -> None:
        program, *argv = [*world.installer, "--no-space-check", "--install-path", str(world.install)]
        self.log = world.root / "screen"
        self.process = pexpect.spawn(
            program, argv, env=world.env | {"TERM": "xterm", "XDG_STATE_HOME": str(world.root / "state")},
            cwd=str(world.root), encoding="utf-8", timeout=600, dimensions=(50, 160),
        )  # fmt: skip
        self.process.logfile_read = self.log.open("a", encoding="utf-8")
        # What prompt_toolkit asks a terminal: where the cursor is.
        self._prompts = 0

    def see(self, text: str) -> None:
        while self.process.expect([re.escape(text), re.escape("\x1b[6n")]) == 1:
            self.process.send("\x1b[1;1R")

    def answer(self, prompt: str, keys: str = ENTER) -> None:
        self.see(prompt)
        self.process.send(keys)

    def end(self) -> int:
        while self.process.expect([pexpect.EOF, re.escape("\x1b[6n")]) == 1:
            self.process.send("\x1b[1;1R")
        self.process.close()
        self.process.logfile_read.close()
        return int(self.process.exitstatus)


@pytest.fixture
def terminal(site: World) -> Iterator[Terminal]:
    terminal = Terminal(site)
    yield terminal
    terminal.process.close(force=True)
    terminal.process.logfile_read.close()


def until_gpu_type(terminal: Terminal) -> None:
    terminal.answer("Go on?", DOWN + ENTER)  # change what was detected
    terminal.answer("Where jobs run")
    terminal.answer("Slurm account", DOWN + ENTER)
    terminal.see("Partition for GPU jobs")
    terminal.see("gpu  8 nodes, 8 GPUs each, limit 4:00:00")
    terminal.answer("another one")
    terminal.answer("Do jobs request their GPUs")


def rest(terminal: Terminal) -> None:
    terminal.answer("GPU type")
    terminal.answer("Architecture of the compute nodes")
    terminal.answer("Container runtime")
    terminal.answer("Where images are imported")
    terminal.answer("Folder of container images")
    terminal.answer("Fetch tokenizers from Hugging Face")
    terminal.answer("Workloads")
    terminal.answer("NGC API key", KEY + ENTER)


def test_from_the_first_prompt_to_the_end(site: World, terminal: Terminal) -> None:
    until_gpu_type(terminal)
    rest(terminal)
    terminal.see("gpu_partition   gpu")
    terminal.see("gres            yes")
    terminal.see("ngc_api_key     given")
    terminal.see("steps to do, about")
    terminal.answer("Go on?", BACK)
    terminal.answer("Workloads")
    terminal.answer("Go on?")
    assert terminal.end() == 0
    config = load_cluster_config(site.install)
    # Detected and accepted, or chosen from what was offered.
    assert (config.slurm.account, config.slurm.gpu_partition, config.slurm.cpu_partition) == ("other", "gpu", "gpu")
    assert (config.gpu_type, config.arch, config.slurm.gres) == ("h100", "x86_64", True)
    assert len(config.workloads) == 5
    assert site.image.exists()
    # A canary: the key is in its own file and nowhere else, not even on the screen.
    assert KEY not in terminal.log.read_text()
    assert files_with(KEY, site.root) == [f"{site.install.name}/.llmb/enroot/.credentials"]


def test_what_was_detected_is_one_screen(site: World, terminal: Terminal) -> None:
    terminal.see("account         bench")
    terminal.see("gpu_type        h100")
    terminal.see("steps to do, about")
    terminal.answer("Go on?")
    assert terminal.end() == 0
    assert load_cluster_config(site.install).slurm.account == "bench"
    assert "Slurm account" not in terminal.log.read_text()


def test_a_token_is_asked_for_where_it_is_needed_checked_and_never_shown(site: World, terminal: Terminal) -> None:
    until_gpu_type(terminal)
    for prompt in ("GPU type", "Architecture", "Container runtime", "Where images are imported", "Folder of container"):
        terminal.answer(prompt)
    terminal.answer("Fetch tokenizers from Hugging Face", "y")
    terminal.answer("Workloads")
    terminal.answer("Hugging Face token", TOKEN + ENTER)
    terminal.see("this is not a token")
    terminal.answer("Hugging Face token", "\x03")
    assert terminal.end() == 130
    assert TOKEN not in terminal.log.read_text()
    assert files_with(TOKEN, site.root) == []


def test_ctrl_c_in_the_middle_and_then_on(site: World, terminal: Terminal) -> None:
    until_gpu_type(terminal)
    terminal.answer("GPU type", "\x03")
    assert terminal.end() == 130
    assert "other" in json.dumps(draft(site)), "the answers so far are kept"
    assert not site.install.exists()
    again = Terminal(site)
    again.answer("4 answers")
    again.see("account         other")
    again.answer("Go on?")
    assert again.end() == 0
    assert load_cluster_config(site.install).slurm.account == "other"
    assert [path.name for path in (site.root / "state").rglob("*.json")] == ["installer-answers.json"]


def draft(site: World) -> dict[str, object]:
    path = site.root / "state" / "llmb" / "installer-draft.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_keys_pressed_while_it_prepares_answer_nothing(site: World) -> None:
    gate = site.root / "gate"
    os.mkfifo(gate)
    sinfo = site.root / "programs" / "sinfo"
    sinfo.write_text(sinfo.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n[ ! -p '{gate}' ] || cat '{gate}'\n"))
    terminal = Terminal(site)
    terminal.see("Detecting this machine")
    terminal.process.send(ENTER * 30)
    # Both questions of sinfo are answered, and then the dialogue begins.
    gate.write_text("")
    gate.unlink()
    terminal.answer("Go on?", "\x03")
    assert terminal.end() == 130
    assert draft(site) == {}


def test_keys_pressed_before_the_summary_do_not_confirm_it(site: World, terminal: Terminal) -> None:
    until_gpu_type(terminal)
    for prompt in ("GPU type", "Architecture", "Container runtime", "Where images are imported", "Folder of container"):
        terminal.answer(prompt)
    terminal.answer("Fetch tokenizers from Hugging Face")
    terminal.answer("Workloads")
    terminal.answer("NGC API key", ENTER * 5)
    terminal.answer("Go on?", "\x03")
    assert terminal.end() == 130
    assert not site.install.exists()
