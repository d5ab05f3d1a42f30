"""The training engine outside containers: whether it is installed, and of the planned release."""

from __future__ import annotations

import re
from pathlib import Path

from llmb_common.base.engines import DEFAULT_ENGINE, is_newer
from llmb_common.base.errors import EnvironmentLacks
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.cluster import FILE_NAME

ENGINE_CHECK = "LLMB_ENGINE_CHECK"
"""``off``: train with whatever Megatron is there. The ranks read it too (``llmb_train.engine``)."""


def check_engine(plan: JobPlan) -> None:
    """Raise unless the Python that trains without a container, ``plan.engine_python``, has the Megatron-Bridge needed.

    That is the same minor release as ``plan.engine``, by the names of its folders; the Python is not started. It
    passes where these do not say which release it has, and where the plan's environment has ``LLMB_ENGINE_CHECK=off``
    (in any case) for another release.

    Raises:
        EnvironmentLacks: code ``no-engine``: that Python is not set, missing or not readable; code ``wrong-engine``:
            it has another release
    """
    if plan.engine_python is None:
        usual = plan.engine == DEFAULT_ENGINE
        key = "engine.python" if usual else f'engine.releases."{plan.engine}"'
        installed = (Path(plan.install) / FILE_NAME).exists()
        steps = [] if installed else ["./installer.py --quickstart"]
        if is_newer(plan.engine):
            steps = []
        elif installed or not usual:
            steps.append(f"llmb-install add {plan.workload}" + ("" if usual else f" --engines {plan.engine}"))
        raise EnvironmentLacks(
            "no training engine is installed" + ("" if usual else f" that has Megatron-Bridge {plan.engine}"),
            remedy=(f"run {' and then '.join(steps)}, or " if steps else "")
            + f"set {key} in cluster_config.yaml to a Python that has Megatron-Bridge",
            code="no-engine",
        )
    try:
        present = Path(plan.engine_python).is_file()
    except OSError:  # a parent directory that we may not enter
        present = False
    if not present:
        raise EnvironmentLacks(
            f"the training engine's Python {plan.engine_python} is missing or not readable",
            remedy="run llmb-install update, which repairs it",
            code="no-engine",
        )
    found = _release_of(Path(plan.engine_python))
    unchecked = plan.env.get(ENGINE_CHECK)
    if found not in (None, plan.engine) and (unchecked is None or unchecked.value.lower() != "off"):
        raise EnvironmentLacks(
            f"{plan.recipe} needs Megatron-Bridge {plan.engine}; the engine {plan.engine_python} has {found}",
            remedy=f"correct the engine of {plan.engine} in {FILE_NAME}"
            + ("" if is_newer(plan.engine) else f"; llmb-install add {plan.workload} brings one"),
            code="wrong-engine",
        )


def _release_of(python: Path) -> str | None:
    """Return the minor release of Megatron-Bridge, such as ``0.3``, that is installed for the Python ``python``.

    ``python`` is a path such as ``/venv/bin/python``. Read from the names of its folders; None where it has none, or
    they do not tell. Of several any one.
    """
    packages = python.parent.parent.glob("lib/python3*/site-packages/megatron_bridge-*.dist-info")
    releases = (re.match(r"megatron_bridge-([0-9]+\.[0-9]+)\.", folder.name) for folder in packages)
    return next((release[1] for release in releases if release), None)
