"""What goes wrong between the installer and its packages, with each program that fetches them, from a real index."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_install.parts import fetching, package_index, pip_settings, uv
from llmb_install.parts.environment import Environment
from llmb_install.parts.pip_settings import read_index_settings
from llmb_install.parts.refusals import Unavailable
from llmb_install.working.reporter import Reporter
from support.hostile_index import HostileIndex
from support.texts import Texts
from support.wheels import tiny_wheel

REAL_UV = uv.find_uv(Path(sys.executable).parent)

PAGE, FILE = r"http://127\.0\.0\.1:\d+/\S+/simple/(uv|tiny)/", r"http://127\.0\.0\.1:\d+/\S+\.whl"

CASES = {
    "user": (rf"{PAGE} wants a user and a password \(401", "USER:PASSWORD"),
    "forbidden": (rf"{PAGE} refuses access \(403", "ask those who run it"),
    "forbidden-file": (rf"{FILE} refuses access \(403", "ask those who run it"),
    "busy": (rf"{PAGE} has too many requests \(429 .*3 times", "again later"),
    "broken": (rf"{PAGE} has trouble of its own \(503 .*3 times", "again later"),
    "login": (rf"{PAGE} answers with a web page \('Sign in to the network'\)", "log in"),
    "login-file": (rf"{FILE} answers with a web page \('Sign in to the network'\)", "log in"),
    "circle": (rf"{PAGE} redirects in a circle \(302\)", "curl -IL http"),
    "unknown": (rf"no index or folder has (uv|tiny) \({PAGE}: 404 Not Found\)", "/simple"),
    "foreign": (rf"there is no build for this machine \({PAGE}\)", "another index|reaches"),
    "changed-file": (rf"{FILE} has another content than the lock file says", "fetch the file again"),
    "truncated": (r"http://127\S+: the (answer breaks off, after \d+ of .*3 times|file of tiny breaks off)", "cut off"),
    "silent": (r"http://\S+/simple cannot be reached: no answer", "check the network"),
    "no such host": (
        r"http://no-such-host\.invalid/simple cannot be reached: the name of its host is not known",
        "proxy",
    ),
    "no proxy": (r"http://far\.example/simple cannot be reached: .*\(by the proxy http://127.0.0.1:1\)", "the proxy"),
    "own certificate": (r"https://\S+/simple cannot be reached safely: its certificate is not accepted", "PIP_CERT"),
}
"""What is said of each, and what is in the remedy."""


def uv_wheel(program: bytes) -> tuple[str, bytes]:
    """A release of uv for every machine."""
    content = BytesIO()
    files = {
        "uv-9.9.data/scripts/uv": program,
        "uv-9.9.dist-info/METADATA": b"Metadata-Version: 2.1\nName: uv\nVersion: 9.9\n",
        "uv-9.9.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["uv-9.9.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files).encode()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return "uv-9.9-py3-none-any.whl", content.getvalue()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileIndex]:
    """It has uv and another package, whose locks are beside."""
    name, content = uv_wheel(b"#!/bin/sh\necho uv of the index\n")
    tiny = tiny_wheel(tmp_path)
    for lock, package, data in (("uv", "uv==9.9", content), ("tiny", "tiny==1.0", tiny.read_bytes())):
        (tmp_path / f"{lock}.txt").write_text(f"{package} \\\n    --hash=sha256:{hashlib.sha256(data).hexdigest()}\n")
    monkeypatch.setattr(uv, "LOCK", tmp_path / "uv.txt")
    monkeypatch.setattr(uv, "is_for_here", name.__eq__)
    monkeypatch.setattr(uv, "BESIDE", tmp_path / "nothing")
    monkeypatch.setattr(fetching, "has_pip", lambda: False)
    monkeypatch.setattr(package_index, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(pip_settings, "has_certificates", lambda: True)
    for variable in [name for name in os.environ if re.match(r"(PIP|UV)_|.*_proxy\Z", name, re.IGNORECASE)]:
        monkeypatch.delenv(variable)
    for variable, value in {"PIP_CONFIG_FILE": os.devnull, "UV_HTTP_RETRIES": "0"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with HostileIndex({name: content, tiny.name: tiny.read_bytes()}) as found:
        yield found


def play(case: str, index: HostileIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip and uv told of an index that does what ``case`` says."""
    address = f"{index.url.replace('//', '//me:secret@')}/{case}/simple"
    if case == "user":
        address = f"{index.url}/{case}/simple"
    elif case == "no such host":
        address = "http://me:secret@no-such-host.invalid/simple"
    elif case == "no proxy":
        address = "http://far.example/simple"
        monkeypatch.setenv("PIP_PROXY", "http://me:secret@127.0.0.1:1")
    elif case == "silent":  # the only one that nobody waits for: a busy machine answers late
        monkeypatch.setattr(package_index, "ANSWER_SECONDS", 0.5)
        monkeypatch.setattr(fetching, "ANSWER_SECONDS", 0.5)
        monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    elif case == "own certificate":
        address = f"{index.with_tls(tmp_path).replace('//', '//me:secret@')}/good/simple"
    monkeypatch.setenv("PIP_INDEX_URL", address)


def fetch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv.fetch_uv(tmp_path / "cache", read_index_settings(os.environ))


def fetch_by_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "has_pip", lambda: True)
    uv.fetch_uv(tmp_path / "cache", read_index_settings(os.environ))


def fetch_by_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(REAL_UV or "").parent))
    uv.fetch_uv(tmp_path / "cache", read_index_settings(os.environ))


def fill_by_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows once uv is there: an environment."""
    monkeypatch.setattr(uv, "find_uv", lambda *_: REAL_UV)
    made = Environment(tmp_path / "made", sys.executable, tmp_path / "tiny.txt", smoke=("tiny",))
    with Reporter(None) as reporter:
        made.ensure(reporter)


LAST_WORD = ("forbidden-file", "changed-file", "login")
"""Where pip or uv fails to fetch uv, what we find ourselves is told: the cases in which they get furthest."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "case"),
    [
        *((client, case) for client in (fetch_alone, fill_by_uv) for case in CASES),
        *((client, case) for client in (fetch_by_pip, fetch_by_uv) for case in LAST_WORD),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_went_wrong_is_told_with_its_address_and_what_to_do(
    case: str,
    client: Callable[[Path, pytest.MonkeyPatch], None],
    index: HostileIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(case, index, tmp_path, monkeypatch)
    with pytest.raises((Unavailable, EnvironmentLacks)) as caught:
        client(tmp_path, monkeypatch)
    said, remedy = CASES[case]
    text = getattr(caught.value, "message", str(caught.value))
    assert re.search(said, text), text
    assert re.search(remedy, str(getattr(caught.value, "remedy", "")))
    assert "secret" not in f"{text} {caught.value}"
    assert ("no build for this machine" in text) == (case == "foreign")
    assert not (tmp_path / "cache").exists()
    assert not list(tmp_path.glob("made-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "agent"), [(fetch_alone, "llmb"), (fetch_by_pip, "pip"), (fetch_by_uv, "uv"), (fill_by_uv, "uv")]
)
def test_each_fetches_what_the_lock_says(client, agent, index, tmp_path, monkeypatch):
    play("good", index, tmp_path, monkeypatch)
    client(tmp_path, monkeypatch)
    assert all(name.startswith(agent) for name in index.agents)
    if client is not fill_by_uv:
        assert (tmp_path / "cache" / "uv").read_text().endswith("echo uv of the index\n")
        assert [path.name for path in (tmp_path / "cache").iterdir()] == ["uv"]


@pytest.mark.parametrize("client", [fetch_alone, fetch_by_pip, fetch_by_uv], ids=lambda client: client.__name__)
def test_nobody_builds_uv_from_its_source(client, index, tmp_path, monkeypatch, texts: Texts):
    """A pip that is too old for the wheel would, for minutes."""
    source = b"uv, in Rust"
    index.files = {"uv-9.9.tar.gz": source}
    uv.LOCK.write_text(f"uv==9.9 --hash=sha256:{hashlib.sha256(source).hexdigest()}\n")
    play("good", index, tmp_path, monkeypatch)
    with texts.raises(Unavailable):
        client(tmp_path, monkeypatch)
    assert not [path for path in index.asked if path.endswith(".gz")]


@pytest.mark.parametrize("case", ["busy", "broken", "truncated"])
def test_what_passes_is_waited_for(case, index, tmp_path, monkeypatch):
    index.heals = 2
    play(case, index, tmp_path, monkeypatch)
    fetch_alone(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("case", "wait", "times"),
    [("busy", "1", 3), ("busy", "3600", 1), ("broken", "Fri, 01 Jan 2100 00:00:00 GMT", 1), ("forbidden", "0", 1)],
)
def test_it_is_asked_again_when_it_says_and_not_after_an_hour(
    case, wait, times, index, tmp_path, monkeypatch, texts: Texts
):
    slept: list[float] = []
    monkeypatch.setattr(package_index.time, "sleep", slept.append)
    index.retry_after = wait
    play(case, index, tmp_path, monkeypatch)
    with pytest.raises(Unavailable) as caught:
        fetch_alone(tmp_path, monkeypatch)
    texts(caught.value, mask=r"\d{7,} s")
    assert len(index.asked) == times
    assert slept == [1.0] * (times - 1)


def test_who_may_know_better_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip may have a password or an authority that we lack, and no route of its own."""
    monkeypatch.setattr(uv, "uv_on_path", lambda: None)
    kept, gone = Unavailable("", "", by_name=True), Unavailable("", "", down=True)
    for pip in (True, False):
        monkeypatch.setattr(fetching, "has_pip", lambda pip=pip: pip)
        assert [uv.may_know_better(problem) for problem in (kept, gone)] == [pip, False]
    monkeypatch.setattr(uv, "uv_on_path", lambda: "/usr/bin/uv")
    assert uv.may_know_better(gone), "its index may be another"
