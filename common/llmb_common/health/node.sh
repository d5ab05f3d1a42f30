# shellcheck shell=bash
# Starts the program on a node: its code, its arguments, and Pythons to try. Only where there is none, bash says so.
code=$1 spec=$2
shift 2
for python in "$@"; do
  if [[ $(timeout -k 1 10 "$python" -c 'import sys; print(sys.version_info >= (3, 6))' 2> /dev/null) == True ]]; then
    exec "$python" -c 'import base64, sys, zlib
exec(zlib.decompress(base64.b64decode(sys.argv[1])).decode())' "$code" "$spec"
  fi
done
echo "LLMB-HEALTH ${SLURMD_NODENAME:-$(hostname)} no-python"
