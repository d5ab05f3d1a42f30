"""Which release of Megatron-Bridge trains a job: the recipe's own, another one that it runs on as well, or one of the
site's, of which LLMB need not know anything."""

from __future__ import annotations

import re
from shlex import quote

import msgspec

from llmb_common.base.engines import (
    ENGINES,
    KNOWN_CONTAINERS,
    RELEASE,
    WITHOUT_LAYER_GRAPHS,
    bridge_release,
    container_release,
    is_later_container,
    is_newer,
    is_of,
    minor,
    order,
    patched_release,
    same_release,
)
from llmb_common.base.errors import ConfigError, RecipeError, RequestError
from llmb_common.planning.choose import Case, PlanningInput, choose
from llmb_common.planning.divisibility import captures_iterations
from llmb_common.planning.own_releases import matching_release, own_catalogues, own_releases, with_release
from llmb_common.planning.site.cluster import FILE_NAME, SiteRelease
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import PublishedResult


def choose_functions(given: PlanningInput) -> PlanningInput:
    """Return ``given`` with the recipe's functions of that release of Megatron-Bridge in which the job will run.

    Only its ``recipe`` is another one. The release is the one that LLMB_ENGINE names with three numbers (``0.6.2``;
    with two the image decides which of them), else the one that the job's image has. A site's own image may have
    any: the job is planned with the newest release, unless the site has a catalogue of the image; a later patch of
    a known image of NVIDIA's with the newest of its minor release. ``given`` itself where the recipe has one set of
    functions only, and none of the site's own releases is meant.

    Raises:
        RequestError: code ``no-such-engine``: LLMB_ENGINE is no release, the recipe has no functions of it, or the
            image has another one or is newer than all known ones
        ConfigError: the site's catalogue is of another release than its configuration says
        RecipeError: the recipe's or the site's catalogue cannot be read
    """
    recipe, request = given.recipe, given.request
    if request.engine and not re.fullmatch(RELEASE, request.engine):
        raise _engine_error(
            f"{request.say('LLMB_ENGINE', request.engine)} is not a release of Megatron-Bridge",
            f"write {', '.join(recipe.engines)}, or a newer one, as 0.7 or 0.7.0",
        )
    own = _own_release(given)
    if own is not None:
        name, site = own
        return msgspec.structs.replace(given, recipe=_with_own_release(given, name, site))
    _refuse_later_image(given)
    if not recipe.releases:
        return given
    # Two numbers mean any release of them: then the image decides.
    requested = request.engine if request.engine and request.engine.count(".") == 2 else None
    image = (request.image or recipe.image) if given.containers else None
    in_image = bridge_release(image)
    checked = request.checks_engine
    if checked and in_image is not None and requested not in (None, in_image):
        raise _engine_error(
            f"{request.say('LLMB_ENGINE', requested)}: {image} has Megatron-Bridge {in_image}",
            f"set {request.say('RUN_CONF_IMAGE')} to an image that has {requested}, or leave "
            f"{request.say('LLMB_ENGINE')} out",
        )
    release = requested or _nearest_release(recipe, in_image, patched_release(image))
    if release is not None and release not in recipe.releases and (checked or requested):
        raise _engine_error(
            f"{recipe.name} has no functions of Megatron-Bridge {release}"
            + ("" if requested else f", which {image} has"),
            f"there are those of {' and '.join(recipe.releases)}; "
            f"{recipe.image} has {bridge_release(recipe.image) or 'one of them'}"
            + (f"; {_adopt_command(image)} makes those of {release} known" if is_newer(release) else ""),
            field="LLMB_ENGINE" if requested else "RUN_CONF_IMAGE",
        )
    return msgspec.structs.replace(given, recipe=recipe.of_release(release))


def _with_own_release(given: PlanningInput, name: str, site: SiteRelease) -> Recipe:
    """Return the recipe of ``given`` with the functions of the site's own release ``name``, set up as ``site`` says.

    Raises:
        RequestError: code ``no-such-engine``: LLMB_ENGINE names another release than the site's catalogue is of
        ConfigError: the site's catalogue is of another release than its configuration says
        RecipeError: the site's catalogue cannot be read
    """
    request = given.request
    recipe = with_release(given.recipe, name, site)
    written = recipe.catalogue.release if recipe.catalogue and site.catalogue else name
    if not is_of(written, name):
        raise ConfigError(
            f'{FILE_NAME}: releases."{name}": {site.catalogue} is of Megatron-Bridge {written}',
            remedy="name it under its own release, or write one in the image: python -m llmb_train.catalogue FILE",
        )
    if request.engine is not None and not is_of(written, request.engine):
        raise _engine_error(
            f"{request.say('LLMB_ENGINE', request.engine)}: {site.catalogue}, the catalogue of "
            f'releases."{name}" in {FILE_NAME}, is of Megatron-Bridge {written}',
            f"set {request.say('LLMB_ENGINE', written)}, or enter the other release under its own number",
        )
    return recipe


def _release_in_image(image: str | None) -> str | None:
    """Return the release of Megatron-Bridge in one of NVIDIA's images, ``0.6.2``; None: it is not known.

    Told from the image's name. For a later patch of a known image it is the minor release only, ``0.6``. None, too,
    for an ``image`` of None.
    """
    return bridge_release(image) or patched_release(image)


def _nearest_release(recipe: Recipe, in_image: str | None, patched: str | None) -> str | None:
    """Return the release with functions in ``recipe`` that is nearest to an image's own, ``in_image`` (``0.6.2``).

    That is itself, or the last before it of the same minor release; ``in_image`` itself, though without functions,
    where there is none. For an image of unknown content (None) it is the newest of the minor release ``patched``,
    such as ``0.6``; None where that is None, too, or the recipe has none of it.

    Raises:
        RecipeError: the recipe's catalogue cannot be read
    """
    wanted = minor(in_image or patched or "")
    alike = sorted((name for name in recipe.releases if minor(name) == wanted), key=order)
    if in_image is None:
        return alike[-1] if alike else None
    before = [name for name in alike if order(name) <= order(in_image)]
    return before[-1] if before else in_image


def _refuse_later_image(given: PlanningInput) -> None:
    """Raise if the job's image is one of NVIDIA's that is newer than all known ones, and nobody names its release.

    It passes where LLMB_ENGINE_CHECK is ``off``, and where jobs run without containers.

    Raises:
        RequestError: code ``no-such-engine``: it is; the remedy names the command that makes it known
    """
    request = given.request
    if not given.containers or request.engine is not None or not request.checks_engine:
        return
    if bridge_release(request.image) is not None or not is_later_container(request.image):
        return
    raise _engine_error(
        f"{request.image} is newer than the containers that LLMB knows, {KNOWN_CONTAINERS}: which Megatron-Bridge it "
        "has is not known",
        f"{_adopt_command(request.image)} makes it known; or set {request.say('LLMB_ENGINE')} to its release, or "
        f"{request.say('LLMB_ENGINE_CHECK', 'off')}",
        field="RUN_CONF_IMAGE",
    )


def _engine_error(message: str, remedy: str, field: str = "LLMB_ENGINE") -> RequestError:
    """Return a RequestError with the code ``no-such-engine``, for the caller to raise.

    ``message`` and ``remedy`` are its own; ``field`` is the variable at fault.
    """
    return RequestError(message, remedy=remedy, code="no-such-engine", field=field)


def _adopt_command(image: str | None) -> str:
    """Return the command line that makes an image's functions known, ``llmb-install adopt IMAGE``.

    The image's name is quoted for the shell; for None it is the word ``IMAGE``.
    """
    return f"llmb-install adopt {quote(image or 'IMAGE')}"


def _own_release(given: PlanningInput) -> tuple[str, SiteRelease] | None:
    """Return (number, settings) of the release in the site's configuration that the job runs in.

    It is the one that LLMB_ENGINE names, else the first whose image is requested. A release that LLMB_ENGINE names
    and that is newer than all that LLMB, or the recipe, knows counts without an entry, with empty settings. None:
    the job runs in a release of the recipe's.

    Raises:
        RecipeError: the recipe's catalogue cannot be read
    """
    recipe = given.recipe
    requested = given.request.engine
    image = given.request.image
    own = own_releases(recipe, given.cluster)
    if requested is None:
        return next(
            ((name, one) for name, one in own.items() if image is not None and _is_image(given, one, image)), None
        )
    name = matching_release(own, requested)
    if name is not None and name == minor(requested) and own[name].catalogue is None:
        return requested, own[name]  # two numbers are any release of them, and this is the one that is meant
    if name is not None:
        return name, own[name]
    is_exact = requested.count(".") == 2
    later = is_exact and recipe.releases and order(requested) > max(map(order, recipe.releases))
    if is_newer(requested) or later:
        return requested, SiteRelease()
    return None


def _is_image(given: PlanningInput, own: SiteRelease, image: str) -> bool:
    """Return whether ``image`` is that of the site's release ``own``, by its name or by the file it was imported to.

    Names and paths are compared as they are written. Without an installation (``given.request.install`` is None)
    only the name counts. False where the release has no image.
    """
    install = given.request.install
    if own.image is None or own.image == image:
        return own.image is not None
    return install is not None and given.cluster.image_file(install, own.image) == image


def choose_in_release(given: PlanningInput) -> Case:
    """Return the request with the configuration row that it means, among the functions that the job's image has.

    That is what ``choose`` returns for what ``choose_functions`` makes of ``given``, which is not changed.

    Raises:
        RequestError: there is no such row; if another release of recipe or site has it, the message says so (code
            ``not-in-image``). Or the release itself is unknown (code ``no-such-engine``).
        ConfigError: the site's catalogue is of another release than its configuration says
        RecipeError: a catalogue cannot be read, or is damaged
    """
    chosen = choose_functions(given)
    try:
        return choose(chosen)
    except RequestError:
        others = given.recipe.releases | own_catalogues(given.recipe, given.cluster)
        for release, recipe in others.items():
            if recipe is chosen.recipe:
                continue
            try:
                case = choose(msgspec.structs.replace(given, recipe=recipe))
            # A catalogue that cannot be read is no answer to another release's question.
            except (RequestError, RecipeError):
                continue
            raise _not_in_image_error(chosen, case, release) from None
        raise


def _not_in_image_error(chosen: PlanningInput, case: Case, release: str) -> RequestError:
    """Return a RequestError with the code ``not-in-image``, for the caller to raise: the image lacks a function.

    It is the function of ``case``, which the other release, ``release``, has. ``chosen`` is the input with the
    image's functions, and must have a catalogue.
    """
    say = chosen.request.say
    assert chosen.recipe.catalogue is not None  # or there were no releases
    own = chosen.recipe.catalogue
    why = f" ({own.missing[case.row.function]})" if case.row.function in own.missing else ""
    by_site = chosen.cluster.releases.get(release)
    image = chosen.request.image or chosen.recipe.image
    other = "" if by_site and by_site.image else f", and {say('RUN_CONF_IMAGE')} to an image with that release"
    return RequestError(
        f"{case.row.function} is not in Megatron-Bridge {own.release}{why}" + (f", which {image} has" if image else ""),
        remedy=f"Megatron-Bridge {release} has it: use {say('LLMB_ENGINE', release)}{other}",
        code="not-in-image",
        field="RUN_CONF_IMAGE",
    )


def choose_engine(case: Case) -> str:
    """Return the minor release of Megatron-Bridge, such as ``0.6``, that a job runs on: LLMB_ENGINE or the recipe's.

    LLMB_ENGINE may have three numbers where the recipe calls functions, or the release is one of the site's own.
    Whether the requested image has it is not asked without containers, or where LLMB_ENGINE_CHECK is ``off``.

    Raises:
        RequestError: code ``no-such-engine``: the recipe does not run on it, or no image is requested and LLMB
            knows none with it; code ``request``: the requested image has another release
    """
    recipe, request = case.recipe, case.request
    engine = request.engine or recipe.engine
    if minor(engine) == recipe.engine and (recipe.catalogue is not None or _own_release(case) is not None):
        engine = recipe.engine
    if engine not in recipe.engines:
        say = request.say("LLMB_ENGINE")
        only = f"leave {say} out: it runs on {recipe.engine}, in {recipe.image}"
        raise _engine_error(
            f"{request.say('LLMB_ENGINE', engine)}: {_unsupported_reason(case, engine)}",
            only if len(recipe.engines) == 1 else f"{say} is one of {', '.join(recipe.engines)}",
        )
    if case.containers and not (request.image or recipe.engines[engine]):
        requested = request.engine or engine
        raise _engine_error(
            f"{request.say('LLMB_ENGINE', requested)}: LLMB knows no image with this release",
            f'set {request.say("RUN_CONF_IMAGE")} to one, or releases."{requested}".image in {FILE_NAME}',
            field="RUN_CONF_IMAGE",
        )
    wanted = request.engine or engine
    in_image = _release_in_image(request.image) if case.containers else None
    if request.checks_engine and in_image is not None and not (is_of(in_image, wanted) or in_image == minor(wanted)):
        has = in_image if minor(in_image) == engine else minor(in_image)
        instead = f"leave {request.say('RUN_CONF_IMAGE')} out"
        if has in recipe.engines or is_newer(has) or minor(in_image) == engine:
            instead = f"set {request.say('LLMB_ENGINE', has)}, or {instead}"
        raise RequestError(
            f"{request.say('RUN_CONF_IMAGE', request.image)} has Megatron-Bridge {has}, "
            f"and the job is planned for {wanted}",
            remedy=instead,
            field="RUN_CONF_IMAGE",
        )
    return engine


def engine_notices(recipe: Recipe, case: Case, engine: str, published: PublishedResult | None) -> list[str]:
    """Return notices that a job runs on another engine or other functions than the recipe's own; empty: it does not.

    They are sentences without a period. ``recipe`` is as it was read, while that of ``case`` may have other
    functions. ``engine`` is the minor release that the job runs on, as from ``choose_engine``. Where it is not the
    recipe's, the last notice also says if ``published``, the result of ``recipe`` to compare with (None: there is
    none), was measured with another container. Nothing is added to ``case``.
    """
    catalogue = case.recipe.catalogue_file
    request = case.request
    notices = []
    if is_newer(engine):
        notices.append(
            _newer_release_notice(case, engine, own=catalogue != recipe.catalogue_file or engine == recipe.engine)
        )
    elif catalogue not in (None, *(one.catalogue_file for one in (recipe, *recipe.releases.values()))):
        notices.append(f"its functions are those of {catalogue}")
    elif _is_assumed(recipe, case):
        notices.append(_assumed_notice(case, engine))
    image = request.image or case.recipe.engines[engine]
    if engine == recipe.engine:
        return notices
    if not is_newer(engine):
        notices.append(f"{request.say('LLMB_ENGINE', engine)}: it trains with Megatron-Bridge {engine}, in {image}")
    if published is None or same_release(container_release(image), recipe.document(published).container):
        return notices
    document = recipe.document(published)
    measured = f"{document.framework} in nemo:{document.container}"
    return [
        *notices[:-1],
        f"{notices[-1]}; the published result was measured with {measured}, so it is only an indication",
    ]


def _is_assumed(recipe: Recipe, case: Case) -> bool:
    """Return whether it is only assumed that the requested image has the release or functions that are planned with.

    False where no image is requested, jobs run without containers, or the job runs in a release of the site's own.
    ``recipe`` is as it was read, that of ``case`` may have other functions.
    """
    request = case.request
    if not case.containers or request.image is None or _own_release(case) is not None:
        return False
    known_release = bridge_release(request.image)
    if case.function is None:
        return request.engine is None and _release_in_image(request.image) is None
    names_exact_release = (request.engine or "").count(".") == 2
    return (
        bool(recipe.releases)
        and not names_exact_release
        and (known_release is None or known_release not in recipe.releases)
    )


def _assumed_notice(case: Case, engine: str) -> str:
    """Return the notice that the requested image has an unknown release or functions, and which the plan assumes.

    ``IMAGE does not say which Megatron-Bridge it has: planned for 0.6; ...``, without a period. ``engine`` is the
    minor release planned for. That an image is requested, and its content assumed, is not checked.
    """
    request = case.request
    known = bridge_release(request.image)
    catalogue = case.recipe.catalogue
    planned = f"with the functions of {catalogue.release}" if catalogue else f"for {engine}"
    if known is not None:
        return (
            f"{request.image} has Megatron-Bridge {known}, whose functions LLMB does not know: planned {planned}; "
            f"the job stops at its start if the function differs; {_adopt_command(request.image)} makes them known"
        )
    return (
        f"{request.image} does not say which Megatron-Bridge it has: planned {planned}; the job stops at its start if "
        f"the image has another release; {request.say('LLMB_ENGINE')} sets it"
    )


def _newer_release_notice(case: Case, engine: str, *, own: bool) -> str:
    """Return the notice that LLMB does not know the release ``engine``, and with which functions the job is planned.

    ``Megatron-Bridge 0.7 is newer than the releases LLMB is tested with (0.3, 0.6): ...``, without a period.
    ``own``: these functions are of that release, from a catalogue of the site. That ``engine`` is newer is not
    checked.
    """
    notice = f"Megatron-Bridge {engine} is newer than the releases LLMB is tested with ({', '.join(ENGINES)})"
    catalogue = case.recipe.catalogue
    if catalogue is None:
        return f"{notice}: the job uses the settings and variables of {ENGINES[-1]}, under their names in the image"
    if own:
        return f"{notice}: planned with {catalogue.path}, of {catalogue.release}"
    where = f'releases."{engine}".catalogue in {FILE_NAME} names one of the image (docs/catalogue.md)'
    return (
        f"{notice}: planned with the functions of {catalogue.release}; the job stops at its start if its image has "
        f"another one; {where}"
    )


def _unsupported_reason(case: Case, engine: str) -> str:
    """Return why the recipe does not run on the minor release ``engine``, as a clause for an error's message.

    Such as ``LLMB has no settings for this release of Megatron-Bridge``. That it does not run is not checked.
    """
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
