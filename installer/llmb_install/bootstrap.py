"""The first stage, run from the clone with nothing installed: make the tool's environment, then hand over to it.

Standard library only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmb_common.base.engines import DEFAULT_ENGINE, image_file_name
from llmb_common.base.errors import RequestError
from llmb_common.base.files import require_trusted, user_path
from llmb_common.base.outcome import print_result
from llmb_common.base.processes import loopback_problem
from llmb_common.base.strict_yaml import Lines, NotFlatError, load_flat
from llmb_install import arguments, by_argparse
from llmb_install.answers import checks, detect, questions
from llmb_install.answers.given import Given, expand_workloads, on_cpus, recipe_heads, uses_images
from llmb_install.answers.values import unusable_for_installation
from llmb_install.arguments import guarded
from llmb_install.commands.uninstall import uninstall
from llmb_install.parts import uv
from llmb_install.parts.bundles import bundled_image
from llmb_install.parts.engine import SharedTool, cpu_engine, shared_tool, tool_environment
from llmb_install.parts.files import ANSWERS_FILE
from llmb_install.parts.image import Image
from llmb_install.working import artefact
from llmb_install.working.artefact import Artefact, lacking, raise_all
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import sweep
from llmb_install.working.transaction import install_lock


def bootstrap(clone: Path, argv: Sequence[str]) -> int:
    """Make the tool's environment if it is missing, and become ``llmb-install`` in it with the same arguments.

    ``argv`` is without the program; ``clone`` is the folder of the repository. Returns only the exit status of a
    failure, or of an uninstall that needs no environment; otherwise this process is replaced. The environment is made
    in the installation where it is sure to be used there, else in the user's cache folder. Errors are printed, not
    raised, but for those below.

    Raises:
        SystemExit: after ``--help`` or ``--version``
        ValueError: a recipe is not UTF-8
    """
    return guarded(lambda: _bootstrap(clone, argv), command=arguments.command_in(argv), as_json="--json" in argv)


def _bootstrap(clone: Path, argv: Sequence[str]) -> int:
    """Become ``llmb-install`` in an environment that is made if missing, or return the exit status of an uninstall.

    ``argv`` and ``clone`` are as in ``bootstrap``. Secrets in ``argv`` move into this process's environment variables
    first, and ``LLMB_REPO`` is set to ``clone``. What this machine lacks is found before anything is made.

    Raises:
        LLMBError: the command line or an answer is wrong, or this machine lacks something
        SystemExit: ``--help`` or ``--version``, which was printed
        OSError: the program cannot be started, or a file or folder cannot be used
        ValueError: a recipe is not UTF-8
    """
    words, secrets = arguments.take_secrets(argv)
    # From here on secrets travel in the environment, not in argument lists that every user of the machine can read.
    os.environ.update(secrets)
    options = arguments.parse(words, by_argparse.read)
    install = arguments.install_path(options, clone)
    arguments.use_bundle(options, clone)
    require_trusted(install / ANSWERS_FILE, install)  # before a program of the installation is started
    given, lines = _known_answers(options, install)
    wrong = _slurm_contradictions(options, clone, given, lines) if given else []
    if options.command == "install" and options.quickstart:
        _require_quickstart_folder(options, install)
    home = install
    environment = tool_environment(clone, home)
    usable = environment.is_usable()
    if not usable and not _builds_in_place(options, install):
        home = uv.cache_folder(os.environ)
        environment = shared_tool(clone, home)
        usable = environment.is_usable()
        if not usable and options.command == "uninstall":  # which needs nothing that would have to be made
            return print_result("uninstall", uninstall(options, clone, install), as_json=options.json)
        environment.note_use()
        _remove_earlier_builds(environment, home)
    missing = [] if usable else [environment]
    check = given.get("space_check", True) and not getattr(options, "no_space_check", False)
    large = artefact.missing(_large_parts(options, given, clone, install))
    lacks = lacking([*missing, *large], space_check=check)
    lack = loopback_problem() if getattr(options, "quickstart", False) else None
    if lack:
        lacks.append(lack)
    checks.raise_together([*wrong, *lacks], given if wrong and not options.play else {})
    if not usable:
        new = home != install or options.command == "install"
        with Reporter(None, verbose=options.verbose) as reporter, install_lock(home, reporter, create=new):
            reporter.log_into(home / ".llmb" / "logs")
            reporter.note(f"creating LLMB's own environment in {environment.link.parent} first (once)")
            environment.ensure_usable(reporter)
    os.environ["LLMB_REPO"] = str(clone)
    # Not through the link: another clone's bootstrap may move that one at any moment.
    interpreter = str(environment.folder / "bin" / "python")
    # -I: a json.py in the user's current folder is not ours.
    return os.execv(interpreter, [interpreter, "-I", str(clone / "installer" / "llmb_install" / "__main__.py"), *words])


def _require_quickstart_folder(options: argparse.Namespace, install: Path) -> None:
    """Raise unless a quickstart may make its installation in the folder ``install``.

    Raises:
        RequestError: jobs cannot run in it, or it holds other files and the user has not agreed to that
        OSError: the folder cannot be read
    """
    problem = unusable_for_installation(str(install), {"gpu_type": "cpu"})
    if problem:
        raise RequestError(f"install_path: {problem}", remedy="choose another folder with --install-path")
    checks.require_free_folder(install, agreed=options.into_used_folder)


def _remove_earlier_builds(environment: SharedTool, home: Path) -> None:
    """Remove builds of ``environment`` that nothing uses any more, with the lock of the folder ``home`` held.

    Without any, nothing is locked.

    Raises:
        LLMBError: another installer is at work there, or the folder cannot be locked
        OSError: a file or folder cannot be removed
    """
    if environment.earlier_builds():
        with Reporter(None) as reporter, install_lock(home, reporter):
            sweep(home)
            environment.prune()


def _known_answers(options: argparse.Namespace, install: Path) -> tuple[Given, Lines]:
    """Return the answers in flags and a play file, by field, and the line of each in that file by ``$.field``.

    Flags override the file. ``install_path`` is ``install`` unless the file or a flag names another. Both are empty
    where the answers come from elsewhere: from a dialogue, an installation, or a file that only a full YAML parser
    can read; also for any command but ``install``, a quickstart and ``--list-workloads``. Without a play file there
    are no lines. Secrets are left out; values are not checked. ``options`` is the parsed command line.

    Raises:
        ConfigError: the play file cannot be read, is empty, or has an unknown key
    """
    if options.command != "install" or options.quickstart or options.list_workloads:
        return {}, {}
    flags = arguments.given_by_flags(options)
    if options.play:
        try:
            play, lines = checks.read_given(Path(options.play), checks.SECRETS, load_flat)
        except NotFlatError:
            return {}, {}
        answers = {key: value for key, value in play.items() if key not in checks.SECRETS}
        return {"install_path": str(install), **answers, **flags}, lines
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if (install / ANSWERS_FILE).exists() or (terminal and questions.missing_questions(flags)):
        return {}, {}
    return {"install_path": str(install), **flags}, {}


def _slurm_contradictions(options: argparse.Namespace, clone: Path, given: Given, lines: Lines) -> list[RequestError]:
    """Check the answers ``given``, and return the errors of those that Slurm contradicts, not raised; empty: none.

    Other mistakes are raised. ``options`` are those of ``install``; ``lines`` has the line of each answer in the play
    file by ``$.field``, for messages. With ``--record`` only the answers themselves are checked: neither the folders
    nor Slurm. ``--into-used-folder`` or ``--dry-run`` accepts a folder that holds other things. Slurm is not asked
    with ``--no-site-check`` either, or where there is an installation already. ``clone`` has the recipes.

    Raises:
        RequestError: an answer is missing or impossible, a path cannot be used here, or the folder holds other things
        OSError: a recipe cannot be read, or a folder cannot be looked at
        ValueError: a recipe is not UTF-8
    """
    checks.check_answers(given, recipe_heads(clone), options.play or "", lines)
    if options.record:
        return []
    install = user_path(given["install_path"], "install_path")
    used = checks.used_folder_problems(install, agreed=options.into_used_folder or options.dry_run)
    raise_all([*checks.path_problems(given), *used])
    if options.no_site_check or (install / ANSWERS_FILE).exists():
        return []
    return list(detect.slurm_problems(given))


def _large_parts(options: argparse.Namespace, given: Given, clone: Path, install: Path) -> list[Artefact]:
    """Return the CPU engines or images that the answers ``given`` call for, to check that there is room for them.

    They may be there already; none is made. Engines are sorted by release, images by source. ``given`` must have
    passed the checks. For a quickstart it is the engine in ``install``, otherwise they are for the answered
    ``install_path``. Empty where ``options`` build nothing, where no answers are known yet (a later stage asks for
    those), and where jobs use neither. ``clone`` has the recipes and lock files.

    Raises:
        RequestError: a workload is unknown, or a path begins with the home of an unknown user
        OSError: a recipe cannot be read
        ValueError: a recipe is not UTF-8
    """
    if options.command != "install" or options.dry_run or options.record:
        return []
    if options.quickstart:
        return [cpu_engine(clone, install)]
    if not given:
        return []
    given = questions.with_defaults(given)
    heads = recipe_heads(clone)
    install = user_path(given["install_path"], "install_path")
    chosen = [heads[name] for name in expand_workloads(given["workloads"], heads)]
    if on_cpus(given):
        releases = {head.get("engine", DEFAULT_ENGINE) for head in chosen}
        kind = given["env_type"]
        return [cpu_engine(clone, install, kind, release=release) for release in sorted(releases)]
    if not uses_images(given):
        return []
    folder = user_path(given.get("image_folder") or str(install / "images"), "--image-folder")
    prefix = ("srun",) if given["install_method"] == "srun" else ()
    architecture = given["arch"]
    receipts = install / ".llmb" / "receipts"
    images: list[Artefact] = []
    for source in sorted({head["image"] for head in chosen}):
        path = folder / image_file_name(source)
        origin = bundled_image(architecture, source)
        images.append(Image(source, path, architecture, receipts, prefix, origin=origin))
    return images


def _builds_in_place(options: argparse.Namespace, install: Path) -> bool:
    """Return whether the tool's environment may be built in ``install`` rather than in the user's cache folder.

    Only where it is certain to be used there: for ``install`` with all required answers in flags, ``--quickstart``,
    and for ``add`` and ``update`` where ``install`` has the folder ``venvs`` already. Never with ``--dry-run``,
    ``--record``, ``--list-workloads`` or ``--play``, or for another command. ``options`` is the parsed command line.
    """
    if options.command != "install":
        return options.command in ("add", "update") and (install / "venvs").exists() and not options.dry_run
    if options.dry_run or options.record or options.list_workloads or options.play:
        return False
    return options.quickstart or not questions.missing_questions(arguments.given_by_flags(options))
