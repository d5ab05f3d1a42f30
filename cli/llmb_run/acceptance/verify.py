"""``llmb-run accept verify``: is a pack as it was written, does it say what its logs say, and who has signed it?"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

from llmb_common.command.outcome import Result
from llmb_common.errors import CheckFailed
from llmb_run.acceptance.recompute import Recomputed, Unpacked, recompute
from llmb_run.acceptance.signing import Signature, check
from llmb_run.results.verifying import KINDS, Verified, verify_archive


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
        "ok": files.ok and signature.ok and not again.problems,
        "files": files.files,
        **{kind: getattr(files, kind) for kind in KINDS},
        "notes": files.notes,
        "verdict": asdict(again),
        "signature": asdict(signature),
    }
    lines = [*_about_files(files), *_about_verdict(again), f"signature: {signature.state}: {signature.text}"]
    text = "".join(f"{line}\n" for line in lines)
    if data["ok"]:
        return Result(data, text)
    error = CheckFailed(
        f"{pack} does not prove what it says: {_first(files, again, signature)}",
        remedy="ask whoever made it for the original, or for its logs",
        code="pack-refuted",
    )
    return Result(data, text, error=error)


def _about_files(found: Verified) -> list[str]:
    lines = [f"files: {found.files}, all as they were written"] if found.ok else [*found.lines()]
    return [*lines, *(f"note: {text}" for text in found.notes)]


def _about_verdict(again: Recomputed) -> list[str]:
    problems = [f"verdict: {text}" for text in again.problems]
    if not problems:
        problems = [f"verdict: judged again from the logs, and the same: {again.said}"]
    return [*problems, *(f"note: {text}" for text in again.notes)]


def _first(files: Verified, again: Recomputed, signature: Signature) -> str:
    """The gravest of what is wrong."""
    if again.problems:
        return again.problems[0]
    return next(files.lines(), f"its signature: {signature.text}")
