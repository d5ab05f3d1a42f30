"""Taking out workloads with what only they needed, and the whole installation; nothing of others."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from test_installer_commands import SLURM

from llmb_common.base.errors import RecordError
from llmb_common.base.processes import identify
from llmb_common.planning.site.cluster import load_cluster_config
from llmb_common.runs.index.roots import remember
from llmb_common.runs.index.search import find_runs, index_records
from llmb_common.runs.record import RunRecord, load_record
from llmb_install.answers.answers import ANSWERS_FILE, stored_answers
from llmb_install.commands import upkeep
from llmb_install.installation import Installation
from llmb_install.parts.files import COMMANDS, wrapper_text
from llmb_install.working.reporter import Reporter
from llmb_install.working.transaction import install_lock
from support.installer import CLONE, Run, install, run, stored  # noqa: F401  (fixtures)
from support.runs import make_run
from support.texts import Texts

# ruff: noqa: F811  (fixtures)


def test_a_workload_is_taken_out_with_its_image(run: Run, install: Path, texts: Texts) -> None:
    stored(install, **SLURM)
    images = install / "images"
    images.mkdir()
    status, _, err = run("remove", "nemotron4")
    assert status == 2
    texts(err)
    texts(err)
    status, out, err = run("remove", "grok1", "--json")
    assert status == 0, err
    assert json.loads(out)["data"] == {"install_path": str(install), "workloads": ["pretrain_llama3.1"]}
    texts(err)
    assert "pretrain_grok1" not in (install / ANSWERS_FILE).read_text()
    assert (install / "cluster_config.yaml").exists()
    assert not (install / ".llmb" / "removing.json").exists()
    assert not (install / "venvs").exists(), "nothing else is made"


def test_the_last_workload_takes_the_image_with_it(run: Run, install: Path, texts: Texts) -> None:
    stored(install, **SLURM)
    folder = install / "images"
    folder.mkdir()
    image = folder / "nvidia+nemo+26.02.01.sqsh"
    image.touch()
    image.with_name(f"{image.name}.receipt.json").touch()
    (folder / "mine.sqsh").touch()
    _, _, err = run("remove", "grok1")
    assert image.exists(), "the other workload needs it"
    status, _, err = run("remove", "all")
    assert status == 0, err
    assert [path.name for path in folder.iterdir()] == ["mine.sqsh"]
    texts(err)
    texts(run("remove", "grok1")[2])


def test_a_shared_image_folder_is_not_tidied_up(run: Run, install: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    image = shared / "nvidia+nemo+26.02.01.sqsh"
    image.touch()
    stored(install, **SLURM, image_folder=str(shared))
    assert run("remove", "all")[0] == 0
    assert image.exists()


def test_what_was_read_in_adopted_images_goes_with_the_installation(run: Run, install: Path) -> None:
    stored(install, **SLURM)
    folder = install / "catalogues"
    folder.mkdir()
    for name in ("catalogue-0.7.0.json", "validation-0.7.0.json", "mine.json"):
        (folder / name).touch()
    assert run("uninstall", "--yes")[0] == 0
    assert [path.name for path in folder.iterdir()] == ["mine.json"]


def test_an_adopted_image_is_not_called_unused(run: Run, install: Path) -> None:
    stored(install, **SLURM)
    (install / "images").mkdir()
    for tag in ("26.10", "25.09"):
        image = install / "images" / f"nvidia+nemo+{tag}.sqsh"
        image.touch()
        image.with_name(f"{image.name}.receipt.json").write_text('{"schema": 1, "sha256": "0"}')
    (install / "cluster_config.yaml").write_text(
        'schema: 1\nreleases: {"0.7.0": {image: "nvcr.io#nvidia/nemo:26.10"}}\n'
    )
    unused = Installation(CLONE, stored_answers(install)).unused_images()
    assert [path.name for path in unused] == ["nvidia+nemo+25.09.sqsh"]


FOLDERS = ("images", "venvs", "hugging_face", "bin")


def test_what_is_reached_by_a_link_is_kept(run: Run, install: Path, tmp_path: Path) -> None:
    """Two installations share a folder of images by a link: removing from one took the other's."""
    stored(install, **SLURM)
    shared = tmp_path / "shared"
    for name in FOLDERS:
        (shared / name).mkdir(parents=True)
        (install / name).symlink_to(shared / name)
    image = shared / "images" / "nvidia+nemo+26.02.01.sqsh"
    image.touch()
    receipt = image.with_name(f"{image.name}.receipt.json")
    receipt.write_text(json.dumps({"schema": 1, "sha256": "0"}))
    (shared / "venvs" / "llmb-01234567-89abcd").mkdir()
    (shared / "bin" / "llmb-run").write_text(wrapper_text("llmb-run"))
    (shared / "hugging_face" / "models--a--b").mkdir()
    there = sorted(shared.rglob("*"))
    assert run("remove", "all")[0] == 0
    assert sorted(shared.rglob("*")) == there
    status, out, err = run("uninstall", "--yes", "--json")
    assert status == 0, err
    assert sorted(shared.rglob("*")) == there
    assert set(json.loads(out)["data"]["stays"]) == set(FOLDERS)


def test_a_removal_that_was_killed_is_finished_by_the_next_command(run: Run, install: Path) -> None:
    stored(install, **SLURM)
    (install / "images").mkdir()
    old = install / "images" / "old.sqsh"
    needed = install / "images" / "nvidia+nemo+26.02.01.sqsh"
    for path in (old, needed):
        path.touch()
    note = install / ".llmb" / "removing.json"
    note.write_text(json.dumps({"schema": 1, "images": [old.name, needed.name, "../../escaped"]}))
    (install.parent / "escaped").touch()
    status, _, err = run("remove", "nemotron4")
    assert status == 0, err
    assert (old.exists(), needed.exists(), note.exists()) == (False, True, False)
    assert (install.parent / "escaped").exists()


def engine_folders(install: Path) -> list[str]:
    """Environments of an installation, as folders alone, and two that are not its own; returns all that is there."""
    venvs = install / "venvs"
    for name in ("llmb", "engine-cpu", "engine-cpu-0.6"):
        (venvs / f"{name}-01234567-89abcd").mkdir(parents=True)
        (venvs / f"{name}-76543210").mkdir()
        (venvs / name).symlink_to(f"{name}-01234567-89abcd")
        (venvs / f".uv-{name}").mkdir()
    (venvs / "engine-cpu-mine").mkdir()
    (venvs / "engine-cpu-0.9").symlink_to("engine-cpu-mine")
    return sorted(path.name for path in venvs.iterdir())


def test_an_engine_goes_with_the_last_workload_that_trains_in_it(run: Run, install: Path, texts: Texts) -> None:
    stored(install, workloads=["pretrain_grok1", "pretrain_llama3.1", "pretrain_mbridge"])
    there = engine_folders(install)
    assert run("remove", "grok1")[0] == 0
    assert sorted(path.name for path in (install / "venvs").iterdir()) == there, "llama3.1 needs it"
    assert list(load_cluster_config(install).engine.releases) == ["0.6"]
    status, _, err = run("remove", "mbridge")
    assert status == 0, err
    texts(err)
    assert list(load_cluster_config(install).engine.releases) == []
    left = [name for name in there if "engine-cpu-0.6" not in name]
    assert sorted(path.name for path in (install / "venvs").iterdir()) == left
    assert run("remove", "all")[0] == 0
    left = [name for name in there if name.startswith(("llmb", ".uv-llmb", "engine-cpu-mine", "engine-cpu-0.9"))]
    assert sorted(path.name for path in (install / "venvs").iterdir()) == left


def test_a_removal_that_was_killed_takes_no_engine_that_is_needed_again(run: Run, install: Path) -> None:
    stored(install, workloads=["pretrain_grok1"])
    there = engine_folders(install)
    (install.parent / "escaped-01234567").mkdir()
    note = install / ".llmb" / "removing.json"
    names = ["engine-cpu", "engine-cpu-0.6", "llmb", "../../escaped", 7]
    note.write_text(json.dumps({"schema": 1, "images": [], "engines": names}))
    assert run("remove", "nemotron4")[0] == 0
    left = [name for name in there if not name.removeprefix(".uv-").startswith("engine-cpu-0.6")]
    assert sorted(path.name for path in (install / "venvs").iterdir()) == left
    assert (install.parent / "escaped-01234567").exists()
    assert not note.exists()


def test_uninstall_ends_with_what_it_runs_in_so_that_it_can_be_called_again(run, install):
    stored(install)
    engine_folders(install)
    (install / "cluster_config.yaml").touch()
    (install / "bin").mkdir()
    for name in COMMANDS:
        (install / "bin" / name).write_text(wrapper_text(name))
    removed = [Path(path) for path in json.loads(run("uninstall", "--yes", "--json")[1])["data"]["removed"]]
    assert [str(path.relative_to(install)) for path in removed[-6:]] == [
        *("venvs/.uv-llmb", "venvs/llmb", "venvs/llmb-01234567-89abcd", "venvs/llmb-76543210"),
        *("bin/llmb-run", "bin/llmb-install"),
    ]
    assert len(removed) == 8 + 1 + 6


def test_uninstall_removes_what_is_ours_and_names_what_stays(run: Run, install: Path, texts: Texts) -> None:
    stored(install)
    (install / "venvs" / "llmb-01234567").mkdir(parents=True)
    (install / "bin").mkdir()
    (install / "bin" / "mine").touch()
    (install / "workloads" / "pretrain_grok1").mkdir(parents=True)
    status, _, err = run("uninstall")
    assert status == 2
    texts(err)
    status, out, _ = run("uninstall", "--yes")
    assert (status, out.count("\n"), out.endswith(f" {install}: bin, workloads\n")) == (0, 1, True)
    assert sorted(path.name for path in install.iterdir()) == ["bin", "workloads"]
    assert (install / "bin" / "mine").exists()


def test_uninstall_may_remove_the_results_too(run: Run, install: Path, texts: Texts) -> None:
    stored(install)
    (install / "workloads" / "pretrain_grok1").mkdir(parents=True)
    status, out, _ = run("uninstall", "--yes", "--results-too", "--json")
    data = json.loads(out)["data"]
    assert (status, data["stays"], data["removed"]) == (0, [], [str(install / "workloads")])
    assert not install.exists()
    status, _, err = run("uninstall", "--yes")
    assert status == 3
    texts(err)


@pytest.mark.parametrize(("typed", "status"), [("yes\n", 0), ("y\n", 2), ("\n", 2)])
def test_uninstall_is_confirmed_with_a_whole_word(run, install, monkeypatch, typed, status, texts: Texts):
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stored(install)
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    done, _, err = run("uninstall")
    assert done == status
    texts(" ".join(err.split()))
    assert install.exists() is bool(status)


# Nothing is removed that a run trains in, or will when it starts.

SMOKE = {"MODEL_SIZE": "smoke", "GPU_TYPE": "cpu", "JOB_TOTAL_GPUS": "1", "CLUSTER_TYPE": "local"}


@pytest.fixture
def training() -> Iterator[subprocess.Popen[bytes]]:
    """What plays the script of a run."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def live_run(install: Path, process: subprocess.Popen[bytes]) -> RunRecord:
    record = make_run(install, state="RUNNING", job_id=None, variables=SMOKE)
    record = replace(record, process=identify(process.pid))
    record.save()
    index_records(record)
    return record


@pytest.mark.parametrize("words", [("remove", "llama3.1"), ("remove", "all"), ("uninstall", "--yes")])
def test_it_is_refused_until_the_run_has_ended(run, install, training, words, texts: Texts):
    stored(install, workloads="all")
    record = live_run(install, training)
    answers = (install / ANSWERS_FILE).read_text()
    status, _, err = run(*words)
    assert (status, (install / ANSWERS_FILE).read_text()) == (3, answers)
    texts(err)
    training.kill()
    training.wait()
    assert run(*words)[0] == 0
    assert load_record(record.paths.folder).state == "FAILED", "it was looked for where it ran"


@pytest.mark.parametrize("words", [("remove", "llama3.1"), ("uninstall", "--yes")])
def test_it_is_done_on_demand(run, install, training, words):
    stored(install, workloads="all")
    live_run(install, training)
    assert run(*words, "--despite-runs")[0] == 0
    assert training.poll() is None


def test_runs_of_other_workloads_and_ended_ones_do_not_matter(run, install, training):
    stored(install, workloads="all")
    live_run(install, training)
    make_run(install, "grok1", variables=SMOKE)
    assert {row.workload for row in find_runs(install)} == {"pretrain_llama3.1", "pretrain_grok1"}
    assert run("remove", "grok1")[0] == 0


def test_many_are_counted_and_some_are_named(run: Run, install: Path, texts: Texts) -> None:
    """Of a Slurm that does not answer: nobody can tell, so they count."""
    stored(install, workloads="all")
    for number in range(7):
        index_records(make_run(install, state="PENDING", job_id=str(100 + number)))
    status, out, _ = run("uninstall", "--yes", "--json")
    error = json.loads(out)["error"]
    assert (status, error["code"]) == (3, "live-runs")
    texts(error["message"])
    assert error["message"].count("(pretrain_llama3.1, PENDING)") == 5


def test_records_that_cannot_be_read_do_not_keep_a_damaged_installation(run, install, monkeypatch, texts: Texts):
    def refuse(*_: object) -> None:
        raise RecordError("the index \x1b[31m is gone")

    stored(install, workloads="all")
    monkeypatch.setattr(upkeep, "find_runs", refuse)
    status, _, err = run("uninstall", "--yes")
    assert status == 0, err
    texts(err)
    assert "\x1b" not in err
    assert not install.exists()


# A damaged tool, or none, is removed by a Python alone.

NOTHING = (sys.executable, "-I", "-S", str(CLONE / "installer.py"))
"""No site-packages: only the standard library."""
NAMESPACE = (
    *(sys.executable, "-I", "-c"),
    "import sys, types; sys.modules['msgspec'] = types.ModuleType('msgspec'); "
    "sys.modules['click'] = None; from llmb_install.main import main;"
    "sys.exit(main())",
)
"""As ``llmb-install`` with a package that has lost a file, and still imports, and without another."""


@pytest.mark.slow
@pytest.mark.parametrize("program", [NOTHING, NAMESPACE])
def test_uninstall_needs_no_environment(install: Path, tmp_path: Path, program: tuple[str, ...]) -> None:
    stored(install)
    for name in ("venvs/engine-cpu-01234567", "venvs/hub-01234567-89abcd", "venvs/.uv-hub", "venvs/mine", "images"):
        (install / name).mkdir(parents=True)
    (install / "venvs" / ".llmb" / "tmp").mkdir(parents=True)  # venvs was on another file system
    for name in ("one.sqsh", "mine.sqsh"):
        (install / "images" / name).touch()
    (install / "images" / "one.sqsh.receipt.json").write_text('{"schema": 1, "sha256": "0"}')
    pending = make_run(install, state="PENDING", job_id="7")
    make_run(install, "grok1", state="COMPLETED", variables=SMOKE)
    outside = make_run(tmp_path / "theirs", state="RUNNING", job_id="8")
    remember(install, [outside.paths.folder.parents[1]])
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LLMB_REPO": str(CLONE), "PIP_INDEX_URL": "http://[::1]:1"}

    def uninstall(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [*program, "uninstall", "--yes", "--json", "--install-path", str(install), *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    done = uninstall()
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (3, "live-runs"), done.stderr
    assert {pending.paths.run_id, outside.paths.run_id} <= set(re.findall(r"\w+", error["message"]))
    assert "pretrain_grok1" not in error["message"], "that one has ended"
    done = uninstall("--despite-runs")
    assert done.returncode == 0, done.stderr
    assert [path.name for folder in ("images", "venvs") for path in (install / folder).iterdir()] == [
        "mine.sqsh",
        "mine",
    ]
    assert not (install / ".llmb").exists()
    assert not (tmp_path / ".cache").exists(), "nothing was made elsewhere either"


@pytest.mark.slow
@pytest.mark.parametrize("program", [NOTHING, NAMESPACE])
@pytest.mark.parametrize("state", ["free", "in use", "a link"])
def test_what_was_begun_goes_too_and_nothing_of_others(tmp_path: Path, install: Path, program, state):
    """Keys, what kills have left here and in a folder of images with a lock of its own, what release 0.2 had to do."""
    shared = tmp_path / "shared"
    (shared / ".llmb" / "tmp").mkdir(parents=True)
    left, whole = shared / ".llmb" / "tmp" / "a.sqsh.01234567", shared / "a.sqsh"
    stored(install, **SLURM, **({} if state == "a link" else {"image_folder": str(shared)}))
    if state == "a link":
        (install / "images").symlink_to(shared)
    theirs = tmp_path / ".config" / "enroot" / ".credentials"
    files = [left, whole, theirs, *(install / ".llmb" / name for name in ("enroot/.credentials", "tmp/b", "hf_token"))]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    theirs.write_text("machine nvcr.io login $oauthtoken password k\nmachine a login b password c\n")
    note = {"schema": 1, "path": str(theirs), "sha256": hashlib.sha256(b"k").hexdigest()}
    (install / ".llmb" / "credentials.json").write_text(json.dumps(note))
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LLMB_REPO": str(CLONE), "PIP_INDEX_URL": "http://[::1]:1"}
    argv = [*program, "uninstall", "--yes", "--install-path", str(install)]
    with install_lock(shared, Reporter(None)) if state == "in use" else nullcontext():
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (left.exists(), whole.exists()) == (state == "in use", True)
    assert theirs.read_text() == "machine a login b password c\n"
    assert sorted(install.rglob("*")) == ([install / "images"] if state == "a link" else [])


def test_a_users_file_that_cannot_be_written_does_not_keep_the_installation(run, install, tmp_path, monkeypatch):
    """Release 0.2 has put a key there: it is said, with what to do, and everything else goes."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise RecordError(f"cannot write {path}: Permission denied")

    theirs = tmp_path / ".credentials"
    theirs.write_text("machine nvcr.io login $oauthtoken password k\nmachine a login b password c\n")
    stored(install)
    note = {"schema": 1, "path": str(theirs), "sha256": hashlib.sha256(b"k").hexdigest()}
    (install / ".llmb" / "credentials.json").write_text(json.dumps(note))
    monkeypatch.setattr("llmb_install.parts.credentials.write_atomic", refuse)
    status, _, err = run("uninstall", "--yes")
    assert (status, install.exists()) == (0, False), err
    assert str(theirs) in err
    assert "nvcr.io" in err
