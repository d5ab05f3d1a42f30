"""``llmb-run archive``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

app = command_app()


@app.command(cls=PlainCommand)
def archive(
    runs: options.Runs = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: llmb-<date>.tar.zst here.")
    ] = None,
    workload: options.Workloads = None,
    size: options.Sizes = None,
    dtype: options.Dtypes = None,
    scale: options.Scales = None,
    state: options.States = None,
    since: options.Since = None,
    limit: options.Limit = None,
    profiles: Annotated[bool, typer.Option("--profiles", help="Nsight Systems reports too.")] = False,
    unmasked: Annotated[
        bool,
        typer.Option("--unmasked", help="Also reports and other files in which no secret can be masked."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an archive of that name.")] = False,
    as_json: options.Json = False,
) -> int:
    """Pack runs into one file: records, scripts, logs and hashes, no secret.

    RUNS are run ids, names, job ids or folders; without any, all of yours that match the options. Checkpoints stay out.
    """
    from llmb_common.errors import RequestError
    from llmb_run.place import Place
    from llmb_run.results.archiving import stored_secrets, write_archive
    from llmb_run.results.measuring import as_dict, measure
    from llmb_run.selecting import own_rows, run_filter, select_rows
    from llmb_run.terminal import notice, print_json

    place = Place()
    wanted = run_filter(
        place, workload=workload, size=size, dtype=dtype, scale=scale, state=state, since=since, limit=limit
    )
    rows = select_rows(place, runs or [], wanted)
    folders = [row.folder for row in (rows if runs else own_rows(rows, "not packed"))]
    if not folders:
        raise RequestError("no run matches", remedy="llmb-run jobs shows the runs on record")
    path = output or Path(time.strftime("llmb-%Y%m%d-%H%M%S.tar.zst"))
    summary = [as_dict(item) for item in measure(folders, place)]
    written = write_archive(
        path,
        folders,
        summary,
        profiles=profiles,
        unmasked=unmasked,
        secrets=stored_secrets(place.install),
        overwrite=overwrite,
    )
    for name in written.masked:
        notice(f"a secret was masked in {name}")
    for name in written.left_out:
        notice(f"left out, because no secret in it could be masked: {name} (--unmasked packs it)")
    if as_json:
        data = {
            "path": str(path.absolute()),
            "bytes": written.bytes,
            "runs": written.runs,
            "sha256": written.hashes,
            "left_out": written.left_out,
        }
        print_json("archive", data)
        return 0
    print(path)
    print(
        f"{written.runs} runs, {len(written.hashes)} files, {written.bytes / 2**20:.1f} MiB; "
        "SHA256SUMS inside checks it after unpacking",
        file=sys.stderr,
    )
    return 0
