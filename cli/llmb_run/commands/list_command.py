"""``llmb-run list``."""

from __future__ import annotations

from typing import Any

import click

from llmb_common import gpus
from llmb_common.envelope import Result
from llmb_common.recipes.recipe import Recipe
from llmb_run import options
from llmb_run.app import Command
from llmb_run.place import CatalogEntry, Place
from llmb_run.terminal import notice, table
from llmb_run.words import split


@click.command(cls=Command)
@options.workloads
@options.gpu_type
@options.flag("--installed", help="Only workloads of this installation.")
@options.json
def command(workload: tuple[str, ...], gpu_type: str | None, installed: bool) -> Result:
    """Show workloads with their sizes, dtypes and scales, installed and documented."""
    place = Place()
    entries = [place.workload(name) for name in split(workload)] or list(place.catalog)
    here = set(place.cluster.workloads)
    if installed:
        entries = [entry for entry in entries if entry.recipe.workload in here]
    wanted = gpu_type.lower() if gpu_type else place.cluster.gpu_type
    data = [_describe(entry, wanted, entry.recipe.workload in here) for entry in entries]
    if not place.install_or_none:
        notice("no installation here (LLMB_INSTALL is not set): these are the documented workloads")
    shown = [row for item in data for row in _rows(item)]
    text = table(["workload", "", "size", "GPU", "dtype", "scales", "variant"], shown)
    return Result(data, text, hint=_next_step(data))


def _next_step(data: list[dict[str, Any]]) -> str:
    if not data or not data[0]["configurations"]:
        return ""
    first = data[0]["configurations"][0]
    return (
        f"next: llmb-run single -w {data[0]['workload']} -s {first['size']} --dtype {first['dtype']} "
        f"--scale {first['scales'][0]} --dry-run"
    )


def _describe(entry: CatalogEntry, gpu_type: str | None, installed: bool) -> dict[str, Any]:
    recipe = entry.recipe
    return {
        "workload": recipe.workload,
        "title": recipe.title,
        "installed": installed,
        "recipe": str(entry.folder),
        "sizes": [model.size for model in recipe.models],
        "configurations": list(_configurations(recipe, gpu_type)),
    }


def _configurations(recipe: Recipe, gpu_type: str | None) -> list[dict[str, Any]]:
    """One per size, GPU type, dtype and variant, with the scales of all its rows."""
    scales: dict[tuple[str, str, str, str], set[int]] = {}
    order = [model.size for model in recipe.models]
    for row in recipe.rows_for(gpu_type) if gpu_type else recipe.rows:
        for dtype in row.dtypes:
            scales.setdefault((row.size, row.gpu, dtype, row.variant), set()).update(row.scales)
    types = [*gpus.gpu_types(), "any"]
    keys = sorted(scales, key=lambda key: (order.index(key[0]), types.index(key[1]), key[2], key[3]))
    return [
        {
            "size": size,
            "gpu_type": gpu,
            "dtype": dtype,
            "fp8_recipe": recipe.variant(variant).fp8_recipe if dtype == "fp8" else None,
            "variant": variant,
            "scales": sorted(scales[key]),
        }
        for key in keys
        for size, gpu, dtype, variant in [key]
    ]


def _rows(item: dict[str, Any]) -> list[list[str]]:
    rows = []
    two = len({configuration["variant"] for configuration in item["configurations"]}) > 1
    for number, configuration in enumerate(item["configurations"]):
        first = number == 0
        same = not first and item["configurations"][number - 1]["size"] == configuration["size"]
        rows.append(
            [
                item["workload"] if first else "",
                ("installed" if item["installed"] else "documented") if first else "",
                "" if same else configuration["size"],
                configuration["gpu_type"],
                configuration["dtype"],
                ",".join(map(str, configuration["scales"])),
                configuration["variant"] if two else "",
            ]
        )
    return rows
