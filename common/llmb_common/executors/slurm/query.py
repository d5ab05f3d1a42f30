"""What Slurm says of jobs and nodes, and how its commands are run: with a timeout, in a clean environment.

Which job is which run's, ``own_jobs`` decides. An incomplete answer, or one with an unreadable line, raises
SchedulerError: it says nothing about any job.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from llmb_common.base.clocks import CLOCKS_SECONDS
from llmb_common.base.errors import AnswerLost, RequestError, SchedulerError
from llmb_common.base.hostlist import compress, expand
from llmb_common.base.printable import print_message
from llmb_common.base.programs import Answer, clean_environment, run_program
from llmb_common.base.run_states import STATES, is_live
from llmb_common.executors.slurm.options import limit_in_seconds

CANCEL_SECONDS = 60
"""How long ``scancel`` may take."""


def run_slurm(command: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run a command of Slurm for at most ``timeout`` seconds and return its answer, also where it ended with an error.

    ``command`` begins with the program. ``env`` is added to the environment of ``clean_environment()``; None: nothing
    is.

    Raises:
        SchedulerError: with the code ``no-answer`` after ``timeout`` seconds, ``no-program`` if it cannot be started,
            ``too-long`` if it does not stop printing
    """
    answer = run_program(command, timeout, env=clean_environment() | dict(env or {}))
    if answer.problem:
        is_missing = answer.problem == "no-program"
        remedy = "run this on a login node of the cluster" if is_missing else "try again later"
        raise SchedulerError(answer.why, remedy=remedy, code=answer.problem)
    return answer


ASK_SECONDS = 30
"""How long one query may take."""

TRIES = 3
FIRST_DELAY = 1.0
"""Seconds before the second try; doubled for each one after that."""

RETRY_SECONDS = 5.0
"""Do not retry after this long: when the controller is down, Slurm's commands already retry for about ten seconds."""

_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Times as Unix seconds, whatever the time zone, and unabbreviated task numbers. Set for queries only, or every job
would inherit it."""

_UNKNOWN_FIELD = "Invalid field"
"""What sacct says of a field that a newer release has."""

_EARLIER = CLOCKS_SECONDS + 3600
"""Accounting is queried from this many seconds before the submission: sacct reads local time, in which an hour of
autumn comes twice."""


class JobInfo(msgspec.Struct, frozen=True):
    """One job, or one start of it, as Slurm reports it. Times are Unix seconds, or None if not known yet.

    ``query_queue`` and ``query_accounting`` make it. ``exit_code`` (``code:signal``) comes from accounting and
    ``reason`` from the queue; each is empty if the other one answered, except for ``reason`` of what accounting has
    written off. ``started`` of a job that waits is when Slurm expects it to start, ``ended`` of one that runs when its
    limit ends it. The property ``is_late`` is True where accounting, and not the queue, shows the job as live, which
    may be out of date.
    """

    job_id: str
    """Slurm's id of the job, such as ``123``, or ``123_4`` of an array's task."""
    name: str
    """The job's name in Slurm, which a site may have changed."""
    state: str
    """Slurm's state without what it appends to it, such as ``RUNNING``."""
    submitted: float | None
    started: float | None
    ended: float | None
    nodes: str
    """The host list of its nodes; empty before it has any."""
    reason: str = ""
    exit_code: str = ""
    failed: str = ""
    """The nodes, as a host list, whose failure ended it, where accounting says so (sacct's FailedNode, which 22.05
    does not have); else empty.
    """
    script: str = ""
    """What was submitted, with the script's path: ``(null)`` if that was no file, empty where Slurm does not tell."""

    @property
    def is_late(self) -> bool:
        """Whether Slurm's accounting shows the job as live, which it may no longer be; False for a job from the queue.

        slurmdbd learns of a job's end later than the controller.
        """
        return bool(self.exit_code) and is_live(self.state)


def query_queue(selector: str) -> list[JobInfo]:
    """Return the jobs that Slurm's controller knows, including recently ended ones; empty where it knows none of them.

    ``selector`` chooses them, as an option of squeue: ``--jobs=7,8``, ``--name=a,b`` or ``--user=1000``. In the order
    of squeue; each waiting task of an array by itself.

    Raises:
        SchedulerError: the controller cannot be reached, or its answer cannot be read
    """
    try:
        answer = _query(
            ["squeue", "--noheader", "--all", "--states=all", selector, f"--format={SEPARATOR.join(_QUEUED)}"]
        )
    except SchedulerError as error:
        if _UNKNOWN_ID in error.message:
            return []  # an answer about that job, and no outage
        raise
    return [_job_of_squeue(row) for row in _split_rows(answer, "squeue", len(_QUEUED))]


SEPARATOR = "\x1f"
"""Between the fields of a row: no name or command of a job holds it."""

_QUEUED = ["%i", "%T", "%V", "%S", "%e", "%N", "%j", "%r", "%o"]

_UNKNOWN_ID = "Invalid job id specified"
"""What squeue says of a single id that it does not know; unknown ones among several are left out."""


def _job_of_squeue(row: Sequence[str]) -> JobInfo:
    """Return the job that the fields ``row`` of a line of squeue describe, which are in the order of ``_QUEUED``.

    Raises:
        AnswerLost: the state does not look like one of Slurm's; an unknown one that does is kept
        ValueError: there are more or fewer fields
    """
    job_id, state, submitted, started, ended, nodes, name, reason, script = row
    # Of a held job, squeue gives the earliest time that it could start.
    began = None if "held" in reason.lower() else _unix_time(started)
    return JobInfo(
        job_id,
        name,
        _job_state(state, "squeue"),
        _unix_time(submitted),
        began,
        _unix_time(ended),
        nodes,
        reason="" if reason == "None" else reason,
        script=script,
    )


def query_accounting(selector: str, since: float) -> list[JobInfo]:
    """Return every start of jobs in Slurm's accounting from over an hour before ``since`` (Unix seconds) on.

    The jobs submitted first come first. ``selector`` chooses them, as an option such as ``--jobs=7,8``. A job that was
    queued again has an entry for each start. Empty where there is no accounting: no sacct, or Slurm says that it is
    disabled.

    Raises:
        SchedulerError: accounting cannot be reached, or its answer cannot be read
    """
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - _EARLIER))
    command = ["sacct", "--allocations", "--duplicates", "--parsable2", f"--delimiter={SEPARATOR}", "--noheader"]
    command += ["--allusers", f"--starttime={start}", selector]
    optional = ["FailedNode", "SubmitLine"]
    while True:
        try:
            answer = _query([*command, f"--format={','.join([*_ACCOUNTED, *optional])}"])
            break
        except SchedulerError as error:
            if error.code == "no-program" or "accounting storage is disabled" in error.message:
                return []
            unknown = [field for field in optional if f'{_UNKNOWN_FIELD} requested: "{field}"' in error.message]
            if not unknown:
                raise
            # An older Slurm does not have it, and refuses the whole command.
            optional.remove(unknown[0])
    rows = _split_rows(answer, "sacct", len(_ACCOUNTED) + len(optional))
    fields = [*_ACCOUNTED, *optional]
    found = [_job_of_sacct(dict(zip(fields, row, strict=True))) for row in rows]
    return sorted(found, key=lambda job: job.submitted or 0.0)


NO_SCRIPT = "(null)"
"""What squeue says of a job that was no file. Of one whose row in accounting is not complete yet, sacct (22.05) says
nothing, calls it ``allocation``, and its state may be wrong."""

_ACCOUNTED = ["JobID", "State", "Submit", "Start", "End", "NodeList", "JobName", "ExitCode"]
"""The fields of accounting that every release has. ``SubmitLine`` came with 21.08, ``FailedNode`` after 22.05."""


def _job_of_sacct(row: Mapping[str, str]) -> JobInfo:
    """Return the job that a line of sacct describes; ``row`` has the line's fields by their column.

    Its ``reason`` is ``WRITTEN_OFF`` where sacct says exactly ``CANCELLED`` and ``0:0``, else empty. Its ``script`` is
    empty where sacct was not asked for ``SubmitLine``, and ``NO_SCRIPT`` where that is empty.

    Raises:
        KeyError: a column is missing, other than ``FailedNode`` and ``SubmitLine``
        AnswerLost: the state does not look like one of Slurm's; an unknown one that does is kept
    """
    written_off = (row["State"].strip(), row["ExitCode"]) == ("CANCELLED", "0:0")
    failed = row.get("FailedNode", "")
    return JobInfo(
        row["JobID"],
        row["JobName"],
        _job_state(row["State"], "sacct"),
        _unix_time(row["Submit"]),
        _unix_time(row["Start"]),
        _unix_time(row["End"]),
        nodes="" if row["NodeList"] == "None assigned" else row["NodeList"],
        reason=WRITTEN_OFF if written_off else "",
        exit_code=row["ExitCode"],
        failed="" if failed in ("None", "(null)") else failed,
        script="" if "SubmitLine" not in row else row["SubmitLine"] or NO_SCRIPT,
    )


def unfit_nodes(nodes: str) -> list[str]:
    """Return those of ``nodes``, a host list, that Slurm shows as down, drained, draining, failing or silent.

    Each once, in the order of sinfo; empty: none is. Nodes that Slurm does not know are left out; with an empty text
    for ``nodes`` all nodes are looked at.

    Raises:
        SchedulerError: the scheduler does not answer
    """
    options = ["--Node", *_sinfo_filter(None, nodes), "--states=down,drain,fail,no_respond"]
    rows = _sinfo("%N", *options, remedy="try again when sinfo answers, or name the nodes yourself: --exclude HOSTS")
    return list(dict.fromkeys(name for (name,) in rows))  # one line for each partition


def unknown_nodes(names: Sequence[str]) -> list[str]:
    """Return those of ``names`` that are no nodes of this cluster, in their order; empty where all are nodes of it.

    At least one name is needed. Nodes of hidden partitions are known, too.

    Raises:
        SchedulerError: the scheduler does not answer
    """
    known = {name for (name,) in _sinfo("%N", "--Node", *_sinfo_filter(None, compress(names)))}
    return [name for name in names if name not in known]


def nodes_now(nodes: str | None, partition: str | None) -> dict[str, str]:
    """Return, by node, why a job cannot have it now (``drained (bad GPU)``); an empty text where it can.

    It can have a node that is idle, completing or planned, unless Slurm does not reach it, or it is about to go. The
    nodes are those of the host list ``nodes``, or of ``partition``, or with both None of the default partition, in the
    order of sinfo. With both given they are those of the list, of which the ones outside of the partition count as
    unknown. An unknown node of the list is included at the end, with that as the reason.

    Raises:
        RequestError: Slurm knows none of the nodes, or no such partition, or ``nodes`` is no host list
        SchedulerError: the scheduler does not answer
    """
    found = {}
    for name, state, where, reason in _sinfo("%N|%T|%P|%E", "--Node", *_sinfo_filter(partition, nodes)):
        if partition or nodes or where.endswith("*"):
            found[name] = _why_not_now(state, "" if reason == "none" else reason)
    unknown = [name for name in expand(nodes or "") if name not in found]
    where = f" in partition {partition}" if partition else ""
    if not found:
        named = f" {compress(unknown)}" if unknown else ""
        raise RequestError(f"Slurm knows no node{named}{where}", remedy="sinfo --Node lists them")
    # Such as pods that are gone: the others can be had.
    return found | dict.fromkeys(unknown, f"Slurm knows no such node{where}")


def _why_not_now(state: str, reason: str) -> str:
    """Return why a node in Slurm's ``state`` is not free, with the site's ``reason``: ``drained (bad GPU)``.

    ``state`` is a word in lower case with its mark, such as ``idle*``; ``reason`` empty: there is none. Empty where the
    node is free, or will be within the time that Slurm waits, and where Slurm starts it for a job (``idle~``).
    """
    word = state.rstrip("*~#!%$@^-+")
    if word in ("idle", "completing", "planned"):  # Slurm gives them within its patience
        mark = _NOT_GIVEN.get(state[-1])
        return f"{word}, but {mark}" if mark else ""
    return f"{word} ({reason})" if reason else word


_NOT_GIVEN = {
    "*": "it does not respond",
    "!": "it is to be powered down",
    "%": "it is being powered down",
    "@": "it is to be rebooted",
    "^": "it is being rebooted",
    "$": "it is in maintenance",
}
"""The marks behind a node's state (sinfo's manual) with which Slurm gives it to no job. One that is powered down
(``~``) or up (``#``) gets jobs, which wait for it."""


def partition_of(nodes: Sequence[str], preferred: str | None) -> str | None:
    """Return a partition that has all ``nodes``: ``preferred``, one name, if it does, else the first that sinfo lists.

    A hidden one comes last. ``preferred`` None: none is. At least one node is needed. The result is never None.

    Raises:
        RequestError: code ``no-nodes``: no partition has all of them
        SchedulerError: the scheduler does not answer
    """
    having: dict[str, set[str]] = {}
    listed = f"--nodes={compress(nodes)}"
    for node, partition in [*_sinfo("%N|%R", "--Node", listed), *_sinfo("%N|%R", "--Node", "--all", listed)]:
        having.setdefault(partition, set()).add(node)
    fitting = [name for name, found in having.items() if found >= set(nodes)]
    if not fitting:
        remedy = f"one of {', '.join(having)} at a time" if having else "sinfo --Node lists the nodes that there are"
        raise RequestError(f"no partition has all of {compress(nodes)}", remedy=remedy, code="no-nodes")
    return preferred if preferred in fitting else fitting[0]


def steps_of(job_id: str) -> list[str]:
    """Return the ids of the numbered steps of a job that run now, as scancel takes them: ``7.0``; empty: none runs.

    ``job_id`` is Slurm's, such as ``7``. In the order of squeue.

    Raises:
        SchedulerError: the controller cannot be reached, or does not know the job
    """
    answer = _query(["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i"])
    # The steps batch and extern are the job's own script and shell, not its ranks.
    return [step for step in answer.output.split() if re.fullmatch(r"[0-9]+\.[0-9]+", step)]


def limits_of(partition: str | None) -> tuple[int | None, int | None]:
    """Return (seconds, nodes), the longest time and the most nodes that a partition gives a job; None: no limit.

    Without a limit of its own, the nodes are those that the partition has. Of several partitions, separated by commas,
    the largest limits count; ``partition`` None: the default one. (None, None) for an unknown partition.

    Raises:
        SchedulerError: the scheduler does not answer
    """
    rows = _sinfo("%P|%l|%s|%D", *_sinfo_filter(partition))
    if not partition:
        rows = [row for row in rows if row[0].endswith("*")]
    spans = []
    sizes = []
    for _, limit, size, there in rows:
        spans.append(limit_in_seconds(limit))
        if there.isdigit():
            # 1-4, or 1-infinite: then it is the number of nodes that there are.
            most = re.search(r"[0-9]+$", size)
            sizes.append(min(int(most[0]), int(there)) if most else int(there))
    return _largest_limit(spans), _largest_limit(sizes)


_MPI_SECONDS = 10.0


def mpi_types() -> tuple[str, ...]:
    """Return the kinds of MPI by which ``srun`` can start ranks here, sorted: ``none``, ``pmix``, ``pmix_v4``.

    Empty where there is no srun, or it does not answer within 10 s. Asked once in a process; never raises. Only names
    of PMI and PMIx, ``openmpi``, ``cray_shasta`` and ``none`` are known.
    """
    program = shutil.which("srun")
    return _listed_mpi_types(program) if program else ()


@lru_cache(maxsize=4)
def _listed_mpi_types(program: str) -> tuple[str, ...]:
    """Return the kinds of MPI that ``program``, srun's path, lists, sorted; empty where it does not answer.

    Asked once in a process for each path.
    """
    answer = run_program([program, "--mpi=list"], _MPI_SECONDS)
    output = answer.output + answer.errors  # Slurm 22.05 lists them on standard error
    return tuple(sorted(set(re.findall(r"\b(pmix\w*|pmi2|none|openmpi|cray_shasta)\b", output))))


def _largest_limit(limits: Sequence[int | None]) -> int | None:
    """Return the largest of ``limits``; None, which means no limit, where one of them is None or there are none.

    All are in the same unit, which is the result's.
    """
    known = [limit for limit in limits if limit is not None]
    return max(known) if known and len(known) == len(limits) else None


def nodes_of_jobs(partition: str | None, nodelist: str | None) -> list[tuple[str, str]]:
    """Return (host name, address) of each node in both ``partition`` and the host list ``nodelist``.

    None for one of them: any partition, or all nodes. Empty where there are no such nodes. In the order of sinfo; a
    node can come more than once, as where it is in several partitions.

    Raises:
        SchedulerError: the scheduler does not answer
    """
    return [(name, address) for name, address in _sinfo("%n|%o", *_sinfo_filter(partition, nodelist)) if name]


def _sinfo_filter(partition: str | None, nodes: str | None = None) -> list[str]:
    """Return the options of sinfo that choose a partition and a host list of nodes; none for what is None or empty.

    ``partition`` may name several, separated by commas. Nodes that are named are found in hidden partitions, too.
    Nothing is checked.
    """
    options = []
    if partition:
        options.append(f"--partition={partition}")
    if nodes:
        options += ["--all", f"--nodes={nodes}"]
    return options


def _sinfo(form: str, *options: str, remedy: str = "try again later") -> list[list[str]]:
    """Return the fields of each line that sinfo prints in the format ``form``, such as ``%N|%T``.

    ``options`` are further words of its command line. Lines with too few fields are left out; the last field may
    contain the character that separates them, ``|``. Empty where sinfo prints nothing. In the order of sinfo.

    Raises:
        SchedulerError: sinfo does not answer, or fails; ``remedy`` is what to do where it fails
    """
    answer = run_slurm(["sinfo", "--noheader", *options, f"--format={form}"], ASK_SECONDS)
    if answer.status != 0:
        raise SchedulerError(f"sinfo: {answer.complaint}", remedy=remedy)
    more = form.count("|")
    rows = [line.strip().split("|", more) for line in answer.output.splitlines()]
    return [row for row in rows if len(row) == more + 1]


def _query(command: Sequence[str]) -> Answer:
    """Run a read-only command of Slurm and return its answer, with status 0; one that fails is run again a few times.

    ``command`` is its command line, as words. One that does not answer in time is not run again.

    Raises:
        AnswerLost: it failed in the end, or at once with what trying again does not change
        SchedulerError: it did not answer in time, or cannot be started
    """
    delay, begun = FIRST_DELAY, time.monotonic()
    for tries_left in reversed(range(TRIES)):
        answer = run_slurm(command, ASK_SECONDS, _ENVIRONMENT)
        if answer.status == 0:
            return answer
        final = any(word in answer.complaint for word in ("disabled", _UNKNOWN_FIELD, _UNKNOWN_ID))
        if final or not tries_left or time.monotonic() - begun >= RETRY_SECONDS:
            break
        time.sleep(delay)
        delay *= 2
    raise AnswerLost(f"{command[0]}: {answer.complaint}", remedy="the jobs are not affected; ask again later")


def _split_rows(answer: Answer, program: str, fields: int) -> list[list[str]]:
    """Return the fields of each job that ``program`` (squeue, sacct) has printed, ``fields`` of them, the id first.

    A row for several tasks of an array is returned once for each task. The last field may go on for several lines, as
    a command does. Lines before the first job that are no job are shown to the user once. Empty where nothing was
    printed.

    Raises:
        AnswerLost: the answer is cut off, has a line that cannot be read, or nothing but lines that are no job
    """
    *lines, rest = answer.output.split("\n")
    if rest:
        raise _unreadable_answer_error(program, rest)  # every row ends with a newline
    rows: list[list[str]] = []
    remarks: list[str] = []
    for line in lines:
        row = line.split(SEPARATOR)
        if len(row) == fields and _JOB_ID.fullmatch(row[0]):
            rows.append(row)
        elif len(row) > 1:
            raise _unreadable_answer_error(program, line)
        elif rows:
            rows[-1][-1] += f"\n{line}"
        elif line.strip():
            remarks.append(line.strip())  # of the site's own wrapper of the command
    if remarks and not rows:
        raise _unreadable_answer_error(program, remarks[0])  # nobody knows whether there was an answer at all
    for remark in remarks:
        _note_unknown_line(program, remark[:100])
    of_tasks: list[list[str]] = []
    for job_id, *others in rows:
        of_tasks += [[task, *others] for task in _task_ids(job_id)]
    return of_tasks


def _unreadable_answer_error(program: str, line: str) -> AnswerLost:
    """Return, without raising it, the error that a line of a Slurm program's output cannot be read.

    So the answer is lost: nobody knows what it says of the jobs. The message names ``program`` and quotes up to 200
    characters of ``line``.
    """
    return AnswerLost(
        f"cannot parse a line of {program}'s output: {line.rstrip()[:200]!r}",
        remedy="the jobs are not affected; ask again later",
    )


_JOB_ID = re.compile(r"[0-9]+(_(\[[^\]]*\]|[0-9]+))?(\+[0-9]+)?")


@lru_cache(maxsize=100)
def _note_unknown_line(program: str, line: str) -> None:
    """Print a note on standard error about a line of ``program``'s output that is no job; the same line only once."""
    print_message(f"note: {program} printed a line that is not a job, ignored: {line}")


def _task_ids(job_id: str) -> list[str]:
    """Return the ids of the tasks in a Slurm array's id like ``7_[0-2,5%4]``: ``7_0``, ``7_1``, ``7_2``, ``7_5``.

    An id without brackets is returned alone, such as ``7`` or ``7_0``. Waiting tasks of an array share a row; %4 is
    the number that may run at once. Steps, as in ``0-8:4``, are heeded. In the order of the text; empty where the
    brackets have no number.
    """
    base, bracket, tasks = job_id.partition("_[")
    if not bracket:
        return [job_id]
    numbers, _, _ = tasks.rstrip("]").partition("%")
    ids = []
    for low, high, step in re.findall(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?", numbers):
        last = int(high or low)
        ids += [f"{base}_{number}" for number in range(int(low), last + 1, int(step or 1))]
    return ids


WRITTEN_OFF = "accounting shows the job as ended, but nobody cancelled it: Slurm's controller has lost its jobs"
"""Who cancels a job has a number in accounting. It ends all jobs that a controller has forgotten when it starts
(``as_mysql_flush_jobs_on_cluster`` of slurmdbd; seen with 22.05)."""


def base_state(text: str) -> str | None:
    """Return the bare state of a Slurm job, in capitals: CANCELLED for ``CANCELLED by 0`` and ``cancelled+``.

    ``text`` is as squeue or sacct prints it. None if it is no known state.
    """
    word = text.strip().split(" ", 1)[0].rstrip("+").upper()
    return word if word in STATES else None


def _job_state(text: str, program: str) -> str:
    """Return a Slurm job's state without what Slurm appends to it; an unknown one is kept, and counts as live.

    ``program`` is the one that printed ``text``, for the message.

    Raises:
        AnswerLost: ``text`` does not look like a state, so that ``program``'s answer is damaged
    """
    state = base_state(text)
    if state is None:
        # A state from a newer Slurm is kept and counts as live; anything else is a broken answer.
        if not re.fullmatch(r"[A-Z][A-Z_]+", text):
            raise AnswerLost(f"{program} reported an unreadable state: {text[:80]!r}")
        state = text
    return state


def _unix_time(text: str) -> float | None:
    """Return a time that Slurm printed as Unix seconds, as a number; None for its words for no time, and for 0."""
    return float(text) if re.fullmatch(r"[0-9]+", text) and text != "0" else None
