#!/usr/bin/env bash
# Plans and submits one job of this recipe. Settings are variables: JOB_TOTAL_GPUS=256 GPU_TYPE=gb200 ./launch.sh
# DRY_RUN=true prints the batch script, DRY_RUN=json the plan; README.md lists everything.
set -euo pipefail

recipe=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../common/find_python.sh
. "$recipe/../common/find_python.sh"
find_python "$(dirname -- "$recipe")"
exec "$LLMB_PYTHON" -m llmb_common.launch "$recipe" "$@"
