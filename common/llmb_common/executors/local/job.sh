# shellcheck shell=bash disable=SC2034  # supervise.sh reads these
# The job, as its scheduler knows it.
job=${SLURM_JOB_ID:-local-$$}
nodes=$(hostname || true)
restarts=${SLURM_RESTART_COUNT:-0}
late_signals=0
# shellcheck disable=SC2329  # supervise.sh calls it in a trap
end_step() { kill -TERM "$1" 2> /dev/null || true; }
tell_seconds=0  # torchrun would stop waiting for its ranks
preempted() { false; }
# shellcheck disable=SC2329  # supervise.sh calls it
ask_step() { cat "/proc/$1/task"/*/children | xargs -r kill -URG; }
# shellcheck disable=SC2329  # supervise.sh calls it
on_nodes() { timeout 30 "$@"; }
step_status() { echo "$1"; }
