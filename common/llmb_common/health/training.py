"""Training as a second witness: a node that the fabric only warns of fails where training runs are slower with it, too.

What a slow node costs a job depends on the job, so nobody fails a node for its all-reduce alone. Runs that were not
slower are said as well, and so is that nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from llmb_common.base.hostlist import compress
from llmb_common.base.printable import counted, percent
from llmb_common.health.ask import Health
from llmb_common.health.fabric import fabric_remarks
from llmb_common.health.verdicts import with_remarks, without_remarks
from llmb_common.nodes.fabric.judging import with_findings
from llmb_common.nodes.fabric.verdict import FabricFinding, FabricVerdict
from llmb_common.nodes.findings import Remark
from llmb_common.results.slow_nodes import NodeRun, Witness, witnesses


def after_training(verdict: FabricVerdict, runs: Sequence[NodeRun]) -> FabricVerdict:
    """Return a copy of the verdict on a fabric with what training runs say of each node that it only warns of.

    Such a node fails if runs with it are slower than runs without by more than chance, and no other node was in all of
    them, too; else its finding stays a warning. Either gets the runs' word as ``training``; all other findings stay.
    ``runs`` may be of any nodes; nothing is measured here, and ``verdict`` is not changed. It is returned as it is
    where it warns of no single node.
    """
    suspects = verdict.suspects
    if not suspects:
        return verdict
    heard = witnesses({finding.hosts[0] for finding in suspects}, runs)
    findings = []
    for finding in verdict.findings:
        if finding in suspects:
            findings.append(_with_witness(finding, heard[finding.hosts[0]]))
        else:
            findings.append(finding)
    return with_findings(verdict, findings)


def _with_witness(finding: FabricFinding, witness: Witness) -> FabricFinding:
    """Return a copy of the finding on a node with what training runs say of it (``training``).

    ``witness`` is what they say. The finding becomes a failure where runs with the node are slower, and no other node
    was in all of them, too.
    """
    confirmed = witness.says == "slower" and not witness.together
    return msgspec.structs.replace(finding, level="fail" if confirmed else finding.level, training=_words(witness))


def _words(witness: Witness) -> str:
    """Return what training runs say of a node, as the end of a sentence about it, without a period.

    Such as ``3 training runs with it are 4.1 % slower than 5 runs without it``. Where they say nothing, that it is not
    known. ``witness`` is what they say.
    """
    if witness.says == "nothing":
        return "what that costs a training job is not known here"
    runs = counted(witness.with_it, "training run")
    others = counted(witness.without, "run")
    if witness.says == "not slower":
        return f"{runs} with it were not slower than {others} without it by more than {percent(witness.share)}"
    slower = f"{percent(witness.share)} slower than {others} without"
    if witness.together:
        return f"{runs} with it and {compress(witness.together)} are {slower}, which of them it is they do not tell"
    return f"{runs} with it are {slower} it"


def with_training(found: Health, runs: Sequence[NodeRun]) -> Health:
    """Return the health of nodes with what training runs say of those that the fabric's verdict only warns of.

    It is a copy in which the fabric's verdict is that of ``after_training``: a node that was warned of may fail now,
    none gets better. The verdicts on these nodes are judged anew with the findings' new texts and levels; ``found`` is
    not changed. It is returned as it is where no fabric was measured, or its verdict warns of no single node. ``runs``
    may be of any nodes; without any no level changes.
    """
    if found.fabric is None or not found.fabric.verdict.suspects:
        return found
    measured, before = found.fabric.measurement, found.fabric.verdict
    verdict = after_training(before, runs)
    old = _by_node(fabric_remarks(measured, before))
    new = _by_node(fabric_remarks(measured, verdict))
    verdicts = with_remarks(without_remarks(found.verdicts, old), new)
    return replace(found, verdicts=verdicts, fabric=msgspec.structs.replace(found.fabric, verdict=verdict))


def _by_node(remarks: Iterable[tuple[str, Remark]]) -> dict[str, list[Remark]]:
    """Return the remarks of (node, remark) pairs by node, in their order; nodes without any are missing."""
    found: dict[str, list[Remark]] = {}
    for node, remark in remarks:
        found.setdefault(node, []).append(remark)
    return found
