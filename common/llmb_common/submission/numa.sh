# shellcheck shell=bash disable=SC2034,SC2154  # reads local_rank and local_ranks, sets prefix
# Bind each rank to the NUMA node beside its GPU, by the number of nodes that really have CPUs: GB200 and GB300 show
# many more, made of GPU memory, whose CPU lists are empty.
if command -v numactl > /dev/null; then
  numa=()
  for list in /sys/devices/system/node/node[0-9]*/cpulist; do
    [[ -r $list && -n $(< "$list") ]] || continue
    node=${list%/cpulist} node=${node##*/node}
    numa[node]=$node  # by number: node10 is listed before node2
  done
  numa=("${numa[@]}")
  if ((${#numa[@]} > 1)); then
    node=${numa[local_rank * ${#numa[@]} / local_ranks]}
    prefix=(numactl "--cpunodebind=$node" "--membind=$node")
  fi
fi
