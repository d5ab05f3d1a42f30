"""Random jobs of all families, planned and put to the real Megatron-Bridge: whoever refuses one, the other does, too.

    .venv/bin/python tests/training/random_jobs.py 0.3 ENGINE_PYTHON 1000 [SEED]     (PYTHONPATH=tests:tests/training)
    .venv/bin/python tests/training/random_jobs.py 0.6 ENGINE_PYTHON 1000 [SEED]

A run of thousands is for developers; the suite asks a few (``test_random_jobs.py``).
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from training_jobs import REPOSITORY, training_environment

from llmb_common.base.errors import RequestError
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning import plan as planning
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_document

RECIPES = {
    "0.3": ("llama3.1", "llama4", "grok1", "nemotron4"),
    "0.6": ("llama3.1", "mbridge", "mbridge", "mbridge", "mbridge"),
}
"""By release; of ``mbridge`` more, which has most families."""

COLUMNS: dict[str, tuple[object, ...]] = {
    "TP": (1, 2, 3, 4, 8, 16),
    "PP": (1, 2, 4, 5, 8, 16),
    "VP": ("NA", 1, 2, 3, 4, 5, 8),
    "CP": (1, 2, 3, 4, 8),
    "EP": (1, 2, 4, 6, 8, 16, 64),
    "ETP": ("NA", 1, 2, 3, 8),
    "MBS": (1, 2, 3, 4),
    "GBS": (8, 96, 100, 256, 512, 1024, 4096),
    "FSDP": ("true", "false"),
    "CUDA_GRAPH": ("true", "false"),
    "RECOMPUTE_LAYERS": (0, 1, 2, 5, 40),
    "OFFLOAD_LAYERS": (0, 1, 10, 95),
    "SEQ_LENGTH": (24, 1000, 2048, 12288, 65536),
}

KNOWN = (
    # The plan refuses what Megatron would take without a word, and do nothing or something else with.
    ("this model has no experts", "core ignores EP and ETP of a dense model"),
    ("does not divide the experts' FFN size", "core finds it while it builds the experts"),
    ("does not divide the .* experts", "core finds it while it builds the experts"),
    ("of a pipeline stage", "core recomputes all layers of a stage that has fewer"),
    ("assigns its layers to stages itself", "a layout of more chunks than PP x VP: Megatron then takes another VP"),
    ("FSDP needs PP=1", "no function of NVIDIA's has both, and core 0.16 cannot; nobody has tried it"),
    ("is refused by Megatron itself", "the function is refused as it is; whether a change mends it, nobody knows"),
    ("and there are several kinds of them", "the function has no CUDA graphs to switch on"),
    ("can capture Megatron-FSDP", "core 0.16 dies when it captures it"),
    ("would cut the attention chunks", "our own attention: core knows no chunks"),
    ("a rank gets .* tokens, and", "Transformer Engine finds it at the first product"),
    ("is not a whole number of attention chunks", "our own attention finds it at the first step"),
    ("whose tokens have a length of their own", "Bridge takes it, and the images may not fit"),
    ("is not less than the", "core offloads all layers but the last"),
    ("Mamba (heads|groups)", "core finds it while it builds the Mamba layers"),
    ("query groups, which ranks exchange", "Transformer Engine finds it at the first attention"),
    (r"needs TP\*EP > 1", "core finds it while it builds the dispatcher"),
    ("leaves a rank .* needs a multiple of", "Transformer Engine finds it at the first product, or exchange"),
    ("inside one NVLink domain only", "Transformer Engine finds it when it registers user buffers"),
    ("decides more settings than one column", "NVIDIA's launcher does not turn FSDP off either"),
    ("has a whole matrix on a rank", "core finds it while it builds the optimizer"),
    ("CUDA_GRAPH and OFFLOAD_LAYERS", "core 0.19 takes it under a graph of the whole iteration; nobody has tried it"),
)
"""Words of the plan's refusals and of the request, and why Megatron does not refuse the same."""


@dataclass(frozen=True)
class Asked:
    """One request. ``plan_says``: why the plan refuses it; ``document``: job.json without the plan's rules, None where
    there is no such job."""

    recipe: str
    variables: dict[str, str]
    plan_says: str | None
    document: dict[str, Any] | None

    @property
    def told(self) -> str:
        return f"{self.plan_says or ''} {self.variables}"


def requests(release: str, count: int, seed: int) -> Iterator[Asked]:
    """``count`` random jobs for a release, the same for the same seed."""
    dice = random.Random(seed)
    while count:
        name = dice.choice(RECIPES[release])
        asked = _asked(name, release, dice)
        if asked is not None:
            count -= 1
            yield asked


def _asked(name: str, release: str, dice: random.Random) -> Asked | None:
    recipe = load_recipe(REPOSITORY / name)
    sizes = sorted({one.size for one in recipe.configurations if one.gpu != "any"})
    size = dice.choice(sizes)
    one = dice.choice([known for known in recipe.configurations if known.size == size and known.gpu != "any"])
    scale = dice.choice(one.scales) * dice.choice((1, 1, 1, 2, 3)) // dice.choice((1, 1, 1, 2, 4))
    variables = {
        **{"LLMB_INSTALL": "/i", "FORCE": "true", "PREFLIGHT": "off"},
        "LLMB_ENGINE": "0.6.2" if name == "mbridge" else release,
        **{"MODEL_SIZE": size, "GPU_TYPE": one.gpu, "DTYPE": one.dtype, "CONFIG_VARIANT": one.variant},
        "JOB_TOTAL_GPUS": str(max(1, scale)),
    }
    if one.fp8_recipe:
        variables["FP8_RECIPE"] = one.fp8_recipe
    if "peft" in one.variant:
        variables["LOAD_CHECKPOINT_PATH"] = "/"
    changed = dice.sample(sorted(COLUMNS), dice.choice((0, 1, 1, 2, 2, 3, 4)))
    variables |= {column: str(dice.choice(COLUMNS[column])) for column in changed}
    if dice.random() < 0.2:
        variables["ENABLE_CHECKPOINT"] = "true"
    try:
        with mock.patch.object(planning, "check_columns"):
            plan = _plan(name, variables)
    except (RequestError, ZeroDivisionError):
        plan = None
    said = None
    try:
        _plan(name, variables)
    except RequestError as error:
        said = error.message
    if plan is None and said is None:
        raise AssertionError(f"planned with the rules and not without: {variables}")
    if plan is None:
        return None  # no arithmetic of the layout: the recipe has no such job
    return Asked(name, variables, said, job_document(plan, dry_run_paths("/w", "x")))


def _plan(name: str, variables: dict[str, str]) -> JobPlan:
    request = read_request(variables)
    # Without containers, whose release is another than the engine's.
    site = cluster_config(slurm=SlurmSettings(runtime="none"))
    return planning.make_plan(load_recipe(REPOSITORY / name), site, request, Machine(cluster_type="slurm"))


def differences(asked: list[Asked], answers: list[str | None]) -> list[tuple[Asked, str | None]]:
    """What one refuses and the other does not, but for what is ``KNOWN``."""
    found = []
    for one, answer in zip(asked, answers, strict=True):
        known = any(re.search(words, one.told) for words, _ in KNOWN)
        if (one.plan_says is None) != (answer is None) and not (known and answer is None):
            found.append((one, answer))
    return found


def main(release: str, python: str, count: str, seed: str = "1") -> None:
    asked = list(requests(release, int(count), int(seed)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.jsonl"
        file.write_text("".join(json.dumps(one.document) + "\n" for one in asked))
        command = [python, str(Path(__file__).with_name("questions.py")), "refused", str(file)]
        environment = training_environment() | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if len(lines) != len(asked):
        sys.exit(done.stderr[-4000:])
    answers = [json.loads(line)["answer"] for line in lines]
    both = Counter((one.plan_says is not None, answer is not None) for one, answer in zip(asked, answers, strict=True))
    print(f"{len(asked)} jobs: {both[False, False]} taken and {both[True, True]} refused by both")
    for words, why in KNOWN:
        alone = sum(bool(re.search(words, one.told)) for one in asked)
        print(f"  {alone} refused by the plan alone or first: {why}")
    for one, answer in differences(asked, answers):
        said = {name: value for name, value in one.variables.items() if name not in ("LLMB_INSTALL", "FORCE")}
        print(f"DIFFERENT {one.recipe} {said}\n   plan:     {one.plan_says}\n   megatron: {answer}")


if __name__ == "__main__":
    main(*sys.argv[1:])
