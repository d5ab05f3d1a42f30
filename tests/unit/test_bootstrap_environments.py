"""Environments are built once, and rebuilt whenever the receipt does not match what is there."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.packages import damaged_files
from llmb_install.parts import environment as environments
from llmb_install.parts import uv
from llmb_install.parts.engine import KINDS, Kind, Tool
from llmb_install.parts.environment import RECEIPT, Environment
from llmb_install.parts.environment_build import count_for_here, lock_requirements, with_hashes
from llmb_install.parts.package_files import link_packages
from llmb_install.working.artefact import require_ready
from llmb_install.working.reporter import Reporter
from support.texts import Texts
from support.wheels import MODULE, locked, tiny_wheel


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Reporter]:
    with Reporter(tmp_path / "logs") as reporter:
        yield reporter


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A real environment with a tiny package in it, made by the real uv, in a folder whose name needs quoting."""
    folder = tmp_path_factory.mktemp('it\'s a "folder"')
    lock = folder / "lock.txt"
    lock.write_text(locked(tiny_wheel(folder)))
    environment = Environment(folder / "venvs" / "venv", sys.executable, lock, smoke=("json", "tiny"))
    assert environment.ensure(Reporter(None))
    return environment


@contextmanager
def taken_away(path: Path) -> Iterator[Path]:
    """``path`` is gone for a while; whatever is put in its place meanwhile is discarded."""
    aside = path.with_name("aside")
    path.rename(aside)
    yield aside
    aside.replace(path)


def test_without_a_receipt_or_with_half_of_one_it_is_not_complete(built: Environment) -> None:
    receipt = built.folder / RECEIPT
    with taken_away(receipt) as whole:
        assert not built.is_complete()
        receipt.write_text(whole.read_text()[:20])
        assert not built.is_complete()
    assert built.is_complete()


def test_a_missing_package_is_detected(built: Environment) -> None:
    with taken_away(next(built.folder.glob("lib/python3.*/site-packages/tiny-*.dist-info"))):
        assert not built.is_complete()


def test_verify_names_a_module_that_was_deleted_or_changed(built: Environment, texts: Texts) -> None:
    module = next(built.folder.glob(f"lib/python3.*/site-packages/{MODULE}"))
    with taken_away(module) as aside:
        assert built.is_complete(), "its quick look does not see it: nobody reads 1.1 GB at each start"
        texts(built.verify())
        module.write_bytes(aside.read_bytes() + b"\n")
        texts(built.verify())
    record = next(built.folder.glob("lib/python3.*/site-packages/tiny-*.dist-info/RECORD"))
    with taken_away(record):
        record.write_bytes(b"\xff")
        texts(str(built.verify()), mask=r"UnicodeDecodeError.*")
    assert built.verify() is None


@pytest.mark.slow
def test_a_package_without_its_modules_is_rebuilt_if_imports_matter(tmp_path: Path, texts: Texts) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(locked(tiny_wheel(tmp_path)))
    made = Environment(tmp_path / "venvs" / "venv", sys.executable, lock, smoke=("tiny",))
    assert made.ensure(Reporter(None))
    damaged = made.folder
    shutil.rmtree(next(damaged.glob("lib/python3.*/site-packages/tiny")))
    assert made.is_complete()
    assert not made.is_usable()
    assert made.ensure_usable(Reporter(None))
    assert made.is_usable()
    assert made.folder != damaged
    assert made.prune() == [damaged]
    next(made.folder.glob("lib/python3.*/site-packages/tiny/__init__.py")).unlink()
    assert made.is_complete()
    assert not made.is_usable(), "it still imports, as a namespace"
    tool = Tool(made.link, made.python, made.lock, made.smoke)
    assert not tool.is_complete(), "it is small, and every command needs it"
    texts(tool.verify())
    assert tool.ensure(Reporter(None))
    assert (tool.is_complete(), tool.ensure(Reporter(None))) == (True, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount what cannot be removed")
def test_leftovers_of_a_killed_build_do_no_harm(built: Environment, tmp_path: Path) -> None:
    """A folder that cannot be removed, such as one that somebody is still writing to, is left for another time."""
    left = built.new_folder()
    (left / "lib").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(left / "lib")], check=True)
    try:
        environments._discard_unfinished(built)
        assert left.exists()
        assert built.is_complete()
    finally:
        subprocess.run(["umount", str(left / "lib")], check=True)
    environments._discard_unfinished(built)
    assert not left.exists()


def test_the_same_folder_by_another_name_is_the_same_environment(built: Environment, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(built.link.parent)
    assert replace(built, link=tmp_path / "elsewhere" / built.link.name).is_complete()


def test_an_unreachable_index_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"no-such-package-here==1 --hash=sha256:{64 * '0'}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://localhost:1/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setattr(uv, "uv_on_path", lambda: None)
    made = Environment(tmp_path / "venvs" / "venv", sys.executable, lock, ())
    with texts.raises(EnvironmentLacks):
        require_ready([made])
    with Reporter(None) as reporter, texts.raises(EnvironmentLacks):
        made.ensure(reporter)
    assert not list(tmp_path.glob("venvs/venv-*")), "a failed build leaves nothing"


def test_a_missing_interpreter_is_detected(built: Environment) -> None:
    with taken_away(built.folder / "bin" / "python"):
        assert not built.is_complete()


def test_an_update_that_fails_leaves_the_old_environment_in_use(built: Environment, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("./no-such-package-here\n")
    with pytest.raises(EnvironmentLacks) as caught:
        Environment(built.link, built.python, lock, built.smoke).ensure(Reporter(None))
    assert "no-such-package-here" in caught.value.message
    assert built.is_complete()


def test_a_python_that_only_its_owner_can_run_is_reported(built: Environment) -> None:
    top = Path(tempfile.mkdtemp())  # tmp_path is closed to others altogether
    top.chmod(0o755)
    home = top / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").touch()
    folder = top / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(home / "bin" / "python3")
    assert environments._closed_to_others(folder) is None
    home.chmod(0o700)
    assert environments._closed_to_others(folder) == home
    top.chmod(0o700)
    assert environments._closed_to_others(folder) is None, "nobody else gets to the environment either"
    shutil.rmtree(top)


# Lock files: every package has hashes, no index is named, and an environment accepts nothing else.


ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "installer" / "locks"
HASH = "--hash=sha256:" + 64 * "0"

TEXT = f"""# made by a program
six==1.17.0 \\
    {HASH} \\
    {HASH}
numpy==2.2.6 ; python_full_version < '3.11' \\
    {HASH}
h11==1.0 ; sys_platform != 'emscripten' \\
    {HASH}
colorama==0.4.6 ; sys_platform == 'win32' \\
    {HASH}
"""


def test_the_requirements_of_a_lock() -> None:
    found = lock_requirements(TEXT)
    assert found[:2] == ["six==1.17.0", "numpy==2.2.6 ; python_full_version < '3.11'"]
    assert len(found) == 4
    assert count_for_here(found) == 2, "six and h11"
    assert lock_requirements("six==1.17.0  # why\n\n") == ["six==1.17.0"]


@pytest.mark.parametrize("name", ["tool.txt", "hub.txt", "engine-cpu.txt", "engine-cpu-0.6.txt"])
def test_every_package_is_pinned_and_hashed_and_no_index_is_named(name: str) -> None:
    text = (LOCKS / name).read_text()
    requirements = lock_requirements(text)
    assert len(requirements) > 10
    for requirement in requirements:
        package = requirement.partition("==")[0]
        assert "==" in requirement
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", with_hashes(text, package)), package
    assert not re.search(r"https?:|--index|--find-links|--trusted", text)


def test_the_tools_locks_cover_the_project() -> None:
    """A dependency added only to pyproject.toml would be missing from every installation."""
    project = (ROOT / "pyproject.toml").read_text()
    runtime = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    install = re.search(r"^install = \[(.*?)\]", project, re.MULTILINE | re.DOTALL)
    report = re.search(r"^report = \[(.*?)\]", project, re.MULTILINE | re.DOTALL)
    hub = re.search(r"^hub = \[(.*?)\]", project, re.MULTILINE | re.DOTALL)
    assert runtime
    assert install
    assert report
    assert hub
    extras = {"tool.txt": runtime[1] + install[1], "charts.txt": report[1], "hub.txt": hub[1]}
    for lock, parts in extras.items():
        wanted = re.findall(r'"([A-Za-z0-9_.-]+?)[><=]', parts)
        assert "msgspec" in wanted or "vl-convert-python" in wanted or "huggingface_hub" in wanted
        locked = {requirement.partition("==")[0] for requirement in lock_requirements((LOCKS / lock).read_text())}
        assert {re.sub(r"[-_.]+", "-", name).lower() for name in wanted} - locked == set()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_an_engine_lock_has_no_cuda(kind: Kind) -> None:
    text = (LOCKS / f"{kind.name}.txt").read_text()
    requirements = lock_requirements(text)
    assert [r for r in requirements if r.startswith("torch==")] == ["torch==2.13.0+cpu"]
    assert not [r for r in requirements if r.startswith(("nvidia-cu", "nvidia-nccl", "triton", "wandb", "cwevals"))]
    assert all(with_hashes(text, name) for name in kind.of_newer_python)
    assert with_hashes(text, "torch") == with_hashes((LOCKS / "torch-cpu.txt").read_text(), "torch")


SAID = {"changed": "Hash mismatch", "no hash": "must have their versions pinned|must have a hash"}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["right", "changed", "no hash"])
def test_a_file_with_another_content_is_not_installed(tmp_path: Path, case: str) -> None:
    """What a compromised index or a damaged download provides under the right name and version."""
    path = tiny_wheel(tmp_path)
    lock = tmp_path / "lock.txt"
    text = locked(path)
    lock.write_text(text.partition(" \\")[0] + "\n" if case == "no hash" else text)
    if case == "changed":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("more.py", "print('not what was locked')")
    environment = Environment(tmp_path / "venvs" / "venv", sys.executable, lock, smoke=("tiny",))
    if case == "right":
        assert environment.ensure(Reporter(None))
        return
    with pytest.raises(EnvironmentLacks, match=SAID[case]):
        environment.ensure(Reporter(None))
    assert not environment.is_complete()


# Two environments share the packages that both have in the same version.


def environment(folder: Path, python: str = "python3.11") -> Path:
    """With nothing but a folder for packages."""
    (folder / "lib" / python / "site-packages").mkdir(parents=True)
    return folder


def packages(folder: Path) -> Path:
    return next(folder.glob("lib/*/site-packages"))


def add(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A package as pip leaves it."""
    site_packages = packages(folder)
    metadata = f"{name}-{version}.dist-info"
    lines = []
    for path, text in {**files, f"{metadata}/METADATA": f"Name: {name}\n"}.items():
        file = site_packages / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}\n")
    lines += [f"{name}/__pycache__/gone.pyc,,\n", f"{metadata}/RECORD,,\n"]
    (site_packages / metadata / "RECORD").write_text("".join(lines))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    made = environment(tmp_path / "old")
    add(made, "torch", "2.13.0+cpu", {"torch/__init__.py": "a = 1\n", "../../../bin/torchrun": f"#!{made}\n"})
    add(made, "Some_Hub", "1.0", {"some_hub/__init__.py": ""})
    add(made, "megatron_core", "0.16.1", {"megatron/core.py": ""})
    return made


WANTED = {"torch==2.13.0+cpu", "some-hub==1.0", "megatron-core==0.19.2"}


def test_the_same_version_is_linked_and_checks_as_if_it_had_been_installed(old: Path, tmp_path: Path) -> None:
    new = environment(tmp_path / "new")
    assert sorted(link_packages(old, new, WANTED)) == ["some-hub==1.0", "torch==2.13.0+cpu"]
    assert packages(new).joinpath("torch/__init__.py").samefile(packages(old) / "torch/__init__.py")
    assert not (packages(new) / "megatron").exists()
    assert not (new / "bin").exists(), "a program names the Python of its own environment"
    assert list(damaged_files(new)) == []
    packages(new).joinpath("some_hub/__init__.py").unlink()
    assert list(damaged_files(new)) == ["some_hub/__init__.py is missing"]
    assert list(damaged_files(old)) == []


def test_byte_code_goes_along_although_uv_does_not_list_it(old: Path, tmp_path: Path) -> None:
    compiled = packages(old) / "torch" / "__pycache__"
    compiled.mkdir()
    for name in ("__init__.cpython-311.pyc", "other.cpython-311.pyc"):
        (compiled / name).write_text(name)
    new = environment(tmp_path / "new")
    link_packages(old, new, WANTED)
    linked = packages(new) / "torch" / "__pycache__"
    assert [path.name for path in linked.iterdir()] == ["__init__.cpython-311.pyc"], "the other is no module of torch"
    assert next(linked.iterdir()).samefile(compiled / "__init__.cpython-311.pyc")


def test_what_is_there_already_stays(old: Path, tmp_path: Path) -> None:
    new = environment(tmp_path / "new")
    add(new, "torch", "1.0", {"torch/__init__.py": "b = 2\n"})
    assert link_packages(old, new, WANTED) == ["some-hub==1.0"]
    assert packages(new).joinpath("torch/__init__.py").read_text() == "b = 2\n"


@pytest.mark.parametrize("case", ["damaged", "another Python", "no hard links", "nothing there"])
def test_nothing_is_linked_where_it_would_not_be_right(case, old, tmp_path, monkeypatch):
    new = environment(tmp_path / "new", "python3.12" if case == "another Python" else "python3.11")
    if case == "damaged":
        packages(old).joinpath("some_hub/__init__.py").write_text("changed\n")
    if case == "no hard links":

        def refuse(*args: object, **kwargs: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    source = tmp_path / "none" if case == "nothing there" else old
    assert link_packages(source, new, WANTED) == []
    assert list(packages(new).iterdir()) == []
