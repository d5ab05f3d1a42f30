"""watch, show and logs -f as a person sees them, in a real terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.run_site import RunSite
from support.slurm_cluster import SlurmCluster
from support.terminal import Terminal

LLMB_RUN = [sys.executable, "-m", "llmb_run"]


def environment(site: RunSite, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {**base, "LLMB_INSTALL": str(site.install)}


def run(env: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run([*LLMB_RUN, *arguments], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(env: Mapping[str, str], *arguments: str, **standin: str) -> str:
    """Start a job that advances on its own; returns its run id."""
    settings = [word for name, value in standin.items() for word in ("--env", f"STANDIN_{name.upper()}={value}")]
    smoke = ("single", "-w", "llama3.1", "-s", "smoke", "--scale", "1", "--detach", "--json")
    run_id: str = json.loads(run(env, *smoke, *settings, *arguments))["data"]["jobs"][0]["run_id"]
    return run_id


def step_of(screen: str) -> int:
    """The step that the screen shows."""
    found = re.search(r" ([0-9]+)/50 ", screen)
    return int(found[1]) if found else 0


def test_watch_shows_progress_until_the_end(local_site: RunSite, tmp_path: Path) -> None:
    env = environment(local_site)
    gate = tmp_path / "gate"
    run_id = start(env, steps="50", seconds="0.05", gate=str(gate))
    with Terminal([*LLMB_RUN, "watch"], env, width=120) as terminal:
        screen = terminal.wait_for(lambda screen: step_of(screen) == 2)
        assert screen.startswith("1 of 1 runs live, ")
        title, line = screen.splitlines()[2:4]
        assert title.split() == ["run", "state", "for", "step", "s/step", "TFLOPS", "left", "GPUs", "job", "what"]
        assert line.split()[:2] == [run_id, "RUNNING"]
        assert " 0.101 " in line
        assert " 0.0 " not in line, "a CPU has no TFLOPS worth a word"
        seen = step_of(screen)
        gate.touch()
        terminal.wait_for(lambda screen: step_of(screen) > seen)
        screen = terminal.wait_for("[status 0]")
    # The live view is gone; its last state stays, and the next step is named.
    assert "runs live" not in screen
    assert re.search(rf"{run_id}  COMPLETED .* 50/50 ", screen)
    assert re.search(rf"llmb-run results {run_id}\b", screen)


def test_watch_fits_a_narrow_terminal(local_site: RunSite, tmp_path: Path) -> None:
    env = environment(local_site)
    run_id = start(env, steps="50", gate=str(tmp_path / "never"))
    with Terminal([*LLMB_RUN, "watch"], env, width=120) as terminal:
        terminal.wait_for(lambda screen: step_of(screen) > 0)
        terminal.resize(64, 12)
        screen = terminal.wait_for(lambda screen: "TFLOPS" not in screen and "what" in screen)
        lines = screen.splitlines()
        assert len([line for line in lines if run_id in line]) == 1
        assert step_of(screen) > 0
        assert max(len(line) for line in lines) <= 64
    run(env, "cancel", run_id)


def test_show_wraps_at_the_width_of_the_terminal(local_site: RunSite) -> None:
    env = environment(local_site)
    run_id = start(env, steps="1", exit="7")
    subprocess.run([*LLMB_RUN, "wait", run_id], env=env, capture_output=True, timeout=120, check=False)
    piped = run(env, "show", run_id).splitlines()
    with Terminal([*LLMB_RUN, "show", run_id], env, width=64, height=100) as terminal:
        terminal.wait_for("[status 0]")
        lines = [line.rstrip() for line in terminal.lines()]
    shown = lines[: lines.index(next(line for line in lines if line.startswith("next:")))]
    whole = [line for line in shown if len(line) > 64]
    assert all(len(line[11:].split()) == 1 for line in whole), "only a name or a path, which can be copied"
    assert {line[:11].strip() for line in whole} == {"", "folder", "log"}
    assert len(shown) > len(piped)
    # Each line of the pipe is there, with the rest of it behind its label.
    assert " ".join("\n".join(shown).split()) == " ".join("\n".join(piped).split())
    assert f"{run_id}  pretrain_llama3.1" in piped[0], "a pipe has no width"
    assert any(re.match(r" {13}\S.*7\)$", line) for line in shown), "what continues a line is further in than the next"
    assert all(re.match(r"\S+ {1,10}\S| {11}\S| {13}\S", line) for line in shown)


def test_more_runs_than_lines(local_site: RunSite) -> None:
    env = environment(local_site)
    runs = [start(env, steps="50", seconds="5") for _ in range(8)]
    with Terminal([*LLMB_RUN, "watch"], env, height=10) as terminal:
        screen = terminal.wait_for("more")
        assert re.findall(r"\d+", screen.splitlines()[0])[:2] == ["8", "8"], "live, of how many"
        assert sum(screen.count(run) for run in runs) == 5
        assert re.search(r"\b3 more\b", screen)
        terminal.press("C-c")
        screen = terminal.wait_for("[status 130]")
    run(env, "cancel", *runs)


def test_ending_the_watching_ends_no_run(local_site: RunSite) -> None:
    env = environment(local_site)
    run_id = start(env, steps="50", seconds="1")
    with Terminal([*LLMB_RUN, "watch"], env) as terminal:
        terminal.wait_for("1 of 1 runs live")
        terminal.press("C-c")
        screen = terminal.wait_for("[status 130]")
        assert re.search(rf"{run_id}  RUNNING ", screen)
        assert "Traceback" not in screen
    assert json.loads(run(env, "jobs", run_id, "--json"))["data"]["runs"][0]["state"] == "RUNNING"
    run(env, "cancel", run_id)


def test_logs_are_followed_to_the_end(local_site: RunSite, tmp_path: Path) -> None:
    env = environment(local_site)
    gate = tmp_path / "gate"
    start(env, steps="12", seconds="0.1", gate=str(gate))
    with Terminal([*LLMB_RUN, "logs", "-f", "--grep", "iteration"], env, width=200) as terminal:
        terminal.wait_for(" 2/")
        gate.touch()
        screen = terminal.wait_for("[status 0]")
    steps = [int(step) for step in re.findall(r"iteration +([0-9]+)/", screen)]
    assert steps == list(range(1, 13))
    assert re.search(r"\bCOMPLETED\b", screen)


def test_a_log_cannot_drive_the_terminal(local_site: RunSite) -> None:
    env = environment(local_site)
    run_id = start(env, steps="1", seconds="0")
    run(env, "wait", run_id)
    folder = json.loads(run(env, "jobs", run_id, "--json"))["data"]["runs"][0]["folder"]
    log = next(Path(folder).glob("*/log-*.out"))
    log.write_bytes(b"before\n\x1b[2J\x1b[31mred \x07\nafter\n")
    with Terminal([*LLMB_RUN, "logs", run_id], env) as terminal:
        screen = terminal.wait_for("[status 0]")
    assert screen.splitlines()[:3] == ["before", r"\x1b[2J\x1b[31mred \x07", "after"]


def test_watch_shows_why_the_queue_waits(slurm: SlurmCluster, slurm_site: RunSite) -> None:
    env = environment(slurm_site, slurm.env)
    blocker = start(env, "--slurm-arg", "nodelist=gpu1", steps="50", seconds="5")
    waiting = start(env, "--slurm-arg", "nodelist=gpu1", steps="50", seconds="0.1")
    with Terminal([*LLMB_RUN, "watch", blocker, waiting], env, width=140) as terminal:
        terminal.wait_for(lambda screen: re.search(rf"{blocker}  RUNNING ", screen) is not None)
        terminal.wait_for(lambda screen: re.search(rf"{waiting}  PENDING .* (Resources|Priority)", screen) is not None)
        run(env, "cancel", blocker)
        terminal.wait_for(lambda screen: re.search(rf"{waiting}  (RUNNING|COMPLETED) ", screen) is not None)
        screen = terminal.wait_for("[status 1]", timeout=120)
    assert re.search(rf"{blocker}  CANCELLED ", screen)
    assert re.search(rf"{waiting}  COMPLETED ", screen)


def test_logs_wait_for_a_job_in_the_queue(slurm: SlurmCluster, slurm_site: RunSite) -> None:
    env = environment(slurm_site, slurm.env)
    run_id = start(env, "--slurm-arg", "begin=now+1hour", steps="5", seconds="0.2")
    job = json.loads(run(env, "jobs", run_id, "--json"))["data"]["runs"][0]["job_id"]
    with Terminal([*LLMB_RUN, "logs", run_id, "-f"], env, width=200) as terminal:
        terminal.wait_for("no log yet: PENDING BeginTime")
        slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
        screen = terminal.wait_for("[status 0]", timeout=120)
    assert "iteration        5/" in screen
