# Sourced by launch.sh and its siblings: sets LLMB_PYTHON to a Python that can import LLMB's library.
# shellcheck shell=bash

# find_python REPOSITORY: LLMB_PYTHON as given, the active environment, LLMB_INSTALL, the quickstart's default place.
find_python() {
  local repository=$1 candidate
  if [[ -n ${LLMB_PYTHON:-} ]]; then
    if [[ -x $LLMB_PYTHON ]]; then return; fi
    printf 'error: LLMB_PYTHON=%s cannot be run\n  -> correct it, or unset it\n' "$LLMB_PYTHON" >&2
    exit 3
  fi
  for candidate in \
    "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" \
    "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" \
    "${LLMB_INSTALL:+$LLMB_INSTALL/venvs/llmb/bin/python}" \
    "$repository/llmb_install/venvs/llmb/bin/python"; do
    if [[ -n $candidate && -x $candidate ]] && has_llmb "$candidate"; then
      export LLMB_PYTHON=$candidate
      return
    fi
  done
  # A Python that has LLMB installed, or at least what the library needs, beside this clone.
  if candidate=$(command -v python3) && has_llmb "$candidate"; then
    export LLMB_PYTHON=$candidate
    return
  fi
  printf 'error: no Python with LLMB found (tried the active environment, LLMB_INSTALL and %s)\n' \
    "$repository/llmb_install" >&2
  printf '  -> run ./installer.py --quickstart, or set LLMB_PYTHON to the Python of an installation\n' >&2
  exit 3
}

# Whether a Python has the distribution, seen in its site-packages: starting it to ask would cost more than planning.
has_llmb() {
  local found
  found=$(compgen -G "$(dirname -- "$1")/../lib/python3*/site-packages/llmb-*.dist-info" || true)
  [[ -n $found ]]
}
