"""What comes nearest to a model that no recipe has, and the command that plans it.

A model is known by its name alone: how many parameters it says (``72b``, ``235b_a22b``, ``8x7b``), and whether only
some of them are active. ``library.json`` has the models that Megatron-Bridge can train and has no performance recipe
of, with what their names do not say.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.gpus import CPU, row_types
from llmb_common.recipes.model import AnyShape
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Configuration

_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
_NUMBER = r"([0-9]+(?:[.p][0-9]+)?)"  # 1p2b is 1.2b
_NO_MODELS = ("instruct", "base", "chat", "hf", "it")
"""Words at the end of a name that say how it was trained."""


class NamedModel(msgspec.Struct, frozen=True):
    """A model as its name describes it, in the search for one that is like it: the one asked for, or a recipe's.

    ``name``: of the model asked for, the words of its name in lower case, joined by ``_``; of a recipe's, its model
    size as it is (``llama3_70b``). ``parameters``: the number of its weights; None where neither the name nor
    library.json says it, never of a recipe's. ``experts``: whether it is a mixture of experts. Properties read from the
    name: ``family``, the letters that it begins with (``qwen``; empty: none), and ``takes_images``, whether a word says
    images or sound. ``model_named`` makes the former.
    """

    name: str
    parameters: float | None
    experts: bool

    @property
    def family(self) -> str:
        """The letters that the model's name begins with: ``qwen`` of qwen3_30b; empty where it begins with none.

        Of a name with an owner before a ``/`` they are the owner's: ``meta`` of meta-llama/Llama-4-Scout.
        """
        found = re.match(r"[a-z]*", self.name)
        return found[0] if found else ""

    @property
    def takes_images(self) -> bool:
        """Whether the model takes images or sound besides text, as a word of its name tells.

        Such words are ``vl``, ``omni``, ``vision``, ``audio`` and ``45v``.
        """
        return bool({"vl", "omni", "vision", "audio", "45v"} & {*_name_words(self.name)})


class Nearest(msgspec.Struct, frozen=True):
    """One model that a recipe has, as a candidate to run in place of a model that no recipe has.

    The name of ``model`` is its model size in ``recipe``. The property ``title`` names it for messages:
    ``llama3_70b (71B parameters, dense)``. ``nearest`` makes it.
    """

    recipe: Recipe
    model: NamedModel

    @property
    def title(self) -> str:
        """The candidate's name, size and kind, for messages: ``llama3_70b (71B parameters, dense)``.

        Parameters are in whole 10^9; the other kind is ``mixture of experts``.
        """
        kind = "mixture of experts" if self.model.experts else "dense"
        return f"{self.model.name} ({(self.model.parameters or 0) / 1e9:.0f}B parameters, {kind})"


def model_named(name: str) -> NamedModel:
    """Return what the model's ``name`` says of it: with ``8x7b`` in it, there are experts, and 56 billion weights.

    A word that is a number (``8``, ``1.5``, ``1p5``) with ``m``, ``b`` or ``t`` (10^6, 10^9, 10^12) behind it is
    that of the weights (the last one counts), and a word such as a22b in ``235b_a22b`` says that there are experts.
    Words are split at ``-``, ``_`` and blanks; case and an owner before a ``/`` do not count. If library.json lists
    the model (``in_library``), it may add that there are experts, and its number of weights comes before the
    name's. Neither says it: ``parameters`` None, ``experts`` False.
    """
    words = _name_words(_without_owner(name))
    known = _read_library()["models"].get(in_library(name) or "", {})
    parameters, experts = None, bool(known.get("experts"))
    for word in words:
        if found := re.fullmatch(rf"([0-9]+)x{_NUMBER}b", word):
            parameters, experts = int(found[1]) * _number_in_name(found[2]) * 1e9, True
        elif found := re.fullmatch(rf"{_NUMBER}([mbt])", word):
            parameters = _number_in_name(found[1]) * _UNITS[found[2]]
        elif re.fullmatch(rf"a{_NUMBER}b", word):
            experts = True
    if "billions" in known:
        parameters = known["billions"] * 1e9
    return NamedModel("_".join(words), parameters, experts)


def in_library(name: str) -> str | None:
    """Return Megatron-Bridge's name of the model ``name``, if its library trains it without a performance recipe.

    The name is spelled as in library.json (``exaone4_1p2b``). To find it, case, punctuation, an owner before a ``/``,
    and the words ``instruct``, ``base``, ``chat``, ``hf`` and ``it`` at the end are ignored. None: library.json does
    not list it.
    """
    plain = _without_punctuation(_without_owner(name))
    return next((known for known in _read_library()["models"] if _without_punctuation(known) == plain), None)


def _without_owner(name: str) -> str:
    """Return a model's name without its owner on the Hugging Face Hub: ``Llama-3`` of ``meta-llama/Llama-3``."""
    return name.rpartition("/")[2]


def nearest(name: str, recipes: Iterable[Recipe], gpu_type: str | None = None) -> Nearest | None:
    """Return the model of ``recipes`` that is most like the model called ``name``; None where there is no candidate.

    These decide in turn: dense or experts; the number of parameters, in steps of a factor of about 1.4; images or not;
    the family; the exact number; a catalogue in its recipe; the earlier recipe. Where neither name nor library.json
    tells the number of parameters, it is the largest model of the same family, None without one. ``gpu_type``
    (``h100``): only models with a configuration that jobs on it may run count; None: all. Small copies (``smoke``) and
    stand-ins (``-proxy``) are no candidates.

    Raises:
        RecipeError: a recipe's catalogue or validation file cannot be read, or a function's line is damaged
    """
    wanted_model = model_named(name)
    found: list[Nearest] = []
    for recipe in recipes:
        found += [Nearest(recipe, model) for model in _known_models(recipe, gpu_type)]
    if wanted_model.parameters is None:
        family = [item for item in found if wanted_model.family and item.model.family == wanted_model.family]
        return max(family, key=lambda item: item.model.parameters or 0, default=None)
    wanted = wanted_model.parameters

    def distance(item: Nearest) -> tuple[object, ...]:
        """Return the sort key of a candidate: the smaller, the more it is like the model that was asked for.

        That is ``wanted_model`` of the enclosing function; its number of parameters, ``wanted``, is known there.
        """
        model = item.model
        ratio = abs(math.log2((model.parameters or 1) / wanted))
        alike = (round(2 * ratio), model.takes_images != wanted_model.takes_images, model.family != wanted_model.family)
        return (model.experts != wanted_model.experts, *alike, ratio, item.recipe.catalogue is None)

    return min(found, key=distance, default=None)


def remedy_for(name: str, recipes: Sequence[Recipe], **job: Any) -> str:
    """Return a remedy, clauses without a period, for a user who asked for the model ``name``, which no recipe has.

    One clause says that Megatron-Bridge trains ``name`` without a performance recipe, where library.json lists it. The
    other has the command that plans the nearest model of ``recipes``, on the GPU type asked for if possible:
    ``the nearest that has one is llama3_70b (71B parameters, dense): llmb-run plan ...``. They are joined by ``; ``;
    empty where there is neither. ``job`` are what the user asked for besides, as keyword arguments of ``plan_command``:
    ``gpu_type``, ``dtype`` and ``gpus``, each of which may be left out.

    Raises:
        RecipeError: a recipe's catalogue, validation or results file cannot be read, or a function's line is damaged
    """
    near = nearest(name, recipes, job.get("gpu_type")) or nearest(name, recipes)
    library = in_library(name)
    sentences = []
    if library is not None:
        sentences.append(
            f"Megatron-Bridge {_read_library()['release']} trains it ({library}) without a performance recipe"
        )
    if near is not None:
        sentences.append(
            f"the nearest that has one is {near.title}: {plan_command(near.recipe, near.model.name, **job)}"
        )
    return "; ".join(sentences)


def train_here(workload: str, size: str = "smoke") -> str:
    """Return a clause for a remedy, without a full stop: a command that trains a tiny model on this machine's CPUs.

    It reads ``llmb-run single -w WORKLOAD -s SIZE --gpu-type cpu trains a tiny model here``. ``workload`` and the model
    ``size`` stand in it as they are given; whether such a model exists is not checked.
    """
    return f"llmb-run single -w {workload} -s {size} --gpu-type cpu trains a tiny model here"


def plan_command(
    recipe: Recipe,
    size: str,
    *,
    gpu_type: str | None = None,
    dtype: str | None = None,
    gpus: int | None = None,
) -> str:
    """Return the shell command ``llmb-run plan ...`` for a job of the model ``size``, which ``recipe`` must list.

    ``gpu_type``, ``dtype`` and ``gpus`` (a number) are those asked for; None: not asked for. These decide in turn:
    the GPU type is kept if the recipe has rows for it, and chosen like ``type_for``'s else; the dtype (None: BF16)
    is kept if there are rows with it, and is any that there is else; the number of GPUs is the documented one that
    is closest as a ratio (None: the smallest). A variant that runs only by its name is taken, and named, only where
    there is no other. Where the recipe has rows for any machine alone, the type is ``cpu``. Names are matched
    exactly as the recipe spells them (``h100``, ``fp8``), and ``size`` must have a configuration. Words are quoted
    for a shell: ``llmb-run plan -w NAME -s 8b --gpu-type h100 --dtype bf16 --scale 8``.

    Raises:
        RecipeError: the recipe's catalogue, validation or results file cannot be read
    """
    known = [one for one in _runnable_configurations(recipe) if one.size == size]
    known = known or [one for one in recipe.configurations if one.size == size]  # the plan says what is wrong with them
    # What runs only by its variant's name is suggested only where nothing else fits.
    known = [one for one in known if not recipe.variant(one.variant).by_name] or known
    here = _whose_rows(recipe, gpu_type)
    if not any(one.gpu in here for one in known):
        gpu_type = _type_among([one for one in known if one.gpu != "any"] or known, recipe, dtype, gpus)
        here = (gpu_type,)
        gpu_type = CPU if gpu_type == "any" else gpu_type  # a tiny model, which has rows for any machine
    known = [one for one in known if one.gpu in here]
    known = [one for one in known if one.dtype == (dtype or "bf16")] or known
    scales = sorted(set(chain.from_iterable(one.scales for one in known)))
    wanted = gpus or scales[0]
    scale = min(scales, key=lambda scale: abs(math.log(scale / wanted)))
    one = next(one for one in known if scale in one.scales)
    words = ["llmb-run", "plan", "-w", recipe.workload, "-s", size, "--gpu-type", str(gpu_type), "--dtype", one.dtype]
    if recipe.variant(one.variant).by_name:
        words += ["--variant", one.variant]
    return shlex.join([*words, "--scale", str(scale)])


def type_for(recipe: Recipe, size: str, dtype: str | None, gpus: int | None) -> str | None:
    """Return the GPU type to plan a job of the model ``size`` for where the user names none.

    Types with ``dtype`` are preferred, then those with a configuration for just ``gpus`` GPUs; None for either: any. Of
    these it is the recipe's default, else the first with a published result for size, dtype and number of GPUs, else
    the first, in the order of the recipe's configurations. ``size`` and ``dtype`` are matched exactly (``70b``,
    ``fp8``). None: the recipe has no configuration of ``size`` for a GPU, or only ones that its image does not run.

    Raises:
        RecipeError: the recipe's catalogue, validation or results file cannot be read
    """
    known = [one for one in _runnable_configurations(recipe) if one.size == size and one.gpu != "any"]
    return _type_among(known, recipe, dtype, gpus) if known else None


def _type_among(known: Sequence[Configuration], recipe: Recipe, dtype: str | None, gpus: int | None) -> str:
    """Return the GPU type to plan a job for, out of ``known``: at least one configuration, all of one model size.

    Those with ``dtype`` are preferred, then those with just ``gpus`` GPUs (None: any). Of these it is the recipe's
    default type, else the first with a published result for that size, dtype and number of GPUs, else the first. It may
    be ``any``.

    Raises:
        RecipeError: the recipe's results file cannot be read
    """
    alike = [one for one in known if dtype in (None, one.dtype)] or list(known)
    alike = [one for one in alike if gpus is None or gpus in one.scales] or alike
    types = [one.gpu for one in alike]
    if recipe.defaults.gpu_type in types:
        return str(recipe.defaults.gpu_type)
    size = alike[0].size
    wanted = [result for result in recipe.results_of(size) if dtype in (None, result.dtype)]
    published = {result.gpu for result in wanted if gpus in (None, result.gpus)}
    return next((gpu_type for gpu_type in types if gpu_type in published), types[0])


def _runnable_configurations(recipe: Recipe) -> Iterator[Configuration]:
    """Yield the configurations that the recipe's own image runs, without GPU counts that Megatron refuses.

    They are copies in the recipe's order, whose ``scales`` lack those counts; one that has no count left is left
    out, and so is one that needs another release. The recipe lists at least one variant.

    Raises:
        RecipeError: the recipe's catalogue or validation file cannot be read
    """
    index = recipe.catalogue.index if recipe.catalogue is not None else ()
    base = recipe.listed_variants[0].name
    refused = {
        (entry.model, entry.gpu, entry.dtype, entry.fp8_recipe, entry.variant(base), entry.gpus)
        for entry in index
        if recipe.refusal(entry.name) is not None
    }
    for one in recipe.configurations:
        what = (one.size, one.gpu, one.dtype, one.fp8_recipe, one.variant)
        kept = [gpus for gpus in one.scales if (*what, gpus) not in refused]
        if kept and one.release is None:
            yield one._replace(scales=tuple(kept))


def _whose_rows(recipe: Recipe, gpu_type: str | None) -> tuple[str, ...]:
    """Return the GPU types whose configurations of ``recipe`` apply to jobs on ``gpu_type``; empty where that is None.

    It is the type alone if the recipe has a configuration for it; else what ``row_types`` gives, whether or not the
    recipe has configurations for these.

    Raises:
        RecipeError: the recipe's catalogue cannot be read
    """
    if gpu_type is None:
        return ()
    has_own = any(one.gpu == gpu_type for one in recipe.configurations)
    return (gpu_type,) if has_own else row_types(gpu_type)


def _known_models(recipe: Recipe, gpu_type: str | None) -> Iterator[NamedModel]:
    """Yield the recipe's full-size models whose number of parameters is known and that it runs on ``gpu_type``.

    ``gpu_type`` is matched as in ``_whose_rows``; None: on any. They come in the order of the recipe's sizes, each
    once, as the ``NamedModel`` of this module. Small copies for tests (``smoke`` in the name, or ``reduced``) and
    stand-ins (``-proxy`` at its end) are left out.

    Raises:
        RecipeError: the recipe's catalogue or validation file cannot be read, or a function's line is damaged
    """
    here = _whose_rows(recipe, gpu_type)
    sizes = {one.size for one in _runnable_configurations(recipe) if gpu_type is None or one.gpu in here}
    for size in recipe.sizes:
        model = recipe.model(size)
        if size not in sizes or model.reduced is not None or model.parameters is None or "smoke" in size:
            continue
        if size.endswith("-proxy"):
            continue
        shape: AnyShape | None = model.architecture
        if shape is None:
            assert recipe.catalogue is not None
            name = next(entry.name for entry in recipe.catalogue.index if entry.model == size)
            shape = recipe.catalogue.function(name).architecture
        yield NamedModel(size, model.parameters, shape.moe is not None)


def _name_words(name: str) -> list[str]:
    """Return the words of a model's name in lower case, without those at its end that say how it was trained.

    Such words are ``instruct``, ``base``, ``chat``, ``hf`` and ``it``. Words are split at ``-``, ``_``, ``/`` and
    blanks (several in a row count as one); the first always stays.
    """
    words = re.split(r"[-_/ ]+", name.lower())
    while len(words) > 1 and words[-1] in _NO_MODELS:
        words.pop()
    return words


def _without_punctuation(name: str) -> str:
    """Return a model's name in lower case with only letters and digits, so that ``qwen2.5-72b`` equals ``qwen25_72b``.

    The words ``instruct``, ``base``, ``chat``, ``hf`` and ``it`` at its end are dropped.
    """
    return re.sub(r"[^a-z0-9]", "", "".join(_name_words(name)))


def _number_in_name(text: str) -> float:
    """Return the number that ``text`` writes: digits with at most one decimal point or ``p``; ``1p2`` is 1.2."""
    return float(text.replace("p", "."))


@cache
def _read_library() -> dict[str, Any]:
    """Return the content of the package's library.json, read once; callers share it and must not change it.

    ``release`` is that of Megatron-Bridge (``0.6.0``). ``models`` maps the names of models that it trains without a
    performance recipe to dictionaries: ``billions``, the number of weights in 10^9, and ``experts``, true for a mixture
    of experts; either may be missing.
    """
    found: dict[str, Any] = json.loads(Path(__file__).with_name("library.json").read_text(encoding="utf-8"))
    return found
