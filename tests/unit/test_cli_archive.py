"""archive: everything about the selected runs, correct hashes, and no secrets."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.printable import size
from llmb_run.results import archiving
from support.cli import Cli
from support.packs import edit, sums_hold, unpack
from support.programs import needs_zstd
from support.runs import make_run, steady_log
from support.texts import Texts

TOKEN = "hf_" + "Q" * 30  # looks like a token, but is not a real one
KNOWN = "correct-horse-battery"


@pytest.mark.parametrize("suffix", [pytest.param(".tar.zst", marks=needs_zstd), ".tar.gz"])
def test_an_archive_holds_the_runs_and_its_hashes_hold(cli: Cli, tmp_path: Path, suffix: str) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    make_run(
        cli.install, log=steady_log(900), variables={"MODEL_SIZE": "8b", "GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "8"}
    )
    (record.paths.output / "checkpoints").mkdir()
    (record.paths.output / "checkpoints" / "weights.bin").write_bytes(b"big")
    (record.paths.folder / "elsewhere").symlink_to("/etc/passwd")
    path = tmp_path / f"runs{suffix}"
    done = cli("archive", "-s", "405b", "-o", path, "--json")
    assert done.status == 0, done.err
    assert done.data["runs"] == 1
    folder = unpack(path, tmp_path / "out")
    names = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    inside = f"{record.paths.name}/"
    experiment = record.paths.experiment_name
    assert names == {
        "archive.json",
        "SHA256SUMS",
        inside + "run.json",
        inside + "job.json",
        inside + f"{experiment}.sbatch",
        inside + "supervisor.sh",
        inside + "code.zip",
        inside + f"{experiment}/log-{experiment}.out",
    }
    assert (folder / inside / "run.json").read_bytes() == record.paths.record.read_bytes()
    sums = dict(reversed(line.split("  ", 1)) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == names - {"SHA256SUMS"}
    assert sums_hold(folder)
    edit(folder, ".out", lambda log: log + b"x")
    assert not sums_hold(folder)
    about = json.loads((folder / "archive.json").read_text())
    assert about["runs"][0]["verdict"] == "pass"


def test_a_run_of_an_earlier_release_keeps_the_file_for_nvidias_tools(cli: Cli, tmp_path: Path) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    file = record.paths.folder / "llmb-config_101.yaml"
    file.write_text("job_info:\n  job_id: '101'\n")
    (row,) = cli("results", "--json").data["runs"]
    assert (row["run_id"], row["status"]) == (record.paths.run_id, "Success")
    assert cli("archive", "-o", tmp_path / "runs.tar.gz").status == 0
    folder = unpack(tmp_path / "runs.tar.gz", tmp_path / "out")
    assert (folder / record.paths.name / file.name).read_bytes() == file.read_bytes()


def test_sha256sum_reads_every_name_that_a_file_may_have(cli: Cli, tmp_path: Path) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    odd = [b"line\nbreak", b"back\\slash", b"\xff", "größe *".encode()]
    for name in odd:
        Path(os.fsdecode(os.fsencode(record.paths.folder) + b"/" + name)).write_text("text")
    assert cli("archive", "-o", tmp_path / "runs.tar.gz").status == 0
    folder = unpack(tmp_path / "runs.tar.gz", tmp_path / "out")
    assert sums_hold(folder)
    for name in odd:
        Path(os.fsdecode(os.fsencode(folder / record.paths.name) + b"/" + name)).write_text("other")
        assert not sums_hold(folder)
        Path(os.fsdecode(os.fsencode(folder / record.paths.name) + b"/" + name)).write_text("text")


@pytest.mark.parametrize("suffix", [pytest.param(".tar.zst", marks=needs_zstd), ".tar.gz"])
def test_the_same_runs_make_the_same_archive(cli: Cli, tmp_path: Path, suffix: str) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        target = tmp_path / name / f"runs{suffix}"
        assert cli("archive", "-o", target).status == 0
        contents.append(target.read_bytes())
    assert contents[0] == contents[1]


def test_no_secret_gets_in(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    record = make_run(cli.install, log=f"login with {TOKEN}\npassword is {KNOWN}.\nharmless\n")
    done = cli("archive", "-o", tmp_path / "runs.tar.gz", WANDB_API_KEY=KNOWN)
    folder = unpack(tmp_path / "runs.tar.gz", tmp_path / "out")
    everything = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert TOKEN.encode() not in everything
    assert KNOWN.encode() not in everything
    log = folder / record.paths.name / record.paths.log.relative_to(record.paths.folder)
    assert log.read_text() == "login with ****\npassword is ****.\nharmless\n"
    texts(done.err, mask=r"\d+ kB\b")
    assert f" files, {size((tmp_path / 'runs.tar.gz').stat().st_size)}; " in done.err
    assert record.paths.log.name in done.err


def test_secrets_are_masked_by_what_they_look_like_and_by_their_names(cli: Cli, tmp_path: Path) -> None:
    (cli.install / ".llmb").mkdir(exist_ok=True)
    (cli.install / ".llmb" / "hf_token").write_text("stored-by-the-installer\n")
    (cli.install / ".llmb" / "enroot").mkdir()
    line = "machine nvcr.io login $oauthtoken password an-old-key-of-ngc\n"
    (cli.install / ".llmb" / "enroot" / ".credentials").write_text(line)
    lines = [
        "export NGC_KEY=abcdefgh1234",
        "DB_PASS='correct-horse'",
        "https://user:pass-word@example.org/x",
        "ghp_0123456789012345678901234567",
        "read stored-by-the-installer and an-old-key-of-ngc for nvcr.io",
        "TOKENIZERS_PARALLELISM=falsefalse PAD_TOKEN=12345678",
    ]
    record = make_run(cli.install, log="\n".join(lines) + "\n")
    cli("archive", "-o", tmp_path / "runs.tar.gz")
    folder = unpack(tmp_path / "runs.tar.gz", tmp_path / "out")
    log = folder / record.paths.name / record.paths.log.relative_to(record.paths.folder)
    assert log.read_text().splitlines() == [
        "export NGC_KEY=****",
        "DB_PASS='****'",
        "https://****@example.org/x",
        "****",
        "read **** and **** for nvcr.io",
        lines[-1],
    ]


def test_what_cannot_be_masked_stays_out_and_is_named(cli: Cli, tmp_path: Path) -> None:
    """Nsight reports contain the job's environment; a compressed log contains whatever the log does."""
    record = make_run(cli.install, log=steady_log(5741.47))
    record.paths.profiles.mkdir()
    secret = f"NGC_KEY={KNOWN}".encode()
    files = {
        record.paths.profiles / "profile_1_0_0.nsys-rep": secret,
        record.paths.output / "trace.json.gz": gzip.compress(secret),
        record.paths.output / "core.dump": b"\0" + secret,
    }
    for path, content in files.items():
        path.write_bytes(content)
    for options, packed in (
        ([], set()),
        (["--profiles"], set()),
        (["--unmasked"], {"trace.json.gz", "core.dump"}),
        (["--unmasked", "--profiles"], {path.name for path in files}),
    ):
        target = tmp_path / f"runs{len(options)}{len(packed)}.tar.gz"
        done = cli("archive", "--json", "-o", target, *options)
        folder = unpack(target, tmp_path / target.stem)
        assert {path.name for path in folder.rglob("*") if path.name in {p.name for p in files}} == packed
        left_out = {name.rsplit("/", 1)[1] for name in done.data["left_out"]}
        looked_at = {path.name for path in files if "--profiles" in options or path.parent != record.paths.profiles}
        assert left_out == looked_at - packed
        assert all(re.search(rf"\b{re.escape(name)} .*--unmasked\b", done.err) for name in left_out)
        about = json.loads((folder / "archive.json").read_text())
        assert {name.rsplit("/", 1)[1] for name in about["left_out"]} == left_out


def test_the_training_code_is_packed_when_it_is_what_was_planned(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    record = make_run(cli.install)
    cli("archive", "-o", tmp_path / "a.tar.gz")
    assert list(unpack(tmp_path / "a.tar.gz", tmp_path / "a").rglob("code.zip"))
    with zipfile.ZipFile(record.paths.code, "a") as code:
        code.writestr("llmb_train/keys.py", KNOWN)
    done = cli("archive", "-o", tmp_path / "b.tar.gz")
    assert not list(unpack(tmp_path / "b.tar.gz", tmp_path / "b").rglob("code.zip"))
    texts(done.err, mask=r"\d+ kB\b")
    assert f" files, {size((tmp_path / 'b.tar.gz').stat().st_size)}; " in done.err


def test_an_archive_is_never_overwritten_without_asking_or_left_half_written(cli: Cli, tmp_path: Path) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    path = tmp_path / "out" / "runs.tar.gz"
    path.parent.mkdir()
    path.write_text("precious")
    done = cli("archive", "-o", path)
    assert (done.status, "exists" in done.err) == (2, True)
    assert path.read_text() == "precious"
    assert cli("archive", "-o", path, "--overwrite").status == 0
    cli.patch.setattr("llmb_run.actions.report.measure", None)  # no run is measured for a file that cannot be written
    assert cli("archive", "-o", tmp_path / "runs.zip").status == 2
    assert cli("archive", "-o", tmp_path / "none" / "runs.tar.gz").status == 2
    assert [entry.name for entry in path.parent.iterdir()] == ["runs.tar.gz"]


def test_a_file_of_a_run_that_cannot_be_read_is_named(cli: Cli, tmp_path: Path) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    read = archiving._Packer.add_run

    def fails(packer: Any, folder: Path, **options: Any) -> None:
        read(packer, folder, **options)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(record.paths.log))

    cli.patch.setattr(archiving._Packer, "add_run", fails)
    done = cli("archive", "-o", tmp_path / "runs.tar.gz")
    assert done.status == 3
    assert f"cannot read {record.paths.log}" in done.err
    assert not (tmp_path / "runs.tar.gz").exists()


def test_a_compressor_that_fails_leaves_nothing(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    make_run(cli.install, log=steady_log(5741.47))
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "zstd").write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
    (broken / "zstd").chmod(0o755)
    target = tmp_path / "target"
    target.mkdir()
    done = cli("archive", "-o", target / "runs.tar.zst", PATH=f"{broken}:/usr/bin:/bin")
    assert done.status == 3
    texts(done.err)
    assert not list(target.iterdir())
    missing = cli("archive", "-o", target / "runs.tar.zst", PATH=str(target))
    assert missing.status == 3
    texts(missing.err)
