"""What release 0.3 removed, and what to write instead.

Each table answers whoever still writes the old name, for one release; release 0.4 empties them. Standard library only:
the installer's first stage reads them too.
"""

from __future__ import annotations

from llmb_common.base.errors import RequestError

COMMANDS: dict[str, str] = {
    "accept sign": "ssh-keygen -Y sign -n llmb-accept -f KEY PACK",
    "accept verify": (
        "tar -xf PACK; in its folder sha256sum -c SHA256SUMS and llmb-run accept show .; its signature: ssh-keygen -Y "
        "verify -n llmb-accept -f ALLOWED_SIGNERS -I NAME -s PACK.sig < PACK"
    ),
    "archive verify": "tar -xf PACK; in its folder sha256sum -c SHA256SUMS",
    "repeat": "llmb-run retry RUN --exact; what has changed since: llmb-run retry RUN --check",
}
"""A command, or a command and its verb (``archive verify``) -> the line that does its work."""

_ALONE = "leave it out: each run is a job of its own"
_AB_LINES = "llmb-run why --slow RUN; beside each difference it prints the ab command that measures it"

_SIZE = {"--model-size": "-s SIZE"}

OPTIONS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("list", "plan", "single", "ab", "jobs", "results", "report", "archive"), _SIZE),
    "baseline set": _SIZE,
    "retry": {"--without": "--exclude HOSTS"},
    "install": {"--mpi": "leave it out: each job gets what it needs; slurm.mpi in cluster_config.yaml decides for all"},
    "submit": {"--no-array": _ALONE, **_SIZE},
    "sweep": {"--no-array": _ALONE, **_SIZE},
    "bulk": {"--no-array": _ALONE},
    "accept": {"--sign": "when the campaign is over: ssh-keygen -Y sign -n llmb-accept -f KEY PACK"},
    "why": {
        **dict.fromkeys(("--test", "--resolution", "--pairs", "--budget", "--again", "--folder"), _AB_LINES),
        **_SIZE,
    },
    "health": {
        "--nodelist": "--nodes HOSTS",
        "--wait": "--timeout SPAN",
        **_SIZE,
        **dict.fromkeys(
            ("--profile", "--max-steps", "--time-limit", "--megatron"), "leave it out: no check of nodes depends on it"
        ),
        **dict.fromkeys(("--force", "--preflight"), "leave it out: nodes are checked for jobs of any size"),
        "--stress": "llmb-run health --fabric; it also says which node, switch or path is slower than others",
    },
    "watch": {"--once": "llmb-run jobs RUN; every live run: llmb-run jobs --live"},
    "tune": {
        **_SIZE,
        "--within": "leave it out: llmb-run tune ends when its last two candidates have been compared",
    },
}
"""Command -> its removed options -> what to write instead. The commands of both programs: their names differ."""

CONFIG_KEYS: dict[str, str] = {
    "price_per_gpu_hour": "llmb-run plan gives GPU-hours, and no money",
    "currency": "llmb-run plan gives GPU-hours, and no money",
    "watts_per_gpu": "llmb-run plan gives no energy",
}
"""A key of ``cluster_config.yaml`` (``watts_per_gpu``) -> what became of it. Such a key is a note and no error: no
site's jobs stop because LLMB was updated."""


def refuse_command(command: str) -> None:
    """Raise if ``command``, written as users type it (``llmb-run single``), is one that LLMB 0.3 removed.

    Any other passes, known or not.

    Raises:
        RequestError: it was removed; code ``removed``, and the remedy says what to use instead
    """
    if command in COMMANDS:
        raise RequestError(f"{command} was removed in LLMB 0.3", remedy=COMMANDS[command], code="removed")


def refuse_option(command: str, option: str) -> None:
    """Raise if ``option``, with its dashes, is one of ``command`` that LLMB 0.3 removed.

    Any other passes, known or not. What follows a ``=`` in ``option`` is its value and does not count.

    Raises:
        RequestError: it was removed; code ``removed``, and the remedy says what to use instead
    """
    name = option.partition("=")[0]
    instead = OPTIONS.get(command, {}).get(name)
    if instead is not None:
        raise RequestError(f"{command} {name} was removed in LLMB 0.3", remedy=instead, code="removed")
