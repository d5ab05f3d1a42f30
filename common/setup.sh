# shellcheck shell=bash
# Sourced by every recipe's setup.sh: prepares the recipe under LLMB_INSTALL, without asking questions.
#
#   set_up_recipe RECIPE_FOLDER [argument...]
#
# The first time, it creates the installation from the documented variables (SBATCH_ACCOUNT, SBATCH_PARTITION, GPU_TYPE,
# CLUSTER_TYPE) or the Slurm job it runs in; after that, it adds the recipe to the installation. Arguments are passed on
# to the installer: ./setup.sh --gres --image-folder /shared/images. It needs nothing but a Python.

set_up_recipe() {
  local recipe=$1 clone workload python
  shift
  clone=$(dirname -- "$recipe")
  case ${1:-} in
    -h | --help | --version)
      python=$(some_python)
      exec "$python" "$clone/installer.py" "$1"
      ;;
  esac
  require_install_folder
  workload=$(sed -n 's/^workload: *//p' "$recipe/recipe.yaml")
  python=$(some_python)
  local words answers=()
  if [[ -f $LLMB_INSTALL/.llmb/answers.yaml ]]; then
    words=(add "$workload" --install-path "$LLMB_INSTALL" "$@")
  else
    first_answers "$@"
    words=(--install-path "$LLMB_INSTALL" --workloads "$workload" "${answers[@]}" "$@")
  fi
  printf 'setup.sh: %s/installer.py' "$clone" >&2
  printf ' %q' "${words[@]}" >&2
  printf '\n' >&2
  # Without a terminal the installer never asks: it lists what is missing.
  exec "$python" "$clone/installer.py" "${words[@]}" < /dev/null
}

setup_failed() {
  printf 'setup.sh: %s\n  -> %s\n' "$1" "$2" >&2
  exit "$3"
}

require_install_folder() {
  if [[ -n ${LLMB_INSTALL:-} ]]; then return; fi
  if [[ -n ${STAGE_PATH:-} ]]; then
    setup_failed "STAGE_PATH is the old name of the installation folder" \
      "export LLMB_INSTALL=\"\$STAGE_PATH\"; unset STAGE_PATH" 2
  fi
  setup_failed "LLMB_INSTALL is not set" "export LLMB_INSTALL=/path/on/the/shared/file/system" 2
}

# first_answers [argument...]: sets `answers` to the flags of a first installation. The user's own flags come after them
# and take precedence.
first_answers() {
  local kind=${CLUSTER_TYPE:-} account partition word
  if [[ -z $kind ]]; then
    kind=local
    if [[ -n ${SLURM_JOB_ID:-} ]] || type -P sbatch > /dev/null; then kind=slurm; fi
  fi
  for word in "$@"; do
    case $word in
      --cluster-type=*) kind=${word#*=} ;;
      local | slurm) kind=$word ;;
    esac
  done
  answers=(--cluster-type "$kind")
  if [[ $kind == slurm ]]; then
    account=${SBATCH_ACCOUNT:-${SLURM_JOB_ACCOUNT:-}}
    partition=${SBATCH_PARTITION:-${SLURM_JOB_PARTITION:-}}
    answers+=(${account:+--account "$account"} ${partition:+--gpu-partition "$partition"})
    answers+=(${GPU_TYPE:+--gpu-type "$GPU_TYPE"})
  else
    answers+=(--gpu-type "${GPU_TYPE:-cpu}")
  fi
}

# Any Python that starts: if it is too old, the installer finds a newer one.
some_python() {
  local candidate
  if [[ -n ${LLMB_PYTHON:-} ]] && ! "$LLMB_PYTHON" -c '' > /dev/null 2>&1; then # explicitly requested
    setup_failed "LLMB_PYTHON=$LLMB_PYTHON is not there, or is no Python" "unset it, or set it to the path of one" 3
  fi
  for candidate in ${LLMB_PYTHON:+"$LLMB_PYTHON"} python3 python3.11 python3.12 python3.10 python3.13 python3.14; do
    if type -P -- "$candidate" > /dev/null && "$candidate" -c '' > /dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  setup_failed "no Python found on PATH" "load or install Python 3.10 or newer, or set LLMB_PYTHON to one" 3
}
