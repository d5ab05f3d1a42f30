"""``accept show``: a campaign is judged again from its own logs; the lines of the page check hashes and signatures."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.request.variables import VARIABLES
from llmb_common.results import sequential
from llmb_run.acceptance import recorded, run, show
from llmb_run.campaigns.campaign import changed_values
from llmb_run.campaigns.conduct import attempt_of
from llmb_run.main import main
from support import instant, packs
from support.campaigns import SUITE, Site
from support.plans import ROOT
from support.programs import needs_ssh_keygen, needs_zstd
from support.run_site import RunSite
from support.texts import Texts

pytestmark = needs_zstd


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack of an accepted campaign with one rerun."""
    folder = tmp_path_factory.mktemp("campaign")
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        instant.install_executor(patch, folder / "instant")
        install = RunSite(folder, "instant").install
        patch.setenv("LLMB_INSTALL", str(install))
        suite = folder / "two.yaml"
        suite.write_text(SUITE.replace("FIRST", "80").replace("SECOND", "80"))
        instant.direct("1.2", "NODE_FAIL")
        assert main(["accept", str(suite)]) == 0
    (pack,) = install.glob("campaigns/two-*/1/two.tar.zst")
    return pack


@pytest.fixture
def pack(original: Path, tmp_path: Path) -> Path:
    """It, unpacked somewhere else, to tamper with."""
    return packs.unpack(original, tmp_path / "unpacked")


def slower(log: bytes) -> bytes:
    return re.sub(rb"(elapsed time per iteration \(ms\): )", rb"\g<1>9", log)


# Campaigns that say the truth


def test_a_pack_that_agrees_with_its_logs_is_shown_with_what_was_demanded(site: Site, pack: Path, texts: Texts) -> None:
    """Wherever it was made: here is another installation."""
    done = site("accept", "show", pack)
    assert done.status == 0, done.err
    assert "run 4 (" in done.out, "which replaced run 2"
    texts(done.out, about="ACCEPTED")
    limit = "3 runs, up to 4 more; more than 95 % of the performance of 0.1 s (a contract; as stated): a step below 0.1"
    assert limit in done.out
    data = site("accept", "show", pack, "--json").data
    assert (data["outcome"], data["problems"]) == ("accepted", [])
    assert [item["limit_seconds"] for item in data["demanded"]] == [pytest.approx(0.1 / 0.95, rel=0.01)] * 2


def test_a_campaigns_own_folder_is_shown_too(site: Site, original: Path, texts: Texts) -> None:
    done = site("accept", "show", original.parent)
    assert done.status == 0, done.err
    texts(done.out, about="ACCEPTED")
    result = original.parent / "result.json"
    kept = result.read_bytes()
    packs.edit_json(original.parent, "result.json", lambda value: value.update(indication=True))
    assert site("accept", "show", original.parent, "--json").data["problems"]
    result.unlink()
    done = site("accept", "show", original.parent)
    texts(done.out, about="under way")
    result.write_bytes(kept)


def test_a_campaign_without_its_answer_yet_has_the_status_of_one_that_is_not_judged(site: Site) -> None:
    site.suite(100, 100)
    site.accept()
    (site.campaign / "result.json").unlink()
    for folder in sorted(site.install.glob("workloads/*/experiments/*/*"))[:-1]:
        if (folder / "run.json").exists():
            shutil.rmtree(folder)
    done = site("accept", "show", site.campaign, "--json")
    assert (done.status, done.data["outcome"], done.data["said"]) == (4, "under way", "")


def test_a_pack_is_judged_alike_in_another_time_zone(site: Site, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs began from 5:55 to 6:05 there, on two days, and within ten minutes where they were made."""
    begun = 1793307300.0  # 2026-10-29, 20:55 UTC
    for number, file in enumerate(sorted(pack.glob("*/run.json"))):
        record = json.loads(file.read_bytes())
        record["manifest"]["utc_offset"] = 0
        for state in record["states"]:
            state["time"] = begun + 600 * (number % 2)
        file.write_text(json.dumps(record))
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        done = site("accept", "show", pack)
    time.tzset()
    assert done.status == 0, done.out + done.err


def test_a_campaign_that_was_not_accepted_has_the_status_of_accept(site: Site, tmp_path: Path, texts: Texts) -> None:
    site.suite(105, 130, SUITE.replace("reruns: 4", "reruns: 1"))
    assert site.accept().status == 1
    folder = packs.unpack(site.campaign / "two.tar.zst", tmp_path / "out")
    done = site("accept", "show", folder, "--json")
    assert (done.status, done.data["outcome"], done.data["problems"]) == (1, "not accepted", []), done.data
    (note,) = done.data["notes"]
    texts(note)


def test_a_failed_pre_screen_is_judged_again(site: Site, tmp_path: Path) -> None:
    text = SUITE.replace("tests:", "prescreen:\n  - {workload: pretrain_llama3.1, max_steps: 5}\ntests:")
    site.suite(text=text)
    instant.direct("1.1", "FAILED", "ValueError: no")
    assert site.accept().status == 1
    folder = packs.unpack(site.campaign / "two.tar.zst", tmp_path / "out")
    done = site("accept", "show", folder, "--json")
    assert (done.status, done.data["outcome"], done.data["problems"]) == (1, "not accepted", []), done.data


def as_of_release_0_2(folder: Path) -> None:
    """What is open was called inconclusive and not accepted then, and a campaign said less of itself."""

    def older(verdicts: dict[str, Any]) -> None:
        del verdicts["evening"]
        verdicts |= {"outcome": "not accepted", "why": "workloads: 1 of 2 are inconclusive"}
        for item in verdicts["workloads"]:
            for name in ("more_runs", "further_days"):
                del item[name]
            if item["verdict"] == "open":
                item |= {"verdict": "inconclusive", "text": "inconclusive, not decided by 5 runs"}

    def younger(campaign: dict[str, Any]) -> None:
        for name in ("evening", "trained_counts"):
            del campaign[name]

    packs.edit_json(folder, "campaign/verdicts.json", older)
    packs.edit_json(folder, "campaign/campaign.json", younger)
    packs.edit(folder, "campaign/verdicts.txt", lambda text: text.replace(b": OPEN: ", b": NOT ACCEPTED: "))


def test_a_pack_of_an_older_release_is_judged_by_what_it_meant(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    """With reruns that could not decide, which that release started."""
    site.suite(105.2, 100, SUITE.replace("reruns: 4", "reruns: 2"))
    with monkeypatch.context() as patch:
        patch.setattr(sequential, "may_decide", lambda *arguments, **more: True)
        assert len(site.accept("--json").data["workloads"][0]["runs"]) == 5
    folder = packs.unpack(site.campaign / "two.tar.zst", tmp_path / "out")
    as_of_release_0_2(folder)
    done = site("accept", "show", folder, "--json")
    assert (done.status, done.data["outcome"], done.data["problems"]) == (4, "open", []), done.data
    texts("\n".join(done.data["notes"]))
    packs.edit_json(folder, "campaign/verdicts.json", accept_it)
    assert site("accept", "show", folder, "--json").data["problems"], "it may not say more than its logs"


def test_a_run_that_an_older_release_replaced_after_its_last_step_stays_replaced(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.suite()
    instant.direct("1.2", "trained", "CANCELLED")
    with monkeypatch.context() as patch:
        patch.setattr(run, "attempt_of", lambda *item, **more: attempt_of(*item, **more | {"trained_counts": False}))
        assert len(site.accept("--json").data["reruns"]) == 1
    folder = packs.unpack(site.campaign / "two.tar.zst", tmp_path / "out")
    assert site("accept", "show", folder, "--json").data["problems"], "as one of this release, it left out a run"
    as_of_release_0_2(folder)
    packs.edit_json(folder, "campaign/verdicts.json", lambda it: it.update(outcome="accepted", why=""))
    done = site("accept", "show", folder, "--json")
    assert (done.status, done.data["outcome"], done.data["problems"]) == (0, "accepted", []), done.data


# Somebody changes a file, and could change the hashes with it


def accept_it(verdicts: dict[str, Any]) -> None:
    verdicts |= {"outcome": "accepted", "accepted": True, "why": "all 2 workloads pass"}
    for item in verdicts["workloads"]:
        item |= {"verdict": "pass", "text": "pass"}


def test_an_acceptance_that_the_logs_do_not_support_is_refuted(site: Site, tmp_path: Path, texts: Texts) -> None:
    site.suite(80, 130)
    assert site.accept().status == 1
    folder = packs.unpack(site.campaign / "two.tar.zst", tmp_path / "out")
    packs.edit_json(folder, "campaign/verdicts.json", accept_it)
    done = site("accept", "show", folder)
    assert done.status == 1
    texts(done.out, about=": workload ")
    texts(done.err)


@pytest.mark.parametrize(
    ("name", "factor", "status"),
    [("performance_low", 0.9, 0), ("performance", 1.001, 0), ("performance", 1.02, 1), ("step_seconds", 0.98, 1)],
)
def test_another_release_may_be_as_sure_as_it_likes_but_the_step_times_are_the_same(site, pack, name, factor, status):
    """Intervals have become wider and narrower from release to release."""

    def change(verdicts: dict[str, Any]) -> None:
        verdicts["workloads"][0][name] *= factor

    packs.edit_json(pack, "verdicts.json", change)
    assert site("accept", "show", pack).status == status


def edit_required(text: bytes) -> bytes:
    return text.replace(b"reruns: 4", b"reruns: 4, required: 0.5")


def edit_reference(frozen: dict[str, Any]) -> None:
    frozen["arms"][0]["reference"]["seconds"] = 0.2


def edit_plan(record: dict[str, Any]) -> None:
    record["plan"]["gbs"] *= 2


def edit_code(record: dict[str, Any]) -> None:
    record["manifest"]["code_sha256"] = "0" * 64


def hide_rerun(verdicts: dict[str, Any]) -> None:
    verdicts["reruns"] = []
    verdicts["workloads"][0]["reruns"] = []


CHANGES: dict[str, Callable[[Path], object]] = {
    "log": lambda pack: packs.edit(pack, ".out", slower),
    "text": lambda pack: packs.edit(pack, "verdicts.txt", lambda text: text.replace(b": ACCEPTED: ", b": MAYBE: ")),
    "suite": lambda pack: packs.edit(pack, "suite.yaml", edit_required),
    "reference": lambda pack: packs.edit_json(pack, "campaign.json", edit_reference),
    "plan": lambda pack: packs.edit_json(pack, "/run.json", edit_plan),
    "code": lambda pack: packs.edit_json(pack, "/run.json", edit_code),
    "rerun": lambda pack: packs.edit_json(pack, "verdicts.json", hide_rerun),
    "state": lambda pack: packs.edit(pack, "/run.json", lambda text: text.replace(b"COMPLETED", b"NODE_FAIL")),
    "run left out": lambda pack: shutil.rmtree(max(pack.glob("*/run.json")).parent),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_part_that_does_not_agree_with_the_others_is_found(site: Site, pack: Path, change: str, texts: Texts) -> None:
    CHANGES[change](pack)
    done = site("accept", "show", pack, "--json")
    assert done.status == 1, done.out
    # Which of the runs was changed depends on the second in which each began.
    texts("\n".join(done.data["problems"][:3]), mask=r"(?<=run )\d+|\d\.\d{4,}")


def test_a_run_that_ended_well_and_was_replaced_is_named(site: Site, pack: Path, texts: Texts) -> None:
    lost = next(file for file in sorted(pack.glob("*/run.json")) if "NODE_FAIL" in file.read_text())
    (lost.parent / "events.jsonl").write_text(
        '{"event": "start", "job_id": "2", "time": 1}\n{"event": "end", "job_id": "2", "time": 2, "exit_code": 0}\n'
    )
    done = site("accept", "show", pack)
    assert done.status == 1
    texts(done.out, about="was replaced (")


def test_a_reference_that_nobody_published_is_found(site: Site, pack: Path, texts: Texts) -> None:
    """The suite asks for what is published, and campaign.json has another figure."""
    text = SUITE.replace("FIRST", "80").replace("SECOND", "80")
    suite = text.replace("{seconds: 0.1, source: a contract}", "required")

    def change(frozen: dict[str, Any]) -> None:
        frozen["suite_sha256"] = hashlib.sha256(suite.encode()).hexdigest()
        for workload in frozen["arms"]:
            workload["reference"]["kind"] = "published"

    packs.edit(pack, "suite.yaml", lambda _: suite.encode())
    packs.edit_json(pack, "campaign.json", change)
    done = site("accept", "show", pack)
    assert done.status == 1
    texts(done.out, about="published", mask=r"LLMB \d\S+")


def test_when_a_job_may_begin_is_no_part_of_its_work(plan: JobPlan) -> None:
    assert plan.scheduler is not None
    later = plan_as_dict(replace(plan, scheduler=replace(plan.scheduler, additional=(("begin", "now+1day"),))))
    assert later != plan_as_dict(plan)
    assert list(changed_values(show.work_of(plan_as_dict(plan)), show.work_of(later))) == []


# Packs from anybody


def no_time(frozen: dict[str, Any]) -> None:
    frozen["arms"][0]["reference"]["seconds"] = 0


def link(pack: Path) -> None:
    log = next(pack.glob("*/*/log-*.out"))
    log.unlink()
    log.symlink_to("/etc/passwd")


def linked_folder(pack: Path) -> None:
    folder = next(pack.glob("*/run.json")).parent
    shutil.move(folder, pack.parent / "elsewhere")
    folder.symlink_to(pack.parent / "elsewhere")


def same_run_twice(pack: Path) -> None:
    run = next(pack.glob("*/run.json")).parent
    shutil.copytree(run, run.with_name(re.sub(r"_(\d+)[-\d]*$", r"_\g<1>-0009", run.name)))


ODD: dict[str, Callable[[Path], object]] = {
    "not JSON": lambda pack: (pack / "campaign/campaign.json").write_text("["),
    "another shape": lambda pack: (pack / "campaign/verdicts.json").write_text("[1]"),
    "deep": lambda pack: (pack / "campaign/verdicts.json").write_text("[" * 100_000),
    "no suite": lambda pack: (pack / "campaign/suite.yaml").unlink(),
    "no verdicts": lambda pack: (pack / "campaign/verdicts.json").unlink(),
    "a reference of no time": lambda pack: packs.edit_json(pack, "campaign.json", no_time),
    "a link": link,
    "a linked folder": linked_folder,
    "a FIFO": lambda pack: os.mkfifo(pack / "campaign" / "x"),
    "a run twice": same_run_twice,
    "no runs at all": lambda pack: [shutil.rmtree(f.parent) for f in pack.glob("*/run.json")],
}


@pytest.mark.parametrize("change", ODD)
def test_a_pack_that_cannot_be_judged_is_refused_with_the_reason(
    site: Site, pack: Path, change: str, texts: Texts
) -> None:
    ODD[change](pack)
    done = site("accept", "show", pack, "--json")
    assert done.status in (1, 3)
    said = "\n".join(done.data["problems"][:3]) if done.data else done.err
    texts(said, mask=r"(?<=not valid JSON: ).*|(?<=judged again: ).*|pretrain\w*_\S+|(?<=run )\d+|\d\.\d{4,}")


@pytest.mark.parametrize(("name", "limit"), [("MOST_BYTES", 1000), ("MOST_FILES", 3)])
def test_a_pack_without_end_is_not_read(
    site: Site, pack: Path, monkeypatch: pytest.MonkeyPatch, name, limit, texts: Texts
) -> None:
    monkeypatch.setattr(recorded, name, limit)
    done = site("accept", "show", pack)
    assert done.status == 3
    texts(done.err)


def test_a_file_and_another_folder_are_answered_with_what_to_name(
    site: Site, original: Path, pack: Path, texts: Texts
) -> None:
    done = site("accept", "show", original)
    assert done.status == 2
    texts(done.err)
    for folder in (pack.parent, pack / "campaign", pack / "none"):
        assert site("accept", "show", folder).status == 2
    texts(site("accept", "show", pack.parent).err)


def test_a_pack_of_an_earlier_release_is_shown_and_says_so(site: Site, pack: Path, texts: Texts) -> None:
    """It had ``folder`` and ``modes`` in archive.json, and a signature lay beside it."""
    packs.edit_json(pack, "campaign/campaign.json", lambda value: value.update(llmb="0.1.0"))
    packs.edit_json(pack, "archive.json", lambda value: value.update(folder="two", modes={"SHA256SUMS": "0644"}))
    (pack / "two.tar.zst.sig").write_text("-----BEGIN SSH SIGNATURE-----\n")
    done = site("accept", "show", pack)
    assert done.status == 0, done.out
    texts(done.out, about="0.1.0", mask=r"(?<=again by ).*")


# The lines of the page


def lines_of_the_page() -> list[str]:
    """Those that check and sign ``night.tar.zst``."""
    page = (ROOT / "docs" / "acceptance.md").read_text()
    return re.findall(r"^(?:sha256sum|ssh-keygen) .*", page, re.MULTILINE)


@needs_ssh_keygen
def test_the_lines_of_the_page_check_and_sign_a_pack_and_find_a_change(
    original: Path, pack: Path, tmp_path: Path
) -> None:
    night = Path(shutil.copy(original, tmp_path / "night.tar.zst"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True, timeout=60)
    (tmp_path / "allowed_signers").write_text(f"us@example.com {(tmp_path / 'key.pub').read_text()}")

    def typed(line: str, folder: Path = tmp_path) -> int:
        line = line.replace("~/.ssh/id_ed25519", "key")
        return subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, timeout=60).returncode

    check, sign, verify = lines_of_the_page()
    assert [typed(check, pack), typed(sign), typed(verify)] == [0, 0, 0]
    packs.edit(pack, ".out", slower)
    assert typed(check, pack) != 0
    night.write_bytes(night.read_bytes() + b"\0")
    assert typed(verify) != 0
    (tmp_path / "key").rename(tmp_path / "other")
    assert typed(sign) != 0
