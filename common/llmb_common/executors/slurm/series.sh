# shellcheck shell=bash disable=SC2154  # lines above this in a batch script set what is read here
# Runs the scripts of several runs one after the other, on the same nodes. It reads:
#
# folder  where a link leads to each run, by its turn
# names   the experiment of each
# limits  seconds after which each is told to end
# graces  seconds that each has then
# reset   a function that is given a turn, and undoes on the nodes what an earlier run has set there
#
# A run has its turn once: where Slurm queues the job again, it goes on with the run that was interrupted.

unset SLURM_EXPORT_ENV  # what sbatch was told to --export is for this script, not for the steps of "reset"
told=0 failed=0 child=''
trap 'told=1; [[ -z $child ]] || kill -TERM "$child" 2> /dev/null || true' TERM INT

say() {  # turn, event, exit status
  local line
  printf -v line '{"event":"%s","time":%(%s)T,"job_id":"%s","exit_code":%s}' "$2" -1 "$SLURM_JOB_ID" "$3"
  append_line "$line" "$folder/$1/events.jsonl" || true
}

for turn in "${!names[@]}"; do
  run=$folder/$turn name=${names[turn]}
  # It was removed, or its turn has ended before the job was queued again.
  if [[ ! -e $run/$name.sbatch ]] || grep -qs '"event":"over"' "$run/events.jsonl"; then continue; fi
  reset "$turn"
  began=$SECONDS log=$run/$name/sbatch_$name.out
  first=$(($({ wc -c < "$log"; } 2> /dev/null || echo 0) + 1))
  timeout --foreground --kill-after="${graces[turn]}" "${limits[turn]}" bash "$run/$name.sbatch" >> "$log" 2>&1 &
  child=$!
  await "$child"
  child=''
  ((status == 0)) || failed=1
  # A run that fails with its node is not over: its job is about to end, and perhaps to be queued again. srun (22.05)
  # then exits with 0.
  if ((!told)) && { ((status != 0)) || tail -c "+$first" "$log" | grep '^srun: error: Node failure on ' > /dev/null; }; then
    sleep 5 & wait "$!" || true
  fi
  ((!told)) || exit 143
  if ((status != 0 && SECONDS - began >= limits[turn])); then say "$turn" limit "$status"; fi
  say "$turn" over "$status"
done
exit "$failed"
