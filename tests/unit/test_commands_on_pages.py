"""Commands on the pages: ``bash`` blocks run as far as they can here, and ``console`` blocks print what they show.

Both run in an installation of ``support.documented_site``; ``...`` in what a ``console`` block shows stands for
anything.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from string import Template
from types import SimpleNamespace

import click
import pytest

from llmb_common.base.errors import RequestError
from llmb_common.submission import launch
from llmb_install import arguments, by_click
from llmb_run.app import app
from support.cli import Cli
from support.documented_site import make_documented_site
from support.fake_slurm import FakeSlurm
from support.repository import our_files
from support.run_site import with_small_code
from support.runs import make_run, steady_log

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in our_files() if path.suffix == ".md"]
RECIPES = ["grok1", "llama3.1", "llama4", "mbridge", "nemotron4"]
GPU_TYPES = ("gb200", "h100", "gb300")


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The page and the text of each block."""
    for path in PAGES:
        for block in re.findall(rf"^ *```(?:{language})\n(.*?)^ *```", path.read_text(), re.DOTALL | re.MULTILINE):
            yield str(path.relative_to(ROOT)), block


NOT_RUN = {
    r"(?:.* )?\S*(?:=?<\w|\[[A-Z0-9_]+=|\.\.\.(?!\w))": "a reader has to fill it in",
    r"\S*installer\.py|\S*llmb-install ": "installs, downloads or looks at the machine: tests/install does that",
    r"\S*llmb-run health|srun |sbatch ": "needs the nodes of a cluster",
    r"llmb-run accept gb300(?! --dry-run)": "takes days",
    r"llmb-run accept show|sha256sum |ssh-keygen ": "test_accept_show.py has a pack and keys for it",
    r"llmb-run ab --base \S+ --change tp=1$": "the page's run has TP 2, this one has not; test_week.py has both",
    r"\./setup\.sh": "downloads an image",
    r"python -m llmb_train\.catalogue": "needs Megatron-Bridge",
    r"tests/run": "runs this test",
    r"curl ": "needs a server",
    r"grep .*train_step_timing": "needs a log of NeMo",
}
"""Commands that are not run, and why; the options of those that are ours are parsed all the same."""
MORE = {r"llmb-run (ab|tune|sweep) ": "--dry-run", r"llmb-run watch": "48300", r"llmb-run wait": "--timeout 1s"}
"""What is added to a command that would go on until its runs have ended: a dry run, one that has ended, a limit."""
ENDED = {0, 1, 4}
"""Exit statuses of what worked; 1 where it told of a run that failed, 4 where runs have not ended: there are such."""
HERE = {
    r"RUN\.\.\.": "48213 48214",
    r"\bRUN\b": "48300",
    r"\bsweep-3f2a9c1e\b": "48213 48214",
    r"\br1 r2 r3\b": "48213 48214 48215",
    r"HOST,OTHER,OTHER": "gpu[007-009]",
    r"\bHOST\b": "gpu007",
    r"<run>/<experiment_name>/checkpoints": "$LLMB_INSTALL/checkpoints",
    r"/(lustre|shared|lustre/myproject)/llmb\b|/path/to/installation": "$LLMB_INSTALL",
    r"/shared/clone\b": str(ROOT),
    r"/scratch/\$USER/llmb/llama3\.1|/path/to(?=/experiments)": "$LLMB_WORKLOAD",
    r"pretraining_grok1/exp": "pretrain_grok1/exp",
}
"""What pages call a run, a node or a folder, and one that is here."""


@dataclass
class Terminal:
    """Where a reader types: a folder and variables, which last until the end of a block.

    ``llmb-run`` and ``launch.sh`` run in this process and give their jobs to a scripted Slurm. The rest is bash's.
    """

    cli: Cli
    folder: Path
    variables: dict[str, str]

    def enter(self, line: str) -> None:
        """Run a line, or see that the table says why not.

        Raises:
            AssertionError: it fails, or is unknown to bash
        """
        command = re.sub(r"^\$LLMB_INSTALL/bin/", "", line)
        for pattern, name in HERE.items():
            command = re.sub(pattern, name, command)
        if any(re.match(rf"(?:[A-Z0-9_]+=\S+ )*?{pattern}", command) for pattern in NOT_RUN):
            parse_options(command)
            return
        more = [option for pattern, option in MORE.items() if re.match(pattern, command) and option not in command]
        printed_here = re.split(r" \| | > ", command)[0]
        words = shlex.split(Template(" ".join([printed_here, *more])).safe_substitute(self.variables))
        said = dict(word.split("=", 1) for word in takewhile(re.compile("[A-Z0-9_]+=").match, words))
        self._run(words[len(said) :], said, command)

    def _run(self, words: list[str], said: dict[str, str], command: str) -> None:
        match words:
            case ["cd", folder]:
                self.folder = self.folder / folder
                assert self.folder.is_dir(), folder
            case ["export", *pairs]:
                self.variables |= dict(pair.split("=", 1) for pair in pairs)
            case ["llmb-run", *rest]:
                self._llmb_run(rest, said)
            case ["./launch.sh"]:
                self._launch({name: value for name, value in self.variables.items() if name != "PATH"} | said)
            case _:
                done = in_bash(Template(command).safe_substitute(self.variables), self.folder, self.variables)
                assert done.returncode in ENDED, done.stderr

    def _llmb_run(self, words: list[str], said: dict[str, str]) -> None:
        """On a cluster of the first type of GPU that has such a configuration."""
        ends = (self.cli(*words, **({"GPU_TYPE": gpu_type} | said)) for gpu_type in GPU_TYPES)
        assert any(end.status in ENDED for end in ends), self.cli(*words, **said).err

    def _launch(self, request: dict[str, str]) -> None:
        """Submit it; what would train on this machine is a dry run, because tests/training trains."""
        if request.get("CLUSTER_TYPE") == "local":
            request = {**request, "DRY_RUN": "true"}
        for gpu_type in GPU_TYPES:
            with suppress(RequestError):
                assert launch.run(self.folder, {"GPU_TYPE": gpu_type} | request) == 0
                return
        pytest.fail(f"on none of {GPU_TYPES}: {request}")


def parse_options(command: str) -> None:
    """Those of a command that is not run, as far as a reader need not fill them in."""
    called = re.match(r"\S*?(llmb-run|llmb-install|installer\.py) (.*)", command)
    if called is None or re.search(r"\.\.\.(?!\w)|<", called[2]):
        return
    rest = shlex.split(called[2])
    if called[1] != "llmb-run":
        arguments.parse(rest, by_click.read)
        return
    found: click.Command = app
    context = click.Context(app)
    while isinstance(found, click.Group) and rest and not rest[0].startswith("-"):
        name, chosen, rest = found.resolve_command(context, rest)
        assert chosen is not None, name
        found, context = chosen, click.Context(chosen, parent=context)
    found.make_context(found.name, rest, parent=context)


def lines_of(block: str) -> Iterator[str]:
    """The commands of a block, without comments."""
    for line in block.replace("\\\n", " ").splitlines():
        yield from filter(None, (part.strip() for part in re.split(r" ; | && ", re.sub(r"(^|\s)#.*", "", line))))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    install = tmp_path_factory.mktemp("documented")
    make_documented_site(install)
    return install


@pytest.fixture(scope="module")
def worked_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another such installation, to which blocks add runs. One is of today: no block leans on another's."""
    install = tmp_path_factory.mktemp("worked") / "in"
    make_documented_site(install)
    make_run(install, log=steady_log(5741.5), job_id="48500")
    (install / "images").mkdir()
    (install / "checkpoints" / "iter_0000050").mkdir(parents=True)
    (install / "checkpoints" / "iter_0000050" / "__0_0.distcp").touch()
    (install / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("50")
    for release in ("26.02.01", "26.04.01", "26.08"):
        (install / "images" / f"nvidia+nemo+{release}.sqsh").write_bytes(b"hsqs")
    return install


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> FakeSlurm:
    return FakeSlurm(tmp_path_factory.mktemp("slurm") / "fake")


@pytest.fixture
def terminal(worked_in: Path, slurm: FakeSlurm, tmp_path, monkeypatch, capsys) -> Terminal:
    """On an installation to which other blocks have added runs."""
    monkeypatch.setenv("PATH", slurm.path())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "llmb_common.submission.preflight.shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 60)
    )
    with_small_code(tmp_path, monkeypatch)
    return Terminal(Cli(worked_in, monkeypatch, capsys), ROOT, {})


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), list(blocks("bash|shell")))
def test_a_bash_block_runs(page: str, block: str, terminal: Terminal) -> None:
    """Each of its commands, or the table says why it is not run."""
    recipe = recipe_of(page)
    terminal.folder = ROOT if re.search(r"^(cd |common/)", block, re.MULTILINE) else ROOT / recipe
    terminal.variables = environment(terminal.cli.install, recipe)
    for line in lines_of(block):
        terminal.enter(line)


def test_commands_are_marked_as_such() -> None:
    for page, block in blocks(""):
        assert not re.match(r" *(llmb-run|llmb-install|\./launch\.sh) \S", block), (page, block)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), list(blocks("console")))
def test_a_console_block_prints_what_it_shows(page: str, block: str, site: Path, monkeypatch, capsys) -> None:
    recipe = recipe_of(page)
    cli = Cli(site, monkeypatch, capsys)
    monkeypatch.setenv("COLUMNS", "120")
    # On a busy machine the site may be old enough for its index to learn of its runs, which then tell what to expect.
    monkeypatch.setattr("llmb_common.measured.kept._COARSE_NS", 1 << 62)
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", block, re.MULTILINE):
        if command.startswith("llmb-run "):
            done = cli(*shlex.split(command)[1:])
            printed = done.out + done.err
        else:
            folder = ROOT if command.startswith("common/") else ROOT / recipe
            ended = in_bash(command, folder, environment(site, recipe))
            printed = ended.stdout + ended.stderr
        pattern = ".*?".join(map(re.escape, spaced_once(shown).split("...")))
        assert re.search(rf"\A{pattern}", spaced_once(printed), re.DOTALL), printed


def spaced_once(text: str) -> str:
    """Columns are as wide as the longest path in them."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def recipe_of(page: str) -> str:
    """The recipe whose page it is; the other pages' examples are of Llama 3.1."""
    folder = page.partition("/")[0]
    return folder if folder in RECIPES else "llama3.1"


def environment(install: Path, recipe: str) -> dict[str, str]:
    """What is set where a recipe's commands are typed."""
    workload = {"llama4": "llama4_maverick"}.get(recipe, recipe)
    return {
        "PATH": "/usr/bin:/bin",
        "LLMB_INSTALL": str(install),
        "LLMB_PYTHON": sys.executable,
        "LLMB_REPO": str(ROOT),
        "LLMB_WORKLOAD": str(install / "workloads" / f"pretrain_{workload}"),
    }


def in_bash(command: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
