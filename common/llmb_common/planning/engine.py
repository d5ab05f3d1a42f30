"""Which release of Megatron-Bridge trains a job: the recipe's own, or another one that it runs on as well."""

from __future__ import annotations

from dataclasses import replace

from llmb_common.engines import CONTAINERS, ENGINES, WITHOUT_LAYER_GRAPHS
from llmb_common.errors import RequestError
from llmb_common.planning.case import Case, Given
from llmb_common.planning.choose import choose
from llmb_common.planning.divisibility import captures_iterations
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.releases import container_release, same_release
from llmb_common.recipes.rows import Result


def choose_functions(given: Given) -> Given:
    """What is given, with the functions of the release that the job's image has, or that LLMB_ENGINE names: ``0.6.2``.

    A site's own image may have any; it is planned with the newest.

    Raises:
        RequestError: the recipe has no functions of that release, or the image has another one.
    """
    recipe, request = given.recipe, given.request
    if not recipe.releases:
        return given
    asked = request.engine if request.engine and request.engine.count(".") == 2 else None
    image = (request.image or recipe.image) if given.containers else None
    held = CONTAINERS.get(container_release(image) or "")
    checked = request.tuning.get("LLMB_ENGINE_CHECK", "").strip().lower() != "off"
    if checked and held is not None and asked not in (None, held):
        raise RequestError(
            f"{request.say('LLMB_ENGINE', asked)}: {image} has Megatron-Bridge {held}",
            remedy=f"set {request.say('RUN_CONF_IMAGE')} to an image that has {asked}, or leave "
            f"{request.say('LLMB_ENGINE')} out",
            code="no-such-engine",
            field="LLMB_ENGINE",
        )
    release = asked or held
    if release is not None and release not in recipe.releases and (checked or asked):
        raise RequestError(
            f"{recipe.name} has no functions of Megatron-Bridge {release}" + ("" if asked else f", which {image} has"),
            remedy=f"there are those of {' and '.join(recipe.releases)}; {recipe.image} has {_held(recipe)}",
            code="no-such-engine",
            field="LLMB_ENGINE" if asked else "RUN_CONF_IMAGE",
        )
    return replace(given, recipe=recipe.of_release(release))


def choose_in_release(given: Given) -> Case:
    """The row that is meant, of the functions that the job's image has.

    Raises:
        RequestError: no row is; where another release has it, the message says so.
    """
    chosen = choose_functions(given)
    try:
        return choose(chosen)
    except RequestError:
        for release, recipe in given.recipe.releases.items():
            if recipe is not chosen.recipe and (case := _chosen(replace(given, recipe=recipe))) is not None:
                raise _elsewhere(chosen, case, release) from None
        raise


def _chosen(given: Given) -> Case | None:
    try:
        return choose(given)
    except RequestError:
        return None


def _elsewhere(chosen: Given, case: Case, release: str) -> RequestError:
    """That the functions of the job's image lack what is asked for, and that those of ``release`` have it."""
    say = chosen.request.say
    assert chosen.recipe.catalogue is not None  # or there were no releases
    own = chosen.recipe.catalogue
    why = f" ({own.missing[case.row.function]})" if case.row.function in own.missing else ""
    return RequestError(
        f"{case.row.function} is not in Megatron-Bridge {own.release}{why}, which "
        f"{chosen.request.image or case.recipe.image} has",
        remedy=f"Megatron-Bridge {release} has it: set {say('LLMB_ENGINE', release)}, and {say('RUN_CONF_IMAGE')} to "
        "an image with that release",
        code="not-in-image",
        field="RUN_CONF_IMAGE",
    )


def _held(recipe: Recipe) -> str:
    return CONTAINERS.get(container_release(recipe.image) or "", "one of them")


def choose_engine(case: Case) -> str:
    """The release that is asked for, or the recipe's.

    Raises:
        RequestError: the recipe does not run on it, or the image that is asked for has another one.
    """
    recipe, request = case.recipe, case.request
    engine = request.engine or recipe.engine
    if recipe.catalogue is not None and engine == recipe.catalogue.release:
        engine = recipe.engine
    if engine not in recipe.engines:
        say = request.say("LLMB_ENGINE")
        raise RequestError(
            f"{request.say('LLMB_ENGINE', engine)}: {_why_not(case, engine)}",
            remedy=f"leave {say} out: it runs on {recipe.engine}, in {recipe.image}"
            if len(recipe.engines) == 1
            else f"{say} is one of {', '.join(recipe.engines)}",
            code="no-such-engine",
            field="LLMB_ENGINE",
        )
    _check_image(case, engine)
    return engine


def engine_notices(recipe: Recipe, engine: str, published: Result | None) -> list[str]:
    """That a job does not run on the recipe's own engine, and what its result will be compared with."""
    if engine == recipe.engine:
        return []
    notice = f"LLMB_ENGINE={engine}: it trains with Megatron-Bridge {engine}, in {recipe.engines[engine]}"
    if published is None:
        return [notice]
    document = recipe.document(published)
    if same_release(container_release(recipe.engines[engine]), document.container):
        return [notice]
    measured = f"{document.framework} in nemo:{document.container}"
    return [f"{notice}; the published result was measured with {measured}, and is an indication only"]


def _why_not(case: Case, engine: str) -> str:
    recipe = case.recipe
    if engine not in ENGINES:
        return "LLMB has no settings for this release of Megatron-Bridge"
    layers = case.row.cuda_graph and case.function is None and not captures_iterations(recipe.family)
    if layers and engine in WITHOUT_LAYER_GRAPHS:
        return (
            f"{case.what} captures a CUDA graph of each layer, and Megatron-Bridge {engine} refuses local graphs that "
            "are not of a whole iteration"
        )
    what = "its functions are" if recipe.catalogue_file else "its settings are"
    return f"{recipe.name} does not run on Megatron-Bridge {engine}: {what} of {recipe.engine}"


def _check_image(case: Case, engine: str) -> None:
    """Refuse an image that is known to have another of the recipe's engines."""
    request = case.request
    if request.tuning.get("LLMB_ENGINE_CHECK", "").strip().lower() == "off":
        return
    asked = container_release(request.image)
    for other, image in case.recipe.engines.items():
        if other != engine and same_release(asked, container_release(image)):
            raise RequestError(
                f"RUN_CONF_IMAGE={request.image} has Megatron-Bridge {other}, and the job is planned for {engine}",
                remedy=f"set {request.say('LLMB_ENGINE', other)}, or unset RUN_CONF_IMAGE",
                field="RUN_CONF_IMAGE",
            )
