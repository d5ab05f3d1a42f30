#!/usr/bin/env bash
# Plans and submits one job of this recipe. Settings are environment variables:
#   JOB_TOTAL_GPUS=256 GPU_TYPE=gb200 ./launch.sh
# DRY_RUN=true prints the batch script, DRY_RUN=json the plan; README.md lists all variables.
set -euo pipefail

recipe=$(readlink -f -- "${BASH_SOURCE[0]}")
recipe=${recipe%/*}
if [[ ! -f ${recipe%/*}/common/find_python.sh ]]; then
  printf 'error: %s is not in a clone of the repository\n  -> run launch.sh from the clone\n' "$recipe" >&2
  exit 3
fi
# shellcheck source-path=SCRIPTDIR source=../common/find_python.sh
. "${recipe%/*}/common/find_python.sh"
run_library llmb_common.submission.launch "$recipe" "$@"
