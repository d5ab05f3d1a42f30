#!/usr/bin/env bash
# Regenerates tool.txt and the lock of each engine: exact releases, with the SHA-256 of every file in the package index.
#   installer/locks/update.sh              keeps the locked releases and adds new packages
#   installer/locks/update.sh --upgrade    upgrades the tool's packages to the newest that pyproject.toml allows, and uv
#   installer/locks/update.sh --check      only asks the index for the wheels of the engines, which the others do as well
# Needs uv. The files do not name an index: the hashes hold wherever the packages come from.
set -euo pipefail

CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
scratch="$(mktemp --directory)"
trap 'rm -r -- "${scratch}"' EXIT

compile() {
    uv pip compile --quiet --universal --generate-hashes --no-annotate \
        --custom-compile-command installer/locks/update.sh "$@"
}

# From standard input: for Python $1, on machine $2, with glibc $3. antlr4-python3-runtime is a source without C.
have_wheels() {
    uv pip install --quiet --dry-run --no-deps --only-binary :all: --no-binary antlr4-python3-runtime \
        --target "${scratch}" --python-version "$1" --python-platform "$2-manylinux_$3" --requirements -
}

# Whether each engine has a wheel of every package for what llmb_install.parts.engine states: its Pythons, glibc and both
# machines. Not of torch, which is elsewhere (torch-cpu.txt).
check() {
    local kinds name python glibc newer machine status=0
    kinds="$(
        PYTHONPATH=..:../../common python3 -c '
from llmb_install.parts.engine import KINDS, MINIMUM_GLIBC
for kind in KINDS.values():
    (major, oldest), (_, newest) = kind.pythons
    for minor in range(oldest, newest + 1):
        print(kind.name, f"{major}.{minor}", "{}_{}".format(*MINIMUM_GLIBC), "|".join(kind.of_newer_python) or "none")
'
    )"
    while read -r name python glibc newer; do
        for machine in x86_64 aarch64; do
            echo "${name}: Python ${python}, ${machine}, glibc ${glibc/_/.}"
            sed -E "/^(${newer})==/d" "${name}.in" engine-common.in | have_wheels "${python}" "${machine}" "${glibc}" &&
                sed -nE "/^(${newer})==/p" "${name}.in" | have_wheels 3.12 "${machine}" "${glibc}" || status=1
        done
    done <<<"${kinds}"
    return "${status}"
}

if [[ "${1-}" != --check ]]; then
    compile "$@" --python-version 3.10 --extra install --output-file tool.txt ../../pyproject.toml
    compile "$@" --python-version 3.10 --output-file charts.txt charts.in
    compile "$@" --python-version 3.10 --output-file hub.txt hub.in
    compile "$@" --python-version 3.10 --output-file uv.txt uv.in
    compile --python-version 3.10 --no-deps --output-file engine-cpu.txt engine-cpu.in engine-common.in
    compile --python-version 3.12 --no-deps --output-file engine-cpu-0.6.txt engine-cpu-0.6.in engine-common.in
    for engine in engine-cpu.txt engine-cpu-0.6.txt; do
        cat -- torch-cpu.txt >>"${engine}"
    done
fi
check
