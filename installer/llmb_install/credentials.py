"""Secrets on disk: in Enroot's own credentials file and in one file of the installation, both mode 0600."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from llmb_common.errors import RequestError
from llmb_common.files import write_atomic
from llmb_common.secrets import Secret

NGC_HOSTS = ("nvcr.io", "authn.nvidia.com")
"""NGC hands out its tokens on another host than the images: Enroot needs the key for both."""


def enroot_credentials_path(env: Mapping[str, str]) -> Path:
    """Where Enroot looks for credentials."""
    if folder := env.get("ENROOT_CONFIG_PATH"):
        return Path(folder) / ".credentials"
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or Path.home()) / ".config")
    return Path(base) / "enroot" / ".credentials"


def store_ngc_key(key: Secret, env: Mapping[str, str]) -> bool:
    """Put ``key`` into Enroot's credentials for both NGC hosts; other lines stay. Returns whether it was written."""
    path = enroot_credentials_path(env)
    text = _with_ngc_key(path, key)
    if _holds_privately(path, text):
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, text, mode=0o600)
    return True


def ngc_key_is_stored(key: Secret, env: Mapping[str, str]) -> bool:
    path = enroot_credentials_path(env)
    return _holds_privately(path, _with_ngc_key(path, key))


def _with_ngc_key(path: Path, key: Secret) -> str:
    """The credentials file's content with ``key`` for both NGC hosts."""
    value = key.reveal()
    if not value or value.startswith("$") or any(c.isspace() for c in value):
        raise RequestError(
            "this is no NGC API key: it is empty, has a space in it or begins with $ (which Enroot would evaluate)",
            remedy="copy the key again from https://org.ngc.nvidia.com/setup/api-keys",
        )
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    kept = [line for line in old.splitlines() if not _is_for_ngc(line)]
    lines = [*kept, *(f"machine {host} login $oauthtoken password {value}" for host in NGC_HOSTS)]
    return "\n".join(lines) + "\n"


def _holds_privately(path: Path, text: str) -> bool:
    """Whether the file has this content and is readable by its owner alone."""
    private = path.is_file() and path.stat().st_mode & 0o777 == 0o600
    return private and path.read_text(encoding="utf-8") == text


def _is_for_ngc(line: str) -> bool:
    words = line.split()
    return len(words) >= 2 and words[0] == "machine" and words[1] in NGC_HOSTS


def hf_token_path(install: Path) -> Path:
    return install / ".llmb" / "hf_token"


def store_hf_token(token: Secret, install: Path) -> bool:
    """Keep the token for later downloads of this installation. Returns whether it was written."""
    if hf_token_is_stored(token, install):
        return False
    path = hf_token_path(install)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, token.reveal() + "\n", mode=0o600)
    return True


def hf_token_is_stored(token: Secret, install: Path) -> bool:
    return _holds_privately(hf_token_path(install), token.reveal() + "\n")


def stored_hf_token(install: Path) -> Secret | None:
    path = hf_token_path(install)
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    return Secret(text) if text else None


def loose_secret_files(install: Path, env: Mapping[str, str]) -> list[Path]:
    """Files with secrets that others can read."""
    paths = (hf_token_path(install), enroot_credentials_path(env))
    return [path for path in paths if path.is_file() and path.stat().st_mode & 0o077]


def from_environment() -> dict[str, Secret]:
    """Secrets that the caller's environment offers, by answer name."""
    names = {"hf_token": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), "ngc_api_key": ("NGC_API_KEY", "NGC_CLI_API_KEY")}
    found: dict[str, Secret] = {}
    for field, variables in names.items():
        value = next((os.environ[name] for name in variables if os.environ.get(name)), "")
        if value:
            found[field] = Secret(value)
    return found
