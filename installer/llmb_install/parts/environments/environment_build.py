"""Making an environment: creating it, installing what its lock says, importing the result.

Standard library only, as ``environments``, which decides when this happens.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from llmb_common.errors import EnvironmentLacks
from llmb_common.machine.processes import ask
from llmb_install.parts.environments.environment_content import Build, Content, child_environment, failure
from llmb_install.parts.environments.environment_packages import install
from llmb_install.parts.packages import uv
from llmb_install.working.reporter import Reporter, Step


def build(environment: Content, folder: Path, reporter: Reporter, step: Step) -> None:
    """Make the environment in ``folder``, where nothing is yet.

    Raises:
        EnvironmentLacks: it could not be made; the cause is in the message.
    """
    build = Build(environment, folder, reporter, step)
    _create(build)
    install(build)
    _smoke_test(build)
    shutil.rmtree(build.cache, ignore_errors=True)
    (folder / ".lock").unlink(missing_ok=True)  # uv's, open to everybody


def _create(build: Build) -> None:
    build.folder.parent.mkdir(parents=True, exist_ok=True)
    if not uv.at_hand(build.cache):
        build.step.update("fetching uv")
    program = build.uv  # conda's environments are filled with it, too
    build.step.update("creating it")
    argv = [program, "venv", "--cache-dir", str(build.cache), "--python", build.environment.python, str(build.folder)]
    if build.environment.kind == "conda":
        python = f"python={_version(build.environment.python)}"
        argv = [conda(build.environment.name), "create", "--yes", "--prefix", str(build.folder), python]
    done = build.run(argv)
    if done.status != 0:
        raise failure(build, f"{Path(argv[0]).name} could not create it", done, "correct what it says, then try again")


def conda(environment: str) -> str:
    """The program that makes an environment of kind ``conda``.

    Raises:
        EnvironmentLacks: there is none.
    """
    found = next((path for name in ("conda", "mamba", "micromamba") if (path := shutil.which(name))), None)
    if found is None:
        raise EnvironmentLacks(
            f"environment {environment}: neither conda, mamba nor micromamba is on PATH",
            remedy="load or install one of them, or choose --env-type venv",
        )
    return found


def _version(python: str) -> str:
    """``3.11`` of an interpreter."""
    answer = ask([python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], 60)
    if not answer.ok:
        raise EnvironmentLacks(
            f"{python} does not say its version: {answer.complaint}", remedy="run the installer with another Python"
        )
    return answer.output.strip()


def _smoke_test(build: Build) -> None:
    build.step.update("checking that it imports")
    done = build.run(_smoke_argv(build.environment, build.folder))
    if done.status != 0:
        raise failure(
            build,
            f"its packages do not import ({', '.join(build.environment.smoke)})",
            done,
            "run the same command again, which builds the environment afresh",
        )


def _smoke_argv(environment: Content, folder: Path) -> list[str]:
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    # -I: a json.py in the current folder is not the environment's.
    return [str(folder / "bin" / "python"), "-I", "-c", program, *environment.smoke]


def smoke_problem(environment: Content, folder: Path) -> str | None:
    """Why the packages of the environment in ``folder`` do not import, or None when they do."""
    answer = ask(_smoke_argv(environment, folder), 300, env=child_environment())
    if answer.problem:
        return f"{environment.link} does not run: {answer.why}"
    lines = answer.errors.strip().splitlines()
    return None if answer.ok else f"{environment.link} does not import: {lines[-1] if lines else '?'}"
