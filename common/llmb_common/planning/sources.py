"""Where the values of a plan come from: the user, the site, the recipe, or the line of a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from llmb_common.base.gpus import CPU
from llmb_common.base.printable import as_written
from llmb_common.planning.choose import PlanningInput, choose
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.request.read import Request
from llmb_common.planning.scheduler import SchedulerPart
from llmb_common.planning.site.cluster import FILE_NAME, ClusterConfig
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.columns import Columns
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Row

NO_GPUS = "no GPUs here"
"""Why a job is a tiny one, or planned for a GPU type that nobody named."""


class Source(NamedTuple):
    """One value of a plan, as people read it, and where it comes from; ``sources`` has all that decide a plan.

    All three are text for people.
    """

    name: str
    """What it is, such as ``GPU type``."""
    value: str
    """Such as ``gb200`` or ``NA``."""
    source: str
    """An option, a variable, a file, or the line of a document."""


def sources(plan: JobPlan, recipe: Recipe, cluster: ClusterConfig, request: Request) -> list[Source]:
    """Return the values that decide a plan, each with where it comes from, in the order to show them.

    They are GPU type, number of GPUs (or ``ranks`` on CPUs), size, dtype, variant, layout columns, sequence length,
    settings of the framework, steps, time limit, image, account and queue. Values of None are left out, so are columns
    as ``_columns`` leaves them out, and a sequence length that the user did not choose. The source is a variable or
    option as ``request.say`` calls it, the site's file, the recipe, a document or ``this machine``. ``plan`` must have
    been made of the other arguments.

    Raises:
        RequestError: ``plan`` was not made of the other arguments
        RecipeError: the recipe's catalogue cannot be read
    """
    row = _row_of(plan, recipe, cluster, request)
    document = f"{plan.function.name} ({row.source})" if plan.function is not None else row.source
    shown = [
        *_shown_choices(plan, recipe, cluster, request, document),
        *_shown_settings(plan, document),
        _Shown("steps", plan.max_steps, "MAX_STEPS", request.max_steps, f"variant {plan.variant}"),
        _shown_time_limit(plan, cluster, request, document if row.time_limit else f"variant {plan.variant}"),
        _shown_image(plan, recipe, request),
    ]
    scheduler = plan.scheduler or SchedulerPart()
    for name, value, variable in (
        ("account", scheduler.account, scheduler.account_variable),
        (scheduler.queue_word, scheduler.queue, scheduler.queue_variable),
    ):
        shown.append(_Shown(name, value, variable, request.scheduler.get(variable), FILE_NAME))
    return [Source(item.name, str(item.value), item.source(request)) for item in shown if item.value is not None]


class _Shown(NamedTuple):
    """A value of a plan with what tells where it comes from: ``asked``, else ``otherwise``.

    ``variable`` is what the user would have set; ``asked`` None: they have not. ``value`` None: it is not shown.
    """

    name: str
    value: object
    variable: str
    asked: object
    otherwise: str

    def source(self, request: Request) -> str:
        """Return where the value comes from: the variable, as ``request.say`` calls it, or what stands in for it."""
        return request.say(self.variable) if self.asked is not None else self.otherwise


def _shown_choices(
    plan: JobPlan, recipe: Recipe, cluster: ClusterConfig, request: Request, document: str
) -> Iterator[_Shown]:
    """Yield what decides which row a plan is made of: GPU type, number of GPUs, size, dtype and variant.

    ``document`` is where the row comes from; the other arguments are those of ``sources``.
    """
    default = f"default of {recipe.name}"
    is_default_size = plan.model_size == recipe.defaults.model_size
    is_default_dtype = plan.dtype == recipe.defaults.dtype
    size_from = default if is_default_size else NO_GPUS
    dtype_from = default if is_default_dtype else f"what {plan.model_size} has on {plan.gpu_type}"
    gpu_type_from = _source_of_gpu_type(plan, recipe, cluster)
    gpus, gpus_from = ("GPUs", "this machine") if plan.device == "cuda" else ("ranks", document)
    yield _Shown("GPU type", plan.gpu_type, "GPU_TYPE", request.gpu_type, gpu_type_from)
    yield _Shown(gpus, plan.gpus, "JOB_TOTAL_GPUS", request.gpus, gpus_from)
    yield _Shown("size", plan.model_size, "MODEL_SIZE", request.model_size, size_from)
    yield _Shown("dtype", plan.precision, "DTYPE", request.dtype, dtype_from)
    yield _Shown("variant", plan.variant, "CONFIG_VARIANT", request.variant, "the recipe's newest")


def _shown_settings(plan: JobPlan, document: str) -> Iterator[_Shown]:
    """Yield the layout columns of a plan worth showing, a sequence length that the user chose, and the settings of the
    framework.

    ``document`` is where columns come from that the user did not choose.
    """
    for name, value, asked in _columns(plan):
        yield _Shown(name, value, "set", asked or None, document)
    if "seq_len" in plan.overridden:
        yield _Shown("sequence length", plan.seq_len, "set", True, "")
    for name, value in plan.megatron.items():
        yield _Shown(name, as_written(value), "MEGATRON_SETTINGS", True, "")


def _shown_time_limit(plan: JobPlan, cluster: ClusterConfig, request: Request, otherwise: str) -> _Shown:
    """Return a plan's time limit; ``otherwise`` is where it comes from if neither user nor site has set one."""
    limit = cluster.scheduler(plan.cluster_type).time_limit(request)
    if limit is None:
        return _Shown("time limit", plan.time_limit, "TIME_LIMIT", None, otherwise)
    return _Shown("time limit", plan.time_limit, limit.variable, limit.variable or None, FILE_NAME)


def _shown_image(plan: JobPlan, recipe: Recipe, request: Request) -> _Shown:
    """Return a plan's image by its name without folders; it comes from the image or the engine that was asked for."""
    image = plan.image.rpartition("/")[2] if plan.image is not None else None
    if request.image:
        return _Shown("image", image, "RUN_CONF_IMAGE", request.image, recipe.name)
    return _Shown("image", image, "LLMB_ENGINE", request.engine, recipe.name)


def _row_of(plan: JobPlan, recipe: Recipe, cluster: ClusterConfig, request: Request) -> Row:
    """Return the recipe's row that ``plan`` was made of; the arguments are those of ``sources``.

    Raises:
        RequestError: ``plan`` was not made of the other arguments
        RecipeError: the recipe's catalogue cannot be read
    """
    names = ("gpu_type", "model_size", "dtype", "fp8_recipe", "variant", "gpus")
    # With everything that the plan decided, so that the same row is found again.
    resolved = msgspec.structs.replace(request, **{name: getattr(plan, name) for name in names}, force=True)
    machine = Machine(cluster_type=plan.cluster_type)
    return choose(PlanningInput(recipe=recipe, cluster=cluster, request=resolved, machine=machine)).row


def _source_of_gpu_type(plan: JobPlan, recipe: Recipe, cluster: ClusterConfig) -> str:
    """Return where a GPU type comes from that the user did not name: the site's file, this machine, or the recipe."""
    if plan.gpu_type == cluster.gpu_type:
        return FILE_NAME
    if Machine(cluster_type=plan.cluster_type).traits.this_machine:
        return "this machine"
    if cluster.gpu_type == CPU or plan.gpu_type != recipe.defaults.gpu_type:
        return f"{NO_GPUS}: the first that has this job"
    return f"default of {recipe.name}"


def _columns(plan: JobPlan) -> Iterator[tuple[str, object, bool]]:
    """Yield (name, value as written, whether the user chose it) for each layout column of a plan worth showing.

    Names are in capitals (``TP``), in the order of the columns; sequence length is not among them. A column that
    the user chose is worth it whatever its value; of others, those that are off, not used or 0 are not, and a size
    of 1 is only for TP, PP, CP and MBS.
    """
    for name in Columns.__struct_fields__:
        value = getattr(plan, name)
        is_overridden = name in plan.overridden
        is_one = value == 1 and value is not True
        is_off = value in (None, 0) or (is_one and name not in ("tp", "pp", "cp", "mbs"))
        if is_overridden or not is_off:
            yield name.upper(), _as_written(value), is_overridden


def _as_written(value: int | None) -> object:
    """Return the value of a layout column as users write it: ``NA`` for None, ``yes`` or ``no``, or the number."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "NA" if value is None else value
