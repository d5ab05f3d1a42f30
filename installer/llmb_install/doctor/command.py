"""``llmb-install doctor``: is this site ready, and if not, what is to be done? Changes nothing."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import msgspec

from llmb_common.command.outcome import Result
from llmb_common.command.words import is_slurm_name
from llmb_common.errors import RequestError
from llmb_common.machine.files import require_trusted
from llmb_common.platform.cluster_types import LOCAL, SLURM, traits_of
from llmb_common.site.cluster import FILE_NAME, ClusterConfig, load_cluster_config
from llmb_common.site.machine import way_here
from llmb_install.answers.detect import detect_site
from llmb_install.doctor.checks import all_checks
from llmb_install.doctor.facts import gather
from llmb_install.doctor.node_checks import Check
from llmb_install.parts.files import read_settings
from llmb_install.working.reporter import Reporter

_MARKS = {"ok": "ok", "doubt": "doubt", "blocks": "BLOCKS"}


def doctor(asked: argparse.Namespace, clone: Path, install: Path) -> Result:
    """The report; exit status 1 when something blocks."""
    if (install / FILE_NAME).is_file():
        require_trusted(install / FILE_NAME, install)
        read_settings(install / FILE_NAME)
    config = _with_flags(load_cluster_config(install), asked)
    with Reporter(None, verbose=asked.verbose) as reporter, reporter.step("looking at this site") as step:
        if not asked.no_compute_node and traits_of(config.cluster_type or LOCAL).slurm_options:
            step.update("this machine, Slurm, one compute node")
        facts = gather(config, install, clone, ask_node=not asked.no_compute_node)
    checks = all_checks(facts)
    blocked = any(check.level == "blocks" for check in checks)
    rows = [dataclasses.asdict(check) for check in checks]
    return Result({"checks": rows}, "\n".join([*_lines(checks), ""]), status=int(blocked))


def _with_flags(config: ClusterConfig, asked: argparse.Namespace) -> ClusterConfig:
    """The site's settings, with what the command line says and, for an unknown site, what is found."""
    kind = config.cluster_type or (SLURM if detect_site().has_slurm else way_here())
    changes = {"account": asked.account, "gpu_partition": asked.gpu_partition}
    for field, value in changes.items():
        if value and not is_slurm_name(value):
            raise RequestError(
                f"--{field.replace('_', '-')} {value!r} is not a valid name in Slurm", remedy="correct it"
            )
    slurm = msgspec.structs.replace(config.scheduler(SLURM), **{key: value for key, value in changes.items() if value})
    return msgspec.structs.replace(config, cluster_type=kind, slurm=slurm)


def _lines(checks: list[Check]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.level]:7} {check.name:{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':7} {'':{width}}  -> {check.remedy}")
    counts = {level: sum(check.level == level for check in checks) for level in _MARKS}
    lines.append(f"{counts['ok']} ok, {counts['doubt']} in doubt, {counts['blocks']} block")
    return lines
