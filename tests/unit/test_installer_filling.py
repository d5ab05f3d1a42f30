"""What goes into an environment in special cases, what uv's lines become, and builds that come and go."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_install.parts import environment as environments
from llmb_install.parts import environment_build, uv
from llmb_install.parts.engine import shared_tool
from llmb_install.parts.environment import RECEIPT, Environment, installed_packages
from llmb_install.parts.environment_build import Content, UvProgress, build_environment
from llmb_install.parts.package_index import Sources
from llmb_install.working import command
from llmb_install.working.artefact import Room, _space, read_receipt, require_ready
from llmb_install.working.command import Finished
from llmb_install.working.reporter import Reporter, Step
from llmb_install.working.transaction import remove_leftovers
from support.installer import CLONE
from support.texts import Texts

HASH = "--hash=sha256:" + 64 * "0"
HASHED = ["--require-hashes", "--no-deps"]


@dataclass
class Uv:
    """Stands for every program that fills an environment: what it was told, and how it ends."""

    folder: Path
    calls: list[list[str]] = field(default_factory=list)
    locks: dict[str, str] = field(default_factory=dict)
    ends: dict[str, Finished] = field(default_factory=dict)

    def __call__(self, argv: Sequence[str], reporter: Reporter, **options: Any) -> Finished:
        self.calls.append(list(argv))
        (self.folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True, exist_ok=True)
        if "-r" in argv:
            lock = Path(argv[list(argv).index("-r") + 1])
            self.locks[lock.name] = lock.read_text()
        said = " ".join(argv)
        return next((end for words, end in self.ends.items() if words in said), Finished(0, ()))


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Uv:
    ran = Uv(tmp_path / "made")
    monkeypatch.setattr("llmb_install.working.command.run", ran)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(uv, "find_uv", lambda *folders: "/bin/uv")
    return ran


def content(tmp_path: Path, *packages: str, **more: Any) -> Content:
    lock = tmp_path / "lock.txt"
    lock.write_text("".join(f"{package} \\\n    {HASH}\n" for package in packages))
    return Content(link=tmp_path / "engine", python="/python", lock=lock, smoke=("torch", "six"), **more)


def made(ran: Uv, content: Content) -> Step:
    step = Step("environment")
    build_environment(content, ran.folder, Reporter(None, stream=io.StringIO()), step)
    return step


def test_packages_of_a_newer_python_are_installed_beside_the_others(ran: Uv, tmp_path: Path) -> None:
    wanted = content(tmp_path, "six==1", "bridge==2", "core==3", "h11==4", of_newer_python=("bridge", "core"))
    made(ran, wanted)
    _, newer, rest, *_ = ran.calls
    assert newer[-6:] == [*HASHED, "--python-version", "3.12", "-r", f"{ran.folder}/.llmb-lock-newer.txt"]
    assert rest[-4:] == [*HASHED, "-r", f"{ran.folder}/.llmb-lock-rest.txt"]
    assert "--python-version" not in rest
    entry = f"{{}} \\\n    {HASH}\n"
    assert ran.locks == {
        ".llmb-lock-newer.txt": entry.format("bridge==2") + entry.format("core==3"),
        ".llmb-lock-rest.txt": entry.format("six==1") + entry.format("h11==4"),
    }


def test_what_another_environment_has_is_linked_first(ran: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[tuple[Path, Path, set[str]]] = []
    monkeypatch.setattr(environment_build, "link_packages", lambda *given: linked.append(given))
    shares = (tmp_path / "one", tmp_path / "two")
    made(ran, content(tmp_path, "six==1", "h11==4 ; python_version > '3'", shares=shares))
    assert linked == [(other, ran.folder, {"six==1", "h11==4"}) for other in shares]


def test_a_python_that_does_not_say_its_version_makes_no_conda_environment(ran, tmp_path, monkeypatch, texts: Texts):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name == "conda" else None)
    monkeypatch.setattr(uv, "version_of", lambda python: None)
    with texts.raises(EnvironmentLacks):
        made(ran, content(tmp_path, "six==1", kind="conda"))


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (" venv ", Finished(1, ())),
        ("lock.txt", Finished(2, ("Disk quota exceeded",))),
        ("lock.txt", Finished(1, tuple(map(str, range(9))))),
        ("compileall", Finished(0, ("OSError: [Errno 28] No space left on device",))),
        ("importlib", Finished(-9, ("only",))),
    ],
)  # fmt: skip
def test_a_failure_has_its_last_lines(ran, tmp_path, words, end, texts: Texts):
    ran.ends[words] = end
    with texts.raises(EnvironmentLacks):
        made(ran, content(tmp_path, "six==1"))


def test_what_does_not_compile_is_left_out(ran: Uv, tmp_path: Path) -> None:
    ran.ends["compileall"] = Finished(0, ("SyntaxError: expected '('",))
    made(ran, content(tmp_path, "six==1"))


def test_what_no_job_imports_is_not_compiled_wherever_the_environment_is(ran: Uv, tmp_path: Path) -> None:
    ran.folder = tmp_path / "tests" / "made"
    made(ran, content(tmp_path, "six==1"))
    compiling = next(call for call in ran.calls if "compileall" in call)
    packages = compiling[-1]
    left_out = re.compile(compiling[compiling.index("-x") + 1])
    files = ["six.py", "torch/testing/a.py", "tests/a.py", "torch/test/a.py", "pandas/tests/io/a.py", "a/latest/b.py"]
    files += ["transformers/models/llama/a.py", "peft/models/a.py", "sympy/physics/a.py", "sympy/a.py"]
    compiled = [file for file in files if not left_out.search(f"{packages}/{file}")]
    assert compiled == ["six.py", "a/latest/b.py", "peft/models/a.py", "sympy/a.py"]


@pytest.mark.parametrize(("imported", "status", "last"), [("good", 0, ""), ("good bad", 1, "ZeroDivisionError")])
def test_modules_are_compiled_while_some_are_imported(tmp_path: Path, imported: str, status: int, last: str) -> None:
    files = {"good.py": "", "other.py": "", "bad.py": "1 / 0\n", "template.py": "def {{name}}(\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    compileall = [sys.executable, "-I", "-m", "compileall", "-q", str(tmp_path)]
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    argv = [sys.executable, "-I", "-c", path + environment_build._COMPILE_AND_IMPORT, imported, *compileall]
    lines: list[str] = []
    done = command.run(argv, Reporter(None, stream=io.StringIO()), on_line=lines.append)
    assert done.status == status
    assert any("template.py" in line for line in lines)
    # What explains an error comes last.
    assert not last or last in done.tail[-1]
    assert {file.name.partition(".")[0] for file in tmp_path.glob("__pycache__/*.pyc")} == {"good", "other", "bad"}


def test_uvs_lines_become_progress() -> None:
    step = Step("environment")
    progress = UvProgress(step, "packages", 7)
    shown = []
    for line in (
        "Resolved 7 packages in 12ms",
        "Downloading torch (184.5MiB)",
        "   Building antlr4-python3-runtime==4.9.3",
        "nothing of interest",
    ):
        progress(line)
        shown.append(step.detail_suffix())
    assert shown == [
        "",
        ": packages (7): downloading torch (184.5MiB)",
        ": packages (7): building antlr4-python3-runtime==4.9.3",
        ": packages (7): building antlr4-python3-runtime==4.9.3",
    ]
    UvProgress(step, "the clone")("Downloading six (11KiB)")
    assert step.detail_suffix() == ": the clone: downloading six (11KiB)"


# Builds


def program(path: Path, status: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """One that is filled by nobody: a program and the metadata of a package."""

    def build(environment: Content, folder: Path, reporter: Reporter, step: Step) -> None:
        program(folder / "bin" / "python")
        (folder / "lib" / "python3.11" / "site-packages" / "six-1.dist-info").mkdir(parents=True)

    monkeypatch.setattr(environment_build, "build_environment", build)
    lock = tmp_path / "lock.txt"
    lock.write_text("six==1\n")
    return Environment(tmp_path / "venvs" / "engine", "/python", lock, smoke=())


def ensure(environment: Environment, **more: Any) -> tuple[bool, str]:
    shown = io.StringIO()
    return environment.ensure(Reporter(None, stream=shown), **more), shown.getvalue()


def test_a_build_has_a_name_of_its_own_and_a_receipt(environment: Environment, texts: Texts) -> None:
    done, said = ensure(environment)
    assert done
    texts(said)
    folder = environment.folder
    assert folder.parent == environment.link.parent
    assert folder.name.startswith(f"engine-{environment.inputs()[:8]}-")
    assert len(folder.name) == len("engine-01234567-abcdef")
    assert environment.link.readlink() == Path(folder.name)
    assert read_receipt(folder / RECEIPT) == {
        **{"schema": 1, "name": "engine", "inputs": environment.inputs(), "python": "/python", "packages": ["six-1"]}
    }
    assert environment.id == "engine"
    assert environment.show() == f"venv environment {environment.link} with Python /python from {environment.lock}"
    assert ensure(environment) == (False, "")
    assert environment.verify() is None


@pytest.mark.parametrize(
    "change",
    [{"kind": "uv"}, {"lock": "other"}, {"link": "elsewhere"}, {"editable": "clone"}],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_the_content_decides_the_build(environment, tmp_path, change):
    (tmp_path / "other").write_text("six==2\n")
    (tmp_path / "clone").mkdir()
    values = {key: tmp_path / value if key in ("lock", "link", "editable") else value for key, value in change.items()}
    changed = replace(environment, **values)
    assert changed.inputs() != environment.inputs()
    if "editable" in change:
        (tmp_path / "link").symlink_to(tmp_path / "clone")
        assert replace(changed, editable=tmp_path / "link").inputs() == changed.inputs()
    assert replace(environment, python="/other", smoke=("x",)).inputs() == environment.inputs()


def test_a_finished_build_without_its_link_is_linked_again(environment: Environment) -> None:
    ensure(environment)
    folder = environment.folder
    environment.link.unlink()
    assert not environment.is_complete()
    assert (environment.verify() or "").startswith(f"{environment.link} ")
    assert ensure(environment) == (True, ""), "nothing is built"
    assert environment.folder == folder
    environment.link.unlink()
    environment.link.symlink_to("engine-00000000")
    assert environment.folder == folder
    assert not environment.is_complete()


@pytest.mark.parametrize("damage", ["receipt", "package", "program"])
def test_a_build_that_is_damaged_is_replaced(environment: Environment, damage: str) -> None:
    ensure(environment)
    old = environment.folder
    if damage == "receipt":
        (old / RECEIPT).unlink()
    elif damage == "package":
        (old / "lib" / "python3.11" / "site-packages" / "more-2.dist-info").mkdir()
    else:
        program(old / "bin" / "python", status=1)
    assert not environment.is_complete()
    assert ensure(environment)[0]
    assert environment.is_complete()
    assert environment.prune() == [old]
    assert environment.prune() == []


def test_what_does_not_import_is_replaced_where_that_matters(environment, monkeypatch):
    ensure(environment)
    assert environment.is_usable()
    old = environment.folder
    problems = ["it does not import", "it does not import"]
    monkeypatch.setattr(environment_build, "smoke_problem", lambda *_: problems.pop() if problems else None)
    assert not environment.is_usable()
    assert environment.is_complete()
    assert ensure(environment) == (False, "")
    assert environment.ensure_usable(Reporter(None))
    assert not environment.ensure_usable(Reporter(None))
    assert environment.folder != old
    assert old.exists(), "somebody may run in it"
    monkeypatch.setattr(environment_build, "smoke_problem", lambda *_: "bent")
    assert environment.verify() == "bent"


def test_earlier_builds_stay_for_those_who_run_in_them(environment: Environment) -> None:
    ensure(environment)
    old = environment.folder
    environment.lock.write_text("six==2\n")
    half = environment.link.with_name("engine-76543210-abcdef")
    half.mkdir()
    mine = environment.link.with_name("engine-mine")
    mine.mkdir()
    assert ensure(environment)[0]
    assert (old.exists(), half.exists(), mine.exists()) == (True, False, True)
    assert environment.prune() == [old]
    assert (old.exists(), environment.is_complete(), mine.exists()) == (False, True, True)


def test_what_somebody_has_in_the_place_of_the_link_stays_and_is_named(
    environment, tmp_path, monkeypatch, texts: Texts
):
    monkeypatch.setattr(Sources, "links", lambda *_: [])
    require_ready([environment])
    environment.link.mkdir(parents=True)
    (environment.link / "thesis").touch()
    with texts.raises(EnvironmentLacks):
        require_ready([environment])
    with texts.raises(OSError):
        ensure(environment)
    assert (environment.link / "thesis").exists()
    environment.link.rename(tmp_path / "theirs")
    environment.link.symlink_to(tmp_path / "theirs")
    with texts.raises(EnvironmentLacks):
        require_ready([environment])
    environment.link.unlink()
    (environment.link.parent / f".engine.{os.getpid()}").touch()
    assert ensure(environment)[0]
    require_ready([environment])


def test_clones_with_one_lock_share_what_the_cache_has(environment, tmp_path, monkeypatch, texts: Texts):
    clones = [tmp_path / name for name in ("one", "same", "newer")]
    for clone in clones:
        (clone / "installer" / "locks").mkdir(parents=True)
        (clone / "installer" / "locks" / "tool.txt").write_text(f"six=={2 if clone.name == 'newer' else 1}\n")
    one, same, newer = (shared_tool(clone, tmp_path / "cache") for clone in clones)
    monkeypatch.setattr("llmb_install.working.artefact.free_bytes", lambda folder: 10**8)
    (lack,) = _space(one.room())
    texts(lack.remedy)
    assert "--no-space-check" not in lack.remedy, "list and verify have no such option"
    (lack,) = _space([*one.room(), Room(tmp_path / "install", 3 * 10**9, "environment engine")])
    texts(f"{lack.message}\n  -> {lack.remedy}")
    assert one.ensure_usable(Reporter(None))
    assert same.is_usable()
    assert newer.ensure_usable(Reporter(None))
    assert (one.is_usable(), one.folder != newer.folder) == (True, True)
    half = one.new_folder()
    half.mkdir()
    assert (one.prune(), newer.prune()) == ([], [])
    for folder in (one.folder, half):
        os.utime(folder, (0, 0))
    assert set(newer.earlier_builds()) == {one.folder, half}
    same.note_use()
    assert newer.prune() == [half]
    assert one.is_usable()


def test_what_a_process_runs_in_stays(environment: Environment) -> None:
    ensure(environment)
    old = environment.folder
    with subprocess.Popen([str(old / "bin" / "python"), "600"], executable="/usr/bin/sleep") as running:
        assert ensure(environment, anew=True)[0]
        pruned = environment.prune()
        running.kill()
    assert (pruned, environment.folder == old) == ([], False)
    assert environment.prune() == [old]


def test_a_link_that_a_killed_installer_was_about_to_move_is_a_leftover(environment, tmp_path, monkeypatch):
    ensure(environment)
    tool = replace(environment, link=tmp_path / "venvs" / "llmb")

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        environments._replace_link(tool.link, "llmb-01234567")
    (left,) = remove_leftovers(tmp_path)
    assert left.name.startswith("llmb.")
    assert not left.is_symlink()


def test_a_build_that_failed_leaves_room_for_the_next(environment, monkeypatch, texts: Texts):
    def fails(environment: Content, folder: Path, *_: object) -> None:
        (folder / "lib").mkdir(parents=True)
        raise EnvironmentLacks("no network")

    monkeypatch.setattr(environment_build, "build_environment", fails)
    with texts.raises(EnvironmentLacks):
        ensure(environment)
    assert list(environment.link.parent.iterdir()) == []


def test_a_python_that_others_cannot_reach_is_told(environment, tmp_path, monkeypatch, texts: Texts):
    monkeypatch.setattr(environments, "_closed_to_others", lambda folder: tmp_path)
    said = ensure(environment)[1]
    texts(said)
    shared = replace(shared_tool(CLONE, tmp_path / "cache"), lock=environment.lock)
    assert "note:" not in ensure(shared)[1], "which is this user's alone"
    monkeypatch.setattr(environments, "_closed_to_others", lambda folder: None)
    environments.remove_environment(environment.folder)
    assert "note:" not in ensure(environment)[1]


def test_what_cannot_be_removed_is_named(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    ensure(environment)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    folder = environment.folder
    with texts.raises(EnvironmentLacks):
        environments.remove_environment(folder)
    assert not (folder / RECEIPT).exists(), "nothing that looks complete"
    environments.remove_environment(environment.link)
    assert not environment.link.is_symlink(), "a link is removed, and not what it leads to"
    assert folder.exists()
    (folder / RECEIPT).mkdir()
    with pytest.raises(EnvironmentLacks):
        environments.remove_environment(folder)


def test_packages_are_known_by_their_metadata(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in ("b-2.dist-info", "a-1.dist-info", "a"):
        (packages / name).mkdir(parents=True)
    assert installed_packages(tmp_path) == ["a-1", "b-2"]
    assert installed_packages(tmp_path / "none") == []


def test_disk_usage_counts_files_and_not_what_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").write_bytes(bytes(100))
    (tmp_path / "a" / "b" / "y").write_bytes(bytes(20))
    (tmp_path / "a" / "l").symlink_to("x")
    assert environments._disk_usage(tmp_path / "a") == 121
