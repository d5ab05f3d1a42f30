"""Signatures of evidence packs, by OpenSSH's ``ssh-keygen -Y``: a key that the site has, in a file beside the pack.

``night.tar.zst.sig`` is a signature of the whole file, so of every byte, name and mode in it. Anybody can check it
without LLMB::

    ssh-keygen -Y verify -n llmb-accept -f allowed_signers -I NAME -s night.tar.zst.sig < night.tar.zst
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from llmb_common.errors import EnvironmentLacks, RecordError, RequestError
from llmb_common.machine.files import open_plain, write_atomic
from llmb_common.machine.processes import Answer, ask, clean_environment

NAMESPACE = "llmb-accept"
"""What the signature is for: one made for another purpose does not count."""

_MOST = 64 << 10
"""Bytes of a signature, a public key, or what ssh-keygen says."""
_SECONDS = 60

SignatureState: TypeAlias = Literal["none", "valid", "unknown signer", "not checked", "bad"]


@dataclass(frozen=True)
class PackSignature:
    """``valid``: by a signer that the site knows. ``unknown signer``: intact, but nobody said whose key counts."""

    state: SignatureState
    text: str
    """A sentence."""

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against it: an unsigned pack is no forged one."""
        return self.state != "bad"


def signature_of(pack: Path) -> Path:
    return pack.with_name(f"{pack.name}.sig")


def sign(pack: Path, key: Path) -> Path:
    """Sign ``pack`` with ``key``: a private key, or the public one of a key that an agent holds; the signature's file.

    Raises:
        EnvironmentLacks: there is no ssh-keygen, or it does not answer
        RequestError: the key cannot be used
        RecordError: the signature cannot be written
    """
    if not pack.is_file():
        raise RequestError(f"there is no pack {pack}")
    answer = _signed(key, pack)
    target = signature_of(pack)
    try:
        write_atomic(target, answer.stdout.decode())
    except OSError as error:
        raise RecordError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def check_key(key: Path) -> None:
    """Sign nothing with ``key``, to find out before a campaign whether that works.

    Raises:
        LLMBError: as ``sign``
    """
    _signed(key, Path(os.devnull))


def _signed(key: Path, content: Path) -> Answer:
    if not key.is_file():
        raise RequestError(f"there is no key {key}", remedy="name an SSH key, such as ~/.ssh/id_ed25519")
    answer = _keygen(content, "-Y", "sign", "-n", NAMESPACE, "-f", str(key))
    if not answer.ok or not answer.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise RequestError(
            f"ssh-keygen cannot sign with {key}: {answer.complaint}",
            remedy="a key with a passphrase: ssh-add it, and give its .pub file",
            code="key",
        )
    return answer


def check(pack: Path, signers: Path | None) -> PackSignature:
    """Check the signature beside ``pack``. ``signers``: a public key, or a file of allowed signers (ssh-keygen(1)).

    Raises:
        EnvironmentLacks: ``signers`` are given, and there is no ssh-keygen, or it does not answer
        RequestError: ``signers`` cannot be read
    """
    source = signature_of(pack)
    known = _signers(signers) if signers is not None else b""
    if not os.path.lexists(source):
        state: SignatureState = "none" if signers is None else "bad"
        return PackSignature(state, f"there is none ({source.name})")
    with tempfile.TemporaryDirectory(prefix="llmb-signature-") as folder:
        copy, allowed = Path(folder, "signature"), Path(folder, "signers")
        try:
            copy.write_bytes(_read(source, _MOST))
        except (OSError, ValueError) as error:
            return PackSignature("bad", f"{source.name} cannot be read: {error}")
        if signers is None:
            return _of_anybody(pack, copy)
        allowed.write_bytes(known)
        return _of_known(pack, copy, allowed, signers)


def _of_anybody(pack: Path, signature: Path) -> PackSignature:
    try:
        answer = _keygen(pack, "-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature))
    except EnvironmentLacks as error:
        return PackSignature("not checked", f"not checked: {error.message}")
    if not answer.ok:
        return PackSignature("bad", f"it is not one of this pack: {answer.complaint}")
    return PackSignature("unknown signer", f"{answer.output.strip()}; --signers FILE would say whose key it is")


def _of_known(pack: Path, signature: Path, allowed: Path, signers: Path) -> PackSignature:
    """``allowed`` is what ssh-keygen reads of ``signers``, the file that the caller named."""
    found = _keygen(pack, "-Y", "find-principals", "-s", str(signature), "-f", str(allowed))
    who = found.output.partition("\n")[0].partition(",")[0].strip()
    if not found.ok or not who:
        return PackSignature("bad", f"its key is none of {signers}")
    answer = _keygen(pack, "-Y", "verify", "-n", NAMESPACE, "-f", str(allowed), "-I", who, "-s", str(signature))
    if not answer.ok:
        return PackSignature("bad", f"it is not one of this pack by {who}: {answer.complaint}")
    return PackSignature("valid", answer.output.strip())


def _signers(path: Path) -> bytes:
    """A file of allowed signers; public keys, one a line, become one."""
    try:
        content = _read(path, 1 << 20)  # a list of signers may be long
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {error}", remedy="--signers FILE") from error
    if content.startswith((b"ssh-", b"ecdsa-", b"sk-")):
        return b"".join(b"signer " + line + b"\n" for line in content.splitlines() if line.strip())
    return content


def _read(path: Path, most: int) -> bytes:
    with open_plain(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is longer than {most} bytes")
    return content


def _keygen(content: Path, *arguments: str) -> Answer:
    """Ask ssh-keygen about ``content``, which it reads from its standard input. It never waits for a person.

    Raises:
        EnvironmentLacks: there is none, or it does not answer
    """
    size = content.stat().st_size
    # A shell, because programs that are asked have no input; it is replaced by ssh-keygen.
    script = 'input=$1; shift; exec ssh-keygen "$@" < "$input"'
    command = ["sh", "-c", script, "sh", str(content.absolute()), *arguments]
    environment = {**clean_environment(), "SSH_ASKPASS_REQUIRE": "never"}
    slowest = _SECONDS + size / (50 << 20)  # slower than any disk that holds packs
    answer = ask(command, slowest, env=environment, most=_MOST)
    if answer.status in (126, 127) or answer.problem == "no-program":
        raise EnvironmentLacks("the program ssh-keygen is not on PATH", remedy="install the package openssh-client")
    if answer.problem:
        raise EnvironmentLacks(answer.why.replace("sh ", "ssh-keygen ", 1))
    return answer
