"""Names of variables that are nearly documented ones: slips are refused, shorter names are remarked on.

A user's environment holds hundreds of variables of other programs. So a name is refused only where it is one slip away
from a documented one, and a shorter name (``PROFILE`` for ``ENABLE_PROFILE``) is remarked on only where its value is
one that the documented variable takes, and the documented variable is not set.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Mapping

from llmb_common.command.secrets import SECRET_VARIABLES
from llmb_common.errors import RequestError

# Real variables of other programs that look like ours.
_NOT_TYPOS = {
    *("CPU_TYPE", "CHECKPOINT_PATH", "ENABLE_TRACE"),
    *("SBATCH_GPUS", "SBATCH_GPUS_PER_TASK", "SBATCH_MEM_PER_NODE", "SBATCH_NO_REQUEUE"),
}
_OTHERS = ("SLURM_", "SALLOC_", "SRUN_")

_TRUE = r"true|yes|on|1"
_NUMBER = r"[1-9][0-9]{0,5}"
_PREFIXES = {"ENABLE_": _TRUE, "JOB_TOTAL_": _NUMBER, "JOB_": _NUMBER, "MAX_": _NUMBER}
"""Beginnings that users leave out, and the values that make it likely that they mean us. ``PROFILE=false`` asks for
what happens anyway."""
_SYNONYMS = {
    **dict.fromkeys(("NUM_GPUS", "NGPUS", "N_GPUS"), "JOB_TOTAL_GPUS"),
    **dict.fromkeys(("NUM_STEPS", "TRAIN_STEPS"), "MAX_STEPS"),
    **dict.fromkeys(("NCCL_TRACE", "TRACE_NCCL"), "ENABLE_NCCLTRACE"),
    **dict.fromkeys(("PRECISION", "DATA_TYPE"), "DTYPE"),
    "PROFILING": "ENABLE_PROFILE",
}
_SYNONYM_VALUES = {"DTYPE": r"bf16|fp8|nvfp4", "JOB_TOTAL_GPUS": _NUMBER, "MAX_STEPS": _NUMBER}


def refuse_typos(variables: Mapping[str, str], documented: Collection[str]) -> None:
    """Refuse names that are probably misspelt.

    Raises:
        RequestError: the first name that is one slip away from a documented one.
    """
    # Short names (TP, VP) are too close to everything; a slip in those is caught by nothing but the plan's own print.
    candidates = tuple(name for name in documented if len(name) >= 5)
    for name in sorted(variables):
        if len(name) < 5 or name in documented or name in _NOT_TYPOS or name in SECRET_VARIABLES:
            continue
        if name.startswith(_OTHERS):
            continue
        if near := _near(name, candidates):
            raise RequestError(
                f"the variable {name} is unknown (did you mean {near}?)",
                remedy=f"rename it to {near}, or unset {name} if it is meant for something else",
                code="unknown-variable",
            )


@functools.cache  # the requests of a sweep or a campaign are read in one environment, and comparing takes longest
def _near(name: str, candidates: tuple[str, ...]) -> str:
    cutoff, name = 0.85 if len(name) > 7 else 0.79, name.upper()
    letters = set(name)
    # Letters of only one of the two have no partner: this rules out most candidates, 20 times as fast as the rest.
    possible = [
        other
        for other in candidates
        if max(abs(len(name) - len(other)), len(letters.symmetric_difference(other)))
        <= (1 - cutoff) * (len(name) + len(other))
    ]
    return next(iter(difflib.get_close_matches(name, possible, 1, cutoff)), "")


def shorter_names(variables: Mapping[str, str], documented: Collection[str]) -> dict[str, str]:
    """Variables that are probably meant for us and are not read: documented name to what was written instead."""
    known = {name: (meant, _SYNONYM_VALUES.get(meant, _TRUE)) for name, meant in _SYNONYMS.items()}
    for meant in documented:
        for prefix, values in _PREFIXES.items():
            if meant.startswith(prefix):
                known.setdefault(meant.removeprefix(prefix), (meant, values))
    found: dict[str, str] = {}
    for name, (meant, values) in known.items():
        value = variables.get(name, "").strip()
        if name not in documented and not variables.get(meant, "").strip() and re.fullmatch(values, value.lower()):
            found.setdefault(meant, f"{name}={value}")
    return found
