"""The tables of a recipe's README, generated from its ``recipe.yaml``.

sizes                       parameters and architecture of every model size
variants                    how each variant's runs are named, measured and profiled
configurations VARIANT GPU  the configuration rows
results VARIANT GPU         the published results; corrected values are marked and explained
checkpoints                 sizes and tested scales
defaults                    the variables of launch.sh whose defaults are this recipe's own
engines                     the releases of Megatron-Bridge that it runs on, and the results of each
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from llmb_common.base.engines import container_release, release_order, same_release
from llmb_common.base.errors import RecipeError
from llmb_common.base.gpus import peak_tflops
from llmb_common.planning.request.variables import VARIABLES
from llmb_common.recipes.model import CHECKPOINT_BYTES_PER_PARAMETER, achieved_tflops, count_parameters, model_flops
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import PublishedResult, Row, Variant, precision
from tools.markdown import Footnotes, table


def sizes(recipe: Recipe) -> list[str]:
    has_experts = any(model.listed.moe for model in recipe.models)
    header = ["size", "parameters", "layers", "hidden", "FFN", "heads / groups / head size", "vocabulary", "sequence"]
    rows = []
    for model in recipe.models:
        a = model.listed
        counts = sorted({row.layers for row in recipe.rows if row.size == model.size and row.layers})
        cells = [
            f"`{model.size}`",
            f"{model.parameters:,}" + (f" ({a.layers} layers)" if counts else ""),
            ", ".join(map(str, counts)) or str(a.layers),
            str(a.hidden),
            str(a.ffn),
            f"{a.heads} / {a.query_groups} / {a.head_dim}",
            str(a.vocabulary),
            str(model.sequence_length),
        ]
        if has_experts:
            cells.append(_experts(recipe, model.size))
        rows.append(cells)
    return table([*header, "experts"] if has_experts else header, rows)


def _experts(recipe: Recipe, size: str) -> str:
    moe = recipe.model(size).listed.moe
    if moe is None:
        return "none"
    shared = f", shared {moe.shared_ffn}" if moe.shared_ffn else ""
    where = "every layer" if moe.every == 1 else f"every {moe.every} layers"
    return f"{moe.experts} of {moe.ffn}, top {moe.top_k}{shared}, {where}"


def variants(recipe: Recipe) -> list[str]:
    header = [
        "variant",
        "experiment name",
        "FP8 scaling",
        "published with clock boost",
        "result from",
        "steps",
        "profiled steps, ranks",
        "report file",
    ]
    rows = []
    for variant in recipe.variants:
        m, p = variant.measurement, variant.profiling
        window = f"iterations {m.first} to {m.last}"
        pattern = re.sub(r"\{([a-z_]+)\}", r"<\1>", variant.experiment_name)
        rows.append(
            [
                f"`{variant.name}`",
                f"`{pattern}`" + (f", profiled `{p.suffix}`" if p.suffix else ""),
                f"`{variant.fp8_recipe}`",
                "yes" if variant.vboost else "no",
                window if m.statistic == "mean" else f"last step; the mean of {window} is recorded too",
                str(variant.max_steps) + (f", profiled {p.steps}" if p.steps else ""),
                f"{p.start} to {p.stop}, {'all ranks' if p.ranks == 'all' else f'ranks {p.ranks}'}",
                f"`{p.file}.nsys-rep`",
            ]
        )
    return table(header, rows)


def _rows(recipe: Recipe, variant: str, gpu: str) -> list[Row]:
    rows = [row for row in recipe.rows if (row.variant, row.gpu) == (recipe.variant(variant).name, gpu)]
    if not rows:
        raise RecipeError(f"{recipe.name} has no {variant} row for {gpu}", remedy="correct the name of the table")
    return rows


_ROW_COLUMNS: tuple[tuple[str, Callable[[Recipe, Row], str], bool], ...] = (
    ("size", lambda recipe, row: f"`{row.size}`", True),
    ("GPUs", lambda recipe, row: "-".join(map(str, sorted({row.gpus_min, row.gpus_max}))), True),
    ("dtype", lambda recipe, row: "/".join(dtype.upper() for dtype in row.dtypes), True),
    ("SeqLen", lambda recipe, row: str(recipe.model(row.size).sequence_length), True),
    ("layers", lambda recipe, row: str(row.layers or recipe.model(row.size).listed.layers), True),
    ("FSDP", lambda recipe, row: "yes" if row.fsdp else "", False),
    ("TP", lambda recipe, row: str(row.tp), True),
    ("PP", lambda recipe, row: str(row.pp), True),
    ("CP", lambda recipe, row: str(row.cp), True),
    ("EP", lambda recipe, row: str(row.ep or ""), False),
    ("ETP", lambda recipe, row: str(row.etp or ""), False),
    ("DP", lambda recipe, row: _data_parallel(row), True),
    ("VP", lambda recipe, row: str(row.vp or ""), False),
    ("MBS", lambda recipe, row: str(row.mbs), True),
    ("GBS", lambda recipe, row: _global_batch(row), True),
    ("GA", lambda recipe, row: str(_accumulation(row)), True),
    ("CG", lambda recipe, row: "yes" if row.cuda_graph else "", False),
    ("RL", lambda recipe, row: str(row.recompute_layers or ""), False),
    ("OL", lambda recipe, row: str(row.offload_layers or ""), False),
    ("memory", lambda recipe, row: f"{row.min_memory_gb} GB" if row.min_memory_gb else "", False),
)
"""Title, cell, and whether to keep the column when all its cells are empty."""


def configurations(recipe: Recipe, variant: str, gpu: str) -> list[str]:
    rows = _rows(recipe, variant, gpu)
    notes = Footnotes()
    columns = [(title, cell) for title, cell, always in _ROW_COLUMNS if always or any(cell(recipe, r) for r in rows)]
    body = [[cell(recipe, row) or "-" for _, cell in columns] for row in rows]
    for row, cells in zip(rows, body, strict=True):
        if row.note:
            cells[0] += " " + notes.mark(row.note)
    return [*table([title for title, _ in columns], body), *notes.lines()]


def _data_parallel(row: Row) -> str:
    model_parallel = row.tp * row.pp * row.cp
    if row.gpus_min == row.gpus_max:
        return str(row.gpus_min // model_parallel)
    return "GPUs" if model_parallel == 1 else f"GPUs/{model_parallel}"


def _global_batch(row: Row) -> str:
    return str(row.global_batch_size(row.gpus_min)) if row.gpus_min == row.gpus_max else row.gbs


def _accumulation(row: Row) -> int:
    """Gradient accumulation: micro-batches per step on each rank, the same at every scale of the row."""
    return row.global_batch_size(row.gpus_min) * row.tp * row.pp * row.cp // (row.gpus_min * row.mbs)


def results(recipe: Recipe, variant: str, gpu: str) -> list[str]:
    chosen = [r for r in recipe.results if (r.variant, r.gpu) == (recipe.variant(variant).name, gpu)]
    if not chosen:
        raise RecipeError(f"{recipe.name} has no {variant} result on {gpu}", remedy="correct the name of the table")
    notes = Footnotes()
    with_tflops = any(r.tflops_per_gpu for r in chosen)
    containers = {recipe.document(r).container for r in chosen}
    with_container = ["container"] if len(containers) > 1 else []
    header = [
        "size",
        "dtype",
        *with_container,
        "GPUs",
        "s/step",
        "tokens/s",
        "tokens/s/GPU",
        "MFU %",
        "causal MFU %",
        "days for 1T",
    ]
    body = []
    for result in chosen:
        rate = result.value("tokens_per_second")
        cells = [
            f"`{result.size}`",
            precision(result.dtype.upper(), result.fp8_recipe),
            *([str(recipe.document(result).container)] if with_container else []),
            str(result.gpus),
            f"{result.step_seconds:g}",
            _figure(result, "tokens_per_second", ",.0f"),
            f"{rate / result.gpus:,.0f}" if rate else "-",
            _figure(result, "mfu_percent", "g"),
            _causal_mfu(recipe, result),
            _figure(result, "days_1t", "g"),
        ]
        if with_tflops:
            cells.append(_figure(result, "tflops_per_gpu", "g"))
        cells.append(notes.mark(result.why) if result.why else "")
        body.append(cells)
    if with_tflops:
        header.append("TFLOPS/GPU")
    return [*table([*header, "note"], body), *notes.lines()]


def _causal_mfu(recipe: Recipe, result: PublishedResult) -> str:
    """MFU counting the causal half of attention, the same convention for all recipes, from the printed step time."""
    row = find_row(recipe, result)
    model = recipe.model(result.size)
    peak = peak_tflops(result.gpu, result.dtype)
    if row is None or peak is None:
        return "-"
    architecture = msgspec.structs.replace(model.listed, layers=row.layers or model.listed.layers)
    per_sequence = model_flops(architecture, model.sequence_length, "causal").total
    gbs = row.global_batch_size(result.gpus)
    achieved = achieved_tflops(per_sequence, gbs, result.step_seconds, result.gpus)
    return f"{100 * achieved / peak:.1f}"


def _figure(result: PublishedResult, figure: str, form: str) -> str:
    """The figure to compare with; a corrected one is bold, followed by the one that NVIDIA's README prints."""
    printed: float | None = getattr(result, figure)
    if printed is None:
        return "-"
    if figure not in result.corrected:
        return format(printed, form)
    return f"**{format(result.corrected[figure], form)}** (printed {format(printed, form)})"


def checkpoints(recipe: Recipe) -> list[str]:
    header = ["size", "checkpoint", "at 14 B per parameter", "saved on", "loaded from"]
    rows = []
    notes = Footnotes()
    for model in recipe.models:
        if model.checkpoint:
            low, high = model.checkpoint.scales
            size = count_parameters(model.listed) * CHECKPOINT_BYTES_PER_PARAMETER / 2**30
            rows.append(
                [
                    f"`{model.size}`" + (f" {notes.mark(warning)}" if (warning := model.checkpoint.warning) else ""),
                    model.checkpoint.printed_size,
                    f"{size:,.0f} GiB",
                    f"{low} to {high} GPUs",
                    f"{model.checkpoint.load_minimum} GPUs or more",
                ]
            )
    return [*table(header, rows), *notes.lines()]


def defaults(recipe: Recipe) -> list[str]:
    """The variables whose default is a recipe's own; ``docs/reference.md`` has all of them."""
    own = _own_defaults(recipe)
    rows = [
        [f"`{name}`", variable.in_table, variable.default.format(**own)]
        for name, variable in VARIABLES.items()
        if "{" in variable.default and _applies(recipe, name)
    ]
    return table(["variable", "meaning", "default"], rows)


def _applies(recipe: Recipe, name: str) -> bool:
    """Whether the recipe has more than one answer to it."""
    if name == "CONFIG_VARIANT":
        return len(recipe.variants) > 1
    return name != "LLMB_ENGINE" or len(recipe.engines) > 1 or bool(recipe.releases)


def engines(recipe: Recipe) -> list[str]:
    """The releases of Megatron-Bridge that a recipe runs on, and which published results belong to each."""
    documents = [recipe.document(result) for result in recipe.results]
    measured = {(document.container or "", document.framework) for document in documents}
    rows = []
    for engine, image in recipe.engines.items():
        own = {
            (container, framework)
            for container, framework in measured
            if framework == "Megatron-Bridge" and same_release(container, container_release(image))
        }
        name = f"`{engine}`" + (", the default" if engine == recipe.engine else f": `LLMB_ENGINE={engine}`")
        rows.append([name, f"`{image}`", _software(own) or "none", _software(measured - own)])
    return table(["engine", "image", "references", "of other software, an indication only"], rows)


def _software(found: Iterable[tuple[str, str]]) -> str:
    """``nemo:25.11 25.09 (Megatron-Bridge), nemo:25.02.01 (NeMo 2)``; 25.09 and 25.09.00 are one."""
    named = {(release_order(container), framework): container for container, framework in sorted(found, reverse=True)}
    containers: dict[str, list[str]] = {}
    for (_, framework), container in sorted(named.items(), reverse=True):
        containers.setdefault(framework, []).append(container)
    return ", ".join(f"nemo:{' '.join(names)} ({framework})" for framework, names in containers.items())


def _own_defaults(recipe: Recipe) -> dict[str, str]:
    """The recipe's own values for the braces in the variables' defaults."""
    d = recipe.defaults
    return {
        "gpu_type": f"`{d.gpu_type}`" if d.gpu_type else "required on Slurm",
        "model_size": f"`{d.model_size}`",
        "dtype": f"`{d.dtype}`",
        "fp8_recipe": _each_row(recipe, lambda v: f"`{v.fp8_recipe}`"),
        "max_steps": _each_row(recipe, lambda v: str(v.max_steps)),
        "time_limit": recipe.variants[0].time_limit,
        "image": f"`{recipe.image}`",
        "engine": f"`{recipe.engine}` (of {', '.join((*recipe.engines, *recipe.releases))})",
        "profile_start": _each_row(recipe, lambda v: str(v.profiling.start)),
        "profile_stop": _each_row(recipe, lambda v: str(v.profiling.stop)),
        "profile_ranks": _each_row(recipe, lambda v: v.profiling.ranks),
        "workload_folder": f"`$LLMB_INSTALL/workloads/{recipe.workload}`",
    }


def _each_row(recipe: Recipe, value: Callable[[Variant], str]) -> str:
    values = {variant.name: value(variant) for variant in recipe.variants}
    if len(set(values.values())) == 1:
        return value(recipe.variants[0])
    return ", ".join(f"{text} ({name})" for name, text in values.items())


TABLES: dict[str, Callable[..., list[str]]] = {
    "sizes": sizes,
    "variants": variants,
    "checkpoints": checkpoints,
    "defaults": defaults,
    "engines": engines,
    "configurations": configurations,
    "results": results,
}
