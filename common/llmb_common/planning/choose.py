"""What a request means in a recipe: GPU type, model size, dtype, variant, row and number of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from llmb_common.base.errors import RequestError, did_you_mean, nearest
from llmb_common.base.gpus import CPU, NEAREST, differences, gpu_types, nearest_type, per_node, row_types
from llmb_common.planning.request.read import Request
from llmb_common.planning.site.cluster import FILE_NAME, ClusterConfig
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.model import AnyShape, Model
from llmb_common.recipes.nearest import in_library, plan_command, remedy_for, train_here, type_for
from llmb_common.recipes.recipe import NO_COPY, Recipe
from llmb_common.recipes.rows import Row, Variant

if TYPE_CHECKING:
    from llmb_common.recipes.catalogue import Function, FunctionName


class PlanningInput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that planning starts from: recipe, site's configuration, user's request and machine.

    All four are given by keyword. ``machine`` tells the GPUs of this machine and the way of running jobs;
    ``recipe`` may have the functions of another release (``choose_functions``). The property ``containers`` is True
    where jobs of this site run in containers (ValueError: ``machine`` has an unknown way of running jobs).
    """

    recipe: Recipe
    cluster: ClusterConfig
    request: Request
    machine: Machine

    @property
    def containers(self) -> bool:
        """Whether jobs of this site run in containers, by the way of running jobs and the site's configuration.

        Raises:
            ValueError: ``machine`` has an unknown way of running jobs
        """
        return self.machine.traits.containers and bool(self.cluster.scheduler(self.machine.cluster_type).containers)


class Case(PlanningInput, frozen=True, kw_only=True):
    """A user's request together with what it means in the recipe: configuration row, model, variant, dtype and GPUs.

    ``choose`` makes it. It has the fields of ``PlanningInput``, too. Only the list of notices changes: ``note``
    adds sentences to it and returns None. Properties: ``shape``, the numbers of the model; ``entry``, what the
    function's name says (``FunctionName``; None: there is no function); ``precision``, the FP8 scaling (``cs``,
    ``mx``) of a job in FP8, else the dtype, and ``what``, the configuration for messages
    (``llama3.1 405b fp8 on gb200``), both text; ``adapters``, ``resumes``, ``saves`` and ``on_cpu``, booleans:
    whether the job trains adapters (LoRA), continues a checkpoint, writes one, runs on CPUs; ``gpus_per_node``, how
    many a node has, of which a job may use fewer; ``containers`` is as in ``PlanningInput``. ``entry``,
    ``adapters``, ``resumes`` and ``saves`` raise a RecipeError where the recipe's catalogue cannot be read, so
    never for a case that ``choose`` made, which has read it.
    """

    gpu_type: str
    """Such as ``h100``, or ``cpu``."""
    model: Model
    """With as many layers, and the sequence length, that ``row`` says."""
    row: Row
    """The row of the recipe's configurations that the job follows; its range may lack ``gpus`` where FORCE was set."""
    variant: Variant
    """That of ``row``."""
    dtype: str
    """``bf16``, ``fp8`` or ``nvfp4``."""
    gpus: int
    """Number of the job's GPUs in all; on CPUs the number of ranks."""
    function: Function | None
    """What the row's function gives; None where the recipe itself lists the architecture."""
    notices: list[str] = msgspec.field(default_factory=list)
    """Sentences without a period on what was decided for the user, or has no effect, in the front end's words;
    planning adds to them.
    """

    def note(self, *notices: str) -> None:
        """Add ``notices``, sentences without a period, to the end of those that the user is shown with this job's plan.

        Repeated ones are added again.
        """
        self.notices.extend(notices)

    @property
    def shape(self) -> AnyShape:
        """The numbers of the model that this job trains (layers, hidden size, heads and so on).

        They are those of the row's function in the catalogue, else those that the recipe itself lists.
        """
        return self.function.architecture if self.function is not None else self.model.listed

    @property
    def entry(self) -> FunctionName | None:
        """What the name of the function of this job's row says (model, task, GPUs, precision).

        None where the row has no function, or the recipe no catalogue.

        Raises:
            RecipeError: the recipe's catalogue cannot be read, or lacks this function
        """
        catalogue, name = self.recipe.catalogue, self.row.function
        return catalogue.entry(name) if catalogue is not None and name is not None else None

    @property
    def adapters(self) -> bool:
        """Whether the job trains adapters (LoRA) on top of the model that LOAD_CHECKPOINT_PATH names.

        Raises:
            RecipeError: the recipe's catalogue cannot be read, or lacks the row's function
        """
        return self.entry is not None and self.entry.task == "peft"

    @property
    def resumes(self) -> bool:
        """Whether the job continues the training of a checkpoint: ``request.load_checkpoint``
        (LOAD_CHECKPOINT_PATH) is set.

        A job that trains adapters loads a checkpoint, too, but does not continue it: False.

        Raises:
            RecipeError: the recipe's catalogue cannot be read, or lacks the row's function
        """
        return self.request.load_checkpoint is not None and not self.adapters

    @property
    def saves(self) -> bool:
        """Whether the job saves a checkpoint, as ENABLE_CHECKPOINT asks for, or because it continues from one
        (``resumes``).

        Raises:
            RecipeError: the recipe's catalogue cannot be read, or lacks the row's function
        """
        return self.request.checkpoint or self.resumes

    @property
    def precision(self) -> str:
        """The FP8 scaling (``cs``, ``mx`` and so on) of a job with dtype ``fp8``; the dtype of any other.

        The scaling is that of the row, else the one requested, else the variant's.
        """
        if self.dtype != "fp8":
            return self.dtype
        return self.row.fp8_recipe or self.request.fp8_recipe or self.variant.fp8_recipe

    @property
    def on_cpu(self) -> bool:
        """Whether the job is planned for CPUs, without GPUs."""
        return self.gpu_type == CPU

    @property
    def gpus_per_node(self) -> int:
        """The number of GPUs that a node has, by the request, else the site, else the GPU type; a job may use fewer.

        By type it is 8 for an unknown one, and for CPUs, where it counts ranks.
        """
        return self.request.gpus_per_node or self.cluster.gpus_per_node or per_node(self.gpu_type)

    @property
    def what(self) -> str:
        """The configuration of this job in one phrase for messages: ``llama3.1 405b fp8 on gb200``.

        Where the site set the GPU type, that is said behind it in parentheses.
        """
        return f"{self.recipe.name} {self.model.size} {self.dtype} on {gpu_type_text(self, self.gpu_type)}"


def gpu_type_text(given: PlanningInput, gpu_type: str) -> str:
    """Return ``gpu_type`` as messages have it, with " (gpu_type in cluster_config.yaml)" behind it if the site set it.

    That is so where the request names none and ``gpu_type`` is the site's. Without that, a user would look for
    GPU_TYPE in the shell, in vain.
    """
    from_site = given.request.gpu_type is None and gpu_type == given.cluster.gpu_type
    return f"{gpu_type} (gpu_type in {FILE_NAME})" if from_site else gpu_type


MOST_GPUS = 1_000_000
"""More than any cluster has, and few enough that what is listed rank by rank fits in memory."""

_BASE_IS_SMALLEST = ("llama3_8b", "nemotronh_56b", "qwen3_30b_a3b")
"""Models of which the smallest function is the base of other scales (Megatron-Bridge 0.6.0,
scripts/performance/utils/utils.py: _DEFAULT_GPU_COUNT_OVERRIDES)."""

_ALIASES = {
    *(f"llama31_405b_pretrain_256gpu_b200_{precision}_config" for precision in ("bf16", "fp8cs", "fp8mx")),
    *(f"llama31_405b_pretrain_256gpu_b300_{precision}_config" for precision in ("fp8cs", "fp8mx", "nvfp4")),
    *(
        f"qwen3_235b_a22b_pretrain_256gpu_{gpu}_nvfp4_full_iteration_config"
        for gpu in ("b200", "b300", "gb200", "gb300")
    ),
}
"""Names of functions that are defined elsewhere, which NVIDIA's launcher does not see when it looks for a base."""


def _matching_rows(given: PlanningInput) -> tuple[str, Model, str, list[Row]]:
    """Return (GPU type, model, dtype, rows of the recipe) that the request means; there is at least one row.

    The rows are for any number of GPUs and any FP8 scaling, in the order of the recipe's variants, and all have
    that dtype. Those of variants that are chosen by name only are there if the request names one, and then only its
    own.

    Raises:
        RequestError: model, GPU type, variant or dtype is unknown, missing or without rows; the remedy says what
            there is
        RecipeError: a file of the recipe, such as its catalogue, cannot be read
    """
    recipe = given.recipe
    request = given.request
    _refuse_unknown_model(given)
    gpu_type = choose_gpu_type(given)
    row_gpu_types = row_types(gpu_type)
    # Nobody trains a whole model on CPUs.
    size = request.model_size or ("smoke" if gpu_type == CPU else recipe.defaults.model_size)
    model = recipe.model(size, among=(c.size for c in recipe.configurations if c.gpu in row_gpu_types))
    rows = recipe.rows_for(gpu_type, size=model.size)
    if not rows:
        raise _no_configuration(given, gpu_type, model)
    rows = _rows_of_variants(given, gpu_type, model, rows)
    dtype = _requested_dtype(given, gpu_type, model, rows)
    return gpu_type, model, dtype, [row for row in rows if dtype in row.dtypes]


def _no_configuration(given: PlanningInput, gpu_type: str, model: Model) -> RequestError:
    """Return the error that the recipe has no row of ``model`` for ``gpu_type``, for the caller to raise.

    The remedy names the GPU types that have some, and how the requested one differs from the nearest of them; on
    CPUs the small copy of the model. It ends with a command to type.

    Raises:
        RecipeError: a file of the recipe, such as its catalogue, cannot be read
    """
    recipe = given.recipe
    if gpu_type == CPU:
        small = recipe.smoke_of(model.size)
        remedy = train_here(recipe.workload, small) if small else NO_COPY.format(model.size)
        remedy += f"; for a cluster: {plan_command(recipe, model.size, **_requested_arguments(given, None))}"
    else:
        remedy = f"it has configurations for {', '.join(_gpu_types(recipe, model.size))}"
        near = nearest_type(gpu_type, {one.gpu for one in recipe.configurations if one.size == model.size})
        if near is not None:
            gpu_differences = differences(gpu_type, near)
            if gpu_differences:
                remedy += f"; {gpu_type} has {gpu_differences}"
            remedy += f"; the nearest is {near}"
            remedy += f": {plan_command(recipe, model.size, **_requested_arguments(given, near))}"
    gpu_text = gpu_type_text(given, gpu_type)
    if given.request.gpu_type:
        gpu_text = given.request.say("GPU_TYPE", gpu_text)
    message = f"{recipe.name} {model.size} has no configuration for {gpu_text}"
    return RequestError(message, remedy=remedy, field="GPU_TYPE")


def _rows_of_variants(given: PlanningInput, gpu_type: str, model: Model, rows: list[Row]) -> list[Row]:
    """Return those of ``rows`` that the requested variant has, else all but those of variants chosen by name only.

    ``rows``, at least one, are those of ``model`` on ``gpu_type``; the result has at least one, too.

    Raises:
        RequestError: the variant is unknown or has none of the rows, or there are only such as must be named
    """
    recipe = given.recipe
    request = given.request
    say = request.say
    if request.variant:
        name = recipe.variant(request.variant, among=(row.variant for row in rows)).name
        chosen = [row for row in rows if row.variant == name]
        if not chosen:
            raise RequestError(
                f"the variant {name} of {recipe.name} has no {model.size} on {gpu_type_text(given, gpu_type)}",
                remedy=f"choose another {say('MODEL_SIZE')}, {say('GPU_TYPE')} or {say('CONFIG_VARIANT')}",
                field="CONFIG_VARIANT",
            )
        return chosen
    chosen = [row for row in rows if not recipe.variant(row.variant).by_name]
    if not chosen:
        names = dict.fromkeys(row.variant for row in rows)
        where = f"{recipe.name} {model.size} on {gpu_type_text(given, gpu_type)}"
        raise RequestError(
            f"{where} has only variants that must be named",
            remedy=f"{say('CONFIG_VARIANT')} is one of {', '.join(names)}",
            field="CONFIG_VARIANT",
        )
    return chosen


def _refuse_unknown_model(given: PlanningInput) -> None:
    """Raise if a model size is requested that the recipe does not have on any GPU; return None otherwise.

    A size with ``-smoke`` behind it, the small copy of a model, passes with the size.

    Raises:
        RequestError: it has no such model; the remedy names the nearest one, of other GPU types with these
        RecipeError: a file of the recipe, such as its catalogue, cannot be read
    """
    recipe, request = given.recipe, given.request
    if request.model_size is None or request.model_size.removesuffix("-smoke") in recipe.sizes:
        return
    try:
        gpu_type = choose_gpu_type(given)
    except RequestError:
        gpu_type = None
    here = row_types(gpu_type) if gpu_type is not None else None
    try:
        sizes = [c.size for c in recipe.configurations if here is None or c.gpu in here]
        recipe.model(request.model_size, among=sizes)
    except RequestError as error:
        is_model = in_library(request.model_size) is not None  # and no slip of the pen
        remedy = remedy_for(request.model_size, [recipe], **_requested_arguments(given, gpu_type))
        if remedy and (is_model or "did you mean" not in error.message):
            # The remedy names the nearest model; a guess by spelling beside it would confuse.
            error.message = error.message.partition(" (did you mean")[0]
            error.remedy = remedy
        near = nearest(request.model_size.lower(), recipe.sizes)
        # The sizes of the remedy are those for the GPUs here.
        if near and not remedy and near not in error.remedy.replace(",", "").split():
            error.remedy += f"; {near} with {request.say('GPU_TYPE', ', '.join(_gpu_types(recipe, near)))}"
        raise


def _requested_arguments(given: PlanningInput, gpu_type: str | None) -> dict[str, Any]:
    """Return ``gpu_type``, ``dtype`` and ``gpus`` as keyword arguments of ``plan_command``, always all three.

    Dtype and number of GPUs are the request's, None where it has none. ``gpu_type`` is passed on, but None for the CPU.
    """
    gpu_type = None if gpu_type == CPU else gpu_type
    return {"gpu_type": gpu_type, "dtype": given.request.dtype, "gpus": given.request.gpus}


def choose(given: PlanningInput) -> Case:
    """Return the request with what it means in the recipe: row, model, variant, dtype and number of GPUs.

    The row is the first that documents so many GPUs, else (with FORCE) the one that such a job starts from: that of
    ``_base_row``, or the one whose range is nearest. What was decided for the user is among the notices of the
    case.

    Raises:
        RequestError: a part of the request is unknown, missing or without rows; the remedy says what there is. The
            code is ``undocumented-scale`` where only the number of GPUs has no row, and FORCE is not set; its
            ``complete`` then is what ``_with_so_many`` returns.
        RecipeError: a file of the recipe, such as its catalogue, cannot be read, or is damaged
    """
    recipe = given.recipe
    request = given.request
    say = given.request.say
    gpu_type, model, dtype, rows = _matching_rows(given)
    rows = _rows_of_scaling(given, gpu_type, model, rows)
    gpus = _requested_gpus(given, gpu_type, rows)
    here_documented = any(gpus in row.scales for row in rows)
    row = None if here_documented else _base_row(rows)
    if row is None:  # the row that documents so many GPUs, else the one whose range is nearest
        row = min(rows, key=lambda row: _distance(row, gpus))
    # A proxy row trains fewer layers than the model that it stands for.
    if row.layers and model.architecture is not None:
        architecture = msgspec.structs.replace(model.architecture, layers=row.layers)
        model = msgspec.structs.replace(model, architecture=architecture)
    if row.sequence_length and model.reduced is None:
        model = msgspec.structs.replace(model, sequence_length=row.sequence_length)
    case = Case(
        **msgspec.structs.asdict(given),
        gpu_type=gpu_type,
        model=model,
        row=row,
        variant=recipe.variant(row.variant),
        dtype=dtype,
        gpus=gpus,
        function=recipe.function(row),
    )
    if gpus not in row.scales and not request.force:
        remedy = f"{_alternatives(case)}{say('FORCE', 'true')} accepts other numbers of GPUs that the layout divides"
        raise RequestError(
            f"{say('JOB_TOTAL_GPUS', gpus)}: no configuration of {case.what} has that number of GPUs",
            remedy=f"the recipe has {_scales_text(rows)}; {remedy}",
            code="undocumented-scale",
            field="JOB_TOTAL_GPUS",
            complete=_with_so_many(case),
        )
    case.note(*_choice_notices(case, rows))
    return case


def _distance(row: Row, gpus: int) -> tuple[bool, int]:
    """Return how far ``gpus`` is from a row's scales: (whether it is none of them, GPUs outside of their range)."""
    outside = max(row.gpus_min - gpus, gpus - row.gpus_max, 0)
    return gpus not in row.scales, outside


def _with_so_many(case: Case) -> dict[str, str]:
    """Return a GPU type or a model size that is documented for the requested number of GPUs, by its variable.

    Such as ``{"GPU_TYPE": "h100"}`` or ``{"MODEL_SIZE": "8b"}``; never both, and a GPU type rather than a size. A
    GPU type only where neither user nor site has set one, a size only where the user has not. Empty: there is none.

    Raises:
        RecipeError: the recipe's catalogue, validation or results file cannot be read
    """
    recipe, request = case.recipe, case.request
    if request.gpu_type is None and case.cluster.gpu_type is None:
        other = type_for(recipe, case.model.size, request.dtype, case.gpus)
        rows = recipe.rows_for(other, size=case.model.size, dtype=request.dtype) if other else []
        if any(case.gpus in row.scales and not recipe.variant(row.variant).by_name for row in rows):
            return {"GPU_TYPE": str(other)}
    if request.model_size is not None:
        return {}
    for row in case.recipe.rows_for(case.gpu_type, variant=case.request.variant, dtype=case.request.dtype):
        by_name = case.recipe.variant(row.variant).by_name
        # A small copy for CPUs is no answer to a number of GPUs.
        if case.gpus in row.scales and not by_name and row.gpu != "any":
            return {"MODEL_SIZE": row.size}
    return {}


def choose_gpu_type(given: PlanningInput) -> str:
    """Return the GPU type to plan for: as requested, else the site's, this machine's or the recipe's default.

    They count in this order. This machine counts only where jobs run on it; without GPUs of a known type it is
    ``cpu``, so that the recipe's default is not asked then.

    Raises:
        RequestError: nobody names a type, or it is unknown
        RecipeError: the recipe's catalogue, validation or results file cannot be read
    """
    recipe = given.recipe
    machine = given.machine
    say = given.request.say
    gpu_type = given.request.gpu_type or given.cluster.gpu_type
    if gpu_type is None and machine.traits.this_machine:
        gpu_type = machine.gpu_type or CPU
    gpu_type = gpu_type or recipe.defaults.gpu_type
    if gpu_type is None or gpu_type not in gpu_types():
        possible = _gpu_types(recipe, given.request.model_size)
        remedy = f"{say('GPU_TYPE')} is one of {', '.join(possible)}"
        if gpu_type is None:
            raise _no_gpu_type_error(given, remedy)
        if gpu_type in NEAREST:
            nearest, differs = NEAREST[gpu_type]
            size = given.request.model_size or recipe.defaults.model_size
            command = plan_command(recipe, size, **_requested_arguments(given, nearest))
            remedy = f"the nearest is {nearest} ({gpu_type} is {differs}): {command}"
        # Of two names this short, one that differs in a letter is another GPU: only more or fewer letters are a slip.
        near = did_you_mean(gpu_type, possible, cutoff=0.8)
        raise RequestError(f"{say('GPU_TYPE', gpu_type)} is unknown{near}", remedy=remedy, field="GPU_TYPE")
    return gpu_type


def _no_gpu_type_error(given: PlanningInput, remedy: str) -> RequestError:
    """Return the error for a request without a GPU type, for the caller to raise; ``remedy`` is its remedy.

    Its message is ``GPU_TYPE is not set``, in the front end's words. Its ``complete`` has the variables that would
    complete the request, with values: GPU_TYPE and, if not requested, JOB_TOTAL_GPUS; empty: none are known.

    Raises:
        RecipeError: the recipe's catalogue, validation or results file cannot be read
    """
    recipe, request = given.recipe, given.request
    size = request.model_size or recipe.defaults.model_size
    likely = type_for(recipe, size, request.dtype, request.gpus)
    complete = {}
    if likely is not None:
        complete["GPU_TYPE"] = likely
        rows = recipe.rows_for(likely, size=size, variant=request.variant, dtype=request.dtype)
        rows = [row for row in rows if request.variant or not recipe.variant(row.variant).by_name]
        if request.gpus is None and rows:
            complete["JOB_TOTAL_GPUS"] = str(min(_scales_of(rows)))
    return RequestError(f"{request.say('GPU_TYPE')} is not set", remedy=remedy, field="GPU_TYPE", complete=complete)


def documented_scales(given: PlanningInput) -> list[int]:
    """Return the numbers of GPUs, sorted, that the recipe documents for the requested model, GPU type and dtype.

    The requested number of GPUs does not matter. A requested variant does; variants that are chosen by name only
    count only then. Rows that name no FP8 scaling count for any; empty where no row has the requested one.

    Raises:
        RequestError: model, GPU type, variant or dtype is unknown, missing or without rows
        RecipeError: a file of the recipe, such as its catalogue, cannot be read
    """
    scaling = given.request.fp8_recipe
    _, _, _, rows = _matching_rows(given)
    of_scaling = [row for row in rows if scaling is None or row.fp8_recipe in (None, scaling)]
    return _scales_of(of_scaling)


def _choice_notices(case: Case, rows: Sequence[Row]) -> list[str]:
    """Return notices on what planning decided for the user, such as GPU type, dtype or variant; empty: nothing.

    They are sentences without a period, for ``Case.note``; nothing is added to ``case`` here. ``rows`` are those
    that the number of GPUs was chosen from or matched against, the newest variant first, at least one.
    """
    recipe = case.recipe
    request = case.request
    say = case.request.say
    notices = _gpu_notices(case)
    if case.on_cpu and request.model_size is None:
        notices.append(f"no GPU: planned with {say('MODEL_SIZE', 'smoke')}, a tiny model ({case.model.title})")
    if (relative := case.row.gpu) not in (case.gpu_type, "any"):
        notices.append(
            f"{recipe.name} has no configurations for {case.gpu_type}: it runs those of {relative}, and there is no "
            f"published result to compare with; {case.gpu_type} has {differences(case.gpu_type, relative)}"
        )
    if request.dtype is None and case.dtype != recipe.defaults.dtype and not case.on_cpu:
        what = f"{case.model.size} on {case.gpu_type}"
        instead = say("DTYPE", case.dtype)
        notices.append(f"{what} has no {recipe.defaults.dtype}: planned with {instead}")
    if case.gpus not in case.row.scales:
        notices.append(f"no configuration of {case.what} has {case.gpus} GPUs (the recipe has {_scales_text(rows)})")
    wanted, documented = request.columns.get("seq_len"), case.model.sequence_length
    if wanted not in (None, documented):
        notices.append(
            f"{say('SEQ_LENGTH', wanted)} is not the documented {documented} tokens: there is no published result to "
            "compare with, and it needs a baseline of its own"
        )
    if request.variant is None:
        notices += _variant_notices(case, rows)
    return notices


def _gpu_notices(case: Case) -> list[str]:
    """Return a notice on the GPU type, if nobody chose it or this machine has another one; else [].

    It is a list of one at most, a sentence without a period. Where neither user nor site names a type, it tells
    that the recipe's default counts, or, where jobs run on this machine, that no recipe knows its GPUs and the CPU
    trains; nothing for a machine without GPUs. A job for other GPUs than those of the machine that it runs on,
    whoever chose them, is told by ``planned for h100; this machine has b200``.
    """
    machine = case.machine
    local = machine.gpu_type if machine.traits.this_machine else None
    if case.request.gpu_type is None and case.cluster.gpu_type is None and local is None:
        if not machine.traits.this_machine:
            return [f"{case.request.say('GPU_TYPE')} is not set: {case.gpu_type}, the default of {case.recipe.name}"]
        if machine.gpus:
            return ["no recipe knows the type of this machine's GPUs: training runs on the CPU"]
    if local not in (None, CPU, case.gpu_type) and not case.on_cpu:
        return [f"planned for {gpu_type_text(case, case.gpu_type)}; this machine has {local}"]
    return []


def _variant_notices(case: Case, rows: Sequence[Row]) -> list[str]:
    """Return a notice on which variant the job is, where another one is newer or fits as well; else [].

    It is a list of one sentence at most, without a period. ``rows``, the newest variant first and at least one, are
    those that the number of GPUs was matched against.
    """
    taken, newest = case.variant, rows[0].variant
    if taken.name != newest:
        scales = _scales_text([row for row in rows if row.variant == newest])
        return [
            f"{case.gpus} GPUs run as {taken.name} ({taken.title}): {newest} has {scales}; "
            f"{case.request.say('CONFIG_VARIANT', taken.name)} confirms it"
        ]
    others = [row.variant for row in rows if row.variant != taken.name and case.gpus in row.scales]
    if not others:
        return []
    other = case.recipe.variant(others[0])
    return [
        f"two variants fit this job; it runs as {taken.name} ({taken.title}); "
        f"{case.request.say('CONFIG_VARIANT', other.name)} chooses the other ({other.title})"
    ]


def _gpu_types(recipe: Recipe, size: str | None) -> list[str]:
    """Return the GPU types that ``recipe`` has configurations of the model ``size`` for, each once.

    They are in the order of ``gpu_types``. None as ``size``: of the recipe's default, and the CPU if there is a
    small copy for it. Those of all sizes where it has no such size.

    Raises:
        RecipeError: the recipe's catalogue cannot be read
    """
    known = {row.gpu for row in recipe.configurations if row.size == (size or recipe.defaults.model_size)}
    known = known or {row.gpu for row in recipe.configurations}  # a size that does not exist is an error of its own
    if size is None and "smoke" in recipe.sizes:
        known.add(CPU)
    return [name for name in gpu_types() if known & {*row_types(name)}]


def _requested_dtype(given: PlanningInput, gpu_type: str, model: Model, rows: Sequence[Row]) -> str:
    """Return the requested dtype; without a request the recipe's default if ``rows`` have it, else the first of the
    first row.

    ``model`` and ``gpu_type`` are only for messages; there must be a row.

    Raises:
        RequestError: no row has the requested dtype; the remedy lists those that there are
    """
    recipe = given.recipe
    requested = given.request.dtype
    say = given.request.say
    available = list(dict.fromkeys(chain.from_iterable(row.dtypes for row in rows)))
    if requested is None:
        return recipe.defaults.dtype if recipe.defaults.dtype in available else available[0]
    if requested not in available:
        if gpu_type == CPU and any(requested in row.dtypes for row in recipe.rows):
            raise RequestError(
                f"{say('DTYPE', requested)} cannot run on a CPU: it would silently train in bf16",
                remedy=f"leave {say('DTYPE')} out, or use {say('DTYPE', 'bf16')}",
                field="DTYPE",
            )
        raise RequestError(
            f"{recipe.name} {model.size} has no {say('DTYPE', requested)} on {gpu_type_text(given, gpu_type)}"
            + did_you_mean(requested, available),
            remedy=f"it has {', '.join(available)}",
            field="DTYPE",
        )
    return requested


def _alternatives(case: Case) -> str:
    """Return what else runs on the requested number of GPUs, as the beginning of a remedy; empty: nothing.

    That is a stand-in size (``405b-proxy`` for ``405b``; the first only),
    ``MODEL_SIZE=405b-proxy, TITLE, runs on 64; ``, and variants that are chosen by name only:
    ``on 64 GPUs there is CONFIG_VARIANT sft, peft; ``. Each clause ends with "; ", so that the remedy can go on
    behind it.

    Raises:
        RecipeError: the recipe's catalogue cannot be read
    """
    recipe = case.recipe
    say = case.request.say
    clauses = ""
    for row in recipe.rows_for(case.gpu_type, variant=case.request.variant, dtype=case.dtype):
        if row.size.startswith(f"{case.model.size}-") and case.gpus in row.scales:
            clauses = f"{say('MODEL_SIZE', row.size)}, {recipe.model(row.size).title}, runs on {case.gpus}; "
            break
    rows = recipe.rows_for(case.gpu_type, size=case.model.size, dtype=case.dtype)
    names = dict.fromkeys(
        row.variant for row in rows if case.gpus in row.scales and recipe.variant(row.variant).by_name
    )
    if names:
        clauses += f"on {case.gpus} GPUs there is {say('CONFIG_VARIANT')} {', '.join(names)}; "
    return clauses


def _rows_of_scaling(given: PlanningInput, gpu_type: str, model: Model, rows: list[Row]) -> list[Row]:
    """Return those of ``rows`` with the requested FP8 scaling, in their order and at least one; all of them where no
    row names a scaling.

    Without a request it is the scaling of the first row's variant if a row has that one, else the first that a row
    names; rows for the requested number of GPUs decide, if there are any. ``gpu_type`` and ``model`` are only for
    the message.

    Raises:
        RequestError: rows name their scalings, and none has the requested one
    """
    known = list(dict.fromkeys(row.fp8_recipe for row in rows if row.fp8_recipe is not None))
    if not known:
        return rows
    requested = given.request.fp8_recipe
    if requested is not None and requested not in known:
        raise RequestError(
            f"{given.recipe.name} {model.size} has no {given.request.say('FP8_RECIPE', requested)} on "
            f"{gpu_type_text(given, gpu_type)}",
            remedy=f"it has {', '.join(known)}",
            field="FP8_RECIPE",
        )
    if requested is None:
        # At the scale that is asked for, if it has any.
        here = [row for row in rows if given.request.gpus in (None, *row.scales)] or rows
        own = given.recipe.variant(rows[0].variant).fp8_recipe
        known = [row.fp8_recipe for row in here if row.fp8_recipe is not None] or known
        requested = own if own in known else known[0]
    return [row for row in rows if row.fp8_recipe == requested]


def _requested_gpus(given: PlanningInput, gpu_type: str, rows: Sequence[Row]) -> int:
    """Return the number of GPUs (on CPUs, of ranks) that is requested.

    Without a request, where jobs run on this machine, it is all its GPUs; for the ``gpu_type`` ``cpu``, or where it
    has none, the largest of the least numbers of ``rows``, of which there must be one. That rows document the
    number is not checked.

    Raises:
        RequestError: it is above 1,000,000, or missing for a job of a scheduler
    """
    request, machine = given.request, given.machine
    if request.gpus is not None:
        if request.gpus > MOST_GPUS:
            raise RequestError(
                f"{request.say('JOB_TOTAL_GPUS', request.gpus)}: a plan has at most {MOST_GPUS} GPUs",
                remedy=f"the recipe has {_scales_text(rows)}",
                field="JOB_TOTAL_GPUS",
            )
        return request.gpus
    if not machine.traits.this_machine:
        name, value = request.unread.get("JOB_TOTAL_GPUS", ("", ""))
        meant = request.say("JOB_TOTAL_GPUS", value)
        instead = f" ({name}={value} is: did you mean {meant}?)" if name else ""
        missing = f"{request.say('JOB_TOTAL_GPUS')} is not set{instead}"
        least = min(chain.from_iterable(row.scales for row in rows))
        remedy = f"for example {request.say('JOB_TOTAL_GPUS', least)}; the recipe has {_scales_text(rows)}"
        lacking = {"JOB_TOTAL_GPUS": str(least)}
        raise RequestError(missing, remedy=remedy, field="JOB_TOTAL_GPUS", complete=lacking)
    if machine.gpus and gpu_type != CPU:
        return machine.gpus
    # Two ranks show communication without crowding a laptop.
    return max(row.gpus_min for row in rows)


def _scales_text(rows: Sequence[Row]) -> str:
    """Return the numbers of GPUs that ``rows`` document, in increasing order, each once, as text: ``8, 16, 32``."""
    return ", ".join(map(str, _scales_of(rows)))


def _scales_of(rows: Iterable[Row]) -> list[int]:
    """Return the numbers of GPUs that ``rows`` document, in increasing order, each once."""
    return sorted(set(chain.from_iterable(row.scales for row in rows)))


def _base_row(rows: Sequence[Row]) -> Row | None:
    """Return the row whose function a job on an undocumented number of GPUs starts from; ``rows`` must not be empty.

    It is the one for most GPUs, or, for the model sizes in ``_BASE_IS_SMALLEST``, for fewest; functions in
    ``_ALIASES`` count only if there are no others. None where any row names no function, or is for a range of
    numbers.
    """
    functions = [row for row in rows if row.function is not None and row.gpus_min == row.gpus_max]
    if len(functions) < len(rows):
        return None
    defined = [row for row in functions if row.function not in _ALIASES] or functions
    smallest = defined[0].size in _BASE_IS_SMALLEST
    return min(defined, key=lambda row: row.gpus_min if smallest else -row.gpus_min)
