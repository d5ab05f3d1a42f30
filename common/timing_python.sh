# shellcheck shell=bash
# Sourced by the parsers: run_timing_parser mbridge|nemo [arguments]
#
# The parser needs nothing but Python 3.10, so any of LLMB's Pythons will do, and the system's too. The order is that of
# launch.sh: LLMB_PYTHON, the active environment, the installation, python3.

run_timing_parser() {
    local here repository candidate status
    here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
    repository=$(dirname -- "$here")
    # The modules of this folder come first, whatever lies in the current one or is installed. 75: too old a Python.
    local code='
import sys
if sys.version_info < (3, 10):
    sys.exit(75)
sys.path[0] = sys.argv.pop(1)
from llmb_common.timing.cli import main
sys.exit(main())
'
    local candidates=()
    if [[ -n ${LLMB_PYTHON:-} ]]; then
        candidates=("$LLMB_PYTHON") # asked for by name: no other will do
    else
        if [[ -n ${VIRTUAL_ENV:-} ]]; then candidates+=("$VIRTUAL_ENV/bin/python"); fi
        if [[ -n ${CONDA_PREFIX:-} ]]; then candidates+=("$CONDA_PREFIX/bin/python"); fi
        if [[ -n ${LLMB_INSTALL:-} ]]; then candidates+=("$LLMB_INSTALL/venvs/llmb/bin/python"); fi
        candidates+=("$repository/llmb_install/venvs/llmb/bin/python" python3)
    fi
    for candidate in "${candidates[@]}"; do
        if ! type -P -- "$candidate" >/dev/null; then continue; fi
        status=0
        # -E and -S: neither PYTHON* variables nor installed packages are needed, and both cost time.
        "$candidate" -E -S -c "$code" "$here" "$@" || status=$?
        case $status in
        75 | 126 | 127) ;;
        *) return "$status" ;;
        esac
    done
    if [[ -n ${LLMB_PYTHON:-} ]]; then
        printf 'error: LLMB_PYTHON=%s is no Python 3.10 or newer\n' "$LLMB_PYTHON" >&2
        printf '  -> unset it, or set it to the path of one\n' >&2
    else
        printf 'error: no Python 3.10 or newer found (looked at: %s)\n' "${candidates[*]}" >&2
        printf '  -> set LLMB_PYTHON to one, set LLMB_INSTALL to the installation, or run ./installer.py\n' >&2
    fi
    return 3
}
