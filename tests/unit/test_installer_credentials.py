"""Keys and tokens on disk: what Enroot finds during an import, who may read it, what is taken back in the end."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.base.words import Secret
from llmb_install.parts.credentials import (
    KEPT,
    Secrets,
    configuration,
    from_environment,
    hf_token_file,
    key_path,
    private_files,
    registry_key,
    remove_ngc_key,
    stored_hf_token,
)
from llmb_install.parts.netrc import effective_entries, parse_entries, with_lines, without_hosts
from llmb_install.working.reporter import Reporter
from support.texts import Texts

KEY = Secret("nvapi-abc")
LINES = """machine nvcr.io login $oauthtoken password nvapi-abc
machine authn.nvidia.com login $oauthtoken password nvapi-abc
"""
SOMEBODYS = "# mine\nmachine registry.site login me password p\n"


@pytest.fixture
def install(tmp_path: Path) -> Path:
    folder = tmp_path / "install"
    folder.mkdir()
    return folder


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    own = {"HOME": str(tmp_path / "home"), "ENROOT_CONFIG_PATH": str(tmp_path / "enroot")}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return own


@pytest.fixture
def file(env: dict[str, str]) -> Path:
    return Path(env["ENROOT_CONFIG_PATH"]) / ".credentials"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def of_release_0_2(install: Path, file: Path, text: str = LINES) -> None:
    """What release 0.2 wrote: the key in the user's file, its hash in the installation."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o600)
    (install / ".llmb").mkdir(exist_ok=True)
    note = {"schema": 1, "path": str(file), "sha256": hashlib.sha256(b"nvapi-abc").hexdigest()}
    (install / ".llmb" / "credentials.json").write_text(json.dumps(note))


def seen_by_enroot(host: str, install: Path, **env: str) -> str | None:
    """The credentials that an import from ``host`` gets in a configuration of its own; None where it gets none."""
    with configuration(host, key_path(install), {**os.environ, **env}, install) as variables:
        if not variables:
            return None
        folder = Path(variables["ENROOT_CONFIG_PATH"])
        assert (mode(folder), mode(folder / ".credentials")) == (0o700, 0o600)
        assert folder.is_relative_to(install), "compute nodes see it"
        text = (folder / ".credentials").read_bytes().decode(errors="surrogateescape")
    assert not folder.exists()
    return text


def test_a_key_is_stored_for_both_hosts_and_for_its_owner_alone(install: Path, env: dict[str, str], file: Path) -> None:
    umask = os.umask(0)
    try:
        assert registry_key(install, KEY).ensure(Reporter(None))
    finally:
        os.umask(umask)
    kept = key_path(install)
    assert kept.read_text() == LINES
    assert (mode(kept), mode(kept.parent)) == (0o600, 0o700)
    assert registry_key(install, KEY).is_complete()
    assert not registry_key(install, Secret("nvapi-other")).is_complete()
    assert not registry_key(install, KEY).ensure(Reporter(None)), "a second time there is nothing to do"
    assert not file.exists(), "the user's own file is not edited"


def test_an_import_from_ngc_has_the_key_that_was_given_and_the_users_other_entries(install, env, file):
    file.parent.mkdir()
    theirs = SOMEBODYS + "machine nvcr.io login $oauthtoken password old\n"
    file.write_text(theirs + "default login x password y\n")
    assert seen_by_enroot("nvcr.io", install) is None, "no key was given: Enroot has its own"
    registry_key(install, KEY).ensure(Reporter(None))
    assert seen_by_enroot("nvcr.io", install) == SOMEBODYS + LINES + "default login x password y\n"
    assert seen_by_enroot("nvcr.io:443", install, NGC_API_KEY="other") == seen_by_enroot("nvcr.io", install)
    assert seen_by_enroot("registry.site:5000", install) is None, "another host does not get it"
    assert file.read_text() == theirs + "default login x password y\n"


def test_a_key_in_the_environment_is_named_where_enroot_has_none(install, env, file):
    named = LINES.replace("nvapi-abc", "$NGC_API_KEY")
    assert seen_by_enroot("nvcr.io", install) is None
    assert seen_by_enroot("nvcr.io", install, NGC_API_KEY="k", NGC_CLI_API_KEY="l") == named
    assert seen_by_enroot("nvcr.io", install, NGC_CLI_API_KEY="l") == named.replace("NGC_API", "NGC_CLI_API")
    assert seen_by_enroot("registry.site", install, NGC_API_KEY="k") is None
    theirs = "machine nvcr.io login $oauthtoken password theirs\n"
    file.parent.mkdir()
    file.write_text(theirs)
    assert seen_by_enroot("nvcr.io", install, NGC_API_KEY="k") == theirs + named.splitlines(True)[1]
    file.write_text(LINES)
    assert seen_by_enroot("nvcr.io", install, NGC_API_KEY="k") is None
    file.write_bytes(b"# m\xfcnchen\nmachine old.site login a password p\xe4ss\n")
    assert seen_by_enroot("nvcr.io", install, NGC_API_KEY="k").encode(errors="surrogateescape") == (
        file.read_bytes() + named.encode()
    )


@pytest.mark.parametrize("key", ["", " ", "nvapi abc", "nvapi-abc\n", "$NGC_API_KEY", "\tnvapi"])
def test_what_enroot_would_misread_is_refused_before_anything_is_written(install, env, file, key, texts: Texts):
    with texts.raises(RequestError):
        registry_key(install, Secret(key)).ensure(Reporter(None))
    assert list(install.iterdir()) == []


@pytest.mark.parametrize("wide", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_counts_as_not_stored_and_is_closed(install, env, file, wide, texts: Texts):
    registry_key(install, KEY).ensure(Reporter(None))
    hf_token_file(install, Secret("hf_abc")).ensure(Reporter(None))
    of_release_0_2(install, file)
    paths = [install / ".llmb" / "hf_token", key_path(install), file]
    assert private_files(install).verify() is None
    for path in paths:
        path.chmod(wide)
    assert not registry_key(install, KEY).is_complete()
    assert not hf_token_file(install, Secret("hf_abc")).is_complete()
    texts(private_files(install).verify())
    private_files(install).ensure(Reporter(None))
    assert [mode(path) for path in paths] == [0o600] * 3
    assert private_files(install).verify() is None
    assert registry_key(install, KEY).is_complete()


def test_a_file_that_no_release_wrote_is_not_the_installations_affair(install, env, file):
    file.parent.mkdir()
    file.write_text(SOMEBODYS)
    file.chmod(0o644)
    registry_key(install, KEY).ensure(Reporter(None))
    assert private_files(install).verify() is None
    assert mode(file) == 0o644
    assert remove_ngc_key(install) is None
    assert file.read_text() == SOMEBODYS


def test_what_release_0_2_has_put_into_the_users_file_is_taken_back(install, env, file):
    of_release_0_2(install, file)
    assert remove_ngc_key(install) == file
    assert not file.exists(), "nothing else was in it"
    assert remove_ngc_key(install) is None


def test_and_only_that(install: Path, env: dict[str, str], file: Path) -> None:
    latin = b"# m\xfcnchen\nmachine old.site login a password p\xe4ss\n"
    of_release_0_2(install, file)
    changed = LINES.replace("nvcr.io login $oauthtoken password nvapi-abc", "nvcr.io login a password b")
    file.write_bytes(latin + changed.encode())
    assert remove_ngc_key(install) == file
    assert file.read_bytes() == latin + b"machine nvcr.io login a password b\n"
    assert mode(file) == 0o600
    assert remove_ngc_key(install) is None


def test_new_secrets_win_and_old_ones_stay() -> None:
    old = Secrets(hf_token=Secret("a"), ngc_api_key=Secret("b"), keep=frozenset({"hf_token"}))
    assert old.updated(Secrets()) == old
    assert Secrets().updated(old) == old
    both = old.updated(Secrets(hf_token=Secret("c"), ngc_api_key=Secret("d"), keep=frozenset({"ngc_api_key"})))
    assert (both.hf_token.reveal(), both.ngc_api_key.reveal()) == ("c", "d")
    assert both.keep == {"hf_token", "ngc_api_key"}


@pytest.mark.parametrize(
    ("variables", "token", "key", "keep"),
    [
        ({}, None, None, set()),
        ({"HF_TOKEN": "a", "HUGGING_FACE_HUB_TOKEN": "b"}, "a", None, set()),
        ({"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "b"}, "b", None, set()),
        ({"NGC_API_KEY": "k", "NGC_CLI_API_KEY": "l"}, None, "k", set()),
        ({"NGC_CLI_API_KEY": "l", KEPT: "NGC_API_KEY"}, None, "l", set()),
        ({"HF_TOKEN": "a", "NGC_API_KEY": "k", KEPT: "HF_TOKEN"}, "a", "k", {"hf_token"}),
    ],
)
def test_secrets_of_the_environment_are_kept_only_where_they_came_as_flags(
    variables: dict[str, str],
    token: str | None,
    key: str | None,
    keep: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "NGC_API_KEY", "NGC_CLI_API_KEY", KEPT):
        monkeypatch.setenv(variable, variables.get(variable, ""))
    found = from_environment()
    assert (found.hf_token and found.hf_token.reveal()) == token
    assert (found.ngc_api_key and found.ngc_api_key.reveal()) == key
    assert found.keep == keep


def test_a_token_is_kept_for_its_owner_alone(install: Path) -> None:
    assert stored_hf_token(install) is None
    umask = os.umask(0)
    try:
        assert hf_token_file(install, Secret("hf_abc")).ensure(Reporter(None))
    finally:
        os.umask(umask)
    assert mode(install / ".llmb" / "hf_token") == 0o600
    assert not hf_token_file(install, Secret("hf_abc")).ensure(Reporter(None))
    kept = stored_hf_token(install)
    assert kept.reveal() == "hf_abc"
    assert hf_token_file(install, Secret("hf_new")).ensure(Reporter(None))
    assert hf_token_file(install, Secret("hf_new")).is_complete()
    assert not hf_token_file(install, Secret("hf_abc")).is_complete()
    (install / ".llmb" / "hf_token").write_text("\n")
    assert stored_hf_token(install) is None


def test_a_token_that_is_not_utf_8_is_not_the_one(install: Path) -> None:
    (install / ".llmb").mkdir()
    (install / ".llmb" / "hf_token").write_bytes(b"hf_\xff\n")
    (install / ".llmb" / "hf_token").chmod(0o600)
    assert not hf_token_file(install, Secret("hf_x")).is_complete()


# NGC's credentials are replaced as a whole, and no others are touched.


NGC = ("nvcr.io",)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("machine nvcr.io login a password b\n", ""),
        # Words on several lines: half an entry would give its key to the host before it.
        (
            "machine one.example\n  login ann\n  password x\nmachine nvcr.io\n  login $oauthtoken\n  password old\n"
            "machine two.example\n  login bob\n  password y\n",
            "machine one.example\n  login ann\n  password x\nmachine two.example\n  login bob\n  password y\n",
        ),
        ("machine a login b password c machine nvcr.io login d password e\n", "machine a login b password c\n"),
        ("# one\nmachine nvcr.io login a password b\n# two\ndefault login c\n", "# one\n# two\ndefault login c\n"),
        # A value may look like a keyword; a macro ends with an empty line.
        ("machine a login machine password nvcr.io\n", "machine a login machine password nvcr.io\n"),
        ("macdef init\nmachine nvcr.io\n\nmachine nvcr.io password x\n", "macdef init\nmachine nvcr.io\n\n"),
    ],
)  # fmt: skip
def test_an_entry_is_removed_whole_and_no_other_with_it(text: str, kept: str) -> None:
    assert without_hosts(text, NGC) == kept


@pytest.mark.parametrize("word", ["login", "account", "password"])
def test_a_value_may_look_like_a_keyword(word: str) -> None:
    (entry,) = parse_entries(f"machine a {word} machine password x\n")
    assert (entry.host, entry.password) == ("a", "x")


def test_hosts_may_look_like_keywords_and_macros_may_have_no_end() -> None:
    text = "machine default password p machine machine password q default password r macdef init\nmachine nvcr.io\n"
    assert [(entry.host, entry.password) for entry in parse_entries(text)] == [
        ("default", "p"),
        ("machine", "q"),
        ("", "r"),
    ]


def test_passwords_are_found_wherever_they_stand() -> None:
    text = "machine a\nlogin x\n\tpassword p\ndefault login y password q\n"
    assert [(entry.host, entry.password) for entry in parse_entries(text)] == [("a", "p"), ("", "q")]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("machine a login b password c", None),
        ("machine a login b\ndefault login c\nmachine d login e\n", 18),
        ("# last\ndefault\n  login c\n", 7),
    ],
)
def test_new_entries_come_before_the_default_which_ends_the_search(text: str, position: int | None) -> None:
    new = "machine nvcr.io login x password y\n"
    found = with_lines(text, new)
    assert found == (f"{text}\n{new}" if position is None else text[:position] + new + text[position:])
    assert [entry.password for entry in effective_entries(found) if entry.host == "nvcr.io"] == ["y"]


def test_what_is_behind_the_default_is_not_found() -> None:
    text = "machine a password b\ndefault password c\nmachine nvcr.io password d\n"
    assert [entry.host for entry in effective_entries(text)] == ["a"]
