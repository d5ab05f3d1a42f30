"""Megatron-Bridge's performance recipes: plain functions, each selected by its name alone, called without a network.

There is no registry: a function is found by its definition in the sources of ``megatron.bridge.perf_recipes``, so that
only the module that defines it is imported.

399 of Bridge 0.6's recipes read ``config.json`` of a model at Hugging Face, which is not in the wheel.
``hugging_face.json`` has what they read: no token, no network, no seven seconds of retries where there is none. Of any
other model the file itself is read, from this machine's cache or the network; jobs read it wherever the cache has it
(``prefer_files``).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import json
import pkgutil
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_train.engine import FUNCTIONS, own_release
from llmb_train.errors import EngineError, WrongEngine

PACKAGE = "megatron.bridge.perf_recipes"

NAME = re.compile(
    r"(?P<model>.+?)_(?P<task>pretrain|sft|peft)_(?P<gpus>[0-9]+)gpu_(?P<gpu>[a-z]+[0-9]+)"
    r"_(?P<precision>bf16|fp8cs|fp8ds|fp8mx|fp8sc|nvfp4)(?:_(?P<variant>.+))?_config\Z"
)
_RECIPE = re.compile(r".+_(?:pretrain|sft|peft)_[0-9]+gpu_.+_config\Z")
"""What is meant as one, whether ``NAME`` can read it or not."""

_DEFINITION = re.compile(r"^(?:def )?(\w+_config)(?:\(| = \w+_config$)", re.MULTILINE)
"""A function, or an alias of one: for some GPUs the recipe is that of a related GPU."""

Function = Callable[[], Any]


@dataclass(frozen=True)
class PublicConfig:
    """The public facts of one model's ``config.json``, shipped so that recipes can be called without a network.

    They are in ``PUBLISHED``, by the model's Hugging Face name. A number that is left out has the default of the
    class in transformers 5.12, which is then the model's own.
    """

    kind: str
    """The name of the class of transformers that reads the file: ``LlamaConfig``."""
    architecture: str
    """The architecture that the file names: ``LlamaForCausalLM``."""
    source: str
    """Where the numbers were read, in words for people."""
    numbers: dict[str, Any]
    """The file's numbers, by its keys."""
    model_type: str | None = None
    """The type that the file names, where it is another than that of ``kind``; None: the same."""
    assumed: str = ""
    """Which numbers nobody read from the file or from what its vendor says of it, and what they were taken from;
    the plan of a job says so. Empty: none."""


_FILE = json.loads(pkgutil.get_data("llmb_train", "hugging_face.json") or b"")
PUBLISHED = {name: PublicConfig(**model) for name, model in _FILE["models"].items()}
VOCABULARIES: dict[str, int] = _FILE["vocabularies"]
"""Entries of the tokenizers from which a recipe takes its vocabulary: the one tokenizer of the Nemotron 3 family."""

LOADER = "safe_load_config_with_retry"
"""The function by which Bridge loads a configuration; modules import it by name."""

_seen_modules: set[str] = set()
"""Names of modules that ``_replace_loader`` has looked at."""

asked: list[str] = []
"""The models that were asked for since this list was last cleared."""

from_files: list[str] = []
"""The models whose own files were read in place of shipped numbers."""

_preferred = [False]
_failed: dict[str, str] = {}


@functools.cache
def names() -> dict[str, str]:
    """Return the installed Megatron-Bridge's performance recipes whose names LLMB can read, each with its module.

    A recipe is the name of its function, the module a dotted name. Sorted by recipe. Found in the source text: no
    module is imported. The answer is kept: not to be changed.

    Raises:
        EngineError: Megatron-Bridge is not installed; as WrongEngine, it has no performance recipes
        OSError: its source cannot be read
    """
    return {name: module for name, module in _defined().items() if NAME.match(name)}


def unread() -> dict[str, str]:
    """Return the performance recipes of this engine whose names LLMB cannot read, each with why; empty: none.

    Sorted by name; why is a clause, the same for all. A recipe is the name of its function.

    Raises:
        EngineError: Megatron-Bridge is not installed; as WrongEngine, it has no performance recipes
        OSError: its source cannot be read
    """
    why = "its name is not MODEL_TASK_GPUS_GPU_PRECISION with a precision that LLMB knows"
    return {name: why for name in _defined() if not NAME.match(name)}


@functools.cache
def _defined() -> dict[str, str]:
    """Return the functions of ``megatron.bridge.perf_recipes`` that define recipes, each with its module; sorted.

    A recipe is the name of its function, the module a dotted name. Found in the source text, without importing any.
    The answer is kept: not to be changed.

    Raises:
        EngineError: Megatron-Bridge is not installed
        WrongEngine: this Megatron-Bridge has no such package
        OSError: its source cannot be read
    """
    bridge, _, folder = PACKAGE.rpartition(".")
    try:
        spec = importlib.util.find_spec(bridge)  # not of the package itself: that would import Megatron-Bridge
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise EngineError(
            "Megatron-Bridge is not installed in this Python", remedy="run inside a container or an engine that has it"
        )
    places = [Path(parent) / folder for parent in spec.submodule_search_locations or ()]
    roots = [place for place in places if place.is_dir()]
    if not roots:
        raise WrongEngine(
            f"this Megatron-Bridge has no {PACKAGE}",
            remedy=f"release {FUNCTIONS.bridge} and later have it: container {FUNCTIONS.container}",
        )
    found: dict[str, str] = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join((PACKAGE, *(part for part in parts if part != "__init__")))
            names = _DEFINITION.findall(path.read_text(encoding="utf-8"))
            found |= {name: module for name in names if _RECIPE.match(name)}
    return dict(sorted(found.items()))


def find(name: str) -> Function:
    """Return the function of the performance recipe ``name``, imported; called without arguments, it configures a run.

    It returns a ``ConfigContainer``. Its call needs no network: numbers of models come from ``load``, which from
    now on stands in for Bridge's loader of model configurations in this process. Only a model whose numbers LLMB
    does not ship is still asked for at Hugging Face.

    Raises:
        WrongEngine: this Megatron-Bridge has no recipe of that name, or no recipes
        EngineError: Megatron-Bridge is not installed
        ImportError: the recipe's module cannot be imported
        OSError: Megatron-Bridge's source cannot be read
    """
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (the nearest is {near[0]})" if near else ""
        raise WrongEngine(
            f"this Megatron-Bridge ({own_release()}) has no performance recipe {name}{hint}",
            remedy="use an image with the release that was planned for, or plan with a catalogue of this engine",
        )
    module = importlib.import_module(known[name])
    _replace_loader()  # only now: the recipe's modules have imported Bridge's loader by name
    tolerate_missing_files()
    function: Function = getattr(module, name)
    return function


def _replace_loader() -> None:
    """Put ``load`` in the place of Bridge's loader in each module of Bridge that was imported since the last call."""
    for name in sys.modules.keys() - _seen_modules:
        if name.startswith("megatron.bridge.") and LOADER in vars(sys.modules[name]):
            setattr(sys.modules[name], LOADER, load)
        _seen_modules.add(name)


def columns(config: Any) -> dict[str, Any]:
    """Return the columns of a recipe's ``config`` that a user can override, by LLMB's names.

    They are ``tp``, ``pp``, ``cp``, ``ep``, ``etp``, ``vp``, ``mbs`` and ``gbs`` (in sequences), ``fsdp`` and
    ``cuda_graph`` (bools), ``recompute_layers`` (those of each pipeline chunk that are recomputed in full) and
    ``offload_layers`` (0: none). ``ep`` and ``etp`` are None for a model without experts, ``vp`` is None or 1
    without interleaving. ``config`` is not changed.
    """
    model, moe = config.model, bool(getattr(config.model, "num_moe_experts", None))
    recomputes_all = getattr(model, "recompute_granularity", None) == "full"
    return {
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size if moe else None,
        "etp": model.expert_tensor_parallel_size if moe else None,
        "vp": model.virtual_pipeline_model_parallel_size,
        "mbs": config.train.micro_batch_size,
        "gbs": config.train.global_batch_size,
        "fsdp": bool(config.ddp.use_megatron_fsdp),
        "cuda_graph": getattr(model, "cuda_graph_impl", "none") != "none",
        "recompute_layers": (model.recompute_num_layers or 0) if recomputes_all else 0,
        "offload_layers": model.cpu_offloading_num_layers if getattr(model, "cpu_offloading", False) else 0,
    }


def word(value: Any) -> str:
    """Return an environment variable's ``value`` as NVIDIA's runner exports it: 1 and 0 for True and False.

    Any other value is its ``str``, also None.
    """
    return str(int(value)) if isinstance(value, bool) else str(value)


def tolerate_missing_files() -> None:
    """Make Megatron, in this process, take an empty configuration where a recipe's quantization file is missing.

    A second call does nothing. Imports megatron-core, which must be installed. Megatron-Bridge 0.6.2 on the package
    index has no ``perf_recipes/nemotronh/te_quant.cfg``, which five functions for NVFP4 read; the container's source
    tree has it. No column depends on it; training without it is refused there, as the functions would be in a
    container without the file.
    """
    from megatron.core.quantization.quant_config import RecipeConfig

    if getattr(RecipeConfig.from_yaml_file, "tolerant", False):
        return
    read = RecipeConfig.from_yaml_file

    def from_yaml_file(path: str) -> Any:
        """Return the quantization configuration in the file ``path``; an empty one where the file is missing."""
        return read(path) if Path(path).exists() else RecipeConfig([], {})

    from_yaml_file.tolerant = True  # type: ignore[attr-defined]
    RecipeConfig.from_yaml_file = staticmethod(from_yaml_file)


def prefer_files(prefer: bool = True) -> None:
    """Set whether ``load`` prefers a model's file in the Hugging Face cache to the numbers that LLMB ships.

    For this process, with ``prefer`` on until the next call. As long as nobody calls this, the numbers count.
    """
    _preferred[0] = prefer


def load(path: Any, trust_remote_code: bool | None = False, **unused: Any) -> Any:
    """Return the configuration of the model ``path``, a Hugging Face name, as transformers makes it.

    Made of the numbers of its ``config.json`` that LLMB ships, of that file in the cache if such are preferred
    (``prefer_files``) and it is there, or, for a model without shipped numbers, from Hugging Face or its cache.
    Adds the name to the list ``asked``, and to ``from_files`` where a file was read in place of shipped numbers.
    Replaces Bridge's own loader, whose other arguments it ignores. ``trust_remote_code``: code that comes with the
    file may be run (None: no).

    Raises:
        EngineError: the model's numbers are not shipped, and its file cannot be read either
        OSError, ValueError: a file in the cache that is preferred cannot be read
        AttributeError: this transformers has no class for the shipped numbers
    """
    name = str(path)
    asked.append(name)
    if name not in PUBLISHED:
        return _from_hub(name, bool(trust_remote_code))
    if not _preferred[0]:
        return _shipped(name)
    import transformers
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json")
    if not isinstance(file, str):
        return _shipped(name)
    config = transformers.AutoConfig.from_pretrained(Path(file).parent, trust_remote_code=bool(trust_remote_code))
    from_files.append(name)
    return config


def _from_hub(name: str, trust_remote_code: bool) -> Any:
    """Return the configuration of the model ``name`` from Hugging Face or its cache on this machine.

    ``trust_remote_code``: code that comes with it may be run. A model that failed once is not asked for again in
    this process.

    Raises:
        EngineError: its ``config.json`` cannot be had, now or before
    """
    import transformers

    if name not in _failed:  # several functions ask for one model, and a network that is not there takes its time
        try:
            return transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            _failed[name] = str(error).strip().partition("\n")[0]
    raise EngineError(
        f"the numbers of {name} are not known to LLMB, and its config.json cannot be read: {_failed[name]}",
        remedy="put the file into the Hugging Face cache (hf download MODEL config.json), or give this machine a "
        "network and, where the model asks for one, a token (HF_TOKEN)",
    )


def _shipped(name: str) -> Any:
    """Return the configuration of the model ``name`` made of the numbers that LLMB ships, without a network.

    It is an object of transformers. ``name`` must be in ``PUBLISHED``.

    Raises:
        AttributeError: this transformers has no such class
    """
    import transformers

    model = PUBLISHED[name]
    config = getattr(transformers, model.kind)(**model.numbers, architectures=[model.architecture])
    if model.kind == "DeepseekV4Config":  # the class has no YaRN by default; the files of both models have this
        config.rope_parameters["compress"] |= {"factor": 16, "original_max_position_embeddings": 65536}
    for key, value in model.numbers.items():  # some classes rename or drop what Bridge reads by the file's name
        if not hasattr(config, key) and key not in ("rope_scaling", "rope_theta", "torch_dtype"):
            setattr(config, key, value)
    if model.model_type:
        config.model_type = model.model_type
    return config


def vocabulary(config: Any) -> int | None:
    """Return the vocabulary size of a recipe's ``config``: the model's own, else its tokenizer's.

    The tokenizer's is what the configuration says, else what LLMB knows of the tokenizer that it names; None where
    neither does. Bridge itself would download the tokenizer and count.
    """
    own = getattr(config.model, "vocab_size", None)
    return own or config.tokenizer.vocab_size or VOCABULARIES.get(str(config.tokenizer.tokenizer_model))
