"""One installation for several people: a real second user, who may read it and not write."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from install_world import World, copy_clone, make_world

from support.images import add_to_registry

COLLEAGUE = "nobody"
"""A user that every Linux has, and that owns nothing."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


@pytest.fixture(scope="module")
def site() -> Iterator[World]:
    """A folder that everybody can reach, with a clone and a Python for everybody, and the colleague's own folder."""
    program = "import ensurepip, sys; sys.exit(sys.version_info < (3, 10))"
    if subprocess.run(["/usr/bin/python3", "-c", program], capture_output=True).returncode != 0:
        pytest.skip("/usr/bin/python3, which both users can run, is older than 3.10 or has no venv")
    top = Path(tempfile.mkdtemp(prefix="llmb-shared-"))
    top.chmod(0o755)
    copy_clone(top / "clone", {"tests", "docs", "benchmarks", "llmb_install"})
    world = make_world(top, Path(__file__).parents[1] / "support" / "bin")
    add_to_registry(world.registry, "nvcr.io#nvidia/nemo:26.02", {}, ("x86_64",), programs=("bash", "cat"))
    own = top / "own"
    own.mkdir()
    shutil.chown(own, COLLEAGUE)
    yield world
    shutil.rmtree(top)


def install(site: World, folder: Path, umask: int) -> subprocess.CompletedProcess[str]:
    """As an administrator does it: with a Python that everybody may run."""
    flags = ["--install-path", str(folder), "--workloads", "grok1", "--runtime", "none", "--engine-python", "/bin/sh"]
    flags += ["--cluster-type", "slurm", "--account", "bench", "--gpu-partition", "gpu", "--gpu-type", "h100"]
    shell = f'umask {umask:03o}; exec /usr/bin/python3 "{site.root}/clone/installer.py" "$@"'
    return site.run(*flags, "--no-site-check", program=["bash", "-c", shell, "installer"])


def colleague(site: World, install: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` as the other user, in the clone's grok1."""
    group = str(pwd.getpwnam(COLLEAGUE).pw_gid)
    words = ["setpriv", "--reuid", COLLEAGUE, "--regid", group, "--clear-groups", *command]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(site.root / "own"), "LLMB_INSTALL": str(install)} | env
    grok1 = site.root / "clone" / "grok1"
    return subprocess.run(words, cwd=grok1, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_colleague_uses_it_and_keeps_runs_elsewhere(site: World) -> None:
    shared = site.root / "llmb"
    done = install(site, shared, 0o022)
    assert done.returncode == 0, done.stderr
    assert "umask" not in done.stderr

    assert "pretrain_grok1" in colleague(site, shared, str(shared / "bin" / "llmb-run"), "list").stdout
    done = colleague(site, shared, str(shared / "bin" / "llmb-install"), "verify")
    assert done.returncode == 0, done.stderr
    job = {"JOB_TOTAL_GPUS": "8", "GPU_TYPE": "h100", "MODEL_SIZE": "smoke"}
    done = colleague(site, shared, "./launch.sh", **job)
    assert done.returncode == 3
    assert re.search(r"Permission denied\n  -> .*\bexport LLMB_WORKLOAD=", done.stderr)
    own = site.root / "own" / "grok1"
    done = colleague(site, shared, "./launch.sh", **job, LLMB_WORKLOAD=str(own))
    # There is no Slurm here: a run folder was made and announced, then sbatch is missing or knows no cluster.
    assert f"  {own}/experiments/pretraining_grok1_smoke" in done.stderr
    assert "Permission denied" not in done.stderr
    done = colleague(site, shared, str(shared / "bin" / "llmb-install"), "uninstall", "--yes")
    assert (done.returncode, " root" in done.stderr, (shared / "bin" / "llmb-run").exists()) == (3, True, True), (
        done.stderr
    )


def test_under_umask_077_it_is_private_and_both_are_told(site: World) -> None:
    private = site.root / "private"
    done = install(site, private, 0o077)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\bumask 077\b.*\bchmod go\+rX\b", done.stderr)
    done = colleague(site, private, "./launch.sh", JOB_TOTAL_GPUS="8", MODEL_SIZE="smoke")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"error: LLMB_INSTALL={private} " in done.stderr
    assert "Traceback" not in done.stderr

    subprocess.run(["chmod", "go+rX", str(private)], check=True)
    subprocess.run(["chmod", "-R", "go+rX", str(private / "bin"), str(private / "venvs")], check=True)
    assert "pretrain_grok1" in colleague(site, private, str(private / "bin" / "llmb-run"), "list").stdout
    assert stat.S_IMODE((private / ".llmb").stat().st_mode) == 0o700, "answers, logs and a token stay closed"
