#!/usr/bin/env bash
# Make tool.txt and engine-cpu.txt anew: exact releases with the SHA-256 of every file that the package index has of them.
#   installer/locks/update.sh              releases stay as they are locked; new ones are added
#   installer/locks/update.sh --upgrade    the tool's move to the newest that pyproject.toml allows
# Needs uv. Nothing in the files names an index: the hashes hold wherever the packages come from.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

compile() {
    uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
        --custom-compile-command installer/locks/update.sh "$@"
}

compile "$@" --extra install --output-file tool.txt ../../pyproject.toml tool.in
compile --no-deps --output-file engine-cpu.txt engine-cpu.in
cat -- torch-cpu.txt >>engine-cpu.txt
