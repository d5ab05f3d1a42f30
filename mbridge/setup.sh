#!/usr/bin/env bash
# Prepares this recipe under LLMB_INSTALL without the interactive installer: image, environment, settings.
#   ./setup.sh                                          on this machine
#   sbatch -A ACCOUNT -p PARTITION -N 1 ./setup.sh      on a compute node
# Creates the installation if there is none yet. ../common/setup.sh says which variables it reads; arguments are passed
# on to the installer.
set -euo pipefail

recipe=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# sbatch runs a copy of this file from its spool folder, so look for the recipe where sbatch was called.
if [[ -n ${SLURM_JOB_ID:-} && ! -f $recipe/recipe.yaml ]]; then recipe=${SLURM_SUBMIT_DIR:-$PWD}; fi
if [[ ! -f $recipe/recipe.yaml || ! -f $recipe/../common/setup.sh ]]; then
  printf 'setup.sh: %s is not a recipe folder in a clone\n  -> %s\n' "$recipe" "run it from the recipe's folder: cd llama3.1 && ./setup.sh" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=../common/setup.sh
. "$recipe/../common/setup.sh"
set_up_recipe "$recipe" "$@"
