"""``cluster_config.yaml``: what an administrator says once of a site, as frozen structs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from llmb_common.base import gpus
from llmb_common.base.cluster_types import ClusterType, names, traits_of
from llmb_common.base.engines import DEFAULT_ENGINE, RELEASE, image_file_name, minor
from llmb_common.base.errors import ConfigError, did_you_mean
from llmb_common.base.files import require_trusted, status_of
from llmb_common.base.removed import CONFIG_KEYS
from llmb_common.base.strict_yaml import NotFlatError, convert, load_flat, load_text, read_text
from llmb_common.base.words import is_secret_name, job_variable_problem, line_problem
from llmb_common.planning.request.values import is_mount
from llmb_common.planning.site import FILE_NAME as FILE_NAME

CHECKPOINT_GB_PER_SECOND = 5.0
"""Assumed where the site does not say: cautious for a parallel file system behind hundreds of GPUs, too fast for a
single NFS server. A site that writes slower says so, or a job that is told to save is ended before it has."""


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where jobs train outside a container: the Python of an environment that has Megatron-Bridge, for each release.

    It is the section ``engine`` of ``cluster_config.yaml``; ``load_cluster_config`` refuses unknown keys, paths that
    are not absolute, and releases of another form. ``of_release`` returns the path of that of one minor release; None:
    there is none.
    """

    python: str | None = None
    """The Python that trains outside a container, with Megatron-Bridge 0.3."""
    releases: dict[str, str] = {}
    """Other releases that recipes need, and the Python that has each: ``{"0.6": /opt/engine-0.6/bin/python}``."""

    def of_release(self, release: str) -> str | None:
        """Return the path of this site's Python that has the minor release ``release`` of Megatron-Bridge, such as
        ``0.6``.

        For 0.3 it is ``python``, for others that in ``releases``, whose keys count by their first two numbers; of
        several patches of one minor release the last wins. None: there is none.
        """
        others = {minor(name): python for name, python in self.releases.items()}
        return self.python if release == DEFAULT_ENGINE else others.get(release)


class SiteRelease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A release of Megatron-Bridge that the site has entered itself: its image, and the files made in that image.

    It is an item of ``releases`` in ``cluster_config.yaml``. None: the site names none. ``load_cluster_config`` refuses
    unknown keys, and files that are not absolute paths; whether they exist is not looked at.
    """

    image: str | None = None
    """The image with this release: a path, or a name as recipes give it."""
    catalogue: str | None = None
    """The file that ``python -m llmb_train.catalogue`` wrote in that image."""
    validation: str | None = None
    """The file that it wrote there with ``--validation``."""


Rate = Annotated[float, msgspec.Meta(gt=0, lt=1e6)] | None


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What healthy nodes of this site give under load: ``llmb-run health --fabric`` fails nodes that give less.

    It is the section ``health`` of ``cluster_config.yaml``, which ``load_cluster_config`` reads. A figure of None is
    not expected of any node; others are above 0. GB/s are 10^9 bytes/s. Refused are unknown keys, figures of 0 or less,
    and a tolerance below 0 or of 100 and more.
    """

    matrix_tflops: Rate = None
    """Matrix products in bf16, TFLOP/s of a GPU; `llmb-run health --fabric` fails nodes that give less than
    these figures."""
    copy_gb_per_s: Rate = None
    """Copies in a GPU's memory, 10^9 bytes/s."""
    to_gpu_gb_per_s: Rate = None
    """Copies to a GPU."""
    from_gpu_gb_per_s: Rate = None
    """Copies from a GPU."""
    node_all_reduce_gb_per_s: Rate = None
    """Bus bandwidth of an all-reduce within a node."""
    all_reduce_gb_per_s: Rate = None
    """The same between two nodes."""
    four_nodes_all_reduce_gb_per_s: Rate = None
    """The same among four nodes, as they are measured from 24 nodes on."""
    all_nodes_all_reduce_gb_per_s: Rate = None
    """The same among all nodes of a fleet."""
    tolerance_percent: Annotated[float, msgspec.Meta(ge=0, lt=100)] | None = None
    """How far below these figures a node fails. Default: [10 to 20 %](health.md), by what is measured."""


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site's configuration: a whole ``cluster_config.yaml`` but for schedulers' own sections (``config_type``).

    ``load_cluster_config`` reads it and refuses unknown keys and wrong values, ``cluster_config`` makes one of
    values. None: not said. ``scheduler`` returns the section for a way of running jobs (ValueError: there is no
    such way), ``image_file`` the path of a container image's file here, as text. Docstrings of fields, here and
    above, are printed in docs/reference.md.
    """

    schema: Literal[1] = 1
    """The version of this file's format."""
    cluster_name: str | None = None
    """What people call the cluster; reports begin with it."""
    operator: str | None = None
    """Who measures here, for reports: a name, a company, an address. Default: the users whose runs they are."""
    cluster_type: ClusterType | None = None
    """Where jobs run: one of the values of ``CLUSTER_TYPE``."""
    repo: str | None = None
    """The clone of the repository."""
    gpu_type: str | None = None
    """The GPUs that jobs run on."""
    gpus_per_node: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many of them a node has. Default: what is usual for the GPU type."""
    arch: Literal["x86_64", "aarch64"] | None = None
    """The architecture of the compute nodes."""
    engine: Engine | None = None
    """Where jobs train outside a container: see below."""
    releases: dict[str, SiteRelease] = {}
    """Releases of Megatron-Bridge that the site brings itself, by number (``"0.7"`` or ``"0.7.0"``): see below, and
    [your own container](catalogue.md#your-own-container)."""
    env_type: Literal["uv", "venv", "conda"] | None = None
    """What the training environments are; ``uv`` and ``venv`` mean the same."""
    image_folder: str | None = None
    """Where the images are, if not in ``images/`` of the installation."""
    checkpoint_gb_per_second: Annotated[float, msgspec.Meta(gt=0)] = CHECKPOINT_GB_PER_SECOND
    """How fast all ranks of a job together write a checkpoint, in 10^9 bytes/s. It decides how long before its time
    limit a job is told to save."""
    health: HealthSettings = HealthSettings()
    """What healthy nodes of this site give under load: see below."""
    mounts: tuple[str, ...] = ()
    """More container mounts, ``SOURCE:TARGET[:ro]``."""
    environment: dict[str, str] = {}
    """Variables for every job, such as the site's NCCL settings. They override the recipe's."""
    workloads: tuple[str, ...] = ()
    """The installed workloads."""

    def scheduler(self, kind: str) -> Any:
        """Return the section of this configuration for a way of running jobs such as ``slurm``: its settings.

        They are of a class derived from ``SchedulerSettings``, or of that itself; where the file has no such
        section, the defaults.

        Raises:
            ValueError: there is no way of running jobs called ``kind``
        """
        return getattr(self, kind, None) or traits_of(kind).settings_type()

    def image_file(self, install: Path, image: str) -> str:
        """Return the file, as text, to which the installer imports a registry's image here; a path comes back as it is.

        ``image`` is a path if it begins with a slash, else a registry's name (``nvcr.io#nvidia/nemo:26.02.01``, whose
        file is called ``nvidia+nemo+26.02.01.sqsh``). ``install`` is the installation's folder; the file is in
        ``image_folder``, or else in ``images`` there. Whether it exists is not looked at.
        """
        folder = Path(self.image_folder) if self.image_folder else install / "images"
        return image if image.startswith("/") else str(folder / image_file_name(image))


def cluster_config(**values: Any) -> ClusterConfig:
    """Return a site's configuration with these ``values`` by key, schedulers' sections among them; no file is read.

    Such as ``gpu_type="h100"``; sections are instances of their classes. They are not checked, but for keys that do
    not exist, which are a TypeError.
    """
    return config_type(names())(**values)


@lru_cache
def config_type(kinds: Sequence[str]) -> type[ClusterConfig]:
    """Return the class of ``cluster_config.yaml`` with a section for each of these ways of running jobs.

    ``kinds`` is a tuple of names (``slurm``). Those without settings have no section. The same class comes back for
    the same ways.

    Raises:
        ValueError: there is no such way of running jobs
    """
    section_types = {kind: traits_of(kind).settings_type for kind in kinds}
    # A section without fields would be a key that does nothing.
    sections = [(kind, settings, settings()) for kind, settings in section_types.items() if settings.__struct_fields__]
    options: Any = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True}
    found: Any = msgspec.defstruct("ClusterConfig", sections, bases=(ClusterConfig,), **options)
    return found  # type: ignore[no-any-return]


def load_cluster_config(install: Path | None, note: Callable[[str], None] | None = None) -> ClusterConfig:
    """Return the site's configuration in the installation ``install``; the defaults where it has none, or for None.

    Keys of earlier releases have no effect; ``note``, if given, is called with a sentence on each, with file and
    line. Other unknown keys are refused.

    Raises:
        ConfigError: the file is wrong, cannot be read, was written by somebody who is not trusted, or is of
            NVIDIA's own llmb-run (code ``nvidias-config``); the message names the file and, if what it says is
            wrong, the line
    """
    if install is None:
        return cluster_config()
    path = install / FILE_NAME
    try:
        if status_of(path) is None:
            return cluster_config()
    except OSError as error:
        raise ConfigError(
            f"cannot look for {path}: {error.strerror or error}", remedy="correct LLMB_INSTALL, or its permissions"
        ) from error
    require_trusted(path, install)
    text = read_text(path)
    try:
        # Most files are flat, and importing a YAML parser takes as long as starting Python.
        data, lines = load_flat(text, str(path))
    except NotFlatError:
        data, lines = load_text(text, str(path))
    _refuse_nvidia_config(path, data)
    for key in _drop_removed(data):
        if note is not None:
            note(f"{path}:{lines[f'$.{key}']}: {key} no longer has an effect: {CONFIG_KEYS[key]}")
    config = convert(data, lines, config_type(names()), str(path))
    for key, problem, remedy in _problems(config):
        raise ConfigError(f"{path}:{lines[f'$.{key}']}: {key}{problem}", remedy=remedy)
    return config


NVIDIAS_KEYS = ("schema_version", "launcher")
"""Keys that a ``cluster_config.yaml`` of NVIDIA's own llmb-run has (the newer and the older form), and none of ours."""


def _refuse_nvidia_config(path: Path, data: Any) -> None:
    """Raise if ``data``, read from ``path``, is the configuration of NVIDIA's own llmb-run, which has the same name.

    Otherwise None is returned, also where ``data`` is no mapping.

    Raises:
        ConfigError: code ``nvidias-config``: it is
    """
    if isinstance(data, dict) and any(key in data for key in NVIDIAS_KEYS):
        raise ConfigError(
            f"{path} is the configuration of NVIDIA's own llmb-run, not of this one",
            remedy="install beside it, with the account and partition that it names: "
            "./installer.py --install-path ANOTHER_FOLDER, and set LLMB_INSTALL to that",
            code="nvidias-config",
        )


def _drop_removed(data: Any) -> list[str]:
    """Remove keys that only earlier releases had from ``data``, and return those that were there: ``["currency"]``.

    ``data`` itself is changed; a key in a section is returned as section, dot and key. Other data than a mapping is
    left alone. Empty: there were none.
    """
    found = []
    for key in CONFIG_KEYS:
        section, _, name = key.rpartition(".")
        group = data.get(section) if section and isinstance(data, dict) else data
        if isinstance(group, dict) and name in group:
            del group[name]
            found.append(key)
    return found


def _problems(config: ClusterConfig) -> Iterator[tuple[str, str, str]]:
    """Yield (key, problem, remedy) for what is wrong in the configuration beyond the types; nothing for a right one.

    The problem is the rest of a sentence that begins with the key, with its leading blank or colon. A key in a
    section is ``slurm.account``. Values are checked because they reach scripts and command lines. Nothing is looked
    up: a path need not exist.
    """
    for key, value, known in (
        ("cluster_type", config.cluster_type, names()),
        ("gpu_type", config.gpu_type, gpus.gpu_types()),
    ):
        if value is not None and value not in known:
            yield key, f" {value!r} is unknown{did_you_mean(value, known)}", f"one of {', '.join(known)}"
    for key, text in _texts(config):
        if problem := line_problem(text):
            yield key, f" {problem}", "write it on one line"
    for name, text in config.environment.items():
        if problem := job_variable_problem(name, text):
            export = f"remove it here, and export {name} in the shell that submits: jobs inherit it"
            yield "environment", f": {problem}", export if is_secret_name(name) else "correct it, or remove it"
    for kind in names():
        for key, problem, remedy in config.scheduler(kind).problems():
            yield f"{kind}.{key}", f" {problem}", remedy
    yield from _problems_of_releases(config)
    for mount in config.mounts:
        if not is_mount(mount):
            yield "mounts", f": {mount!r} is not a mount", "write it as /source:/target, or /source:/target:ro"


def _problems_of_releases(config: ClusterConfig) -> Iterator[tuple[str, str, str]]:
    """Yield (key, problem, remedy), as ``_problems`` does, for releases that are none, and paths that are relative.

    The paths are those of engines, images and catalogues.
    """
    engine = config.engine or Engine()
    for key, releases in (("engine.releases", engine.releases), ("releases", config.releases)):
        for release in releases:
            if not re.fullmatch(RELEASE, release):
                yield key, f": {release!r} is not a release of Megatron-Bridge", 'write it as "0.7" or "0.7.0"'
    paths = [("engine.python", engine.python), ("image_folder", config.image_folder)]
    paths += [(f"engine.releases.{release}", python) for release, python in engine.releases.items()]
    paths += [(f"releases.{release}.catalogue", own.catalogue) for release, own in config.releases.items()]
    paths += [(f"releases.{release}.validation", own.validation) for release, own in config.releases.items()]
    for key, path in paths:
        if path is not None and not path.startswith("/"):
            yield (
                key,
                f" {path!r} is not an absolute path",
                f"write the whole path, such as /opt/{path}: jobs run in other folders",
            )


def _texts(config: ClusterConfig) -> Iterator[tuple[str, str]]:
    """Yield (key, text) for every text in the configuration and its sections; a key is such as ``slurm.account``.

    Texts of a list have one key. Of mappings, the Pythons of engines and the files of releases are among them, and
    the variables of ``environment`` are not.
    """
    for release, python in (config.engine or Engine()).releases.items():
        yield f"engine.releases.{release}", python
    own = ((f"releases.{release}.", own) for release, own in config.releases.items())
    sections = ((f"{kind}.", config.scheduler(kind)) for kind in names())
    groups = (("", config), *sections, ("engine.", config.engine), *own)
    for prefix, group in groups:
        for key in group.__struct_fields__ if group else ():
            value = getattr(group, key)
            values = value if isinstance(value, tuple) else (value,)
            yield from ((prefix + key, text) for text in values if isinstance(text, str))
