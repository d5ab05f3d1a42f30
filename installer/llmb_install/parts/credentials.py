"""Secrets: where they come from, and on disk Enroot's own credentials file and one file of the installation, both mode
0600. Only what was given to LLMB (flag, play file, dialogue) is kept; what the environment has is used from there.

Enroot's settings are read as Enroot 4.1.2 reads them (``config::init`` in ``enroot.in``): ``/etc/enroot/enroot.conf``,
then the files of ``enroot.conf.d``, ``NAME VALUE`` or ``NAME=VALUE`` a line; a variable that is set already wins.
Enroot lets a shell evaluate the values; here variables are put in, and a value that runs a program is left out. Its
credentials are a netrc file, whose entries are found as curl finds them: words on any number of lines; everything else
keeps its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from llmb_common.command.words import Secret
from llmb_common.errors import RecordError, RequestError
from llmb_common.machine.files import read_json, write_atomic, write_json
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


ENROOT_CONFIG = Path("/etc/enroot/enroot.conf")

_LINE = re.compile(r"(ENROOT_[A-Z_]+)[ \t=]+(.*\S)")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")


def setting(name: str, env: Mapping[str, str]) -> str:
    """The value of an ``ENROOT_`` variable for a caller with ``env``; empty where nobody sets it."""
    if env.get(name):
        return env[name]
    files = [ENROOT_CONFIG, *sorted(ENROOT_CONFIG.with_name(f"{ENROOT_CONFIG.name}.d").glob("*.conf"))]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            found = _LINE.match(line)
            if found and found[1] == name and (value := _expanded(found[2], env)):
                return value
    return ""


def temporary_folder(env: Mapping[str, str]) -> Path:
    """Where layers are unpacked."""
    return Path(setting("ENROOT_TEMP_PATH", env) or env.get("TMPDIR") or "/tmp")


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where downloaded layers are kept."""
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/") / ".cache")
    return Path(setting("ENROOT_CACHE_PATH", env) or Path(base) / "enroot")


def _expanded(value: str, env: Mapping[str, str]) -> str:
    """A value with its variables put in; empty where it would run a program."""
    if "$(" in value or "`" in value:
        return ""
    text = value.strip("\"'")
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[3]) or found[2] or "", text)


def enroot_credentials_path(env: Mapping[str, str]) -> Path:
    """Where Enroot looks for credentials."""
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or Path.home()) / ".config")
    return Path(setting("ENROOT_CONFIG_PATH", env) or Path(base) / "enroot") / ".credentials"


def enroot_login(host: str, env: Mapping[str, str]) -> tuple[str, str] | None:
    """Login and password that Enroot has for a host, whose port it does not look at."""
    name = host.partition(":")[0]
    entry = next((e for e in entries(_read(enroot_credentials_path(env))) if e.host == name), None)
    if entry is None:
        return None
    password = _expanded(entry.password, env) if entry.password.startswith("$") else entry.password
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
    ours = [e.host for e in entries(text) if e.host in NGC_HOSTS and _digest(e.password) == digest]
    if not ours:
        return None
    rest = without(text, ours)
    if rest.strip():
        write_atomic(path, _bytes(rest), mode=0o600)
    else:
        path.unlink()
    return path


def _write_ngc_lines(password: str, path: Path, install: Path, hosts: Sequence[str]) -> None:
    kept = without(_read(path), hosts)
    # One line each: Enroot itself looks for "machine HOST login USER " in one line.
    lines = "".join(f"machine {host} login $oauthtoken password {password}\n" for host in hosts)
    (install / _NOTE).parent.mkdir(parents=True, exist_ok=True)
    write_json(install / _NOTE, {"schema": 1, "path": str(path), "sha256": _digest(password)}, mode=0o600)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, _bytes(added(kept, lines)), mode=0o600)


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
    text = _read(hf_token_path(install)).strip()
    return Secret(text) if text else None


def from_environment() -> Secrets:
    """Secrets that the caller's environment offers. Those that came as flags are to be kept; others are used, and
    stored nowhere: a token that every shell of the user exports was not given to this installation."""
    kept = os.environ.get(KEPT, "").split(",")
    token = next(filter(os.environ.get, ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")), "")
    key = next(filter(os.environ.get, ("NGC_API_KEY", "NGC_CLI_API_KEY")), "")
    return Secrets(
        hf_token=Secret(os.environ[token]) if token else None,
        ngc_api_key=Secret(os.environ[key]) if key else None,
        keep=frozenset(field for field, name in (("hf_token", token), ("ngc_api_key", key)) if name and name in kept),
        ngc_variable=key,
    )


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
        found = {entry.host: entry.password for entry in reached(_read(path))}
        known = _is_private(path) and all(found.get(host) == key.reveal() for host in NGC_HOSTS)
        return None if known else f"{path} does not have the NGC key"

    def write() -> None:
        value = key.reveal()
        if not value or value.startswith("$") or any(c.isspace() for c in value):
            raise RequestError(
                "this is not an NGC API key: it is empty, contains a space or begins with $ (which Enroot would "
                "evaluate)",
                remedy="copy the key again from https://org.ngc.nvidia.com/setup/api-keys",
            )
        _write_ngc_lines(value, path, install, NGC_HOSTS)

    return Small(REGISTRY, f"write {path} (mode 0600)", look, write)


def registry_reference(install: Path, variable: str) -> Small:
    """The name of the variable that has the NGC key, in Enroot's own file, which evaluates it: the key itself is stored
    nowhere. Credentials that are there already, whose ever they are, stay."""
    path = enroot_credentials_path(os.environ)

    def missing() -> list[str]:
        known = {entry.host for entry in reached(_read(path))}
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
        # Not Path.exists, which raises where a colleague may not look.
        noted = os.path.exists(install / _NOTE)  # noqa: PTH110
        found = []
        for path in (hf_token_path(install), *([enroot_credentials_path(os.environ)] if noted else [])):
            with contextlib.suppress(OSError):  # it is not there, or in a folder that is closed to us
                status = path.stat()
                if status.st_uid == os.geteuid() and status.st_mode & 0o077:
                    found.append(path)
        return found

    def look() -> str | None:
        found = loose()
        return f"other users can read {', '.join(map(str, found))}" if found else None

    def close() -> None:
        for path in loose():
            path.chmod(0o600)

    return Small("secret-files", "make the files with secrets readable by you only", look, close)


_WITH_VALUE = ("login", "password", "account")


@dataclass(frozen=True)
class NetrcEntry:
    """One ``machine``: its host (empty for ``default``), its login and password, and where its text begins and ends."""

    host: str
    login: str
    password: str
    start: int
    end: int


def entries(text: str) -> list[NetrcEntry]:
    """All entries, in their order. An entry ends where the next one, or a macro, begins."""
    found: list[NetrcEntry] = []
    words = iter(_words(text))
    while following := next(words, None):
        at, word = following
        is_open = bool(found) and found[-1].end == len(text)
        if is_open and word in ("machine", "default", "macdef"):
            found[-1] = replace(found[-1], end=at)
        if word in ("machine", "default"):
            host = next(words, (0, ""))[1] if word == "machine" else ""
            found.append(NetrcEntry(host, "", "", at, len(text)))
        elif word == "macdef":
            end = text.find("\n\n", at)  # a macro ends with an empty line
            words = iter([later for later in words if 0 <= end < later[0]])
        elif word in _WITH_VALUE:
            value = next(words, (0, ""))[1]
            if is_open and word == "login":
                found[-1] = replace(found[-1], login=value)
            elif is_open and word == "password":
                found[-1] = replace(found[-1], password=value)
    return found


def reached(text: str) -> list[NetrcEntry]:
    """The entries that curl finds: none after ``default``, which fits every host."""
    return list(takewhile(lambda entry: entry.host, entries(text)))


def added(text: str, lines: str) -> str:
    """The text of a netrc file with ``lines`` added before its ``default`` entry, or at its end."""
    position = next((entry.start for entry in entries(text) if not entry.host), len(text))
    before = text[:position]
    return f"{before}\n{lines}{text[position:]}" if before and before[-1] != "\n" else before + lines + text[position:]


def without(text: str, hosts: Collection[str]) -> str:
    """``text`` without the entries of ``hosts``; comments between them stay."""
    for entry in reversed(entries(text)):
        if entry.host in hosts:
            inside = text[entry.start : entry.end].splitlines(keepends=True)
            comments = "".join(line for line in inside if line.lstrip().startswith("#"))
            before = text[: entry.start]
            text = (
                (before if not before or before.endswith("\n") else before.rstrip() + "\n")
                + comments
                + text[entry.end :]
            )
    return text


def _words(text: str) -> list[tuple[int, str]]:
    """Position and text of every word outside comment lines."""
    found: list[tuple[int, str]] = []
    for line in re.finditer(r"[^\n]+", text):
        if not line[0].lstrip().startswith("#"):
            found += [(line.start() + word.start(), word[0]) for word in re.finditer(r"\S+", line[0])]
    return found
