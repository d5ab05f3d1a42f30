#!/usr/bin/env bash
# The manual way to prepare this recipe: its container image and environment, under LLMB_INSTALL.
#   ./setup.sh            here        sbatch -A ACCOUNT -p PARTITION -N 1 ./setup.sh        on a compute node
# Arguments go on to `llmb-install add`.
set -euo pipefail

fail() {
    printf 'setup.sh: %s\n  -> %s\n' "$1" "$2" >&2
    exit "$3"
}

recipe="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
# sbatch runs a copy from its spool folder: there the recipe is where sbatch was called.
if [[ -n "${SLURM_JOB_ID:-}" && ! -f "$recipe/recipe.yaml" ]]; then
    recipe="${SLURM_SUBMIT_DIR:-$PWD}"
fi
[[ -f "$recipe/recipe.yaml" ]] ||
    fail "no recipe.yaml in $recipe" "run it from the recipe's folder: cd llama3.1 && ./setup.sh" 2

if [[ -z "${LLMB_INSTALL:-}" ]]; then
    [[ -z "${STAGE_PATH:-}" ]] ||
        fail "STAGE_PATH is the old name of the installation folder" "export LLMB_INSTALL=\"\$STAGE_PATH\"; unset STAGE_PATH" 2
    fail "LLMB_INSTALL is not set" "export LLMB_INSTALL=/path/on/the/shared/file/system" 2
fi
export LLMB_INSTALL

workload="$(sed -n 's/^workload: *//p' "$recipe/recipe.yaml")"

if [[ -x "$LLMB_INSTALL/venvs/llmb/bin/llmb-install" ]]; then
    tool="$LLMB_INSTALL/venvs/llmb/bin/llmb-install"
elif ! tool="$(command -v llmb-install)"; then
    fail "llmb-install is neither in $LLMB_INSTALL/venvs/llmb nor in the active environment" \
        "run ./installer.py --install-path \"\$LLMB_INSTALL\" once in the clone of the repository" 3
fi
exec "$tool" add "$workload" "$@"
