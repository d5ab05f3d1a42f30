"""The commands that hand runs on: report, archive."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.files import check_output, write_output
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, size
from llmb_common.measured.measure import measure
from llmb_common.planning.workspace import Workspace
from llmb_run.app import refuse_beside_json
from llmb_run.reporting.fabric import fabric_part, read_fabrics
from llmb_run.reporting.forms import junit, markdown, page
from llmb_run.reporting.report import Report, build
from llmb_run.results.archiving import check_archive, stored_secrets, write_archive
from llmb_run.results.run_columns import as_dicts
from llmb_run.results.selected import selected_runs
from llmb_run.selecting import none_matches, run_filter, select_rows


def report(
    runs: tuple[str, ...],
    html: str | None,
    markdown: str | None,
    junit: str | None,
    title: str,
    fabric: tuple[str, ...],
    **filters: Any,
) -> Result:
    """Write a report on runs, as ``llmb-run report`` does: on those named, or all that match ``filters``.

    ``runs`` are words that name some; ``filters`` are the options of ``run_filter``. ``html``, ``markdown``, ``junit``:
    files to write, which replace earlier ones, ``-`` for standard output, None: not this form; where none is asked for,
    standard output gets Markdown. ``title``: the report's heading. ``fabric``: JSON files with measurements of the
    fabric to add, as ``read_fabrics`` takes them. As JSON: ``files`` (the written ones by form) and ``report``. After
    an error, files that were written before stay. The exit status is 1 where runs were chosen by name or filter and one
    of them failed.

    Raises:
        RequestError: two forms go to standard output, one goes there beside ``--json``, no run is found, or a file
            holds no measurement
        RecordError: a file cannot be written or read, or the record of a run not be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: a word's path may not be looked at, or the log of a run not be read
    """
    asked = {"html": html, "markdown": markdown, "junit": junit}
    # Before the runs are measured, which may take long.
    for form, file in asked.items():
        if file == "-":
            refuse_beside_json(f"--{form}", "-")
        elif file:
            check_output(Path(file))
    wanted = {form: file for form, file in asked.items() if file} or {"markdown": "-"}
    if list(wanted.values()).count("-") > 1:
        raise RequestError("only one form can go to standard output", remedy="name a file for the others")
    measured = chain.from_iterable(read_fabrics(Path(file)) for file in fabric)
    fabrics = [fabric_part(item) for item in measured]
    workspace = Workspace()
    report = build(selected_runs(workspace, runs, filters), workspace, title)
    report = msgspec.structs.replace(report, fabrics=tuple(fabrics))
    text, remarks = "", []
    for form, file in wanted.items():
        written = _WRITERS[form](report)
        if file == "-":
            text = written
        else:
            write_output(Path(file), written)
            bytes_ = len(written.encode())
            remarks.append(f"wrote {file}: {counted(report.counts.runs, 'run')}, {size(bytes_)}")
    files = {form: file for form, file in wanted.items() if file != "-"}
    chosen = runs or any(filters.values())
    return Result(
        lambda: {"files": files, "report": msgspec.to_builtins(report)},
        text or "".join(f"{line}\n" for line in remarks),
        status=0 if report.ok or not chosen else 1,
        remarks=remarks if text else [],
        for_programs=bool(text),
    )


_WRITERS: dict[str, Callable[[Report], str]] = {"html": page, "markdown": markdown, "junit": junit}


def archive(
    runs: tuple[str, ...],
    output: Path | None,
    profiles: bool,
    unmasked: bool,
    overwrite: bool,
    **filters: Any,
) -> Result:
    """Pack runs into one file, as ``llmb-run archive`` does: those named, or the user's own that match ``filters``.

    ``filters`` are the options of ``run_filter``; without names and filters, all of the user's own. ``output``: the
    file; None: ``llmb-TIME.tar.zst`` in the working folder. ``profiles``: pack these too; ``unmasked``: also pack
    what is not text, in which secrets cannot be masked; ``overwrite``: replace an existing file. Prints notices on
    stderr on what was masked or left out. As JSON: ``path`` (absolute), ``bytes``, ``runs`` (how many), ``sha256``
    (by file) and ``left_out``.

    Raises:
        RequestError: no run matches, a word names none, or the file exists or cannot be an archive
        EnvironmentLacks: zstd is missing
        RecordError: the file cannot be written, or a record not be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    path = output or Path(time.strftime("llmb-%Y%m%d-%H%M%S.tar.zst"))
    check_archive(path, overwrite=overwrite)  # before the runs are measured
    workspace = Workspace()
    rows = select_rows(workspace, runs, run_filter(workspace, **filters), others="not packed")
    folders = [row.folder for row in rows]
    if not folders:
        raise RequestError(none_matches(filters, "run of yours"), remedy="llmb-run jobs lists the recorded runs")
    written = write_archive(
        path,
        folders,
        as_dicts(measure(rows, workspace)),
        profiles=profiles,
        unmasked=unmasked,
        secrets=stored_secrets(workspace.install),
        overwrite=overwrite,
    )
    for name in written.masked:
        notice(f"a secret was masked in {name}")
    for name in written.left_out:
        notice(f"left out, because secrets in it could not be masked: {name} (--unmasked packs it)")
    return Result(
        data={
            "path": str(path.absolute()),
            "bytes": written.bytes,
            "runs": written.runs,
            "sha256": written.hashes,
            "left_out": written.left_out,
        },
        text=f"{path}\n",
        remarks=[
            f"{counted(written.runs, 'run')}, {len(written.hashes)} files, {size(written.bytes)}; "
            "in the unpacked folder, sha256sum -c SHA256SUMS checks it"
        ],
    )
