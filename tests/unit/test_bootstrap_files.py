"""The commands in bin/ work from anywhere; cluster_config.yaml keeps what people wrote into it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common.cluster import load_cluster_config
from llmb_common.errors import ConfigError
from llmb_install.site_config import update_site_config
from llmb_install.wrappers import write_wrappers


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """An installation whose Python only says how it was called."""
    folder = tmp_path / 'an "odd" folder\'s $name'
    interpreter = folder / "venvs" / "llmb" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text('#!/bin/sh\nprintf "%s|" "$LLMB_INSTALL" "$4" "$5"\n')
    interpreter.chmod(0o755)
    write_wrappers(folder)
    return folder


def run(command: Path | str, *arguments: str, **env: str) -> str:
    env = {"PATH": "/usr/bin:/bin"} | env
    done = subprocess.run([str(command), *arguments], env=env, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_finds_its_installation_and_passes_arguments_on(install: Path) -> None:
    assert run(install / "bin" / "llmb-run", "a b", 'c"d') == f'{install}|a b|c"d|'


def test_it_works_through_relative_and_absolute_links(install: Path, tmp_path: Path) -> None:
    (tmp_path / "first").symlink_to(install / "bin" / "llmb-run")
    (tmp_path / "second").symlink_to("first")
    assert run(tmp_path / "second", "x", "y").startswith(f"{install}|x|")


def test_an_installation_that_the_user_named_wins(install: Path) -> None:
    assert run(install / "bin" / "llmb-run", "x", "y", LLMB_INSTALL="/other").startswith("/other|")


def test_without_its_python_the_command_says_what_to_do(install: Path) -> None:
    (install / "venvs" / "llmb" / "bin" / "python").unlink()
    done = subprocess.run([str(install / "bin" / "llmb-run")], capture_output=True, text=True)
    assert done.returncode == 3
    assert f"error: {install}/venvs/llmb/bin/python is missing, or you may not run it\n  -> " in done.stderr


def test_the_wrappers_are_clean_shell_and_written_once(install: Path) -> None:
    subprocess.run([str(Path(sys.executable).with_name("shellcheck")), str(install / "bin" / "llmb-run")], check=True)
    assert not write_wrappers(install)
    (install / "bin" / "llmb-install").unlink()
    assert write_wrappers(install)


def test_a_new_site_config_is_read_back(tmp_path: Path) -> None:
    python = str(tmp_path / "it's: a #venv" / "bin" / "python")
    assert update_site_config(tmp_path, {"cluster_type": "local", "repo": "/clone", "engine": {"python": python}})
    config = load_cluster_config(tmp_path)
    assert (config.cluster_type, config.repo, config.engine.python) == ("local", "/clone", python)


def test_comments_and_choices_survive_and_nothing_to_do_means_no_write(tmp_path: Path) -> None:
    path = tmp_path / "cluster_config.yaml"
    path.write_text("schema: 1\n# ask Ann before changing\ncluster_type: slurm # big\nslurm: {account: bench}\n")
    assert update_site_config(tmp_path, {"repo": "/clone", "slurm": {"gres": True}})
    text = path.read_text()
    assert "# ask Ann before changing\ncluster_type: slurm # big\n" in text
    config = load_cluster_config(tmp_path)
    assert (config.slurm.account, config.slurm.gres, config.repo) == ("bench", True, "/clone")
    assert not update_site_config(tmp_path, {"repo": "/clone"})


def test_a_broken_site_config_is_shown_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "cluster_config.yaml"
    path.write_text("schema: 1\nclustertype: slurm\n")
    with pytest.raises(ConfigError, match=r"cluster_config.yaml:2: unknown key 'clustertype'"):
        update_site_config(tmp_path, {"repo": "/clone"})
    assert path.read_text() == "schema: 1\nclustertype: slurm\n"
