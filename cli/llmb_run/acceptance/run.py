"""``llmb-run accept``: from its arguments to its result and its evidence pack.

The pack is an archive of the campaign's runs (records with their plans, scripts, logs, node facts, training code) with
the suite, what the campaign began with, the verdicts and the report beside them: all that it takes to believe these. No
secrets, as in every archive. ``show`` judges it again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import LLMBError, RequestError
from llmb_common.base.files import sha256_of, write_atomic, write_json
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted
from llmb_common.base.structs import from_plain
from llmb_common.health.ask import DAYS, Health, exclude_unfit
from llmb_common.health.verdicts import Fabric
from llmb_common.planning.job_plan import plan_as_dict
from llmb_common.planning.workspace import Workspace
from llmb_run.acceptance.health import HEALTH, after_runs, fabric_of, slow_nodes
from llmb_run.acceptance.outcome import (
    STATUS,
    as_text,
    conclusion,
    for_report,
    headline,
    in_todays_words,
    outcome,
)
from llmb_run.acceptance.suite import Suite, find_suite, read_suite
from llmb_run.acceptance.workloads import (
    AcceptanceStrategy,
    FrozenSuite,
    SuiteWorkload,
    WorkloadProgress,
    freeze,
    plan_suite,
)
from llmb_run.campaigns.campaign import ANEW, Campaign, answered, begin_or_go_on
from llmb_run.campaigns.conduct import Conduct, attempt_of
from llmb_run.reporting.answer import of_campaign
from llmb_run.reporting.fabric import fabric_part
from llmb_run.reporting.forms import junit, page
from llmb_run.reporting.report import Report, build
from llmb_run.results.archiving import Mask, stored_secrets, write_archive
from llmb_run.results.run_columns import as_dict, reference_as_dict
from llmb_run.starting.requests import say_warnings
from llmb_run.starting.submitting import require_health, say_doubts
from llmb_run.terminal import next_command, table
from llmb_run.under_load import look_at_fabric


def planned_json(item: SuiteWorkload) -> dict[str, Any]:
    """Return a workload of a campaign's dry run as JSON values: its plan, and what it would be compared with.

    The keys: ``title``; ``where`` (file and line in the suite); ``prescreen``, ``speed_wanted`` (the suite asks for
    a reference) and ``indication`` (booleans); ``repeats`` and ``reruns`` (numbers); ``reference`` as
    ``reference_as_dict`` returns it; ``required``; ``limit_seconds``, the step time below which the workload
    passes; ``limit_performance``, the reference's step time divided by that: ``required``, or less where the
    reference is only an indication; ``plan`` as ``plan_as_dict`` returns it. ``reference``, ``required`` and both
    limits are None without a reference.
    """
    entry = item.entry
    reference = item.reference
    limit = item.limit
    return {
        "title": item.title,
        "where": entry.where,
        "prescreen": entry.prescreen,
        "repeats": entry.repeats,
        "reruns": entry.reruns,
        "speed_wanted": entry.reference != "none",
        "indication": item.indication,
        "reference": reference_as_dict(reference),
        "required": entry.required if reference else None,
        "limit_seconds": limit,
        "limit_performance": reference.seconds / limit if reference and limit else None,
        "plan": plan_as_dict(item.plan),
    }


def planned_text(workloads: Sequence[SuiteWorkload]) -> str:
    """Return the table of a campaign's dry run, with headings and a final newline: a row for each workload.

    It has title, GPUs, nodes, runs, reruns, the reference's and the slowest passing step time in seconds, the
    performance that is required in percent (``> 95.0``), and the reference's source. Without a reference, the cells
    of its figures are empty, and the last says what then counts. ``workloads`` are all of the suite, as
    ``plan_suite`` returns them.
    """
    heads = ["workload", "GPUs", "nodes", "runs", "reruns", "reference s", "limit s", "required %", "reference"]
    rows = []
    for item in workloads:
        entry = item.entry
        plan = item.plan
        reference = item.reference
        limit = item.limit
        row = [item.title, str(plan.gpus), str(plan.nodes), str(entry.repeats), f"up to {entry.reruns}"]
        if reference is None or limit is None:
            row += ["", "", "", "only has to complete" if entry.reference == "none" else "none: not judged"]
        else:
            source = f"indication: {reference.source}, {reference.software}" if item.indication else reference.source
            row += [f"{reference.seconds:g}", f"{limit:.4g}", f"> {100 * reference.seconds / limit:.1f}", source]
        rows.append(row)
    return table(heads, rows, heads[1:8])


def at_best(workloads: Sequence[SuiteWorkload], *, evening: bool) -> dict[str, Any]:
    """Return the conclusion that the campaign reaches if every workload passes, as ``outcome.conclusion`` does.

    Its keys are ``outcome``, ``accepted``, ``indication``, ``evening`` and ``why``. Passing is not enough for
    "accepted" where a reference is missing. ``evening``: the campaign judges one evening alone. ``workloads`` are
    all of the suite, as ``plan_suite`` returns them.
    """
    return conclusion([{**planned_json(item), "verdict": "pass"} for item in workloads], evening=evening)


def foreseen_lines(workloads: Sequence[SuiteWorkload], *, evening: bool) -> list[str]:
    """Return, before anything runs, what keeps the campaign from ending as a full acceptance even if all runs pass.

    That is a missing reference (of a workload whose speed the suite wants judged, or of all), else one of other
    software, else ``evening`` (it judges one evening alone). A list with one sentence, without a period, such as
    ``2 of 5 workloads have no reference: at best this campaign ends NOT JUDGED (...)``; an empty list where nothing
    does. The pre-screen does not count. ``workloads`` are all of the suite, as ``plan_suite`` returns them.
    """
    main = [item for item in workloads if not item.entry.prescreen]
    judged = [item for item in main if item.reference is not None]
    best = at_best(workloads, evening=evening)
    if best["outcome"] == "not judged":
        return [
            f"{len(main) - len(judged)} of {counted(len(main), 'workload')} have no reference: at best this campaign"
            " ends NOT JUDGED (llmb-run baseline set RUN..., or reference: {seconds: ..., source: ...})"
        ]
    others = sum(item.indication for item in judged)
    if others:
        return [
            f"{others} of {counted(len(main), 'workload')} will be compared with results of other software, within a "
            f"wider limit: at best this campaign ends {headline(best)}"
        ]
    if evening:
        return [f"runs of one evening say nothing about other days: at best this campaign ends {headline(best)}"]
    return []


def write_pack(
    campaign: Campaign,
    frozen: FrozenSuite,
    result: dict[str, Any],
    standings: Sequence[WorkloadProgress],
    fabrics: Sequence[Fabric],
    workspace: Workspace,
) -> dict[str, Any]:
    """Write the evidence pack and report of a campaign into its folder, secrets masked, replacing earlier ones.

    ``result`` is what ``outcome`` made of ``frozen``, ``standings`` and ``fabrics``; the secrets are those stored
    in the installation of ``workspace``. Returns ``pack`` and ``report``, the names of the files there, and
    ``pack_sha256``. The pack is ``SUITE.tar.zst``, without zstd ``SUITE.tar.gz``, and has the folders of all runs,
    ended or not; the report is ``report.html``, of the runs that have ended, and is written first: it stays where the
    pack cannot be written. Prints a notice on stderr for each file that is left out because secrets in it cannot be
    masked.

    Raises:
        RecordError: the pack cannot be written, or the record of a run cannot be read
        OSError: a file of the campaign or the log of a run cannot be read, or the report not written
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    runs = list(chain.from_iterable(item.runs for item in standings))
    measured = [run.measured for run in runs if run.measured is not None]
    ended = max((run.record.state_time for run in runs), default=frozen.began)
    secrets = stored_secrets(workspace.install)
    mask = Mask(secrets)
    plain = build(measured, workspace, f"Acceptance of {result['suite']}")
    about = for_report(result)
    parts = tuple(map(fabric_part, fabrics))
    plain = msgspec.structs.replace(plain, campaign=about, fabrics=parts, answer=of_campaign(about))
    # Before it becomes a page: masking that would change its scripts too, and then no browser runs them.
    report: Report = from_plain({**mask.value(msgspec.to_builtins(plain)), "made": round(ended)}, Report)
    html = page(report)
    evidence = _campaign_evidence(campaign, result, mask)
    evidence["campaign/report.xml"] = junit(report).encode()
    write_atomic(campaign.folder / "report.html", html)
    evidence["campaign/report.html"] = html.encode()
    path = campaign.folder / (frozen.suite_name + (".tar.zst" if shutil.which("zstd") else ".tar.gz"))
    written = write_archive(
        path,
        [run.record.paths.folder for run in runs],
        [as_dict(item) for item in measured],
        secrets=secrets,
        overwrite=True,
        more=evidence,
    )
    for name in written.left_out:
        notice(f"not in the evidence, because secrets in it could not be masked: {name}")
    return {"pack": path.name, "pack_sha256": sha256_of(path), "report": "report.html"}


def _campaign_evidence(campaign: Campaign, result: dict[str, Any], mask: Mask) -> dict[str, bytes]:
    """Return the campaign's own files for its evidence pack, by their names there, with secrets masked by ``mask``.

    They are the suite, what the campaign began with, its ``result`` in both forms and, if there is one, the health of
    its nodes.

    Raises:
        OSError: a file of the campaign cannot be read
    """
    evidence = {
        "campaign/suite.yaml": mask.text((campaign.folder / "suite.yaml").read_bytes()),
        "campaign/campaign.json": mask.text(campaign.frozen_file.read_bytes()),
        "campaign/verdicts.json": json.dumps(mask.value(result), indent=2, allow_nan=False).encode(),
        "campaign/verdicts.txt": mask.text(as_text(result).encode()),
    }
    health = campaign.folder / HEALTH
    if health.exists():
        evidence[f"campaign/{HEALTH}"] = mask.text(health.read_bytes())
    return evidence


def accept(word: str, *, again: bool, folder: Path | None, dry_run: bool, evening: bool = False) -> Result:
    """Begin, continue or show the campaign of the acceptance suite ``word``, a name or path; return its result.

    Jobs are submitted and followed to their end; of a campaign that is over, the result on disk is shown, and nothing
    is started. Warnings on the jobs, and what keeps it from a full acceptance, are printed as notices. ``again``: begin
    another one instead of continuing or showing the latest. ``folder``: where campaigns are kept; None: ``campaigns``
    in the installation. ``dry_run``: only show what would be started, whatever ``again`` and ``folder`` are, with exit
    status 0. ``evening``: judge the speed of a single evening, as a campaign of its own. The data is that of
    ``outcome`` and ``write_pack`` with the campaign's ``folder``; of a dry run as ``_show_plans`` says. The exit status
    is 0 where it is accepted, 1 where not, 4 where that stays open or was not judged.

    Raises:
        ConfigError: there is no such suite, or something in it is wrong or cannot be run
        Interrupted: by the user; the same command continues it
        LLMBError: the campaign cannot be begun or continued for another reason
        OSError: a file of the campaign or of a run, or one that a submission needs, cannot be read or written
    """
    workspace = Workspace()
    suite = read_suite(*find_suite(word), workspace)
    if dry_run:
        workloads = plan_suite(suite, workspace, dry_run=True)
        say_warnings([item.planned for item in workloads if item.planned])
        return _show_plans(workloads, suite, evening=evening)

    def conducted(campaign: Campaign) -> dict[str, Any]:
        """Begin the campaign or go on with it, run it to its end, write its pack; return the result as JSON values.

        The result has the keys of ``outcome`` and ``write_pack``; suite, workspace and ``evening`` are those of the
        enclosing function. Where the suite wants it, the nodes are checked first, unless that has been done. In the
        end, nodes that were found slow are excluded from later jobs. May be called again after any interruption.

        Raises:
            Interrupted: by the user
            LLMBError: the suite cannot be run, or the campaign not continued
            OSError: a file of the campaign or of a run, or one that a submission needs, cannot be read or written
        """
        workloads = plan_suite(suite, workspace, dry_run=False)
        say_warnings([item.planned for item in workloads if item.planned])
        say_doubts(item.plan for item in workloads)
        if not campaign.frozen_file.exists():
            # Before the file with which there is a campaign: its pack needs the suite.
            write_atomic(campaign.folder / "suite.yaml", suite.text)
        frozen = begin_or_go_on(campaign, freeze(campaign, suite, workloads, evening=evening))
        workloads = frozen.frozen(workloads)
        for text in foreseen_lines(workloads, evening=evening):
            notice(text)
        if suite.health and not (campaign.folder / HEALTH).exists():
            _check_nodes(campaign, workloads, workspace, fabric=suite.health == "fabric")
        judged = AcceptanceStrategy(workloads)
        ended = partial(attempt_of, trained_counts=frozen.trained_counts)
        runs = Conduct(campaign, [item.arm for item in workloads], judged, workspace, notice, ended).to_the_end()
        standings = judged.standings(runs)
        fabrics = after_runs(fabric_of(campaign.folder), standings)
        _exclude_nodes(slow_nodes(fabrics, standings), workspace)
        result = outcome(frozen, standings, fabrics)
        return result | write_pack(campaign, frozen, result, standings, fabrics, workspace)

    return answered(
        folder or workspace.require_install() / "campaigns",
        "accept",
        suite.name,
        f"{suite.path} for one evening" if evening else str(suite.path),
        find=conducted,
        show=_shown_result,
        again=again,
        is_over=lambda result: _require_same_suite(result, suite),
    )


def _check_nodes(campaign: Campaign, workloads: Sequence[SuiteWorkload], workspace: Workspace, *, fabric: bool) -> None:
    """Look at the nodes before a campaign's runs, exclude those that fail, and write the findings into its health file.

    The nodes are those that the jobs of ``workloads`` may get. ``fabric``: also measure between nodes. Where no
    node can be asked, such as when none is free, that is written and printed on stderr, and is no error: the
    pre-screen looks at its nodes. After an error no findings are written; nodes that failed stay excluded.
    ``workspace`` is that of the jobs.

    Raises:
        LLMBError: a node that a job asks for fails, the fabric as a whole fails, no node is left, or asking fails
            for another reason than code ``no-nodes``
        OSError: the findings cannot be written, or a part of LLMB or a folder of the job not be looked at
    """
    looked: list[Health] = []
    why = ""
    under_load = partial(look_at_fabric, workspace=workspace) if fabric else None
    try:
        looked = require_health([item.plan for item in workloads], workspace, under_load)
    except LLMBError as error:
        if error.code != "no-nodes":
            raise
        why = error.message
        notice(f"health: {why}")
    nodes = list(chain.from_iterable(found.verdicts for found in looked))
    fabrics = [found.fabric for found in looked if found.fabric is not None]
    plain = {"nodes": msgspec.to_builtins(nodes), "fabric": msgspec.to_builtins(fabrics)}
    write_json(campaign.folder / HEALTH, {"schema": 1, **plain, "why": why})


def _exclude_nodes(slow: Mapping[str, str], workspace: Workspace) -> None:
    """Exclude the nodes ``slow`` from later jobs for ``DAYS`` days, and print a notice of each; empty: exclude none.

    ``slow``: by node name, what fabric and training showed, which becomes the reason. Writes the exclusion list of
    the workspace's installation.

    Raises:
        RequestError: there is no installation
        RecordError: the list cannot be read or written
        OSError: the list cannot be locked
    """
    exclude_unfit(workspace.require_install(), slow)
    for node, why in slow.items():
        notice(f"{node} is excluded for {DAYS:g} days: {why}")


def _require_same_suite(result: dict[str, Any], suite: Suite) -> bool:
    """Return True if ``result``, of a campaign that is over, is of the suite as it is now; else raise. Never False.

    ``result`` is as ``outcome`` returns it; the texts' hashes are compared (``suite_sha256``; KeyError without that).

    Raises:
        RequestError: code ``changed-inputs``: the suite was changed since
    """
    if result["suite_sha256"] != suite.sha256:
        raise RequestError(
            f"the campaign of {suite.path} is over; the suite was changed since",
            remedy=ANEW,
            code="changed-inputs",
        )
    return True


def _shown_result(result: dict[str, Any]) -> Result:
    """Return what ``accept`` shows of a campaign that is over: its text, where its evidence is, and the exit status.

    ``result`` is as ``conducted`` returned it, by any release, with the campaign's ``folder``, a path, added to it.
    The status is 0, 1 or 4, as of ``accept``.
    """
    result = in_todays_words(result)
    return Result(
        result,
        as_text(result),
        status=STATUS[result["outcome"]],
        remarks=[
            f"evidence: {Path(result['folder']) / result['pack']}",
            f"sha256 {result['pack_sha256']}; keep it apart from the file: sha256sum checks it",
        ],
        hint=next_command("accept", "show", result["folder"]),
    )


def _show_plans(workloads: Sequence[SuiteWorkload], suite: Suite, *, evening: bool) -> Result:
    """Return what a dry run of ``accept`` shows: the planned workloads, and how the campaign can end at best.

    ``workloads`` are those of ``suite``. As JSON: ``dry_run`` (True), ``suite`` (its name), ``suite_sha256``,
    ``at_best`` and ``workloads``, as ``at_best`` and ``planned_json`` return them. The exit status is 0.
    ``evening``: the campaign would judge one evening alone.
    """
    return Result(
        lambda: {
            "dry_run": True,
            "suite": suite.name,
            "suite_sha256": suite.sha256,
            "at_best": at_best(workloads, evening=evening),
            "workloads": [planned_json(item) for item in workloads],
        },
        lambda: planned_text(workloads),
        remarks=[
            *foreseen_lines(workloads, evening=evening),
            f"{counted(len(workloads), 'workload')}, nothing started (dry run)",
        ],
    )
