"""What pip and uv are told on this machine, in uv's terms."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_install.parts import pip_settings, uv
from llmb_install.parts.pip_settings import IndexSettings, read_index_settings

NONE = {"PIP_CONFIG_FILE": os.devnull}


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_settings, "has_certificates", lambda: False)


def test_uv_looks_where_pip_is_told_to_look() -> None:
    told = read_index_settings(
        {
            **NONE,
            "PIP_INDEX_URL": "https://pypi.example/simple",
            "PIP_EXTRA_INDEX_URL": "https://a.example\nhttps://b.example",
            "PIP_FIND_LINKS": "/wheels /more",
            "PIP_TRUSTED_HOST": "a.example",
            "PIP_CERT": "/etc/ca.pem",
            "PIP_CLIENT_CERT": "/etc/me.pem",
            "PIP_PROXY": "http://proxy.example:3128",
            "PIP_DEFAULT_TIMEOUT": "180",
            "PIP_PROGRESS_BAR": "off",
            "PIP_RETRIES": "",
        }
    )
    assert told == IndexSettings(
        {
            "UV_DEFAULT_INDEX": "https://pypi.example/simple",
            "UV_INDEX": "https://a.example https://b.example",
            "UV_FIND_LINKS": "/wheels,/more",
            "UV_INSECURE_HOST": "a.example",
            "SSL_CERT_FILE": "/etc/ca.pem",
            "SSL_CLIENT_CERT": "/etc/me.pem",
            "HTTP_PROXY": "http://proxy.example:3128",
            "HTTPS_PROXY": "http://proxy.example:3128",
            "UV_HTTP_TIMEOUT": "180",
        }
    )
    assert read_index_settings({**NONE, "PIP_NO_INDEX": "1"}) == IndexSettings(options=("--no-index",))
    assert read_index_settings({**NONE, "PIP_NO_INDEX": "false"}) == IndexSettings()
    for arguments in (["--no-index", "-e", "."], ["six"]):  # uv refuses an option that is given twice
        argv = uv.install_argv("uv", "python", Path("/c"), IndexSettings(options=("--no-index",)), arguments)
        assert argv.count("--no-index") == 1


def test_what_uv_is_told_itself_wins() -> None:
    env = {**NONE, "PIP_INDEX_URL": "https://pip.example", "UV_INDEX_URL": "https://uv.example", "UV_INDEX": ""}
    env["UV_EXTRA_INDEX_URL"] = "https://more.example"
    assert read_index_settings(env).variables == {
        "UV_DEFAULT_INDEX": "https://uv.example",
        "UV_INDEX": "https://more.example",
    }
    env |= {"UV_DEFAULT_INDEX": "https://now.example", "UV_INDEX": "https://also.example"}
    assert read_index_settings(env).variables == {
        "UV_DEFAULT_INDEX": "https://now.example",
        "UV_INDEX": "https://also.example",
    }


def test_a_sites_own_authority_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_index_settings({**NONE, "REQUESTS_CA_BUNDLE": "/r.pem"}).variables == {"SSL_CERT_FILE": "/r.pem"}
    assert read_index_settings({**NONE, "REQUESTS_CA_BUNDLE": "/r", "PIP_CERT": "/p"}).variables == {
        "SSL_CERT_FILE": "/p"
    }
    monkeypatch.setattr(pip_settings, "has_certificates", lambda: True)
    assert read_index_settings(NONE).variables == {"UV_SYSTEM_CERTS": "true"}
    assert read_index_settings({**NONE, "SSL_CERT_FILE": "/own.pem"}).variables == {"SSL_CERT_FILE": "/own.pem"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.slow
def test_files_are_read_as_pip_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held against pip itself, which says what it would do."""
    monkeypatch.setattr(pip_settings, "_MACHINES_FILE", tmp_path / "none")
    home, machine, own = tmp_path / "home", tmp_path / "xdg", tmp_path / "own.conf"
    write(machine / "pip" / "pip.conf", "[global]\nindex-url = https://machine.example\ntimeout = 5\n")
    write(home / ".pip" / "pip.conf", "[global]\nindex_url = https://old.example\n[list]\ncert = /no\n")
    write(
        home / ".config" / "pip" / "pip.conf",
        "[install]\nfind-links =\n    /one\n    /two\n[global]\nproxy = http://p\n",
    )
    write(own, "[global]\nindex-url = https://own.example\nfind-links = /never\n")
    env = {"HOME": str(home), "XDG_CONFIG_DIRS": str(machine), "PIP_TIMEOUT": "9"}
    proxy = {"HTTP_PROXY": "http://p", "HTTPS_PROXY": "http://p", "UV_HTTP_TIMEOUT": "9"}
    wanted = {"UV_DEFAULT_INDEX": "https://old.example", "UV_FIND_LINKS": "/one,/two", **proxy}
    assert read_index_settings(env).variables == wanted
    listed = pip_config(env)
    assert not listed or "global.index-url='https://old.example'" in listed
    assert not listed or "install.find-links='\\n/one\\n/two'" in listed
    del env["XDG_CONFIG_DIRS"]
    assert Path("/etc/xdg/pip/pip.conf") in list(pip_settings._pip_files(env))
    env |= {"PIP_CONFIG_FILE": str(own), "XDG_CONFIG_DIRS": str(machine)}
    wanted = {"UV_DEFAULT_INDEX": "https://own.example", "UV_FIND_LINKS": "/never", "UV_HTTP_TIMEOUT": "9"}
    assert read_index_settings(env).variables == wanted, "in place of the user's"
    listed = pip_config(env)
    assert not listed or "global.index-url='https://own.example'" in listed
    assert "/one" not in listed
    write(own, "nonsense")
    assert read_index_settings(env).variables["UV_DEFAULT_INDEX"] == "https://machine.example", (
        "a damaged file says nothing"
    )


def pip_config(env: dict[str, str]) -> str:
    """What pip says of its settings; nothing where there is no pip."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout
