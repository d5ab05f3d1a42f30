"""A package index, real and on this machine, that plays what goes wrong between an installer and its packages.

``HostileIndex(files)`` has ``files`` below ``/good/simple/``. Below ``/CASE/simple/`` it has them, too, and misbehaves
as ``CASE`` says: at the page of a package, and with ``CASE-file`` only at the file that the page names.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STATUS = {
    "user": (401, "Unauthorized"),
    "forbidden": (403, "Forbidden"),
    "busy": (429, "Too Many Requests"),
    "broken": (503, "Service Unavailable"),
    "unknown": (404, "Not Found"),
}

LOGIN = (
    b"<!DOCTYPE html><html><head><title>Sign in to the network</title></head><body>"
    b"<form action='/login'><input name=user></form></body></html>"
)


class HostileIndex:
    """``asked``: the paths that were asked for, and by which ``agents``.

    ``heals``: how many bad answers each address gives; None: all."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.asked: list[str] = []
        self.agents: list[str] = []
        self.heals: int | None = None
        self.retry_after = "0"
        self._ended = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.index = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def with_tls(self, folder: Path) -> str:
        """From now on it speaks TLS, with a certificate that nobody has signed; its address."""
        key = folder / "key.pem"
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", f"{key}.crt"]
        argv += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(argv, check=True, capture_output=True, env={"PATH": os.defpath})
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{key}.crt", key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        return self.url.replace("http:", "https:")

    def __enter__(self) -> HostileIndex:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait(self) -> None:
        self._ended.wait(30)


class _Server(ThreadingHTTPServer):
    index: HostileIndex

    def handle_error(self, *_: Any) -> None:
        pass  # a client that went away, or does not trust us


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        index = self.server.index
        index.asked.append(self.path)
        index.agents.append(self.headers.get("User-Agent", ""))
        case, _, rest = self.path.lstrip("/").partition("/")
        case, at_file, _ = case.partition("-file")
        name = rest.rpartition("/")[2]
        plays = bool(name) if at_file else not name
        if case == "truncated":
            plays = bool(name)
        if index.heals is not None and index.asked.count(self.path) > index.heals:
            plays = False
        if plays and case in STATUS:
            self._answer(*STATUS[case], b"no", {"Retry-After": index.retry_after} if case in ("busy", "broken") else {})
        elif plays and case == "login":
            self._answer(200, "OK", LOGIN, {"Content-Type": "text/html"})
        elif plays and case == "circle":
            self._answer(302, "Found", b"", {"Location": self.path})
        elif plays and case == "silent":
            index.wait()
        elif name in index.files:
            content = index.files[name]
            if plays and case == "changed":
                content = content[:-1] + bytes([content[-1] ^ 1])
            half = len(content) // 2 if plays and case == "truncated" else len(content)
            self._answer(200, "OK", content[:half], {"Content-Length": str(len(content))})
        elif name:
            self._answer(404, "Not Found", b"no")
        else:
            package = rest.rstrip("/").rpartition("/")[2]
            found = [file for file in index.files if file.startswith(f"{package}-")]
            if case == "foreign":
                found = [file.replace(file.rpartition("-")[2], "win_amd64.whl") for file in found]
            links = "".join(f'<a href="{file}">{file}</a>\n' for file in found)
            self._answer(
                200,
                "OK",
                f"<html><title>Links for {package}</title>{links}</html>".encode(),
                {"Content-Type": "text/html"},
            )

    do_HEAD = do_GET

    def _answer(self, status: int, reason: str, content: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status, reason)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass
