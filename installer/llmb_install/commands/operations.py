"""The commands that build: install, add, remove, update. All of them end by running the missing steps."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks, RequestError
from llmb_common.base.files import write_output
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, print_message, size
from llmb_common.base.words import is_slurm_name
from llmb_common.executors.slurm.query import mpi_types
from llmb_common.recipes.recipe import Recipe
from llmb_install import arguments
from llmb_install.answers import answers as answers_module
from llmb_install.answers import checks, detect
from llmb_install.answers.answers import as_given, load_recipes, required_answers, stored_answers
from llmb_install.answers.checks import listed_engines, path_problems
from llmb_install.answers.given import Given, answer_text, expand_workloads, on_cpus, on_slurm
from llmb_install.answers.questions import QUESTIONS, Answers, merged_answers, missing_questions
from llmb_install.commands import upkeep
from llmb_install.installation import Installation
from llmb_install.parts import credentials
from llmb_install.parts.credentials import Secrets
from llmb_install.working import artefact
from llmb_install.working.artefact import Artefact, free_bytes, raise_all
from llmb_install.working.transaction import transaction

_WELCOME = """\
LLMB installer. Enter accepts the highlighted choice, Shift-Tab goes back, Ctrl-C quits and keeps the answers.
Nothing is installed before you have seen everything. Detecting this machine's setup ..."""
_NOTHING = "nothing to do: {} is complete\n"


def install(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``install``, the default: make what an installation with the given answers lacks.

    The answers come from a play file, flags, the installation in ``path``, or the user, who is asked on a terminal.
    With ``--record`` they are only written to a file, which is ``recorded`` in the result's data; with
    ``--list-workloads`` the workloads are only listed, as by ``list_workloads``. Else the result is that of
    ``carry_out``. ``clone`` has the recipes. ``options`` is the parsed command line, in which ``options.record``
    and ``options.play`` are paths as text, or None.

    Raises:
        RequestError: answers are wrong or missing, or the folder holds other things (unless ``--into-used-folder``
            or ``--dry-run`` was given)
        EnvironmentLacks: this machine lacks something, or another command changed the installation meanwhile
        Interrupted: the user left the dialogue
        LLMBError: a file of the site or a recipe is wrong, or a part could not be made
        OSError: a folder cannot be listed
    """
    if options.list_workloads:
        return list_workloads(clone)
    answers, secrets, was_asked = _gather_answers(options, clone, path)
    if options.record:
        write_output(Path(options.record), answers_module.to_yaml(answers))
        next_line = f"recorded in {options.record}; install with: ./installer.py --play {options.record}"
        return Result({"recorded": options.record}, remarks=[next_line])
    answers = replace(answers, install_path=str(arguments.real_path(Path(answers.install_path))))
    raise_all(_site_problems(options, answers, clone, path))
    checks.require_free_folder(Path(answers.install_path), agreed=options.into_used_folder or options.dry_run)
    found = stored_answers(Path(answers.install_path))

    def decide() -> Installation:
        """Return the installation that there should be; answers are gathered anew if another command has changed it.

        What it goes by, the answers gathered first and those stored then, is from the enclosing function. Answers of a
        play file hold in any case, and a user who has answered is not asked again.

        Raises:
            EnvironmentLacks: another command has changed it after the user had answered
            LLMBError: the stored answers cannot be read, or the new ones are wrong
            OSError: a folder cannot be listed
        """
        now = stored_answers(Path(answers.install_path))
        if options.play or now == found:
            return Installation(clone, answers, secrets)
        if was_asked:
            raise EnvironmentLacks(
                f"another command changed the installation in {answers.install_path} in the meantime",
                remedy="run the same command again",
            )
        return Installation(clone, *_gather_answers(options, clone, path)[:2])

    return carry_out(options, decide)


def add(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``add``: add workloads or Megatron-Bridge releases to an installation; make what they need.

    ``clone`` has the recipes; ``path`` is the installation's folder. ``options.workloads`` is a list of names, short
    ones such as ``grok1`` too, in which ``all`` stands for all recipes; ``options.engines`` are releases as one text
    with commas, or None. What is installed already stays, and is no error. The result is that of ``carry_out``.

    Raises:
        RequestError: a workload or release is unknown, or none of the added workloads runs on a release
        EnvironmentLacks: there is no installation at ``path``, or this machine lacks something
        LLMBError: the answer file or a recipe is wrong, or a part could not be made
        OSError: a file cannot be read or written
    """
    recipes = load_recipes(clone)
    new = expand_workloads(options.workloads, recipes)
    engines = listed_engines(options.engines)
    answers_module.require_engines(engines, [recipes[name] for name in new])

    def decide() -> Installation:
        """Return the installation at ``path`` as it is now, with the workloads and releases that are to be added.

        All these, and the options, are those of the enclosing function. An ``mpi`` that release 0.2 had detected is
        left out.

        Raises:
            EnvironmentLacks: there is no installation, or the clone has no recipe
            ConfigError: its answer file is damaged or not to be trusted
            RecipeError: a recipe is wrong
            OSError: the installation's or a recipe's folder may not be looked at
        """
        old = _without_detected_mpi(required_answers(path))
        workloads = tuple(sorted({*old.workloads, *new}))
        all_engines = tuple(sorted({*(old.engines or ()), *engines})) or None
        changed = replace(old, workloads=workloads, engines=all_engines)
        return Installation(clone, _with_space_check(options, changed), credentials.from_environment())

    return carry_out(options, decide)


def remove(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``remove``: take ``options.workloads``, names, out of the installation in ``path``.

    Images and engines that nothing else needs are removed; results stay. ``options.workloads`` is a list of names,
    short ones such as ``grok1`` too; the word ``all``, alone, names those installed. An unfinished earlier removal is
    finished first; after an error the next command finishes this one. The result's data has ``install_path`` and the
    list ``workloads`` of those that are left. ``clone`` has the recipes.

    Raises:
        RequestError: a workload is unknown, or not installed while no unfinished removal is there
        EnvironmentLacks: there is no installation, the clone has no recipe, or runs of the workloads have not ended
            (unless ``--despite-runs``)
        LLMBError: the answer file or a recipe is wrong, or a file could not be written
        OSError: an image cannot be removed, or a file not be used
    """
    required_answers(path)
    with transaction(path, verbose=options.verbose) as reporter:
        # Read anew under the lock, as another command may have changed the answers while this one waited.
        old = required_answers(path)
        known = {*load_recipes(clone), *old.workloads}
        removed = old.workloads if options.workloads == ["all"] else expand_workloads(options.workloads, known)
        installed = tuple(name for name in removed if name in old.workloads)
        absent = [name for name in removed if name not in installed]
        if absent and not upkeep.is_pending(path):
            raise RequestError(
                f"{absent[0]} is not installed", remedy=f"installed: {', '.join(old.workloads) or 'nothing'}"
            )
        if installed and not options.despite_runs:
            upkeep.require_no_runs(path, f"cannot remove {', '.join(installed)}", installed)
        left = tuple(name for name in old.workloads if name not in removed)
        before = Installation(clone, old)
        after = Installation(clone, replace(old, workloads=left))
        # An earlier removal's note would be overwritten by this one's: it is finished first.
        upkeep.finish_removal(before, reporter)
        upkeep.begin_removal(before, after)
        # Only what records the choice: something else that is missing is not this command's business.
        artefact.make_missing([part for part in after.artefacts() if part.id in ("answers", "site-config")], reporter)
        upkeep.finish_removal(after, reporter)
        for name in removed:
            reporter.note(f"removed {name}; its results remain in {before.workload_folder(name)}")
    return Result({"install_path": str(path), "workloads": list(left)})


def update(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``update``: repair what is damaged, build what the clone asks for, remove what is left over.

    ``clone`` has the recipes and lock files, ``path`` is the installation's folder; its answers stay, but that an
    ``mpi`` which release 0.2 had detected goes. The result is that of ``carry_out``. ``options`` is the parsed
    command line.

    Raises:
        EnvironmentLacks: there is no installation, or this machine lacks something
        LLMBError: the answer file or a recipe is wrong, or a part could not be made
        OSError: a file cannot be read or written
    """

    def decide() -> Installation:
        """Return the installation at ``path`` as its own answers describe it now.

        An ``mpi`` that release 0.2 had detected is left out. ``path``, ``clone`` and ``options``, which may turn the
        check of free space off, are those of the enclosing function.

        Raises:
            EnvironmentLacks: there is no installation, or the clone has no recipe
            ConfigError: its answer file is damaged or not to be trusted
            RecipeError: a recipe is wrong
            OSError: the installation's or a recipe's folder may not be looked at
        """
        answers = _without_detected_mpi(required_answers(path))
        return Installation(clone, _with_space_check(options, answers), credentials.from_environment())

    return carry_out(options, decide, repair=True)


def charts(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``charts``: fetch the script that draws reports' charts if it is missing.

    The result's text is the script's path, with a line break; its data has ``install_path`` and ``ran``, the ids of
    the parts that were made: a list, empty where the script was there. ``path`` is the installation's folder.
    ``clone`` has the recipes and the lock file. ``options`` is the parsed command line.

    Raises:
        EnvironmentLacks: there is no installation, the clone has no recipe, or the script cannot be fetched
        ConfigError: the answer file is damaged or not to be trusted
        RecipeError: a recipe is wrong
        RecordError: a file cannot be written
        OSError: a file or folder cannot be used
        Interrupted: this process is ending
    """
    part = Installation(clone, required_answers(path)).charts()
    ran = []
    if not part.is_complete():
        with transaction(path, verbose=options.verbose) as reporter:
            ran = artefact.make_missing([part], reporter)
    return Result({"install_path": str(path), "ran": ran}, f"{part.path}\n")


def list_workloads(clone: Path) -> Result:
    """Return the workloads that ``clone`` has recipes for, installed or not: name, title, sizes and image.

    They are sorted by name. The result's data has ``workloads``, a list of dictionaries with the keys ``workload``,
    ``title``, ``sizes`` (a list of names) and ``image`` (the source in a registry of its default image); its text is
    a line for each, without sizes.

    Raises:
        EnvironmentLacks: the clone has no recipe
        RecipeError: a recipe is wrong
        OSError: a recipe's folder may not be looked at
    """
    recipes = load_recipes(clone)
    rows = [
        {"workload": name, "title": recipe.title, "sizes": list(recipe.sizes), "image": recipe.image}
        for name, recipe in sorted(recipes.items())
    ]
    text = "".join(f"{r['workload']:28}{r['title']:37}{r['image']}\n" for r in rows)
    return Result({"workloads": rows}, text)


def carry_out(options: argparse.Namespace, decide: Callable[[], Installation], *, repair: bool = False) -> Result:
    """Make what the installation lacks, or with ``options.dry_run`` list it; nothing is written for nothing to do.

    ``options`` is the parsed command line of ``install``, ``add`` or ``update``; only ``install`` makes the folder.
    ``decide`` gives the installation that there should be. Where something is to do, it is called again with the
    lock held, because another command may have come first; an unfinished removal is then finished first, and
    replaced builds of environments are removed at the end. What was made before an error stays. ``repair``: always
    look, and make anew what only the thorough check finds damaged, too. The result's data has ``install_path``, the
    ids of the parts made, in order, as ``ran``, and ``complete``, True; of a dry run ``install_path``, ``dry_run``,
    True, and ``todo``, a list with a dictionary for each part: ``step`` (its id), ``does`` (a line), ``download``
    and ``disk`` in bytes. Its text says where it is installed, or that there is nothing to do, and of a dry run
    lists the parts; its remarks name images that nothing needs any more and workloads without a recipe and, where
    ``install`` made something, what to run next.

    Raises:
        LLMBError: what ``decide`` raises, what this machine lacks, or why a part could not be made
        OSError: a file cannot be read or written
    """
    installation = decide()
    todo = artefact.missing(installation.artefacts())
    if options.dry_run:
        return _dry_run_result(installation, todo)
    ran: list[str] = []
    if repair or todo or upkeep.is_pending(installation.path):
        secrets = (installation.secrets.hf_token, installation.secrets.ngc_api_key)
        hidden = tuple(secret.reveal() for secret in secrets if secret is not None)
        new = options.command == "install"
        with transaction(installation.path, verbose=options.verbose, hidden=hidden, new=new) as reporter:
            installation = decide()
            upkeep.finish_removal(installation, reporter)
            artefacts = installation.artefacts()
            # What the thorough check finds damaged stays as it is until there is another.
            complete = [part for part in artefacts if repair and part.is_complete()]
            damaged = {name: problem for name, problem in artefact.verify_all(complete, reporter).items() if problem}
            check = installation.answers.space_check
            ran = artefact.make_missing(artefacts, reporter, damaged, space_check=check)
            upkeep.prune(installation, reporter)
    workloads = ", ".join(installation.answers.workloads)
    text = f"installed in {installation.path}: {workloads}\n" if ran else _NOTHING.format(installation.path)
    remarks = [
        f"{image} ({size(image.stat().st_size)}) is from an earlier release, and no workload needs it any more: "
        "remove it once no queued job uses it"
        for image in installation.unused_images()
    ]
    remarks += [f"note: {problem}" for problem in installation.gone_workloads().values()]
    if ran and options.command == "install":
        remarks += _next_steps(installation)
    data = {"install_path": str(installation.path), "ran": ran, "complete": True}
    return Result(data, text, remarks=remarks)


def _dry_run_result(installation: Installation, todo: list[Artefact]) -> Result:
    """Return the result of a dry run of ``carry_out``: the parts ``todo`` that it would make."""
    rows = [{"step": part.id, "does": part.show(), "download": part.download, "disk": part.disk} for part in todo]
    text = _NOTHING.format(installation.path)
    if todo:
        lines = [f"{part.id}\n    {part.show()}\n" for part in todo]
        text = "".join([*lines, f"{_estimate_line(todo)}\n"])
    return Result({"install_path": str(installation.path), "dry_run": True, "todo": rows}, text)


def _next_steps(installation: Installation) -> Iterator[str]:
    """Yield a line each on a finished ``installation``: that the umask keeps colleagues out, and what to run next.

    The first, behind ``note: ``, is there only on Slurm, and where the umask does so; the second, behind ``next: ``,
    always. The lines have no line break.
    """
    folder = shlex.quote(str(installation.path))
    check = "llmb-install doctor; " if installation.answers.on_slurm else ""
    # There is no way to read the umask but to set it.
    umask = os.umask(0)
    os.umask(umask)
    if installation.answers.on_slurm and umask & 0o005:
        parts = " ".join(
            f"{folder}/{name}" for name in ("bin", "venvs", "images") if (installation.path / name).is_dir()
        )
        yield (
            f"note: only you can use this, because of umask {umask:03o}; for colleagues: "
            f"chmod go+rX {folder}; chmod -R go+rX {parts}"
        )
    yield f'next: export LLMB_INSTALL={folder} PATH={folder}/bin:"$PATH"; {check}llmb-run list'


def describe(installation: Installation, accounts: Sequence[str] = ()) -> str:
    """Return the summary that the user confirms: answers, download, disk space, and what is free.

    It is of several lines, with an empty one at the beginning, and ends in a line break. Secrets are only said to
    be given. ``accounts`` are all that the user may charge (empty: not known); where the chosen one is among them,
    the others are mentioned. ``installation`` need not be there yet.

    Raises:
        LLMBError: a part of the installation cannot be looked at
        OSError: a file cannot be read, or the free space not be told
    """
    answers = as_given(installation.answers)
    others = [account for account in accounts if account != answers.get("account")]
    if answers.get("account") in accounts and others:
        answers["account"] = f"{answers['account']} (also: {', '.join(others)})"
    hidden = {"schema", "space_check"}
    lines = [f"  {key:16}{answer_text(value)}" for key, value in answers.items() if key not in hidden]
    secrets = installation.secrets
    lines += [f"  {'hf_token':16}given"] if secrets.hf_token else []
    lines += [f"  {'ngc_api_key':16}given"] if secrets.ngc_api_key else []
    todo = artefact.missing(installation.artefacts())
    free = f"{size(free_bytes(installation.path))} free in {installation.path}"
    return "\n".join(["", *lines, "", f"  {_estimate_line(todo)}; {free}", ""])


def _gather_answers(options: argparse.Namespace, clone: Path, path: Path) -> tuple[Answers, Secrets, bool]:
    """Return what to install: the answers, the secrets, and whether the user was asked in a dialogue.

    They come from flags, which win, then ``--play`` or earlier answers, or from the user, who is asked only on a
    terminal, without ``--play``, and only where flags name at most the folder or answers are missing; then
    ``options.into_used_folder`` is set to True. ``clone`` has the recipes; ``path`` is the installation's folder,
    unless a play file names another.

    Raises:
        RequestError: the answers are wrong, or lack something and nobody can be asked
        ConfigError: the play file or the stored answers are wrong
        RecipeError: a recipe is wrong
        EnvironmentLacks: the clone has no recipe
        Interrupted: the user left the dialogue
        OSError: the folder of the installation cannot be listed, or its free space not be told
    """
    recipes = load_recipes(clone)
    flags = arguments.given_by_flags(options)
    found = credentials.from_environment()
    if options.play:
        play, secrets, lines = answers_module.read_play(Path(options.play))
        given: Given = {**_without_found_mpi(play, options.play), **flags}
        # The file's own folder counts before LLMB_INSTALL and the default, which are for when nobody says.
        given.setdefault("install_path", str(path))
        given = {**_gres_answer(given), **given}
        answers = answers_module.complete_answers(given, recipes, where=options.play, lines=lines)
        return answers, found.updated(secrets), False
    stored = stored_answers(path)
    defaults: Given = as_given(_without_detected_mpi(stored)) if stored else {}
    if stored is None:
        defaults |= _gres_answer(flags)
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    # Whoever names nothing but the folder wants the dialogue, even where all answers are known.
    names_only_folder = not flags.keys() - {"install_path", "space_check"}
    if terminal and (names_only_folder or missing_questions(merged_answers(defaults, flags))):
        from llmb_install.answers.dialogue import Dialogue

        print_message(_WELCOME)
        site = detect.detect_site()
        last = checks.read_draft(checks.LAST)
        if not stored:
            defaults = {**detect.fitting_earlier_answers(last, site), **defaults}
        offered = merged_answers(defaults, flags)
        dialogue = Dialogue(site, recipes, flags, {"install_path": str(path), **offered})

        def summary(answers: Answers, secrets: Secrets) -> str:
            """Return the summary of these answers and secrets that the user confirms, as ``describe`` does.

            ``answers`` are complete ones. Whether this machine contradicts one of them is looked at first.
            ``options``, ``clone``, ``path`` and the detected ``site`` are those of the enclosing function.

            Raises:
                RequestError: this machine or Slurm contradicts an answer
                LLMBError: the stored answers are wrong, or a part cannot be looked at
                OSError: a file cannot be read, or the free space not be told
            """
            raise_all(_site_problems(options, answers, clone, path))  # while they can still be corrected
            return describe(Installation(clone, answers, secrets), site.accounts)

        result = dialogue.run(found, summary)
        options.into_used_folder = True  # where there was a reason to ask, it was asked
        return *result, True
    given = {**merged_answers(defaults, flags), "install_path": str(path)}
    answers = answers_module.complete_answers(given, recipes)
    if stored:
        _note_what_stays(answers, flags, recipes)
    return answers, found, False


def _site_problems(options: argparse.Namespace, answers: Answers, clone: Path, path: Path) -> list[RequestError]:
    """Return an error for each answer that this machine, Slurm or the recipes contradict, not raised; empty: none.

    With ``--no-site-check`` only paths are checked, as for an installation in ``path`` that has the same answers. A
    workload without a configuration that was not asked for now is only told to the user, on stderr. ``options`` is
    the parsed command line. ``answers`` are complete ones. Errors on paths come first, then those on workloads,
    then Slurm's; ``clone`` has the recipes.

    Raises:
        ConfigError: the stored answers are wrong
        RecipeError: a recipe is wrong
        EnvironmentLacks: the clone has no recipe
        OSError: a folder above a path is closed to this user
        RequestError: a path begins with the home of an unknown user, or a workload is unknown
    """
    given = as_given(answers)
    found = path_problems(given)
    stored = stored_answers(path)
    if options.no_site_check or (stored and _without_detected_mpi(stored) == replace(answers, space_check=True)):
        return found
    recipes = load_recipes(clone)
    if options.workloads or options.play or stored is None:
        found += detect.row_problems(given, recipes)
    elif names := detect.without_rows(answers.workloads, recipes, answers.gpu_type):
        print_message(f"note: no configuration for {answers.gpu_type}: {', '.join(names)}")
    return [*found, *detect.slurm_problems(given)]


def _gres_answer(given: Given) -> Given:
    """Return the answer ``gres``, True, if Slurm counts GPUs in the given ``gpu_partition``; else an empty dictionary.

    Empty also for CPU jobs, jobs outside Slurm, where no partition is given, and where Slurm does not answer; an
    unanswered cluster type counts as Slurm. Asks Slurm now. ``given`` has the answers by field.
    """
    name = given.get("gpu_partition")
    if given.get("cluster_type") is not None and not on_slurm(given):
        return {}
    if name is None or on_cpus(given):
        return {}
    has_gpus = any(one.gpus_per_node for one in detect.all_partitions() if one.name == name)
    return {"gres": True} if has_gpus else {}


def _chosen_mpi(mpi: str) -> str | None:
    """Return ``mpi``, a type of ``srun --mpi``, if somebody chose it; None if release 0.2 may have detected it.

    That release took Slurm's first PMIx, else ``none``: who chose the same gets None, too. Asks Slurm now; where it
    does not answer, ``mpi`` counts as chosen.
    """
    types = mpi_types()
    found = next((name for name in types if name.startswith("pmix")), "none") if types else None
    return None if mpi == found else mpi


def _without_detected_mpi(answers: Answers) -> Answers:
    """Return the answers without an ``mpi`` that release 0.2 had detected by itself; ``answers`` stays as it is.

    Slurm is asked only where one is set.
    """
    return answers if answers.mpi is None else replace(answers, mpi=_chosen_mpi(answers.mpi))


def _without_found_mpi(play: Given, where: str) -> Given:
    """Return the answers ``play`` of the play file ``where``, with ``mpi`` set to None unless somebody chose it.

    ``_chosen_mpi`` tells that, which asks Slurm. The user is told on stderr what becomes of it. Answers without a
    valid ``mpi`` are returned as they are; ``play`` is not changed.
    """
    mpi = play.get("mpi")
    if not isinstance(mpi, str) or not is_slurm_name(mpi):
        return play  # what is wrong with it is said later
    own = _chosen_mpi(mpi)
    becomes = f"{mpi} is written as slurm.mpi to cluster_config.yaml, for every job" if own else "left out"
    print_message(f"note: {where}: mpi is no longer a question, jobs get what they need: {becomes}")
    return {**play, "mpi": own}


def _note_what_stays(answers: Answers, flags: Given, recipes: Mapping[str, Recipe]) -> None:
    """Tell the user which answers are kept from the installation where flags alone would mean something else.

    This goes to stderr. ``answers`` are those that hold, ``flags`` the ones given now, by field, ``recipes`` all by
    name. Nothing is said where they mean the same; where flags alone would not do, only that the stored answers are
    continued with.

    Raises:
        RecipeError: a recipe's catalogue cannot be read
    """
    path = answers.install_path
    try:
        alone = answers_module.complete_answers({**flags, "install_path": path}, recipes)
    except RequestError:
        print_message(f"continuing with the answers of {path}")
        return
    fields = [q.field for q in QUESTIONS if getattr(answers, q.field) != getattr(alone, q.field)]
    if fields:
        kept = ", ".join(f"{field} {answer_text(getattr(answers, field))}" for field in fields)
        print_message(f"kept from the answers of {path}: {kept}")


def _with_space_check(options: argparse.Namespace, answers: Answers) -> Answers:
    """Return a copy of the answers with the check of free space turned off if ``--no-space-check`` was given.

    Else they are returned as they are. ``options`` is the parsed command line.
    """
    return replace(answers, space_check=False) if options.no_space_check else answers


def _estimate_line(todo: list[Artefact]) -> str:
    """Return a line on how many steps are to do, and about how much they download and store, without a full stop.

    For example ``3 steps to do, about 12.0 GB to download and 30.0 GB of disk``. The sizes are left out where no
    part needs disk space. ``todo`` has the parts to make.
    """
    download = sum(part.download for part in todo)
    disk = sum(part.disk for part in todo)
    steps = f"{counted(len(todo), 'step')} to do"
    return f"{steps}, about {size(download)} to download and {size(disk)} of disk" if disk else steps
