"""Two environments share the packages that both have in the same version."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from llmb_install.parts.package_records import damaged_files
from llmb_install.parts.shared_packages import link_packages


def environment(folder: Path, python: str = "python3.11") -> Path:
    """With nothing but a place for packages."""
    (folder / "lib" / python / "site-packages").mkdir(parents=True)
    return folder


def packages(folder: Path) -> Path:
    return next(folder.glob("lib/*/site-packages"))


def add(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A package as pip leaves it."""
    place = packages(folder)
    metadata = f"{name}-{version}.dist-info"
    lines = []
    for path, text in {**files, f"{metadata}/METADATA": f"Name: {name}\n"}.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}\n")
    lines += [f"{name}/__pycache__/gone.pyc,,\n", f"{metadata}/RECORD,,\n"]
    (place / metadata / "RECORD").write_text("".join(lines))


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
