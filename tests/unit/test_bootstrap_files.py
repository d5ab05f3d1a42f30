"""The commands in bin/ work from anywhere; cluster_config.yaml keeps what people wrote into it."""

from __future__ import annotations

import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common.base.packages import damaged_files
from llmb_common.planning.site.cluster import load_cluster_config
from llmb_install.installation import SiteConfig, leaves, write_site_config
from llmb_install.parts.files import commands
from llmb_install.parts.package_files import add_clone
from llmb_install.working.reporter import Reporter
from llmb_install.working.transaction import remove_leftovers
from support.installer import CLONE
from support.processes import wait_until


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """An installation whose Python only prints how it was called."""
    folder = tmp_path / 'an "odd" folder\'s $name'
    interpreter = folder / "venvs" / "llmb" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text('#!/bin/sh\nprintf "%s|" "$LLMB_INSTALL" "$5" "$6"\n')
    interpreter.chmod(0o755)
    commands(folder / "bin").ensure(Reporter(None))
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


def test_no_cdpath_leads_elsewhere(install: Path, tmp_path: Path) -> None:
    """``cd`` looks there first, and prints where it went."""
    (tmp_path / "other" / "bin").mkdir(parents=True)
    env = {"PATH": "/usr/bin:/bin", "CDPATH": str(tmp_path / "other")}
    command = ["bin/llmb-install", "x", "y"]
    done = subprocess.run(command, env=env, cwd=install, capture_output=True, text=True, check=True)
    assert done.stdout == f"{install}|x|y|"


def test_an_installation_that_the_user_named_wins(install: Path) -> None:
    assert run(install / "bin" / "llmb-run", "x", "y", LLMB_INSTALL="/other").startswith("/other|")


def test_llmb_install_acts_on_its_own_installation(install: Path, tmp_path: Path) -> None:
    """Removing or changing an installation other than the command's own would be a surprise."""
    other = tmp_path / "other"
    other.mkdir()
    for named in (other, tmp_path / "not there"):
        done = subprocess.run(
            [str(install / "bin" / "llmb-install"), "uninstall", "--yes"],
            env={"PATH": "/usr/bin:/bin", "LLMB_INSTALL": str(named)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout == f"{install}|uninstall|--yes|"
        assert done.stderr.count("\n") == 1
        assert re.search(rf"{re.escape(str(install))} .*\bLLMB_INSTALL={re.escape(str(named))}\n", done.stderr)
    (tmp_path / "link").symlink_to(install)
    assert run(install / "bin" / "llmb-install", "x", "y", LLMB_INSTALL=f"{tmp_path}/link") == f"{tmp_path}/link|x|y|"


@pytest.mark.parametrize("command", ["llmb-run", "llmb-install"])
def test_a_moved_clone_and_a_missing_package_are_reported_with_a_remedy(tmp_path: Path, command: str) -> None:
    """A real environment, without pip, that knows its clone as the tool's does."""
    home, clone = tmp_path / "it's here", tmp_path / "the clöne"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "venvs" / "llmb")], check=True)
    add_clone(home / "venvs" / "llmb", clone)
    commands(home / "bin").ensure(Reporter(None))
    again = f"installer.py update --install-path {shlex.quote(str(home))}"
    done = subprocess.run([str(home / "bin" / command)], capture_output=True, text=True)
    error, remedy = done.stderr.splitlines()
    assert (done.returncode, str(home) in error, str(clone) in error) == (3, True, True)
    assert f" ./{again} " in remedy
    module = clone / "cli" / command.replace("-", "_")
    module.mkdir(parents=True)
    (clone / "common").symlink_to(CLONE / "common")
    (module / "main.py").write_text("def main():\n    import no_such_package\n")
    done = subprocess.run([str(home / "bin" / command)], capture_output=True, text=True)
    error, remedy = done.stderr.splitlines()
    assert done.returncode == 3
    assert ("no_such_package" in error, f"{home}/venvs/llmb" in error) == (True, True)
    assert remedy.endswith(f": {shlex.quote(str(clone))}/{again}")


@pytest.mark.parametrize("name", ["bücher", 'it\'s "$HOME"', "a\nb", "\udce4"], ids=ascii)
def test_a_clone_is_imported_whatever_its_path_and_the_locale(tmp_path: Path, name: str) -> None:
    environment, clone = tmp_path / "made", tmp_path / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    for folder in ("common", "cli", "installer"):
        (clone / folder).mkdir(parents=True)
        (clone / folder / f"in_{folder}.py").touch()
    add_clone(environment, clone)
    argv = [str(environment / "bin" / "python"), "-I", "-W", "error", "-c", "import in_common, in_cli, in_installer"]
    for more in ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}, {"LC_ALL": "xx_XX"}):
        done = subprocess.run(argv, env=more, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), more
    assert list(damaged_files(environment)) == []
    (line,) = environment.glob("lib/python3.*/site-packages/llmb.pth")
    line.write_bytes(line.read_bytes() + b"\n")
    assert [said.split()[0] for said in damaged_files(environment)] == ["llmb.pth"]


def test_leftovers_are_only_what_the_installer_writes(tmp_path: Path) -> None:
    """An installation may share its folder: a home folder has files that end in numbers too."""
    theirs = [".zcompdump-host-5.8", ".x.12", "tmp/x", "bin/.my-tool.12.deadbeef", "images/.other.12"]
    theirs += ["another/.llmb/tmp/x", ".llmb/lock", ".llmb/answers.yaml"]
    for name in (".llmb/tmp/x", *theirs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert remove_leftovers(tmp_path) == [tmp_path / ".llmb" / "tmp" / "x"]
    assert all((tmp_path / name).exists() for name in theirs)


def test_a_killed_import_is_ended_and_what_it_unpacked_is_removed(tmp_path: Path) -> None:
    """Of this host alone: ``/tmp`` of another is another."""
    state, scratch = tmp_path / ".llmb", tmp_path / "scratch"
    scratch.mkdir()
    kept = scratch / "llmb-import.1"
    kept.mkdir()
    program = (
        "from llmb_install.working.transaction import import_folder; from pathlib import Path; import os, sys, time\n"
    )
    program += (
        "with import_folder(*map(Path, sys.argv[1:])) as env: os.execvpe('sleep', ['sleep', '1000'], os.environ | env)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(scratch)]) as killed:
        wait_until(lambda: Path(f"/proc/{killed.pid}/comm").read_text() == "sleep\n", "the start of the import", 20)
        (link,) = state.iterdir()
        layer = link.readlink() / "enroot.x" / "layer"
        layer.mkdir(parents=True)
        (layer / "file").touch()
        layer.chmod(0o500)
        elsewhere = state / f"{link.name}.example"
        elsewhere.symlink_to(link.readlink())
        misleading = state / f"llmb-import.2@{platform.node()}"
        misleading.symlink_to(kept)
        try:
            remove_leftovers(tmp_path)
            assert killed.wait(100) == -signal.SIGTERM
        finally:
            killed.kill()
    assert list(scratch.iterdir()) == [kept]
    assert sorted(state.iterdir()) == sorted([elsewhere, misleading])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_leftovers_of_somebody_else_stay(tmp_path: Path) -> None:
    path = tmp_path / ".llmb" / "tmp" / "x"
    path.parent.mkdir(parents=True)
    path.touch()
    os.chown(path, 12345, 12345)
    assert remove_leftovers(tmp_path) == []
    assert path.exists()


@pytest.mark.parametrize("left", ["", "# was here\n", "schema: 1\ncluster_type: slurm\nslurm: {account: ann}\n"])
def test_deleted_keys_come_back_and_edited_ones_stay(tmp_path: Path, left: str) -> None:
    values = {"cluster_type": "slurm", "gpu_type": "h100", "slurm": {"account": "bench", "gpu_partition": "gpu"}}
    SiteConfig(tmp_path, values).make()
    path = tmp_path / "cluster_config.yaml"
    path.write_text(left)
    lost = ["cluster_type", "gpu_type", "slurm.account", "slurm.gpu_partition"]
    lacking = [lost[1], lost[3]] if "account" in left else lost
    named = f"lacks {', '.join(lacking)} (to do without one, write null)" if "account" in left else "is empty"
    assert SiteConfig(tmp_path, values).verify() == f"{path} {named}"
    assert not SiteConfig(tmp_path, values).is_complete()
    SiteConfig(tmp_path, values).make()
    assert SiteConfig(tmp_path, values).is_complete()
    config = load_cluster_config(tmp_path)
    assert (config.gpu_type, config.slurm.gpu_partition) == ("h100", "gpu")
    assert config.slurm.account == ("ann" if "account" in left else "bench")
    assert path.read_text().startswith(left.partition("\n")[0])


def test_null_leaves_a_key_unset(tmp_path: Path) -> None:
    SiteConfig(tmp_path, {"cluster_type": "slurm", "slurm": {"account": "bench"}}).make()
    path = tmp_path / "cluster_config.yaml"
    path.write_text(path.read_text().replace("account: bench", "account: null"))
    assert SiteConfig(tmp_path, {"cluster_type": "slurm", "slurm": {"account": "bench"}}).is_complete()


def test_without_its_python_the_command_says_what_to_do(install: Path) -> None:
    (install / "venvs" / "llmb" / "bin" / "python").unlink()
    done = subprocess.run([str(install / "bin" / "llmb-run")], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: {install}/venvs/llmb/bin/python ")
    pasted = done.stderr.rpartition("(")[2].partition(": ")[2].rstrip(")\n")
    assert shlex.split(pasted)[1:] == ["uninstall", "--install-path", str(install)]


def test_the_wrappers_are_clean_shell_and_written_once(install: Path) -> None:
    subprocess.run([str(Path(sys.executable).with_name("shellcheck")), str(install / "bin" / "llmb-run")], check=True)
    assert not commands(install / "bin").ensure(Reporter(None))
    (install / "bin" / "llmb-install").unlink()
    assert commands(install / "bin").ensure(Reporter(None))


def test_a_new_site_config_is_read_back(tmp_path: Path) -> None:
    python = str(tmp_path / "it's: a #venv" / "bin" / "python")
    values = {"cluster_type": "local", "repo": "/clone", "engine": {"python": python}}
    assert write_site_config(tmp_path, leaves(values))
    config = load_cluster_config(tmp_path)
    assert (config.cluster_type, config.repo, config.engine.python) == ("local", "/clone", python)


def test_comments_and_choices_survive_and_an_unchanged_file_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "cluster_config.yaml"
    path.write_text('schema: 1\n# ask Ann before changing\ncluster_type: "slurm" # big\nslurm: {account: bench}\n')
    assert write_site_config(tmp_path, leaves({"repo": "/clone", "slurm": {"gres": True}}))
    text = path.read_text()
    assert '# ask Ann before changing\ncluster_type: "slurm" # big\n' in text
    config = load_cluster_config(tmp_path)
    assert (config.slurm.account, config.slurm.gres, config.repo) == ("bench", True, "/clone")
    assert not write_site_config(tmp_path, leaves({"repo": "/clone"}))
