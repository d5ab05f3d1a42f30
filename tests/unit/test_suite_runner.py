"""What ``tests/run`` installs, makes and starts, in a copy of it where every program is a stand-in that says so."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.processes import has_ended, wait_until
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("engine-cpu", "engine-cpu-0.6")
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SLOW = ("tests/cluster", "tests/training", "tests/install", "tests/terminal", "tests/browser")
REAL = ("bash", "env", "cat", "cp", "grep", "sed", "sha256sum", "mkdir", "rm", "mv", "tail", "dirname", "touch")
NEEDED = {"slurmctld", "slurmdbd", "squashfs-tools", "docker-registry", "git", "tmux", "python3"}
"""Packages of each kind of test."""

# By what it is asked. The suite waits for the engines here, as the tests that need one do.
PYTHON = """#!/bin/bash
case "$*" in
  --version) echo "Python 3.11.2" ;;
  *"print("*) echo 3.11 ;;
  "-m llmb_install.parts.uv "*) PYTHONPATH= exec "$SANDBOX/tools/uv" "${@:3}" ;;
  "-m pytest"*)
    echo "pytest ${*:3}" >> "$SANDBOX/calls"
    env > "$SANDBOX/pytest.env"
    for name in $LLMB_TEST_ENGINES; do
      for i in {1..1000}; do
        [[ ! -e .test/$name.status && ! -e $SANDBOX/maker ]] || break
        real-sleep 0.02
      done
    done
    [[ ! -e $SANDBOX/pytest.fails ]] || exit 1 ;;
  "./installer.py "*) exec "$SANDBOX/tools/make-engine" engine-cpu "$@" ;;
esac
"""
UV = """#!/bin/bash
echo "uv $*" >> "$SANDBOX/calls"
case "$1 $2" in
  "venv --seed") mkdir -p "${@: -1}/bin"; cp "$SANDBOX/tools/python3" "${@: -1}/bin/python" ;;
  "pip install") for i in {1..30}; do echo "line $i"; done; [[ ! -e $SANDBOX/uv.fails ]] ;;
esac
"""
ENGINE = """#!/bin/bash
echo "$* TP=${TP-} STAGE_PATH=${STAGE_PATH-} LLMB_INSTALL=${LLMB_INSTALL-}" >> "$SANDBOX/calls"
[[ ! -e $SANDBOX/hangs ]] || { echo $$ > "$SANDBOX/maker"; exec real-sleep 600; }
[[ ! -e $SANDBOX/engine.fails ]] || exit 3
mkdir -p ".test/install/venvs/$1/bin" .test/install/bin
touch "$SANDBOX/tools/llmb-install"
cp "$SANDBOX/tools/python3" ".test/install/venvs/$1/bin/python"
printf '#!/bin/bash\\nexec "$SANDBOX/tools/make-engine" engine-cpu-0.6 "$@"\\n' > .test/install/bin/llmb-install
chmod +x .test/install/bin/llmb-install
"""
PROGRAMS = {
    "python3": PYTHON,
    "uv": UV,
    "make-engine": ENGINE,
    "apt-get": """#!/bin/bash
echo "apt-get $* ${DEBIAN_FRONTEND-}" >> "$SANDBOX/calls"
[[ ! -s $SANDBOX/apt.$1 ]] || { cat "$SANDBOX/apt.$1"; sed -i 1,20d "$SANDBOX/apt.$1"; exit 100; }
""",
    "dpkg-query": """#!/bin/bash
echo dpkg-query >> "$SANDBOX/calls"
[[ -e $SANDBOX/bare ]] || echo "install ok installed"
""",
    "git": "#!/bin/bash\n",
    "id": '#!/bin/bash\necho "${USER_ID-0}"\n',
    "nproc": "#!/bin/bash\necho 2\n",
    "sleep": '#!/bin/bash\necho "sleep $*" >> "$SANDBOX/calls"\n',
}


@dataclass
class Sandbox:
    """A copy of ``tests/run`` and what it reads; ``calls`` are the programs that it started last."""

    root: Path
    calls: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tests/run", "pyproject.toml", *(f"installer/locks/{name}.txt" for name in ENGINES)):
            (self.root / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / "clone" / name)
        tools = self.root / "tools"
        tools.mkdir()
        for name in (*REAL, "chmod"):
            (tools / name).symlink_to(shutil.which(name) or "")
        (tools / "real-sleep").symlink_to(shutil.which("sleep") or "")
        for name, text in PROGRAMS.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        for version in VERSIONS:
            (tools / f"python{version}").symlink_to("python3")
        # Where the machine's own Python is preferred, it starts the stand-ins as well.
        parts = self.root / "clone" / "installer" / "llmb_install" / "parts"
        parts.mkdir(parents=True)
        (parts / "uv.py").write_text(f"import os, sys\nos.execv('{tools}/uv', ['uv', *sys.argv[1:]])\n")
        words = "['engine', 'engine-cpu', './installer.py', *sys.argv[1:]]"
        (self.root / "clone" / "installer.py").write_text(f"import os, sys\nos.execv('{tools}/make-engine', {words})\n")

    def put(self, *names: str, text: str = "") -> None:
        for name in names:
            (self.root / name).write_text(text)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        for name in ("calls", "pytest.env"):
            self.put(name)
        given = {"PATH": str(self.root / "tools"), "SANDBOX": str(self.root), "HOME": str(self.root)}
        given |= {"PYTHONDONTWRITEBYTECODE": "1", **variables}
        command = [str(self.root / "clone" / "tests" / "run"), *arguments]
        done = subprocess.run(command, env=given, cwd="/", capture_output=True, text=True, check=False, timeout=300)
        self.calls = (self.root / "calls").read_text().splitlines()
        self.environment = dict(
            line.split("=", 1) for line in (self.root / "pytest.env").read_text().splitlines() if "=" in line
        )
        return done

    def called(self, start: str) -> list[str]:
        return [call for call in self.calls if call.startswith(start)]

    @property
    def notes(self) -> str:
        return (self.root / "clone" / ".test" / "notes.txt").read_text()

    def made(self, name: str) -> str:
        """What ``.test`` has of this name."""
        path = self.root / "clone" / ".test" / name
        return path.read_text() if path.exists() else "nothing"


@pytest.fixture
def fresh(tmp_path: Path) -> Sandbox:
    """Nothing is there yet."""
    return Sandbox(tmp_path)


@pytest.fixture
def sandbox(fresh: Sandbox) -> Sandbox:
    """The environment and the engines are there."""
    clone = fresh.root / "clone"
    for folder in (clone / ".venv", *(clone / ".test" / "install" / "venvs" / name for name in ENGINES)):
        (folder / "bin").mkdir(parents=True)
        shutil.copy(fresh.root / "tools" / "python3", folder / "bin" / "python")
    files = {".venv/.installed": "pyproject.toml"}
    files |= {f".test/{name}.installed": f"installer/locks/{name}.txt" for name in ENGINES}
    for stamp, source in files.items():
        with (clone / source).open() as stream, (clone / stamp).open("w") as out:
            subprocess.run(["sha256sum"], stdin=stream, stdout=out, check=True)
    return fresh


@pytest.mark.slow
def test_a_fresh_machine_gets_everything_and_the_second_run_makes_nothing(fresh: Sandbox) -> None:
    fresh.put("bare")
    done = fresh.run(LLMB_INSTALL="/other")
    assert (done.returncode, done.stderr) == (0, "")
    update, install = fresh.called("apt-get")
    assert update == "apt-get update -qq noninteractive"
    assert install.startswith("apt-get install -y -qq --no-install-recommends ")
    assert set(install.split()) >= NEEDED
    assert f"== system packages: installing {' '.join(install.split()[5:-1])}" in done.stdout
    made = [call.split()[-1] for call in fresh.called("uv venv --seed --clear --python ")]
    assert made == [".venv", *(f".test/pythons/{version}" for version in VERSIONS if version != "3.11")]
    filled = fresh.called("uv pip install --python .venv/bin/py")
    assert sum(".[dev,install,report,hub]" in call for call in filled) == 1
    assert fresh.called("pytest")[0] == "pytest --collect-only -q", "its caches serve all workers"
    quickstart, second = fresh.called("engine")
    assert quickstart.split(maxsplit=1)[1] == (
        "./installer.py --quickstart --install-path .test/install TP=8 STAGE_PATH=/old LLMB_INSTALL="
    )
    assert second.startswith("engine-cpu-0.6 add pretrain_mbridge --install-path .test/install TP= ")
    assert fresh.environment["LLMB_TEST_ENGINES"] == "engine-cpu engine-cpu-0.6"
    assert [fresh.made(f"{name}.status") for name in ENGINES] == ["0\n", "0\n"]
    assert f"engine {ENGINES[1]}: made beside the tests (.test/{ENGINES[1]}.err)" in done.stdout
    assert ".venv: the project and its tools, with Python 3." in done.stdout

    (fresh.root / "bare").unlink()
    done = fresh.run()
    assert done.stdout.splitlines() == [
        "== system packages: all installed",
        *(f"== training engine {name}: up to date" for name in ENGINES),
        "== pytest",
    ]
    assert [call.split()[0] for call in fresh.calls if call != "dpkg-query"] == ["pytest"]
    assert fresh.environment["LLMB_TEST_ENGINES"] == ""
    assert fresh.notes == ""


def test_everything_runs_in_four_workers_more_than_there_are_cores(sandbox: Sandbox) -> None:
    sandbox.run()
    assert sandbox.called("pytest") == ["pytest --numprocesses 6 --dist loadscope --no-loadscope-reorder"]
    debian = "ID=debian" in Path("/etc/os-release").read_text().splitlines()
    said = sandbox.environment
    assert (said["LLMB_TEST_CLUSTER"], said.get("LLMB_TEST_BROWSER")) == ("required", "required" if debian else None)
    assert (said["LC_ALL"], said.get("PYTHONDONTWRITEBYTECODE")) == ("C.UTF-8", None)
    assert (said["LLMB_TEST_PYTHONS"], said.get("LLMB_TEST_PYTHONS_ALL")) == ("3.10 3.12 3.13 3.14", None)
    assert said["LLMB_TEST_NOTES"] == str(sandbox.root / "clone" / ".test" / "notes.txt")
    assert sandbox.run(LLMB_TEST_WORKERS="1").returncode == 0
    assert "pytest --numprocesses 1 " in sandbox.calls[-1]


def test_what_pytest_says_is_what_the_run_says(sandbox: Sandbox) -> None:
    sandbox.put("pytest.fails")
    assert sandbox.run("tests/unit").returncode == 1


@pytest.mark.parametrize("kind", ["another user", "no apt-get"])
def test_packages_are_roots_to_install_on_debian(sandbox: Sandbox, kind: str, texts: Texts) -> None:
    if kind == "no apt-get":
        (sandbox.root / "tools" / "apt-get").unlink()
    sandbox.put("bare")
    done = sandbox.run(USER_ID="1" if kind == "another user" else "0")
    assert done.returncode == 0
    assert not sandbox.called("apt-get")
    assert not sandbox.called("dpkg-query")
    texts(done.stdout, about="system packages")
    texts(sandbox.notes, about="system packages")
    assert "LLMB_TEST_CLUSTER" not in sandbox.environment


def test_packages_that_cannot_be_installed_end_it(sandbox: Sandbox, texts: Texts) -> None:
    sandbox.put("bare")
    sandbox.put("apt.update", text="E: The repository is not signed.\n")
    sandbox.put("apt.install", text="".join(f"line {number}\n" for number in range(1, 31)))
    done = sandbox.run()
    assert done.returncode == 1
    texts(done.stdout, about="apt-get update failed")
    *log, last = done.stderr.splitlines()
    assert log == [f"line {number}" for number in range(11, 31)]
    assert "slurmctld" in last
    assert len(sandbox.called("apt-get")) == 2
    assert not sandbox.called("pytest")


@pytest.mark.parametrize("times", [1, 2])
def test_another_users_lock_on_packages_is_waited_for(sandbox: Sandbox, times: int) -> None:
    sandbox.put("bare")
    lock = "E: Could not get lock /lists/lock. It is held by process 7 (apt)\n"
    sandbox.put("apt.install", text=times * (lock + 19 * "W: still\n"))
    done = sandbox.run()
    assert done.returncode == 0, done.stderr
    programs = [call.split()[0] for call in sandbox.calls if "dpkg" not in call]
    assert programs[: 2 + 2 * times] == ["apt-get", "apt-get", *times * ("sleep", "apt-get")]
    assert done.stdout.count("== waiting up to 600 s: Could not get lock /lists/lock. It is held by") == 1


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_starts_nothing(sandbox: Sandbox, option: str) -> None:
    done = sandbox.run(option)
    assert (done.returncode, done.stderr, sandbox.calls) == (0, "", [])
    assert "\n  tests/run --fast " in done.stdout
    assert "#" not in done.stdout


def test_the_fast_run_leaves_out_what_needs_packages_and_engines(sandbox: Sandbox) -> None:
    sandbox.put("bare")
    assert sandbox.run("--fast").returncode == 0
    (call,) = sandbox.calls
    left_out = {word.removeprefix("--ignore=") for word in call.split() if word.startswith("--ignore=")}
    assert left_out >= set(SLOW)
    assert call.startswith("pytest -m not slow --ignore=")
    assert call.endswith(" --numprocesses 5 --dist loadscope --no-loadscope-reorder")
    assert sandbox.notes.startswith(f"--fast: skipped {SLOW[0]} ")
    assert "LLMB_TEST_PYTHONS" not in sandbox.environment


def test_the_unit_tests_run_on_every_python_of_the_machine(sandbox: Sandbox, texts: Texts) -> None:
    absent = next(version for version in reversed(VERSIONS) if not Path(f"/usr/bin/python{version}").exists())
    (sandbox.root / "tools" / f"python{absent}").unlink()
    there = [version for version in VERSIONS if version != absent]
    assert sandbox.run("--pythons").returncode == 0
    assert [call.split()[-1] for call in sandbox.called("uv venv")] == [f".test/pythons/{v}" for v in there]
    assert sandbox.called("pytest") == ["pytest --numprocesses 2 --dist loadscope tests/lint/test_pythons.py"]
    assert sandbox.environment["LLMB_TEST_PYTHONS"] == " ".join(there)
    assert sandbox.environment["LLMB_TEST_PYTHONS_ALL"] == "1"
    assert sandbox.notes.splitlines() == [
        f"not on this machine, so not tested: Python {absent}",
        "--pythons: only the unit tests ran",
    ]
    refused = sandbox.run("--pythons", "tests/unit")
    assert (refused.returncode, refused.stdout, sandbox.calls) == (1, "", [])
    texts(refused.stderr)


@pytest.mark.parametrize(
    ("words", "light"),
    [
        ("-k plan", False),
        ("tests/unit", True),
        ("-x tests/unit/test_plan.py tests/lint -k plan", True),
        ("tests/unit tests/training", False),
        ("tests", False),
    ],
)
def test_a_selection_of_unit_tests_needs_no_packages_and_no_engine(sandbox: Sandbox, words: str, light: bool) -> None:
    for name in ENGINES:
        (sandbox.root / "clone" / ".test" / f"{name}.installed").unlink()
    assert sandbox.run(*words.split()).returncode == 0
    assert sandbox.called("pytest") == [f"pytest {words}"]
    assert bool(sandbox.called("dpkg-query")) is not light
    assert len(sandbox.called("engine")) == (0 if light else 2)
    assert sandbox.notes == f"only the selection ran: pytest {words}\n"
    assert "LLMB_TEST_PYTHONS" not in sandbox.environment


def test_a_whole_run_needs_git_which_a_selection_does_not(sandbox: Sandbox, texts: Texts) -> None:
    (sandbox.root / "tools" / "git").unlink()
    for arguments in ([], ["--pythons"]):
        done = sandbox.run(*arguments)
        assert done.returncode == 1
        texts(done.stderr)
        assert not sandbox.called("pytest")
    assert sandbox.run("tests/unit").returncode == 0


def test_an_environment_is_made_again_when_the_project_has_changed(sandbox: Sandbox, texts: Texts) -> None:
    with (sandbox.root / "clone" / "pyproject.toml").open("a") as stream:
        stream.write("# more\n")
    sandbox.put("uv.fails")
    done = sandbox.run("tests/unit")
    assert done.returncode == 1
    *log, last = done.stderr.splitlines()
    assert log == [f"line {number}" for number in range(11, 31)]
    texts(last)
    assert [call.split()[1] for call in sandbox.calls] == ["pip"], "the environment itself stays"

    (sandbox.root / "uv.fails").unlink()
    assert sandbox.run("tests/unit").returncode == 0
    assert sandbox.run("tests/unit").returncode == 0
    assert [call.split()[0] for call in sandbox.calls] == ["pytest"]


def test_engines_that_are_named_are_not_made(sandbox: Sandbox, texts: Texts) -> None:
    shutil.rmtree(sandbox.root / "clone" / ".test" / "install")
    one = {"LLMB_TEST_ENGINE": "/some/python"}
    sandbox.run("tests/training", **one)
    assert not sandbox.called("engine")
    texts(sandbox.notes, about="training engine")
    sandbox.run("tests/training", **one, LLMB_TEST_ENGINE_0_6="/other/python")
    assert not sandbox.called("engine")
    texts(sandbox.notes, about="training engine")


def test_an_engine_that_is_not_made_leaves_its_status_to_the_tests(sandbox: Sandbox) -> None:
    lock = sandbox.root / "clone" / "installer" / "locks" / f"{ENGINES[0]}.txt"
    lock.write_text("changed\n")
    sandbox.put("engine.fails")
    for name in ENGINES:
        for kind in ("out", "err", "status"):
            (sandbox.root / "clone" / ".test" / f"{name}.{kind}").write_text("of another day")
    before = sandbox.made(f"{ENGINES[0]}.installed")
    done = sandbox.run("tests/training")
    assert done.returncode == 0
    assert len(sandbox.called("engine")) == 1, "the other one is up to date"
    assert sandbox.made(f"{ENGINES[0]}.status") == "3\n"
    assert sandbox.made(f"{ENGINES[0]}.installed") == before
    assert sandbox.made(f"{ENGINES[0]}.err") == ""
    assert {sandbox.made(f"{ENGINES[1]}.{kind}") for kind in ("out", "err", "status")} == {"nothing"}


def test_making_an_engine_ends_with_the_tests(sandbox: Sandbox) -> None:
    shutil.rmtree(sandbox.root / "clone" / ".test" / "install")
    sandbox.put("hangs")
    assert sandbox.run("tests/training").returncode == 0
    maker = int((sandbox.root / "maker").read_text())
    wait_until(lambda: has_ended(maker), "the end of the installer", 60)
