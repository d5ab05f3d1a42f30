# shellcheck shell=bash
# Sourced by launch.sh and the log parsers: finds a Python and uses it to run the library next to this file.
#
#   run_library llmb_common.submission.launch [argument...]    a Python that has LLMB's dependencies
#   run_parser  llmb_common.runs.timing.cli [argument...]      any Python 3.10 or newer: the parsers need nothing else
#
# Tried in this order: LLMB_PYTHON, the active environment, LLMB_INSTALL, the quickstart's default folder, python3.
# Source it by its absolute path without links; a process started for anything here takes a tenth of a Python's start.

# This clone's library comes first, whatever is in the current folder, on PYTHONPATH or installed. Imports make many
# objects and leave none behind: looking for garbage among them, and once more at the end, takes a sixth of the time.
llmb_start='
import gc
import sys
gc.set_threshold(100_000)
sys.path[0] = sys.argv.pop(1)
module = sys.argv.pop(1)
sys.argv[0] = sys.argv.pop(1)
main = None
try:
    main = __import__(module, fromlist=["main"]).main
    status = main()
except Exception as error:
    from llmb_common.base.packages import lost_package_file
    why = lost_package_file(error)
    if why is None and main is None:
        why = "%s: %s" % (type(error).__name__, error)
    if why is None:
        raise
    print("error: %s cannot run LLMB: %s" % (sys.executable, why), file=sys.stderr)
    print("  -> run ./installer.py update in the clone, or set LLMB_PYTHON to the Python of an installation", file=sys.stderr)
    status = 3
gc.freeze()
sys.exit(status)
'

run_library() {
  find_python has_llmb "with LLMB" "run ./installer.py --quickstart, or set LLMB_PYTHON to the Python of an installation"
  exec "$python" -E -s -c "$llmb_start" "$common" "$1" "${0##*/}" "${@:2}"
}

run_parser() {
  find_python is_python "3.10 or newer" "set LLMB_PYTHON to one, or run ./installer.py"
  exec "$python" -E -S -c "$llmb_start" "$common" "$1" "${0##*/}" "${@:2}"
}

# find_python PREDICATE WHAT REMEDY: sets `python` to the first suitable candidate, and `common` to this folder.
find_python() {
  local candidate candidates
  common=${BASH_SOURCE[0]%/*}
  if [[ -n ${LLMB_PYTHON:-} ]]; then # explicitly requested: do not fall back to another
    python=$LLMB_PYTHON
    if is_python "$python"; then return; fi
    local problem='is not Python 3.10 or newer'
    type -P -- "$python" > /dev/null || problem='is not there, or not a program'
    printf 'error: LLMB_PYTHON=%s %s\n' "$LLMB_PYTHON" "$problem" >&2
    printf '  -> unset it, or set it to the path of Python 3.10 or newer\n' >&2
    exit 3
  fi
  candidates=(
    ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"}
    ${CONDA_PREFIX:+"$CONDA_PREFIX/bin/python"}
    ${LLMB_INSTALL:+"$LLMB_INSTALL/venvs/llmb/bin/python"}
    "${common%/*}/llmb_install/venvs/llmb/bin/python"
    python3
  )
  for candidate in "${candidates[@]}"; do
    python=$candidate
    if [[ $candidate != */* ]]; then python=$(type -P -- "$candidate") || continue; fi
    if [[ -f $python && -x $python ]] && "$1" "$python"; then return; fi
  done
  if [[ -n ${LLMB_INSTALL:-} && -d $LLMB_INSTALL && ! (-x $LLMB_INSTALL && -r $LLMB_INSTALL) ]]; then
    printf 'error: LLMB_INSTALL=%s is not accessible to you\n' "$LLMB_INSTALL" >&2
    printf '  -> ask its owner for access (docs/administrators.md), or create your own installation\n' >&2
    exit 3
  fi
  printf 'error: no Python %s found (tried: %s)\n  -> %s\n' "$2" "${candidates[*]}" "$3" >&2
  exit 3
}

is_python() {
  "$1" -E -S -c 'import sys; sys.exit(sys.version_info < (3, 10))' > /dev/null 2>&1
}

# Whether a Python has LLMB installed, judging by its site-packages: starting it to find out would take longer than
# planning.
has_llmb() {
  compgen -G "${1%/*}/../lib/python3*/site-packages/llmb-*.dist-info" > /dev/null
}
