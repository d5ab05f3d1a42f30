"""``llmb-run list``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from llmb_common.base import gpus
from llmb_common.base.engines import KNOWN_CONTAINERS, container_release, release_order
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.planning.own_releases import matching_release
from llmb_common.planning.site.cluster import ClusterConfig
from llmb_common.planning.workspace import CatalogEntry, Workspace
from llmb_common.recipes.nearest import in_library, remedy_for
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Configuration, Row
from llmb_run.terminal import next_command, split_values, table


def list_workloads(workload: tuple[str, ...], size: tuple[str, ...], gpu_type: str | None, installed: bool) -> Result:
    """Return what ``llmb-run list`` shows: a table of workloads and their configurations. Needs no installation.

    ``workload``: only these, in this order; ``size``: only sizes whose names contain one of these, and no workload
    without one (a value of either may be several with commas between; empty: all); ``installed``: only the
    installation's own workloads; ``gpu_type``: of which GPU the configurations are, None: the cluster's, if it is
    known, else all. Case does not matter in sizes and GPU types. Notices go to stderr. As JSON, a list as
    ``_workload_json`` makes its items.

    Raises:
        RequestError: no workload, size or GPU type has that name, or ``LLMB_REPO`` is set and contains no recipe
        ConfigError: ``cluster_config.yaml`` is wrong or not trusted
        RecipeError: a recipe's catalogue cannot be read
    """
    if gpu_type:
        _require_gpu_type(gpu_type)
    workspace = Workspace()
    entries = [workspace.workload(name) for name in split_values(workload)] or list(workspace.catalog)
    here = set(workspace.cluster.workloads)
    if installed:
        entries = [entry for entry in entries if entry.recipe.workload in here]
    wanted = gpu_type.lower() if gpu_type else workspace.cluster.gpu_type
    words = [word.lower() for word in split_values(size)]
    listings = [Listing.of(entry, workspace) for entry in entries]
    data = [_workload_json(listing, wanted, words, listing.recipe.workload in here) for listing in listings]
    if words:
        data = [item for item in data if item["configurations"]] or _refuse_no_sizes(listings, words, wanted)
    if not workspace.install_or_none:
        notice("no installation here (LLMB_INSTALL is not set): these are the workloads that LLMB knows")
    remarks = []
    if wanted == gpus.CPU and not gpu_type:
        remarks.append("this is what runs without GPUs; llmb-run list --gpu-type h100 lists what a cluster would run")
    if any(listing.recipe.catalogue_file for listing in listings):
        remarks.append(
            f"NVIDIA's containers are known {KNOWN_CONTAINERS}; llmb-install adopt IMAGE makes a newer one known"
        )
    all_of_it = bool(workload or words)
    shown = list(chain.from_iterable(_table_rows(item, all_of_it=all_of_it) for item in data))
    text = table(["workload", "", "size", "GPU", "dtype", "GPUs", "variant", "layout", "s/step"], shown)
    if any(row[5].endswith("*") for row in shown):
        _tell_of_releases(data, workspace.cluster)
    return Result(data, text, remarks=remarks, hint=_next_step(data, wanted, workspace.cluster.gpu_type))


def _require_gpu_type(gpu_type: str) -> None:
    """Raise unless LLMB knows the GPU type, in whichever case it is written.

    Raises:
        RequestError: it does not; the remedy is the nearest type that it knows, else all of them
    """
    known = gpus.gpu_types()
    if gpu_type.lower() in known:
        return
    near = did_you_mean(gpu_type, known, cutoff=0.8)
    nearest, differs = gpus.NEAREST.get(gpu_type.lower(), ("", ""))
    remedy = f"one of {', '.join(known)}"
    if nearest:
        remedy = f"the nearest is {nearest} ({gpu_type} is {differs}): llmb-run list --gpu-type {nearest}"
    raise RequestError(f"--gpu-type {gpu_type} is unknown{near}", remedy=remedy, field="GPU_TYPE")


def _tell_of_releases(data: list[dict[str, Any]], cluster: ClusterConfig) -> None:
    """Print a notice on stderr on how a job gets a configuration that is marked as not in its workload's image.

    ``data``: the listed workloads, as ``_workload_json`` makes them, of which at least one configuration names a
    release. ``cluster`` is the site's configuration: for a release of which it has an image the way is ``--engine``,
    for others also an image to name.
    """
    known = chain.from_iterable(item["configurations"] for item in data)
    releases = sorted({one["release"] for one in known if one["release"]})
    with_image = {name: own for name, own in cluster.releases.items() if own.image is not None}
    here = [release for release in releases if matching_release(with_image, release) is not None]
    elsewhere = [release for release in releases if release not in here]
    ways = [f"--engine {release} takes the image that has it" for release in here]
    if elsewhere:
        ways.append(f"export RUN_CONF_IMAGE=IMAGE, one with Megatron-Bridge {', '.join(elsewhere)}, and give --engine")
    notice(f"* not in the workload's image: {'; '.join(ways)}")


Listed: TypeAlias = tuple[Configuration, Row]
"""What a row is selected by, and the row."""


def _functions_of(recipe: Recipe) -> list[Listed]:
    """Return every configuration in the catalogue of ``recipe``, as (configuration with the release, its row).

    In the catalogue's order. The recipe must have a catalogue (an assertion).

    Raises:
        RecipeError: the catalogue cannot be read, or a line of it is damaged
    """
    catalogue = recipe.catalogue
    assert catalogue is not None
    found = zip(catalogue.configurations(catalogue), catalogue.rows(), strict=True)
    return [(known._replace(release=catalogue.release), row) for known, row in found]


def _without_listed(listed: Sequence[Listed], more: Sequence[Listed]) -> list[Listed]:
    """Return those of ``more`` whose function is not in ``listed`` yet, in order; both are (configuration, row).

    A small copy of a function for CPUs (GPU type ``any``) in ``listed`` does not count. What is compared is the
    ``function`` of the rows; empty: all are there.
    """
    names = {row.function for known, row in listed if known.gpu != "any"}
    return [(known, row) for known, row in more if row.function not in names]


@dataclass(frozen=True)
class Listing:
    """One workload as ``llmb-run list`` shows it: its recipe, and each configuration with its row.

    A function is listed once: as the workload's image has it, else as a release that the site has adopted, else as
    the newest shipped catalogue. ``folder`` is the recipe's. The class method ``of`` makes the listing from the
    catalog's entry and the workspace; RecipeError if a catalogue, ConfigError if ``cluster_config.yaml`` is wrong. The
    property ``sizes`` is the list of model sizes, each once, in the recipe's order, those of adopted releases alone
    last; RecipeError if the catalogue cannot be read.
    """

    folder: Path
    recipe: Recipe
    rows: Sequence[Listed]
    """Pairs of a configuration and the recipe's or catalogue's row that has it."""

    @classmethod
    def of(cls, entry: CatalogEntry, workspace: Workspace) -> Listing:
        """Return the listing of a workload: its own configurations, and those of images that the site has adopted.

        ``entry`` is the workload in the workspace's catalog.

        Raises:
            RecipeError: a catalogue cannot be read
            ConfigError: ``cluster_config.yaml`` is wrong or not trusted
        """
        recipe = entry.recipe
        rows = chain.from_iterable([row] * len(row.dtypes) for row in recipe.rows)
        own = list(zip(recipe.configurations, rows, strict=True))
        adopted = workspace.adopted(recipe)
        if not adopted:
            return cls(entry.folder, recipe, own)
        found = [(known, row) for known, row in own if known.release is None]
        elsewhere = [(known, row) for known, row in own if known.release is not None]
        for with_functions in adopted.values():
            found += _without_listed(found, _functions_of(with_functions))
        return cls(entry.folder, recipe, [*found, *_without_listed(found, elsewhere)])

    @property
    def sizes(self) -> list[str]:
        """The workload's model sizes in the recipe's order; those that only adopted releases have come last.

        Raises:
            RecipeError: the recipe's catalogue cannot be read
        """
        listed = [known.size for known, _ in self.rows]
        return list(dict.fromkeys([*self.recipe.sizes, *listed]))


def _next_step(data: list[dict[str, Any]], wanted: str | None, site: str | None) -> str:
    """Return the hint ``next: llmb-run single ... --dry-run``, which plans the first listed configuration.

    ``data``: the listed workloads, as ``_workload_json`` makes them. Empty where the first of them lists no
    configuration of its own image, or nothing is listed. ``wanted``: the GPU type that was listed, None: all; ``site``:
    the site's own, for which the command needs no option; None: not known.
    """
    known = data[0]["configurations"] if data else []
    first = next((one for one in known if not one["release"]), None)
    if first is None:
        return ""
    gpu_type = wanted or (first["gpu_type"] if first["gpu_type"] != "any" else site or gpus.CPU)
    other = ["--gpu-type", gpu_type] if gpu_type != site else []
    named = ["--variant", first["variant"]] if len(data[0]["variants"]) > 1 else []
    job = ["-w", data[0]["workload"], "-s", first["size"], *other, "--dtype", first["dtype"], *named]
    return next_command("single", *job, "--scale", str(first["scales"][0]), "--dry-run")


def _refuse_no_sizes(listings: Sequence[Listing], words: Sequence[str], gpu_type: str | None) -> NoReturn:
    """Raise because no listed workload has a size for ``gpu_type`` (None: any) whose name contains one of ``words``.

    ``words``, at least one, are in lower case. The remedy says for what other GPUs there are such sizes, else which
    sizes come near. ``listings`` are the listed workloads.

    Raises:
        RequestError: always
    """
    rows = chain.from_iterable(listing.rows for listing in listings)
    known = [known for known, _ in rows]
    quoted = " or ".join(f"'{word}'" for word in words)
    message = f"no model size contains {quoted}{f' for {gpu_type}' if gpu_type else ''}"
    types = {one.gpu for one in known if any(word in one.size for word in words)}
    if others := [name for name in gpus.gpu_types() if name in types]:
        raise RequestError(
            message, remedy=f"there is one for other GPUs: --gpu-type {' or '.join(others)}", field="GPU_TYPE"
        )
    if in_library(words[0]) is not None:
        remedy = remedy_for(words[0], [listing.recipe for listing in listings], gpu_type=gpu_type)
        raise RequestError(message, remedy=remedy, field="MODEL_SIZE")
    sizes = list(dict.fromkeys(one.size for one in known))
    message += did_you_mean(words[0], sizes)
    raise RequestError(message, remedy=f"the sizes are {', '.join(sizes)}", field="MODEL_SIZE")


def _workload_json(listing: Listing, gpu_type: str | None, words: Sequence[str], installed: bool) -> dict[str, Any]:
    """Return a workload as JSON values, with its configurations for ``gpu_type`` and sizes that match ``words``.

    The keys are ``workload``, ``title``, ``installed``, ``recipe`` (its folder), ``sizes``, ``variants`` and
    ``configurations``; sizes and variants are all of the workload's. ``gpu_type`` None: all types. ``words``: parts
    of sizes in lower case, any of which will do; empty: all sizes. ``installed``: whether the installation has it.

    Raises:
        RecipeError: a recipe's catalogue or results cannot be read
    """
    recipe = listing.recipe
    return {
        "workload": recipe.workload,
        "title": recipe.title,
        "installed": installed,
        "recipe": str(listing.folder),
        "sizes": listing.sizes,
        "variants": list(dict.fromkeys(known.variant for known, _ in listing.rows)),
        "configurations": _configurations_json(listing, gpu_type, words),
    }


def _configurations_json(listing: Listing, gpu_type: str | None, words: Sequence[str]) -> list[dict[str, Any]]:
    """Return one JSON entry for each size, GPU type, dtype, variant and release of a workload, with all its scales.

    ``gpu_type`` None: all types; ``words``: parts of sizes in lower case, any of which will do; empty: all sizes.
    Sorted by size (the listing's order), GPU type, dtype, FP8 scaling, variant and release. The keys are ``size``,
    ``gpu_type``, ``dtype``, ``fp8_recipe`` (None: no FP8), ``variant``, ``release`` (None: the image has it),
    ``scales`` (numbers of GPUs) and ``layouts``, dicts, sorted by their scales: each with its ``scales``, its
    ``layout`` as text (empty: data-parallel only) and ``published_step_seconds``, (lowest, highest), None where none is
    published. Empty: nothing matches.

    Raises:
        RecipeError: a recipe's catalogue or results cannot be read
    """
    wanted = gpus.row_types(gpu_type) if gpu_type else None
    together: dict[Configuration, list[dict[str, Any]]] = {}
    seconds = _published_seconds(listing.recipe)
    for known, row in listing.rows:
        is_on_gpu = wanted is None or known.gpu in wanted
        is_of_size = not words or any(word in known.size for word in words)
        if is_on_gpu and is_of_size:
            published_at = [(*known[:5], scale) for scale in known.scales]
            steps = [seconds[scaled] for scaled in published_at if scaled in seconds]
            published = (min(steps), max(steps)) if steps else None
            layout = {"scales": known.scales, "layout": row.parallelism, "published_step_seconds": published}
            together.setdefault(known._replace(scales=()), []).append(layout)
    sizes = {size: at for at, size in enumerate(listing.sizes)}
    types = [*gpus.gpu_types(), "any"]
    keys = sorted(
        together,
        key=lambda key: (
            sizes[key.size],
            types.index(key.gpu),
            key.dtype,
            key.fp8_recipe or "",
            key.variant,
            key.release or "",
        ),
    )
    return [
        {
            "size": key.size,
            "gpu_type": key.gpu,
            "dtype": key.dtype,
            "fp8_recipe": key.fp8_recipe,
            "variant": key.variant,
            "release": key.release,
            "scales": sorted(set(chain.from_iterable(layout["scales"] for layout in together[key]))),
            "layouts": sorted(together[key], key=lambda layout: layout["scales"]),
        }
        for key in keys
    ]


def _published_seconds(recipe: Recipe) -> dict[tuple[object, ...], float]:
    """Return published step times in seconds, by (size, GPU type, dtype, FP8 scaling, variant, number of GPUs).

    Those measured in the recipe's own container, else in the newest; of several results there, the first of the
    recipe. Results that name a release of their own are left out. FP8 scaling is None for other dtypes. Empty: none
    is published.

    Raises:
        RecipeError: a recipe's catalogue or results cannot be read
    """
    own = release_order(container_release(recipe.image) or "0")
    found: dict[tuple[object, ...], float] = {}
    # A release is named where its function has other columns than the one that is listed.
    unnamed = [result for result in recipe.results if result.release is None]
    results = [(release_order(recipe.document(result).container or "0"), result) for result in unnamed]
    for _, result in sorted(results, key=lambda item: (item[0] == own, item[0]), reverse=True):
        fp8 = None
        if result.dtype == "fp8":
            fp8 = result.fp8_recipe or recipe.variant(result.variant).fp8_recipe
        key = (result.size, result.gpu, result.dtype, fp8, result.variant, result.gpus)
        found.setdefault(key, result.step_seconds)
    return found


MANY = 60
"""A workload of more configurations than this is one line, unless it is asked for."""


def _table_rows(item: dict[str, Any], *, all_of_it: bool) -> list[list[str]]:
    """Return the rows of the table of ``llmb-run list`` for one workload, nine cells each, from its JSON values.

    The cells are workload, whether it is installed, size, GPU type, dtype, numbers of GPUs (``8*``: not in the
    workload's image), variant, layout and published seconds. What a row shares with the one above it (the first three)
    is empty there. A single row that counts them where it has more than ``MANY`` (60) configurations, unless
    ``all_of_it`` is wanted; none without configurations. ``item`` is as ``_workload_json`` makes it.
    """
    configurations = item["configurations"]
    state = "installed" if item["installed"] else "available"
    if len(configurations) > MANY and not all_of_it:
        sizes = len({configuration["size"] for configuration in configurations})
        dtypes = sorted({configuration["dtype"] for configuration in configurations})
        more = f"llmb-run list -w {item['workload']} shows {len(configurations)}"
        return [[item["workload"], state, f"{sizes} sizes", "", ",".join(dtypes), more, "", "", ""]]
    rows: list[list[str]] = []
    # FP8 of several scalings, of one size on one type of GPU in one variant, is told apart.
    scaled = [one for one in configurations if one["fp8_recipe"]]
    fp8 = {(one["size"], one["gpu_type"], one["variant"], one["fp8_recipe"]) for one in scaled}
    several = len(fp8) > len({key[:3] for key in fp8})
    for number, configuration in enumerate(configurations):
        first = number == 0
        same = not first and configurations[number - 1]["size"] == configuration["size"]
        scaling = configuration["fp8_recipe"] if several else None
        rows.append(
            [
                item["workload"] if first else "",
                state if first else "",
                "" if same else configuration["size"],
                configuration["gpu_type"],
                f"{configuration['dtype']} {scaling or ''}".strip(),
                ",".join(f"{scale}{'*' if configuration['release'] else ''}" for scale in configuration["scales"]),
                configuration["variant"] if len(item["variants"]) > 1 else "",
                " / ".join(dict.fromkeys(layout["layout"] or "DP" for layout in configuration["layouts"])),
                _seconds_range(configuration["layouts"]),
            ]
        )
    return rows


def _seconds_range(layouts: Sequence[dict[str, Any]]) -> str:
    """Return the range of the step times published for ``layouts``, as text without a unit: ``9.86-10.2``, in seconds.

    They stand as (lowest, highest) under ``published_step_seconds`` of each layout, which must have that key; None:
    none published. One number if the smallest and the largest read the same with three digits; empty where no
    layout has any.
    """
    known = list(chain.from_iterable(layout["published_step_seconds"] or () for layout in layouts))
    if not known:
        return ""
    ends = [f"{seconds:.3g}" for seconds in (min(known), max(known))]
    return "-".join(dict.fromkeys(ends))
