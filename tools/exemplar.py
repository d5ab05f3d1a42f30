"""The list of NVIDIA's Exemplar Clouds as data: ``python -m tools.exemplar CHECKOUT``, of NVIDIA/exemplar-performance.

The suites ``exemplar-...`` are made from what it writes (``llmb_run.acceptance.exemplar``): workloads and precisions by
GPU type, the number of GPUs, the release, its day, and the day of looking them up. The list does not say which scaling
FP8 has; that stands in each workload's ``launch.sh``, and ``SCALINGS`` has it as somebody read it there. Where those
lines are others than the ones that were read, nothing is written.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.files import write_atomic
from llmb_common.base.outcome import guarded
from llmb_common.base.strict_yaml import load_text, read_text

FILE = Path(__file__).parents[1] / "cli" / "llmb_run" / "acceptance" / "exemplar.json"

SOURCE = "https://github.com/NVIDIA/exemplar-performance"


@dataclass(frozen=True)
class Scaling:
    """How a workload scales FP8 on the list's number of GPUs: ``usual``, or by GPU type.

    ``digest`` is of the lines of ``script`` that this was read in.
    """

    script: str
    digest: str
    usual: str
    by_gpu: dict[str, str]

    def on(self, gpu_type: str) -> str:
        return self.by_gpu.get(gpu_type, self.usual)


SCALINGS = {
    "pretrain_deepseek-v3_671b": Scaling(
        "deepseek_v3/pretrain/megatron_bridge/launch.sh", "4f01673d46ca", "mx", {"h100": "sc"}
    ),
    "pretrain_kimi-k2_1t": Scaling("kimi-k2/launch.sh", "538644ef9afe", "mx", {}),
    "pretrain_llama3.1_405b": Scaling("llama3.1/pretrain/megatron_bridge/launch.sh", "ce89ccadd76d", "cs", {}),
    "pretrain_llama3.1_70b": Scaling(
        "llama3.1/pretrain/megatron_bridge/launch.sh", "ce89ccadd76d", "cs", {"b200": "mx", "b300": "mx"}
    ),
    "pretrain_nemotron-h_56b": Scaling("nemotron-h/launch.sh", "0cc3ccd506f8", "cs", {}),
    "pretrain_nemotron_3_120b": Scaling("nemotron3/launch.sh", "5243f4faa5c1", "mx", {"h100": "cs"}),
    "pretrain_qwen3_235b": Scaling("qwen3/pretrain/launch.sh", "392856d158de", "mx", {"h100": "cs"}),
}
"""By NVIDIA's name of the workload, of those that are in the list with FP8."""


def main(words: list[str]) -> int:
    """Write the file; 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.exemplar", description=__doc__)
    parser.add_argument("checkout", type=Path, help=f"a checkout of {SOURCE}, at a release")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="the day of looking up (today)")
    asked = parser.parse_args(words)
    write_atomic(FILE, text(asked.checkout, asked.date))
    print(f"{FILE}: written; read docs/acceptance.md again, and run the tests of the suites")
    return 0


def text(checkout: Path, looked_up: str) -> str:
    """The file, as JSON.

    Raises:
        RequestError: something in the checkout is not as it was when this was written.
    """
    document, _ = load_text(read_text(checkout / "exemplar.yaml"), "exemplar.yaml")
    config = document["config"]
    if config["profile"]:
        raise RequestError("the list asks for profiles", remedy="profiled runs are slower: decide what the suites do")
    release, date = _release(checkout)
    workloads: dict[str, dict[str, list[str]]] = {}
    for gpu_type, listed in document["workloads"].items():
        workloads[gpu_type] = {}
        for item in listed:
            for name, precisions in item.items():
                dtypes = [_precision(checkout, name, gpu_type, dtype) for dtype in precisions["dtypes"]]
                workloads[gpu_type][name] = dtypes
    facts: dict[str, Any] = {
        "looked_up": looked_up,
        "source": f"{SOURCE}/blob/{release}/exemplar.yaml",
        "release": release,
        "date": date,
        "scale": config["scale"],
        "repeats": config["repeats"],
        "workloads": workloads,
    }
    return json.dumps(facts, indent=1) + "\n"


def _release(checkout: Path) -> tuple[str, str]:
    """Name and day of the release, ``v26.08.00`` and ``2026-08-18``: the first one in its changelog."""
    found = re.search(r"^## \[(v[0-9.]+)\] - ([0-9-]{10})$", read_text(checkout / "CHANGELOG"), re.MULTILINE)
    if found is None:
        raise RequestError(f"{checkout}/CHANGELOG names no release", remedy="check out a release")
    return found[1], found[2]


def _precision(checkout: Path, workload: str, gpu_type: str, dtype: str) -> str:
    """``bf16``, or FP8 with its scaling: ``fp8 mx``."""
    if dtype != "fp8":
        return dtype
    if workload not in SCALINGS:
        raise RequestError(f"{workload} has FP8 now", remedy="read its launch.sh, and add it to SCALINGS")
    scaling = SCALINGS[workload]
    digest = digest_of(read_text(checkout / scaling.script))
    if digest != scaling.digest:
        raise RequestError(
            f"{scaling.script} has other lines on FP8_RECIPE than when they were read ({digest})",
            remedy="read them, correct SCALINGS, and give it this digest",
        )
    return f"fp8 {scaling.on(gpu_type)}"


def digest_of(script: str) -> str:
    """A short hash of the lines of a ``launch.sh`` that choose the scaling, and of the conditions before them."""
    lines = [line.strip() for line in script.splitlines() if line.strip() and not line.strip().startswith("#")]
    chosen: set[int] = set()
    for number, line in enumerate(lines):
        if "FP8_RECIPE" in line:
            chosen.update(range(max(0, number - 3), number + 1))
    return hashlib.sha256("\n".join(lines[number] for number in sorted(chosen)).encode()).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
