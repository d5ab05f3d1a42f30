"""Files appear complete and with the right mode, or not at all."""

from __future__ import annotations

import json
import os
import pickle
import socket
from pathlib import Path

import pytest

from llmb_common.errors import RecordError
from llmb_common.files import read_json, read_some, sha256_of_tree, write_atomic, write_json, write_output
from llmb_common.request.variables import VARIABLES
from llmb_common.secrets import Secret, is_secret_name


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_mode_is_as_requested_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "f", "x", mode=0o600)
        write_atomic(tmp_path / "g", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "g").stat().st_mode & 0o777 == 0o644


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    with pytest.raises(RecordError, match="cannot write"):
        write_atomic(target / "below-a-file", "new")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(target, {"loss": float("nan")})
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1')
    with pytest.raises(RecordError, match=r"run\.json is not valid JSON"):
        read_json(tmp_path / "run.json")


def test_the_hash_of_a_tree_sees_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    one = sha256_of_tree(tmp_path, "**/*.py")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.py").write_text("ignored")
    assert sha256_of_tree(tmp_path, "**/*.py") == one
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert sha256_of_tree(tmp_path, "**/*.py") != one


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("hf_canary")
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>20}", f"{[secret]}", f"{secret!r}"]
    assert not any("canary" in text for text in shown)
    assert secret.reveal() == "hf_canary"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)


SECRETS = """
HF_TOKEN HUGGING_FACE_HUB_TOKEN NGC_API_KEY NGC_APIKEY NGC_KEY WANDB_KEY MY_API_KEY AWS_SECRET_ACCESS_KEY PRIVATE_KEY
SSH_KEY_FILE DB_PASSWORD DB_PASS MYSQL_PWD PGPASSWORD SSHPASS GITHUB_PAT GITLAB_PAT SLURM_JWT SENTRY_DSN BASIC_AUTH
GOOGLE_APPLICATION_CREDENTIALS DOCKER_AUTH_CONFIG GITHUBTOKEN githubToken apiKey API_TOKENS SLACK_WEBHOOK_URL
"""

SETTINGS = """
TOKENIZERS_PARALLELISM KEYBOARD PASSTHROUGH NVTE_PASS_THROUGH NCCL_IB_PKEY UCX_IB_PKEY MONKEY KEYRING_BACKEND COMPASS
MAX_TOKENS NUM_TOKENS TOKENS_PER_STEP MOE_TOKEN_DISPATCHER_TYPE PAD_TOKEN EOS_TOKEN_ID PATH PWD OLDPWD OLD_PWD PATTERN
NCCL_DEBUG CUDA_CACHE_PATH PUBLIC_KEY SORT_KEY SSH_AUTH_SOCK FIRST_PASS NUM_QUERY_KEY BYPASS AUTHOR SECRETARY XAUTHORITY
"""


@pytest.mark.parametrize("name", SECRETS.split())
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", SETTINGS.split())
def test_names_of_settings_are_not_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_no_variable_of_ours_is_taken_for_a_secret() -> None:
    assert [name for name in VARIABLES if is_secret_name(name)] == ["HF_TOKEN"]


def test_an_output_goes_into_a_fifo_and_does_not_replace_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_output(fifo, "report\n")
    assert os.read(reader, 100) == b"report\n"
    os.close(reader)
    assert fifo.is_fifo()


def test_an_output_that_nobody_takes_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(taken))
        with pytest.raises(RecordError) as caught:
            write_output(taken, "x")
    assert str(caught.value) == f"cannot write {taken}: No such device or address\n  -> name another file"
    assert taken.is_socket()


def test_a_fifo_without_another_end_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(RecordError, match=r"cannot write .*: No such device or address"):
        write_output(fifo, "report")
    assert read_some(fifo, 9) == b""
    assert read_some(Path("/dev/zero"), 9) == bytes(9)
    both_ends = os.open(fifo, os.O_RDWR)
    os.write(both_ends, b"tasks")
    assert read_some(fifo, 5) == b"tasks"
    os.close(both_ends)


def test_an_output_replaces_a_file_and_is_refused_where_a_folder_is(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("old")
    write_output(tmp_path / "report", "new")
    assert (tmp_path / "report").read_text() == "new"
    for folder in (tmp_path, Path("/"), Path()):
        with pytest.raises(RecordError, match=r"cannot write .*: it is a folder"):
            write_output(folder, "new")


def test_a_name_that_is_not_utf8_is_spelt_out_in_files(tmp_path: Path) -> None:
    write_output(tmp_path / "report", "log-\udcff.out")
    assert (tmp_path / "report").read_text() == "log-\\udcff.out"
    write_json(tmp_path / "json", "log-\udcff.out")
    assert read_json(tmp_path / "json") == "log-\udcff.out"
