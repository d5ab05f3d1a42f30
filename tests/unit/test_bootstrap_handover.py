"""The first stage in this process: what it checks, where it builds the tool's environment, and what it becomes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_install import bootstrap as module
from llmb_install.answers import checks, detect
from llmb_install.answers.detect import parse_sinfo
from llmb_install.arguments import KEPT
from llmb_install.bootstrap import bootstrap
from llmb_install.parts import uv
from llmb_install.parts.engine import TOOL_BYTES, CpuEngine
from llmb_install.working.artefact import Room
from llmb_install.working.reporter import Reporter
from support.installer import CLONE
from support.texts import Texts

LOCAL = ("--cluster-type", "local", "--gpu-type", "cpu", "--workloads", "all")


class Became(BaseException):
    """This process would be another program now."""


@dataclass
class Tool:
    """Stands for the tool's environment below ``home``: a file ``usable`` says that it is there."""

    home: Path
    made: list[Path] = field(repr=False)

    @property
    def link(self) -> Path:
        return self.home / "venvs" / "llmb"

    @property
    def folder(self) -> Path:
        return self.home / "venvs" / "llmb-01234567"

    id = "tool"

    def room(self) -> list[Room]:
        return [Room(self.link.parent, TOOL_BYTES, "environment llmb")]

    def lacks(self) -> list[EnvironmentLacks]:
        return []

    def is_usable(self) -> bool:
        return (self.home / "usable").exists()

    def earlier_builds(self) -> list[Path]:
        return [path for path in [self.home / "venvs" / "unused"] if path.exists()]

    def prune(self) -> None:
        assert (self.home / ".llmb" / "lock.owner").exists(), "under the lock"
        for path in self.earlier_builds():
            path.rmdir()

    def note_use(self) -> None:
        assert self.home.name == "llmb"

    def ensure_usable(self, reporter: Reporter) -> bool:
        assert (self.home / ".llmb" / "lock.owner").exists(), "under the lock"
        reporter.log("pip says something")
        self.made.append(self.home)
        return True


@dataclass
class Stage:
    """What the first stage did: where it built, and what it became."""

    install: Path
    cache: Path
    made: list[Path]
    became: list[str] = field(default_factory=list)
    status: int | None = None
    err: str = ""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Stage]:
    """``./installer.py`` with these words, which ends where it would become ``llmb-install``."""
    install, made = tmp_path / "install", list[Path]()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("LLMB_REPO", KEPT, "HF_TOKEN", "LLMB_INSTALL"):
        monkeypatch.setenv(name, "")
    for name in ("tool_environment", "shared_tool"):
        monkeypatch.setattr(module, name, lambda clone, home: Tool(home, made))
    monkeypatch.setattr(CpuEngine, "lacks", lambda self: [])
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**12))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.yaml").write_text("cluster_type: local\ngpu_type: cpu\nworkloads:\n- pretrain_grok1\n")

    def stage(*words: str) -> Stage:
        found = Stage(install, tmp_path / "cache" / "llmb", made)
        made.clear()

        def execv(program: str, argv: list[str]) -> None:
            found.became = argv
            assert program == argv[0]
            raise Became

        monkeypatch.setattr("os.execv", execv)
        umask = os.umask(0o022)
        try:
            found.status = bootstrap(CLONE, [*words, "--install-path", str(install)])
        except Became:
            pass
        finally:
            os.umask(umask)
        found.err = capsys.readouterr().err
        return found

    return stage


def test_it_builds_where_it_will_be_used_and_hands_over(stage: Callable[..., Stage], texts: Texts) -> None:
    done = stage(*LOCAL)
    assert done.made == [done.install]
    python = str(done.install / "venvs" / "llmb-01234567" / "bin" / "python")
    second = str(CLONE / "installer" / "llmb_install" / "__main__.py")
    assert done.became == [python, "-I", second, *LOCAL, "--install-path", str(done.install)]
    assert os.environ["LLMB_REPO"] == str(CLONE)
    texts(done.err)
    (log,) = (done.install / ".llmb" / "logs").iterdir()
    assert "pip says something" in log.read_text()


def test_with_verbose_all_output_is_shown(stage: Callable[..., Stage]) -> None:
    assert "    pip says something\n" in stage(*LOCAL, "--verbose").err


def test_an_environment_that_is_there_is_used(stage: Callable[..., Stage], tmp_path: Path) -> None:
    install = tmp_path / "install"
    install.mkdir()
    (install / "usable").touch()
    done = stage("list")
    assert (done.made, done.err) == ([], "")
    assert done.became[0].startswith(f"{install}/")


def test_one_in_the_cache_serves_where_none_may_be_built(stage: Callable[..., Stage], tmp_path: Path) -> None:
    (tmp_path / "cache" / "llmb").mkdir(parents=True)
    (tmp_path / "cache" / "llmb" / "usable").touch()
    done = stage("list")
    assert (done.made, done.became[0].startswith(f"{done.cache}/")) == ([], True)
    assert stage(*LOCAL).made == [done.install], "an installation gets its own all the same"
    (done.cache / "venvs" / "unused").mkdir(parents=True)
    assert (stage("list").made, list((done.cache / "venvs").iterdir())) == ([], [])


@pytest.mark.parametrize(
    ("words", "in_place"),
    [
        (["--quickstart"], True),
        (LOCAL, True),
        ([*LOCAL, "--dry-run"], False),
        ([*LOCAL, "--record", "/x/play.yaml"], False),
        (["--list-workloads"], False),
        (["--play", "play.yaml"], False),
        (["list"], False),
        (["doctor"], False),
        (["add", "grok1"], False),
        (["update"], False),
    ],
)
def test_nothing_is_built_in_a_folder_that_may_not_become_an_installation(stage, words, in_place):
    done = stage(*words)
    assert done.made == [done.install if in_place else done.cache]
    assert done.install.exists() is in_place


def test_nothing_is_made_for_an_uninstall(stage: Callable[..., Stage], tmp_path: Path) -> None:
    install = tmp_path / "install"
    for name in (".llmb", "venvs/llmb-01234567"):
        (install / name).mkdir(parents=True)
    (install / ".llmb" / "answers.yaml").touch()
    (install / "mine").touch()
    (install / "usable").touch()
    assert stage("uninstall", "--yes").became[3:5] == ["uninstall", "--yes"], (
        "where there is a tool, it asks about jobs"
    )
    (install / "usable").unlink()
    done = stage("uninstall", "--yes")
    assert (done.status, done.made, done.became) == (0, [], []), done.err
    assert [path.name for path in install.iterdir()] == ["mine"]
    assert stage("uninstall", "--yes").status == 3, "there is none"


@pytest.mark.parametrize(
    ("words", "in_place"),
    [
        (["add", "grok1"], True),
        (["update"], True),
        (["update", "--dry-run"], False),
        (["remove", "grok1"], False),
        (["verify"], False),
    ],
)
def test_an_installation_that_is_there_gets_its_environment_back_from_those_that_build(
    stage: Callable[..., Stage], tmp_path: Path, words: list[str], in_place: bool
) -> None:
    for name in ("venvs", ".llmb"):
        (tmp_path / "install" / name).mkdir(parents=True)
    done = stage(*words)
    assert done.made == [done.install if in_place else done.cache]


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu-type", "cpu"],
        [*LOCAL[:4], "--workloads", "nothing"],
        [*LOCAL, "--image-folder", "/x"],
        [*LOCAL[:2], "--gpu-type", "h100", "--workloads", "all", "--engine-python", "/no"],
        ["--hf-token"],
        ["--json", "--frobnicate"],
    ],
    ids=range(6),
)
def test_mistakes_come_before_anything_is_built(stage: Callable[..., Stage], words: list[str], texts: Texts) -> None:
    done = stage(*words)
    assert (done.status, done.made, done.became) == (2, [], [])
    texts(done.err)
    assert not done.install.exists()


def test_a_folder_with_other_things_is_refused_unless_that_was_agreed(stage, tmp_path, texts: Texts):
    (tmp_path / "install").mkdir()
    (tmp_path / "install" / "thesis.tex").touch()
    done = stage(*LOCAL)
    assert (done.status, done.made) == (2, [])
    texts(done.err)
    assert stage(*LOCAL, "--into-used-folder").made == [done.install]
    assert stage(*LOCAL, "--dry-run").made == [done.cache], "which writes nothing there"


@pytest.mark.parametrize("words", [["--quickstart"], ["--play", "play.yaml"], ["--list-workloads"]])
def test_answers_are_not_missed_where_they_come_from_elsewhere(stage: Callable[..., Stage], words: list[str]) -> None:
    assert stage(*words).became


def test_an_installation_has_its_answers_already(stage: Callable[..., Stage], tmp_path: Path) -> None:
    (tmp_path / "install" / ".llmb").mkdir(parents=True)
    (tmp_path / "install" / ".llmb" / "answers.yaml").touch()
    assert stage("--gpu-type", "cpu").became


@pytest.mark.parametrize("which", ["stdin", "stderr"])
def test_in_a_terminal_what_is_missing_will_be_asked(stage, monkeypatch, which):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert stage("--gpu-type", "cpu").made == [uv.cache_folder(os.environ)], "who knows where it will be installed"
    assert stage(*LOCAL, "--image-folder", "/x").status == 2, "nothing is missing, so nothing is asked"
    monkeypatch.setattr(f"sys.{which}.isatty", lambda: False, raising=False)
    assert stage("--gpu-type", "cpu").status == 2, "nobody could answer"


def test_a_recorded_file_may_name_places_of_another_machine(stage: Callable[..., Stage]) -> None:
    words = [*LOCAL[:2], "--gpu-type", "h100", "--workloads", "all", "--engine-python", "/nowhere"]
    assert stage(*words, "--record", "/x/play.yaml").became


def test_secrets_travel_in_the_environment(stage: Callable[..., Stage]) -> None:
    done = stage(*LOCAL, "--hf-token", "hf_x")
    assert "hf_x" not in " ".join(done.became)
    assert (os.environ["HF_TOKEN"], os.environ[KEPT]) == ("hf_x", "HF_TOKEN")


def test_room_is_needed_where_it_is_built(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr("llmb_install.working.artefact.free_bytes", lambda folder: TOOL_BYTES - 1)
    done = stage("list")
    assert (done.status, done.made) == (3, []), done.err
    texts(done.err)
    monkeypatch.setattr("llmb_install.working.artefact.free_bytes", lambda folder: TOOL_BYTES)
    assert stage("list").made


SLURM = ("--cluster-type", "slurm", "--account", "a", "--gpu-partition", "p", "--gpu-type", "h100", "--workloads")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--quickstart"], ["environment llmb 245 MB", "environment engine-cpu 2.0 GB"]),
        ([*LOCAL[:-1], "grok1"], ["environment llmb 245 MB", "environment engine-cpu 2.0 GB"]),
        ([*LOCAL], ["environment llmb 245 MB", "environment engine-cpu 2.0 GB", "environment engine-cpu-0.6 2.0 GB"]),
        (
            [*SLURM, "grok1,nemotron4"],
            ["environment llmb 245 MB", "image nvidia+nemo+26.02.01.sqsh 25.0 GB", "unpacking nvidia+nemo+26.02.01"],
        ),
        ([*SLURM, "grok1", "--install-method", "srun"], ["environment llmb 245 MB", "26.02.01.sqsh 0 B"]),
    ],
    ids=["quickstart", "cpu", "two engines", "images", "images on a node"],
)
def test_all_that_will_be_made_is_counted_before_the_first_byte(stage, monkeypatch, words, parts, tmp_path):
    monkeypatch.setattr("llmb_install.working.artefact.free_bytes", lambda folder: 10**8)
    monkeypatch.setenv("ENROOT_TEMP_PATH", str(tmp_path))
    done = stage(*words)
    assert (done.status, done.made) == (3, []), done.err
    counted = done.err[done.err.index("(environment llmb") + 1 : done.err.index("), and ")].split(", ")
    said = [part for part in counted if not part.endswith(" 0 B") or "srun" in words]
    assert "are free" not in stage(*words, "--no-space-check").err
    assert len(said) == len(parts)
    assert all(part in one for part, one in zip(parts, said, strict=True)), said


# What the site decides, before the first byte


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with one partition and one account, and a machine without Enroot."""
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if name == "enroot" else f"/bin/{name}")
    monkeypatch.setattr(detect, "all_partitions", lambda: parse_sinfo("gpu|up|1:00|8|gpu:8"))
    monkeypatch.setattr(detect, "accounts_of_user", lambda: ("bench",))


CLUSTER = {"cluster_type": "slurm", "gpu_type": "h100", "account": "bench", "gpu_partition": "gpu", "workloads": "all"}


def flags(**changes: str) -> list[str]:
    return [f"--{key.replace('_', '-')}={value}" for key, value in {**CLUSTER, **changes}.items()]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "schema: 2\n",
        "gpu_tpye: h100\n",
        "hf_token: x\n",
        "cluster_type: local\ngpu_type: h1000\nworkloads: all\n",
        "cluster_type: local\ngpu_type: cpu\nworkloads: [grok2]\n",
    ],
)
def test_a_play_file_is_read_before_anything_is_built(stage, tmp_path, text, texts: Texts):
    if text is not None:
        (tmp_path / "nosuch.yaml").write_text(text)
    done = stage("--play", "nosuch.yaml")
    assert (done.status, done.made, done.became) == (2, [], [])
    texts(done.err)


def test_choices_in_a_play_file_may_be_in_any_case(stage, tmp_path):
    (tmp_path / "play.yaml").write_text("cluster_type: LOCAL\ngpu_type: CPU\nruntime: NONE\nworkloads: all\n")
    assert stage("--play", "play.yaml").became


def test_a_play_file_that_only_a_yaml_parser_can_read_is_for_the_next_stage(stage, tmp_path):
    (tmp_path / "play.yaml").write_text("{cluster_type: nonsense}\n")
    assert stage("--play", "play.yaml").became


@pytest.mark.usefixtures("slurm")
def test_all_that_the_site_contradicts_is_one_table_and_the_answers_are_kept(stage, tmp_path, texts: Texts):
    done = stage(*flags(account="bnech", gpu_partition="gpus"))
    assert (done.status, done.made, done.became) == (2, [], [])
    assert len([line for line in done.err.splitlines() if line.startswith("    - ")]) == 3
    texts(done.err)
    assert checks.read_draft()["account"] == "bnech"


@pytest.mark.usefixtures("slurm")
def test_of_a_play_file_too_and_it_is_kept_already(stage: Callable[..., Stage], tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "play.yaml").write_text("".join(f"{key}: {value}\n" for key, value in CLUSTER.items()))
    done = stage("--play", "play.yaml", "--account", "bnech", "--install-method", "srun")
    texts(done.err)
    assert (done.status, done.made, checks.read_draft()) == (2, [], {})
    assert stage("--play", "play.yaml").status == 3, "Enroot alone: the machine lacks it"
    assert stage("--play", "play.yaml", "--install-method", "srun").became
    assert stage("--play", "play.yaml", "--account", "bnech", "--record", "other.yaml").became, "for another site"


@pytest.mark.usefixtures("slurm")
def test_an_image_folder_must_be_writable_where_an_image_is_to_come(stage, monkeypatch, texts: Texts):
    real = os.access
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK | os.X_OK and real(path, mode))
    done = stage(*flags(image_folder="/shared/images", install_method="srun"))
    assert (done.status, done.made) == (3, []), done.err
    texts(done.err)


def test_a_quickstart_does_not_begin_where_python_cannot_import(stage, monkeypatch, texts: Texts):
    monkeypatch.setattr("llmb_install.arguments.install_path", lambda asked, clone: Path("/a:b"))
    done = stage("--quickstart")
    assert (done.status, done.made) == (2, [])
    texts(done.err)


def test_a_quickstart_does_not_begin_where_ranks_cannot_reach_each_other(stage, monkeypatch, texts: Texts):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr("socket.create_server", refuse)
    done = stage("--quickstart")
    assert (done.status, done.made) == (3, [])
    texts(done.err)
