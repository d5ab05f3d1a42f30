"""``llmb-install adopt``: an image with a Megatron-Bridge that LLMB does not know, made known to this installation.

The image is imported, its functions are read and validated inside it on a compute node, without a GPU, and both are
entered in ``cluster_config.yaml``. What was done is kept: the same command finishes what was interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.cluster_types import SLURM
from llmb_common.base.engines import CONTAINERS, ENGINES, RELEASE, is_newer, minor
from llmb_common.base.errors import EnvironmentLacks, LLMBError, RequestError
from llmb_common.base.files import user_path, write_atomic
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, first_few, printable
from llmb_common.executors.base import Container, Held, NodeRequest, executor_for
from llmb_common.planning.site.cluster import FILE_NAME, ClusterConfig, SiteRelease, load_cluster_config
from llmb_common.recipes.catalogue import Catalogue, Function
from llmb_common.recipes.recipe import Recipe
from llmb_common.runs.manifest import pack_code, training_code
from llmb_install.answers.answers import required_answers
from llmb_install.installation import Installation, write_site_config
from llmb_install.parts import adopted, credentials
from llmb_install.parts.credentials import secret_files
from llmb_install.parts.files import CATALOGUES
from llmb_install.working.artefact import make_missing
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import write
from llmb_install.working.transaction import transaction

_MINUTES = 30
"""How long the node is held: calling all functions takes a minute, their validation two."""

_INSIDE = """
cd / && export PYTHONPATH="$1" PYTHONSAFEPATH=1
python=$(command -v python3 || command -v python) || { echo "the image has no Python" >&2; exit 3; }
shift
exec "$python" "$@"
"""

_VERSIONS = """
import json
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in ("megatron-bridge", "megatron-core"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = None
print("LLMB-VERSIONS", json.dumps(found))
"""


@dataclass(frozen=True)
class _ImageOnNode:
    """A container image on a node that is held for this command; ``python`` runs the image's Python there.

    ``container`` names the image file and the folders mounted in it. The object holds nothing itself: ``held``, the
    node, is given back by whoever asked for it. ``folder`` must have the code to run before ``python`` is called, and
    be one of those that ``container`` mounts. ``python`` gives the Python the arguments ``words`` in a fresh
    container and returns its stdout as text; it raises EnvironmentLacks, whose message begins with ``what``, where
    that fails or takes more than 30 minutes.
    """

    held: Held
    """The node, one, on which ``python`` runs."""
    container: Container
    """The image's file, and the folders that are mounted in it."""
    folder: Path
    """Folder that node and container see at the same path; it has the code that is run, as a zip file."""

    def python(self, words: Sequence[str], what: str) -> str:
        """Run the image's Python with arguments ``words`` in a container on the held node; return its stdout.

        LLMB's training code can be imported there. It has at most 30 minutes. ``what`` begins the error's message,
        such as ``the release cannot be read``.

        Raises:
            EnvironmentLacks: the program or its container failed, or took too long; the message ends with the last
                line of its stderr, if it has one
        """
        argv = ["bash", "-c", _INSIDE, "llmb-adopt", str(self.folder / _CODE), *words]
        answer = self.held.run(argv, 60 * _MINUTES, inside=self.container)
        if not answer.ok:
            own = [line for line in answer.errors.splitlines() if line.strip() and not _OF_SLURM.match(line)]
            raise EnvironmentLacks(
                f"{what} in {self.container.image}: {own[-1].strip()[:300] if own else answer.complaint}",
                remedy="start the image by hand (srun --container-image, or enroot start); then run this again",
            )
        return answer.output


_OF_SLURM = re.compile(r"(srun|slurmstepd\S*): ")
"""What frames the program's own last words."""

_CODE = "code.zip"
_CATALOGUE, _VALIDATION = "catalogue.json", "validation.json"


def adopt(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``adopt``: import the image ``options.image``, read its functions, make it known to the site.

    ``options`` must have ``image`` and ``verbose``; tokens are the environment's. ``path`` is the installation's
    folder, ``clone`` has the recipes. The settings are ``cluster_config.yaml``, in
    which another image of the same release is replaced. The functions, performance recipes of Megatron-Bridge, are
    read on a compute node; the result compares them with the newest that LLMB brings. Holds the installation's lock.
    The result's data has ``release``, ``image``, the paths ``catalogue`` and ``validation`` if there are such files,
    and then, if the release has functions, what ``_function_differences`` returns. Its text says the same for
    people; remarks name an image that this one replaces, and the next command. What was read before an error stays
    for the next attempt.

    Raises:
        RequestError: the installation's jobs run without images, or the image does not exist or has no
            Megatron-Bridge that LLMB can use
        EnvironmentLacks: there is no installation, another installer is at work in it, or the image cannot be
            imported or started
        ConfigError: ``cluster_config.yaml`` or the answer file is wrong
        RecipeError: a recipe or a catalogue is wrong
        SchedulerError: no node can be had
        RecordError: a file cannot be written
        LLMBError: the image lies where others could have put it
        OSError: the image cannot be read, or a folder not be made
    """
    required_answers(path)
    secrets = credentials.from_environment()
    hidden = tuple(secret.reveal() for secret in (secrets.hf_token, secrets.ngc_api_key) if secret is not None)
    with transaction(path, verbose=options.verbose, hidden=hidden) as reporter:
        installation = Installation(clone, required_answers(path), secrets)
        if not installation.answers.uses_images:
            raise RequestError(
                f"the jobs of {path} run without images",
                remedy='name a Python with the release instead: engine.releases."0.7" in cluster_config.yaml',
            )
        config = load_cluster_config(path)
        image, file = _image_and_file(installation, options.image, reporter)
        work = path / ".llmb" / "adopting" / _file_digest(file)
        work.mkdir(parents=True, exist_ok=True)
        release = _read_release_and_functions(config, file, work, reporter)
        kept = _keep_release(path, work, release)
        before = config.releases.get(release, SiteRelease()).image
        entry = {"image": image, **{key: str(one) for key, one in kept.items()}}
        adopted.write_receipt(path / CATALOGUES, release, file)
        write_site_config(path, {("releases", release, key): value for key, value in entry.items()})
        shutil.rmtree(work, ignore_errors=True)  # all is entered
    recipe = next((one for one in installation.recipes.values() if one.catalogue is not None), None)
    compared = _function_differences(recipe, kept["catalogue"]) if recipe and "catalogue" in kept else None
    lines = [f"{image} has Megatron-Bridge {release}: entered in {path / FILE_NAME}"]
    if compared:
        lines += _difference_lines(compared)
    remarks: list[str] = []
    if before not in (None, image):
        remarks.append(f"note: jobs with {release} ran in {before} until now; {FILE_NAME} has one image per release")
    example = _example_command(recipe, kept["catalogue"], config.gpu_type, release) if recipe and compared else None
    if example:
        remarks.append(f"next: llmb-run {example}")
    return Result({"release": release, **entry, **(compared or {})}, "\n".join([*lines, ""]), remarks=remarks)


def _difference_lines(compared: dict[str, Any]) -> Iterator[str]:
    """Yield lines on how an image's functions differ from those that LLMB brings: a heading, then one for each kind.

    ``compared`` is what ``_function_differences`` returns.
    """
    yield f"{counted(compared['functions'], 'function')}; against {compared['against']}:"
    for key, what in _DIFFERENCES.items():
        names = compared[key]
        listed = f": {first_few(names)}" if names else ""
        yield f"  {len(names)} {what}{listed}"


def _image_and_file(installation: Installation, image: str, reporter: Reporter) -> tuple[str, Path]:
    """Return the image as jobs name it, and its file; one of a registry is imported if it is missing.

    ``image`` is the path of a ``.sqsh`` file, which jobs name by its absolute path, or a name such as
    ``nvcr.io#nvidia/nemo:26.02.01``, which stays as it is. That a ``.sqsh`` file that is given is an image is not
    checked. The import is the one of ``installation``, into its folder of images and with its secrets, which are
    stored first; ``reporter`` shows it.

    Raises:
        RequestError: the ``.sqsh`` file does not exist, or ``image`` is no name of an image
        EnvironmentLacks: the image cannot be imported
        OSError: the folder of images cannot be made, or a file not be used
        LLMBError: the image lies where others could have put it, or a file cannot be written
    """
    if image.endswith(".sqsh"):
        file = user_path(image, image)
        if not file.is_file():
            raise RequestError(f"there is no image {file}", remedy="give the path of a .sqsh file")
        return str(file), file
    if "#" not in image or ":" not in image.rpartition("#")[2]:
        raise RequestError(
            f"{image} is not an image",
            remedy=f"write it as recipes do, nvcr.io#nvidia/nemo:{list(CONTAINERS)[-1]}, or give a .sqsh file",
        )
    imported = installation.image(image)
    imported.path.parent.mkdir(parents=True, exist_ok=True)
    keys = secret_files(installation.path, installation.secrets, uses_images=True)
    make_missing([*keys, imported], reporter, space_check=False)  # the import looks itself
    return image, imported.path


def _file_digest(image: Path) -> str:
    """Return 16 hexadecimal digits that stand for an image file's path, size and time of modification.

    They serve as the name of a folder that is mounted: a name such as ``nemo:26.10.sqsh`` would end the mount at the
    colon.

    Raises:
        OSError: the file is missing or its folder unreadable
    """
    status = image.stat()
    text = f"{image} {status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _read_release_and_functions(config: ClusterConfig, image: Path, work: Path, reporter: Reporter) -> str:
    """Hold a node of the site in ``config``, start the image there, and return its release of Megatron-Bridge.

    The release is text such as ``0.7.0``. ``image`` is the image's file. The catalogue of its functions and their
    validation are written to ``catalogue.json`` and ``validation.json`` in the folder ``work``, which must exist,
    unless the files are there; a release without functions has neither. Waits up to ten minutes for the node, and
    gives it back, also after an error. ``reporter`` shows the step.

    Raises:
        RequestError: the image has no Megatron-Bridge that LLMB can use, or there are no nodes to ask
        EnvironmentLacks: the image does not start, or its functions cannot be read
        SchedulerError: no node can be had
        RecordError: the program for the node cannot be written
        OSError: the code for the node cannot be read
    """
    write_atomic(work / _CODE, pack_code(training_code()))
    container = Container(str(image), (f"{work}:{work}", *config.mounts))
    slurm = config.scheduler("slurm")
    # Nothing is trained, so a node without GPUs will do.
    part = msgspec.structs.replace(slurm.site_part(slurm.cpu_partition), gres=False)
    wanted = NodeRequest(name="llmb-adopt", scheduler=part, minutes=_MINUTES, wait=600)
    with reporter.step("a node to look into the image") as step, executor_for(SLURM).hold(wanted) as held:
        inside = _ImageOnNode(held, container, work)
        step.update(f"{held.nodes[0]}: its release")
        release = _release_in(inside.python(["-c", _VERSIONS], "the release cannot be read"), image)
        if not _has_functions(release):
            return release
        for name, more, what in (
            (_CATALOGUE, [], "its functions cannot be read"),
            (_VALIDATION, ["--validation"], "its functions cannot be validated"),
        ):
            if (work / name).exists():
                continue
            step.update(f"{held.nodes[0]}: {name.removesuffix('.json')} of {release}")
            # A kill in the middle must leave no half file that the next attempt takes for a whole one.
            fresh = work / f"{name}.part"
            inside.python(["-m", "llmb_train.catalogue", str(fresh), *more], what)
            fresh.replace(work / name)
        step.update(f"Megatron-Bridge {release}")
    return release


def _release_in(output: str, image: Path) -> str:
    """Return the release of Megatron-Bridge in ``output``, the text that a program inside ``image`` has printed.

    It stands under ``megatron-bridge`` in the JSON object behind ``LLMB-VERSIONS`` in the first line that begins so;
    other lines do not count. LLMB can use the releases that it has engines for, and any newer one. ``image`` is only
    for messages.

    Raises:
        RequestError: there is no release, an invalid number, one that LLMB cannot use, or the line is damaged
    """
    line = next((line for line in output.splitlines() if line.startswith("LLMB-VERSIONS ")), "")
    try:
        release = json.loads(line.partition(" ")[2])["megatron-bridge"] if line else None
    except (ValueError, LookupError, TypeError) as error:
        # A message of the image's own may have got into the line.
        raise RequestError(
            f"{image} does not say its release of Megatron-Bridge: {printable(line[:100])}",
            remedy="run the same command again; if it says that again, start the image and see what its Python prints",
        ) from error
    if not isinstance(release, str):
        raise RequestError(f"{image} has no Megatron-Bridge", remedy="adopt an image with it")
    if not re.fullmatch(RELEASE, release):  # cluster_config.yaml would not be read any more
        raise RequestError(
            f"{image} has Megatron-Bridge {release[:100]!r}, which is not a valid release number",
            remedy="build the image with a version like 0.7.0 or 0.7.0rc1",
        )
    if minor(release) not in ENGINES and not is_newer(release):
        raise RequestError(
            f"{image} has Megatron-Bridge {release}, which lacks parts that LLMB calls",
            remedy=f"adopt an image with {' or '.join(ENGINES)}, or a newer one",
        )
    return release


def _has_functions(release: str) -> bool:
    """Return whether ``release`` of Megatron-Bridge, such as ``0.7.0``, has performance recipes (functions).

    The newest that LLMB has an engine for has them, and so has any newer one; older ones do not. Nothing is looked at.
    """
    return minor(release) == ENGINES[-1] or is_newer(release)


def _keep_release(install: Path, work: Path, release: str) -> dict[str, Path]:
    """Copy the catalogue and validation of ``release`` from ``work`` into the installation; return the new paths.

    They go to ``catalogues`` in ``install``, the installation's folder, and replace earlier ones of the release. The
    keys are those of ``cluster_config.yaml``, ``catalogue`` and ``validation``; one that ``work`` does not have is
    left out, and an earlier file of it stays; empty where it has neither.

    Raises:
        RecordError: a file cannot be written
        OSError: a file in ``work`` cannot be read, or the folder cannot be made
    """
    folder = install / CATALOGUES
    kept: dict[str, Path] = {}
    for key, name in (("catalogue", _CATALOGUE), ("validation", _VALIDATION)):
        if (work / name).is_file():
            folder.mkdir(exist_ok=True)
            kept[key] = folder / f"{key}-{release}.json"
            write(install, kept[key], (work / name).read_text(encoding="utf-8"))
    return kept


_DIFFERENCES = {
    "new": "new",
    "gone": "gone",
    "changed": "with other columns",
    "other_variables": "with the same columns and other variables",
}
"""What is said of the functions in an image against those that LLMB has."""


def _function_differences(recipe: Recipe, file: Path) -> dict[str, Any]:
    """Return how the functions in the catalogue ``file`` differ from those of the newest release that LLMB brings.

    The latter are in the catalogue of ``recipe``, which must have one. The keys are ``functions``, the number in
    ``file``; ``against``, the release compared with; and lists of sorted names of functions: ``new`` (in ``file``
    alone), ``gone`` (no longer in it), ``changed`` (in what they set, or not readable by this LLMB) and
    ``other_variables`` (in environment variables alone).

    Raises:
        RecipeError: a catalogue cannot be read
    """
    assert recipe.catalogue is not None
    known, found = recipe.catalogue, Catalogue(file, recipe.variants[0])
    old = {entry.name for entry in known.index}
    new = {entry.name for entry in found.index}
    changed, other_variables = [], []
    for name in sorted(old & new):
        before, now = _function_named(known, name), _function_named(found, name)
        if before is None or now is None or before.columns != now.columns:
            changed.append(name)
        elif before.env != now.env:
            other_variables.append(name)
    return {
        "functions": len(new),
        "against": known.release,
        "new": sorted(new - old),
        "gone": sorted(old - new),
        "changed": changed,
        "other_variables": other_variables,
    }


def _example_command(recipe: Recipe, file: Path, gpu_type: str | None, release: str) -> str | None:
    """Return the words behind ``llmb-run``, as one text, that plan a pretraining function of the catalogue ``file``.

    Such as ``plan -w WORKLOAD -s MODEL --dtype bf16 --gpu-type h100 --scale 8 --engine 0.7.0``, with
    `` --env FP8_RECIPE=...`` behind it where the function has such a recipe. It is the first function for
    ``gpu_type`` (None: unknown), else the first of all; ``recipe`` is the workload, ``release`` that of
    Megatron-Bridge. None where the catalogue has no function that pretrains.

    Raises:
        RecipeError: the catalogue cannot be read
    """
    catalogue = Catalogue(file, recipe.variants[0])
    entries = [one for one in catalogue.index if one.task == "pretrain" and not one.suffix]
    if not entries:
        return None
    here = next((one for one in entries if one.gpu == gpu_type), entries[0])
    words = f"-s {here.model} --dtype {here.dtype} --gpu-type {here.gpu} --scale {here.gpus} --engine {release}"
    fp8 = f" --env FP8_RECIPE={here.fp8_recipe}" if here.fp8_recipe else ""
    return f"plan -w {recipe.workload} {words}{fp8}"


def _function_named(catalogue: Catalogue, name: str) -> Function | None:
    """Return the function ``name`` of the catalogue; None where it is missing or this LLMB cannot read it."""
    try:
        return catalogue.function(name)
    except LLMBError:
        return None
