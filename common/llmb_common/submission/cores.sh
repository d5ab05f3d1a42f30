# shellcheck shell=bash disable=SC2154  # reads local_rank, core_stride, core_count and what numa.sh sets, adds to prefix
# Bind each rank to the cores to which NVIDIA's launcher binds it on B300, if they are what it takes them for: in the
# rank's NUMA node, which nodes that number cores round-robin do not give, the first thread of a core each, and fast. With
# Intel's Priority Core Turbo some cores of a Xeon 6776P reach 4.6 GHz, without it all reach 3.9.
is_fast_here() {  # core
  local cpu=/sys/devices/system/cpu/cpu$1 threads fastest
  [[ -e /sys/devices/system/node/node$node/cpu$1 ]] || return
  read -r threads < "$cpu/topology/thread_siblings_list" && [[ ${threads%%[-,]*} == "$1" ]] || return
  if read -r fastest < "$cpu/acpi_cppc/highest_perf"; then  # in units of 100 MHz on these CPUs
    ((fastest >= 46))
  else
    read -r fastest < "$cpu/cpufreq/cpuinfo_max_freq" && ((fastest >= 4600000))
  fi
} 2> /dev/null

if [[ -n ${numa+set} ]] && grep -qs GenuineIntel /proc/cpuinfo; then
  ((${#prefix[@]})) || node=${numa[0]}
  first=$((local_rank * core_stride))
  bound=(--physcpubind="$first-$((first + core_count - 1))")
  for ((core = first; core < first + core_count; core++)); do
    is_fast_here "$core" || bound=()
  done
  # A job that was not given all cores of a node cannot have these.
  if ((${#bound[@]})) && "${prefix[@]:-numactl}" "${bound[@]}" true 2> /dev/null; then
    prefix=("${prefix[@]:-numactl}" "${bound[@]}")
  fi
fi
