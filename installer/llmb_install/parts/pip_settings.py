"""What pip and uv are told on this machine, in uv's terms.

Both are told by settings files and variables. uv does not read pip's, so they are translated: where pip reaches its
packages, uv does, and so does ``package_index``, which gets uv itself.

Starts on Python 3.6, like ``uv``. Standard library only.
"""

import configparser
import os
import ssl
import sys
from itertools import chain
from pathlib import Path
from typing import Dict, Iterator, Mapping, NamedTuple, Tuple

# Variables and not options: the address of an index may contain a password, and everybody sees a program's arguments.
_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX",),
    "extra-index-url": ("UV_INDEX",),
    "find-links": ("UV_FIND_LINKS",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "timeout": ("UV_HTTP_TIMEOUT",),
}  # setting of pip: what uv calls it

_SEPARATORS = {"find-links": ",", "extra-index-url": " ", "trusted-host": " "}
# Between several values, which pip separates by white space.

_MACHINES_FILE = Path("/etc/pip.conf")


class IndexSettings(NamedTuple):
    """Which package indexes, proxies and certificates pip and uv are set to use on this machine, in uv's terms.

    ``read_index_settings`` makes it.
    """

    variables: Mapping[str, str] = {}
    """Environment variables for uv, such as ``UV_DEFAULT_INDEX``, to be put over this process's own."""
    options: Tuple[str, ...] = ()
    """Options for uv's command line: ``--no-index``, or none."""


def read_index_settings(env: Mapping[str, str]) -> IndexSettings:
    """Return what pip's files and the variables ``env`` say of package indexes, as variables and options of uv.

    Variables of uv's own win over ``PIP_`` ones, and these over files. ``options`` is ``--no-index`` or empty.
    Settings that uv needs no word for are left out. A file that cannot be read is skipped.

    Raises:
        OSError: the folder of certificates cannot be listed
    """
    chosen = _pip_settings(env)
    variables = {}
    for name, value in chosen.items():
        text = _SEPARATORS[name].join(value.split()) if name in _SEPARATORS else value
        variables.update(dict.fromkeys(_VARIABLES.get(name, ()), text))
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # pip's library for HTTP reads these
        if env.get(name):
            variables.setdefault("SSL_CERT_FILE", env[name])
    known = {variable: variable for variable in chain.from_iterable(_VARIABLES.values())}
    former = {"UV_INDEX_URL": "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL": "UV_INDEX"}
    given = {variable: name for variable, name in {**former, **known}.items() if env.get(variable)}
    variables.update({name: env[variable] for variable, name in given.items()})
    if "SSL_CERT_FILE" not in variables and has_certificates():
        # A site's own authority is known to its machines, and not to uv.
        variables["UV_SYSTEM_CERTS"] = "true"
    no_index = chosen.get("no-index", "").lower() in ("1", "true", "yes", "on")
    return IndexSettings(variables, ("--no-index",) if no_index else ())


def _pip_settings(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the settings of ``pip install`` by their names in pip's files, such as ``index-url``; empty: none.

    They come from the machine's files and then the user's, first the section ``global`` of all and then ``install``,
    last from the ``PIP_`` variables in ``env`` that are not empty; the later one wins. A file that cannot be read or
    parsed is skipped.
    """
    found: Dict[Tuple[str, str], str] = {}
    for path in _pip_files(env):
        parser = configparser.RawConfigParser()
        try:
            parser.read(str(path), encoding="utf-8")
        except (configparser.Error, ValueError):
            continue
        for section in parser.sections():
            for name, value in parser.items(section):
                setting = name.replace("_", "-")
                found[section, setting] = value
    chosen = {name: value for (section, name), value in found.items() if section == "global"}
    chosen.update({name: value for (section, name), value in found.items() if section == "install"})
    given = {}
    for variable, value in env.items():
        if variable.startswith("PIP_"):
            setting = variable[len("PIP_") :].lower().replace("_", "-")
            given[setting] = value
    chosen.update({name: value for name, value in given.items() if value})
    return chosen


def _pip_files(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the configuration files that pip reads, the least important first; they need not exist.

    ``env`` are environment variables: ``PIP_CONFIG_FILE`` names the last, which takes the place of the user's own
    files if it exists. Nothing is yielded where it is the null device.
    """
    own = env.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return
    for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        yield Path(folder, "pip", "pip.conf")
    yield _MACHINES_FILE
    if not (own and Path(own).exists()):
        home = Path(env.get("HOME") or "/nonexistent")
        yield home / ".pip" / "pip.conf"
        yield Path(env.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf")
    yield Path(sys.prefix, "pip.conf")
    if own:
        yield Path(own)


def has_certificates() -> bool:
    """Return whether this machine has certificates of authorities where Python's OpenSSL looks for them.

    Raises:
        OSError: the folder of certificates cannot be listed
    """
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())))
