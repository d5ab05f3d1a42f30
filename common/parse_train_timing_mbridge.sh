#!/usr/bin/env bash
# Step times in milliseconds over iterations 35-44, for every run under a folder: parse_train_timing_mbridge.sh --help
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source-path=SCRIPTDIR source=find_python.sh
. "$here/find_python.sh"
run_parser llmb_common.runs.timing.cli mbridge "$@"
