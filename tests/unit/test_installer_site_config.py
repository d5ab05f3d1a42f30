"""cluster_config.yaml: whose words stay in it, and what is said of mistakes; also of those in answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from llmb_common.base.errors import ConfigError
from llmb_common.planning.site.cluster import FILE_NAME, load_cluster_config
from llmb_install.answers.answers import ANSWERS_FILE, stored_answers
from llmb_install.installation import SiteConfig, leaves, write_site_config
from llmb_install.working.artefact import problem_in, verify_all
from llmb_install.working.reporter import Reporter
from support.texts import Texts


def write(folder: Path, text: str) -> Path:
    path = folder / FILE_NAME
    path.write_text(text)
    return path


def test_a_file_without_a_number_gets_one_and_keeps_its_comments(tmp_path: Path) -> None:
    path = write(tmp_path, "# ours\n\n# who pays\nslurm:\n  account: ann  # until June\n")
    assert write_site_config(tmp_path, leaves({}))
    text = path.read_text()
    assert load_cluster_config(tmp_path).schema == 1
    assert text.startswith("# ours\n")
    assert "# who pays\nslurm:\n  account: ann  # until June\n" in text
    assert not write_site_config(tmp_path, leaves({}))


def test_an_answer_that_changed_is_written_and_one_that_was_edited_is_not(tmp_path: Path) -> None:
    SiteConfig(tmp_path, {"gpu_type": "h100", "slurm": {"account": "a", "gpu_partition": "p"}}).make()
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text().replace("account: a", "account: ann"))
    SiteConfig(tmp_path, {"gpu_type": "b200", "repo": "/c", "slurm": {"account": "a", "gpu_partition": "q"}}).make()
    found = load_cluster_config(tmp_path)
    assert (found.gpu_type, found.repo, found.slurm.account, found.slurm.gpu_partition) == ("b200", "/c", "ann", "q")
    SiteConfig(tmp_path, {"gpu_type": "b200", "slurm": {"account": "new", "gpu_partition": "q"}}).make()
    assert load_cluster_config(tmp_path).slurm.account == "new", "a new answer counts"


def test_what_the_answers_no_longer_say_is_removed_unless_somebody_wrote_it(tmp_path: Path) -> None:
    def engine(**pythons: str) -> dict[str, Any]:
        return {"gpu_type": "cpu", "engine": pythons}

    path = write(tmp_path, "repo: /c  # by hand\n")
    SiteConfig(tmp_path, {**engine(python="/a"), "slurm": {"gres": True, "account": "ann"}}).make()
    path.write_text(path.read_text().replace("account: ann", "account: bob") + "environment: {A: '1'}\n")
    SiteConfig(tmp_path, {"gpu_type": "cpu"}).make()
    assert YAML().load(path.read_text()) == {
        **{"schema": 1, "repo": "/c", "gpu_type": "cpu"},
        **{"slurm": {"account": "bob"}, "environment": {"A": "1"}},
    }
    SiteConfig(tmp_path, engine(python="/a")).make()
    path.write_text(path.read_text().replace("python: /a", "python: /mine"))
    SiteConfig(tmp_path, {"gpu_type": "cpu"}).make()
    assert load_cluster_config(tmp_path).engine.python == "/mine"
    assert "# by hand" in path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "# later\nschema: 7\nkey: x\n",
        "schema: one\n",
        "schema: -1\n",
        "- a\n",
        "gpu_type: h1000\n",
        "schema: 1\nclustertype: slurm\n",
    ],
)
def test_what_cannot_be_brought_up_to_date_is_said(tmp_path: Path, text: str, texts: Texts) -> None:
    path = write(tmp_path, text)
    with texts.raises(ConfigError):
        write_site_config(tmp_path, leaves({}))
    assert path.read_text() == text


ANSWERED = """\
# ours
schema: 1
install_path: /elsewhere
cluster_type: local
gpu_type: cpu
workloads: [pretrain_grok1]
arch: x86_64
install_method: local
runtime: none
env_type: venv
"""


@pytest.fixture
def answered(tmp_path: Path) -> Path:
    (tmp_path / ANSWERS_FILE).parent.mkdir()
    (tmp_path / ANSWERS_FILE).write_text(ANSWERED)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema: 1", "schema: 7"),
        ("schema: 1", "schema: one"),
        ("env_type", "envtype"),
        ("gpu_type: cpu\n", ""),
        ("cpu", "[cpu]"),
        (ANSWERED, ""),
        (ANSWERED, "# nothing\n"),
        (ANSWERED, "- a\n"),
        (ANSWERED, "a: b\nc: [\n"),
    ],
)
def test_answers_of_another_version_are_one_sentence_with_line_and_remedy(answered, old, new, texts: Texts):
    (answered / ANSWERS_FILE).write_text(ANSWERED.replace(old, new))
    with texts.raises(ConfigError):
        stored_answers(answered)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("account", "a b"), ("gpu_partition", "$(id)"), ("cpu_partition", "x;y"), ("mpi", "no such")),
        *(
            ("gpu_type", "h1000"),
            ("registry_mirror", "no mirror"),
            ("image_folder", '"/a\\tb"'),
            ("engine_python", "/x"),
        ),
    ],
)
def test_a_stored_answer_is_refused_like_a_given_one(answered: Path, field: str, value: str) -> None:
    slurm = ANSWERED.replace("local", "slurm", 1).replace("cpu", "h100").replace("runtime: none", "runtime: pyxis")
    text = f"{slurm}account: a\ngpu_partition: g\n"
    (answered / ANSWERS_FILE).write_text(text)
    assert stored_answers(answered)
    lines = [line for line in text.splitlines() if not line.startswith(field)]
    (answered / ANSWERS_FILE).write_text("\n".join([*lines, f"{field}: {value}"]))
    with pytest.raises(ConfigError) as caught:
        stored_answers(answered)
    assert caught.value.message.startswith(f"{answered / ANSWERS_FILE}:{len(lines) + 1}: {field}")
    assert caught.value.remedy


def test_what_was_stored_before_it_was_asked_for_may_come_with_a_flag(answered: Path) -> None:
    gone = ANSWERED.replace("gpu_type: cpu", "gpu_type: H100").replace("pretrain_grok1", "pretrain_gone")
    (answered / ANSWERS_FILE).write_text(gone)
    found = stored_answers(answered)
    assert found is not None
    assert (found.gpu_type, found.engine_python, found.workloads) == ("h100", None, ("pretrain_gone",))


def test_answers_that_are_no_text_are_no_missing_installation(answered: Path, texts: Texts) -> None:
    file = answered / ANSWERS_FILE
    file.write_bytes(b"schema: 1\naccount: \xff\n")
    with texts.raises(ConfigError) as caught:
        stored_answers(answered)
    file.unlink()
    file.mkdir()
    with texts.raises(ConfigError) as caught:
        stored_answers(answered)
    assert "a file" in caught.value.remedy


# Mistakes by hand


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("gpu_type: h1000", "one of "),
        ("gpu_tpye: h100", "remove the key or correct its name"),
        ("slurm: none", ""),
    ],
)
def test_update_says_as_verify_does_what_to_write_by_hand(tmp_path: Path, line: str, remedy: str, texts: Texts) -> None:
    values = {"gpu_type": "h100", "slurm": {"account": "a"}}
    part = SiteConfig(tmp_path, values)
    SiteConfig(tmp_path, values).make()
    text = f"schema: 1\n{line}\n" + ("" if line.startswith("gpu") else "gpu_type: h100\n")
    write(tmp_path, text + ("" if line.startswith("slurm") else "slurm: {account: a}\n"))
    for look in (part.verify, lambda: part.is_complete() or part.ensure(Reporter(None))):
        with texts.raises(ConfigError) as caught:
            look()
        assert remedy in caught.value.remedy
    found = verify_all([part], Reporter(None))
    error = problem_in(found, "update it")
    texts(error.remedy)
    both = problem_in({**found, "tool": "it is damaged"}, "update it")
    texts(both.remedy)


def test_verify_names_update_only_where_it_helps(tmp_path: Path, texts: Texts) -> None:
    values = {"gpu_type": "h100"}
    part, path = SiteConfig(tmp_path, values), tmp_path / FILE_NAME
    SiteConfig(tmp_path, values).make()
    path.write_text("")
    error = problem_in(verify_all([part], Reporter(None)), "update it")
    assert (f"{path} is empty" in error.message, error.remedy) == (True, "update it")
    assert part.ensure(Reporter(None))
    assert "gpu_type: h100" in path.read_text()
    path.unlink()
    path.mkdir()
    error = problem_in(verify_all([part], Reporter(None)), "update it")
    texts(f"{error.message}\n  -> {error.remedy}")
