"""A suite: the workloads of an acceptance campaign, in the words of a task file, and what each must reach.

::

    name: h100-128
    health: fabric                    # before all: measure nodes (llmb-run health --fabric), leave out those that fail
    prescreen:                        # first; a failure or a problem of a node ends the campaign
      - {workload: pretrain_llama3.1, size: 8b, scale: 128, max_steps: 10}
    defaults:                         # for every test that does not say otherwise
      gpu_type: h100
      scale: 128
      required: 0.95                  # of the reference's performance, to be exceeded
      repeats: 3                      # runs before the first verdict
      reruns: 12                      # how many more may be added, for whatever reason
    tests:
      - workload: pretrain_llama3.1
        size: [8b, 70b]               # a list is a sweep, as in a task file
        dtype: [fp8, bf16]
      - workload: pretrain_grok1
        reference: {seconds: 12.5, source: contract 4711}

Those that come with LLMB are made from the recipes when one is asked for; every workload in them can be judged:

``gb300``      all that is published for the GPU type with the container that a recipe installs, each at its own scale
``gb300-64``   the same at one scale; where nothing is published for that container, what is for others (an indication)
``exemplar-...``  the list of NVIDIA's Exemplar Clouds, whose references are not published (``exemplar``)
``smoke``      a file, too: smallest models, nothing to compare

All workloads of such a suite run in one container, so that one release of the software is judged.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from llmb_common.base import gpus
from llmb_common.base.engines import container_release, release_order
from llmb_common.base.errors import ConfigError, did_you_mean
from llmb_common.base.notices import notice
from llmb_common.base.strict_yaml import read_text
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.folders import recipe_folders, recipes_root
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import PublishedResult
from llmb_common.results.references import same_software
from llmb_common.results.sequential import REPEATS, REQUIRED, RERUNS
from llmb_run.acceptance import exemplar
from llmb_run.starting.requests import JobSpec
from llmb_run.starting.task_files import At, Sweep, Task, read_content, specs_of_task

FILES = Path(__file__).with_name("suites")
"""Suites that do not follow from the recipes."""


@dataclass(frozen=True)
class _PublishedConfiguration:
    """A benchmark configuration of ``recipe``, represented by the best result that is published for it.

    ``_published_configurations`` makes it; ``result`` is one of the recipe's own results. The property ``same`` tells
    whether that was measured in the recipe's own container. The property ``rank`` is a sort key, of which the
    greatest is the best: ``same``, then the release of the result's container as a tuple of numbers.
    """

    recipe: Recipe
    result: PublishedResult

    @property
    def same(self) -> bool:
        """Whether the published result was measured in the container that the recipe itself uses."""
        return same_software(self.recipe.image, self.recipe.document(self.result))

    @property
    def rank(self) -> tuple[bool, tuple[int, ...]]:
        """The sort key by which the published result to compare with is chosen: the greatest is the best.

        (measured in the recipe's own container, release of its container as numbers): the former come before
        others, then the newest container; an unknown one counts as the oldest.
        """
        return self.same, release_order(self.recipe.document(self.result).container or "00.00")


@cache
def suites() -> dict[str, str]:
    """Return every acceptance suite that comes with LLMB: its YAML text by its name, in the order of listing.

    First, for each GPU type, sorted by name, ``gb300`` (if anything was measured in a recipe's own container) and, by
    number of GPUs, ``gb300-64`` and the like; then NVIDIA's Exemplar Clouds, then further ones. Made from the published
    results of all recipes at the first call, and kept: not to be changed.

    Raises:
        RecipeError: a recipe is wrong or cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe
        OSError: a folder of recipes, or a suite's file, may not be looked at
    """
    found = _published_configurations()
    made = {}
    for gpu_type in sorted({item.result.gpu for item in found}):
        of_type = [item for item in found if item.result.gpu == gpu_type]
        if same := [item for item in of_type if item.same]:
            made[gpu_type] = _suite_text(gpu_type, same)
        for scale in sorted({item.result.gpus for item in of_type}):
            name = f"{gpu_type}-{scale}"
            made[name] = _suite_text(name, _of_one_container([item for item in of_type if item.result.gpus == scale]))
    return made | exemplar.suites() | {file.stem: file.read_text() for file in sorted(FILES.glob("*.yaml"))}


def _published_configurations() -> list[_PublishedConfiguration]:
    """Return every configuration for which a result is published, once, with its best result, in the recipes' order.

    A configuration is a workload, GPU type, number of GPUs, model size, dtype and (of FP8) scaling; variants are not
    told apart. Best is the greatest ``rank``, of equal ones the first. Unknown GPU types, dtypes that a GPU has no
    peak for, and reduced proxies of models are left out.

    Raises:
        RecipeError: a recipe is wrong or cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe
        OSError: a folder of recipes may not be looked at
    """
    best: dict[tuple[object, ...], _PublishedConfiguration] = {}
    for folder in recipe_folders(recipes_root()):
        recipe = load_recipe(folder)
        for result in recipe.results:
            known = gpus.GPUS.get(result.gpu)
            if known is None or result.dtype not in known.peaks or result.size.endswith("-proxy"):
                continue
            item = _PublishedConfiguration(recipe, result)
            scaling = None
            if result.dtype == "fp8":
                scaling = result.fp8_recipe or recipe.variant(result.variant).fp8_recipe
            key = (recipe.workload, result.gpu, result.gpus, result.size, result.dtype, scaling)
            if key not in best or item.rank > best[key].rank:
                best[key] = item
    return list(best.values())


def _of_one_container(found: Sequence[_PublishedConfiguration]) -> list[_PublishedConfiguration]:
    """Return those of ``found`` that a suite for one container tests, in order; ``found`` must not be empty.

    These are the ones whose recipe has the newest container among those with a result that was measured in it;
    where no result was measured in its recipe's container, those with the newest container of a recipe.
    """
    groups: dict[tuple[bool, tuple[int, ...]], list[_PublishedConfiguration]] = defaultdict(list)
    for item in found:
        groups[item.same, release_order(container_release(item.recipe.image) or "00.00")].append(item)
    return groups[max(groups)]


def _suite_text(name: str, found: Sequence[_PublishedConfiguration]) -> str:
    """Return the YAML text of the suite ``name`` that tests all of ``found``, at least one, with a final newline.

    They must be of one GPU type and container, and all measured in it, or none. Its pre-screen runs, for 20 steps,
    the smallest of the models that ``found`` has at its largest number of GPUs (one of unknown size comes last).

    Raises:
        RecipeError: a recipe's catalogue or results cannot be read
    """
    same = found[0].same
    container = f"nemo:{container_release(found[0].recipe.image)}"
    against = "measured in the same container" if same else "of other software: each verdict is an indication"
    widest = max(item.result.gpus for item in found)
    smallest = min(
        (item for item in found if item.result.gpus == widest),
        key=lambda item: item.recipe.model(item.result.size).parameters or float("inf"),
    )
    lines = [
        f"# In {container}, compared with published results {against}.",
        f"name: {name}",
        *exemplar.nodes_first(_test_keys(smallest)),
        "defaults:",
        f"  gpu_type: {found[0].result.gpu}",
        "tests:",
        *(f"  - {{{_test_keys(item)}}}" for item in found),
    ]
    return "\n".join(lines) + "\n"


def _test_keys(item: _PublishedConfiguration) -> str:
    """Return the YAML keys and values of a suite's test for a published result, separated by commas, without braces.

    ``workload: ..., size: ..., dtype: fp8, scale: 64``, with ``variant`` where the recipe has several, and with
    ``env: {FP8_RECIPE: ...}`` where the result states one for FP8.

    Raises:
        RecipeError: a recipe's catalogue or results cannot be read
    """
    result, recipe = item.result, item.recipe
    words = [f"workload: {recipe.workload}", f"size: {result.size}", f"dtype: {result.dtype}", f"scale: {result.gpus}"]
    if len(recipe.variants) > 1:
        words.append(f"variant: {result.variant}")
    if result.dtype == "fp8" and result.fp8_recipe:
        words.append(f"env: {{FP8_RECIPE: {result.fp8_recipe}}}")
    return ", ".join(words)


T = TypeVar("T")

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Few = Annotated[int, msgspec.Meta(ge=1, le=100)]
Reruns = Annotated[int, msgspec.Meta(ge=0, le=100)]


class Stated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reference step time that the suite itself states, from a contract for instance.

    Read from YAML: a missing or unknown key, or a value out of its bounds, is refused.
    """

    seconds: Annotated[float, msgspec.Meta(ge=1e-6, lt=1e6)]
    """Seconds of one step; at least 1e-6 and below 1e6."""
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """Where it comes from, for people; 1 to 200 characters."""


Wanted: TypeAlias = Literal["required", "optional", "none"]
"""``required``: the site's baseline or a published result, without which the suite is refused. ``optional``: where
there is none, it is enough that the runs succeed. ``none``: that is enough in any case."""


class SuiteDefaults(Sweep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``defaults`` of a suite's YAML file: what holds for tests that do not say otherwise; None: not given.

    Beside the fields of a ``Sweep`` (whose ``repeats`` this one replaces): ``repeats``, runs before the first decision
    (1 to 100); ``reruns``, how many may be added (0 to 100); ``required``, the share of the reference's performance to
    exceed (above 0, at most 1); ``reference``, the step time to compare with, or "required", "optional" or "none". It
    does not hold for the pre-screen. Decoding refuses unknown keys and values out of these bounds.
    """

    repeats: Few | None = None
    reruns: Reruns | None = None
    required: Share | None = None
    reference: Wanted | Stated | None = None


class SuiteTest(Task, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One test in a suite's YAML file: a task, which may sweep over several workloads, with how it is judged.

    None: as the defaults say, else 3 ``repeats``, up to 12 ``reruns``, ``required`` 0.95 and a ``required`` reference;
    in the pre-screen 1, 1 and no reference. It has the fields of a ``Task``, too, which say what to run. Decoding
    refuses unknown keys and values out of the bounds given below.
    """

    repeats: Few | None = None
    """Runs before the first decision, 1 to 100."""
    reruns: Reruns | None = None
    """How many runs may be added to these, 0 to 100."""
    required: Share | None = None
    """The performance that it must exceed, as a share of the reference's, above 0 and at most 1."""
    reference: Wanted | Stated | None = None
    """The step time to compare with, or whether there must be a known one: ``required``, ``optional`` or ``none``."""


class SuiteFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of an acceptance suite's YAML file, as written.

    ``name`` begins with a letter or digit and has at most 64 letters, digits, dots, underscores and hyphens.
    ``tests`` are in the file's order, and ``defaults`` hold for those, not for ``prescreen``. Decoding refuses
    (msgspec.ValidationError) an unknown key, a missing ``name`` or ``tests``, and another form of ``name``;
    ``tests`` may be empty.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
    tests: tuple[SuiteTest, ...]
    defaults: SuiteDefaults = SuiteDefaults()
    health: bool | Literal["fabric"] = False
    """Whether nodes are checked before the campaign; "fabric": also under load, with the network between them."""
    prescreen: tuple[SuiteTest, ...] = ()
    """Short tests that run first; unless they pass, no other is started."""


@dataclass(frozen=True)
class SuiteEntry:
    """One test of a suite, or one workload of it, complete: what to run, how often, and what it must reach.

    ``read_suite`` makes one for each workload, ``suite_terms`` one for each test.
    """

    spec: JobSpec
    """What to run; empty where only the suite's terms were read."""
    where: str
    """File and line in the suite: ``suite.yaml:12``."""
    repeats: int
    """Runs before the first decision."""
    reruns: int
    """How many runs may be added to these, for whatever reason."""
    required: float
    """The performance that it must exceed, as a share of the reference's: 0.95."""
    reference: Wanted | Stated
    """The reference itself, or whether there must be one: ``required``, ``optional`` or ``none``."""
    prescreen: bool = False
    """Whether it is one of the short tests that must pass before others start."""


@dataclass(frozen=True)
class Suite:
    """An acceptance suite, complete: every workload to run, those of the pre-screen first. ``read_suite`` makes it.

    ``name`` is as the file says. ``tests`` has all of them, one entry for each workload that a sweep makes. The
    property ``sha256`` is that of ``text`` (hexadecimal digits), by which a changed suite is noticed.
    """

    path: Path
    """Absolute, or the name of a suite that comes with LLMB."""
    name: str
    text: str
    """The YAML text that it was read from."""
    tests: tuple[SuiteEntry, ...]
    health: bool | Literal["fabric"] = False
    """Whether nodes are checked before the campaign; "fabric": also under load, with the network between them."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the suite's text, as hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def find_suite(word: str) -> tuple[Path, str]:
    """Return the path and the YAML text of the suite that ``word`` names: a file, or a suite that comes with LLMB.

    A file of that name comes first; its path is made absolute, links resolved. Of a suite that comes with LLMB the
    path is just its name; case matters. Where a suite has another name now, the earlier one is taken, too, and a
    notice on stderr says so; the path is then the present name.

    Raises:
        ConfigError: there is no such suite (code ``unknown-suite``), or the file cannot be read
        RecipeError: a recipe, from which suites are made, is wrong
        RequestError: ``LLMB_REPO`` is set and contains no recipe
        OSError: a folder of recipes, or of the file, may not be looked at
    """
    path = Path(word)
    if path.is_file():
        return path.resolve(), read_text(path)
    known = suites()
    now = exemplar.named_before(word)
    if now is not None:
        notice(f"{word} is now {now}: the list of NVIDIA's release {exemplar.RELEASE}")
        path, word = Path(now), now
    if word in known:
        return path, known[word]
    raise ConfigError(
        f"there is no suite {word}{did_you_mean(word, known)}",
        remedy=f"the path of a suite file, or one of {', '.join(known)}",
        code="unknown-suite",
    )


def read_suite(path: Path, text: str, workspace: Workspace) -> Suite:
    """Return the suite that the YAML ``text`` holds, with defaults filled in and sweeps expanded to workloads.

    ``path``: where it was read, for messages and the suite's own ``path``. ``workspace``: whose recipes the tests
    name. Repeats of a task count as one workload. Workloads of the pre-screen come first. Nothing is planned.

    Raises:
        ConfigError: something in it is wrong, a workload is profiled, or there is no installation; the message has file
            and line
    """
    content, at = read_content(text, str(path), SuiteFile)
    tests: list[SuiteEntry] = []
    for entry, item, key in _suite_entries(content, at):
        # The campaign repeats runs by itself.
        specs = [spec for spec in specs_of_task(item, content.defaults, workspace, key, at) if spec.repeat == 1]
        if any("profile" in spec.settings for spec in specs):
            raise ConfigError(f"{entry.where}: a profiled run is slower and proves nothing", remedy="leave profile out")
        tests += [replace(entry, spec=spec) for spec in specs]
    return Suite(path, content.name, text, tuple(tests), content.health)


def suite_terms(text: str, name: str) -> list[SuiteEntry]:
    """Return what the suite ``text`` (YAML) demands of its tests: one entry each, however many workloads a test has.

    The entries have no job (an empty ``spec``). Those of the pre-screen come first. ``name``: what messages call
    the file.

    Raises:
        ConfigError: something in it is wrong; the message has ``name`` and line
    """
    return [entry for entry, _, _ in _suite_entries(*read_content(text, name, SuiteFile))]


def _suite_entries(content: SuiteFile, at: At) -> Iterator[tuple[SuiteEntry, SuiteTest, str]]:
    """Yield (entry, test, path in the file) for each test of a suite, those of the pre-screen first.

    The entry says what the test demands, and has no job yet (an empty ``spec``); the path is ``$.tests[2]`` or
    ``$.prescreen[0]``, counted from 0. What a test does not give is as the suite's defaults say, else as of
    ``SuiteTest``. A test of the pre-screen has one repeat, one rerun and no reference unless it gives them itself.
    ``at``, called with such a path, gives its file and line.
    """
    # What the tests must reach is nothing to the pre-screen: it only has to run.
    screened = SuiteDefaults(repeats=1, reruns=1, reference="none")
    for section, items, defaults in (
        ("prescreen", content.prescreen, screened),
        ("tests", content.tests, content.defaults),
    ):
        for number, item in enumerate(items):
            path = f"$.{section}[{number}]"
            entry = SuiteEntry(
                spec=JobSpec(),
                where=at(path),
                repeats=_first_given(item.repeats, defaults.repeats, REPEATS),
                reruns=_first_given(item.reruns, defaults.reruns, RERUNS),
                required=_first_given(item.required, defaults.required, REQUIRED),
                reference=_first_given(item.reference, defaults.reference, "required"),
                prescreen=section == "prescreen",
            )
            yield entry, item, path


def _first_given(own: T | None, default: T | None, otherwise: T) -> T:
    """Return a test's own value, or if that is None the suite's default, or if that is None, too, ``otherwise``."""
    if own is not None:
        return own
    return default if default is not None else otherwise
