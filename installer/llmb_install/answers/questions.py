"""The answers that define an installation, once: ``Answers``, each of whose fields says all that is known of it.

The dialogue, ``--help``, the flags, the keys of a play file, the defaults, the checks and the reference are made from
it. Standard library only: the first stage answers ``--help`` and wrong answers before anything is installed.
"""

# Without "from __future__ import annotations": the types of the fields are looked at.

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from llmb_common.base import gpus
from llmb_common.base.cluster_types import LOCAL, ClusterType, names, traits_of
from llmb_common.planning.site import DEFAULT_FOLDER
from llmb_install.answers import values
from llmb_install.answers.detect import Partition, Site
from llmb_install.answers.given import Given, brings_engine, default_architecture, on_cpus, on_slurm, uses_images
from llmb_install.answers.values import Kind


def _always(given: Given) -> bool:
    """Return True, whatever ``given`` is: the question always matters, or the dialogue asks it wherever it matters."""
    return True


def _never(given: Given) -> bool:
    """Return False: for questions that the dialogue never asks, whatever the other answers are."""
    return False


def _no_default(given: Given) -> Any:
    """Return None: for questions whose answer has no default."""
    return None


def _no_suggestion(site: Site, given: Given) -> Any:
    """Return an empty text, whatever the arguments are: for questions whose answer no machine can suggest."""
    return ""


@dataclass(frozen=True)
class Question:
    """One question of the installer: what is asked, what its answer may be, and what that depends on.

    Each is made with the field of ``Answers`` that carries it, whose type its answer has; ``BY_FIELD`` has them all.
    Callables get as ``given`` the answers so far by field, an unanswered one being absent or None, and as ``site``
    what was detected on this machine. The property ``flag`` is the option that gives the answer, with its dashes:
    ``--gpu-type`` for the field ``gpu_type``. The property ``metavar`` stands for the option's value in the help:
    ``local|srun``, ``true|false``, or ``PATH``. ``listed`` returns what the dialogue offers to choose from, as a
    dictionary from each value to the line shown for it, in order; its last key is ``OTHER`` where the values are
    those of this machine and another may be typed. It is empty where the answer is always typed.
    """

    prompt: str = ""
    """What the dialogue asks, without a question mark."""
    help: str = ""
    """What ``--help`` says."""
    choices: Sequence[str] = ()
    """All that the answer may be, in lower case (of a switch ``true`` and ``false``); empty: any text, or a list."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What the dialogue shows beside a choice, by choice; a choice may have none."""
    kind: Kind = Kind()  # noqa: RUF009  (it is frozen)
    """What is typed where there are no choices: a path, a list, or other text, with its checks."""
    required: bool = False
    """Whether there can be no installation without an answer, as it has no default."""
    matters: Callable[[Given], bool] = _always
    """Whether the answer makes a difference, given the other answers."""
    asked: Callable[[Given], bool] = _always
    """Whether the dialogue asks, where the answer matters; otherwise an earlier answer stays, or the default holds."""
    default: Callable[[Given], Any] = _no_default
    """The value where nobody answered, from the other answers; None: there is no default. That of ``arch`` needs
    ``gpu_type``, else it raises a KeyError.
    """
    follows: str = ""
    """Name of the field that the default depends on: once that answer changes, an old answer to this one is dropped."""
    same_as: str = ""
    """Name of the field whose answer this one usually equals: where they were equal, both change together."""
    suggested: Callable[[Site, Given], Any] = _no_suggestion
    """What Enter accepts: what was detected on this machine, else a default; empty or None where nobody knows."""
    guess: str = ""
    """What Enter accepts where nothing is suggested; empty: no guess."""
    offered: Callable[[Site], Mapping[str, str]] = lambda site: {}
    """The values that this machine has to choose from, each with what the dialogue shows of it; empty: none."""
    wrong: Callable[[str, Given], str] = lambda text, given: ""
    """What is wrong with the typed text beside the other answers, a clause that begins with "it"; empty: nothing.
    Does not look at the disk.
    """
    refused: Callable[[str], str] = values.nothing_wrong
    """What is wrong with the typed text in the dialogue alone, a clause; empty: nothing. Flags and play files may say
    it. May look at the disk, and raise RequestError for an unknown home directory, and OSError.
    """
    hint: Callable[[str], str] = values.nothing_wrong
    """What the prompt says besides, from the suggested text (empty: none); it begins with a blank, or is empty. May
    raise an OSError.
    """
    may_be_empty: bool = True
    """Whether an empty answer in the dialogue stands for the default."""
    way_out: str = ""
    """What the dialogue adds where an answer is required and none was typed; it begins with a blank, or is empty."""
    remedy: str = ""
    """What to do about a wrong answer, for error messages; empty: the remedy of its kind."""
    field: str = ""
    """Name of the field of ``Answers`` that carries the question; empty until ``BY_FIELD`` is made."""
    is_switch: bool = False
    """Whether the answer is true or false; set, too, when ``BY_FIELD`` is made."""

    @property
    def flag(self) -> str:
        """The flag that gives the answer to this question, with its dashes: ``--gpu-type`` for ``gpu_type``."""
        return "--" + self.field.replace("_", "-")

    @property
    def metavar(self) -> str:
        """What stands for this question's value in help, such as ``local|srun``, or ``PATH`` of ``install_path``.

        It is the choices, ``true|false`` for a switch, or the last word of the field's name in upper case where there
        are none.
        """
        return "|".join(self.choices) or self.field.rpartition("_")[2].upper()

    def listed(self, site: Site) -> dict[str, str]:
        """Return what the dialogue lists to choose from, in order: the line shown for each value, by value.

        Values that this machine offers take the place of the choices, with ``OTHER`` (``another one``) at the end as
        key and line, after which an answer is typed. A choice's line is its value padded to 8 characters, a blank
        and its label, or the value alone without a label. Empty for a question that is answered by typing.
        """
        if found := self.offered(site):
            return {**found, OTHER: OTHER}
        lines = {}
        for name in self.choices:
            if name in self.labels:
                lines[name] = f"{name:8} {self.labels[name]}"
            else:
                lines[name] = name
        return lines


OTHER = "another one"
"""The choice after which an answer is typed."""


def _question_field(question: Question, **default: Any) -> Any:
    """Return a dataclass field of ``Answers`` that carries ``question`` in its metadata, under the key ``question``.

    ``default`` is at most the keyword ``default``, the field's value where nobody answered; without it the field must
    be given when ``Answers`` is made.
    """
    return dataclasses.field(metadata={"question": question}, **default)


def _partition_lines(found: Iterable[Partition]) -> dict[str, str]:
    """Return the line that the dialogue shows of each partition, by the partition's name, in the order of ``found``.

    For example ``batch  12 nodes, 8 GPUs each, limit 1-00:00:00, down``. Names are padded to the same width;
    ``GPUs each`` is left out where there are none, ``down`` where the partition is up. The limit is as Slurm writes
    it. Empty for no partitions.
    """
    partitions = tuple(found)
    width = max((len(p.name) for p in partitions), default=0)
    shown = {}
    for p in partitions:
        with_gpus = f", {p.gpus_per_node} GPUs each" if p.gpus_per_node else ""
        down = "" if p.up else ", down"
        shown[p.name] = f"{p.name:{width}}  {p.nodes} nodes{with_gpus}, limit {p.time_limit}{down}"
    return shown


def _suggested_cluster_type(site: Site, given: Given) -> str:
    """Return the ``cluster_type`` to suggest: ``slurm`` where Slurm was detected, else by the programs on PATH.

    Then it is the first scheduler that LLMB knows whose program is there, or ``local`` where there is none. ``given``
    is ignored. ``site`` is what was detected on this machine.
    """
    from llmb_common.planning.site.machine import detect_cluster_type  # not for the first stage, which lacks msgspec

    return "slurm" if site.has_slurm else detect_cluster_type()


def _partition_rank(partition: Partition) -> tuple[bool, bool, bool]:
    """Return a sort key of a partition with GPUs: (LLMB knows its GPU type, it is up, it is Slurm's default).

    The partition with the highest key is suggested, of equal ones the first.
    """
    return bool(gpus.type_of(partition.gpu_name)), partition.up, partition.is_default


def _gpu_partition_here(site: Site, given: Given) -> str:
    """Return the name of the partition to suggest for GPU jobs: the best one with GPUs, else Slurm's default.

    The best is the one of a GPU type that LLMB knows before others, then the one that is up, then Slurm's default; of
    equal ones the first. Empty where there are no partitions with GPUs and no default. ``given`` is ignored.
    """
    if site.gpu_partitions:
        return max(site.gpu_partitions, key=_partition_rank).name
    return next((p.name for p in site.offered if p.is_default), "")


def _cpu_partition_here(site: Site, given: Given) -> Any:
    """Return the name of the partition to suggest for installation jobs: of those without GPUs the first that is up.

    The order is that of sinfo. Where there is none, it is the answer ``gpu_partition``; None if that is unanswered,
    too. The partitions are those of ``site``, the answer is that in ``given``.
    """
    without_gpus = next((p.name for p in site.offered if p.up and not p.gpus_per_node), None)
    return without_gpus or given.get("gpu_partition")


def _has_gres(site: Site, given: Given) -> bool:
    """Return whether Slurm counts GPUs in the answered ``gpu_partition``, so that jobs can request them with a GRES.

    ``site`` has the partitions. False also where no partition is answered, or the site has none of that name.
    """
    return any(p.gpus_per_node for p in site.partitions if p.name == str(given.get("gpu_partition")))


def _gpu_type_here(site: Site, given: Given) -> str:
    """Return the GPU type to suggest, such as ``h100``: the one that Slurm names in the answered ``gpu_partition``.

    Where Slurm names none there, or no partition is answered, it is the type detected for the whole site. Where LLMB
    knows no such type: empty on Slurm, elsewhere ``cpu``. ``site`` is what was detected here; ``given`` has the
    answers.
    """
    return site.gpu_type_in(str(given.get("gpu_partition"))) or ("" if on_slurm(given) else gpus.CPU)


def _suggested_architecture(site: Site, given: Given) -> str:
    """Return the CPU architecture to suggest, such as ``x86_64``: that of all nodes, if they share one.

    Else it is that of machines with GPUs of the answered ``gpu_type``, or this machine's where the type is unanswered,
    unknown or ``cpu``. The nodes are those of ``site``, the answers are in ``given``.
    """
    one_kind = len(site.architectures) == 1
    return site.architectures[0] if one_kind else default_architecture(str(given.get("gpu_type", "")))


def _suggested_runtime(site: Site, given: Given) -> str:
    """Return the container runtime to suggest: ``none`` for CPU jobs, ``enroot`` or ``pyxis`` for all others.

    ``enroot`` is suggested only where that program is on this machine and srun has no Pyxis. Only ``gpu_type`` of
    ``given`` plays a part; where it is unanswered, jobs count as GPU jobs.
    """
    if given.get("gpu_type") == gpus.CPU:
        return "none"
    return "enroot" if shutil.which("enroot") is not None and not site.has_pyxis else "pyxis"


_ON_ARM = ", ".join(name.upper() for name, gpu in gpus.GPUS.items() if gpu.host == "aarch64")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """All answers that decide what is installed, in the order of the questions; secrets are in ``Secrets`` instead.

    Making one checks nothing: ``complete_answers`` checks and adds the defaults, ``stored_answers`` reads those of
    an installation. Choices are in lower case; paths (``install_path``, ``image_folder``, ``engine_python``) are
    absolute, names in ``workloads`` are those of recipes (none after all were removed), ``engines`` are releases
    such as ``0.6``. ``account`` and the partitions are names in Slurm, None without it; ``engine_python`` is a
    program. None of a field means that nobody answered: what its question calls the default holds, or the question
    does not matter.

    The property ``on_slurm`` tells whether jobs are submitted to Slurm, the property ``uses_images`` whether jobs run
    in container images: on Slurm, unless the runtime is ``none``. Both raise ValueError for a ``cluster_type`` that
    LLMB does not know.
    """

    schema: int = 1
    """Version of the file format of answers."""
    install_path: str = _question_field(
        Question(
            "Where to install",
            "top folder, on a shared file system for Slurm"
            f" (default: LLMB_INSTALL, else ./{DEFAULT_FOLDER} in the clone)",
            kind=values.FOLDER,
            wrong=values.unusable_for_installation,
            refused=values.not_writable,
            hint=values.free_space_hint,
            may_be_empty=False,
        )
    )
    cluster_type: ClusterType = _question_field(  # noqa: RUF009
        Question(
            "Where jobs run",
            f"{', '.join(name for name in names() if not traits_of(name).this_machine)}, or {LOCAL}: this machine",
            choices=tuple(names()),
            labels={"slurm": "jobs on a cluster", "local": "jobs on this machine"},
            required=True,
            suggested=_suggested_cluster_type,
        )
    )
    account: str | None = _question_field(
        Question(
            "Slurm account",
            "account that jobs are charged to",
            kind=values.SLURM_NAME,
            required=True,
            matters=on_slurm,
            suggested=lambda site, given: site.accounts[0] if site.accounts else "",
            offered=lambda site: {name: name for name in site.accounts},
        ),
        default=None,
    )
    gpu_partition: str | None = _question_field(
        Question(
            "Partition for GPU jobs",
            "partition with the GPUs",
            kind=values.SLURM_NAME,
            required=True,
            matters=on_slurm,
            suggested=_gpu_partition_here,
            offered=lambda site: _partition_lines(site.gpu_partitions or site.offered),
        ),
        default=None,
    )
    gres: bool = _question_field(
        Question(
            "Do jobs request their GPUs with --gres=gpu:N",
            "request GPUs with --gres=gpu:N (default: true if Slurm has some in the partition)",
            matters=on_slurm,
            suggested=_has_gres,
        ),
        default=False,
    )
    gpu_type: str = _question_field(
        Question(
            "GPU type",
            "GPUs that jobs run on",
            choices=gpus.gpu_types(),
            required=True,
            suggested=_gpu_type_here,
            guess="h100",
        )
    )
    arch: str = _question_field(
        Question(
            "Architecture of the compute nodes",
            f"default: aarch64 for {_ON_ARM}, else x86_64",
            choices=("x86_64", "aarch64"),
            default=lambda given: default_architecture(given["gpu_type"]),
            follows="gpu_type",
            suggested=_suggested_architecture,
        )
    )
    runtime: str = _question_field(
        Question(
            "Container runtime",
            "how jobs start their container (default: pyxis)",
            choices=("pyxis", "enroot", "none"),
            labels={
                "pyxis": "srun --container-image",
                "enroot": "without Slurm's plug-in",
                "none": "no container: an environment of your own",
            },
            matters=on_slurm,
            default=lambda given: "pyxis" if on_slurm(given) else "none",
            follows="cluster_type",
            suggested=_suggested_runtime,
        )
    )
    mpi: str | None = _question_field(
        # ``slurm.mpi`` of ``cluster_config.yaml``, from files of release 0.2: nobody is asked any more, it has no flag.
        Question(kind=values.SLURM_NAME, follows="cluster_type", remedy="remove mpi"),
        default=None,
    )
    """``slurm.mpi`` of ``cluster_config.yaml``, only from files of release 0.2; None: nobody chose one."""
    container_writable: bool | None = _question_field(
        Question(
            "May jobs write inside their container",
            "let jobs write inside their container; changes are lost when the job ends (default: true)",
            matters=uses_images,
            asked=_never,
            suggested=lambda site, given: True,
        ),
        default=None,
    )
    """None: nobody said it, and jobs may."""
    install_method: str = _question_field(
        Question(
            "Where images are imported",
            "on this machine, or on a compute node (default: local)",
            choices=("local", "srun"),
            labels={"local": "here, on this machine", "srun": "on a compute node"},
            matters=uses_images,
            default=lambda given: "local",
            follows="cluster_type",
            suggested=lambda site, given: "local" if shutil.which("enroot") else "srun",
        )
    )
    cpu_partition: str | None = _question_field(
        Question(
            "Partition for installation jobs",
            "partition for installation jobs (default: the GPU partition)",
            kind=values.SLURM_NAME,
            matters=on_slurm,
            asked=lambda given: given.get("install_method") == "srun",
            default=lambda given: given.get("gpu_partition") if on_slurm(given) else None,
            same_as="gpu_partition",
            suggested=_cpu_partition_here,
            offered=lambda site: _partition_lines(site.offered),
        ),
        default=None,
    )
    image_folder: str | None = _question_field(
        Question(
            "Folder of container images",
            "default: images in the installation; may be read-only",
            kind=values.FOLDER,
            matters=uses_images,
            hint=lambda suggestion: "" if suggestion else " (Enter: images in the installation)",
        ),
        default=None,
    )
    """An absolute path; None: ``images`` in the installation."""
    registry_mirror: str | None = _question_field(
        Question(
            "Mirror of the registry",
            "import images from HOST[:PORT][/FOLDER] in place of their own registry, nvcr.io",
            kind=values.MIRROR,
            matters=uses_images,
            asked=_never,
        ),
        default=None,
    )
    engine_python: str | None = _question_field(
        Question(
            "Python with torch and Megatron-Bridge",
            "for GPU jobs outside a container: the Python of an environment with torch and Megatron-Bridge",
            kind=values.PROGRAM,
            required=True,
            matters=brings_engine,
            way_out=" (without one, GPU jobs on this machine cannot run: go back and choose cpu, or slurm)",
        ),
        default=None,
    )
    env_type: str = _question_field(
        Question(
            "How to create the training environment",
            "default: venv",
            choices=("venv", "uv", "conda"),
            asked=on_cpus,
            default=lambda given: "venv",
            suggested=lambda site, given: "venv",
        )
    )
    hugging_face: bool = _question_field(
        Question(
            "Fetch tokenizers from Hugging Face (no benchmark needs them)",
            "also fetch the models' tokenizers and configurations; no benchmark needs them (default: false)",
            suggested=lambda site, given: False,
        ),
        default=False,
    )
    engines: tuple[str, ...] | None = _question_field(
        # Beside those that the workloads run on unless another is asked for.
        Question(
            "Further releases of Megatron-Bridge",
            "further releases of Megatron-Bridge for workloads that run on several, such as 0.6 (default: none)",
            kind=values.RELEASES,
            asked=_never,
        ),
        default=None,
    )
    """Releases beside the default ones of the workloads, such as ``0.6``; None: no further ones."""
    workloads: tuple[str, ...] = _question_field(
        Question("Workloads", "names separated by commas, or all", kind=values.WORKLOADS, required=True)
    )
    space_check: bool = True
    """Whether free disk space is checked before anything is built."""

    @property
    def on_slurm(self) -> bool:
        """Whether these answers have jobs submitted to Slurm.

        Raises:
            ValueError: ``cluster_type`` is no way of running jobs that LLMB knows
        """
        return traits_of(self.cluster_type).slurm_options

    @property
    def uses_images(self) -> bool:
        """Whether these answers have jobs run in container images: on Slurm, unless the runtime is ``none``.

        Raises:
            ValueError: ``cluster_type`` is no way of running jobs that LLMB knows
        """
        return self.on_slurm and self.runtime != "none"


def _all_questions() -> dict[str, Question]:
    """Return the questions by the name of the field of ``Answers`` that carries each, in the fields' order.

    They are copies, with ``field`` and ``is_switch`` set and, for a bool, the choices ``true`` and ``false``. Fields
    without a question are left out.
    """
    found = {}
    for known in fields(Answers):
        question: Question | None = known.metadata.get("question")
        if question is not None:
            is_switch = known.type in (bool, bool | None)
            choices = ("true", "false") if is_switch else question.choices
            found[known.name] = replace(question, field=known.name, is_switch=is_switch, choices=choices)
    return found


BY_FIELD = _all_questions()
QUESTIONS = tuple(question for question in BY_FIELD.values() if question.prompt)
"""Those that have a prompt and a flag, in the order of the dialogue."""

FIELDS = frozenset(known.name for known in fields(Answers))
"""The keys of a file of answers."""


def missing_questions(given: Given) -> list[Question]:
    """Return the required questions that matter and have no answer in ``given``, in the dialogue's order; empty: none.

    ``given`` has the answers by field. None, an empty text and an empty list are no answer; an empty tuple is one.
    """
    needed = [q for q in QUESTIONS if q.required and q.matters(given)]
    return [q for q in needed if given.get(q.field) in (None, "", [])]


def with_defaults(given: Given) -> Given:
    """Return a copy of ``given`` in which each answer that is absent or None has its default, where there is one.

    That is so for answers that make no difference, too. Answers that have no default stay as they are: absent, or
    None. An empty text counts as an answer. Values should be in lower case, as in ``Answers``; they are not checked.
    ``gpu_type`` must be there, and not None.

    Raises:
        KeyError: ``gpu_type`` is absent, by which the default of ``arch`` goes, even where ``arch`` is given
    """
    values = dict(given)
    for question in QUESTIONS:
        default = question.default(values)
        if values.get(question.field) is None and default is not None:
            values[question.field] = default
    return values


def merged_answers(old: Given, new: Given) -> Given:
    """Return a new dictionary with the ``old`` answers, overridden by the ``new`` ones; all are by field.

    An answer has changed that is in both and differs. Left out are old answers that depended on one that has changed
    (``follows``), that equalled it before (``same_as``), or that make no difference any more; answers in ``new`` never
    are.
    """
    changed = {name for name, value in new.items() if name in old and old[name] != value}
    kept = dict(old)
    for question in BY_FIELD.values():
        was_the_same = question.same_as in changed and old.get(question.field) == old[question.same_as]
        if question.follows in changed or was_the_same:
            kept.pop(question.field, None)
    both = {**kept, **new}
    idle = {q.field for q in QUESTIONS if not q.matters(both)}
    return {name: value for name, value in both.items() if name in new or name not in idle}
