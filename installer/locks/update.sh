#!/usr/bin/env bash
# Regenerates tool.txt and the lock of each engine: exact releases, with the SHA-256 of every file in the package index.
#   installer/locks/update.sh              keeps the locked releases and adds new packages
#   installer/locks/update.sh --upgrade    upgrades the tool's packages to the newest that pyproject.toml allows, and uv
# Needs uv. The files do not name an index: the hashes hold wherever the packages come from.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

compile() {
    uv pip compile --quiet --universal --generate-hashes --no-annotate \
        --custom-compile-command installer/locks/update.sh "$@"
}

compile "$@" --python-version 3.10 --extra install --extra report --output-file tool.txt ../../pyproject.toml tool.in
compile "$@" --python-version 3.10 --output-file uv.txt uv.in
compile --python-version 3.10 --no-deps --output-file engine-cpu.txt engine-cpu.in engine-common.in
compile --python-version 3.12 --no-deps --output-file engine-cpu-0.6.txt engine-cpu-0.6.in engine-common.in
for engine in engine-cpu.txt engine-cpu-0.6.txt; do
    cat -- torch-cpu.txt >>"${engine}"
done
