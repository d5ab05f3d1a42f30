"""Fetching uv's wheel from a real index on this machine."""

from __future__ import annotations

import base64
import errno
import functools
import hashlib
import io
import os
import re
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmb_install.parts import fetching, package_index, pip_settings, refusals, uv
from llmb_install.parts.package_index import Sources
from llmb_install.parts.pip_settings import IndexSettings, read_index_settings
from llmb_install.parts.refusals import Unavailable
from support.processes import wait_until
from support.texts import Texts

NONE = {"PIP_CONFIG_FILE": os.devnull}


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_settings, "has_certificates", lambda: False)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


NAME = "uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"


@functools.cache  # an archive holds the time of day
def wheel() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("uv/__init__.py", "")
        archive.writestr("uv-0.13.9.data/scripts/uv", "#!/bin/sh\necho uv of the index\n")
    return content.getvalue()


@dataclass
class Index:
    """A package index: what it has by path, whom it lets in, and what was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    user: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    hang: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def has_uv(self, content: bytes, page: str = "/simple/uv/") -> None:
        self.files[page] = f'<a href="../../files/{NAME}#sha256=x">{NAME}</a>\n<a href="/other.whl">o</a>'.encode()
        self.files[f"/files/{NAME}"] = content


@pytest.fixture
def index() -> Iterator[Index]:
    found = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            user = self.headers.get("Authorization")
            found.asked.append((self.path, user))
            wanted = "Basic " + base64.b64encode(found.user.encode()).decode()
            if self.path == "/hangs/uv/":
                found.hang.wait(30)
            status = 200 if self.path in found.files else 404
            if self.path in found.redirects:
                self.send_response(302)
                self.send_header("Location", found.redirects[self.path])
                self.end_headers()
                return
            self.send_response(401 if found.user and user != wanted else status)
            self.end_headers()
            if not found.user or user == wanted:
                self.wfile.write(found.files.get(self.path, b""))

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that went away

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    found.hang.set()
    server.shutdown()
    thread.join()
    server.server_close()


def told(index: str, **more: str) -> IndexSettings:
    return read_index_settings({**NONE, "PIP_INDEX_URL": index, **more})


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A lock that names our wheel, on a machine that it is for."""
    lock = tmp_path / "uv.txt"
    lock.write_text(f"uv==0.13.9 \\\n    --hash=sha256:{hashlib.sha256(wheel()).hexdigest()}\n")
    monkeypatch.setattr(uv, "LOCK", lock)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(uv, "BESIDE", tmp_path)
    monkeypatch.setattr(fetching, "has_pip", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.mark.usefixtures("locked")
def test_uv_is_fetched_compared_and_unpacked(index, tmp_path, monkeypatch):
    index.has_uv(wheel())
    program = uv.get_uv(tmp_path / "a" / "cache", told(f"{index.url}/simple/"))
    assert program == str(tmp_path / "a" / "cache" / "uv")
    assert list((tmp_path / "a" / "cache").iterdir()) == [Path(program)]
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "uv of the index\n"
    asked = len(index.asked)
    assert uv.get_uv(tmp_path / "a" / "cache", told(index.url)) == program
    assert len(index.asked) == asked, "it is at hand"
    assert uv.fetch_uv(tmp_path / "a" / "cache", told(f"{index.url}/simple")) == program, "in place of another"
    monkeypatch.setattr("pathlib.Path.chmod", lambda *_: Path("/dev/full").write_bytes(b"x"))
    with pytest.raises(OSError, match=re.escape(f"No space left on device: '{program}'")):
        uv.fetch_uv(tmp_path / "a" / "cache", told(f"{index.url}/simple"))
    assert list((tmp_path / "a" / "cache").iterdir()) == [Path(program)]


@pytest.mark.usefixtures("locked")
def test_another_content_than_the_locks_is_refused(index: Index, tmp_path: Path, texts: Texts) -> None:
    index.has_uv(wheel() + b"more")
    with pytest.raises(Unavailable) as caught:
        uv.get_uv(tmp_path / "cache", told(f"{index.url}/simple"))
    texts(caught.value, mask=NAME)
    assert not (tmp_path / "cache").exists()
    on_path = tmp_path / "nothing" / "uv"
    write(on_path, "")
    on_path.chmod(0o755)
    assert uv.get_uv(tmp_path / "cache", told(f"{index.url}/simple")) == str(on_path), "the user's own"


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize("kind", ["folder", "file URL", "page", "a file", "extra index", "simple index on disk"])
def test_wherever_pip_finds_packages_uv_is_found(index: Index, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "a folder"
    write(folder / "x", "")
    (folder / NAME).write_bytes(wheel())
    (folder / "uv").mkdir()
    (folder / "uv" / NAME).write_bytes(wheel())
    index.has_uv(wheel(), "/links.html")
    index.files["/links.html"] = index.files["/links.html"].replace(b"../../", b"/")
    index.has_uv(wheel())
    more = {
        "folder": {"UV_FIND_LINKS": str(folder)},
        "file URL": {"PIP_FIND_LINKS": folder.as_uri()},
        "a file": {"PIP_FIND_LINKS": (folder / NAME).as_uri()},
        "page": {"PIP_FIND_LINKS": f"{index.url}/links.html"},
        "extra index": {"UV_INDEX": f"internal={index.url}/simple"},
        "simple index on disk": {"PIP_EXTRA_INDEX_URL": folder.as_uri()},
    }[kind]
    assert uv.get_uv(tmp_path / "cache", told(f"{index.url}/empty", **more)).endswith("/cache/uv")


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(folder: Path) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(Unavailable) as caught:
        Sources(told("", PIP_NO_INDEX="1", UV_FIND_LINKS=str(tmp_path))).links("uv", uv.is_for_here)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.usefixtures("locked")
def test_a_password_reaches_its_host_alone(index: Index, tmp_path: Path, texts: Texts) -> None:
    index.has_uv(wheel())
    index.user = "me:s@cret"
    private = index.url.replace("http://", "http://me:s%40cret@")
    assert uv.get_uv(tmp_path / "cache", told(f"{private}/simple"))
    with pytest.raises(Unavailable) as caught:
        Sources(told(f"{private}/nothing")).links("uv", uv.is_for_here)
    assert "s%40cret" not in str(caught.value)
    index.redirects["/moved/uv/"] = f"http://localhost:{index.url.rpartition(':')[2]}/simple/uv/"
    with texts.raises(Unavailable):
        Sources(told(f"{private}/moved")).links("uv", uv.is_for_here)
    assert index.asked[-1] == ("/simple/uv/", None)


@pytest.mark.usefixtures("locked")
def test_a_users_netrc_is_read(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    index.has_uv(wheel())
    index.user = "me:word"
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".netrc", "machine 127.0.0.1 login me password word\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert Sources(told(f"{index.url}/simple")).links("uv", uv.is_for_here)
    (tmp_path / ".netrc").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("NETRC", str(tmp_path / "elsewhere"))
    assert Sources(told(f"{index.url}/simple")).links("uv", uv.is_for_here)
    monkeypatch.delenv("NETRC")
    write(tmp_path / ".netrc", "machine nonsense nonsense\n")
    with texts.raises(Unavailable):
        Sources(told(f"{index.url}/simple")).links("uv", uv.is_for_here)


@pytest.mark.usefixtures("locked")
def test_what_does_not_answer_is_named(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: Texts
) -> None:
    def problem(index: str, **more: str) -> str:
        with pytest.raises(Unavailable) as caught:
            Sources(told(index, **more)).links("uv", uv.is_for_here)
        return str(caught.value)

    texts(problem("http://me:secret@127.0.0.1:1/simple"))
    texts(problem("http://127.0.0.1:1/simple", UV_INDEX="internal=http://127.0.0.1:1/two"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    texts(problem("http://far.example", PIP_PROXY="http://me:secret@127.0.0.1:1"))
    texts(problem("http://127.0.0.1:1", PIP_PROXY="http://127.0.0.1:2"))
    texts(problem("http://no-such-host.invalid/s"), mask="reached: .*")
    for url in ("http://user:secret@[::1/simple", "https://[x"):
        for said in (problem(url), problem("", PIP_NO_INDEX="1", PIP_FIND_LINKS=url)):
            assert "secret" not in said
    texts(said)
    texts(problem(f"{index.url}/nothing"))
    index.files["/simple/uv/"] = b"<a href='x'>"
    texts(problem(f"{index.url}/simple"))
    texts(problem(f"{index.url}/simple", PIP_NO_INDEX="1"))
    write(tmp_path / "wheels" / "x.whl", "")
    said = problem("http://127.0.0.1:1", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert ("uv" in said.split(), str(tmp_path / "wheels") in said, "127.0.0.1" in said) == (True, True, False)
    with monkeypatch.context() as patch:
        patch.setattr(package_index, "ANSWER_SECONDS", 0.2)
        texts(problem(f"{index.url}/hangs"))
    # Another index that is asked in addition is none of the user's.
    with texts.raises(Unavailable):
        Sources(told("http://127.0.0.1:1/simple")).links("uv", uv.is_for_here, ["http://127.0.0.1:1/more"])


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), ("²", 0.0), ("Fri, 01 Jan 99999 00:00:00 GMT", 0.0), ("soon", 0.0)]
)
def test_what_an_index_asks_to_wait(text: str, seconds: float) -> None:
    assert refusals._retry_after_seconds(text) == seconds


@pytest.mark.parametrize("setting", ["PIP_FIND_LINKS", "PIP_INDEX_URL"])
def test_the_home_of_an_unknown_user_is_a_folder_that_is_not_there(setting: str) -> None:
    given = {**NONE, "PIP_NO_INDEX": "1" if setting == "PIP_FIND_LINKS" else "", setting: "~nosuchuser/wheels"}
    with pytest.raises(Unavailable, match="~nosuchuser/wheels"):
        Sources(read_index_settings(given)).links("uv", uv.is_for_here)


@pytest.mark.usefixtures("locked")
def test_a_host_that_did_not_answer_is_not_asked_twice(
    index: Index, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr(package_index, "ANSWER_SECONDS", 0.2)
    sources = Sources(told(f"{index.url}/hangs"))
    for package in ("uv", "torch"):
        with texts.raises(Unavailable):
            sources.links(package)
    wait_until(lambda: bool(index.asked), "the request, which the index may read after we gave up", timeout=20)
    assert [path for path, _ in index.asked] == ["/hangs/uv/"]


@pytest.mark.parametrize(
    ("name", "machine", "libc", "right"),
    [
        ("uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "x86_64", "glibc", True),
        ("uv-0.13.9-py3-none-manylinux_2_28_aarch64.whl", "aarch64", "glibc", True),
        ("uv-0.13.9-py3-none-musllinux_1_1_x86_64.whl", "x86_64", "", True),
        ("uv-0.13.9-py3-none-musllinux_1_1_x86_64.whl", "x86_64", "glibc", False),
        ("uv-0.13.8-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "x86_64", "glibc", False),
        ("uv-0.13.9-py3-none-macosx_10_12_x86_64.whl", "x86_64", "glibc", False),
        ("uv-0.13.9-py3-none-manylinux_2_28_aarch64.whl", "x86_64", "glibc", False),
        ("uv-0.13.9.tar.gz", "x86_64", "glibc", False),
    ],
)
@pytest.mark.usefixtures("locked")
def test_which_wheel_is_for_this_machine(monkeypatch, name, machine, libc, right):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.libc_ver", lambda: (libc, ""))
    assert uv.is_for_here(name) == right


def context(told: IndexSettings, url: str) -> ssl.SSLContext:
    return Sources(told)._tls_context(package_index.urllib.parse.urlsplit(url))


def test_certificates_are_checked_unless_the_machine_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any, the lock's hash decides, and no password is sent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    url = "https://pypi.example/simple/"
    assert context(told(url), url).verify_mode == ssl.CERT_NONE
    secret = "https://me:word@pypi.example/simple/"
    assert context(told(secret), secret).verify_mode == ssl.CERT_REQUIRED
    assert context(told(url, PIP_CERT="/ca.pem"), url).verify_mode == ssl.CERT_REQUIRED
    monkeypatch.setattr(pip_settings, "has_certificates", lambda: True)
    assert context(told(url), url).verify_mode == ssl.CERT_REQUIRED
    assert context(told(url, PIP_TRUSTED_HOST="other.example"), url).verify_mode == ssl.CERT_REQUIRED
    assert context(told(url, PIP_TRUSTED_HOST="pypi.example"), url).verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("proxied", [True, False])
@pytest.mark.usefixtures("locked")
def test_a_proxy_is_asked_where_pip_is_told_of_one(index: Index, proxied: bool) -> None:
    index.files["http://pypi.example/simple/uv/"] = f'<a href="/{NAME}">x</a>'.encode()
    more = {"PIP_PROXY": index.url} if proxied else {"HTTP_PROXY": index.url}
    assert Sources(told("http://pypi.example/simple", **more)).links("uv", uv.is_for_here)


def test_uv_itself_may_be_called(tmp_path: Path, stand_in: Callable[[str], Path]) -> None:
    """``python -m llmb_install.parts.uv`` is uv with pip's settings."""
    program = stand_in('#!/bin/sh\necho "$* $UV_DEFAULT_INDEX $PYTHONPATH"\n')
    python = program.with_name("python")
    python.symlink_to(sys.executable)
    installer = str(Path(uv.__file__).resolve().parents[2])
    env = {**os.environ, **NONE, "PYTHONPATH": installer, "PIP_INDEX_URL": "http://127.0.0.1:1"}
    env["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def called() -> subprocess.CompletedProcess[str]:
        argv = [str(python), "-S", "-m", "llmb_install.parts.uv", "pip", "x"]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    assert called().stdout == "pip x http://127.0.0.1:1 \n"
    program.rename(tmp_path / "elsewhere")
    env["PATH"] = str(tmp_path / "nothing")
    done = called()
    what = "error: uv could not be fetched: the package index http://127.0.0.1:1 cannot be reached: Connection refused"
    assert (done.returncode, done.stderr.partition("\n  -> ")[0]) == (1, what)
    kept = tmp_path / "cache" / "llmb" / "uv"
    kept.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").rename(kept)
    assert called().stdout == "pip x http://127.0.0.1:1 \n"


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[str], Path]:
    def made(text: str) -> Path:
        path = tmp_path / "bin" / "uv"
        write(path, text)
        path.chmod(0o755)
        return path

    return made


@pytest.mark.parametrize(
    ("script", "said"), [("echo a; echo '  cause: why '; exit 2", "why"), ("exit 3", "exit status 3")]
)
def test_why_uv_could_not_fetch_a_python(tmp_path, stand_in, monkeypatch, script, said, texts: Texts):
    monkeypatch.setattr(fetching, "has_pip", lambda: False)
    monkeypatch.setenv("PATH", "/bin")
    program = stand_in(f"#!/bin/sh\necho $* $UV_HTTP_RETRIES $(cat) > {tmp_path}/asked\n{script}\n")
    monkeypatch.setattr(uv, "BESIDE", program.parent)
    assert uv.fetch_python("3.12", tmp_path, NONE | {"PATH": "/bin"}) == said
    assert (tmp_path / "asked").read_text() == "python install --no-bin 3.12 1\n", "nobody is asked, nor waited for"
    uv.fetch_python("3.12", tmp_path, NONE | {"PATH": "/bin", "UV_HTTP_RETRIES": "7"})
    assert (tmp_path / "asked").read_text().endswith(" 7\n")
    stand_in("#!/bin/sh\n")
    assert uv.fetch_python("3.12", tmp_path, NONE) is None
    monkeypatch.setattr(uv, "_SECONDS", 0.1)
    stand_in("#!/bin/sh\nexec sleep 60\n")
    assert "timed out after 0.1 seconds" in str(uv.fetch_python("3.12", tmp_path, NONE | {"PATH": "/bin"}))
    monkeypatch.setattr(uv, "BESIDE", tmp_path)
    monkeypatch.setattr(uv, "uv_on_path", lambda: None)
    problem = uv.fetch_python("3.12", tmp_path / "none", {**NONE, "PIP_INDEX_URL": "http://127.0.0.1:1"})
    texts(problem)
