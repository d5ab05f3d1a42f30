"""Where packages come from on this machine, and fetching one file from there.

pip and uv are told by settings files and variables. uv does not read pip's, so they are translated: where pip reaches
its packages, uv does, and so does ``fetch``, which gets uv itself and needs neither of them.

Starts on Python 3.6, like ``uv``. Standard library only.
"""

import base64
import configparser
import hashlib
import html
import http.client
import netrc
import os
import re
import socket
import ssl
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

PUBLIC_INDEX = "https://pypi.org/simple"

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

_ANSWER_SECONDS = 10.0
# For the list of a package's files. A network that drops packets says nothing for minutes.

_MACHINES_FILE = Path("/etc/pip.conf")


class IndexSettings(NamedTuple):
    """What pip and uv are told on this machine, in uv's terms."""

    variables: Mapping[str, str] = {}
    options: Tuple[str, ...] = ()


class Unavailable(Exception):
    """A file could not be had; the text is the cause, and names where. ``silent``: why its host does not answer."""

    def __init__(self, text: str, *, silent: str = "") -> None:
        super().__init__(text)
        self.silent = silent


def unreached(silent: Mapping[str, str]) -> Unavailable:
    """For the indexes that do not answer, each with the reason."""
    text = "the package index " + "; ".join([f"{index} cannot be reached: {why}" for index, why in silent.items()])
    return Unavailable(text, silent=text)


def settings(env: Mapping[str, str]) -> IndexSettings:
    """What pip is told by its files and by ``env``; variables of uv's own win."""
    chosen = _pip_settings(env)
    variables = {}
    for name, value in chosen.items():
        text = _SEPARATORS[name].join(value.split()) if name in _SEPARATORS else value
        variables.update(dict.fromkeys(_VARIABLES.get(name, ()), text))
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # pip's library for HTTP reads these
        if env.get(name):
            variables.setdefault("SSL_CERT_FILE", env[name])
    known = {variable: variable for several in _VARIABLES.values() for variable in several}
    former = {"UV_INDEX_URL": "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL": "UV_INDEX"}
    variables.update({name: env[given] for given, name in {**former, **known}.items() if env.get(given)})
    if "SSL_CERT_FILE" not in variables and _has_certificates():
        # A site's own authority is known to its machines, and not to uv.
        variables["UV_SYSTEM_CERTS"] = "true"
    no_index = chosen.get("no-index", "").lower() in ("1", "true", "yes", "on")
    return IndexSettings(variables, ("--no-index",) if no_index else ())


def _pip_settings(env: Mapping[str, str]) -> Dict[str, str]:
    """As ``pip install`` sees them: files from the machine's to the user's, sections, variables; the later one wins."""
    found: Dict[Tuple[str, str], str] = {}
    for path in _pip_files(env):
        parser = configparser.RawConfigParser()
        try:
            parser.read(str(path), encoding="utf-8")
        except (configparser.Error, ValueError):
            continue
        for section in parser.sections():
            found.update({(section, name.replace("_", "-")): value for name, value in parser.items(section)})
    chosen = {name: value for (section, name), value in found.items() if section == "global"}
    chosen.update({name: value for (section, name), value in found.items() if section == "install"})
    given = {name[4:].lower().replace("_", "-"): value for name, value in env.items() if name.startswith("PIP_")}
    chosen.update({name: value for name, value in given.items() if value})
    return chosen


def _pip_files(env: Mapping[str, str]) -> Iterator[Path]:
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


class Link(NamedTuple):
    """A file of a package."""

    name: str
    location: str
    """A URL, or a path."""


class Sources:
    """Where packages come from: folders and pages of links, then indexes."""

    def __init__(self, told: IndexSettings) -> None:
        self._env = env = told.variables
        self._pages = [page for page in env.get("UV_FIND_LINKS", "").split(",") if page]
        # uv's may have a name before their address: internal=https://...
        more = [re.sub(r"\A[\w.-]+=", "", index) for index in env.get("UV_INDEX", "").split()]
        indexes = [*more, env.get("UV_DEFAULT_INDEX") or PUBLIC_INDEX]
        self._indexes = [] if "--no-index" in told.options else indexes
        self._trusted = env.get("UV_INSECURE_HOST", "").split()
        self._failed: Dict[str, Unavailable] = {}
        self._read_pages: Dict[str, List[Link]] = {}

    def configured(self, location: str) -> str:
        """The index or page of links that ``location`` is of, as it may be shown; itself where it is of none."""
        shown = without_password(location)
        known = [without_password(source) for source in (*self._indexes, *self._pages)]
        return next((source for source in known if shown.startswith(source)), shown)

    def links(self, package: str, accepts: Callable[[str], bool] = bool, more: Collection[str] = ()) -> List[Link]:
        """The files of ``package`` whose names ``accepts`` likes; ``more``: further indexes to ask.

        Raises:
            Unavailable: there is none; with the reason of each host that did not answer.
        """
        package = _normal(package)
        found: List[Link] = []
        silent: Dict[str, str] = {}
        pages = [*self._pages, *(f"{index.rstrip('/')}/{package}/" for index in (*self._indexes, *more))]
        for page in pages:
            try:
                if page not in self._read_pages:
                    self._read_pages[page] = self._page(page)
                found += [link for link in self._read_pages[page] if _normal(link.name).startswith(f"{package}-")]
            except Unavailable as problem:  # noqa: PERF203
                if problem.silent and not (silent and page.startswith(tuple(more))):
                    silent[self.configured(page)] = problem.silent
        found = [link for link in found if accepts(link.name)]
        if not found and silent:
            raise unreached(silent)
        if not found:
            asked = ", ".join(without_password(page) for page in pages) or "nowhere: pip is told to use no index"
            raise Unavailable(f"there is no build for this machine ({asked})")
        return found

    def fetch(
        self, package: str, accepts: Callable[[str], bool], hashes: Collection[str], more: Collection[str] = ()
    ) -> bytes:
        """The first file that ``accepts`` likes and whose SHA-256 is one of ``hashes``.

        Raises:
            Unavailable: there is none.
        """
        problem = ""
        try:
            seconds = float(self._env.get("UV_HTTP_TIMEOUT") or 60)
        except ValueError:
            seconds = 60.0
        for link in self.links(package, accepts, more):
            try:
                content = self._read(link.location, seconds)
            except Unavailable as error:
                problem = str(error)
                continue
            if hashlib.sha256(content).hexdigest() in hashes:
                return content
            problem = f"{without_password(link.location)} has another content than the lock file says"
        raise Unavailable(problem)

    def _page(self, page: str) -> List[Link]:
        """The files that a page of links, or a folder, names."""
        local = _local(page)
        if local is not None and local.is_dir() and not (local / "index.html").is_file():
            return [Link(path.name, str(path)) for path in sorted(local.iterdir())]
        if local is not None and local.suffix in (".whl", ".gz"):
            return [Link(local.name, str(local))]
        if local is not None and local.is_dir():
            page = (local / "index.html").as_uri()
        host = _host(page)
        if host in self._failed:
            raise self._failed[host]
        try:
            text = _bounded(_ANSWER_SECONDS, page, lambda: self._read(page, _ANSWER_SECONDS)).decode("utf-8", "replace")
        except Unavailable as problem:
            if host and problem.silent:
                self._failed[host] = problem
            raise
        base = without_fragment(page)
        found = [_joined(base, html.unescape(link)) for link in re.findall(r'href="([^"]+)"', text)]
        return [Link(urllib.parse.unquote(without_fragment(url).rpartition("/")[2]), url) for url in found if url]

    def _read(self, location: str, seconds: float) -> bytes:
        local = _local(location)
        if local is not None and not local.exists():
            raise Unavailable(f"{location}: not found")
        try:
            if local is not None:
                return local.read_bytes()
            # This handler heeds no_proxy.
            handlers: List[urllib.request.BaseHandler] = [urllib.request.ProxyHandler(self._proxies())]
            if location.startswith("https:"):
                handlers.append(urllib.request.HTTPSHandler(context=self._tls(urllib.parse.urlsplit(location))))
            opener = urllib.request.build_opener(*handlers)
            with opener.open(self._request(location), timeout=seconds) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            error.close()
            raise Unavailable(f"{without_password(location)}: {error.code} {error.reason}") from error
        except (OSError, ValueError, EOFError, http.client.HTTPException) as error:
            why = _reason(error) + self._by_proxy(location)
            raise Unavailable(f"{without_password(location)}: {why}", silent=why) from error

    def _request(self, location: str) -> urllib.request.Request:
        parts = urllib.parse.urlsplit(location)
        host = parts.netloc.rpartition("@")[2]
        request = urllib.request.Request(
            urllib.parse.urlunsplit((*parts[:1], host, *parts[2:4], "")), headers={"User-Agent": "llmb-installer"}
        )
        user = self._credentials(parts)
        if user:
            words = base64.b64encode(":".join(user).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {words}")  # for this host alone
        return request

    def _credentials(self, parts: urllib.parse.SplitResult) -> Optional[Tuple[str, str]]:
        """Of the address, of an index on the same host, or of the user's netrc."""
        for index in (parts.geturl(), *self._indexes, *self._pages):
            try:
                known = urllib.parse.urlsplit(index)
            except ValueError:  # told when it is read
                continue
            if known.username and known.hostname == parts.hostname:
                return urllib.parse.unquote(known.username), urllib.parse.unquote(known.password or "")
        try:
            entry = netrc.netrc(os.environ.get("NETRC")).authenticators(parts.hostname or "")
        except (OSError, netrc.NetrcParseError):
            return None
        return (entry[0], entry[2] or "") if entry else None

    def _proxies(self) -> Dict[str, str]:
        told = {name[:-6].lower(): self._env[name] for name in ("HTTP_PROXY", "HTTPS_PROXY") if name in self._env}
        return {**urllib.request.getproxies(), **told}

    def _by_proxy(self, location: str) -> str:
        """The proxy that was used, for a message; empty where there was none."""
        host, proxy = _host(location).rpartition("@")[2], self._proxies().get(location.partition(":")[0])
        return f" (by the proxy {without_password(proxy)})" if proxy and not urllib.request.proxy_bypass(host) else ""

    def _tls(self, parts: urllib.parse.SplitResult) -> ssl.SSLContext:
        given = self._env.get("SSL_CERT_FILE")
        context = ssl.create_default_context(cafile=given if given and Path(given).is_file() else None)
        if self._env.get("SSL_CLIENT_CERT"):
            context.load_cert_chain(self._env["SSL_CLIENT_CERT"])
        host = parts.netloc.rpartition("@")[2]
        # A minimal system has no certificates. What is fetched without them is compared with the lock's hash, and
        # nothing secret is sent.
        bare = not (given or _has_certificates() or self._credentials(parts))
        if bare or host in self._trusted or parts.hostname in self._trusted:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _normal(name: str) -> str:
    """The name of a package as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _has_certificates() -> bool:
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())))


def _local(location: str) -> Optional[Path]:
    """The path of what lies on this machine."""
    if location.startswith("file:"):
        return Path(urllib.request.url2pathname(urllib.parse.urlsplit(location).path))
    return None if re.match(r"[a-z]+://", location) else Path(location).expanduser()


def _host(page: str) -> str:
    """Host and port of an address.

    Raises:
        Unavailable: it is none, such as http://[::1/simple.
    """
    try:
        return urllib.parse.urlsplit(page).netloc
    except ValueError as error:
        raise Unavailable(f"{without_password(page)}: {error}", silent=str(error)) from error


def _joined(base: str, link: str) -> str:
    """Where a link on a page leads; empty where that is no address."""
    try:
        return urllib.parse.urljoin(base, link)
    except ValueError:
        return ""


def without_fragment(location: str) -> str:
    return location.partition("#")[0]


def without_password(location: str) -> str:
    """An address as it may be shown."""
    try:
        parts = urllib.parse.urlsplit(location)
    except ValueError:
        return re.sub(r"//[^/]*@", "//", location)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl() if parts.netloc else location


def _reason(error: Exception) -> str:
    cause: Any = error
    while isinstance(cause, urllib.error.URLError):
        cause = cause.reason
    if isinstance(cause, (socket.timeout, TimeoutError)):
        return "no answer"
    return str(getattr(cause, "strerror", "") or cause)


def _bounded(seconds: float, location: str, work: Callable[[], bytes]) -> bytes:
    """What ``work`` returns. Looking a name up, and each address of a host, has a patience of its own."""
    why = f"no answer in {seconds:.0f} s"
    ended: List[Union[bytes, Unavailable]] = [Unavailable(f"{without_password(location)}: {why}", silent=why)]

    def run() -> None:
        try:
            ended.append(work())
        except Unavailable as problem:
            ended.append(problem)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if isinstance(ended[-1], Unavailable):
        raise ended[-1]
    return ended[-1]
