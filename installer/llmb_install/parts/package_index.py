"""The files that package indexes, pages of links and folders have, and fetching one of them without pip or uv.

Starts on Python 3.6, like ``uv``. Standard library only.
"""

import base64
import functools
import hashlib
import html
import http.client
import netrc
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Callable, Collection, Dict, List, NamedTuple, Optional, Tuple, Union

from llmb_install.parts import pip_settings, refusals
from llmb_install.parts.pip_settings import IndexSettings
from llmb_install.parts.refusals import Unavailable, without_password

PUBLIC_INDEX = "https://pypi.org/simple"

ANSWER_SECONDS = 10.0
# For the list of a package's files. A network that drops packets says nothing for minutes.

PAUSES = (1.0, 3.0)
# Seconds before a server that is overloaded is asked again, where it does not say how many.

_LONGEST_PAUSE = 30.0


class Link(NamedTuple):
    """A file of a Python package that an index, a page of links or a folder offers.

    ``Sources.links`` returns them. The ``location`` is as it was found, maybe with a password or a fragment.
    """

    name: str
    """File name, such as ``uv-0.8-py3-none-any.whl``."""
    location: str
    """A URL, or a path."""


_PACKAGES = (".whl", ".tar.gz", ".zip")


class Sources:
    """Where this machine's settings for pip and uv say that packages come from: pages of links first, then indexes.

    It is made from ``settings``, by ``read_index_settings``, and asks nobody before ``links`` or ``fetch`` is
    called. ``links`` returns the list of files of a package for whose names ``accepts`` returns True, at least one;
    ``fetch`` returns, as bytes, the first of them with a SHA-256 in ``hashes``. Both also ask the indexes ``more``,
    and raise ``Unavailable`` where there is no such file, and OSError where a local folder is closed.
    ``configured`` returns the page or index that a location belongs to, else the location, without a password, for
    messages. What pages say is kept as long as the object lives, as is that a server does not answer. The attribute
    ``refusal`` is an ``Unavailable``, not raised, with what indexes said that did not let the last ``links`` look;
    None: all did.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._env = env = settings.variables
        self._pages = [page for page in env.get("UV_FIND_LINKS", "").split(",") if page]
        # uv's may have a name before their address: internal=https://...
        more = [re.sub(r"\A[\w.-]+=", "", index) for index in env.get("UV_INDEX", "").split()]
        indexes = [*more, env.get("UV_DEFAULT_INDEX") or PUBLIC_INDEX]
        self._indexes = [] if "--no-index" in settings.options else indexes
        self._trusted = env.get("UV_INSECURE_HOST", "").split()
        self._failed: Dict[str, Unavailable] = {}
        self._read_pages: Dict[str, List[Link]] = {}
        self.refusal: Optional[Unavailable] = None
        """What indexes said that did not let the last ``links`` look, although others had its files."""

    def configured(self, location: str) -> str:
        """Return the index or page of links that ``location`` belongs to, without user and password, for messages.

        It is ``location`` itself, also without these, where it belongs to none. ``location`` is a URL or a path.
        """
        shown = without_password(location)
        known = [without_password(source) for source in (*self._indexes, *self._pages)]
        return next((source for source in known if shown.startswith(source)), shown)

    def links(self, package: str, accepts: Callable[[str], bool] = bool, more: Collection[str] = ()) -> List[Link]:
        """Return the files of ``package`` whose names ``accepts`` accepts, from all pages and indexes; at least one.

        The package's name may be spelled in any way. ``accepts`` gets a file name; by default all are accepted. The
        files are in the order of pages, indexes and ``more``, addresses of further indexes to ask; a file that
        several have is there several times. Each page is read once; errors of pages that did not let us look are kept
        in ``refusal``.

        Raises:
            Unavailable: there is no such file; with what each index said that did not answer, or did not let us look
            OSError: a local folder is closed to this user
        """
        package = _normalized_name(package)
        found: List[Link] = []
        refused: List[Unavailable] = []
        without: List[str] = []
        indexes = (*self._indexes, *more)
        pages = [*self._pages, *(f"{index.rstrip('/')}/{package}/" for index in indexes)]
        for page in pages:
            try:
                listed = [
                    link for link in self._links_on_page(page) if _normalized_name(link.name).startswith(f"{package}-")
                ]
            except Unavailable as problem:
                if problem.absent:
                    without.append(str(problem))
                elif not (refused and page.startswith(tuple(more))):  # it is none of the user's
                    refused.append(problem)
                continue
            found += listed
            if not listed:
                without.append(without_password(page))
        suitable = [link for link in found if accepts(link.name)]
        self.refusal = _joined_error(refused) if refused else None
        if suitable:
            return suitable
        if self.refusal:
            raise self.refusal
        if found:
            pages_text = ", ".join(without_password(page) for page in pages)
            raise Unavailable(f"there is no build for this machine ({pages_text})", refusals.OTHER_INDEX, absent=True)
        pages_text = ", ".join(without) or "pip is told to use no index"
        raise refusals.not_found_error(package, pages_text)

    def fetch(
        self, package: str, accepts: Callable[[str], bool], hashes: Collection[str], more: Collection[str] = ()
    ) -> bytes:
        """Return the content of the first file of ``package`` with an accepted name and a SHA-256 in ``hashes``.

        The order is that of ``links``: files are downloaded until one fits. ``accepts`` is asked about each name.
        ``more``: addresses of further indexes to ask. ``hashes``: hexadecimal digits, in lower case.

        Raises:
            Unavailable: there is no such file; says why the last one that was tried was refused
            OSError: a local folder is closed to this user
        """
        problems = []
        for link in self.links(package, accepts, more):
            try:
                content = _with_retries(functools.partial(self._read_location, link.location, self._silence_limit()))
            except Unavailable as problem:
                problems.append(problem)
                continue
            if hashlib.sha256(content).hexdigest() in hashes:
                return content
            shown = without_password(link.location)
            page = content[:4096].decode("utf-8", "replace")
            problems.append(refusals.web_page_error(shown, page) if _is_html(page) else refusals.hash_error(shown))
        raise problems[-1]

    def _silence_limit(self) -> float:
        """Return how many seconds an index may be silent, by uv's own setting ``UV_HTTP_TIMEOUT``.

        It is 60 where that is not set, empty, or no number; any number is taken as it is.
        """
        try:
            return float(self._env.get("UV_HTTP_TIMEOUT") or 60)
        except ValueError:
            return 60.0

    def _links_on_page(self, page: str) -> List[Link]:
        """Return the files that a page of links, or a folder, names; empty: it names none.

        They are in the page's order, a folder's sorted by name; all files count, of whatever package. ``page`` is a
        URL or a path. Each page is read once, and its files kept; one that cannot be read is tried again.

        Raises:
            Unavailable: the page or folder cannot be read, or is a web page for people
            OSError: a local folder is closed to this user
        """
        if page not in self._read_pages:
            self._read_pages[page] = self._read_page(page)
        return self._read_pages[page]

    def _read_page(self, page: str) -> List[Link]:
        """Read a page of links, or a folder, now, and return the files that it names; empty: it names none.

        They are in the page's order, a folder's sorted by name. ``page`` is a URL or a path. A package file stands
        for itself, and of a folder with an ``index.html`` that page is read. A server that did not answer before is
        not asked again, but the same error raised.

        Raises:
            Unavailable: the page or folder cannot be read, or is a web page for people
            OSError: a local folder is closed to this user
        """
        local = _local_path(page)
        if local is not None and local.is_dir() and not (local / "index.html").is_file():
            return _links_in_folder(local)
        # What is named as a page of links may be a package file itself.
        if local is not None and local.suffix in (".whl", ".gz"):
            return [Link(local.name, str(local))]
        if local is not None and local.is_dir():
            page = (local / "index.html").as_uri()
        host = _host_and_port(page)
        if host in self._failed:
            raise self._failed[host]

        def read() -> bytes:
            """Return the content of the enclosing method's page, which must come within ten seconds.

            Raises:
                Unavailable: the page cannot be read, or does not come in time
            """
            return _with_timeout(
                ANSWER_SECONDS, self.configured(page), lambda: self._read_location(page, ANSWER_SECONDS)
            )

        try:
            text = _with_retries(read).decode("utf-8", "replace")
        except Unavailable as problem:
            if host and problem.down:
                self._failed[host] = problem
            raise
        base = without_fragment(page)
        found = [_join_address(base, html.unescape(link)) for link in re.findall(r'href="([^"]+)"', text)]
        links = []
        for url in found:
            if url:
                name = without_fragment(url).rpartition("/")[2]
                links.append(Link(urllib.parse.unquote(name), url))
        if _is_for_people(text) and not any(link.name.endswith(_PACKAGES) for link in links):
            raise refusals.web_page_error(without_password(page), text)
        return links

    def _read_location(self, location: str, seconds: float) -> bytes:
        """Return the content of a file, local or at an address, waiting at most ``seconds`` whenever nothing comes.

        ``location`` is a URL or a path. The proxies, certificates and passwords of the settings are used.

        Raises:
            Unavailable: it cannot be read; its ``absent``, ``down`` and ``later`` tell more
            OSError: its local folder is closed to this user
        """
        local = _local_path(location)
        shown = without_password(location)
        if local is not None and not local.exists():
            raise Unavailable(f"{shown}: not found", "check that folder", absent=True)
        try:
            if local is not None:
                return local.read_bytes()
            # This handler heeds no_proxy.
            handlers: List[urllib.request.BaseHandler] = [urllib.request.ProxyHandler(self._proxies())]
            if location.startswith("https:"):
                handlers.append(urllib.request.HTTPSHandler(context=self._tls_context(urllib.parse.urlsplit(location))))
            opener = urllib.request.build_opener(*handlers)
            request = self._request(location)
            with opener.open(request, timeout=seconds) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            error.close()
            # Where redirects have led; none of them is told the password.
            known = request.has_header("Authorization") and error.url == request.full_url
            later = error.headers.get("Retry-After", "")
            raise refusals.http_error(
                without_password(error.url), error.code, error.reason, later, known=known
            ) from error
        except (OSError, ValueError, EOFError, http.client.HTTPException) as error:
            place = shown if isinstance(error, http.client.IncompleteRead) else self.configured(location)
            raise refusals.unanswered_error(place, error, self._by_proxy(location)) from error

    def _request(self, location: str) -> urllib.request.Request:
        """Return the request for the address ``location``, with the user and password for its host; not sent.

        The password is in a header, and no longer in the address. A redirect does not carry it on.

        Raises:
            ValueError: the address is malformed
        """
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
        """Return user and password for the address ``parts``: its own, those of an index on its host, or netrc's.

        The first of these counts; a page of links counts like an index, and ports play no part. A missing password is
        empty. None where nobody knows any. A netrc file that cannot be read counts as none.
        """
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
        """Return the address of the proxy for each scheme, such as ``https``; empty where no proxy is set.

        The settings for packages count before the environment.
        """
        proxies = dict(urllib.request.getproxies())
        for scheme in ("http", "https"):
            variable = f"{scheme.upper()}_PROXY"
            if variable in self._env:
                proxies[scheme] = self._env[variable]
        return proxies

    def _by_proxy(self, location: str) -> str:
        """Return `` (by the proxy ADDRESS)``, with the blank, for a message about ``location``; empty: none.

        Raises:
            Unavailable: the location is a malformed address
        """
        host = _host_and_port(location).rpartition("@")[2]
        proxy = self._proxies().get(location.partition(":")[0])
        return f" (by the proxy {without_password(proxy)})" if proxy and not urllib.request.proxy_bypass(host) else ""

    def _tls_context(self, parts: urllib.parse.SplitResult) -> ssl.SSLContext:
        """Return the TLS settings for the address ``parts``.

        Nothing is verified for a host that the settings trust, and on a machine without any certificates where no
        password is sent.

        Raises:
            OSError: a certificate that the settings name cannot be read, or the folder of certificates not be
                listed
        """
        given = self._env.get("SSL_CERT_FILE")
        context = ssl.create_default_context(cafile=given if given and Path(given).is_file() else None)
        if self._env.get("SSL_CLIENT_CERT"):
            context.load_cert_chain(self._env["SSL_CLIENT_CERT"])
        host = parts.netloc.rpartition("@")[2]
        # A minimal system has no certificates. What is fetched without them is compared with the lock's hash, and
        # nothing secret is sent.
        bare = not (given or pip_settings.has_certificates() or self._credentials(parts))
        if bare or host in self._trusted or parts.hostname in self._trusted:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _normalized_name(name: str) -> str:
    """Return the name of a package as indexes spell it: ``huggingface-hub`` for ``Huggingface_Hub``.

    It is in lower case, with one ``-`` for each run of ``-``, ``_`` and ``.``.
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _links_in_folder(folder: Path) -> List[Link]:
    """Return the entries of a folder of this machine as links, sorted by name; empty where it has none.

    All entries count, whatever they are; what is in subfolders is not looked at.

    Raises:
        Unavailable: it cannot be listed
    """
    try:
        return [Link(path.name, str(path)) for path in sorted(folder.iterdir())]
    except OSError as error:
        remedy = "make the folder readable, or correct the setting that names it"
        raise Unavailable(f"{folder} cannot be listed: {error.strerror or error}", remedy) from error


def _local_path(location: str) -> Optional[Path]:
    """Return the path that ``location`` names on this machine, which need not exist; None for an address elsewhere.

    A ``file:`` address names one, and so does any text without a scheme and ``://``; ``~`` and ``~USER`` are
    replaced at the beginning of the latter, but stay where the user is unknown.
    """
    if location.startswith("file:"):
        return Path(urllib.request.url2pathname(urllib.parse.urlsplit(location).path))
    # os.path leaves the home of an unknown user as it is, where pathlib raises.
    return None if re.match(r"[a-z]+://", location) else Path(os.path.expanduser(location))  # noqa: PTH111


def _host_and_port(page: str) -> str:
    """Return host and port of the address ``page``, with user and password if it has them; empty for a path.

    The port is there only where the address has it.

    Raises:
        Unavailable: the address is malformed, such as http://[::1/simple
    """
    try:
        return urllib.parse.urlsplit(page).netloc
    except ValueError as error:
        raise refusals.unanswered_error(without_password(page), error) from error


def _join_address(base: str, link: str) -> str:
    """Return the absolute address to which ``link``, maybe a relative one, on the page ``base`` leads.

    Empty where that is no address.
    """
    try:
        return urllib.parse.urljoin(base, link)
    except ValueError:
        return ""


def without_fragment(location: str) -> str:
    """Return a location without its ``#`` and what follows."""
    return location.partition("#")[0]


def _is_html(text: str) -> bool:
    """Return whether a text looks like HTML: it begins with ``<``, blanks aside."""
    return text.lstrip()[:1] == "<"


def _is_for_people(text: str) -> bool:
    """Return whether the ``text`` of a web page has what no list of files needs: a form, a script or a redirect."""
    return re.search(r"<form|<script|http-equiv=.?refresh", text, re.IGNORECASE) is not None


def _joined_error(problems: List[Unavailable]) -> Unavailable:
    """Return what several indexes answered as one error, with the first one's remedy; not raised here.

    ``problems`` is not empty; equal texts are told once. The error is ``down`` if all are, and ``by_name`` if at least
    one is; it is not ``absent``, and its ``later`` is None.
    """
    first = problems[0]
    texts = "; ".join(dict.fromkeys(map(str, problems)))
    down = all(problem.down for problem in problems)
    by_name = any(problem.by_name for problem in problems)
    return Unavailable(f"the package index {texts}", first.remedy, down=down, by_name=by_name)


def _with_retries(read: Callable[[], bytes]) -> bytes:
    """Return what ``read`` returns; it is tried twice more, after pauses, where its error says that this may help.

    That is where the error's ``later`` is not None: so many seconds the pause takes, and one and then three where it
    is 0.

    Raises:
        Unavailable: no try succeeded, another is of no use, or the server asks to wait for more than 30 seconds
    """
    for pause in PAUSES:
        try:
            return read()
        except Unavailable as problem:  # noqa: PERF203
            if problem.later is None or problem.later > _LONGEST_PAUSE:
                raise
            time.sleep(problem.later or pause)
    try:
        return read()
    except Unavailable as problem:
        problem.args = (f"{problem}; tried {len(PAUSES) + 1} times",)
        raise


def _with_timeout(seconds: float, shown: str, work: Callable[[], bytes]) -> bytes:
    """Return what ``work`` returns, or raise after ``seconds``, whether it waits for a name or for each address.

    ``shown`` is what the message says did not answer. ``work`` runs in a thread of its own.

    Raises:
        Unavailable: ``work`` raised it, raised another error, or has not ended; it then goes on in its thread, and
            nobody waits for it
    """
    silence = refusals.unanswered_error(shown, TimeoutError(f"no answer in {seconds:.0f} s"))
    ended: List[Union[bytes, Unavailable]] = [silence]

    def run() -> None:
        """Do the enclosing function's work in a thread; append its result or its Unavailable to ``ended``.

        Another error ends the thread alone: the caller then takes the work for one that gave no answer.
        """
        try:
            ended.append(work())
        except Unavailable as problem:
            ended.append(problem)

    # No timeout of a socket covers the lookup of a name, nor a host with many addresses: a thread can be left behind.
    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if isinstance(ended[-1], Unavailable):
        raise ended[-1]
    return ended[-1]
