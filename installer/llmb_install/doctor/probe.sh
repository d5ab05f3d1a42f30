# shellcheck shell=bash
# What a compute node, or the container on it, says of itself: NAME=VALUE a line; what is not there prints nothing.
# Arguments: "node" or "image", the seconds that a tool may take, then those of the function.

# A tool that hangs in the driver must not hold up the others.
bounded() {  # program, arguments
  timeout -k 2 "$patience" "$@" 2> /dev/null || case $? in 124 | 137) echo "hung=$1" ;; esac
}

room() {  # name, folder that exists: free bytes as two factors
  bounded stat -f -c "$1=%a %S" "$2"
}

# Where Enroot unpacks an image for Pyxis, which passes no ENROOT_DATA_PATH of the job on. Enroot lets a shell evaluate
# the setting; what follows the first variable is left out here, for the file system alone matters.
data_folder() {
  local folder default=${XDG_DATA_HOME:-$HOME/.local/share}
  # shellcheck disable=SC2016  # the variables' names are looked for
  folder=$(sed -nE 's,^ENROOT_DATA_PATH[[:space:]=]+["'\'']?([^"'\'']+).*,\1,p' \
    /etc/enroot/enroot.conf /etc/enroot/enroot.conf.d/*.conf 2> /dev/null | sed -n 1p |
    sed -E "s,^\\\$\{?HOME\}?,$HOME,; s,^\\\$\{?XDG_DATA_HOME\}?,$default,")
  folder=${folder:-$default} folder=${folder%%\$*}
  until [[ -d $folder ]]; do folder=${folder%/*} folder=${folder:-/}; done
  echo "data=$folder"
  room data_free "$folder"
}

workloads() {  # the folder that doctor made for this
  if [[ -d $1 ]]; then echo "workloads=seen"; fi
  if { : > "$1/$where"; } 2> /dev/null; then echo "workloads=written"; fi
}

node() {  # installation, image folder, folder made for this, runtime, Pythons
  local device python
  echo "host=$(hostname)"
  echo "arch=$(uname -m)"
  echo "memlock=$(ulimit -l)"
  for device in /sys/class/infiniband/*; do
    if [[ -e $device ]]; then echo "infiniband=${device##*/}"; fi
  done
  if [[ -d /sys/module/nvidia_peermem ]]; then echo "peermem=yes"; fi
  if [[ -d $1 ]]; then echo "install=yes"; fi
  if [[ -r $2 ]]; then echo "images=yes"; fi
  if [[ -n $3 ]]; then workloads "$3"; fi
  if [[ $4 == pyxis ]]; then data_folder; fi
  if command -v enroot > /dev/null; then echo "enroot=$(bounded enroot version)"; fi
  bounded nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sed '/^hung=/!s/^/gpu=/'
  bounded nvidia-smi | sed -nE '/^hung=/p; s/.*CUDA Version: ([0-9.]+).*/cuda=\1/p'
  for python in "${@:5}"; do
    if timeout -k 2 "$patience" "$python" -c pass 2> /dev/null; then echo "python=$python"; fi
  done
  echo "clock=$(date +%s.%N)"
}

image() {  # folder made for this
  echo "started=yes"
  echo "root=$(stat -f -c %T /)"
  if [[ -n $1 ]]; then workloads "$1"; fi
  bounded nvidia-smi -L | sed -nE '/^hung=/p; s/^GPU ([0-9]+).*/gpu=\1/p'
}

where=$1 patience=$2
shift 2
"$where" "$@"
