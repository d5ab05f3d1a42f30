"""``llmb-run accept``."""

from __future__ import annotations

from pathlib import Path

import click

from llmb_common.command.envelope import Result
from llmb_run import completion, options
from llmb_run.acceptance.run import accept
from llmb_run.acceptance.shipped import suites
from llmb_run.acceptance.signing import sign
from llmb_run.acceptance.suite import find_suite
from llmb_run.acceptance.verify import verify_pack
from llmb_run.app import Command, VerbCommand


@click.command("suites", cls=Command)
@click.argument(
    "name",
    default="",
    metavar="[NAME]",
    help="Print this one, to start a suite of your own with.",
    shell_complete=completion.suites,
)
@options.json
def show_suites(name: str) -> Result:
    """List the suites that come with LLMB, or print one."""
    if name:
        _, text = find_suite(name)
        return Result({"name": name, "text": text}, text, for_programs=True)
    return Result(
        {"suites": list(suites())},
        "".join(f"{known}\n" for known in suites()),
        hint="next: llmb-run accept suites NAME",
    )


_PATH = click.Path(path_type=Path)


@click.command("verify", cls=Command)
@click.argument("pack", metavar="PACK", type=_PATH, help="The evidence pack of a campaign.")
@click.option("--sha256", metavar="DIGEST", default="", help="Also compare the SHA-256 of the whole file.")
@click.option("--signers", metavar="FILE", type=_PATH, help="Who may have signed: a public key, or allowed signers.")
@options.json
def verify(pack: Path, sha256: str, signers: Path | None) -> Result:
    """Check an evidence pack: its files, its verdicts against its own logs, and its signature.

    Every run is judged again. Exit status 1 where a file is not as it was, the pack says something else than its logs,
    or the signature is not what --signers asks for.
    """
    return verify_pack(pack, sha256, signers)


@click.command("sign", cls=Command)
@click.argument("pack", metavar="PACK", type=_PATH, help="The evidence pack of a campaign.")
@click.option("--key", metavar="FILE", type=_PATH, required=True, help="An SSH key; the .pub of one that an agent has.")
@options.json
def sign_pack(pack: Path, key: Path) -> Result:
    """Sign an evidence pack with an SSH key: PACK.sig beside it."""
    signature = sign(pack, key)
    return Result({"path": str(pack.absolute()), "signature": str(signature.absolute())}, f"{signature}\n")


@click.command(cls=VerbCommand, verbs=[show_suites, verify, sign_pack])
@click.argument(
    "suite",
    metavar="SUITE",
    help="A suite file, or the name of one of llmb-run accept suites, such as smoke.",
    shell_complete=completion.suites,
)
@options.flag("--again", help="Start a new campaign, even if one is over or could be resumed.")
@options.kept_in("campaigns")
@click.option(
    "--sign",
    metavar="FILE",
    type=_PATH,
    help="Sign the evidence with this SSH key, or with the agent's if it is a .pub file.",
)
@options.flag("--dry-run", help="Start nothing; show what would run, and what it would be compared with.")
@options.json
def command(suite: str, again: bool, folder: Path | None, sign: Path | None, dry_run: bool) -> Result:
    """Run an acceptance campaign: a suite of workloads, a verdict, evidence.

    Plans everything before anything starts. Runs that are inconclusive or that met a faulty node are repeated, up to
    the suite's limit, and every rerun is listed. Exit status 0: accepted; 1: not accepted; 4: not judged, because part
    of it has no reference. After any interruption, run the same command again, and it continues.

    llmb-run accept suites [NAME] shows the suites that come with LLMB, accept verify PACK judges an evidence pack
    again, and accept sign PACK signs one.
    """
    return accept(suite, again=again, folder=folder, sign_with=sign, dry_run=dry_run)
