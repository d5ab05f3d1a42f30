"""Releases of Megatron-Bridge that a site brings itself (``releases`` in ``cluster_config.yaml``), as recipes with the
functions of each."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from llmb_common.base.engines import bridge_release, is_newer, is_of, minor
from llmb_common.base.errors import RecipeError
from llmb_common.planning.job_plan import PlannedFunction
from llmb_common.planning.site.cluster import ClusterConfig, SiteRelease
from llmb_common.recipes.recipe import Recipe


def own_releases(recipe: Recipe, cluster: ClusterConfig) -> dict[str, SiteRelease]:
    """Return the site's own releases of Megatron-Bridge that jobs of ``recipe`` can run in, by name (``0.7``,
    ``0.6.2``).

    They are in the order of ``cluster.releases``. A release counts that is newer than all that LLMB knows, is of
    one of the recipe's engines, or has a catalogue where the recipe calls functions. Empty: there is none.
    """
    return {
        name: own
        for name, own in cluster.releases.items()
        if is_newer(name) or minor(name) in recipe.engines or (recipe.catalogue_file and own.catalogue)
    }


def matching_release(releases: Iterable[str], requested: str) -> str | None:
    """Return the one of ``releases`` that ``requested`` means, in numbers such as ``0.7`` or ``0.7.0``; None: there
    is none.

    One of exactly this name wins. Else it is the first that is a patch of the requested minor release, ``0.7.1``
    for 0.7, or the minor release of the requested patch, ``0.7`` for 0.7.1.
    """
    known = list(releases)
    if requested in known:
        return requested
    return next((name for name in known if requested == minor(name) or name == minor(requested)), None)


def with_release(recipe: Recipe, name: str, own: SiteRelease) -> Recipe:
    """Return a copy of the recipe for the site's release ``name``: its image, its functions and no other engine.

    ``own`` has the release's settings. Without an image of its own the recipe's serves, if that has this very
    release; else the image is empty. Without a catalogue of its own the recipe's functions stay; its own one is not
    read yet. ``recipe`` is not changed.

    Raises:
        RecipeError: the recipe's catalogue cannot be read
    """
    recipe = recipe.of_release(name)
    files = {}
    if recipe.catalogue_file is not None and own.catalogue is not None:
        files = {"catalogue_file": own.catalogue, "validation_file": own.validation}
    known = recipe.engines.get(minor(name), "")
    # The recipe's image serves only if it has this very release.
    image = own.image or (known if is_of(bridge_release(known) or name, name) else "")
    return msgspec.structs.replace(
        recipe, image=image, engine=minor(name), other_engines={}, other_catalogues={}, **files
    )


def own_catalogues(recipe: Recipe, cluster: ClusterConfig) -> dict[str, Recipe]:
    """Return the recipe with the functions of each release that the site has a catalogue of, by the release's name.

    Names and order are those of ``cluster.releases``. Empty where the site has none, or jobs of the recipe call no
    functions. The site's catalogues are not read yet.

    Raises:
        RecipeError: the recipe's own catalogue cannot be read
    """
    if recipe.catalogue_file is None:
        return {}
    releases = own_releases(recipe, cluster)
    return {name: with_release(recipe, name, own) for name, own in releases.items() if own.catalogue is not None}


def recipe_of(function: PlannedFunction | None, recipe: Recipe, cluster: ClusterConfig) -> Recipe:
    """Return the recipe with those functions that a run's ``function`` is one of, by its catalogue's digest.

    The recipe's own releases are looked through before the site's (``cluster``). ``recipe`` itself where that
    catalogue is not here now, or ``function`` is None. Catalogues of other releases that cannot be read are passed
    over.

    Raises:
        RecipeError: the recipe has catalogues of several releases, and its own one cannot be read
    """
    if function is None:
        return recipe
    for one in (*recipe.releases.values(), *own_catalogues(recipe, cluster).values()):
        with suppress(RecipeError):
            if one.catalogue is not None and one.catalogue.sha256 == function.catalogue:
                return one
    return recipe
