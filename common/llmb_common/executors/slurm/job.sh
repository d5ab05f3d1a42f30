# shellcheck shell=bash disable=SC2034  # supervise.sh reads these
# The job, as its scheduler knows it.
job=${SLURM_JOB_ID:-local-$$}
if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
  job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID  # as squeue and sacct show it
fi
nodes=${SLURM_JOB_NODELIST:-}
restarts=${SLURM_RESTART_COUNT:-0}
late_signals=1  # Slurm signals a cancelled step and the batch script one after the other
batch=$LLMB_RUN_DIR/$LLMB_EXPERIMENT/sbatch_$LLMB_EXPERIMENT.out
batch_first=$(($({ wc -c < "$batch"; } 2> /dev/null || echo 0) + 1))

# What sbatch was told to --export (NONE at many sites) is for this script. srun would do the same to its steps, which
# then lack even PATH.
unset SLURM_EXPORT_ENV

# Told to end, ranks save and exit. srun would kill them; and Slurm's own warnings come with SIGCONT, at which Enroot's
# stopped keeper of the image's mount wakes up and kills it. scancel sends SIGTERM alone, and to no other task's step.
# shellcheck disable=SC2329  # supervise.sh calls it in a trap
end_step() { timeout 60 scancel --signal=TERM "$job" || true; }
tell_seconds=10
# shellcheck disable=SC2329  # supervise.sh calls it
ask_step() { timeout 60 scancel --signal=URG "$job"; }

# Until the grace is over Slurm says nothing of a preemption to this script, but it answers.
# shellcheck disable=SC2329  # supervise.sh calls it
preempted() {
  local said
  # shellcheck disable=SC2006  # backquotes, as in await
  said=`timeout 60 scontrol show job "$job" --oneliner 2> /dev/null` || return 1
  [[ $said == *" JobState=RUNNING "* && $said == *" PreemptTime="[0-9]* ]]
}

# shellcheck disable=SC2329  # supervise.sh calls it
on_nodes() { timeout 30 srun --overlap --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --mpi=none "$@" 2> /dev/null; }

# Slurm takes a list of nodes to avoid only for a job that waits. One that is queued again is told to end at once, which
# scontrol ignores as this shell does (under timeout it would not), and waits for two minutes (cred_expire): the list is
# in time. A job that lacks it checks the same nodes again.
# shellcheck disable=SC2329  # supervise.sh calls it
queue_again() {  # host list
  local said avoided=$1
  trap '' TERM INT
  said=$(scontrol show job "$SLURM_JOB_ID" --oneliner) || return
  [[ $said == *" JobState=RUNNING "* ]] || return  # somebody has cancelled it
  if [[ $said =~ \ ExcNodeList=([^\ ]+) && ${BASH_REMATCH[1]} != "(null)" ]]; then avoided=${BASH_REMATCH[1]},$1; fi
  scontrol requeue "$SLURM_JOB_ID" && scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$avoided"
}

# srun gives the largest exit code, often 143 of ranks that it ended itself. In the batch log it says of each how it
# ended, the first failure first.
step_status() {  # srun's exit status
  local how
  how=$(tail -c "+$batch_first" "$batch" 2> /dev/null |
    sed -nE 's,^srun: error: [^ ]+: tasks? [][0-9, -]+: (.+)$,\1,p' | sed -n 1p) || true
  case $how in
    "Exited with exit code "*) echo "${how##* }" ;;
    Killed* | Out\ Of\ Memory*) echo 137 ;;
    Segmentation\ fault*) echo 139 ;;
    Aborted*) echo 134 ;;
    *) echo "$1" ;;
  esac
}
