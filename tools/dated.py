"""Facts that somebody looked up on a day, as tables and figures of pages: each stands in one data file, and here.

Figures on pages of ``docs/`` and on the first page; recipes' READMEs have those marked with *::

    containers                how far NVIDIA's containers are known, and since when
    image RECIPE [ENGINE] *   the tag of the container that a recipe's jobs run in
    measured RECIPE           the containers of NeMo 2 that its results were measured in
    exemplar                  NVIDIA's release that has the list of its Exemplar Clouds
    exemplar_day              the day of that release, and the day of looking it up
    exemplar_suite GPU        the name of the suite for a GPU type
    document RECIPE NAME *    release and day of a publication; on a recipe's page without RECIPE
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from llmb_common.base.engines import CONTAINERS, KNOWN_CONTAINERS, LOOKED_UP, SOURCES, container_release, release_order
from llmb_common.planning import known_issues as issues
from llmb_common.recipes.folders import recipe_folders, recipes_root
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Document
from llmb_run.acceptance import exemplar
from tools.markdown import lines


def containers() -> Iterator[str]:
    """Every known container of NVIDIA's, with its Megatron-Bridge."""
    rows = ((f"`nemo:{tag}`", release, SOURCES.get(tag, "release page")) for tag, release in CONTAINERS.items())
    return lines((f"looked up {LOOKED_UP}", "Megatron-Bridge", "source"), rows, words=3)


def known_issues() -> Iterator[str]:
    """What NVIDIA itself says is wrong with the releases that LLMB's jobs run in."""
    rows = (
        (
            issue["megatron_bridge"],
            issue["what"],
            issue["avoid"] or "-",
            issue["here"],
            f"[page]({issue.get('source', issues.SOURCE)})",
        )
        for issue in issues.ISSUES
    )
    head = (f"looked up {issues.LOOKED_UP}", "what is wrong", "what avoids it", "jobs of LLMB that meet it", "source")
    return lines(head, rows, words=5)


def published() -> Iterator[str]:
    """Where each recipe's published results come from, with what they were measured."""
    rows = []
    for recipe in _recipes():
        used: dict[tuple[str, str, str, str], list[tuple[str, Document]]] = {}
        for result in recipe.results:
            document = recipe.document(result)
            key = (document.title, document.release, document.date, document.page)
            used.setdefault(key, []).append((result.variant, document))
        for (title, release, date, page), results in used.items():
            variants = sorted({variant for variant, _ in results})
            named = f" {', '.join(f'`{name}`' for name in variants)}" if len(recipe.listed_variants) > 1 else ""
            where = f"[{title}]({page})" if page.startswith("https://") else f"{title}: `{page}`"
            release_text = f"{release}, {date}" if release else date
            if recipe.results_file is not None:
                release_text += (
                    f"; looked up {json.loads(Path(recipe.results_file).read_text(encoding='utf-8'))['looked_up']}"
                )
            rows.append(
                (f"{recipe.name}{named}", release_text, where, _measured([document for _, document in results]))
            )
    return lines(("results", "release", "page", "measured with"), rows, words=4)


def _measured(documents: list[Document]) -> str:
    """``NeMo 2, nemo:25.02.01`` of one container, or the first and the last of several."""
    found = sorted({document.container or "" for document in documents}, key=release_order)
    container_text = f"`nemo:{found[0]}`" if len(found) == 1 else f"`nemo:{found[0]}` to `nemo:{found[-1]}`"
    return f"{documents[0].framework}, {container_text}"


def _recipes() -> list[Recipe]:
    return [load_recipe(folder) for folder in recipe_folders(recipes_root())]


def image(recipe: Recipe, engine: str = "") -> list[str]:
    """The tag of the container of the recipe's jobs, or of those with another release of Megatron-Bridge."""
    return [f"`nemo:{container_release(recipe.engines[engine or recipe.engine])}`"]


def measured(recipe: Recipe) -> list[str]:
    """The containers that the recipe's documents name for all of their results."""
    found = sorted(
        {each.container for each in recipe.documents.values() if each.container and each.framework == "NeMo 2"}
    )
    return [", ".join(f"`nemo:{container}`" for container in found)]


def document(recipe: Recipe, name: str) -> list[str]:
    """``release 25.04 (2025-06-09)``."""
    found = recipe.documents[name]
    return [f"release {found.release} ({found.date})" if found.release else found.date]


def _of_recipe(maker: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def made(recipe: str, name: str = "") -> list[str]:
        words = [name] if name else []
        return maker(load_recipe(recipes_root() / recipe), *words)

    return made


FIGURES: dict[str, Callable[..., list[str]]] = {
    "containers": lambda: [KNOWN_CONTAINERS],
    "image": _of_recipe(image),
    "measured": _of_recipe(measured),
    "document": _of_recipe(document),
    "exemplar": lambda: [exemplar.RELEASE],
    "exemplar_day": lambda: [f"{exemplar.DATE}, looked up {exemplar.LOOKED_UP}"],
    "exemplar_suite": lambda gpu: [f"`{exemplar.name_of(gpu)}`"],
}

TABLES: dict[str, Callable[..., Iterator[str]]] = {
    "containers": containers,
    "known_issues": known_issues,
    "published": published,
}

FIRST_PAGE = Path(__file__).parents[1] / "README.md"
