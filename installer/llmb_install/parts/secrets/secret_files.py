"""The artefacts that keep secrets: a token's file, Enroot's credentials, and that only their owner reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmb_common.command.words import Secret
from llmb_install.parts.secrets import credentials
from llmb_install.parts.secrets.credentials import Secrets
from llmb_install.working.artefact import Artefact
from llmb_install.working.reporter import Reporter


def secret_files(install: Path, secrets: Secrets, *, uses_images: bool) -> Iterator[Artefact]:
    """The artefacts for ``secrets``, and always the check that no file of ours with a secret is open to others."""
    if secrets.hf_token and "hf_token" in secrets.keep:
        yield HuggingFaceToken(install, secrets.hf_token)
    if secrets.ngc_api_key and uses_images:
        if "ngc_api_key" in secrets.keep:
            yield RegistryKey(install, secrets.ngc_api_key)
        else:
            yield RegistryReference(install, secrets.ngc_variable)
    yield ClosedFiles(install)


@dataclass(frozen=True)
class HuggingFaceToken(Artefact):
    """The token, in a file of the installation."""

    install: Path
    token: Secret

    id = "hugging-face-token"

    def is_complete(self) -> bool:
        return credentials.hf_token_is_stored(self.token, self.install)

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        return credentials.store_hf_token(self.token, self.install)

    def verify(self) -> str | None:
        return None if self.is_complete() else f"{credentials.hf_token_path(self.install)} is missing or changed"

    def show(self) -> str:
        return f"write {credentials.hf_token_path(self.install)} (mode 0600)"


@dataclass(frozen=True)
class RegistryKey(Artefact):
    """The NGC key, in Enroot's own file: it was given to LLMB."""

    install: Path
    key: Secret

    id = credentials.REGISTRY

    def is_complete(self) -> bool:
        return credentials.ngc_key_is_stored(self.key, os.environ)

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        return credentials.store_ngc_key(self.key, os.environ, self.install)

    def verify(self) -> str | None:
        path = credentials.enroot_credentials_path(os.environ)
        return None if self.is_complete() else f"{path} does not have the NGC key"

    def show(self) -> str:
        return f"write {credentials.enroot_credentials_path(os.environ)} (mode 0600)"


@dataclass(frozen=True)
class RegistryReference(Artefact):
    """The name of the variable that has the NGC key, in Enroot's own file: the key itself is stored nowhere."""

    install: Path
    variable: str

    id = credentials.REGISTRY

    def is_complete(self) -> bool:
        return credentials.has_ngc_credentials(os.environ)

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        return credentials.refer_to_ngc_key(self.variable, os.environ, self.install)

    def verify(self) -> str | None:
        path = credentials.enroot_credentials_path(os.environ)
        return None if self.is_complete() else f"{path} does not say where the NGC key is"

    def show(self) -> str:
        return f"write {credentials.enroot_credentials_path(os.environ)}: the key is in {self.variable}"


@dataclass(frozen=True)
class ClosedFiles(Artefact):
    """The check that nobody else can read the files with secrets."""

    install: Path

    id = "secret-files"

    def is_complete(self) -> bool:
        return self.verify() is None

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        return credentials.close_secret_files(self.install, os.environ)

    def verify(self) -> str | None:
        loose = credentials.loose_secret_files(self.install, os.environ)
        return f"other users can read {', '.join(map(str, loose))}" if loose else None

    def show(self) -> str:
        return "make the files with secrets readable by you only"
