"""``accept verify``: a pack is judged again from its own logs, and its signature checked by the real ssh-keygen."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.request.variables import VARIABLES
from llmb_run.acceptance import signing, verify
from llmb_run.campaigns.campaign import unlike
from llmb_run.main import main
from support import instant, packs
from support.campaigns import SUITE, Site
from support.cli import Done
from support.programs import needs_ssh_keygen, needs_zstd
from support.run_site import RunSite

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
def pack(site: Site, original: Path) -> Path:
    """A copy of it to tamper with, somewhere else."""
    return Path(shutil.copy(original, site.folder))


def slower(log: bytes) -> bytes:
    return re.sub(rb"(elapsed time per iteration \(ms\): )", rb"\g<1>9", log)


def said(done: Done) -> str:
    return f"{done.out}{done.err}"


def test_a_pack_that_agrees_with_its_logs_is_verified(site: Site, pack: Path) -> None:
    done = site("accept", "verify", pack)
    assert done.status == 0, said(done)
    assert "verdict: judged again from the logs, and the same: ACCEPTED: all 2 workloads pass" in done.out
    assert "signature: none" in done.out
    data = site("accept", "verify", pack, "--json").data
    assert (data["ok"], data["verdict"]["outcome"], data["signature"]["state"]) == (True, "accepted", "none")


def test_a_pack_is_verified_in_another_time_zone(site: Site, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs began from 5:55 to 6:05 there, on two days, and within ten minutes where they were made."""
    begun = 1793307300.0  # 2026-10-29, 20:55 UTC
    content = packs.members(pack)
    for number, name in enumerate(name for name in sorted(content) if name.endswith("/run.json")):
        record = json.loads(content[name][1])
        record["manifest"]["utc_offset"] = 0
        for state in record["states"]:
            state["time"] = begun + 600 * (number % 2)
        content[name] = (content[name][0], json.dumps(record).encode())
    packs.write(pack, packs.with_new_hashes(content))
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        done = site("accept", "verify", pack)
    time.tzset()
    assert done.status == 0, said(done)


def test_a_pack_without_an_acceptance_is_verified_too(site: Site) -> None:
    """What is checked is whether it says the truth."""
    site.suite(105, 130, SUITE.replace("reruns: 4", "reruns: 1"))
    assert site.accept().status == 1
    done = site("accept", "verify", site.campaign / "two.tar.zst", "--json")
    assert (done.status, done.data["verdict"]["outcome"]) == (0, "not accepted"), done.data
    (note,) = done.data["verdict"]["notes"]
    assert note.startswith("how runs of that site differ (1.")
    assert note.endswith("by 120 runs on record): those runs are not in the pack")


def test_a_pack_of_a_failed_pre_screen_is_verified(site: Site) -> None:
    text = SUITE.replace("tests:", "prescreen:\n  - {workload: pretrain_llama3.1, max_steps: 5}\ntests:")
    site.suite(text=text)
    instant.direct("1.1", "FAILED", "ValueError: no")
    assert site.accept().status == 1
    done = site("accept", "verify", site.campaign / "two.tar.zst", "--json")
    assert (done.status, done.data["verdict"]["outcome"]) == (0, "not accepted"), done.data


# Somebody changes a file, and the hashes with it


def accept_it(verdicts: dict[str, Any]) -> None:
    verdicts |= {"outcome": "accepted", "accepted": True, "why": "all 2 workloads pass"}
    for item in verdicts["workloads"]:
        item |= {"verdict": "pass", "text": "pass"}


def test_an_acceptance_that_the_logs_do_not_support_is_refuted(site: Site) -> None:
    site.suite(80, 130)
    assert site.accept().status == 1
    pack = site.campaign / "two.tar.zst"
    packs.edit_json(pack, "campaign/verdicts.json", accept_it)
    assert site("archive", "verify", pack).status == 0, "the hashes fit"
    done = site("accept", "verify", pack)
    assert done.status == 1
    assert "campaign/verdicts.json says ACCEPTED, its logs say NOT ACCEPTED: workloads: 1 of 2 fail" in done.out
    assert "verdict: it says pass, its logs say fail" in done.out


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


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "log": (lambda pack: packs.edit(pack, ".out", slower), "step seconds: it says 0.0"),
    "text": (
        lambda pack: packs.edit(pack, "verdicts.txt", lambda text: text.replace(b"0.08", b"0.07", 1)),
        "campaign/verdicts.txt does not say what campaign/verdicts.json says",
    ),
    "suite": (lambda pack: packs.edit(pack, "suite.yaml", edit_required), "is not the suite that the campaign began"),
    "reference": (
        lambda pack: packs.edit_json(pack, "campaign.json", edit_reference),
        "its reference is not the one that the suite states",
    ),
    "plan": (lambda pack: packs.edit_json(pack, "/run.json", edit_plan), "not the job that was planned: gbs: 4 -> 8"),
    "code": (lambda pack: packs.edit_json(pack, "/run.json", edit_code), "the training code"),
    "rerun": (lambda pack: packs.edit_json(pack, "verdicts.json", hide_rerun), "it says that runs [] are reruns"),
    "state": (
        lambda pack: packs.edit(pack, "/run.json", lambda text: text.replace(b"COMPLETED", b"NODE_FAIL")),
        "its logs say",
    ),
    "not JSON": (lambda pack: packs.edit(pack, "campaign.json", lambda text: b"["), "its runs cannot be judged again"),
    "another shape": (lambda pack: packs.edit(pack, "verdicts.json", lambda text: b"[1]"), "cannot be judged again"),
    "deep": (lambda pack: packs.edit(pack, "verdicts.json", lambda text: b"[" * 100_000), "cannot be judged again"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_part_that_does_not_agree_with_the_others_is_found(site: Site, pack: Path, change: str) -> None:
    tamper, message = CHANGES[change]
    tamper(pack)
    assert site("archive", "verify", pack).status == 0, "the hashes fit"
    done = site("accept", "verify", pack)
    assert done.status == 1, done.out
    assert message in done.out
    assert "does not prove what it says" in done.err


def test_when_a_job_may_begin_is_no_part_of_its_work(plan: JobPlan) -> None:
    assert plan.scheduler is not None
    later = plan_as_dict(replace(plan, scheduler=replace(plan.scheduler, additional=(("begin", "now+1day"),))))
    assert later != plan_as_dict(plan)
    assert list(unlike(verify.work_of(plan_as_dict(plan)), verify.work_of(later))) == []


def test_a_replaced_run_that_ended_well_by_its_own_account_is_named(site: Site, pack: Path) -> None:
    content = packs.members(pack)
    lost = next(name for name, (_, data) in content.items() if name.endswith("/run.json") and b"NODE_FAIL" in data)
    events = (
        '{"event": "start", "job_id": "2", "time": 1}\n{"event": "end", "job_id": "2", "time": 2, "exit_code": 0}\n'
    )
    name = f"{lost.removesuffix('run.json')}events.jsonl"
    packs.write(pack, packs.with_new_hashes({name: (tarfile.TarInfo(name), events.encode()), **content}))
    done = site("accept", "verify", pack)
    assert done.status == 0, done.out
    assert "was replaced (a node failed (NODE_FAIL)), but ended well by its own account" in done.out


def test_a_run_that_is_left_out_is_missed(site: Site, pack: Path) -> None:
    content = packs.members(pack)
    last = max(name for name in content if name.endswith("/run.json"))
    folder = last.rpartition("/")[0]
    packs.write(pack, packs.with_new_hashes({name: it for name, it in content.items() if folder not in name}))
    done = site("accept", "verify", pack)
    assert done.status == 1
    assert "its logs say" in done.out


def test_a_reference_that_nobody_published_is_found(site: Site, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite asks for what is published, and campaign.json has another figure."""
    text = SUITE.replace("FIRST", "80").replace("SECOND", "80")
    suite = text.replace("{seconds: 0.1, source: a contract}", "required")

    def edit(frozen: dict[str, Any]) -> None:
        frozen["suite_sha256"] = hashlib.sha256(suite.encode()).hexdigest()
        for workload in frozen["arms"]:
            workload["reference"]["kind"] = "published"

    packs.edit(pack, "suite.yaml", lambda _: suite.encode())
    packs.edit_json(pack, "campaign.json", edit)
    done = site("accept", "verify", pack)
    assert done.status == 1
    assert "knows as published for it is 0.1 s" in done.out


# What hashes alone did not show


def move(content: packs.Members) -> packs.Members:
    name = next(name for name in content if name.endswith(".sbatch"))
    return {("elsewhere/" + key.partition("/")[2] if key == name else key): it for key, it in content.items()}


def open_up(content: packs.Members) -> packs.Members:
    info, _ = content[next(name for name in content if name.endswith(".sbatch"))]
    info.mode = 0o4755
    return content


@pytest.mark.parametrize("command", ["archive", "accept"])
@pytest.mark.parametrize(("change", "message"), [(move, "moved: "), (open_up, "-> 4755)")])
def test_a_moved_file_and_another_mode_are_found(site, pack, command, change, message):
    packs.write(pack, packs.with_new_hashes(change(packs.members(pack))))
    done = site(command, "verify", pack)
    assert done.status == 1
    assert message in done.out


# Hostile packs


def test_nothing_is_written_outside_and_links_are_refused(site: Site, pack: Path, tmp_path: Path) -> None:
    content = packs.members(pack)
    top = next(iter(content)).partition("/")[0]
    link = tarfile.TarInfo("x")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    first = {
        f"{top}/run_1": (link, b""),
        f"{top}/run_1/passwd": (tarfile.TarInfo("x"), b"x"),
        f"{top}/../../../../../../{tmp_path}/escaped": (tarfile.TarInfo("x"), b"x"),
        f"{top}/campaign": (tarfile.TarInfo("x"), b"a file where a folder belongs"),
    }
    packs.write(pack, {**first, **content})
    done = site("accept", "verify", pack)
    assert done.status == 1
    assert "(not a plain file)" in done.out
    assert "(outside the archive's folder)" in done.out
    assert not (tmp_path / "escaped").exists()


def test_logs_without_end_are_not_unpacked(site: Site, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MOST_BYTES", 1000)
    done = site("accept", "verify", pack)
    assert done.status == 1
    assert "its logs were not judged again: over " in done.out


def test_what_is_no_evidence_is_said(site: Site, tmp_path: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("top/SHA256SUMS"), io.BytesIO())
    (tmp_path / "x.tar.zst").write_bytes(
        subprocess.run(["zstd", "-qc"], input=raw.getvalue(), capture_output=True, check=True).stdout
    )
    done = site("accept", "verify", tmp_path / "x.tar.zst")
    assert (done.status, "it is not the evidence of an acceptance campaign" in done.out) == (1, True)
    assert site("accept", "verify", tmp_path / "missing").status == 3


# Signatures


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return new_key(tmp_path / "key")


def new_key(path: Path, passphrase: str = "") -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "us", "-f", path], check=True, timeout=60
    )
    return path


def signature(site: Site, pack: Path, *options: str | Path) -> tuple[int, str]:
    done = site("accept", "verify", pack, "--json", *options)
    return done.status, done.data["signature"]["state"]


@needs_ssh_keygen
def test_a_campaign_is_signed_at_its_end_and_whoever_knows_the_key_can_check_that(site: Site, key: Path) -> None:
    site.suite(80, 80)
    done = site.accept("--json", "--sign", key)
    assert done.status == 0, done.err
    pack = site.campaign / "two.tar.zst"
    assert done.data["signature"] == f"{pack}.sig"
    assert signature(site, pack, "--signers", key.with_suffix(".pub")) == (0, "valid")
    assert signature(site, pack) == (0, "unknown signer")
    other = new_key(site.folder / "other")
    both = site.folder / "both"
    both.write_text(other.with_suffix(".pub").read_text() + key.with_suffix(".pub").read_text())
    assert signature(site, pack, "--signers", both) == (0, "valid")
    allowed = site.folder / "allowed"
    allowed.write_text(f'me@here,*@there namespaces="llmb-accept" {key.with_suffix(".pub").read_text()}')
    assert signature(site, pack, "--signers", allowed) == (0, "valid")
    allowed.write_text(f'me@here namespaces="git" {key.with_suffix(".pub").read_text()}')
    assert signature(site, pack, "--signers", allowed) == (1, "bad")
    assert signature(site, pack, "--signers", other.with_suffix(".pub")) == (1, "bad")
    assert "its key is none of" in site("accept", "verify", pack, "--signers", other.with_suffix(".pub")).out
    # Without LLMB, as its documentation says.
    with pack.open("rb") as content:
        command = ["ssh-keygen", "-Y", "check-novalidate", "-n", "llmb-accept", "-s", f"{pack}.sig"]
        subprocess.run(command, stdin=content, check=True, capture_output=True, timeout=60)


@needs_ssh_keygen
@pytest.mark.parametrize("change", ["move", "mode", "log", "verdict", "one byte"])
def test_a_change_after_the_signature_is_found(site: Site, pack: Path, key: Path, change: str) -> None:
    assert site("accept", "sign", pack, "--key", key).out == f"{pack}.sig\n"
    assert signature(site, pack, "--signers", key.with_suffix(".pub")) == (0, "valid")
    if change in ("move", "mode"):
        content = packs.members(pack)
        packs.write(pack, packs.with_new_hashes(move(content) if change == "move" else open_up(content)))
    elif change == "log":
        packs.edit(pack, ".out", slower)
    elif change == "verdict":
        packs.edit_json(pack, "verdicts.json", lambda value: value.update(why="really"))
    else:
        pack.write_bytes(pack.read_bytes() + b"\0")
    for options in ((), ("--signers", key.with_suffix(".pub"))):
        assert signature(site, pack, *options) == (1, "bad")


@needs_ssh_keygen
def test_a_signature_that_is_missing_or_something_else_is_bad_where_one_is_asked_for(site, pack, key):
    public = key.with_suffix(".pub")
    assert signature(site, pack, "--signers", public) == (1, "bad")
    file = Path(f"{pack}.sig")
    for content in (b"", b"nonsense", b"x" * (signing._MOST + 1)):
        file.write_bytes(content)
        assert signature(site, pack) == (1, "bad")
        assert signature(site, pack, "--signers", public) == (1, "bad")
    file.unlink()
    file.mkdir()
    assert signature(site, pack) == (1, "bad")
    assert site("accept", "verify", pack, "--signers", site.folder / "nobody").status == 2


@needs_ssh_keygen
def test_a_key_that_cannot_sign_is_refused_before_anything_starts(site: Site) -> None:
    site.suite()
    locked = new_key(site.folder / "locked", "correct horse")
    for unfit, message in ((locked, "ssh-add it"), (site.folder / "none", "there is no key")):
        done = site.accept("--sign", unfit)
        assert (done.status, instant.accepted()) == (2, [])
        assert message in done.err


def fake_keygen(site: Site, script: str, patch: pytest.MonkeyPatch) -> None:
    folder = site.folder / "bin"
    folder.mkdir()
    for program in ("sh", "sleep", "zstd"):
        (folder / program).symlink_to(shutil.which(program) or program)
    if script:
        (folder / "ssh-keygen").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "ssh-keygen").chmod(0o755)
    patch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("script", "why"), [("", "ssh-keygen is not on PATH"), ("sleep 600", "ssh-keygen did not answer in")]
)
def test_without_an_ssh_keygen_that_answers_nothing_is_called_signed(site, pack, monkeypatch, script, why):
    monkeypatch.setattr(signing, "_SECONDS", 0.5)
    Path(f"{pack}.sig").write_text("x")
    (site.folder / "signers").write_text("ssh-ed25519 AAAA us\n")
    fake_keygen(site, script, monkeypatch)
    done = site("accept", "verify", pack, "--json")
    assert (done.status, done.data["signature"]["state"]) == (0, "not checked")
    assert why in done.data["signature"]["text"]
    done = site("accept", "verify", pack, "--signers", site.folder / "signers")
    assert (done.status, why in done.err) == (3, True), done.err
    done = site("accept", "sign", pack, "--key", site.folder / "signers")
    assert (done.status, why in done.err) == (3, True)
