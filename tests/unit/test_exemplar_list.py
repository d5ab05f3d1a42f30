"""``python -m tools.exemplar``: NVIDIA's list as data, from a checkout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from support.texts import Texts
from tools import exemplar

SCRIPT = """
if [[ $GPU_TYPE == "h100" ]]; then
    FP8_RECIPE=cs
fi
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a release with one workload in BF16 and FP8, whose scaling was read in ``SCRIPT``."""
    (tmp_path / "CHANGELOG").write_text("## [v27.02.00] - 2027-02-03\n\n## [v26.12.00] - 2026-12-01\n")
    (tmp_path / "exemplar.yaml").write_text(
        "config: {scale: 512, repeats: 1, profile: false}\n"
        "workloads:\n"
        "  h100:\n  - pretrain_a: {dtypes: [bf16, fp8]}\n"
        "  gb300:\n  - pretrain_a: {dtypes: [fp8]}\n"
    )
    (tmp_path / "launch.sh").write_text(SCRIPT)
    known = exemplar.Scaling("launch.sh", exemplar.digest_of(SCRIPT), "mx", {"h100": "cs"})
    monkeypatch.setattr(exemplar, "SCALINGS", {"pretrain_a": known})
    return tmp_path


def test_the_facts_of_a_release_with_their_day(checkout: Path) -> None:
    facts = json.loads(exemplar.text(checkout, "2027-02-04"))
    assert (facts["release"], facts["date"], facts["looked_up"]) == ("v27.02.00", "2027-02-03", "2027-02-04")
    assert facts["source"].endswith("/blob/v27.02.00/exemplar.yaml")
    assert facts["workloads"] == {"h100": {"pretrain_a": ["bf16", "fp8 cs"]}, "gb300": {"pretrain_a": ["fp8 mx"]}}


def test_the_shipped_facts_have_the_shape_that_the_tool_writes(checkout: Path) -> None:
    shipped = json.loads(exemplar.FILE.read_text(encoding="utf-8"))
    assert shipped.keys() == json.loads(exemplar.text(checkout, "2027-02-04")).keys()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("launch.sh", SCRIPT.replace("h100", "h200")),
        ("CHANGELOG", "Unreleased\n"),
        ("exemplar.yaml", "config: {scale: 512, repeats: 1, profile: true}\nworkloads: {}\n"),
        (
            "exemplar.yaml",
            "config: {scale: 1, repeats: 1, profile: false}\nworkloads: {h100: [{pretrain_b: {dtypes: [fp8]}}]}\n",
        ),
    ],
    ids=["script", "changelog", "profiles", "precision"],
)
def test_what_somebody_has_to_read_again_is_not_written(checkout: Path, file: str, content: str, texts: Texts) -> None:
    (checkout / file).write_text(content)
    with texts.raises(RequestError):
        exemplar.text(checkout, "2027-02-04")


def test_other_lines_of_a_script_do_not_matter(checkout: Path) -> None:
    (checkout / "launch.sh").write_text(f"# a comment\n{SCRIPT}\n\n\n\necho done\n".replace("    FP8", "  FP8"))
    assert exemplar.text(checkout, "2027-02-04")
    assert dataclasses.asdict(exemplar.SCALINGS["pretrain_a"])["by_gpu"] == {"h100": "cs"}
