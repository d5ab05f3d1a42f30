"""The steps that keep secrets: a token's file, Enroot's credentials, and that only their owner reads them."""

from __future__ import annotations

import os
from pathlib import Path

from llmb_common.secrets import Secret
from llmb_install.answers.answers import Secrets
from llmb_install.parts import credentials
from llmb_install.working.steps import Step


def secret_steps(install: Path, secrets: Secrets, *, uses_images: bool) -> list[Step]:
    """What ``secrets`` ask for, and in any case that no file of ours with a secret is open to others."""
    steps = []
    if secrets.hf_token and "hf_token" in secrets.keep:
        steps.append(_token_step(install, secrets.hf_token))
    if secrets.ngc_api_key and uses_images:
        steps.append(_registry_step(install, secrets.ngc_api_key, secrets))

    def verify() -> str | None:
        loose = credentials.loose_secret_files(install, os.environ)
        return f"others can read {', '.join(map(str, loose))}" if loose else None

    closed = Step(
        "secret-files",
        lambda: verify() is None,
        lambda reporter: credentials.close_secret_files(install, os.environ),
        verify,
        shows="let only you read the files that hold secrets",
    )
    return [*steps, closed]


def _token_step(install: Path, token: Secret) -> Step:
    return Step(
        "hugging-face-token",
        lambda: credentials.hf_token_is_stored(token, install),
        lambda reporter: credentials.store_hf_token(token, install),
        lambda: None,
        shows=f"write {credentials.hf_token_path(install)} (mode 0600)",
    )


def _registry_step(install: Path, key: Secret, secrets: Secrets) -> Step:
    """Enroot's credentials: the key itself where it was given, else the variable that has it."""
    path = credentials.enroot_credentials_path(os.environ)
    if "ngc_api_key" in secrets.keep:
        return Step(
            "registry-credentials",
            lambda: credentials.ngc_key_is_stored(key, os.environ),
            lambda reporter: credentials.store_ngc_key(key, os.environ, install),
            lambda: None,
            shows=f"write {path} (mode 0600)",
        )
    return Step(
        "registry-credentials",
        lambda: credentials.has_ngc_credentials(os.environ),
        lambda reporter: credentials.refer_to_ngc_key(secrets.ngc_variable, os.environ, install),
        lambda: None,
        shows=f"write {path}: the key is in {secrets.ngc_variable}",
    )
