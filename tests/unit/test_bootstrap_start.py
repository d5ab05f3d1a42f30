"""installer.py starts with only the standard library, even on old Pythons, and says what it needs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_install.parts.engine import HUB_IMPORTS, TOOL_IMPORTS
from support.texts import Texts

CLONE = Path(__file__).resolve().parents[2]
INSTALLER = CLONE / "installer.py"
_PACKAGES = ("__init__", "uv", "package_index", "pip_settings", "refusals", "fetching")
OLD = ("__init__", "parts/__init__", *(f"parts/{name}" for name in _PACKAGES))
"""What an old Python imports."""


def call(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)


def test_the_symlink_at_the_root_is_the_executable_installer() -> None:
    assert INSTALLER.resolve() == CLONE / "installer" / "installer.py"
    assert os.access(INSTALLER, os.X_OK)


@pytest.mark.parametrize("name", ["installer.py", *(f"llmb_install/{name}.py" for name in OLD)])
def test_what_an_old_python_parses_is_valid_python_3_6(name: str) -> None:
    tree = ast.parse((CLONE / "installer" / name).read_text(), feature_version=(3, 6))
    future = [node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "annotations" not in future, "Python 3.6 refuses that import"


@pytest.mark.slow
def test_a_real_python_3_6_hands_over_to_a_newer_one_or_says_what_to_do(tmp_path: Path) -> None:
    managed = Path(os.environ.get("PYENV_ROOT", "/nowhere")) / "versions"
    names = ["python3.6", "/usr/libexec/platform-python", *map(str, managed.glob("3.6.*/bin/python"))]
    program = "import sys; sys.exit(sys.version_info[:2] != (3, 6))"
    found = [path for name in names if (path := shutil.which(name))]
    old = next((path for path in found if call(path, "-c", program).returncode == 0), None)
    if old is None:
        pytest.skip("no Python 3.6 on this machine: only its grammar was checked")
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = call(str(old), str(INSTALLER), "--help", env=env)
    assert done.returncode == 3
    assert re.findall(r"\b3\.\d+", done.stderr)[:2] == ["3.10", "3.6"], "wanted, here"
    (tmp_path / "python3.11").symlink_to(sys.executable)
    done = call(str(old), str(INSTALLER), "--help", env=env)
    assert (done.returncode, "--quickstart" in done.stdout) == (0, True), done.stderr


def test_the_first_stage_imports_nothing_that_must_be_installed() -> None:
    # -S: no site-packages, so importing anything but the standard library fails.
    program = "import sys; sys.path[:0] = sys.argv[1:]; import llmb_install.bootstrap"
    done = call(sys.executable, "-I", "-S", "-c", program, str(CLONE / "installer"), str(CLONE / "common"))
    assert done.returncode == 0, done.stderr


def start_as_old_python(path: Path, *words: str, program: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Start the installer under a Python that claims to be 3.8, with ``path`` as its PATH."""
    code = (
        "import runpy, sys; sys.version_info = (3, 8, 18, 'final', 0); sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    # The developer's uv-managed Pythons must not be found either.
    env = {"PATH": str(path), "HOME": str(path)}
    return call(program, "-I", "-c", code, str(INSTALLER), *(words or ["--help"]), env=env)


def test_an_old_python_hands_over_to_a_newer_one_on_path(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    shim = tmp_path / "python3.11"
    shim.write_text("#!/bin/sh\necho 'shim: not installed' >&2\nexit 127\n")
    shim.chmod(0o755)
    (tmp_path / "python3.12").symlink_to(sys.executable)
    done = start_as_old_python(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--quickstart" in done.stdout


def test_an_old_python_alone_says_what_to_do(tmp_path: Path, texts: Texts) -> None:
    done = start_as_old_python(tmp_path)
    assert done.returncode == 3
    texts(done.stderr)


@pytest.mark.parametrize("fetches", [True, False])
def test_uv_fetches_another_python(tmp_path: Path, fetches: bool, texts: Texts) -> None:
    """uv stands beside the old Python; what it puts where it keeps its own is what goes on."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "python3").symlink_to(sys.executable)
    managed = tmp_path / ".local/share/uv/python/cpython-3.12.1-linux/bin"
    fetch = f"/bin/mkdir -p {managed} && /bin/ln -s {sys.executable} {managed}/python3.12"
    (old / "uv").write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\n{fetch if fetches else 'echo no route; exit 2'}\n")
    (old / "uv").chmod(0o755)
    done = start_as_old_python(tmp_path, "--quikstart", program=str(old / "python3"))
    assert (tmp_path / "asked").read_text() == "python install --no-bin 3.12\n"
    assert done.returncode == (2 if fetches else 3), done.stderr
    texts(done.stderr)


@pytest.mark.parametrize("module", ["shutil", "ssl"])
def test_a_python_without_all_of_its_library_is_told_so(module: str, texts: Texts) -> None:
    """Debian's python3-minimal lacks shutil, a Python that was built without OpenSSL lacks ssl."""
    program = f"import runpy, sys; sys.modules[{module!r}] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = call(sys.executable, "-I", "-c", program, str(INSTALLER))
    assert (done.returncode, done.stderr.count("\n")) == (3, 2), done.stderr
    texts(done.stderr, mask=r"standard library: .*")
    assert module in done.stderr


def test_mistakes_are_reported_before_anything_is_installed(tmp_path: Path, texts: Texts) -> None:
    done = call(sys.executable, str(INSTALLER), "--quikstart", "--install-path", str(tmp_path / "new"))
    assert done.returncode == 2
    texts(done.stderr)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("module", ["llmb_install.bootstrap", "llmb_install.arguments"])
def test_ctrl_c_during_start_up_gives_no_traceback(module: str) -> None:
    program = (
        "import os, runpy, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        f"runpy.run_path({str(INSTALLER)!r}, run_name='__main__')\n"
    )
    done = call(sys.executable, "-c", program)
    # The shell reports this as 130.
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


def test_every_dependency_is_imported_before_the_environment_counts_as_good() -> None:
    text = (CLONE / "pyproject.toml").read_text()
    for extras, number, imports in (("dependencies|install", 7, TOOL_IMPORTS), ("hub", 3, HUB_IMPORTS)):
        found = re.findall(rf"^(?:{extras}) = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        wanted = set(re.findall(r'"([a-z_.-]+)>=', "".join(found)))
        assert len(wanted) == number, wanted
        assert {"yaml" if name == "pyyaml" else name for name in wanted} == set(imports)
