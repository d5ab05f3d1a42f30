# shellcheck shell=bash disable=SC2154  # reads local_rank, core_stride and core_count, adds to prefix
# As NVIDIA's launcher binds ranks on B300. A node that numbers fewer cores, or does not give them all, binds to none.
first=$((local_rank * core_stride))
if numactl "--physcpubind=$first-$((first + core_count - 1))" true 2> /dev/null; then
  ((${#prefix[@]})) || prefix=(numactl)
  prefix+=("--physcpubind=$first-$((first + core_count - 1))")
fi
