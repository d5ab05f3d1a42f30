"""``llmb-run accept verify``: is a pack as it was written, does it say what its logs say, and who has signed it?

Whoever can write a pack can write hashes that fit. What is harder to forge is that all parts agree: every run is judged
again by the code that conducts campaigns, by what the suite demands and with the references that the campaign began
with, and what comes of it must be what ``campaign/verdicts.json`` and ``verdicts.txt`` say.

The files come from somebody else: they lie unpacked in a folder of ours (``Unpacked``), plain files within bounds.
"""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from llmb_common import __version__
from llmb_common.command.outcome import Result
from llmb_common.decoding.structs import from_plain
from llmb_common.errors import CheckFailed, LLMBError, RecordError
from llmb_common.machine.files import read_json, read_plain
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.results.references import Reference, published_references
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.timing.job_events import read_events
from llmb_run.acceptance.outcome import as_text, headline, outcome
from llmb_run.acceptance.signing import check
from llmb_run.acceptance.suite import Stated, SuiteEntry, terms
from llmb_run.acceptance.workloads import FrozenSuite, Judged, SuiteWorkload, WorkloadProgress
from llmb_run.campaigns.campaign import Campaign, important, unlike
from llmb_run.campaigns.conduct import Conduct
from llmb_run.results.verifying import verify_archive
from llmb_run.workspace import Workspace

_WORKLOAD = (
    *("title", "prescreen", "gpus", "verdict", "indication", "required", "step_seconds", "performance"),
    *("performance_low", "performance_high", "performance_limit", "confidence"),
)
_REFERENCE = ("kind", "seconds", "software", "source", "same_software")
_RUN = ("run", "run_id", "state", "step_seconds")
_PATH = re.compile(r"(?:/[^\s/:]+)+/")


def without_paths(text: str) -> str:
    """``text`` without the folders of its files: a pack is judged in another place."""
    return _PATH.sub("", text)


def differences(said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Sentences. ``said`` is ``campaign/verdicts.json``, which may have any shape, ``found`` what its logs say."""
    if said["outcome"] != found["outcome"] or said["accepted"] != found["accepted"]:
        yield f"campaign/verdicts.json says {headline({**said})}, its logs say {headline({**found})}: {found['why']}"
    elif found["outcome"] in ("accepted", "not judged"):
        yield from _unlike("campaign/verdicts.json", ("indication", "why"), said, found)
    for old, new in _pairs(said["workloads"], found["workloads"]):
        title = new.get("title") or old.get("title") or "a workload"
        yield from _unlike(title, _WORKLOAD, old, new)
        if new.get("verdict") == "pass":  # what else is in it names files, and what a log says
            yield from _unlike(title, ("text",), old, new)
        yield from _unlike(f"{title}, reference", _REFERENCE, old.get("reference") or {}, new.get("reference") or {})
        for one, other in _pairs(old.get("runs", ()), new.get("runs", ())):
            yield from _of_run(f"{title}, run {other.get('run', one.get('run'))}", one, other)
        reruns = [[rerun["run"] for rerun in item.get("reruns", ())] for item in (old, new)]
        if reruns[0] != reruns[1]:
            yield f"{title}: it says that runs {reruns[0]} are reruns, its logs say {reruns[1]}"


def _of_run(title: str, said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    yield from _unlike(title, _RUN, said, found)
    for name in ("fault", "failure"):
        if bool(said.get(name)) != bool(found.get(name)):
            yield f"{title}: {name}: it says {_shown(said.get(name))}, its logs say {_shown(found.get(name))}"
    untold = set(_problems(found)) - set(_problems(said))
    yield from (f"{title}: it does not say: {text}" for text in sorted(untold))


def _problems(run: Mapping[str, Any]) -> Iterator[str]:
    """What the run's nodes and its log have against it."""
    result = run.get("result") or {}
    yield from (without_paths(text) for text in result.get("notices", ()))
    yield from (item["text"] for item in result.get("findings", ()) if item["severity"] == "problem")


def _pairs(said: Iterable[Any], found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    nothing: dict[str, Any] = {}
    return zip_longest(said, found, fillvalue=nothing)


def _unlike(title: str, names: tuple[str, ...], said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name in names:
        old, new = said.get(name), found.get(name)
        if isinstance(old, float) and isinstance(new, float) and math.isclose(old, new, rel_tol=1e-9):
            continue
        if old != new:
            yield f"{title}: {name.replace('_', ' ')}: it says {_shown(old)}, its logs say {_shown(new)}"


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    return f"{value:.6g}" if isinstance(value, float) else without_paths(str(value))[:200]


MOST_BYTES = 4 << 30
MOST_FILES = 200_000
"""More than the logs and records of a campaign have."""

_LEFT_OUT = (".html", "/code.zip", ".nsys-rep", ".sqlite")

_BEGUN = re.compile(r", begun .*?: (?=[A-Z]{3}|under way)")
"""A time of day in the time zone of whoever printed it."""


class Unpacked:
    """The files of a pack that a verdict needs, in ``folder``.

    ``campaign`` is the pack's; runs lie as in an installation, ``experiments/<experiment>/<run folder>/``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.campaign = folder / "campaign"
        self.too_much = False
        self._bytes = self._files = 0

    @property
    def runs(self) -> tuple[Path, ...]:
        return tuple(sorted(self._folder.glob("experiments/*/*")))

    def keep(self, name: str, size: int) -> IO[bytes] | None:
        """For ``verify_archive``, which has checked the name: no part of it is empty, ``.`` or ``..``."""
        top, _, below = name.partition("/")
        if not below or name.endswith(_LEFT_OUT):
            return None
        self._bytes, self._files = self._bytes + size, self._files + 1
        self.too_much = self.too_much or self._bytes > MOST_BYTES or self._files > MOST_FILES
        if self.too_much:
            return None
        home = self._folder if top == "campaign" else self._folder / "experiments" / (top.rpartition("_")[0] or "none")
        path = home / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("xb")
        except (NotADirectoryError, FileExistsError, ValueError):
            return None  # a file where another has its folder, as no campaign has it: what is missing will be said


@dataclass(frozen=True)
class Recomputed:
    """``problems``: where the pack contradicts itself, a sentence each. ``notes``: what could not be checked.

    ``said`` is the pack's own conclusion, ``outcome`` that of its logs; both empty where there is none.
    """

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    said: str = ""
    outcome: str = ""


def recompute(unpacked: Unpacked) -> Recomputed:
    """Judge the runs of an unpacked pack again. Whatever is wrong with it is in the answer."""
    if unpacked.too_much:
        return Recomputed((f"its logs were not judged again: over {MOST_BYTES >> 30} GiB or {MOST_FILES} files",))
    if not unpacked.campaign.is_dir():
        return Recomputed(("it has no campaign/: it is not the evidence of an acceptance campaign",))
    try:
        return _Recomputation(unpacked).result()
    except (LLMBError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # A forged file may have any shape.
        why = error.message if isinstance(error, LLMBError) else f"{type(error).__name__}: {error}"
        return Recomputed((f"its runs cannot be judged again: {without_paths(why)}",))


@dataclass(frozen=True)
class _Packed(Campaign):
    """The runs of an unpacked campaign."""

    runs: tuple[Path, ...] = ()

    def records(self, plans: Sequence[JobPlan]) -> dict[tuple[int, int], RunRecord]:
        found: dict[tuple[int, int], RunRecord] = {}
        for folder in self.runs:
            record = load_record(folder)
            number = self.numbers(record.submission.key)
            if number is None or not 1 <= number[0] <= len(plans):
                raise RecordError(f"{folder.name} is no run of this campaign")
            if number in found:
                raise RecordError(f"{folder.name} and {found[number].paths.name} are one and the same run")
            found[number] = record
        return found


class _Nowhere(Workspace):
    """No installation: neither its index nor its baselines have a say in what a pack shows."""

    def __init__(self) -> None:
        self.install_or_none = None


class _Recomputation:
    def __init__(self, unpacked: Unpacked) -> None:
        self._folder = unpacked.campaign
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._workspace = _Nowhere()
        self._frozen: FrozenSuite = from_plain(read_json(self._folder / "campaign.json"), FrozenSuite)
        self._runs = _Packed(self._folder, self._frozen.id, "accept", runs=unpacked.runs)

    def result(self) -> Recomputed:
        said = read_json(self._folder / "verdicts.json")
        workloads = self._workloads()
        judged = Judged(workloads)
        arms = [item.arm for item in workloads]
        standings = judged.standings(Conduct(self._runs, arms, judged, self._workspace, lambda text: None).look())
        found = outcome(self._frozen, standings)
        self._problems += differences(said, found)
        self._check_runs(standings)
        text = read_plain(self._folder / "verdicts.txt").decode(errors="replace")
        # One with **** is masked; another release has other words.
        comparable = "****" not in text and self._frozen.llmb == __version__
        if comparable and _BEGUN.sub(" ", text) != _BEGUN.sub(" ", as_text(said)):
            self._problems.append("campaign/verdicts.txt does not say what campaign/verdicts.json says")
        if self._frozen.llmb != __version__:
            self._notes.append(f"the pack was made by LLMB {self._frozen.llmb}, and judged again by {__version__}")
        problems, notes = (tuple(dict.fromkeys(lines)) for lines in (self._problems, self._notes))
        return Recomputed(problems, notes, f"{headline(said)}: {said['why']}", found["outcome"])

    def _workloads(self) -> list[SuiteWorkload]:
        entries = self._entries()
        planned = [
            SuiteWorkload(replace(entries[_line(kept.where)], where=kept.where), kept.arm.plan, None)
            for kept in self._frozen.arms
        ]
        workloads = self._frozen.frozen(planned)
        for item in workloads:
            if item.scatter.learned:
                about = (
                    f"how runs of that site differ ({item.scatter.total:.1%}, by {item.scatter.runs} runs on record)"
                )
                self._notes.append(f"{about}: those runs are not in the pack")
            if why := self._other_reference(item.entry, item.reference, item.plan):
                self._problems.append(f"{item.title}: {why}")
        return workloads

    def _entries(self) -> dict[int, SuiteEntry]:
        """What the suite demands, by the line of the test."""
        content = read_plain(self._folder / "suite.yaml")
        if hashlib.sha256(content).hexdigest() != self._frozen.suite_sha256 and b"****" not in content:
            self._problems.append("campaign/suite.yaml is not the suite that the campaign began with")
        entries = {_line(entry.where): entry for entry in terms(content.decode(), "suite.yaml")}
        if list(entries) != list(dict.fromkeys(_line(kept.where) for kept in self._frozen.arms)):
            self._problems.append("campaign/campaign.json and campaign/suite.yaml do not name the same tests")
        return entries

    def _other_reference(self, entry: SuiteEntry, reference: Reference | None, plan: JobPlan) -> str:
        """Why the reference is none that the suite allows; empty where it is, or nobody can tell."""
        wanted = entry.reference
        if isinstance(wanted, Stated):
            same = reference is not None and (reference.kind, reference.seconds) == ("stated", wanted.seconds)
            return "" if same else "its reference is not the one that the suite states"
        if reference is None:
            return "it has no reference, and the suite requires one" if wanted == "required" else ""
        if wanted == "none" or reference.kind == "stated":
            return "it has a reference that the suite does not ask for"
        if reference.kind == "baseline":
            self._notes.append(f"a baseline of the site, {reference.seconds:g} s, whose own runs are not in the pack")
            return ""
        known = published_references(plan, self._workspace.workload(plan.workload).recipe)
        if any((item.seconds, item.same_software) == (reference.seconds, reference.same_software) for item in known):
            return ""
        return f"no result that LLMB {__version__} knows as published for it is {reference.seconds:g} s"

    def _check_runs(self, standings: Sequence[WorkloadProgress]) -> None:
        """Every run has the plan and the training code of its workload, and was replaced only where it ended badly.

        A slow run that is made out to be one that a node ended would be replaced by a faster one.
        """
        for kept, item in zip(self._frozen.arms, standings, strict=True):
            for run in item.runs:
                about = f"{item.workload.title}, run {run.number} ({run.record.paths.run_id})"
                now = work_of(important(plan_as_dict(run.record.plan)))
                changed = list(unlike(work_of(kept.plan), {name: now.get(name) for name in kept.plan}))
                if run.record.manifest.get("code_sha256") != self._frozen.code_sha256:
                    changed.append("the training code")
                if changed:
                    self._problems.append(f"{about} is not the job that was planned: {'; '.join(changed[:3])}")
                fault = run.attempt.fault if run.attempt is not None else ""
                if fault and read_events(run.record.paths.events).exit_code == 0:
                    self._notes.append(f"{about} was replaced ({fault}), but ended well by its own account")


def work_of(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without when its job may begin: a rerun may be for another day."""
    slurm = plan.get("slurm")
    if not slurm:
        return plan
    additional = [item for item in slurm.get("additional", ()) if item[0] != "begin"]
    return {**plan, "slurm": {**slurm, "additional": additional}}


def _line(where: str) -> int:
    return int(where.rpartition(":")[2])


def verify_pack(pack: Path, sha256: str, signers: Path | None) -> Result:
    """Check files, verdicts and signature of ``pack``. Its logs are unpacked for a moment, in a folder of ours.

    Raises:
        LLMBError: it cannot be read, or what checks a signature is missing
    """
    with tempfile.TemporaryDirectory(prefix="llmb-pack-") as folder:
        unpacked = Unpacked(Path(folder))
        files = verify_archive(pack, sha256, unpacked.keep)
        again = recompute(unpacked)
    signature = check(pack, signers)
    data = {
        "path": str(pack.absolute()),
        **files.as_dict(),
        "ok": files.ok and signature.ok and not again.problems,
        "verdict": asdict(again),
        "signature": asdict(signature),
    }
    lines = [f"files: {files.files}, all as they were written"] if files.ok else [*files.lines()]
    lines += [f"note: {text}" for text in files.notes]
    lines += [f"verdict: {text}" for text in again.problems] or [
        f"verdict: judged again from the logs, and the same: {again.said}"
    ]
    lines += [f"note: {text}" for text in again.notes]
    lines.append(f"signature: {signature.state}: {signature.text}")
    text = "".join(f"{line}\n" for line in lines)
    if data["ok"]:
        return Result(data, text)
    gravest = next(iter(again.problems), next(files.lines(), f"its signature: {signature.text}"))
    error = CheckFailed(
        f"{pack} does not prove what it says: {gravest}",
        remedy="ask whoever made it for the original, or for its logs",
        code="pack-refuted",
    )
    return Result(data, text, error=error)
