"""The evidence pack of a campaign: all that it takes to believe its verdicts, in one file, for ``accept verify``.

It is an archive of the campaign's runs (records with their plans, scripts, logs, node facts, training code) with the
suite, what the campaign began with, the verdicts and the report beside them. No secrets, as in every archive.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

import msgspec

from llmb_common.decoding.structs import from_plain
from llmb_common.errors import EnvironmentLacks
from llmb_common.machine.files import sha256_of, write_atomic
from llmb_run.acceptance.frozen import Frozen
from llmb_run.acceptance.outcome import as_text, for_report
from llmb_run.acceptance.standing import Standing
from llmb_run.campaigns.folder import Campaign
from llmb_run.place import Place
from llmb_run.reporting.html import page
from llmb_run.reporting.junit import junit
from llmb_run.reporting.report import Report, build
from llmb_run.results.archiving import Mask, stored_secrets, write_archive
from llmb_run.results.measuring import Measured
from llmb_run.results.run_columns import as_dict
from llmb_run.terminal import notice

HEALTH = "health.json"
"""Of a campaign's folder: what its nodes were found to be, if the suite asks for that."""


def write_pack(
    campaign: Campaign, frozen: Frozen, result: dict[str, Any], standings: Sequence[Standing], place: Place
) -> dict[str, Any]:
    """Write pack and report into the campaign's folder; ``pack`` (its name), ``pack_sha256`` and ``report``.

    Raises:
        RecordError: they cannot be written
    """
    measured = [run.measured for item in standings for run in item.runs if run.measured is not None]
    ended = max((run.record.state_time for item in standings for run in item.runs), default=frozen.began)
    secrets = stored_secrets(place.install)
    mask = Mask(secrets)
    report = _report(measured, result, ended, place, mask)
    html = _page(report)
    more = {
        "campaign/suite.yaml": mask.text((campaign.folder / "suite.yaml").read_bytes()),
        "campaign/campaign.json": mask.text(campaign.frozen_file.read_bytes()),
        "campaign/verdicts.json": json.dumps(mask.value(result), indent=2, allow_nan=False).encode(),
        "campaign/verdicts.txt": mask.text(as_text(result).encode()),
        "campaign/report.xml": junit(report).encode(),
    }
    if (health := campaign.folder / HEALTH).exists():
        more[f"campaign/{HEALTH}"] = mask.text(health.read_bytes())
    if html:
        write_atomic(campaign.folder / "report.html", html)
        more["campaign/report.html"] = html.encode()
    path = campaign.folder / (frozen.suite_name + (".tar.zst" if shutil.which("zstd") else ".tar.gz"))
    written = write_archive(
        path,
        [run.record.paths.folder for item in standings for run in item.runs],
        [as_dict(item) for item in measured],
        secrets=secrets,
        overwrite=True,
        more=more,
    )
    for name in written.left_out:
        notice(f"not in the evidence, because secrets in it could not be masked: {name}")
    return {"pack": path.name, "pack_sha256": sha256_of(path), "report": "report.html" if html else None}


def _report(measured: Sequence[Measured], result: dict[str, Any], ended: float, place: Place, mask: Mask) -> Report:
    report = build(measured, place, f"Acceptance of {result['suite']}")
    report = msgspec.structs.replace(report, campaign=for_report(result))
    # Before it becomes a page: masking that would change its scripts too, and then no browser runs them.
    masked: Report = from_plain({**mask.value(msgspec.to_builtins(report)), "made": round(ended)}, Report)
    return masked


def _page(report: Report) -> str:
    """The HTML report; empty where what draws its charts is not installed."""
    try:
        return page(report)
    except EnvironmentLacks as error:
        notice(f"the evidence has no HTML report: {error}")
        return ""
