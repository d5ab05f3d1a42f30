"""``llmb-run accept show``: what a campaign demanded, and its verdict, judged again from its own logs.

Whoever can write a pack can write hashes that fit. What is harder to forge is that all parts agree: every run is judged
again by the code that conducts campaigns, by what the suite demands and with the references that the campaign began
with, and what comes of it must be what the pack says.

Whether the files are those that somebody wrote is for ``sha256sum`` and ``ssh-keygen`` (``docs/acceptance.md``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from llmb_common import __version__
from llmb_common.base.errors import CheckFailed, RecordError
from llmb_common.base.files import read_json, read_plain
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, percent
from llmb_common.base.structs import from_plain
from llmb_common.nodes.fabric.judging import judge
from llmb_common.nodes.fabric.verdict import FabricVerdict
from llmb_common.planning.job_plan import plan_as_dict
from llmb_common.planning.workspace import Workspace
from llmb_common.results.references import published_references
from llmb_common.runs.timing.job_events import read_events
from llmb_run.acceptance.health import HEALTH, after_runs, fabric_of
from llmb_run.acceptance.outcome import STATUS, as_text, headline, in_todays_words, outcome
from llmb_run.acceptance.recorded import CampaignFiles, RecordedCampaign, files_of
from llmb_run.acceptance.suite import Stated, SuiteEntry, suite_terms
from llmb_run.acceptance.workloads import AcceptanceStrategy, FrozenSuite, SuiteWorkload, WorkloadProgress
from llmb_run.campaigns.campaign import changed_values, fixed_values
from llmb_run.campaigns.conduct import Conduct, attempt_of

UNDER_WAY = 4
"""Exit status where a campaign has no verdict yet: as where it ends without one."""

SAME = 0.01
"""Step times that two releases of LLMB take from one log differ by less, relatively. Bounds are not compared: how sure
a figure is has changed from release to release."""

_WORKLOAD = ("title", "prescreen", "gpus", "verdict", "indication", "required", "step_seconds", "performance")
_REFERENCE = ("kind", "seconds", "software", "source")
_RUN = ("run_id", "state", "step_seconds")


def show_campaign(folder: Path) -> Result:
    """Judge the campaign in ``folder`` again from its logs, and return what ``accept show`` shows of it.

    ``folder`` is an unpacked evidence pack, or a campaign's own folder; nothing in it is changed. The exit status
    is the verdict's: 0 accepted, 1 not, 4 open, not judged or still under way; 1 where the campaign contradicts
    itself (an error, code ``pack-refuted``, in the result). As JSON: ``folder``, ``said`` (its own conclusion; empty
    while under way), ``outcome``, ``problems`` and ``notes`` (lists of lines), ``demanded`` (as ``_demand_json``) and
    ``judged`` (as ``outcome`` returns it).

    Raises:
        RequestError: ``folder`` is neither, or the campaign is of a workload that is not known here
        ConfigError: something in the campaign's suite is wrong
        RecordError: the campaign cannot be judged again: a file is damaged, missing or forged
        RecipeError: a recipe's files cannot be read
        OSError: an evidence pack cannot be looked through
    """
    files = files_of(folder)
    try:
        shown = _RejudgedCampaign(files)
        found = shown.found
        text = shown.text()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        # A forged file may have any shape.
        raise RecordError(
            f"the campaign in {folder} cannot be judged again: a file in it is damaged, or was made by something other "
            f"than LLMB ({type(error).__name__}: {error})",
            remedy="get the original from its author",
        ) from error
    data = {
        "folder": str(folder.absolute()),
        "said": shown.said,
        "outcome": found["outcome"],
        "problems": shown.problems,
        "notes": shown.notes,
        "demanded": [_demand_json(item) for item in shown.workloads],
        "judged": found,
    }
    if not shown.problems:
        return Result(data, text, status=STATUS.get(found["outcome"], UNDER_WAY))
    refuted = CheckFailed(
        f"{folder} does not prove what it says: {shown.problems[0]}",
        remedy="get the original from its author: its verdict must follow from its logs",
        code="pack-refuted",
    )
    return Result(data, text, error=refuted)


class _NoInstallation(Workspace):
    """A workspace without an installation (``install_or_none`` is None), for judging a campaign again.

    It is made without arguments; ``LLMB_INSTALL`` and the current folder are looked at, but not used. ``install`` and
    ``require_install`` raise a RequestError; recipes are found as ever. Neither the site's index of runs nor its
    baselines have a say then in what a campaign shows.

    Raises:
        RequestError: ``LLMB_INSTALL`` cannot be used as a path
        OSError: the current folder, which is asked for, has been removed
    """

    def __init__(self) -> None:
        super().__init__()
        self.install_or_none = None


class _RejudgedCampaign:
    """A campaign, judged again from its logs, with everything in which it contradicts itself.

    It is made from one argument, the places of its files (``CampaignFiles``); making it reads them all and changes
    none. Damaged or forged ones raise LLMBError, OSError, or whatever follows from their shape (ValueError, TypeError,
    KeyError ...). ``found``: the outcome, as ``outcome`` returns it. ``problems``: where it contradicts itself, a line
    each, each once, in the order in which they were found. ``notes``: what could not be checked, a line each, each
    once. ``said``: its own conclusion, ``ACCEPTED: ...``; empty while it is under way. ``frozen``: what it began with;
    ``workloads``: its workloads as they were then, in the suite's order. ``text`` returns all this as text for people,
    with a final newline, and raises nothing but for such shapes.
    """

    def __init__(self, files: CampaignFiles) -> None:
        self._files = files
        self._workspace = _NoInstallation()
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.frozen: FrozenSuite = from_plain(read_json(files.campaign / "campaign.json"), FrozenSuite)
        self.workloads = self._workloads()
        standings = self._standings()
        fabrics = fabric_of(files.campaign)
        self.found = outcome(self.frozen, standings, after_runs(fabrics, standings))
        self.said = self._compare()
        self._check_runs(standings)
        for fabric in fabrics:
            again = judge(fabric.measurement, fabric.verdict.topology)
            if _group_figures(again) != _group_figures(fabric.verdict):
                self.problems.append(f"{HEALTH}: its conclusions about groups of nodes do not match their figures")
        if self.frozen.llmb != __version__:
            self.notes.append(f"made by LLMB {self.frozen.llmb}, judged again by {__version__}")
        self.problems = list(dict.fromkeys(self.problems))
        self.notes = list(dict.fromkeys(self.notes))

    def text(self) -> str:
        """Return the campaign as text for people: verdict, demands, problems and notes, with a final newline.

        Where there is no problem, the last line is ``judged again from the logs, with the same result: ACCEPTED: ...``;
        while it is under way, it says that instead, problems or not.
        """
        lines = [as_text(self.found).rstrip("\n"), "", "demanded:"]
        lines += [f"  {_demand_line(item)}" for item in self.workloads]
        lines += ["", *(f"problem: {text}" for text in self.problems)]
        lines += [f"note: {text}" for text in self.notes]
        if not self.said:
            lines.append("the campaign is still under way: no answer yet")
        elif not self.problems:
            lines.append(f"judged again from the logs, with the same result: {self.said}")
        return "".join(f"{line}\n" for line in lines)

    def _standings(self) -> list[WorkloadProgress]:
        """Return where each workload of the campaign stands, judged again from its runs' logs, in the suite's order.

        Raises:
            RecordError: a run's record cannot be read
            OSError: the campaign's own file is missing
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        """
        campaign = RecordedCampaign(
            self._files.campaign, self.frozen.id, "accept", self.frozen.began, is_pack=self._files.is_pack
        )
        judged = AcceptanceStrategy(self.workloads)
        arms = [item.arm for item in self.workloads]
        ended = partial(attempt_of, trained_counts=self.frozen.trained_counts)
        conduct = Conduct(campaign, arms, judged, self._workspace, lambda text: None, ended)
        return judged.standings(conduct.recorded_runs())

    def _compare(self) -> str:
        """Return the campaign's own conclusion, ``ACCEPTED: ...``, as it recorded it; empty while it is under way.

        Adds to ``problems`` each thing in which the logs say something else, and a note where the verdict is in an
        earlier release's words. A recorded result of another shape raises whatever follows from that (KeyError,
        TypeError ...).

        Raises:
            RecordError: its verdicts cannot be read
            OSError: the text of a pack's verdicts cannot be read
        """
        file = self._files.verdicts
        # A pack is made when the campaign is over: without verdicts it is damaged.
        if not self._files.is_pack and not file.exists():
            return ""
        written = read_json(file)
        recorded = in_todays_words(written)
        self.problems += [f"{file.name}: {text}" for text in disagreements(recorded, self.found)]
        text = self._files.campaign / "verdicts.txt"
        if self._files.is_pack:
            last = read_plain(text).decode(errors="replace").rstrip().rpartition("\n")[2]
            if f": {headline(written)}: " not in last:
                self.problems.append(f"the last line of verdicts.txt does not follow from the logs: {last[:200]}")
        if recorded["outcome"] != written["outcome"]:
            self.notes.append(f"it was made when an open answer was called {headline(written)}")
        return f"{headline(recorded)}: {recorded['why']}"

    def _workloads(self) -> list[SuiteWorkload]:
        """Return the suite's workloads as the campaign froze them, in its order; add to ``notes`` and ``problems``.

        A note for each scatter that the site learned; a problem for each reference that the suite does not allow,
        and as ``_entries`` does.

        Raises:
            LookupError: the suite lacks a test that the campaign names
            ValueError: a test's place in the campaign has no line number
            ConfigError: something in the suite is wrong
            RequestError: a workload of the campaign is not known here
            OSError: the suite's file cannot be read
            RecipeError: a recipe's catalogue or results cannot be read
        """
        entries = self._entries()
        planned = [
            # Named as in the campaign: the file had another name where it began.
            SuiteWorkload(replace(entries[_line_number(kept.where)], where=kept.where), kept.arm.plan, kept.reference)
            for kept in self.frozen.arms
        ]
        workloads = self.frozen.frozen(planned)
        for item in workloads:
            if item.scatter.learned:
                known = f"{percent(item.scatter.total)}) was learned from {counted(item.scatter.runs, 'run')}"
                about = f"how much runs of that site differ ({known} that the campaign does not contain"
                self.notes.append(f"{about}: it cannot be checked here")
            if why := self._other_reference(item):
                self.problems.append(f"{item.title}: {why}")
        return workloads

    def _entries(self) -> dict[int, SuiteEntry]:
        """Return what the suite demands of each test, by the number of the test's line in the suite's file.

        Adds to ``problems`` where the suite is not the one that the campaign began with (not where secrets in it
        are masked), or has other tests.

        Raises:
            ConfigError: something in the suite is wrong
            ValueError: the suite's file is not UTF-8, or a test's place in the campaign has no line number
            OSError: the suite's file cannot be read
        """
        content = read_plain(self._files.campaign / "suite.yaml")
        # In a pack secrets are masked, so that the hash of the suite cannot match.
        masked = b"****" in content
        if hashlib.sha256(content).hexdigest() != self.frozen.suite_sha256 and not masked:
            self.problems.append("suite.yaml is not the suite that the campaign began with")
        entries = {_line_number(entry.where): entry for entry in suite_terms(content.decode(), "suite.yaml")}
        if list(entries) != list(dict.fromkeys(_line_number(kept.where) for kept in self.frozen.arms)):
            self.problems.append("campaign.json and suite.yaml do not name the same tests")
        return entries

    def _other_reference(self, item: SuiteWorkload) -> str:
        """Return why the reference of a workload is none that the suite allows, as a clause; empty: it is allowed.

        The clause has neither a capital nor a period: ``it has no reference, and the suite requires one``. A
        published one must be known to this release. Empty also for a baseline of the site, which cannot be checked:
        that is added to ``notes``.

        Raises:
            RequestError: the workload is not known here
            RecipeError: a recipe's catalogue or results cannot be read
        """
        wanted, reference = item.entry.reference, item.reference
        if isinstance(wanted, Stated):
            same = reference is not None and (reference.kind, reference.seconds) == ("stated", wanted.seconds)
            return "" if same else "its reference is not the one that the suite states"
        if reference is None:
            return "it has no reference, and the suite requires one" if wanted == "required" else ""
        if wanted == "none" or reference.kind == "stated":
            return "it has a reference that the suite does not ask for"
        if reference.kind == "baseline":
            self.notes.append(
                f"a baseline of the site, {reference.seconds:g} s, whose own runs are not in the campaign"
            )
            return ""
        recipe = self._workspace.workload(item.plan.workload).recipe
        for known in published_references(item.plan, recipe):
            if (known.seconds, known.same_software) == (reference.seconds, reference.same_software):
                return ""
        return f"no result that LLMB {__version__} knows as published for it is {reference.seconds:g} s"

    def _check_runs(self, standings: Sequence[WorkloadProgress]) -> None:
        """Add to ``problems`` each run that is not the planned job, or was replaced though its job ended well.

        ``standings`` are those of all workloads. A job ended well if its exit code is 0: a slow run that is made
        out to be one that a node ended would be replaced by a faster one. A run is the planned job if its plan, but
        for the time to begin at, and its training code are the same; a line names at most three things that differ.
        """
        for item in standings:
            planned = work_of(fixed_values(plan_as_dict(item.workload.plan)))
            for run in item.runs:
                about = f"{item.workload.title}, run {run.number} ({run.record.paths.run_id})"
                changed = list(changed_values(planned, work_of(fixed_values(plan_as_dict(run.record.plan)))))
                if run.record.manifest.get("code_sha256") != self.frozen.code_sha256:
                    changed.append("the training code")
                if changed:
                    self.problems.append(f"{about} is not the job that was planned: {'; '.join(changed[:3])}")
                fault = run.attempt.fault if run.attempt is not None else ""
                if fault and read_events(run.record.paths.events).exit_code == 0:
                    self.problems.append(f"{about} was replaced ({fault}), but its job ended well")


def disagreements(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each thing in which two outcomes of a campaign differ: the recorded one, and by its logs.

    ``workload 1 run 2 state: COMPLETED, by the logs FAILED``, in the order of the recorded one, then what only the logs
    show; what one lacks is ``none``. Figures may differ by 1 % (``SAME``), and the bounds of intervals are not
    compared. Both are dicts as ``outcome`` returns them (``found`` by the logs), but ``recorded`` may have any shape:
    exceptions from a wrong one (KeyError, TypeError ...) are not caught here.
    """
    before, after = _verdict_facts(recorded), _verdict_facts(found)
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if isinstance(one, float) and isinstance(other, float):
            same = math.isclose(one, other, rel_tol=SAME)
        else:
            same = one == other
        if not same:
            yield f"{name}: {_value_text(one)}, by the logs {_value_text(other)}"


def _verdict_facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the verdict of a campaign rests on, by names that say where to look: ``workload 1 run 2 state``.

    ``result`` is a dict as ``outcome`` returns it. A fact that it lacks is None; the verdict in words is under
    ``outcome``. Workloads are numbered from 1 in their order, runs by their own numbers.

    Raises:
        KeyError: it lacks ``outcome`` or ``workloads``, or one of them ``runs`` or ``reruns``, or a run its number
    """
    found: dict[str, Any] = {"outcome": headline({**result})}
    for number, workload in enumerate(result["workloads"], 1):
        about = f"workload {number}"
        found |= {f"{about} {name}": workload.get(name) for name in _WORKLOAD}
        reference = workload.get("reference") or {}
        found |= {f"{about} reference {name}": reference.get(name) for name in _REFERENCE}
        for run in workload["runs"]:
            found |= {f"{about} run {run['run']} {name}": run.get(name) for name in _RUN}
            found[f"{about} run {run['run']} was lost to a fault"] = bool(run.get("fault"))
            found[f"{about} run {run['run']} failed"] = bool(run.get("failure"))
        found[f"{about} reruns"] = [rerun["run"] for rerun in workload["reruns"]]
    return found


def _group_figures(verdict: FabricVerdict) -> list[tuple[Any, ...]]:
    """Return (nodes, round, bus bandwidth in GB/s) of each group of nodes in a measurement of the fabric, in its order.

    ``nodes`` is a tuple of names, the round counts from 0, the bandwidth is None where there is no figure. These are
    what was measured; the verdict itself depends on the site's expectation and the release, too.
    """
    return [(group.nodes, group.round, group.busbw_gbps) for group in verdict.groups]


def _value_text(value: Any) -> str:
    """Return ``value`` for messages: ``1.23457`` of a float, ``none`` for None, else its first 200 characters.

    A float has six significant digits at most.
    """
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:200]


def work_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's values without the time from which its Slurm job may begin: a rerun may be for another day.

    Left out is the option ``begin`` of its ``slurm``. ``plan`` is as ``plan_as_dict`` returns it, and is not changed;
    one without Slurm is returned itself, else a new dict.
    """
    slurm = plan.get("slurm")
    if not slurm:
        return plan
    additional = [item for item in slurm.get("additional", ()) if item[0] != "begin"]
    return {**plan, "slurm": {**slurm, "additional": additional}}


def _line_number(where: str) -> int:
    """Return the line number at the end of ``where``, a place such as ``suite.yaml:12``.

    Raises:
        ValueError: no number follows the last colon
    """
    return int(where.rpartition(":")[2])


def _demand_json(item: SuiteWorkload) -> dict[str, Any]:
    """Return what the suite demands of a workload, as JSON values: runs, reruns, performance, reference and limit.

    The keys are ``title``, ``where`` (file and line), ``repeats``, ``reruns``, ``required`` (a share of the
    reference's performance, such as 0.95), ``reference`` and ``limit_seconds``. ``reference`` is "stated",
    "required", "optional" or "none". ``limit_seconds``, below which a step passes, is None where the workload has
    no reference.
    """
    wanted = item.entry.reference
    return {
        "title": item.title,
        "where": item.entry.where,
        "repeats": item.entry.repeats,
        "reruns": item.entry.reruns,
        "required": item.entry.required,
        "reference": "stated" if isinstance(wanted, Stated) else wanted,
        "limit_seconds": item.limit,
    }


def _demand_line(item: SuiteWorkload) -> str:
    """Return what the suite demands of a workload, as one line: title, runs, and the slowest step that passes.

    Such as ``TITLE: 3 runs, up to 12 more; more than 95 % of the performance of REFERENCE: a step below 1.234 s``,
    without a line break. Without a reference, its last part says that it only has to complete, or that it is not
    judged because no reference was known.
    """
    entry = item.entry
    reference = item.reference
    limit = item.limit
    runs = f"{counted(entry.repeats, 'run')}, up to {entry.reruns} more"
    if reference is None or limit is None:
        only = "it only has to complete" if entry.reference == "none" else "no reference was known: not judged"
        return f"{item.title}: {runs}; {only}"
    share = f"more than {100 * entry.required:g} % of the performance of {reference}"
    return f"{item.title}: {runs}; {share}: a step below {limit:.4g} s"
