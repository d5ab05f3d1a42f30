"""What an installation consists of: answers in, artefacts out. Among these ``cluster_config.yaml``, in which only the
keys that changed are written, and everybody's comments stay."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from llmb_common.base.engines import DEFAULT_ENGINE, image_file_name
from llmb_common.base.errors import ConfigError, RecordError
from llmb_common.base.files import read_json, require_trusted
from llmb_common.planning.site.cluster import FILE_NAME, ClusterConfig, SiteRelease, load_cluster_config
from llmb_common.recipes.recipe import Recipe
from llmb_install.answers.answers import ANSWERS_FILE, load_recipes, to_yaml
from llmb_install.answers.questions import Answers
from llmb_install.parts import adopted, bundles, credentials
from llmb_install.parts.bundles import bundled_image
from llmb_install.parts.charts import Charts
from llmb_install.parts.credentials import Secrets, secret_files
from llmb_install.parts.engine import KINDS, CpuEngine, cpu_engine, hub_environment, own_engine, tool_environment
from llmb_install.parts.environment import Environment
from llmb_install.parts.files import CATALOGUES, WorkloadFolders, answers_file, commands, read_settings
from llmb_install.parts.hugging_face import ModelFiles
from llmb_install.parts.image import Image
from llmb_install.working.artefact import Artefact, Small, read_receipt
from llmb_install.working.scratch import write, write_record


class Installation:
    """An installation as its answers describe it, with the parts it consists of; asking for a part makes none.

    Made from ``clone``, which has the recipes, the ``answers`` and the user's ``secrets`` (None: none given); these
    are attributes, with ``path``, the folder, and ``recipes``, those of the chosen workloads by name. Making this
    object reads all recipes; nothing need exist at ``path``.

    ``artefacts`` returns the list of all parts, made or not, the answers first and ``cluster_config.yaml`` last.
    Lists of one kind, empty where the answers call for none, are ``images`` and ``engines`` (CPU engines; sorted by
    source or release), ``hub`` (at most the environment that fetches from Hugging Face), ``model_files`` (sorted by
    name) and ``environments`` (of Python); ``adopted`` has parts that only check releases which the site has
    adopted, in ``cluster_config.yaml``'s order, none where that cannot be read. ``charts`` returns the script that
    draws charts, ``image`` the one of a source, ``engine`` the CPU engine of a release such as ``0.6`` (KeyError:
    the installer has none). ``releases`` returns the sorted Megatron-Bridge releases that jobs run on,
    ``engine_names`` the set of the CPU engines' names in ``venvs``. ``needed_images`` (a set) and ``unused_images``
    (a sorted list) return paths of image files; they raise ConfigError where ``cluster_config.yaml`` is wrong.
    ``workload_folder`` returns the path of a workload's results, there or not. ``needs_engine`` tells whether jobs
    train on CPUs; ``gone_workloads`` returns a dictionary with a sentence by each workload that has no recipe;
    ``site_values`` is what the answers say for ``cluster_config.yaml``, a dictionary nested as there. ``artefacts``
    and ``model_files`` raise OSError where the stored Hugging Face token cannot be read.

    Raises:
        EnvironmentLacks: the clone has no recipe
        RecipeError: a recipe is wrong
        OSError: a recipe's folder may not be looked at
    """

    def __init__(self, clone: Path, answers: Answers, secrets: Secrets | None = None) -> None:
        self.clone = clone
        self.answers = answers
        self.secrets = secrets or Secrets()
        self.path = Path(answers.install_path)
        known = load_recipes(clone)
        self.recipes = {name: recipe for name, recipe in known.items() if name in answers.workloads}
        self._base = next(iter(known.values())).listed_variants[0]
        """The variant that adopted catalogues are read with: any will do."""

    def gone_workloads(self) -> dict[str, str]:
        """Return what is wrong with each workload of this installation that the clone has no recipe of, by name.

        It is a sentence without a full stop that says what to do. Empty where the clone has recipes for all of them.
        """
        return {
            name: f"{self.clone} has no recipe {name}: llmb-install remove {name}, or use a clone that has it"
            for name in self.answers.workloads
            if name not in self.recipes
        }

    def artefacts(self) -> list[Artefact]:
        """Return all parts of this installation, made or not: answers first, ``cluster_config.yaml`` last; makes none.

        Between them are secrets, folders for runs, the tool, the script for charts (only where a bundle is in use),
        the tool's commands, engines or the user's own engine, images, the environment for Hugging Face, and model
        files, in this order. Adopted releases are not among them.

        Raises:
            OSError: the stored Hugging Face token cannot be read
        """
        # Without --no-space-check: that is for one run, and no other answer.
        answers = to_yaml(replace(self.answers, space_check=True))
        experiments = tuple(self.workload_folder(name) / "experiments" for name in self.answers.workloads)
        own = [own_engine(Path(self.answers.engine_python))] if self.answers.engine_python else []
        return [
            answers_file(self.path / ANSWERS_FILE, answers),
            *secret_files(self.path, self.secrets, uses_images=self.answers.uses_images),
            WorkloadFolders(experiments),
            tool_environment(self.clone, self.path),
            *([self.charts()] if bundles.is_bundle_in_use() else []),  # elsewhere the first report fetches it
            commands(self.path / "bin"),
            *(self.engines() or own),
            *self.images(),
            *self.hub(),
            *self.model_files(),
            SiteConfig(self.path, self.site_values(), needs=tuple(engine.id for engine in self.engines())),
        ]

    def images(self) -> list[Image]:
        """Return the container images that the workloads' jobs run in, one for each distinct source, made or not.

        They are sorted by source. Image files of the site's own are not among them. Empty where jobs use no container.
        """
        if not self.answers.uses_images:
            return []
        sources: set[str] = set()
        for recipe in self.recipes.values():
            sources.update(recipe.engines[release] for release in self._releases_of_recipe(recipe))
        return [self.image(source) for source in sorted(sources) if not source.startswith("/")]  # a site's own file

    def unused_images(self) -> list[Path]:
        """Return files of images that were imported here for earlier recipes, and that nothing needs now, sorted.

        Only ``.sqsh`` files with a receipt beside them count. Empty where the answers name an image folder, or
        ``images`` in the installation is a link; such a folder is not looked at.

        Raises:
            ConfigError: ``cluster_config.yaml`` is wrong, so that nobody knows what is needed
        """
        if self.answers.image_folder or (self.path / "images").is_symlink():
            return []
        needed = self.needed_images()
        found = sorted((self.path / "images").glob("*.sqsh"))
        return [
            path for path in found if path not in needed and read_receipt(path.with_name(f"{path.name}.receipt.json"))
        ]

    def needed_images(self) -> set[Path]:
        """Return the files of the images that workloads run in, or that ``cluster_config.yaml`` names for a release.

        They need not exist. Empty: there is none.

        Raises:
            ConfigError: ``cluster_config.yaml`` is wrong, so that nobody knows what is needed
        """
        config = load_cluster_config(self.path)
        adopted = {release.image for release in config.releases.values() if release.image}
        files = {Path(config.image_file(self.path, image)) for image in adopted}
        return files | {image.path for image in self.images()}

    def adopted(self) -> list[Artefact]:
        """Return a part for each release that ``cluster_config.yaml`` names, which can be checked but not made here.

        They are in the file's order; their ids are ``release NAME``. The command ``adopt`` makes them. Empty also
        where the file cannot be read: it is a part that is checked by itself.
        """
        try:
            config = load_cluster_config(self.path)
        except ConfigError:
            return []
        return [self._adopted_part(name, release, config) for name, release in config.releases.items()]

    def _adopted_part(self, name: str, release: SiteRelease, config: ClusterConfig) -> Artefact:
        """Return the part that checks the adopted release ``name``: its image, catalogue and validation.

        ``release`` is what ``config``, the site's, says of it. The part's id is ``release NAME``. It is only to be
        checked: making it changes nothing.
        """
        image = Path(config.image_file(self.path, release.image)) if release.image else None

        def find_problem() -> str | None:
            """Return what is wrong with the enclosing method's adopted release, as text with a remedy; None: nothing.

            The remedy is a line of its own; there is none where the content of the image has changed.

            Raises:
                ConfigError: the image lies where others could have put it
                OSError: the image cannot be read
            """
            folder = self.path / CATALOGUES
            return adopted.problem_with(folder, name, release, image, self._base) or self._image_change(release)

        return Small(f"release {name}", f"look at the release {name}", find_problem, find_problem)

    def _image_change(self, release: SiteRelease) -> str | None:
        """Return what is wrong with the content of an image that ``adopt`` imported, as a sentence; None: nothing.

        ``release`` is what the site's configuration says of the release. All of the image is read, for its hash. None
        also where no image is named, it has no receipt, is the site's own file, or is one of the workloads', which is
        checked as a part by itself.

        Raises:
            ConfigError: the image lies where others could have put it
            OSError: the image cannot be read
        """
        if release.image is None or "#" not in release.image:
            return None
        image = self.image(release.image)
        if image.receipt() is None or image.path in {one.path for one in self.images()}:
            return None
        return image.verify()

    def model_files(self) -> list[ModelFiles]:
        """Return a part for each model whose files this installation gets from Hugging Face, sorted by name.

        Each is there once. Empty where the answers ask for none. The token that they are fetched with is the given
        one, else the stored one, else none.

        Raises:
            OSError: the stored token cannot be read
        """
        if not self.answers.hugging_face:
            return []
        repositories = {recipe.hugging_face for recipe in self.recipes.values() if recipe.hugging_face}
        token = self.secrets.hf_token or credentials.stored_hf_token(self.path)
        hubs_and_names = product(self.hub(), sorted(repositories))
        return [ModelFiles(name, self.path, hub, token) for hub, name in hubs_and_names]

    def hub(self) -> list[Environment]:
        """Return the environment of this installation that fetches from Hugging Face, in a list.

        Empty where the answers ask for none.
        """
        return [hub_environment(self.clone, self.path)] if self.answers.hugging_face else []

    def needs_engine(self) -> bool:
        """Return whether this installation's jobs train on CPUs, under Slurm or not, with the installer's engine."""
        return self.answers.gpu_type == "cpu"

    def releases(self) -> list[str]:
        """Return the releases of Megatron-Bridge that the chosen workloads run on here, sorted as text, each once.

        Such as ``0.6``. Those that the installer can make no engine of are among them. Empty where no workload is
        chosen that has a recipe.
        """
        return sorted(set(chain.from_iterable(map(self._releases_of_recipe, self.recipes.values()))))

    def _installable_releases(self) -> list[str]:
        """Return the Megatron-Bridge releases of the chosen workloads that the installer can make a CPU engine of.

        They are sorted as text; empty: there is none. What the jobs train on plays no part. A newer one is the
        site's own business.
        """
        return [release for release in self.releases() if release in KINDS]

    def _releases_of_recipe(self, recipe: Recipe) -> list[str]:
        """Return the Megatron-Bridge releases that a recipe's jobs run on: its default, and chosen ones.

        They are in the recipe's order. Those in the answers that the recipe does not run on are left out.
        """
        return [
            release for release in recipe.engines if release == recipe.engine or release in (self.answers.engines or ())
        ]

    def engine(self, release: str = DEFAULT_ENGINE) -> CpuEngine:
        """Return the CPU engine with Megatron-Bridge ``release``, such as ``0.6``, in this installation, made or not.

        Raises:
            KeyError: the installer has no CPU engine of this release
        """
        return cpu_engine(self.clone, self.path, kind=self.answers.env_type, release=release)

    def engines(self) -> list[CpuEngine]:
        """Return the CPU engines that the chosen workloads need, one for each release, made or not.

        They are sorted by release, as text. Empty where jobs train on GPUs. Releases that the installer has no engine
        of are left out.
        """
        return [self.engine(release) for release in self._installable_releases()] if self.needs_engine() else []

    def engine_names(self) -> set[str]:
        """Return the names in ``venvs`` of the CPU engines that this installation's workloads need.

        Empty where jobs train on GPUs. Known also where this machine could not build them.
        """
        return {KINDS[release].name for release in self._installable_releases()} if self.needs_engine() else set()

    def environments(self) -> list[Environment]:
        """Return all Python environments of the installation: the tool's, CPU engines, Hugging Face's.

        They are in this order. CPU engines are there only where jobs train on CPUs, the last only where the answers
        ask for files from Hugging Face.
        """
        return [tool_environment(self.clone, self.path), *self.engines(), *self.hub()]

    def charts(self) -> Charts:
        """Return the part of this installation that draws the charts of reports, a script; makes nothing."""
        return Charts(tool_environment(self.clone, self.path), self.clone / "installer" / "locks" / "charts.txt")

    def workload_folder(self, workload: str) -> Path:
        """Return the folder of a workload's results in this installation, ``workloads/NAME``, which need not exist.

        ``workload`` is the full name, such as ``pretrain_grok1``; it is not checked.
        """
        return self.path / "workloads" / workload

    def image(self, source: str) -> Image:
        """Return the image ``source`` of a registry as this installation imports it, whether it is there or not.

        For example ``nvcr.io#nvidia/nemo:26.02.01``; a file of the site's own is no such source. The source is not
        checked. Where a bundle is in use, the image is taken from there.
        """
        answers = self.answers
        on_compute_node = (
            "srun",
            "--account",
            answers.account or "",
            "--partition",
            answers.cpu_partition or "",
            "--nodes=1",
            "--ntasks=1",
            "--job-name=llmb-install",
            "--quiet",
        )
        return Image(
            source=source,
            path=Path(answers.image_folder or self.path / "images") / image_file_name(source),
            architecture=answers.arch,
            receipts=self.path / ".llmb" / "receipts",
            prefix=on_compute_node if answers.install_method == "srun" else (),
            space_check=answers.space_check,
            mirror=answers.registry_mirror or "",
            origin=bundled_image(answers.arch, source),
            needs=(credentials.REGISTRY,),
            key=credentials.key_path(self.path),
        )

    def site_values(self) -> dict[str, Any]:
        """Return what this installation's answers say for ``cluster_config.yaml``, by its keys and nested as there.

        The groups are ``slurm``, only for jobs on Slurm, and ``engine``, only for CPU jobs or where the user named
        a Python; other keys, such as ``gpu_type`` and ``workloads``, stand by themselves. Keys without a value are
        left out; ``cluster_type``, ``repo`` and ``workloads`` are always there.
        """
        answers = self.answers
        values: dict[str, Any] = {
            "cluster_type": answers.cluster_type,
            "repo": str(self.clone),
            "gpu_type": answers.gpu_type,
            "arch": answers.arch,
            "env_type": answers.env_type,
            "image_folder": answers.image_folder,
            "workloads": list(answers.workloads),
        }
        if answers.on_slurm:
            slurm = {
                "account": answers.account,
                "gpu_partition": answers.gpu_partition,
                "cpu_partition": answers.cpu_partition,
                "gres": answers.gres,
                "runtime": answers.runtime,
                "mpi": answers.mpi,
                "container_writable": answers.container_writable,
            }
            values["slurm"] = {key: value for key, value in slurm.items() if value is not None}
        if self.needs_engine():
            # Through the link, so that it stays right after an update.
            venvs = self.path / "venvs"
            pythons = {
                release: str(venvs / KINDS[release].name / "bin" / "python") for release in self._installable_releases()
            }
            values["engine"] = engine_values(pythons)
        elif answers.engine_python:
            values["engine"] = engine_values(dict.fromkeys(self.releases(), answers.engine_python))
        return {key: value for key, value in values.items() if value is not None}


def engine_values(pythons: dict[str, str]) -> dict[str, Any]:
    """Return the group ``engine`` of ``cluster_config.yaml``; ``pythons`` has paths by release of Megatron-Bridge.

    The default release's path is under ``python``, the others under ``releases``, by release; either key is left out
    where it has nothing. Empty for no paths.
    """
    others = {release: python for release, python in pythons.items() if release != DEFAULT_ENGINE}
    values: dict[str, Any] = {"python": pythons[DEFAULT_ENGINE]} if DEFAULT_ENGINE in pythons else {}
    return values | ({"releases": others} if others else {})


_RECORD = Path(".llmb") / "site-config.json"
_HEADER = "# What LLMB knows about this machine. Written by the installer; edit freely, comments survive.\n"

Leaves = dict[tuple[str, ...], Any]
"""Values by the keys that lead to them, such as ``("slurm", "account")``."""


@dataclass(frozen=True)
class SiteConfig(Artefact):
    """The part of an installation that is ``cluster_config.yaml``, with ``values`` from the answers.

    ``Installation.artefacts`` has one; its id is ``site-config``. What the installer wrote last time is on record.
    ``make`` writes values whose answer is other now, or that the file has no key for, and removes those that the
    answers do not name any more; what somebody has changed by hand stays, ``null`` included. It raises ConfigError
    where the file has a mistake, RecordError where it cannot be written, and OSError where a folder cannot be made.
    ``is_complete`` tells whether ``make`` has nothing to do, False also for a file with a mistake; ``verify``
    returns what is wrong with the file as a sentence, or None. Both raise ConfigError for a file that is no YAML or
    not to be trusted, ``verify`` also for one with a mistake, and OSError where the folder cannot be examined.
    ``show`` returns what a dry run says, ``write PATH``; the property ``path`` is the file's path.
    """

    install: Path
    """The installation's folder."""
    values: Mapping[str, Any]
    """Values by key of the file, nested as there."""
    needs: tuple[str, ...] = ()
    """Ids of the parts that must be made before."""

    id = "site-config"

    @property
    def path(self) -> Path:
        """The path of the installation's ``cluster_config.yaml``; the file need not exist."""
        return self.install / FILE_NAME

    def is_complete(self) -> bool:
        """Return whether ``cluster_config.yaml`` is valid and has all keys that the answers give; writes nothing.

        The values in it may be others, changed by hand, but those that were written last must be the answers'. False
        also where the file is missing or empty, or a value in it is wrong: ``make`` then says which.

        Raises:
            ConfigError: the file is no YAML, is of a newer release, or is not to be trusted
            OSError: the installation's folder cannot be examined
        """
        if not self.path.is_file() or not (data := _read_config(self.install)):
            return False
        try:
            load_cluster_config(self.install)
        except ConfigError:
            return False
        wanted = leaves(self.values)
        return self._last_written_values() == wanted and not _missing_keys(data, wanted)

    def make(self) -> None:
        """Write the answers' values into ``cluster_config.yaml``, and keep a record of what was written.

        A value that the user has changed in the file since stays, unless the answer to it is another now; one that is
        no longer wanted is dropped, one that the file lacks is added again. Without a record, or without the file, all
        values are written.

        Raises:
            ConfigError: there is a mistake in the file; it is left as it is
            RecordError: the file or the record cannot be written
            OSError: a folder cannot be made
        """
        wanted, applied = leaves(self.values), self._last_written_values()
        dropped = {keys: value for keys, value in (applied or {}).items() if keys not in wanted}
        # Only what the answers have changed since the last time, or the file lacks: the rest may have been edited by
        # hand.
        if applied is not None and self.path.is_file():
            lacking = _missing_keys(_read_config(self.install), wanted)
            changed = {keys for keys, value in wanted.items() if keys not in applied or applied[keys] != value}
            wanted = {keys: value for keys, value in wanted.items() if keys in lacking or keys in changed}
        write_site_config(self.install, wanted, dropped)
        record = self.install / _RECORD
        record.parent.mkdir(parents=True, exist_ok=True)
        write_record(self.install, record, self.values)

    def verify(self) -> str | None:
        """Return what is wrong with ``cluster_config.yaml``, as a sentence without a full stop; None: nothing.

        That the file is missing or empty, lacks keys or is not up to date is returned, not raised.

        Raises:
            ConfigError: the file cannot be read, has a mistake, or is not to be trusted
            OSError: the installation's folder cannot be examined
        """
        if not self.path.exists():
            return f"{self.path} is missing"
        data = _read_config(self.install)
        if not data:
            return f"{self.path} is empty"
        load_cluster_config(self.install)
        if lacking := _missing_keys(data, leaves(self.values)):
            return f"{self.path} lacks {', '.join(map('.'.join, lacking))} (to do without one, write null)"
        return None if self.is_complete() else f"{self.path} is not up to date"

    def show(self) -> str:
        """Return what ``make`` would do, as a line for a dry run: ``write PATH``.

        It is the same where there is nothing to write.
        """
        return f"write {self.path}"

    def _last_written_values(self) -> Leaves | None:
        """Return the values that the installer last wrote to ``cluster_config.yaml``, each by its tuple of keys.

        None where the record of them is missing or damaged.
        """
        try:
            applied = read_json(self.install / _RECORD)
        except RecordError:
            return None
        return leaves(applied) if isinstance(applied, dict) else None


def write_site_config(install: Path, values: Leaves, dropped: Leaves | None = None) -> bool:
    """Set ``values`` in the installation's ``cluster_config.yaml``, and remove ``dropped`` where it is unchanged.

    Both have values by the tuple of nested keys, such as ``("slurm", "account")``; None for ``dropped`` is none.
    Comments and other keys stay, as does a ``dropped`` key with another value by now; a group that is left empty
    goes. A file without ``schema`` gets ``schema: 1``. Returns whether the file had to be written; it is made where
    there is none. What is written is not checked. ``install`` is the installation's folder.

    Raises:
        ConfigError: the existing file is wrong, which is not overwritten
        RecordError: the file cannot be written
        OSError: the installation's folder cannot be made or examined
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    # Long values, such as paths, are not to be folded.
    yaml.width = 4096
    path = install / FILE_NAME
    known = _read_config(install) if path.exists() else {}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if known:
        load_cluster_config(install)
    document = yaml.load(text if known else f"{text or _HEADER}schema: 1\n")
    document.setdefault("schema", 1)
    for keys, value in values.items():
        _set_value(document, keys, value)
    for keys, value in (dropped or {}).items():
        _remove_value(document, keys, value)
    stream = io.StringIO()
    yaml.dump(document, stream)
    if stream.getvalue() == text:
        return False
    install.mkdir(parents=True, exist_ok=True)
    write(install, path, stream.getvalue())
    return True


def leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Leaves:
    """Return the values in nested mappings, each by the tuple of keys to it: ``{("slurm", "account"): ...}``.

    ``above`` is put before all keys. An empty mapping gives nothing; a list is one value.
    """
    found: Leaves = {}
    for key, value in values.items():
        keys = (*above, key)
        if isinstance(value, Mapping):
            found |= leaves(value, keys)
        else:
            found[keys] = value
    return found


def _read_config(install: Path) -> dict[str, Any]:
    """Return the content of the installation's ``cluster_config.yaml`` as plain data; empty if it says nothing.

    ``install`` is the installation's folder. Keys and values are not checked, but ``schema`` is.

    Raises:
        ConfigError: the file is missing, cannot be read, is of a newer release, or is not to be trusted
        OSError: the installation's folder cannot be examined
    """
    require_trusted(install / FILE_NAME, install)
    return read_settings(install / FILE_NAME)[0]


def _missing_keys(data: Mapping[str, Any], wanted: Leaves) -> list[tuple[str, ...]]:
    """Return the keys of ``wanted``, each a tuple of names, that ``data`` says nothing of; empty: it has all.

    They are in the order of ``wanted``; ``data`` is nested. A null says something, also in the place of a whole group.
    """

    def lacks(there: Any, keys: tuple[str, ...]) -> bool:
        """Return whether any of ``keys``, followed inwards through nested mappings from ``there``, is missing.

        False where a value that is no mapping, such as null, stands in the place of a group, or ``keys`` is empty.
        """
        if not isinstance(there, Mapping) or not keys:
            return False
        return keys[0] not in there or lacks(there[keys[0]], keys[1:])

    return [keys for keys in wanted if lacks(data, keys)]


def _set_value(document: Any, keys: tuple[str, ...], value: Any) -> None:
    """Set ``value`` in the YAML ``document``, which is changed, at the nested ``keys``; an equal value stays.

    There is at least one key. Missing groups are made. What stands in the place of a group and is none, such as null,
    is replaced by one.
    """
    first, *rest = keys
    if not rest:
        # An equal value is left alone, so that its spelling and comments stay.
        if first not in document or document[first] != value:
            document[first] = value
        return
    if not isinstance(document.get(first), Mapping):
        document[first] = {}
    _set_value(document[first], tuple(rest), value)


def _remove_value(document: Any, keys: tuple[str, ...], value: Any) -> None:
    """Remove ``value`` from the YAML ``document`` at the nested ``keys``, and groups on the way that are then empty.

    The document is changed. There is at least one key. Where another value is there now, or none, no value is
    removed.
    """
    first, *rest = keys
    if rest and isinstance(document.get(first), Mapping):
        _remove_value(document[first], tuple(rest), value)
        if not document[first]:
            del document[first]
    elif not rest and first in document and document[first] == value:
        del document[first]
