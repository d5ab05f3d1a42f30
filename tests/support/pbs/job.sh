# shellcheck shell=bash disable=SC2034  # supervise.sh reads these
job=${PBS_JOBID:-local-$$}
nodes=$(uniq "${PBS_NODEFILE:-/dev/null}" | paste -sd ,)
restarts=0
late_signals=0
# shellcheck disable=SC2329  # supervise.sh calls it in a trap
end_step() { kill -TERM "$1" 2> /dev/null || true; }
tell_seconds=0
preempted() { false; }
# shellcheck disable=SC2329  # supervise.sh calls it
ask_step() { :; }
# shellcheck disable=SC2329  # supervise.sh calls it
on_nodes() { timeout 30 pbsdsh -- "$@"; }
step_status() { echo "$1"; }
