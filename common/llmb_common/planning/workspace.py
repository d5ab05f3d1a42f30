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


def find_install(variables: Mapping[str, str] = os.environ, here: Path | None = None) -> Path | None:
    """``LLMB_INSTALL``, else the current folder if it is an installation that we trust, else None.

    Its configuration names programs and variables of jobs, so one that any user could have put into a shared folder,
    such as ``/tmp``, is read only if ``LLMB_INSTALL`` names it; a notice on stderr says so. ``LLMB_INSTALL`` need not
    exist.

    Raises:
        RequestError: ``LLMB_INSTALL`` is no path that can be used.
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
    """A recipe with the folder that it was read from."""

    folder: Path
    recipe: Recipe


def _is_readable(recipe: Recipe) -> bool:
    """Whether the recipe has a catalogue that can be read; a notice says where one cannot."""
    try:
        return recipe.catalogue is not None
    except RecipeError as error:
        notice(f"left out: {error.message}")
        return False


class Workspace:
    """One command's view of the installation. Everything is read on first use."""

    def __init__(self, install: Path | None = None) -> None:
        self.install_or_none = install or find_install()
        self.planned_for: str | None = None
        """The GPU type that a dry run chose for its first job, where there are no GPUs; its others are for the same."""
        self._entries: dict[Path, CatalogEntry | None] = {}
        """What the folders that were read have; None: a recipe that cannot be read."""

    @property
    def install(self) -> Path:
        """The installation, whether its folder exists or not: a dry run needs no more.

        Raises:
            RequestError: code ``no-install``: none is named
        """
        if self.install_or_none is None:
            from llmb_common.planning.plan import no_install_error

            raise no_install_error(f"LLMB_INSTALL is not set, and this folder has no {FILE_NAME}")
        return self.install_or_none

    def require_install(self) -> Path:
        """The installation, whose folder exists.

        Raises:
            RequestError: code ``no-install``: none is named, or it does not exist
        """
        if not self.install.is_dir():
            raise RequestError(
                f"LLMB_INSTALL={self.install} does not exist",
                remedy="correct LLMB_INSTALL; ./installer.py creates an installation",
                code="no-install",
            )
        return self.install

    @cached_property
    def cluster(self) -> ClusterConfig:
        """The site's configuration, read once; the defaults where there is no installation.

        Raises:
            ConfigError: the file cannot be read, is wrong, or comes from somebody who has no say here
        """
        from llmb_common.planning.site.cluster import load_cluster_config

        return load_cluster_config(self.install_or_none, notice)

    @cached_property
    def catalog(self) -> tuple[CatalogEntry, ...]:
        """All recipes that can be read, by name, read once. One that cannot is reported in a notice."""
        entries = map(self._catalog_entry, self._folders(self.cluster.repo))
        return tuple(entry for entry in entries if entry is not None)

    def workload_names(self) -> list[str]:
        """The workloads of all recipes, for completion: of each file one line is read, and nothing else is checked.

        Raises:
            ConfigError: ``cluster_config.yaml`` comes from somebody who has no say here, or cannot be read
        """
        repo = None
        path = self.install_or_none and self.install_or_none / FILE_NAME
        if path and path.exists():
            require_trusted(path, path.parent)
            repo = value_on_line(read_text(path), "repo")
        return [name for name in map(workload_in, self._folders(repo)) if name]

    def _folders(self, repo: str | None) -> Iterator[Path]:
        """The recipes' folders: in the site's clone ``repo`` unless LLMB_REPO is set, else in ``recipes_root()``.

        A notice says where ``repo`` has no recipe.
        """
        if not os.environ.get("LLMB_REPO") and repo:
            clone = Path(repo)
            if next(recipe_folders(clone), None) is not None:
                return recipe_folders(clone)
            notice(f"{FILE_NAME}: repo: {clone} has no recipe; the recipes of this package are used instead")
        return recipe_folders(recipes_root())

    def adopted(self, recipe: Recipe) -> dict[str, Recipe]:
        """``recipe`` with the functions of each release that the site has a catalogue of, by the release's name.

        A catalogue that cannot be read is reported in a notice and left out. Empty: the site has none for it.
        """
        from llmb_common.planning.own_releases import own_catalogues

        found = own_catalogues(recipe, self.cluster)
        return {name: own for name, own in found.items() if _is_readable(own)}

    def workload(self, name: str) -> CatalogEntry:
        """The recipe of a workload (``pretrain_grok1``) or of a recipe's name (``grok1``).

        Raises:
            RequestError: no recipe has that name
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
        """The recipe in a folder, read once; None, after a notice, where it cannot be read."""
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
        """The recipes' folders by their own names and by the names of their workloads, of which one line was read."""
        found: dict[str, Path] = {}
        for folder in self._folders(self.cluster.repo):
            found.setdefault(folder.name, folder)
            workload = workload_in(folder)
            if workload:
                found.setdefault(workload, folder)
        return found

    def nearest_model(self, name: str) -> str:
        """What to do about ``name``, which is a model and no workload, as a remedy; empty where nothing comes near."""
        from llmb_common.recipes.nearest import plan_command, remedy_for

        recipes = [entry.recipe for entry in self.catalog]
        for recipe in recipes:
            if name.lower() in recipe.sizes and "_" in name:  # not 8b, of which there may be several
                return f"it is a size of {recipe.workload}: {plan_command(recipe, name.lower())}"
        return remedy_for(name, recipes, gpu_type=self.cluster.gpu_type)
