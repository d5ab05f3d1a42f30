# shellcheck shell=bash
# What the container on a compute node says of itself, which may have no Python: NAME=VALUE a line; what is not there
# prints nothing. Arguments: the seconds that a tool may take, and the folder that doctor made for this, or nothing.
patience=$1

echo "started=yes"
echo "root=$(stat -f -c %T /)"
if [[ -n $2 && -d $2 ]]; then echo "workloads=seen"; fi
if [[ -n $2 ]] && { : > "$2/image"; } 2> /dev/null; then echo "workloads=written"; fi
# A tool that hangs in the driver must not hold up the others.
{
  timeout -k 2 "$patience" nvidia-smi -L 2> /dev/null || case $? in 124 | 137) echo "hung=nvidia-smi" ;; esac
} | sed -nE '/^hung=/p; s/^GPU ([0-9]+).*/gpu=\1/p'
