"""What the installer reads of its own notes: receipts, pip's records, lock files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmb_install.parts import lock_files, package_records, shared_packages
from llmb_install.parts.receipts import read_receipt

HASH = "--hash=sha256:" + 64 * "0"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"a": 1}', "null"])
def test_what_is_no_receipt_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)
    assert read_receipt(tmp_path / "r") is None
    assert read_receipt(tmp_path / "none") is None
    (tmp_path / "r").write_text(json.dumps({"schema": 1, "a": 2}))
    assert read_receipt(tmp_path / "r") == {"schema": 1, "a": 2}


def test_files_that_changed_since_they_were_installed(tmp_path: Path) -> None:
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
    assert list(package_records.damaged_files(tmp_path)) == [
        *("bent.py has changed", "gone.py is missing", "folder.py cannot be read (Is a directory)")
    ]
    assert package_records.summary(iter("abcd")) == "a, b, c and 1 more"
    assert package_records.summary(iter("abc")) == "a, b, c"
    assert package_records.summary(iter("")) == ""


def test_a_part_of_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"torch-extra==1 \\\n    {HASH}\ntorch==2 \\\n    {HASH}\nlast==3")
    part = lock_files.extract(lock, "torch", tmp_path)
    assert part == tmp_path / ".llmb-lock-torch.txt"
    assert part.read_text() == f"torch==2 \\\n    {HASH}\n"
    assert lock_files.extract(lock, "tor.h", tmp_path) is None
    assert lock_files.with_hashes(lock.read_text(), "last") == "last==3"
    assert (
        lock_files.count_for_here(["a==1 ; sys_platform == 'emscripten'", "b==1 ; python_version < '3.11'", "c"]) == 1
    )


def test_an_environment_without_packages_shares_none(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    assert shared_packages.link_packages(tmp_path / "old", tmp_path / "new", {"a==1"}) == []
    assert shared_packages.link_packages(tmp_path / "old", tmp_path / "none", {"a==1"}) == []
