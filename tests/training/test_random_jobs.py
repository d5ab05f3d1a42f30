"""A few of the random jobs of ``random_jobs.py``: what the plan takes Megatron takes, and what it refuses, too.

Those of Megatron-Bridge 0.6 are asked in ``test_other_engine.py``.
"""

from __future__ import annotations

import random_jobs
from training_jobs import Engine

COUNTS, SEED = {"0.3": 200, "0.6": 50}, 20261124
"""200 of the documented recipes meet 23 of the 24 refusals that 300 meet; a function takes longer to call."""


def what_differs(release: str, engine: Engine) -> list[object]:
    count = COUNTS[release]
    asked = list(random_jobs.requests(release, count, SEED))
    assert count // 5 < sum(one.plan_says is None for one in asked) < count * 4 // 5
    answers = list(engine.ask("refused", {str(number): one.document for number, one in enumerate(asked)}).values())
    return [
        (one.recipe, one.variables, one.plan_says, answer) for one, answer in random_jobs.differences(asked, answers)
    ]


def test_documented_models_in_the_first_release(engine: Engine) -> None:
    assert what_differs("0.3", engine) == []
