"""Why a file of a package could not be had: what happened, at which address, and what to do about it.

Starts on Python 3.6, like ``uv``. Standard library only.
"""

import http.client
import re
import socket
import ssl
import urllib.error
import urllib.parse
from email.utils import mktime_tz, parsedate_tz
from time import time
from typing import Any, Optional

_SETTINGS = "PIP_INDEX_URL or UV_DEFAULT_INDEX, or pip.conf"

OTHER_INDEX = f"name an index that this machine reaches ({_SETTINGS})"

_BUNDLE = "install from a bundle: --from DIR, see docs/administrators.md"

_REACH = f"check the network and the proxy, {OTHER_INDEX}, or {_BUNDLE}"

_AGAIN = f"run the same command again later, or {OTHER_INDEX}"


class Unavailable(Exception):
    """Raised where a package file could not be had; its text says what happened, and where.

    It is made from that ``text`` and a ``remedy``, which says what to do about it. The remedy and what follows are
    attributes, the latter False or None by default. ``absent``: whoever was asked answers, and does not have it.
    ``down``: nobody answers. ``by_name``: it may answer to others, so that a program with more to show, or other
    authorities to trust, may get the file. ``later``: seconds after which to ask again, 0 where it does not say how
    many; None: to ask again is of no use.
    """

    def __init__(
        self,
        text: str,
        remedy: str,
        *,
        absent: bool = False,
        down: bool = False,
        by_name: bool = False,
        later: Optional[float] = None,
    ) -> None:
        super().__init__(text)
        self.remedy = remedy
        self.absent = absent
        self.down = down
        self.by_name = by_name
        self.later = later


def without_password(location: str) -> str:
    """Return an address without user, password and fragment, as it may be shown; a path stays as it is.

    Of a malformed address what stands before ``@`` is left out, and the fragment stays.
    """
    try:
        parts = urllib.parse.urlsplit(location)
    except ValueError:
        return re.sub(r"//[^/]*@", "//", location)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl() if parts.netloc else location


def unanswered_error(shown: str, error: Exception, by: str = "") -> Unavailable:
    """Return the error that ``shown`` gave no answer, or only half of one, because of ``error``; not raised here.

    It is ``down`` but for half an answer and for a proxy that wants a user; ``by_name`` for such a proxy and a TLS
    error. ``later`` is 0 for half an answer and a connection that breaks off, else None. ``shown`` is the address as
    people may see it. ``by``: the proxy that was asked, as `` (by the proxy ADDRESS)``, with the blank; empty: none.
    """
    cause: Any = error
    while isinstance(cause, urllib.error.URLError):
        cause = cause.reason
    if isinstance(cause, http.client.IncompleteRead):
        received = len(cause.partial)
        whole = received + (cause.expected or 0)
        return broken_off_error(shown, f"answer{by}", f", after {received} of {whole} bytes")
    if isinstance(cause, ssl.SSLError):
        what = f"cannot be reached safely{by}: {_tls_problem(cause)}"
        remedy = (
            f"name the authorities that this site trusts (PIP_CERT=/path/to/ca.pem or SSL_CERT_FILE), or {OTHER_INDEX}"
        )
        return Unavailable(f"{shown} {what}", remedy, down=True, by_name=True)
    if isinstance(cause, socket.gaierror):
        why = f"the name of its host is not known here ({cause.strerror})"
    elif isinstance(cause, (socket.timeout, TimeoutError)):
        why = "no answer"
    else:
        why = str(getattr(cause, "strerror", "") or cause)
    # urllib tells of a tunnel that a proxy refuses as an OSError, with the status in its text.
    if "407" in why:
        return _proxy_error(shown, f"{why}{by}")
    # Whoever hangs up in the middle may be overloaded.
    later = 0 if isinstance(cause, ConnectionError) and not isinstance(cause, ConnectionRefusedError) else None
    return Unavailable(f"{shown} cannot be reached: {why}{by}", _REACH, down=True, later=later)


_LONGEST_WAIT = 7 * 86400
"""In seconds; a server that asks to wait longer has a wrong clock, and its request is not repeated to the user."""


def broken_off_error(location: str, what: str, where: str = "") -> Unavailable:
    """Return the error that the download from ``location`` broke off before its end; not raised here.

    It may be tried again at once: ``later`` is 0. ``what`` names it, such as ``answer``; ``where`` is put behind
    "breaks off", such as ``, after 3 of 20 bytes``.
    """
    remedy = f"{_AGAIN}: a proxy or a filter on the way may cut off large files"
    return Unavailable(f"{without_password(location)}: the {what} breaks off{where}", remedy, later=0)


def http_error(shown: str, status: int, reason: str, retry_after: str, *, known: bool) -> Unavailable:
    """Return the error of an HTTP ``status`` that ``shown`` answered with in place of a file; not raised here.

    404 and 410 are ``absent``, 401, 403 and 407 ``by_name``; only after 429 and 5xx is it of use to ask again, which
    ``later`` says. ``shown`` is the address as people may see it. ``reason``: what HTTP calls the status.
    ``retry_after``: that header, empty if there is none; ``known``: a user and a password were sent.
    """
    code = f"{status} {reason}"
    later = _retry_after_seconds(retry_after)
    # A date in another century is a broken clock, not a time to wait.
    wait = f"; it asks to be left alone for {later:.0f} s" if 0 < later <= _LONGEST_WAIT else ""
    if status in (404, 410):
        remedy = f"check the address of the index, which most often ends in /simple, or {OTHER_INDEX}"
        return Unavailable(f"{shown}: {code}", remedy, absent=True)
    if status == 401:
        what = "does not accept the user and the password that it was told" if known else "wants a user and a password"
        remedy = f"put them into ~/.netrc or the index's address, https://USER:PASSWORD@HOST/... ({_SETTINGS})"
        return Unavailable(f"{shown} {what} ({code})", remedy, by_name=True)
    if status == 403:
        remedy = f"ask those who run it for access, or {OTHER_INDEX}"
        return Unavailable(f"{shown} refuses access ({code})", remedy, by_name=True)
    if status == 407:
        return _proxy_error(shown, code)
    if 300 <= status < 400:
        remedy = f"look where 'curl -IL {shown}' leads, and {OTHER_INDEX}"
        return Unavailable(f"{shown} redirects in a circle ({status})", remedy)
    if status == 429:
        return Unavailable(f"{shown} has too many requests ({code}){wait}", _AGAIN, later=later)
    if status >= 500:
        return Unavailable(f"{shown} has trouble of its own ({code}){wait}", _AGAIN, later=later)
    return Unavailable(f"{shown} refuses the request ({code})", f"check the address of the index, or {OTHER_INDEX}")


def not_found_error(package: str, pages: str) -> Unavailable:
    """Return the error that nobody has any file of ``package``, which is ``absent``; not raised here.

    ``pages``: who was asked, and what they answered, as a fragment for people; it comes in parentheses.
    """
    remedy = f"check the address of the index, which most often ends in /simple, or {OTHER_INDEX}"
    return Unavailable(f"no index or folder has {package} ({pages})", remedy, absent=True)


def web_page_error(shown: str, text: str) -> Unavailable:
    """Return the error that ``shown`` answers with a web page for people in place of packages; not raised here.

    It is ``by_name``, and names the title in ``text``, the page's HTML, if there is one. ``shown`` is an address as
    people may see it.
    """
    title = re.search(r"<title[^>]*>\s*(.*?)\s*</title", text, re.IGNORECASE | re.DOTALL)
    named = f" ({' '.join(title[1].split())[:60]!r})" if title else ""
    remedy = f"log in to the network or the proxy that answers in its place, or {OTHER_INDEX}"
    return Unavailable(f"{shown} answers with a web page{named} in place of packages", remedy, by_name=True)


def hash_error(shown: str) -> Unavailable:
    """Return the error that the file ``shown`` has another hash than the lock file says; not raised here.

    ``shown`` is its address, as people may see it. None of the error's marks, such as ``absent``, is set.
    """
    remedy = (
        f"have those who run it fetch the file again, or {OTHER_INDEX}; what the locks do not name is never installed"
    )
    return Unavailable(f"{shown} has another content than the lock file says", remedy)


def _proxy_error(shown: str, why: str) -> Unavailable:
    """Return the error that ``shown`` cannot be reached because the proxy wants a user; not raised here.

    It is ``by_name``. ``why``, such as the HTTP status and its reason, ends the message behind a colon.
    """
    remedy = "put its user and password into the address of the proxy (PIP_PROXY=http://USER:PASSWORD@HOST:PORT)"
    return Unavailable(f"{shown} cannot be reached, because the proxy wants a user: {why}", remedy, by_name=True)


def _tls_problem(cause: ssl.SSLError) -> str:
    """Return why a TLS connection could not be made, as a clause: the certificate, or what OpenSSL says."""
    why = getattr(cause, "verify_message", "") or cause.reason or str(cause)
    return f"its certificate is not accepted ({why})" if "CERTIFICATE" in (cause.reason or "") else f"TLS: {why}"


def _retry_after_seconds(text: str) -> float:
    """Return the seconds that the header ``Retry-After`` asks to wait, given as a whole number or a date; 0: none.

    A text that is neither counts as 0, as does a date in the past. There is no upper bound.
    """
    if text.strip().isdecimal():
        return float(text)
    date = parsedate_tz(text)
    try:
        return max(0.0, mktime_tz(date) - time()) if date else 0.0
    except (ValueError, OverflowError):  # a year that no calendar has
        return 0.0
