"""Environments filled by stand-ins for uv and conda: what is run, in which order, what a failure says."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.packages import damaged_files
from llmb_common.base.printable import size
from llmb_install.parts import environment_build, package_files, uv
from llmb_install.parts.environment_build import CPU_TORCH_INDEX, Content, smoke_problem
from llmb_install.parts.pip_settings import IndexSettings
from llmb_install.parts.refusals import Unavailable
from llmb_install.working import command
from llmb_install.working.artefact import read_receipt
from llmb_install.working.reporter import Reporter, Step
from support.texts import Texts

HASH = "--hash=sha256:" + 64 * "0"
LOCK = f"six==1.17.0 \\\n    {HASH}\ntorch==2.9.1 \\\n    {HASH}\nsetuptools==80.9.0 \\\n    {HASH}\n"
HASHED = ["--require-hashes", "--no-deps"]

# Notes its words, does what `does` says for a line with these words (exit status, output), and makes a venv.
PROGRAM = r"""#!/bin/sh
echo "$(basename "$0") $*" | tr '\n' ' ' >> {folder}/calls
echo >> {folder}/calls
env > {folder}/environment
while IFS='|' read -r words status text; do
  case "$(basename "$0") $*" in *"$words"*) [ -n "$text" ] && printf '%b\n' "$text"; exit "$status";; esac
done < {folder}/does
case "$*" in
  "venv "*|"create "*)
    for folder in "$@"; do
      case $folder in {folder}/made*)
        mkdir -p $folder/bin $folder/lib/python3.11/site-packages; cp "$0" $folder/bin/python;;
      esac
    done;;
esac
"""


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        (folder / "does").touch()
        (folder / "lock.txt").write_text(LOCK)
        self.python = str(self.program("python3"))
        self.content = Content(
            link=folder / "engine", python=self.python, lock=folder / "lock.txt", smoke=("torch", "six")
        )
        self.made = folder / "made-1"

    def program(self, name: str) -> Path:
        path = self.folder / "bin" / name
        path.write_text(PROGRAM.replace("{folder}", str(self.folder)))
        path.chmod(0o755)
        return path

    def does(self, words: str, status: int, text: str = "") -> None:
        """Whatever is called with ``words`` says ``text`` and ends with ``status``."""
        with (self.folder / "does").open("a") as file:
            file.write(f"{words}|{status}|{text}\n")

    def build(self, content: Content | None = None) -> None:
        with Reporter(None, stream=io.StringIO()) as reporter:
            environment_build.build_environment(content or self.content, self.made, reporter, Step("environment"))

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path / "world")
    monkeypatch.setenv("PATH", f"{world.folder / 'bin'}:/usr/bin:/bin")
    world.program("uv")
    monkeypatch.setattr(uv, "BESIDE", world.folder / "bin")  # beside the Python of these tests is a real one
    return world


UV_OPTIONS = ["--index-strategy", "unsafe-best-match", "--link-mode", "hardlink"]


def install(world: World) -> list[str]:
    """How uv is called to install something."""
    options = [*UV_OPTIONS, "--cache-dir", f"{world.folder}/.uv-engine"]
    return ["uv", "pip", "install", "--python", str(world.made / "bin" / "python"), *options]


def test_an_engine_gets_torch_then_its_build_backend_then_the_rest(world: World) -> None:
    """One process for each step, byte code for those who cannot write there, a cache that is gone in the end."""
    world.build()
    created, torch, backend, packages, checked = world.calls()
    cache = ["--cache-dir", f"{world.folder}/.uv-engine"]
    assert created == ["uv", "venv", *cache, "--python", world.python, str(world.made)]
    assert torch == [*install(world), *HASHED, "-r", f"{world.made}/.llmb-lock-torch.txt"]
    assert backend == [*install(world), *HASHED, "-r", f"{world.made}/.llmb-lock-setuptools.txt"]
    assert packages == [*install(world), "--no-build-isolation", *HASHED, "-r", f"{world.folder}/lock.txt"]
    assert checked[:3] == ["python", "-I", "-c"]
    assert "compileall" in checked
    assert checked[-1] == f"{world.made}/lib/python3.11/site-packages"
    text = (world.made / ".llmb-lock-torch.txt").read_text()
    assert text == f"torch==2.9.1 \\\n    {HASH}\n"


def test_the_tool_is_the_clone_with_what_its_lock_says(world: World, tmp_path: Path) -> None:
    world.build(replace(world.content, editable=tmp_path / "clone"))
    _, packages, *_ = world.calls()
    assert packages == [*install(world), *HASHED, "-r", f"{world.folder}/lock.txt"]
    assert str(tmp_path / "clone" / "cli") in next(world.made.glob("lib/python3.*/site-packages/llmb.pth")).read_text()


def test_a_lock_without_torch_or_a_backend_is_installed_at_once(world: World) -> None:
    (world.folder / "lock.txt").write_text(f"six==1.17.0 \\\n    {HASH}\n")
    world.build()
    assert [call[-1] for call in world.calls()[1:-1]] == [f"{world.folder}/lock.txt"]
    assert "--no-build-isolation" not in world.calls()[1]


def test_torch_is_looked_for_where_there_are_cpu_builds(world: World, texts: Texts) -> None:
    world.does("lock-torch", 1, "no matching distribution")
    with texts.raises(EnvironmentLacks) as caught:
        world.build()
    _, first, of_pytorch = world.calls()
    assert "--torch-backend" not in first
    assert of_pytorch[of_pytorch.index("--torch-backend") + 1] == "cpu"
    assert CPU_TORCH_INDEX in caught.value.remedy


def test_torch_of_pytorchs_index_will_do(world: World) -> None:
    world.does("--torch-backend cpu", 0)
    world.does("lock-torch", 1, "no matching distribution")
    world.build()
    assert len(world.calls()) == 6


def test_a_full_disk_ends_the_search_at_once(world: World, texts: Texts) -> None:
    world.does("lock-torch", 1, "error: No space left on device (os error 28)")
    with texts.raises(EnvironmentLacks):
        world.build()
    assert len(world.calls()) == 2


def test_conda_makes_it_on_request_and_uv_fills_it(world: World, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    with texts.raises(EnvironmentLacks):
        world.build(replace(world.content, kind="conda"))
    world.program("micromamba")
    monkeypatch.setattr(uv, "version_of", lambda python: (3, 11))
    world.build(replace(world.content, kind="conda"))
    made = next(call for call in world.calls() if call[0] == "micromamba")
    assert made == ["micromamba", "create", "--yes", "--prefix", str(world.made), "python=3.11"]
    assert world.calls()[-2][:9] == install(world)[:9]
    for better in ("mamba", "conda"):
        world.program(better)
        world.build(replace(world.content, kind="conda"))
        assert [call[0] for call in world.calls() if "create" in call][-1] == better


def test_what_uv_has_fetched_waits_for_the_next_attempt(world: World) -> None:
    cache = world.folder / ".uv-engine"
    cache.mkdir()
    world.does("lock.txt", 1, "no route to host")
    with pytest.raises(EnvironmentLacks):
        world.build()
    assert cache.exists()
    (world.folder / "does").write_text("")
    world.build()
    assert not cache.exists()


def test_without_uv_on_this_machine_it_comes_from_the_index(
    world: World, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr(uv, "BESIDE", world.folder)

    def fetched(folder: Path, told: IndexSettings) -> str:
        folder.mkdir()
        return str(world.program("uv").replace(folder / "uv"))

    monkeypatch.setattr(uv, "fetch_uv", fetched)
    world.build()
    assert [call[0] for call in world.calls()] == ["uv", "uv", "uv", "uv", "python"]
    assert not (world.folder / ".uv-engine").exists()

    def nowhere(folder: Path, told: IndexSettings) -> str:
        raise Unavailable("no route\nto it", "look")

    monkeypatch.setattr(uv, "fetch_uv", nowhere)
    with texts.raises(EnvironmentLacks):
        world.build()


def test_an_index_that_uv_does_not_reach_is_all_that_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    has_it = world.folder / "wheels" / "six-1.17.0-py3-none-any.whl"
    has_it.parent.mkdir()
    has_it.touch()
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://me:secret@127.0.0.1:1/simple")
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "UV_INDEX": "", "UV_FIND_LINKS": str(has_it.parent)}.items():
        monkeypatch.setenv(name, value)  # uv gives up where one of several places does not answer
    said = "error: Request failed\n  cause: Failed to fetch: http://127.0.0.1:1/simple/six/\n  cause: error sending\n"
    world.does("--no-build-isolation", 2, said.replace("\n", "\\n") + "  cause: no route")
    with pytest.raises(EnvironmentLacks) as caught:
        world.build()
    problem, remedy = str(caught.value).splitlines()
    texts(problem)
    assert "UV_DEFAULT_INDEX" in remedy


def test_a_password_in_an_address_is_for_nobody_elses_eyes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody sees a program's arguments, and nobody another user's environment."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@pypi.example/simple")
    world.build()
    assert not any("secret" in word for call in world.calls() for word in call)


def test_what_would_send_uv_elsewhere_does_not_reach_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ["PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_PREFIX"]
    lost += ["PYTHONIOENCODING"]
    lost += ["UV_CONSTRAINT", "UV_EXCLUDE_NEWER", "UV_NO_CACHE", "UV_WORKING_DIR", "UV_INDEX_STRATEGY", "UV_NO_BUILD"]
    sources = ["UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_SITE_PASSWORD", "UV_EXTRA_INDEX_URL", "UV_HTTP_TIMEOUT"]
    sources += ["UV_KEYRING_PROVIDER", "UV_CONFIG_FILE", "UV_NATIVE_TLS", "UV_PYTHON_INSTALL_DIR", "UV_S3_ENDPOINT_URL"]
    for name in (*lost, *sources):
        monkeypatch.setenv(name, "x")
    world.does("-I -c", 1, "no")  # the last call before is uv's
    with pytest.raises(EnvironmentLacks):
        world.build()
    found = (world.folder / "environment").read_text().splitlines()
    assert not [line for line in found if line.partition("=")[0] in lost]
    assert {*(f"{name}=x" for name in sources), "PYTHONNOUSERSITE=1"} <= set(found)


def test_an_environment_that_no_longer_imports(world: World, texts: Texts) -> None:
    world.build()
    assert smoke_problem(world.content, world.made) is None
    program = world.made / "bin" / "python"
    program.write_text("#!/bin/sh\necho Traceback >&2\necho 'ImportError: six' >&2\nexit 1\n")
    texts(smoke_problem(world.content, world.made))
    program.write_text("#!/bin/sh\nexit 1\n")
    texts(smoke_problem(world.content, world.made))
    program.unlink()
    texts(str(smoke_problem(world.content, world.made)))


# What is shown meanwhile


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (25_000_000, "25 MB"),
        (1_800_000_000, "1.8 GB"),
        (2e12, "2.0 TB"),
        (999_999, "1 MB"),
        (999.9e6, "1.0 GB"),
        (1e9, "1.0 GB"),
        (999e9, "999.0 GB"),
        (1e12, "1.0 TB"),
    ],
)
def test_bytes_for_people(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.usefixtures("no_time_passes")
def test_steps_and_notes_are_lines_and_secrets_are_hidden(tmp_path: Path) -> None:
    screen = io.StringIO()
    with Reporter(tmp_path / "logs", verbose=True, stream=screen) as reporter:
        reporter.hide("")
        reporter.hide("hf_secret")
        with reporter.step("one") as step:
            step.update("half of hf_secret")
        with reporter.step("two") as step:
            step.update(lambda: "asked")
            step.is_wrong = True
        with pytest.raises(ValueError, match="x"), reporter.step("three"):
            raise ValueError("x")
        command.run(["sh", "-c", "echo token is $T"], reporter, env={**os.environ, "T": "hf_secret"})
        reporter.note("a note on hf_secret")
        reporter.say_where_the_log_is()
    assert reporter.log_path is not None
    assert screen.getvalue().splitlines() == [
        "    ok  one: half of **** (0 s)",
        "failed  two: asked (0 s)",
        "failed  three (0 s)",
        "    $ sh -c 'echo token is $T'",
        "    token is ****",
        "a note on ****",
        f"full log: {reporter.log_path}",
    ]
    logged = [line.partition(" ")[2] for line in reporter.log_path.read_text().splitlines()]
    assert logged[:2] == ["start: one", "    ok  one: half of **** (0 s)"]
    assert logged[-4:-1] == ["$ sh -c 'echo token is $T'", "token is ****", "a note on ****"]


# What the installer reads of its own notes: receipts, pip's records, lock files.


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"a": 1}', "null"])
def test_what_is_no_receipt_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)
    assert read_receipt(tmp_path / "r") is None
    assert read_receipt(tmp_path / "none") is None
    (tmp_path / "r").write_text(json.dumps({"schema": 1, "a": 2}))
    assert read_receipt(tmp_path / "r") == {"schema": 1, "a": 2}


def test_files_that_changed_since_they_were_installed(tmp_path: Path, texts: Texts) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    metadata = packages / "a-1.dist-info"
    metadata.mkdir(parents=True)
    (packages / "good.py").write_text("")
    (packages / "bent.py").write_text("x")
    (packages / "folder.py").mkdir()
    empty = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    rows = [f"good.py,{empty},0", f"bent.py,{empty},0", f"gone.py,{empty}=,0", "free.py,,", f"folder.py,{empty},0"]
    rows += ["odd.py,whirl=x,0", "half", f"good.py,{empty}=,0"]
    (metadata / "RECORD").write_text("\n".join(rows) + "\n")
    texts("\n".join(damaged_files(tmp_path)))


def test_a_part_of_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"torch-extra==1 \\\n    {HASH}\ntorch==2 \\\n    {HASH}\nlast==3")
    part = environment_build.write_partial_lock(lock, "torch", tmp_path)
    assert part == tmp_path / ".llmb-lock-torch.txt"
    assert part.read_text() == f"torch==2 \\\n    {HASH}\n"
    assert environment_build.write_partial_lock(lock, "tor.h", tmp_path) is None
    assert environment_build.with_hashes(lock.read_text(), "last") == "last==3"
    assert (
        environment_build.count_for_here(["a==1 ; sys_platform == 'emscripten'", "b==1 ; python_version < '3.11'", "c"])
        == 1
    )


def test_an_environment_without_packages_shares_none(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    assert package_files.link_packages(tmp_path / "old", tmp_path / "new", {"a==1"}) == []
    assert package_files.link_packages(tmp_path / "old", tmp_path / "none", {"a==1"}) == []
