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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.cluster_types import SLURM
from llmb_common.base.engines import CONTAINERS, ENGINES, RELEASE, is_newer, minor
from llmb_common.base.errors import EnvironmentLacks, LLMBError, RequestError
from llmb_common.base.files import user_path, write_atomic
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, first_few
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
    """The image on a node: runs Python programs there that see ``folder``."""

    held: Held
    container: Container
    folder: Path

    def python(self, words: Sequence[str], what: str) -> str:
        """The standard output of the image's Python with the arguments ``words``, run in the container on the held
        node.

        ``what`` begins the error's message, such as ``the release cannot be read``.

        Raises:
            EnvironmentLacks: it failed; the message ends with its last words.
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
    """The command ``adopt``: import an image, read its functions on a node, enter both in ``cluster_config.yaml``.

    The result compares its functions with the newest that LLMB brings. The image's release replaces another image of
    the same release in that file. Holds the installation's lock.

    Raises:
        RequestError: its jobs run without images, or the image is none, or has no Megatron-Bridge that LLMB can use.
        EnvironmentLacks: there is no installation, or the image cannot be imported or started.
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
        lines.append(f"{counted(compared['functions'], 'function')}; against {compared['against']}:")
        for key, what in _DIFFERENCES.items():
            names = compared[key]
            lines.append(f"  {len(names)} {what}{f': {first_few(names)}' if names else ''}")
    remarks: list[str] = []
    if before not in (None, image):
        remarks.append(f"note: jobs with {release} ran in {before} until now; {FILE_NAME} has one image per release")
    example = _example_command(recipe, kept["catalogue"], config.gpu_type, release) if recipe and compared else None
    if example:
        remarks.append(f"next: llmb-run {example}")
    return Result({"release": release, **entry, **(compared or {})}, "\n".join([*lines, ""]), remarks=remarks)


def _image_and_file(installation: Installation, image: str, reporter: Reporter) -> tuple[str, Path]:
    """The image as jobs name it, and its file: the one named, or a registry's, imported if it is not yet.

    Raises:
        RequestError: there is no such file, or the name is not that of an image.
        EnvironmentLacks: it cannot be imported.
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
    """16 hexadecimal digits that stand for an image file as it is now: of its path, size and time of modification.

    They name a folder that is mounted: ``nemo:26.10.sqsh`` would end the mount at the colon.
    """
    status = image.stat()
    text = f"{image} {status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _read_release_and_functions(config: ClusterConfig, image: Path, work: Path, reporter: Reporter) -> str:
    """The image's release of Megatron-Bridge, read inside the image on a compute node that is held for it.

    What its functions and their validation are is written to ``work``, unless the files are there already; nothing for
    a release that has no functions.

    Raises:
        RequestError: the image has no Megatron-Bridge that LLMB can use.
        EnvironmentLacks: the image does not start or its functions cannot be read.
    """
    write_atomic(work / _CODE, pack_code(training_code()))
    container = Container(str(image), (f"{work}:{work}", *config.mounts))
    slurm = config.scheduler("slurm")
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
            fresh = work / f"{name}.part"
            inside.python(["-m", "llmb_train.catalogue", str(fresh), *more], what)
            fresh.replace(work / name)
        step.update(f"Megatron-Bridge {release}")
    return release


def _release_in(output: str, image: Path) -> str:
    """The release of Megatron-Bridge in ``output``, what the program that looks for versions in the image has
    printed.

    Raises:
        RequestError: there is none, it is no valid number, or one that LLMB cannot use.
    """
    line = next((line for line in output.splitlines() if line.startswith("LLMB-VERSIONS ")), "")
    found = json.loads(line.partition(" ")[2]) if line else {}
    release = found.get("megatron-bridge")
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
    """Whether a release of Megatron-Bridge has performance recipes, functions that a catalogue can list."""
    return minor(release) == ENGINES[-1] or is_newer(release)


def _keep_release(install: Path, work: Path, release: str) -> dict[str, Path]:
    """Copy what was found of ``release`` from ``work`` to where it stays in the installation.

    Returns the files by their key in ``cluster_config.yaml``: ``catalogue`` and ``validation``. Empty where nothing was
    found.
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
    """How the functions in the catalogue ``file`` differ from those of the newest release that LLMB brings.

    Their number, the release that they are compared with, and sorted names of those that are new, gone and changed, as
    the keys of ``_DIFFERENCES`` say. A function with a field that this LLMB does not know counts as changed.
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
    """The command of llmb-run that plans one of the functions in ``file``: one for these GPUs, where there is any.

    None where it has none that pretrains.
    """
    entries = [one for one in Catalogue(file, recipe.variants[0]).index if one.task == "pretrain" and not one.suffix]
    if not entries:
        return None
    here = next((one for one in entries if one.gpu == gpu_type), entries[0])
    words = f"-s {here.model} --dtype {here.dtype} --gpu-type {here.gpu} --scale {here.gpus} --engine {release}"
    fp8 = f" --env FP8_RECIPE={here.fp8_recipe}" if here.fp8_recipe else ""
    return f"plan -w {recipe.workload} {words}{fp8}"


def _function_named(catalogue: Catalogue, name: str) -> Function | None:
    """The function ``name`` of a catalogue.

    None where it cannot be read, as with a field that this LLMB does not know.
    """
    try:
        return catalogue.function(name)
    except LLMBError:
        return None
