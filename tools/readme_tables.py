"""The tables of a recipe's README, generated from its ``recipe.yaml``.

A README marks each table with ``<!-- table: NAME -->`` and ``<!-- end -->``; everything in between is generated::

    sizes                       parameters and architecture of every model size
    variants                    how each variant's runs are named, measured and profiled
    configurations VARIANT GPU  the configuration rows
    results VARIANT GPU         the published results; corrected values are marked and explained
    checkpoints                 sizes and tested scales
    defaults                    the variables of launch.sh whose defaults are this recipe's own
    engines                     the releases of Megatron-Bridge that it runs on, and the results of each
    functions, precisions, named, newest, containers, validation
                                models, variants and results of a catalogue: see ``readme_functions``

Figures in the text between the tables work the same way: see ``readme_figures``.

``python -m tools.readme_tables [--write | --check] [FOLDER ...]``; without folders, all recipes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from llmb_common.decoding.strict_yaml import read_text
from llmb_common.errors import LLMBError, RecipeError
from llmb_common.machine.files import write_atomic
from llmb_common.platform.gpus import peak_tflops
from llmb_common.recipes import flops
from llmb_common.recipes.flops import CHECKPOINT_BYTES_PER_PARAMETER, count_parameters
from llmb_common.recipes.loading import load_recipe, recipe_folders, recipes_root
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import Result, Row, precision
from tools.readme_figures import fill_figures
from tools.readme_functions import TABLES
from tools.readme_variables import defaults, engines, table

_MARKED = re.compile(r"(<!-- table: (?P<name>[^\n]*?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
_OPEN = re.compile(r"<!-- table: ")


class Footnotes:
    """Numbered footnotes of a table; equal texts share a number."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        if text not in self._texts:
            self._texts.append(text)
        return f"[{self._texts.index(text) + 1}]"

    def lines(self) -> list[str]:
        if not self._texts:
            return []
        return ["", *(f"- [{n}] {text[0].upper()}{text[1:]}." for n, text in enumerate(self._texts, 1))]


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
        *("variant", "experiment name", "FP8 scaling", "published with clock boost", "result from", "steps"),
        *("profiled steps, ranks", "report file"),
    ]
    rows = []
    for variant in recipe.variants:
        m, p = variant.measurement, variant.profiling
        window = f"iterations {m.first} to {m.last}"
        rows.append(
            [
                f"`{variant.name}`",
                f"`{_pattern(variant.experiment_name)}`" + (f", profiled `{p.suffix}`" if p.suffix else ""),
                f"`{variant.fp8_recipe}`",
                "yes" if variant.vboost else "no",
                window if m.statistic == "mean" else f"last step; the mean of {window} is recorded too",
                str(variant.max_steps) + (f", profiled {p.steps}" if p.steps else ""),
                f"{p.start} to {p.stop}, {'all ranks' if p.ranks == 'all' else f'ranks {p.ranks}'}",
                f"`{p.file}.nsys-rep`",
            ]
        )
    return table(header, rows)


def _pattern(name: str) -> str:
    return re.sub(r"\{([a-z_]+)\}", r"<\1>", name)


def _rows(recipe: Recipe, variant: str, gpu: str) -> list[Row]:
    rows = [row for row in recipe.rows if (row.variant, row.gpu) == (recipe.variant(variant).name, gpu)]
    if not rows:
        raise RecipeError(f"{recipe.name} has no {variant} row for {gpu}", remedy="correct the name of the table")
    return rows


_ROW_COLUMNS: tuple[tuple[str, Callable[[Recipe, Row], str], bool], ...] = (
    ("size", lambda recipe, row: f"`{row.size}`", True),
    ("GPUs", lambda recipe, row: _span(row.gpus_min, row.gpus_max), True),
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


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


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
    return [*table([*header, *(["TFLOPS/GPU"] if with_tflops else []), "note"], body), *notes.lines()]


def _causal_mfu(recipe: Recipe, result: Result) -> str:
    """MFU counting the causal half of attention, the same convention for all recipes, from the printed step time."""
    row = find_row(recipe, result)
    model = recipe.model(result.size)
    peak = peak_tflops(result.gpu, result.dtype)
    if row is None or peak is None:
        return "-"
    architecture = msgspec.structs.replace(model.listed, layers=row.layers or model.listed.layers)
    per_sequence = flops.model_flops(architecture, model.sequence_length, "causal").total
    gbs = row.global_batch_size(result.gpus)
    achieved = flops.achieved_tflops(per_sequence, gbs, result.step_seconds, result.gpus)
    return f"{100 * flops.mfu(achieved, peak):.1f}"


def _figure(result: Result, figure: str, form: str) -> str:
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


def render(recipe: Recipe, name: str, where: str) -> list[str]:
    """The lines of the table ``name``.

    Raises:
        RecipeError: there is no such table; it names ``where`` the mark is.
    """
    kind, *arguments = name.split()
    plain = {"sizes": sizes, "variants": variants, "checkpoints": checkpoints, "defaults": defaults}
    plain |= {"engines": engines, **TABLES}
    selected = {"configurations": configurations, "results": results}
    if kind in plain and not arguments:
        return plain[kind](recipe)
    if kind in selected and len(arguments) == 2:
        return selected[kind](recipe, arguments[0], arguments[1])
    raise RecipeError(
        f"{where}: no table {name!r}",
        remedy="one of " + ", ".join([*plain, *(f"{s} VARIANT GPU" for s in selected)]),
    )


def fill(text: str, recipe: Recipe, where: str) -> str:
    """``text`` (a README) with every marked table and figure regenerated.

    Raises:
        RecipeError: a mark is wrong or not closed.
    """
    found = list(_MARKED.finditer(text))
    if len(_OPEN.findall(text)) != len(found) or any("<!--" in match["body"] for match in found):
        raise RecipeError(f"{where}: a table mark has no <!-- end -->", remedy="close every table mark")

    def made(match: re.Match[str]) -> str:
        return match[1] + "\n".join(["", *render(recipe, match["name"], where), "", ""]) + match[4]

    return fill_figures(_MARKED.sub(made, text), recipe, where)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.readme_tables", description="tables of the READMEs")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the tables into the READMEs")
    what.add_argument("--check", action="store_true", help="only report which READMEs differ (the default)")
    parser.add_argument("folders", nargs="*", type=Path, help="recipe folders (default: all)")
    arguments = parser.parse_args(argv)
    differ = 0
    try:
        folders = arguments.folders or list(recipe_folders(recipes_root()))
        generated = {folder / "README.md": _filled(folder) for folder in folders}
        for path, new in generated.items():
            if path.is_file() and new == read_text(path, RecipeError):
                continue
            if arguments.write:
                write_atomic(path, new)
                print(f"{path}: written")
            else:
                differ = 1
                print(f"{path}: differs from recipe.yaml (run with --write)")
    except LLMBError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_status
    return differ


def _filled(folder: Path) -> str:
    readme = folder / "README.md"
    return fill(read_text(readme, RecipeError), load_recipe(folder), str(readme))


if __name__ == "__main__":
    raise SystemExit(main())
