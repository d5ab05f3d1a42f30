"""Secrets: where they come from, and the files of the installation that keep them, mode 0600. Only what was given to
LLMB (flag, play file, dialogue) is kept; what the environment has is used from there. Enroot's files of the user are
read, never written.

Enroot's settings are read as Enroot 4.1.2 reads them (``config::init`` in ``enroot.in``): ``/etc/enroot/enroot.conf``,
then the files of ``enroot.conf.d``, ``NAME VALUE`` or ``NAME=VALUE`` a line; a variable that is set already wins.
Enroot lets a shell evaluate the values; here variables are put in, and a value that runs a program is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmb_common.base.errors import RecordError, RequestError
from llmb_common.base.files import read_json, write_atomic
from llmb_common.base.words import Secret
from llmb_install.parts.netrc import effective_entries, parse_entries, with_lines, without_hosts
from llmb_install.working.artefact import Artefact, Small
from llmb_install.working.scratch import private_folder, write

NGC_HOSTS = ("nvcr.io", "authn.nvidia.com")
"""NGC hands out its tokens on another host than the images: Enroot needs the key for both."""

REGISTRY = "registry-credentials"
"""The id of the artefact that images need to be imported."""

KEPT = "LLMB_INSTALL_KEEPS"
"""The variable that names the secrets which came as flags: those are kept in a file, others are only used."""

_NOTE = Path(".llmb") / "credentials.json"
"""Written by release 0.2, which put the key into the user's own credentials for Enroot: which file, the key's hash."""

_KEY_VARIABLES = ("NGC_API_KEY", "NGC_CLI_API_KEY")


@dataclass(frozen=True)
class Secrets:
    """What must be in no file but its own: a Hugging Face token, an NGC key."""

    hf_token: Secret | None = None
    ngc_api_key: Secret | None = None
    keep: frozenset[str] = frozenset()
    """The fields that the user has given to LLMB, by a flag, a play file or an answer: they are stored. What only the
    environment has is used from there."""

    def updated(self, new: Secrets) -> Secrets:
        """These secrets, where each that ``new`` has takes the place of the older one."""
        return Secrets(
            hf_token=new.hf_token or self.hf_token,
            ngc_api_key=new.ngc_api_key or self.ngc_api_key,
            keep=self.keep | new.keep,
        )


ENROOT_CONFIG = Path("/etc/enroot/enroot.conf")

_LINE = re.compile(r"(ENROOT_[A-Z_]+)[ \t=]+(.*\S)")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")


def enroot_setting(name: str, env: Mapping[str, str]) -> str:
    """The value of an ``ENROOT_`` variable for a caller with ``env``: from there, else from Enroot's settings files.

    Empty where nobody sets it, or where its value would run a program.
    """
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
            if found and found[1] == name and (value := _expand_variables(found[2], env)):
                return value
    return ""


def temporary_folder(env: Mapping[str, str]) -> Path:
    """The folder in which Enroot unpacks layers, by its settings and ``env``; ``/tmp`` where nobody says."""
    return Path(enroot_setting("ENROOT_TEMP_PATH", env) or env.get("TMPDIR") or "/tmp")


def cache_folder(env: Mapping[str, str]) -> Path:
    """The folder in which Enroot keeps downloaded layers, by its settings and ``env``; it need not exist."""
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/") / ".cache")
    return Path(enroot_setting("ENROOT_CACHE_PATH", env) or Path(base) / "enroot")


def _expand_variables(value: str, env: Mapping[str, str]) -> str:
    """The text of a setting with the variables of ``env`` put in and quotes taken off.

    Empty where it would run a program.
    """
    if "$(" in value or "`" in value:
        return ""
    text = value.strip("\"'")
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[3]) or found[2] or "", text)


def enroot_credentials_path(env: Mapping[str, str]) -> Path:
    """The file in which Enroot looks for the user's credentials, by its settings and ``env``; it need not exist."""
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or Path.home()) / ".config")
    return Path(enroot_setting("ENROOT_CONFIG_PATH", env) or Path(base) / "enroot") / ".credentials"


@contextmanager
def configuration(host: str, kept: Path, env: Mapping[str, str], root: Path) -> Iterator[dict[str, str]]:
    """A context that gives the Enroot variables to add for an import from ``host``; empty: Enroot's own settings do.

    For NGC, where there is a key that Enroot does not have, a private folder with a file of credentials exists
    meanwhile. It has the key that was given to LLMB, in the file ``kept``, else, where the user's own credentials say
    nothing of NGC, the name of the variable that has one, which Enroot evaluates; and beside it the user's other
    entries. ``root``: the installation in whose folder for unfinished things it lies, for a compute node too.
    """
    is_ngc = host.partition(":")[0] in NGC_HOSTS
    text = _with_ngc_key(_read_text(enroot_credentials_path(env)), kept, env) if is_ngc else None
    if text is None:
        yield {}
        return
    with private_folder(root, "enroot") as folder:
        write_atomic(folder / ".credentials", _as_bytes(text), mode=0o600)
        yield {"ENROOT_CONFIG_PATH": str(folder)}


def _with_ngc_key(theirs: str, kept: Path, env: Mapping[str, str]) -> str | None:
    """``theirs``, the text of the user's credentials, with an NGC key in addition.

    The key is that in the file ``kept``, else a variable of ``env``. None where nothing has to be added.
    """
    with contextlib.suppress(PermissionError):  # a colleague's
        if lines := _read_text(kept):
            return with_lines(without_hosts(theirs, NGC_HOSTS), lines)
    variable = next(filter(env.get, _KEY_VARIABLES), "")
    known = {entry.host for entry in effective_entries(theirs)}
    unknown = [host for host in NGC_HOSTS if host not in known]
    return with_lines(theirs, _ngc_lines(f"${variable}", unknown)) if variable and unknown else None


def _ngc_lines(password: str, hosts: Sequence[str] = NGC_HOSTS) -> str:
    """The lines of a credentials file for a key of NGC, one for each host."""
    # One line each: Enroot itself looks for "machine HOST login USER " in one line.
    return "".join(f"machine {host} login $oauthtoken password {password}\n" for host in hosts)


def remove_ngc_key(install: Path) -> Path | None:
    """Take back the key that release 0.2 has put into the user's credentials for Enroot; returns that file.

    None where nothing was removed. What somebody has changed there since stays; a file that is left empty is removed.

    Raises:
        RecordError: the key stays there, because the file cannot be read or written.
    """
    try:
        note = read_json(install / _NOTE)
        path, digest = Path(note["path"]), note["sha256"]
    except (RecordError, KeyError, TypeError):
        return None
    try:
        return path if _without_own_lines(path, digest) else None
    except (RecordError, OSError) as error:
        raise RecordError(
            f"the NGC key that release 0.2 put into {path} stays there, because the file cannot be changed",
            remedy=f"remove the lines of {' and '.join(NGC_HOSTS)} from it",
        ) from error


def _without_own_lines(path: Path, digest: str) -> bool:
    """Remove the NGC key with this ``digest`` from the credentials in ``path``; return whether it was there.

    False: no entry for a host of NGC has that key, and nothing is written. Other entries stay; a file with nothing else
    in it is removed.
    """
    text = _read_text(path)
    own_hosts = [e.host for e in parse_entries(text) if e.host in NGC_HOSTS and _digest(e.password) == digest]
    if not own_hosts:
        return False
    rest = without_hosts(text, own_hosts)
    if rest.strip():
        write_atomic(path, _as_bytes(rest), mode=0o600)
    else:
        path.unlink()
    return True


def _digest(text: str) -> str:
    """The SHA-256 of a text, as hexadecimal digits."""
    return hashlib.sha256(_as_bytes(text)).hexdigest()


def _read_text(path: Path) -> str:
    """The text of a file, bytes that are not UTF-8 kept as surrogates so that ``_as_bytes`` gives them back; empty: no
    file.
    """
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""


def _as_bytes(text: str) -> bytes:
    """A text as bytes; what was no UTF-8 when it was read becomes what it was."""
    return text.encode("utf-8", "surrogateescape")


def _is_private(path: Path) -> bool:
    """Whether ``path`` is a file with mode 0600: only its owner can read and write it."""
    return path.is_file() and path.stat().st_mode & 0o777 == 0o600


def hf_token_path(install: Path) -> Path:
    """The file of an installation for its Hugging Face token; it need not exist."""
    return install / ".llmb" / "hf_token"


def key_path(install: Path) -> Path:
    """The file of an installation for the NGC key that was given to LLMB, as credentials for Enroot.

    It need not exist.
    """
    return install / ".llmb" / "enroot" / ".credentials"


def stored_hf_token(install: Path) -> Secret | None:
    """The Hugging Face token that an installation holds; None where it holds none."""
    text = _read_text(hf_token_path(install)).strip()
    return Secret(text) if text else None


def from_environment() -> Secrets:
    """The secrets in the caller's environment variables; None where none is set.

    Those that came as flags are marked to be kept in the installation. Others are only used: a token that every shell
    of the user exports was not given to this installation.
    """
    kept = os.environ.get(KEPT, "").split(",")
    token = next(filter(os.environ.get, ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")), "")
    key = next(filter(os.environ.get, _KEY_VARIABLES), "")
    return Secrets(
        hf_token=Secret(os.environ[token]) if token else None,
        ngc_api_key=Secret(os.environ[key]) if key else None,
        keep=frozenset(field for field, name in (("hf_token", token), ("ngc_api_key", key)) if name and name in kept),
    )


def secret_files(install: Path, secrets: Secrets, *, uses_images: bool) -> Iterator[Artefact]:
    """Yields the parts that keep those of ``secrets`` that are to be kept, each in a file, and a check of these
    files.

    The check, that others cannot read them, always comes. The NGC key is kept only where jobs use images.
    """
    if secrets.hf_token and "hf_token" in secrets.keep:
        yield hf_token_file(install, secrets.hf_token)
    if secrets.ngc_api_key and uses_images and "ngc_api_key" in secrets.keep:
        yield registry_key(install, secrets.ngc_api_key)
    yield private_files(install)


def hf_token_file(install: Path, token: Secret) -> Small:
    """The part that keeps the Hugging Face token in a file of the installation, for later downloads; not written
    yet.
    """
    path, text = hf_token_path(install), token.reveal() + "\n"

    def find_problem() -> str | None:
        """What is wrong with the file of the token; None: nothing."""
        return None if _is_private(path) and _read_text(path) == text else f"{path} is missing or changed"

    def make() -> None:
        """Write the file of the token, readable by its owner alone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write(install, path, text, mode=0o600)

    return Small("hugging-face-token", f"write {path} (mode 0600)", find_problem, make)


def registry_key(install: Path, key: Secret) -> Small:
    """A part that keeps the given NGC key in a file of ``install``, for both NGC hosts. Nothing is written by this
    call.

    The file is for its owner alone. Its ``make`` raises RequestError for a text that can be no key.
    """
    path, text = key_path(install), _ngc_lines(key.reveal())

    def find_problem() -> str | None:
        """What is wrong with the file of the key; None: nothing."""
        return None if _is_private(path) and _read_text(path) == text else f"{path} does not have the NGC key"

    def make() -> None:
        """Write the file of the key, readable by its owner alone.

        Raises:
            RequestError: it cannot be a key
        """
        value = key.reveal()
        if not value or value.startswith("$") or any(c.isspace() for c in value):
            raise RequestError(
                "this is not an NGC API key: it is empty, contains a space or begins with $ (which Enroot would "
                "evaluate)",
                remedy="copy the key again from https://org.ngc.nvidia.com/setup/api-keys",
            )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(install, path, text, mode=0o600)

    return Small(REGISTRY, f"write {path} (mode 0600)", find_problem, make)


def private_files(install: Path) -> Small:
    """The part that checks that nobody else can read this user's files with secrets; making it closes them."""

    def readable_by_others() -> list[Path]:
        """The files with secrets that are this user's and that others can read."""
        # Not Path.exists, which raises where a colleague may not look.
        noted = os.path.exists(install / _NOTE)  # noqa: PTH110
        earlier = [enroot_credentials_path(os.environ)] if noted else []
        found = []
        for path in (hf_token_path(install), key_path(install), *earlier):
            with contextlib.suppress(OSError):  # it is not there, or in a folder that is closed to us
                status = path.stat()
                if status.st_uid == os.geteuid() and status.st_mode & 0o077:
                    found.append(path)
        return found

    def find_problem() -> str | None:
        """Which files with secrets others can read, in words; None: none."""
        found = readable_by_others()
        return f"other users can read {', '.join(map(str, found))}" if found else None

    def close() -> None:
        """Make the files with secrets readable by their owner alone."""
        for path in readable_by_others():
            path.chmod(0o600)

    return Small("secret-files", "make the files with secrets readable by you only", find_problem, close)
