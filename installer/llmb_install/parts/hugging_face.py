"""Hugging Face, optional: tokenizer and configuration files. The benchmarks need neither them nor a token.

The packages that fetch them are an environment of their own, made when they are asked for; its packages are imported
here, behind the tool's own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.printable import size
from llmb_common.base.words import Secret
from llmb_install.parts.engine import HUB
from llmb_install.parts.environment import Environment
from llmb_install.working.artefact import Artefact, read_receipt
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import write_record

PATTERNS = ("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "*.tiktoken")
"""What is fetched: never weights."""

_WHO_AM_I = "api/whoami-v2"
_SECONDS = 5
_ATTEMPTS = 6


def check_token(token: Secret) -> str:
    """Return what is wrong with a Hugging Face token, as a sentence; empty: nothing, as far as is known.

    The sentence has no full stop. A text with white space or a letter outside ASCII is wrong without asking. Else
    Hugging Face is asked, and has five seconds to answer. Empty also where it cannot be reached, answers with another
    status than 401, or the package that asks it is not installed yet. ``ModelFiles`` asks again when it gets no
    files.
    """
    value = token.reveal()
    if not value.isascii() or any(c.isspace() for c in value):
        return "this is not a token: it contains a space or a non-ASCII character"
    if importlib.util.find_spec("requests") is None:
        return ""
    import requests

    address = f"{_hub_address()}/{_WHO_AM_I}"
    try:
        answer = requests.get(address, headers={"Authorization": f"Bearer {value}"}, timeout=_SECONDS)
    except requests.RequestException:
        return ""
    return "Hugging Face rejects the token; copy it again or leave it out" if answer.status_code == 401 else ""


class ModelFiles(Artefact):
    """The tokenizer and configuration files of one model on Hugging Face, as a part of an installation.

    ``Installation.model_files`` makes them. They are in ``hugging_face`` of the installation ``install``, a cache
    folder of huggingface_hub. ``source`` is ``owner/name@commit``: what its owner changes later is not what the
    recipe was tested with. ``hub``: the environment that fetches them, which must be there for ``ensure``. ``token``:
    the one to fetch them with; None: without any.

    ``ensure`` downloads them unless they are complete, or with ``anew`` in any case, and returns whether it did; it
    raises EnvironmentLacks where they cannot be had, RecordError where the receipt cannot be written.
    ``is_complete`` compares their sizes with a receipt, and ``verify`` also looks for them as jobs do: it returns
    what is wrong as a sentence, or None. ``ensure`` and ``verify`` raise OSError where the cache cannot be used.
    The property ``id`` is ``hugging-face OWNER/NAME``, ``show`` returns a line for a dry run, whether the files are
    there or not. The attributes ``repository`` (``owner/name``), ``revision`` (the commit) and ``cache`` (the
    folder) say what and where.
    """

    needs = (HUB,)

    def __init__(self, source: str, install: Path, hub: Environment, token: Secret | None = None) -> None:
        repository, _, self.revision = source.partition("@")
        self.repository = repository
        self.cache = install / "hugging_face"
        self._install = install
        self._hub = hub
        self._token = token
        self._receipt = install / ".llmb" / "receipts" / f"hugging_face+{repository.replace('/', '+')}.json"

    @property
    def id(self) -> str:
        """The name of the part in messages and in ``--json``: ``hugging-face OWNER/NAME``."""
        return f"hugging-face {self.repository}"

    download = 20_000_000
    disk = 20_000_000

    def show(self) -> str:
        """Return the line of a dry run, whether the files are there or not; nothing is fetched.

        It is ``fetch tokenizer and configuration of OWNER/NAME to FOLDER``, FOLDER being the cache.
        """
        return f"fetch tokenizer and configuration of {self.repository} to {self.cache}"

    def is_complete(self) -> bool:
        """Return whether every file that the model's receipt names is there with its size.

        The content is not looked at. False without a receipt for this commit, or with one that names no file.
        """
        receipt = read_receipt(self._receipt)
        if receipt is None:
            return False
        if (receipt.get("repository"), receipt.get("revision")) != (self.repository, self.revision):
            return False
        files: dict[str, int] = receipt.get("files", {})
        found = [(self.cache / name, bytes_) for name, bytes_ in files.items()]
        return bool(found) and all(path.is_file() and path.stat().st_size == bytes_ for path, bytes_ in found)

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Download the model's files unless they are there, or ``anew``; return whether it did.

        They are then looked for without the network, as jobs do, and a receipt with their sizes is written. The
        packages of the environment that fetches them are imported into this process. ``reporter`` shows the step.
        After an error what has come stays in the cache, without a receipt.

        Raises:
            EnvironmentLacks: the files are not available; where access must be asked for, the remedy names the page
            RecordError: the receipt cannot be written
            OSError: its folder cannot be made, or the cache not be looked at
        """
        if not anew and self.is_complete():
            return False
        _import_from(self._hub)
        with reporter.step(f"files of {self.repository}") as step:
            snapshot = self._download(anew)
            self._check_offline()
            found = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
            files = {str(path.relative_to(self.cache)): path.stat().st_size for path in found}
            if not files:
                raise EnvironmentLacks(
                    f"{self.repository} on Hugging Face has no tokenizer or configuration file",
                    remedy="check hugging_face in recipe.yaml",
                )
            self._receipt.parent.mkdir(parents=True, exist_ok=True)
            receipt = {"schema": 1, "repository": self.repository, "revision": self.revision, "files": files}
            write_record(self._install, self._receipt, receipt)
            step.update(f"{len(files)} files, {size(sum(files.values()))}")
        return True

    def verify(self) -> str | None:
        """Return what is wrong with the model's files, by their sizes and a look without the network; None: nothing.

        The result is a sentence without a full stop. The environment that fetches them is needed for the look, and its
        packages are imported into this process; that it is missing is returned, too.

        Raises:
            OSError: a lock file cannot be read, or the cache not be looked at
        """
        if not self.is_complete():
            return f"files of {self.repository} are missing or changed in {self.cache}"
        if not self._hub.is_complete():
            return f"what looks for files of {self.repository} is missing"
        _import_from(self._hub)
        try:
            self._check_offline()
        except EnvironmentLacks as error:
            return error.message
        return None

    def _check_offline(self) -> None:
        """Raise unless the model's files are all found in the cache without the network, as a job looks for them.

        huggingface_hub must be importable, by ``_import_from``.

        Raises:
            EnvironmentLacks: the files are not all there
            OSError: the cache cannot be looked at
        """
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            self._snapshot(local_files_only=True)
        except LocalEntryNotFoundError as error:
            raise EnvironmentLacks(
                f"files of {self.repository} are not usable without network",
                remedy="run llmb-install update, which fetches them again",
            ) from error

    def _snapshot(self, **more: Any) -> Path:
        """Look for the model's files in the cache, or download them, and return their folder.

        ``more`` are further keyword arguments of ``snapshot_download`` in huggingface_hub, which must be importable;
        with ``local_files_only`` nothing is downloaded. Its errors pass, all of them OSErrors or of huggingface_hub.

        Raises:
            OSError: the files cannot be had or written
        """
        from huggingface_hub import snapshot_download

        more |= {"revision": self.revision, "cache_dir": self.cache, "allow_patterns": list(PATTERNS)}
        return Path(str(snapshot_download(self.repository, **more)))

    def _download(self, anew: bool) -> Path:
        """Download the model's files, in up to six attempts within two minutes, and return their folder.

        Another attempt is made only where the error says that it may help. ``anew``: also those that are in the
        cache. The token is the part's; without one, none is sent, not even one that the user has stored elsewhere.
        huggingface_hub must be importable, and its progress bars are turned off in this process.

        Raises:
            EnvironmentLacks: the files cannot be had
        """
        import stamina
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        token = self._token
        page = f"{_hub_address()}/{self.repository}"
        attempts = stamina.retry_context(on=_is_passing, attempts=_ATTEMPTS, timeout=120, wait_initial=1, wait_max=30)
        try:
            for attempt in attempts:
                with attempt:
                    # False, not None, for which huggingface_hub would send a token that the user has stored elsewhere.
                    return self._snapshot(token=token.reveal() if token else False, force_download=anew)
        except GatedRepoError as error:
            raise EnvironmentLacks(
                f"{self.repository} is gated on Hugging Face, and this token has no access",
                remedy=f"request access on {page} (it may take a day), set HF_TOKEN, then run the same command again",
            ) from error
        except (HfHubHTTPError, OSError) as error:
            raise self._download_error(error, page) from error
        raise AssertionError("the last attempt returns or raises")

    def _download_error(self, error: Exception, page: str) -> EnvironmentLacks:
        """Return the error that says why the model's files did not come, and what to do; not raised here.

        Asks Hugging Face whether it accepts the token. ``error`` is that of the last attempt. ``page``: the address
        of the repository. huggingface_hub must be importable.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        token = self._token
        if token and (problem := check_token(token)):
            return EnvironmentLacks(
                f"files of {self.repository} could not be fetched: {problem}",
                remedy="set HF_TOKEN to a valid one, then run the same command again",
            )
        if isinstance(error, RepositoryNotFoundError):
            return EnvironmentLacks(
                f"Hugging Face does not show {self.repository} {'to this token' if token else 'without a token'}",
                remedy=f"set HF_TOKEN to a token that can read {page}",
            )
        return EnvironmentLacks(
            f"files of {self.repository} could not be fetched: {str(error).splitlines()[0]}",
            remedy="check the network and https_proxy, then run the same command again; or leave "
            "--hugging-face out: the benchmarks do not need these files",
        )


def _hub_address() -> str:
    """Return the address of Hugging Face, or of the site's mirror: ``HF_ENDPOINT`` as it is set, even if empty.

    Without a slash at the end, unless the variable has one.
    """
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def _import_from(environment: Environment) -> None:
    """Let this process import the packages of ``environment`` from now on, behind those of its own environment.

    This appends to ``sys.path``; nothing happens where the environment does not exist.

    Raises:
        OSError: the lock file cannot be read
    """
    # Behind the tool's own packages, which have to stay those of its lock.
    for folder in environment.folder.glob("lib/python3.*/site-packages"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _is_passing(error: Exception) -> bool:
    """Return whether a failed download may work later, by its HTTP status: 429, or a server error from 500 on.

    The errors that ``error`` was raised from, or during whose handling it was raised, count, too.
    """
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(getattr(seen, "response", None), "status_code", 0)
        if status == 429 or status >= 500:
            return True
        # huggingface_hub wraps the answer of the server in an error about its cache.
        seen = seen.__cause__ or seen.__context__
    return False
