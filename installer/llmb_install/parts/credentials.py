"""Secrets: where they come from, and on disk Enroot's own credentials file and one file of the installation, both mode
0600. Only what was given to LLMB (flag, play file, dialogue) is kept; what the environment has is used from there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb_common.command.words import Secret
from llmb_common.errors import RecordError, RequestError
from llmb_common.machine.files import read_json, write_atomic, write_json
from llmb_install.parts import enroot_files
from llmb_install.parts.enroot_files import config_folder, expanded
from llmb_install.working.artefact import Artefact, Small

NGC_HOSTS = ("nvcr.io", "authn.nvidia.com")
"""NGC hands out its tokens on another host than the images: Enroot needs the key for both."""

REGISTRY = "registry-credentials"
"""The id of the artefact that images need to be imported."""

KEPT = "LLMB_INSTALL_KEEPS"
"""The variable that names the secrets which came as flags: those are kept in a file, others are only used."""

_NOTE = Path(".llmb") / "credentials.json"


@dataclass(frozen=True)
class Secrets:
    """What must be in no file but its own: a Hugging Face token, an NGC key."""

    hf_token: Secret | None = None
    ngc_api_key: Secret | None = None
    keep: frozenset[str] = frozenset()
    """The fields that the user has given to LLMB, by a flag, a play file or an answer: they are stored. What only the
    environment has is used from there."""
    ngc_variable: str = ""
    """The variable that has the NGC key, if one has."""

    def updated(self, new: Secrets) -> Secrets:
        """These secrets, with those of ``new`` in place of older ones."""
        return Secrets(
            hf_token=new.hf_token or self.hf_token,
            ngc_api_key=new.ngc_api_key or self.ngc_api_key,
            keep=self.keep | new.keep,
            ngc_variable=self.ngc_variable,
        )


def enroot_credentials_path(env: Mapping[str, str]) -> Path:
    """Where Enroot looks for credentials."""
    return config_folder(env) / ".credentials"


def enroot_login(host: str, env: Mapping[str, str]) -> tuple[str, str] | None:
    """Login and password that Enroot has for a host, whose port it does not look at."""
    name = host.partition(":")[0]
    entry = next((e for e in enroot_files.entries(_read(enroot_credentials_path(env))) if e.host == name), None)
    if entry is None:
        return None
    password = expanded(entry.password, env) if entry.password.startswith("$") else entry.password
    return (entry.login, password) if password else None


def remove_ngc_key(install: Path) -> Path | None:
    """Take back what this installation has put into Enroot's credentials; the file, if anything was removed.

    What somebody has changed there since stays.
    """
    try:
        note = read_json(install / _NOTE)
        path, digest = Path(note["path"]), note["sha256"]
        text = _read(path)
    except (RecordError, KeyError, TypeError, OSError):
        return None
    ours = [e.host for e in enroot_files.entries(text) if e.host in NGC_HOSTS and _digest(e.password) == digest]
    if not ours:
        return None
    rest = enroot_files.without(text, ours)
    if rest.strip():
        write_atomic(path, _bytes(rest), mode=0o600)
    else:
        path.unlink()
    return path


def _write_ngc_lines(password: str, path: Path, install: Path, hosts: Sequence[str]) -> None:
    kept = enroot_files.without(_read(path), hosts)
    # One line each: Enroot itself looks for "machine HOST login USER " in one line.
    lines = "".join(f"machine {host} login $oauthtoken password {password}\n" for host in hosts)
    (install / _NOTE).parent.mkdir(parents=True, exist_ok=True)
    write_json(install / _NOTE, {"schema": 1, "path": str(path), "sha256": _digest(password)}, mode=0o600)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, _bytes(enroot_files.added(kept, lines)), mode=0o600)


def _require_ngc_key(key: Secret) -> None:
    value = key.reveal()
    if not value or value.startswith("$") or any(c.isspace() for c in value):
        raise RequestError(
            "this is not an NGC API key: it is empty, contains a space or begins with $ (which Enroot would evaluate)",
            remedy="copy the key again from https://org.ngc.nvidia.com/setup/api-keys",
        )


def _digest(text: str) -> str:
    return hashlib.sha256(_bytes(text)).hexdigest()


def _read(path: Path) -> str:
    """Its text. What others wrote there need not be UTF-8, and stays byte for byte: see ``_bytes``."""
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_private(path: Path) -> bool:
    return path.is_file() and path.stat().st_mode & 0o777 == 0o600


def hf_token_path(install: Path) -> Path:
    return install / ".llmb" / "hf_token"


def stored_hf_token(install: Path) -> Secret | None:
    path = hf_token_path(install)
    text = _read(path).strip()
    return Secret(text) if text else None


def _is_loose(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False  # not there, or in a folder that is closed to us
    return status.st_uid == os.geteuid() and bool(status.st_mode & 0o077)


def from_environment() -> Secrets:
    """Secrets that the caller's environment offers. Those that came as flags are to be kept; others are used, and
    stored nowhere: a token that every shell of the user exports was not given to this installation."""
    kept = os.environ.get(KEPT, "").split(",")
    token, key = _variable("hf_token"), _variable("ngc_api_key")
    return Secrets(
        hf_token=Secret(os.environ[token]) if token else None,
        ngc_api_key=Secret(os.environ[key]) if key else None,
        keep=frozenset(field for field, name in (("hf_token", token), ("ngc_api_key", key)) if name and name in kept),
        ngc_variable=key,
    )


def _variable(field: str) -> str:
    """The variable that carries a secret now, by the name of its field; empty where none does."""
    candidates = {"hf_token": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), "ngc_api_key": ("NGC_API_KEY", "NGC_CLI_API_KEY")}
    return next((name for name in candidates[field] if os.environ.get(name)), "")


def secret_files(install: Path, secrets: Secrets, *, uses_images: bool) -> Iterator[Artefact]:
    """The artefacts for ``secrets``, and always the check that no file of ours with a secret is open to others."""
    if secrets.hf_token and "hf_token" in secrets.keep:
        yield hf_token_file(install, secrets.hf_token)
    if secrets.ngc_api_key and uses_images:
        if "ngc_api_key" in secrets.keep:
            yield registry_key(install, secrets.ngc_api_key)
        else:
            yield registry_reference(install, secrets.ngc_variable)
    yield closed_files(install)


def hf_token_file(install: Path, token: Secret) -> Small:
    """The Hugging Face token, in a file of the installation, for later downloads."""
    path, text = hf_token_path(install), token.reveal() + "\n"

    def look() -> str | None:
        return None if _is_private(path) and _read(path) == text else f"{path} is missing or changed"

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, mode=0o600)

    return Small("hugging-face-token", f"write {path} (mode 0600)", look, write)


def registry_key(install: Path, key: Secret) -> Small:
    """The NGC key, which was given to LLMB, in Enroot's own file, for both NGC hosts; other lines stay.

    The installation notes where, and a hash of the key, so that ``remove_ngc_key`` can take it back.
    """
    path = enroot_credentials_path(os.environ)

    def look() -> str | None:
        found = {entry.host: entry.password for entry in enroot_files.reached(_read(path))}
        known = _is_private(path) and all(found.get(host) == key.reveal() for host in NGC_HOSTS)
        return None if known else f"{path} does not have the NGC key"

    def write() -> None:
        _require_ngc_key(key)
        _write_ngc_lines(key.reveal(), path, install, NGC_HOSTS)

    return Small(REGISTRY, f"write {path} (mode 0600)", look, write)


def registry_reference(install: Path, variable: str) -> Small:
    """The name of the variable that has the NGC key, in Enroot's own file, which evaluates it: the key itself is stored
    nowhere. Credentials that are there already, whose ever they are, stay."""
    path = enroot_credentials_path(os.environ)

    def missing() -> list[str]:
        known = {entry.host for entry in enroot_files.reached(_read(path))}
        return [host for host in NGC_HOSTS if host not in known]

    return Small(
        REGISTRY,
        f"write {path}: the key is in {variable}",
        lambda: f"{path} does not say where the NGC key is" if missing() else None,
        lambda: _write_ngc_lines(f"${variable}", path, install, missing()),
    )


def closed_files(install: Path) -> Small:
    """The check that nobody else can read the files with secrets that this installation has written."""

    def loose() -> list[Path]:
        paths = [hf_token_path(install)]
        # Not Path.exists, which raises where a colleague may not look.
        if os.path.exists(install / _NOTE):  # noqa: PTH110
            paths.append(enroot_credentials_path(os.environ))
        return [path for path in paths if _is_loose(path)]

    def look() -> str | None:
        found = loose()
        return f"other users can read {', '.join(map(str, found))}" if found else None

    def close() -> None:
        for path in loose():
            path.chmod(0o600)

    return Small("secret-files", "make the files with secrets readable by you only", look, close)
