"""What each command of ``installer.py`` and ``llmb-install`` takes, and its help: one table for both stages.

``by_click`` and ``by_argparse`` make their parsers of it. Standard library only: the first stage answers ``--help`` and
mistakes before anything is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmb_common import __version__
from llmb_install.answers import checks, detect
from llmb_install.answers.questions import QUESTIONS, Question

DEFAULT_NAME = "install"

ANSWERS = "Answers: each question of the dialogue as a flag"
"""A section of the help."""

DESPITE_RUNS = "--despite-runs"
SECRET_FLAGS = {"--hf-token": "HF_TOKEN", "--ngc-api-key": "NGC_API_KEY"}


@dataclass(frozen=True)
class Option:
    """One option of one command of the installer; without a ``metavar`` it is a switch.

    ``COMMANDS`` has those of each command. It describes the option for parsers and help, and holds no value that was
    given. The property ``name`` is the key of its value after parsing, such as ``no_space_check``; the property
    ``term`` is the option as the help shows it: ``--play FILE``, ``--gres [true|false]`` (``alone``) or
    ``--python 3.X ...`` (``several``).
    """

    flag: str
    """With dashes, such as ``--play``."""
    help: str
    """What it does, as the help says it: without a full stop, in lower case but for names."""
    metavar: str = ""
    """What stands for the value in the help, such as ``FILE``; empty: a switch."""
    choices: tuple[str, ...] = ()
    """All that the value may be, in lower case; empty: any text."""
    several: bool = False
    """It takes one value or more, which are read as a list."""
    alone: bool = False
    """Its value may be left out, and is then the text ``true``."""
    required: bool = False
    """Whether the command cannot do without it."""
    section: str = "Options"
    """The heading that the help lists it under."""

    @property
    def name(self) -> str:
        """The name of the option's value after parsing: ``no_space_check`` for ``--no-space-check``."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def term(self) -> str:
        """The option and what stands for its value, as the help shows them, such as ``--python 3.X ...``.

        A value that may be left out is in brackets: ``--gres [true|false]``.
        """
        if not self.metavar:
            return self.flag
        value = f"[{self.metavar}]" if self.alone else self.metavar
        return f"{self.flag} {value}{' ...' if self.several else ''}"


@dataclass(frozen=True)
class Argument:
    """The required positional argument of a command: one word, or one and more if ``several``, such as workloads.

    ``COMMANDS`` has that of each command. It describes the argument for parsers and help, and holds no word that was
    given. ``help`` says what it means, without a full stop; ``metavar`` stands for a word of it in the help, such as
    ``IMAGE``. The property ``name`` is the key of its value after parsing, ``workloads`` or ``image``; the property
    ``term`` is what the help shows, ``WORKLOAD...`` or ``IMAGE``.
    """

    metavar: str
    help: str
    several: bool = False

    @property
    def name(self) -> str:
        """The name under which the argument's value is found after parsing.

        It is ``workloads`` for one of several words, else the ``metavar`` in lower case, such as ``image``.
        """
        return "workloads" if self.several else self.metavar.lower()

    @property
    def term(self) -> str:
        """The argument as the help shows it: ``IMAGE``, or ``WORKLOAD...`` where it takes several words."""
        return f"{self.metavar}..." if self.several else self.metavar


@dataclass(frozen=True)
class Command:
    """One command of the installer, such as ``add``, as both parsers and the help need it.

    ``COMMANDS`` has all by their ``name``. ``argument`` is its positional argument; None: it takes none. ``usage``:
    the words behind the command's name in the usage line, to which the argument is added. ``option`` returns the one
    of ``options`` with a flag such as ``--play``, which must be whole and have its dashes; None: the command has no
    such option.
    """

    name: str
    about: str
    """What it does, on one line, without a full stop."""
    options: tuple[Option, ...]
    """In the order of the help."""
    argument: Argument | None = None
    text: str = ""
    """What the help says of it, where that is more than one line; empty: ``about``."""
    usage: tuple[str, ...] = ("[OPTIONS]",)
    example: str = ""
    """What may stand behind the program's name, as its help shows it; empty: no example."""

    def option(self, flag: str) -> Option | None:
        """Return the option of this command with ``flag``, in full with its dashes, such as ``--play``; else None."""
        return next((option for option in self.options if option.flag == flag), None)


@dataclass(frozen=True)
class Call:
    """One command line: the command that it names, and the words that follow, not parsed yet.

    ``parse`` makes it. The property ``name`` is how the command is called, to be pasted: ``llmb-install add``, or the
    program alone for the default command, ``install``.
    """

    command: Command
    program: str
    """As it can be pasted: ``./installer.py`` or ``llmb-install``."""
    words: tuple[str, ...]
    """The words behind the command; none of them is a secret."""

    @property
    def name(self) -> str:
        """How the command is called, to be pasted: program and command; of the default command the program alone."""
        return self.program if self.command.name == DEFAULT_NAME else f"{self.program} {self.command.name}"


def _option_of_question(question: Question) -> Option:
    """Return the option of the command ``install`` that gives the answer to a question of the dialogue.

    It has the question's flag, help, metavar and choices; that of a switch may stand without a value. The question
    must know its field, as those in ``QUESTIONS`` do.
    """
    return Option(
        question.flag,
        question.help,
        question.metavar,
        choices=tuple(question.choices),
        alone=question.is_switch,
        section=ANSWERS,
    )


_INSTALLATION = Option("--install-path", "the installation (default: LLMB_INSTALL)", "DIR")
_BUILDING = (
    Option("--dry-run", "show what would be done, without changing anything"),
    Option("--no-space-check", "do not check free disk space first"),
    *(
        Option(flag, f"stored in a file that only you can read; for this run only, set {variable} instead", "SECRET")
        for flag, variable in SECRET_FLAGS.items()
    ),
    Option("--from", "take packages and images only from this folder, made by llmb-install bundle", "DIR"),
)
_OUTPUT = (
    Option("--json", "print one JSON object, errors included"),
    Option("--verbose", "show the output of every command"),
)
_DESPITE_RUNS = Option(DESPITE_RUNS, "remove even if runs that use it are queued or running")
_WORKLOADS = Argument("WORKLOAD", "a name as shown by list", several=True)

_ALL = (
    Command(
        DEFAULT_NAME,
        "install (the default)",
        (
            Option(
                "--quickstart",
                "no questions, no Slurm, no GPU: install a CPU engine here, train a tiny Llama 3.1 and show the result",
            ),
            Option("--play", "take the answers from FILE and ask nothing", "FILE"),
            Option("--record", "write the answers to FILE and install nothing", "FILE"),
            Option(checks.INTO_USED_FOLDER, "install into a directory that is not empty"),
            Option(detect.FLAG, "do not check the answers against Slurm"),
            Option("--list-workloads", "list the workloads and exit"),
            *_BUILDING,
            *_OUTPUT,
            *map(_option_of_question, QUESTIONS),
        ),
        text="Install LLMB: the tool, training environments, container images and the settings of this site. In a "
        "terminal it asks, unless the flags below or --play give the answers. It works from a clone of the repository: "
        "the one that it is in, or LLMB_REPO.",
        usage=("[--quickstart | --play FILE | ANSWERS]", "[OPTIONS]"),
        example="--install-path /lustre/llmb --cluster-type slurm --workloads llama3.1",
    ),
    Command(
        "add",
        "add workloads to an installation",
        (
            Option(
                "--engines",
                "also install other releases of Megatron-Bridge that the workloads run on, such as 0.6, separated by "
                "commas",
                "RELEASES",
            ),
            _INSTALLATION,
            *_BUILDING,
            *_OUTPUT,
        ),
        argument=_WORKLOADS,
        example="add llama4 grok1",
    ),
    Command(
        "remove",
        "remove workloads; results stay",
        (_INSTALLATION, _DESPITE_RUNS, *_OUTPUT),
        argument=_WORKLOADS,
        example="remove grok1",
    ),
    Command(
        "list",
        "show what is installed and what is available",
        (_INSTALLATION, *_OUTPUT),
        example="list --install-path /lustre/llmb",
    ),
    Command(
        "verify",
        "check every part against its receipt",
        (_INSTALLATION, *_OUTPUT),
        example="verify --install-path /lustre/llmb",
    ),
    Command(
        "update",
        "bring an installation up to date with its clone, repair it and remove leftovers",
        (_INSTALLATION, *_BUILDING, *_OUTPUT),
        example="update --install-path /lustre/llmb",
    ),
    Command(
        "adopt",
        "make an image with another Megatron-Bridge known: import it, read its functions",
        (_INSTALLATION, *_OUTPUT),
        argument=Argument("IMAGE", "nvcr.io#nvidia/nemo:TAG, or the path of a .sqsh file"),
        example="adopt /lustre/images/nemo.sqsh",
    ),
    Command(
        "bundle",
        "put everything that an installation fetches into a folder, for machines without a network",
        (
            _INSTALLATION,
            Option("--to", "the folder; if it is unfinished, it is completed", "DIR", required=True),
            Option(
                "--workloads",
                "include their images and CPU engines; default: those of the installation, if there is one",
                "WORKLOADS",
            ),
            Option(
                "--platform",
                "for these machines; default: this machine's kind (images: that of the installation's GPUs)",
                "x86_64|aarch64",
                choices=("x86_64", "aarch64"),
                several=True,
            ),
            Option(
                "--python",
                "for these versions of Python; default: this one, and one that the CPU engine supports",
                "3.X",
                several=True,
            ),
            Option("--no-images", "leave images out"),
            *_OUTPUT,
        ),
        example="bundle --to /media/usb/llmb --workloads llama3.1 --platform x86_64",
    ),
    Command(
        "charts",
        "fetch what draws the charts of reports (34 MB), as the first report with charts does",
        (_INSTALLATION, *_OUTPUT),
        example="charts --install-path /lustre/llmb",
    ),
    Command(
        "uninstall",
        "remove an installation; results stay",
        (
            _INSTALLATION,
            _DESPITE_RUNS,
            Option("--yes", "do not ask for confirmation"),
            Option("--results-too", "also remove workloads/ with all results"),
            *_OUTPUT,
        ),
        example="uninstall --install-path /lustre/llmb",
    ),
    Command(
        "doctor",
        "check this site and report what to fix",
        (
            _INSTALLATION,
            Option("--account", "default: as in cluster_config.yaml", "ACCOUNT"),
            Option("--gpu-partition", "default: as in cluster_config.yaml", "PARTITION"),
            Option("--no-compute-node", "do not run a job on a compute node"),
            *_OUTPUT,
        ),
        example="doctor --account bench --gpu-partition batch",
    ),
)
COMMANDS = {command.name: command for command in _ALL}
DEFAULT = COMMANDS[DEFAULT_NAME]

Rows = list[tuple[str, str]]


def sections(call: Call) -> dict[str, Rows]:
    """Return the parts of a command's help below its text, by heading: rows of a term and a sentence on its meaning.

    ``call`` is the command line that asks for help. The terms are the positional argument, which comes first, options,
    each below the heading of its ``section``, and, for the default command, the other commands, last, below
    ``Other commands (PROGRAM COMMAND --help)``. ``Options``, of which the command must have at least one, ends with
    ``--version`` and ``-h, --help``. Terms are as in ``--play FILE``; headings have no colon. The sentence of a
    required option ends in ``  [required]``.
    """
    command = call.command
    found: dict[str, Rows] = {}
    if command.argument:
        found["Positional arguments"] = [(command.argument.term, _sentence(command.argument.help))]
    for option in command.options:
        text = _sentence(option.help) + ("  [required]" if option.required else "")
        found.setdefault(option.section, []).append((option.term, text))
    found["Options"] += [
        ("--version", "Print the version and exit."),
        ("-h, --help", "Show this message and exit."),
    ]
    if command is DEFAULT:
        others = [(other.name, _sentence(other.about)) for other in COMMANDS.values() if other is not DEFAULT]
        found[f"Other commands ({call.program} COMMAND --help)"] = others
    return found


def version(program: str) -> str:
    """Return the line that ``--version`` prints, without a line break: the program and the version of LLMB.

    For example ``llmb-install 0.3.0``. A ``./`` before ``program`` is left out.
    """
    return f"{program.removeprefix('./')} {__version__}"


def text_of(call: Call) -> list[str]:
    """Return the paragraphs of a command's help below its usage line, each as one text: what it does, then an example.

    The example is a command line to paste; there may be none, and then there is one paragraph. ``call`` is the
    command line that asks for help; its program begins the example.
    """
    command = call.command
    paragraphs = [command.text or _sentence(command.about)]
    if command.example:
        paragraphs.append(f"{call.program} {command.example}")
    return paragraphs


def usage_of(command: Command) -> Iterable[str]:
    """Return the words behind a command's name in the usage line of its help, such as ``[OPTIONS]`` and ``IMAGE``.

    First come those of its ``usage``, then the positional argument's, if it takes one; empty: neither.
    """
    return [*command.usage, *([command.argument.term] if command.argument else [])]


def _sentence(text: str) -> str:
    """Return ``text`` as a sentence: with a full stop, and a capital letter unless it begins with a name or sign.

    A name is a first word that is not in lower case, or goes on with ``.``, ``#`` or ``_``. ``text`` has no full stop
    yet.
    """
    is_word = re.match(r"[a-z]+\b(?![.#_])", text) is not None
    return (text[:1].upper() + text[1:] if is_word else text) + "."
