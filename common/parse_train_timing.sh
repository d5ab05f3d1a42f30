#!/usr/bin/env bash
# Step times in seconds over iterations 11-44, for every run under a folder: parse_train_timing.sh --help
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source-path=SCRIPTDIR source=find_python.sh
. "$here/find_python.sh"
run_parser llmb_common.runs.timing.cli nemo "$@"
