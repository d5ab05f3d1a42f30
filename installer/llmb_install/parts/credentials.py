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
    """The user's secrets: a Hugging Face token and an NGC key, whose ``reveal`` returns the text.

    ``from_environment`` and ``read_play`` make them; their form is not checked. They must be in no file but those that
    are made for them. ``updated`` returns a new object with each secret that its argument has, and these where it has
    none; the marks to keep are united.
    """

    hf_token: Secret | None = None
    """The Hugging Face token; None: there is none."""
    ngc_api_key: Secret | None = None
    """The NGC API key; None: there is none."""
    keep: frozenset[str] = frozenset()
    """Names of the fields, ``hf_token`` and ``ngc_api_key``, that the user has given to LLMB by a flag, a play
    file or an answer, and that are stored in the installation; the others are only used.
    """

    def updated(self, new: Secrets) -> Secrets:
        """Return these secrets with each that ``new`` has in the place of the older one; marks to keep are united.

        One that ``new`` does not have stays. Neither object is changed.
        """
        return Secrets(
            hf_token=new.hf_token or self.hf_token,
            ngc_api_key=new.ngc_api_key or self.ngc_api_key,
            keep=self.keep | new.keep,
        )


ENROOT_CONFIG = Path("/etc/enroot/enroot.conf")

_LINE = re.compile(r"(ENROOT_[A-Z_]+)[ \t=]+(.*\S)")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")


def enroot_setting(name: str, env: Mapping[str, str]) -> str:
    """Return the value of the variable ``name``, such as ``ENROOT_TEMP_PATH``: in ``env``, else in Enroot's files.

    An empty one in ``env`` counts as none. The files are ``/etc/enroot/enroot.conf`` and then those in the folder of
    that name with ``.d`` behind it, by name; the first line that sets it wins, and variables in it are replaced by
    those of ``env``. Empty where nobody sets it, or only to a value that would run a program. Files that cannot be
    read are skipped.
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
    """Return the folder in which Enroot unpacks layers: ``ENROOT_TEMP_PATH``, else TMPDIR, else ``/tmp``.

    The first is that of ``env``, else that of Enroot's files (``enroot_setting``); TMPDIR is that of ``env``. Empty
    ones count as not set. The folder need not exist.
    """
    return Path(enroot_setting("ENROOT_TEMP_PATH", env) or env.get("TMPDIR") or "/tmp")


def cache_folder(env: Mapping[str, str]) -> Path:
    """Return the folder in which Enroot keeps downloaded layers, by its settings and ``env``; it need not exist.

    The setting is ``ENROOT_CACHE_PATH``, in ``env``, else in Enroot's files. Without it, the folder is ``enroot``
    in XDG_CACHE_HOME, else in ``.cache`` of HOME; both variables are those of ``env``. Without HOME, ``/`` takes
    its place.
    """
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/") / ".cache")
    return Path(enroot_setting("ENROOT_CACHE_PATH", env) or Path(base) / "enroot")


def _expand_variables(value: str, env: Mapping[str, str]) -> str:
    """Return the ``value`` of an Enroot setting with quotes taken off and the variables of ``env`` put in.

    Both ``$NAME`` and ``${NAME}`` are. A variable that is unset or empty gives its default in ``${NAME:-DEFAULT}``, or
    nothing. Empty where the value would run a program.
    """
    if "$(" in value or "`" in value:
        return ""

    def expanded(found: re.Match[str]) -> str:
        """Return the value of the variable that ``found`` names, else its default there, else nothing."""
        name, default = found[1] or found[3], found[2] or ""
        return env.get(name) or default

    return _VARIABLE.sub(expanded, value.strip("\"'"))


def enroot_credentials_path(env: Mapping[str, str]) -> Path:
    """Return the path of the user's Enroot credentials, by Enroot's settings and ``env``; it need not exist.

    The setting is ``ENROOT_CONFIG_PATH``, the folder of ``.credentials``, in ``env``, else in Enroot's files.
    Without it, the path is ``enroot/.credentials`` in XDG_CONFIG_HOME, else in ``.config`` of HOME, both in
    ``env``; without HOME it is in the home that the system knows.
    """
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or Path.home()) / ".config")
    return Path(enroot_setting("ENROOT_CONFIG_PATH", env) or Path(base) / "enroot") / ".credentials"


@contextmanager
def configuration(host: str, kept: Path, env: Mapping[str, str], root: Path) -> Iterator[dict[str, str]]:
    """Return a context that gives the Enroot variables to set for an import from ``host``; empty: none is needed.

    The only one is ``ENROOT_CONFIG_PATH``, a text. ``host`` is the registry's, such as ``nvcr.io``; a port behind a
    colon does not matter. For NGC, where there is a key that Enroot does not have, a private folder with a file of
    credentials exists until the end of the context. The file has the user's other entries and the key in the file
    ``kept``, or else, where the user's own credentials say nothing of NGC, the name of the variable in ``env`` that
    has one, which Enroot evaluates. ``root``: the installation in whose folder for unfinished things it lies, for a
    compute node, too.

    Raises:
        OSError: the user's credentials cannot be read, or the folder not be made
        RecordError: the file cannot be written
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
    """Return ``theirs``, the text of the user's Enroot credentials, with an NGC key; None: nothing is to be added.

    The key is that in the file ``kept``, which takes the place of the user's own, else a variable of ``env``, for
    those NGC hosts that the user has no entry for: ``NGC_API_KEY`` before ``NGC_CLI_API_KEY``; of the variable its
    name behind a $ is put in, not its value. A ``kept`` that is empty, missing or may not be read counts as absent.

    Raises:
        OSError: the file ``kept`` cannot be read for another reason than its permissions
    """
    with contextlib.suppress(PermissionError):  # a colleague's
        if lines := _read_text(kept):
            return with_lines(without_hosts(theirs, NGC_HOSTS), lines)
    variable = next(filter(env.get, _KEY_VARIABLES), "")
    known = {entry.host for entry in effective_entries(theirs)}
    unknown = [host for host in NGC_HOSTS if host not in known]
    return with_lines(theirs, _ngc_lines(f"${variable}", unknown)) if variable and unknown else None


def _ngc_lines(password: str, hosts: Sequence[str] = NGC_HOSTS) -> str:
    """Return the lines of a netrc file for the NGC key ``password``, one for each of ``hosts``.

    Each is ``machine HOST login $oauthtoken password PASSWORD`` with a line break. ``password`` may be the name of a
    variable behind a ``$``.
    """
    # One line each: Enroot itself looks for "machine HOST login USER " in one line.
    return "".join(f"machine {host} login $oauthtoken password {password}\n" for host in hosts)


def remove_ngc_key(install: Path) -> Path | None:
    """Remove the NGC key that release 0.2 put into the user's Enroot credentials; return the file of those.

    A note in ``install`` tells which file and key; it stays. None where nothing was removed. A key that somebody has
    changed there since stays; a file that is left empty is removed.

    Raises:
        RecordError: the key stays there, because the file cannot be read or written
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
    """Remove the NGC key whose SHA-256 is ``digest`` from the credentials in ``path``; return whether it was there.

    Where it is not there nothing is written. Other entries stay; a file with nothing else in it is removed.

    Raises:
        OSError: the file cannot be read or removed
        RecordError: the file cannot be written
    """
    text = _read_text(path)
    entries = [entry for entry in parse_entries(text) if entry.host in NGC_HOSTS]
    own_hosts = [entry.host for entry in entries if _digest(entry.password) == digest]
    if not own_hosts:
        return False
    rest = without_hosts(text, own_hosts)
    if rest.strip():
        write_atomic(path, _as_bytes(rest), mode=0o600)
    else:
        path.unlink()
    return True


def _digest(text: str) -> str:
    """Return the SHA-256 of ``text``, as hexadecimal digits."""
    return hashlib.sha256(_as_bytes(text)).hexdigest()


def _read_text(path: Path) -> str:
    """Return the text of a file, empty where it does not exist.

    Bytes that are not UTF-8 are kept as surrogates, so that ``_as_bytes`` gives them back.

    Raises:
        OSError: the file is there and cannot be read
    """
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""


def _as_bytes(text: str) -> bytes:
    """Return ``text`` as UTF-8; surrogates that ``_read_text`` made become the bytes that they were."""
    return text.encode("utf-8", "surrogateescape")


def _is_private(path: Path) -> bool:
    """Return whether ``path`` is a file with exactly the mode 0600, which only its owner can read and write.

    Of a link, what it leads to counts. False if it is missing.

    Raises:
        OSError: the file's folder is closed to this user
    """
    return path.is_file() and path.stat().st_mode & 0o777 == 0o600


def hf_token_path(install: Path) -> Path:
    """Return the path of the file for the Hugging Face token of the installation ``install``; it need not exist."""
    return install / ".llmb" / "hf_token"


def key_path(install: Path) -> Path:
    """Return the path of the file for the NGC key given to the installation ``install``; it need not exist.

    It is in the format of netrc, as Enroot reads it.
    """
    return install / ".llmb" / "enroot" / ".credentials"


def stored_hf_token(install: Path) -> Secret | None:
    """Return the Hugging Face token that an installation holds, stripped; None where it holds none.

    An empty file holds none. ``install`` is the installation's folder.

    Raises:
        OSError: the file of the token cannot be read
    """
    text = _read_text(hf_token_path(install)).strip()
    return Secret(text) if text else None


def from_environment() -> Secrets:
    """Return the secrets in this process's environment variables; a secret that is not set, or empty, is None.

    They are ``HF_TOKEN``, else ``HUGGING_FACE_HUB_TOKEN``, and ``NGC_API_KEY``, else ``NGC_CLI_API_KEY``. Those
    that came as flags, whose variables the variable ``KEPT`` names, are marked to be kept in the installation.
    Others are only used: a token that every shell of the user exports was not given to this installation.
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
    """Yield the parts that store the given ``secrets``, each in a file, and last a check of these files; makes none.

    The check, which is always there, is that others cannot read them. Only secrets marked to be kept are stored, and
    the NGC key only where jobs use images (``uses_images``). ``install`` is the installation's folder, which need not
    exist.
    """
    if secrets.hf_token and "hf_token" in secrets.keep:
        yield hf_token_file(install, secrets.hf_token)
    if secrets.ngc_api_key and uses_images and "ngc_api_key" in secrets.keep:
        yield registry_key(install, secrets.ngc_api_key)
    yield private_files(install)


def hf_token_file(install: Path, token: Secret) -> Small:
    """Return the part that stores the Hugging Face token in a file of the installation; writes nothing yet.

    Its id is ``hugging-face-token``. The file is for its owner alone; an earlier token is replaced when the part is
    made, which raises RecordError or OSError where it cannot be written. Looking at it raises OSError where the
    file cannot be read. ``install`` is the installation's folder.
    """
    path, text = hf_token_path(install), token.reveal() + "\n"

    def find_problem() -> str | None:
        """Return what is wrong with the file of the token: ``PATH is missing or changed``; None: nothing.

        File and token are those of the enclosing function. A file that others could read counts as changed.

        Raises:
            OSError: the file cannot be read
        """
        return None if _is_private(path) and _read_text(path) == text else f"{path} is missing or changed"

    def make() -> None:
        """Write the file of the Hugging Face token, readable by its owner alone; its folder is made if missing.

        Another file there is replaced. File and token are those of the enclosing function.

        Raises:
            RecordError: the file cannot be written
            OSError: its folder cannot be made
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write(install, path, text, mode=0o600)

    return Small("hugging-face-token", f"write {path} (mode 0600)", find_problem, make)


def registry_key(install: Path, key: Secret) -> Small:
    """Return the part that stores the given NGC key in a file of ``install``, for both NGC hosts; writes nothing yet.

    Its id is ``registry-credentials``. The file is for its owner alone; an earlier one is replaced. Making the part
    raises RequestError for a text that can be no key, RecordError or OSError where the file cannot be written.
    Looking at it raises OSError where it cannot be read.
    """
    path, text = key_path(install), _ngc_lines(key.reveal())

    def find_problem() -> str | None:
        """Return what is wrong with the file of the NGC key, ``PATH does not have the NGC key``; None: nothing.

        File and key are those of the enclosing function. It is said also of a missing file, and of one that others
        could read.

        Raises:
            OSError: the file cannot be read
        """
        return None if _is_private(path) and _read_text(path) == text else f"{path} does not have the NGC key"

    def make() -> None:
        """Write the file of the NGC key, readable by its owner alone; its folder is made if missing.

        Another file there is replaced. File and key are those of the enclosing function.

        Raises:
            RequestError: the text cannot be a key: it is empty, has white space, or begins with ``$``
            RecordError: the file cannot be written
            OSError: its folder cannot be made
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
    """Return the part that checks that others cannot read this user's files with secrets; making it forbids that.

    They are the token and NGC key of ``install`` and, where release 0.2 wrote there, the user's Enroot credentials.
    The part's id is ``secret-files``; making it raises OSError where a file's mode cannot be changed.
    """

    def readable_by_others() -> list[Path]:
        """Return this user's files with secrets that others can read, write or execute; empty: there are none.

        The token's comes first, then the key's, then Enroot's. Others are the file's group, too. The installation
        is that of the enclosing function. Files of another user are left out, as are those that are missing, or in
        a folder that is closed to this user.
        """
        noted = os.path.exists(install / _NOTE)
        earlier = [enroot_credentials_path(os.environ)] if noted else []
        found = []
        for path in (hf_token_path(install), key_path(install), *earlier):
            with contextlib.suppress(OSError):  # it is not there, or in a folder that is closed to us
                status = path.stat()
                if status.st_uid == os.geteuid() and status.st_mode & 0o077:
                    found.append(path)
        return found

    def find_problem() -> str | None:
        """Return ``other users can read PATH, PATH``, naming files with secrets; None: there are none such."""
        found = readable_by_others()
        return f"other users can read {', '.join(map(str, found))}" if found else None

    def close() -> None:
        """Give the files that ``readable_by_others`` returns the mode 0600: none but their owner can use them.

        Raises:
            OSError: a file's mode cannot be changed
        """
        for path in readable_by_others():
            path.chmod(0o600)

    return Small("secret-files", "make the files with secrets readable by you only", find_problem, close)
