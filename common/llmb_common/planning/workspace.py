"""Where we are: the installation, its site configuration, and the recipes that go with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmb_common.base.errors import RecipeError, RequestError, did_you_mean
from llmb_common.base.files import require_trusted, user_path
from llmb_common.base.notices import notice
from llmb_common.base.strict_yaml import read_text, value_on_line
from llmb_common.base.words import check_argument
from llmb_common.planning.site import FILE_NAME
from llmb_common.recipes.folders import recipe_folders, recipes_root, workload_in

if TYPE_CHECKING:  # imported where they are needed
    from llmb_common.planning.site.cluster import ClusterConfig
    from llmb_common.recipes.recipe import Recipe

_HAS_ONE_OF = (FILE_NAME, ".llmb", "venvs", "workloads")
"""What an installation has one of at least; a home, or a clone of LLMB, has none."""


def find_install(variables: Mapping[str, str] = os.environ, here: Path | None = None) -> Path | None:
    """Return the folder of the installation to use: ``LLMB_INSTALL``, else the current folder, else None.

    ``LLMB_INSTALL``, from ``variables``, is returned as an absolute path with ``~`` replaced, whether or not it
    exists; a blank one counts as not set. The current folder, or ``here``, is returned as it is, and counts only if
    it has a cluster_config.yaml that somebody trusted wrote: that file names programs and variables of jobs, and
    anybody can put one into a shared folder such as ``/tmp``. One that is not trusted gives None and a notice on
    stderr.

    Raises:
        RequestError: ``LLMB_INSTALL`` is not one line of text, only commas, longer than 20,000 characters, or names a
            home that does not exist
        OSError: the current folder, which is asked for, has been removed
    """
    if named := variables.get("LLMB_INSTALL", "").strip():
        check_argument("LLMB_INSTALL", named)
        return user_path(named, f"LLMB_INSTALL={named}")
    here = here or Path.cwd()
    if not os.path.lexists(here / FILE_NAME):
        return None
    from llmb_common.base.files import why_not_trusted

    if problem := why_not_trusted(here, FILE_NAME):
        notice(f"{here / FILE_NAME} is not read: {problem}; if you mean this installation, export LLMB_INSTALL={here}")
        return None
    return here


class CatalogEntry(NamedTuple):
    """One recipe of the catalog, with the folder that its recipe.yaml is in; ``Workspace.catalog`` has them all."""

    folder: Path
    recipe: Recipe


def _is_readable(recipe: Recipe) -> bool:
    """Return whether the recipe names a catalogue of functions that can be read.

    False for a recipe that names none. False, with a notice on stderr that the catalogue is left out, where its
    file is missing or damaged.
    """
    try:
        return recipe.catalogue is not None
    except RecipeError as error:
        notice(f"left out: {error.message}")
        return False


class Workspace:
    """What one command sees of the installation: its folder, its cluster configuration and its recipes.

    The argument ``install`` is the installation's folder, which need not exist; None: the one that ``find_install``
    finds, if any. It is found at once: ``install_or_none`` has it, or None; the property ``install`` raises a
    RequestError where there is none, ``require_install`` also where it does not exist or is another folder. The
    properties ``cluster`` (cluster_config.yaml; the defaults without one) and ``catalog`` (a tuple of all recipes that
    can be read, sorted by folder name) are read on first use and then kept. ``workload`` returns a recipe by its name,
    with its folder, or raises a RequestError; ``workload_names`` a list of such names; ``adopted`` copies of a recipe
    with the catalogues that this site has added, by release; ``nearest_model`` a remedy for a name that is unknown, or
    "". ``cluster`` and all that come after it here raise a ConfigError where cluster_config.yaml cannot be used, and
    all that look for recipes a RequestError where ``LLMB_REPO`` has none; ``workload``, ``adopted`` and
    ``nearest_model`` a RecipeError where a file of a recipe that they need cannot be read; ``require_install`` and
    ``workload_names`` an OSError where the installation's folder may not be looked at. ``planned_for`` is set by its
    users: the GPU type that a dry run chose for its first job, for its other jobs.

    Raises:
        RequestError: ``LLMB_INSTALL`` cannot be used as a path
        OSError: the current folder, which is asked for, has been removed
    """

    def __init__(self, install: Path | None = None) -> None:
        self.install_or_none = install or find_install()
        self.planned_for: str | None = None
        """The GPU type that a dry run chose for its first job, where there are no GPUs; its others are for the same."""
        self._entries: dict[Path, CatalogEntry | None] = {}
        """What the folders that were read have; None: a recipe that cannot be read."""

    @property
    def install(self) -> Path:
        """The installation's folder, which need not exist: a dry run only needs its path.

        Raises:
            RequestError: code ``no-install``: none was given, nor is one in ``LLMB_INSTALL`` or the current folder
        """
        if self.install_or_none is None:
            from llmb_common.planning.plan import no_install_error

            raise no_install_error(f"LLMB_INSTALL is not set, and this folder has no {FILE_NAME}")
        return self.install_or_none

    def require_install(self) -> Path:
        """Return the installation's folder, which exists and is a directory, and looks like one.

        It has any of ``_HAS_ONE_OF``, or is empty: a new one may be, and nobody mistakes another folder for that.

        Raises:
            RequestError: code ``no-install``: no installation is named, or the one that is named is no directory, or
                another one, such as a home
            OSError: the folder, or the one that it is in, may not be looked at
        """
        exists = self.install.is_dir()
        has_any = any(os.path.lexists(self.install / name) for name in _HAS_ONE_OF)
        if has_any or (exists and next(self.install.iterdir(), None) is None):
            return self.install
        raise RequestError(
            f"LLMB_INSTALL={self.install} {'is no installation' if exists else 'does not exist'}",
            remedy="correct LLMB_INSTALL; ./installer.py creates an installation",
            code="no-install",
        )

    @cached_property
    def cluster(self) -> ClusterConfig:
        """The content of the installation's cluster_config.yaml, read once; defaults without one.

        That is: without an installation, or without that file in it. A notice on stderr tells of each key that has no
        effect any more.

        Raises:
            ConfigError: the file cannot be read, is wrong (with file and line), or was written by somebody who is not
                trusted
        """
        from llmb_common.planning.site.cluster import load_cluster_config

        return load_cluster_config(self.install_or_none, notice)

    @cached_property
    def catalog(self) -> tuple[CatalogEntry, ...]:
        """All recipes that can be read, sorted by folder name, read once; empty: none can be.

        A notice on stderr names each one that cannot be read.

        Raises:
            ConfigError: cluster_config.yaml cannot be used
            RequestError: ``LLMB_REPO`` is set and contains no recipe
        """
        entries = map(self._catalog_entry, self._folders(self.cluster.repo))
        return tuple(entry for entry in entries if entry is not None)

    def workload_names(self) -> list[str]:
        """Return the workload of each recipe (``pretrain_grok1``), sorted by folder name, for shell completion.

        To be fast, it reads one line of each recipe.yaml and of cluster_config.yaml, and checks nothing else. A
        recipe without such a line is left out.

        Raises:
            ConfigError: cluster_config.yaml cannot be read, or was written by somebody who is not trusted
            RequestError: ``LLMB_REPO`` is set and contains no recipe
            OSError: the installation's folder may not be looked at
        """
        repo = None
        path = self.install_or_none and self.install_or_none / FILE_NAME
        if path and path.exists():
            require_trusted(path, path.parent)
            repo = value_on_line(read_text(path), "repo")
        return [name for name in map(workload_in, self._folders(repo)) if name]

    def _folders(self, repo: str | None) -> Iterator[Path]:
        """Return an iterator over the folders of all recipes, sorted by name.

        They are those in ``repo``, the clone that cluster_config.yaml names; where that is None or empty, or
        ``LLMB_REPO`` is set, those in ``recipes_root()``. A ``repo`` without a recipe gives a notice on stderr, and
        ``recipes_root()`` serves instead.

        Raises:
            RequestError: ``LLMB_REPO`` is set and contains no recipe
        """
        if not os.environ.get("LLMB_REPO") and repo:
            clone = Path(repo)
            if next(recipe_folders(clone), None) is not None:
                return recipe_folders(clone)
            notice(f"{FILE_NAME}: repo: {clone} has no recipe; the recipes of this package are used instead")
        return recipe_folders(recipes_root())

    def adopted(self, recipe: Recipe) -> dict[str, Recipe]:
        """Return a copy of ``recipe`` for each release of Megatron-Bridge that this site has adopted a catalogue of.

        The keys are the releases as cluster_config.yaml has them (``0.7.0``), and each copy has that release's
        functions. Empty: the site adopted none, or the recipe's jobs call no functions. A release whose catalogue
        cannot be read is left out with a notice on stderr.

        Raises:
            ConfigError: cluster_config.yaml cannot be used
            RecipeError: the recipe's own catalogue cannot be read
        """
        from llmb_common.planning.own_releases import own_catalogues

        found = own_catalogues(recipe, self.cluster)
        return {name: own for name, own in found.items() if _is_readable(own)}

    def workload(self, name: str) -> CatalogEntry:
        """Return the recipe whose workload (``pretrain_grok1``) or name (``grok1``) is ``name``, in any case, with
        its folder.

        Of several recipes with that name, the first in the order of folders counts; one that cannot be read is
        passed over with a notice on stderr.

        Raises:
            RequestError: code ``unknown-workload``: no recipe has that name; the error suggests near ones or a
                model, or lists all. Also where ``LLMB_REPO`` contains no recipe
            ConfigError: cluster_config.yaml cannot be used
            RecipeError: no recipe has that name, and a recipe's catalogue, validation or results file, searched for
                a suggestion, cannot be read
        """
        wanted = name.lower()
        folder = self._folder_of.get(wanted)  # to read all recipes takes longer than most commands
        likely = self._catalog_entry(folder) if folder is not None else None
        if likely is not None and wanted in (likely.recipe.workload, likely.recipe.name):
            return likely
        for entry in self.catalog:
            if wanted in (entry.recipe.workload, entry.recipe.name):
                return entry
        known = [entry.recipe.workload for entry in self.catalog]
        near = did_you_mean(name.lower(), known, cutoff=0.5)
        remedy = "" if near else self.nearest_model(name)
        raise RequestError(
            f"no workload {name!r}{near}",
            remedy=remedy or f"one of {', '.join(known)}; llmb-run list shows their sizes",
            code="unknown-workload",
        )

    def _catalog_entry(self, folder: Path) -> CatalogEntry | None:
        """Return the recipe in ``folder``, loaded once; None, with a notice on stderr the first time, where it
        cannot be read.
        """
        from llmb_common.recipes.loading import load_recipe

        if folder not in self._entries:
            self._entries[folder] = None
            try:
                self._entries[folder] = CatalogEntry(folder, load_recipe(folder))
            except RecipeError as error:
                notice(f"left out: {error.message}")
        return self._entries[folder]

    @cached_property
    def _folder_of(self) -> dict[str, Path]:
        """Each recipe's folder, by the folder's own name and by its workload's name; the first of a name counts.

        Of each recipe.yaml only the line with the workload is read, so a folder here may hold a recipe that is wrong.

        Raises:
            ConfigError: cluster_config.yaml cannot be used
            RequestError: ``LLMB_REPO`` is set and contains no recipe
        """
        found: dict[str, Path] = {}
        for folder in self._folders(self.cluster.repo):
            found.setdefault(folder.name, folder)
            workload = workload_in(folder)
            if workload:
                found.setdefault(workload, folder)
        return found

    def nearest_model(self, name: str) -> str:
        """Return a remedy for a user who gave the model ``name`` as a workload: what to run instead.

        It is a clause without a period. Where ``name`` has a ``_`` and is a model size of a recipe (``llama3_70b``, in
        any case), it has the command that plans it; else that of the model most like it, on the site's GPU type if
        possible. Empty where nothing is known of such a model.

        Raises:
            RecipeError: a recipe's catalogue, validation or results file cannot be read
            ConfigError: cluster_config.yaml cannot be used
            RequestError: ``LLMB_REPO`` is set and contains no recipe
        """
        from llmb_common.recipes.nearest import plan_command, remedy_for

        recipes = [entry.recipe for entry in self.catalog]
        for recipe in recipes:
            if name.lower() in recipe.sizes and "_" in name:  # not 8b, of which there may be several
                return f"it is a size of {recipe.workload}: {plan_command(recipe, name.lower())}"
        return remedy_for(name, recipes, gpu_type=self.cluster.gpu_type)
