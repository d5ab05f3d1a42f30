"""``llmb-install adopt``: an image of another release becomes known, on a real Slurm, from a real squashfs image."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from llmb_common.planning.site.cluster import load_cluster_config
from llmb_install.main import main
from llmb_run.main import main as llmb_run
from support import plans
from support.images import PROGRAMS, build_image
from support.installer import CLONE, stored
from support.slurm_cluster import SlurmCluster

RELEASE = "0.7.0"
NEW = "qwen3_30b_a3b_pretrain_16gpu_h100_fp8ds_config"
"""A function that 0.6.2 does not have."""

PYTHON = """#!/bin/bash
# Stands for the Python of an image with Megatron-Bridge 0.7.0, which no package index has.
set -eu
[ -f "$PYTHONPATH" ]
echo "$1" >> /site/calls
case $1 in
  -c) echo 'LLMB-VERSIONS {"megatron-bridge": "0.7.0", "megatron-core": "0.20.0"}' ;;
  -m) [ ! -e /site/fail ] || { echo "half" > "$3"; echo "no space left" >&2; exit 1; }
      case $* in *--validation) cp /opt/validation.json "$3" ;; *) cp /opt/catalogue.json "$3" ;; esac ;;
esac
"""


def of_release(kind: str) -> str:
    """A shipped file of 0.6.2 as one of another release, in which one function has another name."""
    text = (CLONE / "mbridge" / f"{kind}-0.6.2.json").read_text(encoding="utf-8")
    text = text.replace('"release": "0.6.2"', f'"release": "{RELEASE}"', 1)
    text = text.replace("qwen3_30b_a3b_pretrain_16gpu_h100_fp8cs_config", NEW).replace(
        '"qwen3_30b_a3b","pretrain",16,"h100","fp8cs"', '"qwen3_30b_a3b","pretrain",16,"h100","fp8ds"'
    )
    lines = text.partition('"functions": {\n')[2].removesuffix("\n}}\n")
    return re.sub('"sha256": "[0-9a-f]{64}"', f'"sha256": "{hashlib.sha256(lines.encode()).hexdigest()}"', text)


Adopt = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Path:
    install = tmp_path / "an install's folder"
    workloads = ["pretrain_mbridge", "pretrain_llama3.1"]
    stored(install, cluster_type="slurm", account="bench", gpu_partition="batch", gpu_type="h100", workloads=workloads)
    (tmp_path / "site").mkdir()
    (install / "cluster_config.yaml").write_text(
        "schema: 1  # ours\ncluster_type: slurm\ngpu_type: h100\nslurm: {runtime: pyxis, gpu_partition: batch}\n"
        f"mounts: ['{tmp_path / 'site'}:/site']\n"
    )
    return install


@pytest.fixture
def adopt(
    install: Path, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Adopt:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.env[name])
    monkeypatch.setenv("LLMB_REPO", str(CLONE))

    def adopt(image: str) -> tuple[int, str, str]:
        status = main(["adopt", image, "--json", "--install-path", str(install)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return adopt


def image_with(tmp_path: Path, python: str) -> Path:
    files = {"usr/local/bin/python3": python}
    files |= {f"opt/{kind}.json": of_release(kind) for kind in ("catalogue", "validation")}
    return build_image(tmp_path / "ours.sqsh", PROGRAMS, None, files)


def test_an_adopted_image_is_planned_with_its_own_functions(adopt, install, tmp_path, monkeypatch, capsys):
    image = image_with(tmp_path, PYTHON)
    with pytest.raises(RequestError) as unknown:
        plans.plan("mbridge", "MODEL_SIZE=qwen3_30b_a3b RUN_CONF_IMAGE=nemo:26.10")
    assert (unknown.value.code, unknown.value.field) == ("no-such-engine", "RUN_CONF_IMAGE")
    (tmp_path / "site" / "fail").touch()
    status, _, err = adopt(str(image))
    assert (status, "no space left" in err) == (3, True), err
    assert load_cluster_config(install).releases == {}
    for name in ("fail", "calls"):
        (tmp_path / "site" / name).unlink()

    status, out, err = adopt(str(image))
    assert status == 0, err
    data = json.loads(out)["data"]
    assert data["release"] == RELEASE
    assert (data["functions"], data["new"], len(data["gone"])) == (450, [NEW], 1)
    config = load_cluster_config(install)
    release = config.releases[RELEASE]
    assert release.image == str(image)
    assert "# ours" in (install / "cluster_config.yaml").read_text()
    assert (tmp_path / "site" / "calls").read_text().split() == ["-c", "-m", "-m"]

    monkeypatch.setenv("LLMB_INSTALL", str(install))
    (following,) = [line.removeprefix("next: llmb-run ") for line in err.splitlines() if line.startswith("next: ")]
    assert llmb_run(shlex.split(following)) == 0
    assert f"catalogue-{RELEASE}.json" in capsys.readouterr().err

    assert llmb_run(["list", "-w", "mbridge", "-s", "qwen3_30b_a3b", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["data"]
    assert {known["fp8_recipe"] for known in listed["configurations"] if known["release"] == RELEASE} == {"ds"}
    main(["verify", "--json", "--install-path", str(install)])
    assert json.loads(capsys.readouterr().out)["data"]["parts"][f"release {RELEASE}"] is None
    swept = ["-w", "mbridge", "-s", "qwen3_30b_a3b", "--dtype", "fp8", "--scale", "16", "--env", "FP8_RECIPE=ds"]
    assert llmb_run(["sweep", *swept, "--vary", "engine=0.7,0.7.0", "--dry-run", "--json"]) == 0
    assert NEW in capsys.readouterr().out

    asked = f"MODEL_SIZE=qwen3_30b_a3b GPU_TYPE=h100 JOB_TOTAL_GPUS=16 DTYPE=fp8 RUN_CONF_IMAGE={image}"
    plan = plans.plan("mbridge", config, f"{asked} FP8_RECIPE=ds")
    assert (plan.function.name, plan.function.release, plan.image) == (NEW, RELEASE, str(image))
