"""What nvidia-smi says, and what is made of an answer that is late, wrong or none."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from llmb_train.nodes import gpus
from llmb_train.nodes.ask import NoAnswer, run_program
from support.gpu_nodes import on_path, put_nvidia_smi, smi_answer
from support.other_user import as_ordinary_user, closed_folder, shared_folder
from support.texts import Texts

ANSWERS = Path(__file__).resolve().parents[1] / "data" / "nvidia_smi"


def test_an_a100_under_driver_535() -> None:
    found = gpus.parse((ANSWERS / "a100_535.xml").read_bytes())
    assert (found["driver"], found["cuda"]) == ("535.54.03", "12.2")
    (gpu,) = found["gpus"]
    assert gpu == {
        "index": 0,
        "product": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-513536b6-7d19-9063-b049-1e69664bb298",
        "serial": "1650522003820",
        "bus": "00000000:01:00.0",
        "vbios": "92.00.36.00.02",
        "gsp_firmware": "535.54.03",
        "performance_state": "P0",
        "persistence": "Disabled",
        "mig": "Enabled",
        "compute_mode": None,
        "ecc": "Enabled",
        "pcie_width": "16x",
        "fabric": None,
        "rows_pending": None,
        "rows_failed": None,
        "unrepairable": None,
        "channel_repair": None,
        "tpc_repair": None,
        "sram_threshold": None,
        "recovery": None,
        "fabric_health": None,
        "fabric_bandwidth": None,
        "memory_mib": 81920,
        "memory_used_mib": None,
        "processes": 0,
        "uncorrected_sram": 0,
        "sm_mhz": 1275,
        "memory_mhz": 1593,
        "max_sm_mhz": 1410,
        "application_mhz": 1275,
        "power_w": 67.03,
        "power_limit_w": 500,
        "temperature_c": 27,
        "memory_temperature_c": 44,
        "pcie_generation": 4,
        "uncorrected_rows": None,
        "pcie_width_max": "16x",
        "fabric_status": None,
        "domain": None,
        "boost_mhz": None,
        "default_application_mhz": None,
        "utilization": None,
        "default_power_limit_w": 500,
        "temperature_margin_c": None,
        "temperature_limit_c": None,
        "memory_temperature_limit_c": None,
        "pcie_generation_max": 4,
        "uncorrected": 0,
        "throttle": [],
        "throttled_us": {},
    }


def test_a_blackwell_under_driver_590() -> None:
    (gpu,) = gpus.parse((ANSWERS / "blackwell_590.xml").read_bytes())["gpus"]
    assert (gpu["application_mhz"], gpu["uncorrected"], gpu["mig"]) == (None, None, None)  # deprecated, N/A, N/A
    assert (gpu["power_w"], gpu["power_limit_w"], gpu["max_sm_mhz"]) == (3.99, 300, 3090)
    assert gpu["throttled_us"]["sw_power_cap"] == 25483012608
    assert (gpu["rows_pending"], gpu["rows_failed"]) == ("No", "No")


@pytest.mark.parametrize("word", ["event", "throttle"])
def test_throttling_has_had_two_names(word: str) -> None:
    answer = smi_answer(1, changes={0: {"thermal": "Active"}}).replace("clocks_event", f"clocks_{word}")
    (gpu,) = gpus.parse(answer.encode())["gpus"]
    assert gpu["throttle"] == ["hw_thermal_slowdown"]


@pytest.mark.parametrize("nothing", ["N/A", "[N/A]", "[Not Supported]", "Not Supported", "[Unknown Error]", "", "-"])
def test_what_the_driver_does_not_say_is_null(nothing: str) -> None:
    changes = {"sm": nothing, "limit": nothing, "uncorrectable": nothing, "sram": nothing, "cap_us": nothing}
    (gpu,) = gpus.parse(smi_answer(1, changes={0: changes}).encode())["gpus"]
    assert (gpu["sm_mhz"], gpu["power_limit_w"], gpu["uncorrected"]) == (None, None, None)
    assert "sw_power_cap" not in gpu["throttled_us"]


@pytest.mark.parametrize(
    ("word", "recovery"),
    [("ERR!", None), ("[Unknown Error]", None), ("GPU is lost", "Reboot"), ("[GPU requires reset]", "Reset")],
)
def test_a_gpu_that_is_lost_says_nothing_of_itself(word: str, recovery: str | None) -> None:
    changes = dict.fromkeys(("product", "mig", "compute", "persistence", "fabric", "sm", "temperature"), word)
    (gpu,) = gpus.parse(smi_answer(1, changes={0: changes}).encode())["gpus"]
    assert {gpu[name] for name in ("product", "mig", "compute_mode", "persistence", "fabric", "fabric_status")} == {
        None
    }
    assert gpu["recovery"] == recovery


@pytest.mark.parametrize(
    ("elements", "recovery"),
    [
        ("<gpu_recovery_action>None</gpu_recovery_action>", None),
        ("<gpu_recovery_action>N/A</gpu_recovery_action>", None),
        ("<gpu_recovery_action>Drain P2P</gpu_recovery_action>", "Drain P2P"),
        ("<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>", "Reset"),
        (
            "<gpu_reset_status><reset_required>No</reset_required>"
            "<drain_and_reset_recommended>Yes</drain_and_reset_recommended></gpu_reset_status>",
            "Drain and Reset",
        ),
        (
            "<gpu_reset_status><reset_required>Requested functionality has been deprecated</reset_required>"
            "</gpu_reset_status><gpu_recovery_action>Reset</gpu_recovery_action>",
            "Reset",
        ),
    ],
)
def test_what_a_driver_asks_for_has_had_two_places(elements: str, recovery: str | None) -> None:
    answer = smi_answer(1).replace("<utilization>", f"{elements}<utilization>")
    assert gpus.parse(answer.encode())["gpus"][0]["recovery"] == recovery


def test_a_fabric_that_could_not_be_joined_for_an_unknown_error() -> None:
    answer = smi_answer(1).replace("<status>Success", "<status>Unknown Error")
    assert gpus.parse(answer.encode())["gpus"][0]["fabric_status"] == "Unknown Error"


LIES = (
    "",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    "<html><body>login</body></html>",
    '<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>',
    "index, name\n0, H100\n",
)


@pytest.mark.parametrize("answer", LIES, ids=lambda text: text[:20] or "nothing")
def test_what_is_no_answer_is_said(answer: str, texts: Texts) -> None:
    with texts.raises(ValueError):
        gpus.parse(answer.encode())


def test_mutilated_answers_are_read_or_refused() -> None:
    dice = random.Random(1)
    content = (ANSWERS / "a100_535.xml").read_bytes()
    for _ in range(500):
        broken = bytearray(content)
        for _ in range(dice.randrange(1, 10)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        try:
            found = gpus.parse(bytes(broken))
        except ValueError:
            continue
        assert len(found["gpus"]) <= 1


def test_a_thousand_gpus_are_not_believed() -> None:
    assert len(gpus.parse(smi_answer(1000).encode())["gpus"]) == 64


def test_an_answer_is_taken_from_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answer").write_text(smi_answer(2))
    monkeypatch.setenv(
        "PATH", on_path(put_nvidia_smi(tmp_path / "bin", f"[[ $* == '-q -x' ]] && cat {tmp_path}/answer"))
    )
    found = gpus.snapshot()
    assert found["missing"] is None
    assert [gpu["product"] for gpu in found["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2


TROUBLE = {
    "sleep 600": "did not answer in time",
    "trap '' TERM; exec >&-; sleep 600": "did not end within",
    "yes '<gpu>'": "without end",
    "echo 'NVIDIA-SMI has failed'; exit 9": "ended with 9: NVIDIA-SMI has failed",
    "kill -SEGV $$": "ended with -11",
    "echo garbage": "is not XML",
}


@pytest.mark.parametrize("action", TROUBLE)
def test_trouble_is_recorded_and_given_up(action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", on_path(put_nvidia_smi(tmp_path / "bin", action)))
    found = gpus.snapshot(1.0 if "sleep" in action else 60.0)
    assert found["gpus"] == []
    assert TROUBLE[action] in found["missing"]


def test_a_missing_program_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = gpus.snapshot()["missing"]
    texts(absent)
    (tmp_path / "nvidia-smi").write_text("no program\n")
    assert "nvidia-smi" in gpus.snapshot()["missing"]
    with shared_folder() as shared, closed_folder(shared) as closed:
        monkeypatch.setenv("PATH", str(closed))

        def look() -> None:
            assert gpus.snapshot()["missing"] == absent

        as_ordinary_user(look)


def test_children_of_a_hanging_program_are_ended_too(tmp_path: Path) -> None:
    """They would hold the pipe open, and go on asking the driver."""
    beat = tmp_path / "beat"
    code = f"import time, pathlib\nwhile True: time.sleep(0.05); pathlib.Path({str(beat)!r}).touch()"
    with pytest.raises(NoAnswer):
        run_program(["bash", "-c", f'{sys.executable} -c "$0" & wait', code], 1.5)
    beat.unlink(missing_ok=True)
    with pytest.raises(NoAnswer):
        run_program(["sleep", "600"], 0.3)
    assert not beat.exists()
