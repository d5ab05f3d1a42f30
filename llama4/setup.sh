#!/usr/bin/env bash
# Prepares this recipe under LLMB_INSTALL without the interactive installer: image, environment, settings.
#   ./setup.sh            here        sbatch -A ACCOUNT -p PARTITION -N 1 ./setup.sh        on a compute node
# Needs no installation to begin with. ../common/setup.sh says what it reads; arguments go on to the installer.
set -euo pipefail

recipe=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# sbatch runs a copy from its spool folder: there the recipe is where sbatch was called.
if [[ -n ${SLURM_JOB_ID:-} && ! -f $recipe/recipe.yaml ]]; then recipe=${SLURM_SUBMIT_DIR:-$PWD}; fi
if [[ ! -f $recipe/recipe.yaml || ! -f $recipe/../common/setup.sh ]]; then
  printf 'setup.sh: no recipe of a clone in %s\n  -> %s\n' "$recipe" "run it from the recipe's folder: cd llama3.1 && ./setup.sh" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=../common/setup.sh
. "$recipe/../common/setup.sh"
set_up_recipe "$recipe" "$@"
