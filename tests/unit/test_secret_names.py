"""Which names are secrets, word by word; none of them reaches a script, a record or a job's list of variables."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.errors import LLMBError
from llmb_common.base.words import SECRET_VARIABLES, Secret, is_secret_name, job_variable_problem
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning.job_plan import plan_as_dict
from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.request.variables import VARIABLES
from llmb_common.planning.site.cluster import cluster_config, load_cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_text
from llmb_common.submission.script import render_script
from llmb_run.results.archiving import SECRET_SHAPES
from support.texts import Texts

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary-of-a-secret"


@pytest.mark.parametrize("runtime", ["pyxis", "enroot", "none"])
def test_a_secret_named_variable_of_the_caller_is_in_nothing_that_is_written(runtime: str) -> None:
    """All of these begin like variables that a job takes over from the caller."""
    names = ("NCCL_TOKEN", "NVTE_API_KEY", "UCX_SECRET", "FI_AUTH", "PYTORCH_PASSWORD", "TORCH_NCCL_CREDENTIALS")
    secrets = dict.fromkeys((*names, *SECRET_VARIABLES, "AWS_SECRET_ACCESS_KEY"), CANARY)
    request = read_request(
        {"LLMB_INSTALL": "/i", "JOB_TOTAL_GPUS": "128", "GPU_TYPE": "gb200", "NCCL_ALGO": "Ring", **secrets}
    )
    assert request.tuning == {"NCCL_ALGO": "Ring"}
    site = cluster_config(slurm=SlurmSettings(runtime=runtime))  # type: ignore[arg-type]
    plan = make_plan(load_recipe(ROOT / "llama3.1"), site, request, Machine(cluster_type="slurm"))
    paths = dry_run_paths(plan.workload_folder, plan.experiment_name)
    script = render_script(plan, paths)
    written = script + job_text(plan, paths).decode() + json.dumps(plan_as_dict(plan))
    assert "Ring" in written
    assert CANARY not in written
    assert not [name for name in names if name in written]


@pytest.mark.parametrize("name", ["HF_TOKEN", "NCCL_TOKEN", "SITE_API_KEY"])
def test_nor_does_the_sites_file_take_one(tmp_path: Path, name: str, texts: Texts) -> None:
    (tmp_path / "cluster_config.yaml").write_text(f"environment: {{{name}: {CANARY}}}\n")
    with texts.raises(LLMBError) as caught:
        load_cluster_config(tmp_path)
    assert CANARY not in str(caught.value)
    assert name in job_variable_problem(name, CANARY)


SURE = """SECRET SECRETS PASSWORD PASSWORDS PASSWD PASSPHRASE PASSCODE APIKEY APIKEYS JWT CREDENTIAL CREDENTIALS CRED
CREDS BEARER COOKIE DSN WEBHOOK PGPASS SSHPASS TOKEN TOKENS KEY KEYS AUTH"""


@pytest.mark.parametrize("word", SURE.split())
def test_words_that_make_a_name_a_secret_wherever_they_stand(word: str) -> None:
    for name in (word, f"MY_{word}", f"{word}_FILE", f"a-{word.lower()}.b", f"my{word.capitalize()}"):
        assert is_secret_name(name), name


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "NGC_API_KEY", "NGC_CLI_API_KEY", "WANDB_API_KEY"]
)
def test_the_tokens_that_jobs_use_are_known_as_such(name: str) -> None:
    assert name in SECRET_VARIABLES
    assert is_secret_name(name)


@pytest.mark.parametrize("word", ["SECRET", "PASSWORD", "PASSWD", "APIKEY", "CREDENTIALS", "JWT", "COOKIE"])
def test_no_other_word_takes_that_back(word: str) -> None:
    for other in ("MAX", "TYPE", "PUBLIC", "NUM"):
        assert is_secret_name(f"{other}_{word}")


@pytest.mark.parametrize("ending", ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "APIKEY", "CREDENTIAL", "CREDENTIALS"])
def test_endings_of_words_that_were_written_together(ending: str) -> None:
    assert is_secret_name(f"GITHUB{ending}")
    assert not is_secret_name(f"{ending}IZER")
    assert not is_secret_name(f"MAX_SUB{ending}")


@pytest.mark.parametrize("word", ["PASS", "PWD", "PAT"])
def test_words_that_are_secrets_only_at_the_end_and_not_alone(word: str) -> None:
    assert is_secret_name(f"DB_{word}")
    assert not is_secret_name(word)
    assert not is_secret_name(f"{word}_THROUGH")


COUNTS = "MAX MIN NUM N TOTAL PER COUNT LIMIT LEN LENGTH SIZE "
NOT_SECRET = {
    "TOKEN": COUNTS + "DISPATCHER DROP PAD EOS BOS MASK UNK TYPE ID",
    "TOKENS": COUNTS + "DROP",
    "KEY": "PUBLIC PRIMARY FOREIGN SORT CACHE PARTITION ROUTING SIZE LENGTH COUNT QUERY",
    "KEYS": COUNTS + "PUBLIC SORT CACHE QUERY",
    "AUTH": "SOCK TYPE METHOD",
    "PASS": COUNTS + "FIRST SECOND ONE TWO SINGLE MULTI FORWARD BACKWARD",
    "PWD": "OLD",
    "PAT": "FILE NAME GLOB",
}
PAIRS = [(word, other) for word, others in NOT_SECRET.items() for other in others.split()]


@pytest.mark.parametrize(("word", "beside"), PAIRS)
def test_a_word_beside_it_can_say_that_a_name_is_no_secret(word: str, beside: str) -> None:
    assert not is_secret_name(f"MODEL_{beside}_{word}")
    assert is_secret_name(f"MODEL_{beside}S_{word}"), "only as a word of its own"


def test_a_secret_beside_a_harmless_pair_is_still_one() -> None:
    assert is_secret_name("MAX_TOKENS_PASSWORD")
    assert is_secret_name("PUBLIC_KEY_PASSPHRASE")
    assert is_secret_name("AUTH_TYPE_TOKEN_COOKIE")


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


def test_names_that_are_in_use() -> None:
    assert [name for name in SECRETS.split() if not is_secret_name(name)] == []
    assert [name for name in ("", "___", *SETTINGS.split()) if is_secret_name(name)] == []
    assert [name for name in VARIABLES if is_secret_name(name)] == ["HF_TOKEN"], "of ours"


TOKENS = [
    "hf_" + "a" * 16,
    "nvapi-" + "a-_0" * 4,
    "ghp_" + "a" * 20,
    "gho_" + "a" * 20,
    "ghu_" + "a" * 20,
    "ghs_" + "a" * 20,
    "ghr_" + "a" * 20,
    "github_pat_" + "a_" * 10,
    "glpat-" + "a" * 16,
    "sk-" + "a" * 20,
    "xoxb-" + "1" * 10,
    "AKIA" + "A1" * 8,
]


@pytest.mark.parametrize("token", TOKENS)
def test_tokens_are_recognized_in_the_midst_of_a_log(token: str) -> None:
    line = f'header="{token}", next'.encode()
    assert SECRET_SHAPES.sub(b"****", line) == b'header="****", next'
    assert SECRET_SHAPES.search(token[:-1].encode()) is None, "too short for one"


def test_so_are_name_and_password_of_an_address() -> None:
    line = b"pip install --index-url https://user:p%40ss@host:8080/simple"
    assert SECRET_SHAPES.sub(b"****", line) == b"pip install --index-url https://****@host:8080/simple"
    for harmless in (b"https://host:8080/a@b", b"tcp://10.0.0.1:29500", b"me:you@host"):
        assert SECRET_SHAPES.search(harmless) is None


def test_a_secret_is_true_where_it_holds_something_and_never_copied_to_disk(texts: Texts) -> None:
    assert Secret("x")
    assert not Secret("")
    assert Secret("x") != Secret("x")
    with texts.raises(TypeError):
        copy.copy(Secret("x"))
    with pytest.raises(TypeError):
        msgspec.json.encode(Secret("x"))
    with pytest.raises(AttributeError):
        Secret("x").__dict__  # noqa: B018  nothing to print it by
    assert f"{Secret('x'):>8}" == str(Secret("x")) == "****"
    assert repr(Secret("x")) == "Secret(****)"
