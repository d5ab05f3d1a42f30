"""Why a run failed: everything that it left is read, and one answer is given.

Of all complaints the earliest root wins, the surer kind before the less sure one; a cascade never does. What ranks
print after a collective has timed out is believed only of ranks that did not wait. Where nothing is left, nobody knows.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from llmb_common.base.cluster_types import traits_of
from llmb_common.base.hostlist import expand_known
from llmb_common.base.printable import counted, printable
from llmb_common.causes import hangs
from llmb_common.causes.answer import Cause, Diagnosis, Symptom
from llmb_common.causes.blame import (
    BY_SCHEDULER,
    in_words_of_progress,
    is_certain_of_node,
    is_interrupted,
    is_of_one_node,
    nodes_that_ended,
    peer_of,
    went_on_after,
)
from llmb_common.causes.hangs import Hang, RankFile, find_stuck, read_ranks
from llmb_common.causes.places import Places, locate
from llmb_common.causes.reading import (
    Complaint,
    Reading,
    complaints_in,
    first_by_time,
    is_kernel_assertion_of,
    line_number_of,
    read_complaints,
)
from llmb_common.causes.table import FailureSignature, signatures
from llmb_common.nodes.reading import FOLDER, read_nodes
from llmb_common.runs.finding import attempts_of
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.job_events import read_events
from llmb_common.runs.timing.records import iterations_in

_MOST_KERNEL_LOGS = 8192
_MOST_WITNESSES = 8
_MOST_RANKS = 64
_STRENGTH = {"certain": 3, "likely": 2, "possible": 1}
_TASK = re.compile(r"srun: error: \S+: task \d+: ")
_ABORTS = re.compile(r"^(?:Fatal Python error: Aborted|terminate called|Aborted\b)|\breceived signal|^Signal: Aborted")
_TORCHRUN = re.compile(r"\bChildFailedError\b|\blocal_rank: \d+ \(pid|^torch\.distributed\.elastic\.rendezvous\.")
_OF_ITS_OWN = re.compile(
    r"NCCL WARN|^(?:\[Rank \d+\] )?(?:Some NCCL operations have failed|To avoid data inconsistency|terminate called)"
)
"""What a rank may print of its own network's failure before the line that names it, as PyTorch 2.1 and before do."""
_CLOSE = 16 << 10
"""Bytes within which the lines of one failure of one rank stand."""


_STATES = {
    "NODE_FAIL": "node-failed",
    "BOOT_FAIL": "node-failed",
    "OUT_OF_MEMORY": "host-memory",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled-by",
    "UNFIT": "unfit",
}
"""The signature that a job's state stands for."""


class Outcome(NamedTuple):
    """How a job ended, by the word of its scheduler and of the supervisor that runs in the job. ``diagnose`` makes it.

    ``kind`` is the id of the failure signature that its state stands for, such as ``time-limit``, empty where it
    stands for none. ``state_text`` is the state in words (``FAILED``, or with a comma and details), empty: not
    known; ``problem`` what the supervisor noticed, as a clause, empty: nothing; ``nodes`` are the names of those
    that failed, empty: none is known to.
    """

    kind: str = ""
    state_text: str = ""
    problem: str = ""
    nodes: Sequence[str] = ()


def diagnose(record: RunRecord, not_finite: str = "") -> Diagnosis:
    """Return why a run ended badly, or is believed to have, from its logs, rank files, node records and events.

    ``record`` is the run's, taken as it is. Only what its last start left counts, and nothing is written; whether it
    ended badly is not asked. The diagnosis has no cause where these do not tell; files that are missing or damaged
    count as empty. ``not_finite`` is the sentence that says at which iteration a figure was not a number, which then
    counts as how the job ended; empty where none was.
    """
    paths, plan = record.paths, record.plan
    events = read_events(paths.events)
    places, ranks = Places(plan.gpus, plan.gpus_per_node), read_ranks(paths.folder)
    places.add_order(events.nodes)
    places.add_nodes(read_nodes(paths.folder))
    logs = [(paths.log, max(0, events.log_from - 1)), (paths.batch_log, max(0, events.batch_from - 1))]
    readings = [read_complaints(*log) for log in logs]
    _add_ranks(places, ranks)  # by their processes the kernel's lines are known as ours
    readings += _kernel_logs(paths.folder, places)
    attempts = attempts_of(record)
    failed = expand_known(attempts[-1].failed) if attempts else []
    if events.unfit is not None:
        failed = expand_known(events.unfit)
    state_text = f"{record.state}, {record.detail}" if record.detail else record.state
    outcome = Outcome(_STATES.get(record.state.split(" ")[0], ""), state_text, events.problem, failed)
    if events.full:
        disk = next((path for path in (paths.folder, *paths.folder.parents) if os.path.ismount(path)), paths.folder)
        outcome = Outcome("disk-full", f"{events.problem}; it is on {disk}")
    outcome = Outcome("nan", not_finite) if not_finite else outcome
    found = _diagnose(readings, outcome, places, paths.folder, ranks, signalled=events.signalled, steps=plan.max_steps)
    if found.cause is None:
        return found
    remedy = found.cause.remedy
    if not traits_of(plan.cluster_type).slurm_options:
        without = next((item.without_slurm for item in signatures() if item.id == found.cause.kind), None)
        remedy = remedy if without is None else without or "read the run's log: llmb-run logs RUN"
    known = {"RUN": paths.run_id, "JOB": record.job_id, "NODE": found.cause.node}
    remedy = _PLACEHOLDER.sub(lambda word: known[word[0]] or word[0], remedy)
    return msgspec.structs.replace(found, cause=msgspec.structs.replace(found.cause, remedy=remedy))


_PLACEHOLDER = re.compile(r"\b(?:RUN|JOB|NODE)\b")
"""In remedies, which are commands to paste: for the run's id, its job's, and the node where the cause lies."""


def witnesses_of(record: RunRecord) -> tuple[Path, ...]:
    """Return what ``diagnose`` reads of a run beside its log, its events and its record, whether it is there or not.

    That is the batch script's log, and the folders of what ranks and nodes wrote.
    """
    folder = record.paths.folder
    return record.paths.batch_log, *(folder / name for name in (FOLDER, hangs.FOLDER, hangs.FLIGHT))


def diagnose_logs(logs: Sequence[Path]) -> Diagnosis:
    """Return why the run behind ``logs`` ended badly, where LLMB did not make them.

    The caller puts the ranks' own log first. Rank files and flight recorder dumps are read too, from the folders
    ``ranks`` and ``flight`` beside the first log, if they are there. Whether the run ended badly is not asked, and
    nothing is written. A log that cannot be read counts as empty; without a cause in them, or without logs, the
    diagnosis has none.
    """
    folder = logs[0].parent if logs else None
    ranks = read_ranks(folder) if folder else []
    places = Places()
    _add_ranks(places, ranks)
    return _diagnose([read_complaints(log) for log in logs], Outcome(), places, folder, ranks)


def _add_ranks(places: Places, ranks: Sequence[RankFile]) -> None:
    """Put node and process id of each rank, and each node's first rank, into ``places``, by the rank files ``ranks``.

    What was there of the same rank, process or node is replaced.
    """
    for item in ranks:
        places.hosts[item.rank] = item.host
        places.processes[item.pid] = item.rank
        if item.local == 0:
            places.first[item.host] = item.rank


_OF_ANYBODY = ("segfault", "host-memory", "file-system")


def _kernel_logs(folder: Path, places: Places) -> Iterator[Reading]:
    """Yield what the kernel of each node complained of, one reading a node, from the copies in the run's ``folder``.

    In the order of the nodes' names, of the first ``_MOST_KERNEL_LOGS`` nodes. Only what concerns the job is kept:
    GPUs always; a process that crashed or was killed, and a file system that did not answer, only where the process is
    one of the ranks in ``places``. Each complaint has the node's name as host. Nothing where there are no copies.
    """
    for file in sorted((folder / FOLDER).glob("*.kernel.log"))[:_MOST_KERNEL_LOGS]:
        reading = read_complaints(file)
        host = file.name.removesuffix(".kernel.log")
        reading.complaints = [
            item._replace(line=item.line._replace(host=host))
            for item in reading.complaints
            if item.signature.id not in _OF_ANYBODY or item.location.pid in places.processes
        ]
        reading.last = ""
        yield reading


def _without_launchers(readings: Sequence[Reading]) -> None:
    """Remove the ranks that are only srun's numbers of tasks from ``readings``, which it changes, under torchrun.

    There a task of srun is a launcher, one on a node, and its number is no rank. Numbers that srun puts in front of
    lines (``--label``) stay where it has said of several tasks that they ran on one node.
    """
    if not any(_TORCHRUN.search(item.line.text) for item in complaints_in(readings)):
        return
    of_srun = [item for item in complaints_in(readings) if item.line.text.startswith("srun: ")]
    one_each = all(len(item.location.ranks) <= 1 for item in of_srun)
    for reading in readings:
        for number, item in enumerate(reading.complaints):
            if item.line.text.startswith("srun: "):
                reading.complaints[number] = item._replace(location=item.location._replace(ranks=()))
            elif item.line.labelled and one_each:
                reading.complaints[number] = item._replace(line=item.line._replace(rank=None))
        for kind in {item.signature.id for item in reading.complaints if item.line.labelled and one_each}:
            own = {item.line.rank for item in reading.complaints if item.signature.id == kind}
            reading.ranks[kind] = {rank for rank in own if rank is not None}


def _without_start(readings: Sequence[Reading]) -> None:
    """Let what fails only at the start follow something else where another log has steps; ``readings`` are changed.

    The ranks of that log have started. A log with steps itself knows what stands after them.
    """
    if all(reading.step is None for reading in readings):
        return
    for reading in readings:
        for number, item in enumerate(reading.complaints):
            if reading.step is None and "start" in item.signature.traits:
                follows = msgspec.structs.replace(item.signature, role="cascade")
                reading.complaints[number] = item._replace(signature=follows)


def _diagnose(
    readings: Sequence[Reading],
    outcome: Outcome,
    places: Places,
    folder: Path | None,
    ranks: Sequence[RankFile],
    *,
    signalled: bool = False,
    steps: int | None = None,
) -> Diagnosis:
    """Return why the run ended: the cause with rank, node and remedy, or a diagnosis without one.

    ``readings`` are the logs, the ranks' own first; they and ``places`` are completed on the way. ``folder`` is the
    run's (None: none), for the flight recorders' dumps. ``signalled``: the job was told to end. ``steps``: how many
    it was to train; None: as many as the logs say, if they do. ``outcome`` is how the job ended by its scheduler;
    ``ranks`` are the rank files.
    """
    _without_launchers(readings)
    _without_start(readings)
    for reading in readings:
        places.add_complaints(reading.complaints)
    if readings and (places.world is None or not places.hosts):
        places.add_log(readings[0].log)
    hang = find_stuck(folder, ranks, readings, places)
    chosen = _likeliest_cause(readings, outcome, places, hang)
    step = next((reading.step for reading in readings if reading.step is not None), None)
    last = steps or next((reading.steps for reading in readings if reading.steps is not None), None)
    # A figure that was not a number failed the run at its step, however far it went on.
    trained = step is not None and step == last and outcome.kind != "nan"
    if chosen is not None:
        # A rank that never came is why the job was ended, not what comes of that.
        by_itself = chosen.kind == "hang" or is_certain_of_node(chosen.kind)
        interrupted = not by_itself and (signalled or is_interrupted(chosen, readings, outcome.kind))
        keep_out = chosen.keep_out and not interrupted
        chosen = msgspec.structs.replace(chosen, step=step, interrupted=interrupted, keep_out=keep_out)
        if chosen.kind == "time-limit":
            chosen = in_words_of_progress(chosen, trained=trained)
    witnesses = _witnesses(readings, places, chosen)
    suspect = None if chosen else _suspect(witnesses)
    summary = hang.summary if hang and chosen and chosen.kind == "hang" else _summary_line(chosen, suspect, outcome)
    if trained:
        if suspect and suspect.role == "noise" and not outcome.problem and iterations_in(suspect.line.encode()):
            # The last step's own line says nothing of what came after it.
            suspect = None
            summary = f"nothing was printed ({outcome.state_text})" if outcome.state_text else "nothing was printed"
        summary = f"every step was trained; after the last one, {summary.removeprefix('unknown: ')}"
    return Diagnosis(cause=chosen, summary=summary, witnesses=witnesses, suspect=suspect, trained=trained)


def _likeliest_cause(readings: Sequence[Reading], outcome: Outcome, places: Places, hang: Hang | None) -> Cause | None:
    """Return the cause that logs, the scheduler's ``outcome`` and the ``hang`` that was found speak for; None: none.

    A line of a log goes before what the scheduler says where it is at least as sure, and a hang before either where
    that is only possible, or the time limit.
    """
    first = _earliest(readings, places)
    by_state = _cause_by_state(outcome, places)
    chosen = by_state
    if first is not None and (by_state is None or _certainty(first) >= _STRENGTH[by_state.sure]):
        chosen = _cause_of_complaint(first, readings, places)
        if by_state is not None and chosen.node is None and chosen.kind == by_state.kind:  # the scheduler knows where
            chosen = msgspec.structs.replace(chosen, node=by_state.node, keep_out=by_state.keep_out)
    if hang is None:
        return chosen
    if chosen is not None and chosen.sure != "possible" and chosen.kind != "time-limit":
        return chosen
    # Where the rank that never came has said that its network failed, that is why.
    said_why = chosen is not None and chosen.fault == "network" and chosen.rank in hang.cause.ranks
    return chosen if said_why else hang.cause


def _reading_of(item: Complaint, readings: Sequence[Reading]) -> Reading:
    """Return the one of ``readings`` that is of the log in which the line ``item`` stands; there must be one."""
    return next(reading for reading in readings if reading.log == item.log)


def _certainty(item: Complaint) -> int:
    """Return how sure it is that a log line of this kind names a cause: 3 certain, 2 likely, 1 possible."""
    return _STRENGTH[item.signature.sure]


def _earliest(readings: Sequence[Reading], places: Places) -> Complaint | None:
    """Return the log line that began the failure; None where none is believed to have.

    The surest kinds come first; among equals the order of files and lines counts, and that of times where lines have
    them. ``readings`` are all logs, ``places`` says which rank was where.
    """
    roots = [item for item in complaints_in(readings) if item.signature.role == "root"]
    believed = [item for item in roots if (not item.survived or _certainty(item) == 3) and not _is_caught(item, roots)]
    believed = [item for item in believed if not _is_survived_report(item, readings, places)]
    for strength in (3, 2, 1):
        kept = [item for item in believed if _certainty(item) == strength and _may_begin(item, readings)]
        kept = [item for item in kept if not _has_outlived_others(item, believed, readings)]
        kept = [item for item in kept if not went_on_after(item, _reading_of(item, readings))]
        if any("start" in item.signature.traits for item in kept):
            # Its first message took longer than the job had: no longer limit would have helped.
            kept = [item for item in kept if item.signature.id != "time-limit"]
        if strength == 1:  # nobody is killed because of a mere complaint, so after a kill it explains nothing
            specific = [item for item in kept if "vague" not in item.signature.traits] or kept
            kept = [item for item in kept if item.raised] or ([] if _lost_in_silence(readings, places) else specific)
        if kept:
            return _with_node(_more_specific(first_by_time(kept), kept), kept)
    return None


def _is_caught(item: Complaint, roots: Sequence[Complaint]) -> bool:
    """Return whether the traceback ``item`` was only logged, for its rank has raised another exception after it.

    That is one that nobody caught, further below in the same log. False for any line that no logger printed (without
    ``logged``). ``roots`` are all lines that may be causes.
    """
    return item.logged and any(
        other.raised and not other.logged and other.line.rank == item.line.rank and other.offset > item.offset
        for other in roots
        if other.log == item.log
    )


def _is_survived_report(item: Complaint, readings: Sequence[Reading], places: Places) -> bool:
    """Return whether a logger printed the traceback ``item`` as an error, and its rank then seems to have gone on.

    Whoever logs an exception may go on, as one does whose upload has failed. So it seems where the next that the log
    tells of any rank's end is a kill (SIGKILL), or that ranks waited in vain, unless it was this rank that they waited
    for. False for kinds that are certain to be causes, and for faults of the machine, after which no process goes on.
    ``readings`` are all logs, ``places`` says how many ranks there were.
    """
    of_machine = item.signature.fault == "node" or "hardware" in item.signature.traits
    if not item.reported or of_machine or _certainty(item) == 3:
        return False
    reading = _reading_of(item, readings)
    ends = ("ended", "killed", "witness", "cascade")
    later = (other for other in reading.complaints if other.offset > item.offset)
    first = next((other for other in later if other.signature.role in ends), None)
    if first is None or first.signature.role not in ("killed", "witness"):
        return False
    awaited = reading.waits.missing(places.world)
    return awaited is None or item.line.rank not in awaited.ranks


def _has_outlived_others(item: Complaint, believed: Sequence[Complaint], readings: Sequence[Reading]) -> bool:
    """Return whether the rank that raised exception ``item`` still ran when others had failed, so it did not begin it.

    True where another rank had raised before, and then others had complained that a rank was gone, before this one
    raised. False for lines that are no exception of a certain kind. ``believed`` are the lines that may be causes,
    ``readings`` all logs.
    """
    if not item.raised or _certainty(item) < 3:
        return False
    complaints = _reading_of(item, readings).complaints
    gone = [other.offset for other in complaints if other.signature.role in ("cascade", "ended")]
    first = min((offset for offset in gone if offset < item.offset), default=0)
    return any(
        other.raised and not other.logged and other.line.rank not in (None, item.line.rank) and other.offset < first
        for other in believed
        if other.log == item.log and _certainty(other) == 2
    )


def _lost_in_silence(readings: Sequence[Reading], places: Places) -> bool:
    """Return whether the rank that began the failure left no line, so that what another rank complains of is no cause.

    So it is where the first end of a rank in a log was a kill, because the rest of a failing job is killed too; and
    where the rank that ended first has said nothing, neither by rank nor by host, while several others did.
    ``readings`` are all logs, ``places`` says which rank was where.
    """
    roles = ("ended", "killed")
    for reading in readings:
        ends = [item for item in reading.complaints if item.signature.role in roles]
        if ends and ends[0].signature.role == "killed":
            return True
    rank, host = _ended_first(readings, places)
    complaints = [item for item in complaints_in(readings) if item.signature.role not in roles]
    known = {item.signature.id for item in complaints}
    spoken: set[int] = set()
    for reading in readings:
        for kind in known.intersection(reading.ranks):
            spoken.update(reading.ranks[kind])
    # NCCL's own lines have a host and a GPU, and no rank.
    by_host = any(item.line.rank is None and host is not None and item.line.host == host for item in complaints)
    return rank is not None and len(spoken) > 1 and rank not in spoken and not by_host


def _may_begin(item: Complaint, readings: Sequence[Reading]) -> bool:
    """Return whether the log line ``item`` may be the first of its failure.

    Always where its kind is certain to be a cause; else where no line before it says that it only follows something
    else. ``readings`` are all logs.
    """
    if _certainty(item) == 3:
        return True
    reading = _reading_of(item, readings)
    begins = item.offset if item.begins is None else item.begins
    before = [other for other in reading.complaints if other.offset < begins]
    own = item.line.rank
    if item.signature.id in ("illegal-access", "cuda") and any(is_kernel_assertion_of(item, other) for other in before):
        return False
    if any(other.signature.role == "witness" for other in before):
        return _certainty(item) == 2 and own is not None and own not in reading.waits.waiting
    if item.signature.fault == "network":  # NCCL complains in any order of a network that failed
        before = [other for other in before if not _OF_ITS_OWN.search(other.line.text)]
    follows = any(other.signature.role in ("cascade", "killed", "ended") and not other.line.mild for other in before)
    return _certainty(item) == 2 or not follows


def _more_specific(first: Complaint, items: Sequence[Complaint]) -> Complaint:
    """Return the log line that says more than ``first``: the next one of the same rank within 16 KiB; else ``first``.

    Only a general kind is replaced, such as a mere exception, and only by one that is not. What C++ throws while Python
    ends because of an exception follows from that. ``items`` are the lines to choose from, in the order of the logs.
    """
    if first.signature.id not in ("exception", "cuda", "error", "nccl", "shell"):
        return first
    same = [
        item
        for item in items
        if item.line.rank == first.line.rank and item.log == first.log and 0 < item.offset - first.offset < _CLOSE
        if first.signature.id != "exception" or not item.line.text.startswith("what():")
    ]
    return next((item for item in same if item.signature.id not in ("exception", "error", "shell")), first)


def _with_node(first: Complaint, items: Sequence[Complaint]) -> Complaint:
    """Return another log line of the same kind that names a rank or node if ``first`` names none, else ``first``.

    It is the first such of ``items``. This is done for faults of a node and for a loss that is no number only; any
    other ``first`` is returned as it is, and so is one for which ``items`` has no such line. slurmstepd says of a
    job that a node failed, srun says which; of a loss that is no number, the iteration's line says less than the
    assertion.
    """
    if (first.signature.fault != "node" and first.signature.id != "nan") or _names_place(first):
        return first
    return next((item for item in items if item.signature is first.signature and _names_place(item)), first)


def _names_place(item: Complaint) -> bool:
    """Return whether the log line ``item`` says by itself of which rank, node or GPU it is."""
    return any(part is not None for part in locate(item, Places()))


def _cause_of_complaint(item: Complaint, readings: Sequence[Reading], places: Places) -> Cause:
    """Return the failure's cause that the chosen log line ``item`` stands for, with its rank, node and GPU.

    Each is None where neither the line nor ``places`` tells. It also says whether the line speaks for keeping jobs off
    the node. ``readings`` are all logs, that of the line among them; they are not changed.
    """
    found, kind = item.signature, item.signature.id
    reading = _reading_of(item, readings)
    said_by = reading.ranks.get(kind, set())
    rank, node, gpu = locate(item, places)
    if rank is None and not item.location.ranks and kind not in BY_SCHEDULER:
        ended, host = _place_from_torchrun(item, reading, places) or _ended_first(readings, places)
        rank, node = (ended, host) if node in (None, host) else (None, node)
    ranks = tuple(sorted(item.location.ranks if len(item.location.ranks) > 1 else said_by))[:_MOST_RANKS]
    hosts = reading.hosts.get(kind, set()) | {places.host_of(one) for one in said_by}
    if node is not None and not hosts:
        hosts = nodes_that_ended(readings)
    return _cause_of_kind(
        found,
        rank=rank,
        ranks=ranks,
        node=node,
        gpu=gpu,
        time=item.line.time,
        line=printable(item.raw),
        file=str(item.log),
        number=line_number_of(item),
        peer=peer_of(item) if found.fault == "network" else None,
        keep_out=found.keep_out and node is not None and is_of_one_node(found, hosts, several=places.several),
    )


def _place_from_torchrun(item: Complaint, reading: Reading, places: Places) -> tuple[int, str | None] | None:
    """Return (rank, node) of a crash whose own log line has neither, from torchrun's later line about such a crash.

    That is the first line behind ``item`` in ``reading``, its log, that names a rank, by itself or by ``places``. The
    node is None where nothing tells it. None where there is no such line, and for other kinds than a crash.
    """
    if item.signature.id not in ("segfault", "bus-error"):
        return None
    for other in reading.complaints:
        if other.offset > item.offset and other.signature is item.signature:
            rank, host, _ = locate(other, places)
            if rank is not None:
                return rank, host
    return None


def _ended_first(readings: Sequence[Reading], places: Places) -> tuple[int | None, str | None]:
    """Return (rank, node) of the task that ended first by itself, by the word of what started it (srun, torchrun).

    Only the first such line counts, in the order of the logs; those that say "Terminated" are left out, and those that
    a process prints as it aborts, for so does each that has lost a peer. Each is None where neither that line nor
    ``places`` tells, and both are where there is no such line.
    """
    says = (
        item
        for item in complaints_in(readings)
        if (item.signature.role in ("ended", "killed") and not _ABORTS.search(item.line.text))
        or _TASK.match(item.line.text)
    )
    first = next((item for item in says if "Terminated" not in item.line.text), None)
    return locate(first, places)[:2] if first is not None else (None, None)


def _cause_by_state(outcome: Outcome, places: Places) -> Cause | None:
    """Return the cause that the job's state, ``outcome.kind``, stands for; None where it says nothing of why.

    A time limit or a cancellation is only likely the cause. It names a node only where the job had, or lost, a single
    one and the kind is a node's fault. ``places`` has the nodes of the job.
    """
    found = next((item for item in signatures() if item.id == outcome.kind), None)
    if found is None:
        return None
    sure = "likely" if found.id in ("time-limit", "cancelled-by") else found.sure
    nodes = outcome.nodes or places.order
    node = nodes[0] if len(nodes) == 1 and found.fault == "node" else None
    keep_out = found.keep_out and node is not None
    return _cause_of_kind(found, sure=sure, node=node, line=printable(outcome.state_text), keep_out=keep_out)


def _cause_of_kind(found: FailureSignature, **known: Any) -> Cause:
    """Return a ``Cause`` of the kind of the failure signature ``found``, with its texts, fault and certainty.

    ``known`` are fields of ``Cause`` by name, which are set, or replace those of ``found``.
    """
    words = {name: getattr(found, name) for name in ("what", "fault", "sure", "cause", "remedy")}
    return Cause(kind=found.id, **{**words, **known})


def _witnesses(readings: Sequence[Reading], places: Places, chosen: Cause | None) -> tuple[Symptom, ...]:
    """Return the first line of each kind of complaint in each log that is not the cause ``chosen``, eight at most.

    In the order of the logs. Where there is no cause, a log without complaints gives its last line, with role
    ``noise``. ``readings`` are all logs, ``places`` says which rank was where.
    """
    found: list[Symptom] = []
    for reading in readings:
        firsts: dict[str, Complaint] = {}
        for item in reading.complaints:
            firsts.setdefault(item.signature.id, item)
        for kind, item in firsts.items():
            if chosen is not None and printable(item.raw) == chosen.line:
                continue
            rank, node, gpu = locate(item, places)
            ranks = reading.ranks.get(kind, set()) | (set() if rank is None else {rank})
            symptom = Symptom(
                signature=kind,
                role=item.signature.role,
                line=printable(item.raw),
                file=str(item.log),
                number=line_number_of(item),
                ranks=tuple(sorted(ranks))[:_MOST_RANKS],
                node=node,
                gpu=gpu,
                time=item.line.time,
                count=reading.counts[kind],
            )
            found.append(symptom)
        if not reading.complaints and reading.last and chosen is None:
            found.append(Symptom(signature="", role="noise", line=printable(reading.last), file=str(reading.log)))
    return tuple(found[:_MOST_WITNESSES])


def _suspect(witnesses: Sequence[Symptom]) -> Symptom | None:
    """Return the witness that ended first: a rank that was killed, else one that ended by itself, else any other line.

    One rank that ended by itself comes before a kill that stands below it in the same log. It does not count where it
    had waited in vain, for its own watchdog ends it then. Other lines come by their role: ``witness``, ``root``,
    ``cascade``, ``ended``, ``teardown``, ``noise``. None where there are no witnesses.
    """
    waited = set(chain.from_iterable(item.ranks for item in witnesses if item.role == "witness"))
    ended = [item for item in witnesses if item.role == "ended" and len(item.ranks) == 1]
    alone = next((item for item in ended if waited.isdisjoint(item.ranks)), None)
    killed = next((item for item in witnesses if item.role == "killed"), None)
    if alone and killed and alone.file == killed.file and (alone.number or 0) < (killed.number or 0):
        killed = None
    roles = ("witness", "root", "cascade", "ended", "teardown", "noise")
    others = sorted((item for item in witnesses if item.role in roles), key=lambda item: roles.index(item.role))
    return killed or alone or (others[0] if others else None)


def _summary_line(chosen: Cause | None, suspect: Symptom | None, outcome: Outcome) -> str:
    """Return one line, without a period, that says why the run failed, with rank and node where they are known.

    Such as ``WHAT (rank 3 on n12)``; a hang has a line of its own. Without a cause ``chosen`` it tells what the
    supervisor did, or begins with "unknown:" and quotes ``suspect``'s line (of a killed rank it only says that it was
    killed), or without one what ``outcome`` says.
    """
    if chosen is not None:
        more = len(chosen.ranks) - 1
        where = [f"rank {chosen.rank}"] if chosen.rank is not None else []
        where += [f"on {chosen.node}"] if chosen.node else []
        where += [f"to {chosen.peer}"] if chosen.peer else []
        if chosen.rank is not None and more > 0:
            where += [f"and {more if more < _MOST_RANKS - 1 else 'many'} more"]
        return f"{chosen.what} ({' '.join(where)})" if where else chosen.what
    # A job that hung was ended by its own supervisor: whoever was killed then is no riddle.
    if suspect is None or (outcome.problem and (suspect.role != "killed" or outcome.problem.startswith("hung"))):
        if outcome.problem and not outcome.problem.startswith("hung"):
            return outcome.problem
        return f"unknown: {outcome.problem or outcome.state_text or 'no output'}"
    rank = f"rank {suspect.ranks[0]}" if suspect.ranks else "a rank"
    on = f" on {suspect.node}" if suspect.node else ""
    if suspect.role == "witness":
        return (
            f"unknown: {counted(len(suspect.ranks), 'rank')} waited in vain, the logs do not say for which:"
            f" {suspect.line}"
        )
    if suspect.role == "killed":
        return f"unknown: {rank}{on} was killed (SIGKILL), the logs do not say by whom"
    return f"unknown: {'the last line is ' if suspect.role == 'noise' else ''}{suspect.line}"
