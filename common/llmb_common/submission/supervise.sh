# shellcheck shell=bash disable=SC2154,SC2329  # a batch script sets what is read here, and calls begin and follow
# Watches over the ranks of a job, and records what becomes of them. A batch script calls begin, starts the ranks in the
# background, and gives their PID to follow, which ends the script. It sets:
#
# log               the training log
# start_seconds     how long the first iteration may take to end, from the start of the step, before it counts as hung
# hang_seconds      the same for each later one, or 20 times the median iteration where that is longer
# teardown_seconds  how long ranks may take to exit after the last iteration
# limit_seconds     after which the scheduler ends the job, 0 where nobody does or ranks may be saving then
#
# The scheduler's part, job.sh, sets:
#
# job               the scheduler's id of this job, as its queue shows it
# nodes             where it runs
# restarts          how often the scheduler has started it again
# batch_first       the first byte of the batch log that is of this start, where there is such a log
# late_signals      1 where a signal can reach this script seconds after the step that it ended
# end_step          a function that is given the PID of the step and tells its ranks to end
# tell_seconds      after which a step that has not ended is told again, 0 where once is enough
# preempted         a function: whether the scheduler is about to take the nodes away and end this job itself
# ask_step          the same as end_step, and asks the ranks where they are: SIGURG, which does nothing to other processes
# on_nodes          a function that runs its arguments once on every node, outside containers, for 30 s at most
# queue_again       a function that is given a host list, and has the scheduler queue this job again without these nodes
# step_status       a function that is given the step's exit status and prints the rank's that failed first
#
# "kernel", at the end of the file, is what each node runs after a failure.
#
# Numbers from the environment are checked before they meet arithmetic, where bash would evaluate them.

# ---- The job's own record --------------------------------------------------------------------------------------------

# Runs a command, but waits for it no longer than so many seconds: a file server that is away keeps processes for ever.
within() {  # seconds, command
  read -r -t "$1" _ < <("${@:2}" >&2; echo) || true
}

# Records an event. It needs no accounting database. Called in traps, it has no $(): see await.
event() {  # name, exit code or iteration or null
  local line='{"event":"%s","time":%(%s)T,"job_id":"%s","pid":%s,"restart":%s,"nodes":"%s","exit_code":%s,"log":%s,"batch":%s}'
  # shellcheck disable=SC2059  # the format is the constant above
  printf -v line "$line" "$1" -1 "$job" "$$" "$restarts" "$nodes" "$2" "$first" "${batch_first:-null}"
  within 20 keep_line "$line" "$LLMB_RUN_DIR/events"
}

# Appends a line. A full disk is no reason to end: then it goes into room that the start has taken, over what is there.
keep_line() {  # line, file without its ending
  append_line "$1" "$2.jsonl" || printf '%s\n' "$1" 1<> "$2.spare" || true
}

# Should two jobs of this run ever exist, the first one to start has it; a requeued job keeps it.
claim() {
  if (set -o noclobber && printf '%s\n' "$job" > "$LLMB_RUN_DIR/claim") 2> /dev/null; then return; fi
  if [[ $(< "$LLMB_RUN_DIR/claim") == "$job" ]]; then return; fi
  echo "this run belongs to job $(< "$LLMB_RUN_DIR/claim"), not to $job" >&2
  event duplicate null
  exit 125
}

# Takes the run, and records that it starts and, whatever happens, how it ends.
begin() {
  touch "$log"
  first=$(($(wc -c < "$log") + 1))  # an earlier start of this job may have left its iterations
  claim
  event start null
  printf '%*s\n' $((${#nodes} + 400)) '' > "$LLMB_RUN_DIR/events.spare" || true
  began=$(date +%s)
  trap 'end_of_script "$?"' EXIT
}

end_of_script() {  # its exit status
  [[ ${BASHPID:-$$} == "$$" ]] || return 0  # also a subshell that is killed at its very start runs the trap
  trap '' TERM INT  # nothing is recorded after the end
  event end "$1"
}

# Ends a job that goes on where an earlier one stopped, and finds that none has saved: before containers start, and
# without training what nobody asked for.
require_checkpoint() {  # the folder with the checkpoints
  if [[ -s $1/latest_checkpointed_iteration.txt ]]; then return; fi
  echo "no earlier job has saved a checkpoint in $1: there is nothing to continue from, and no rank was started." \
    "See why the first one failed (llmb-run show), then submit the chain again." | tee -a "$log" >&2
  event no-checkpoint null
  exit 3
}

# Has the nodes of this job checked, and the fabric between them, and ends the script where that says so: then the job
# is queued again without the nodes that fail, which the record has by then. What could not be judged, or takes too
# long, does not keep the job from training. Ranks are not running yet: the job has nothing to lose.
check_nodes() {  # seconds at most, a Python with LLMB
  local checking status=1 verdict='' told=0 without=10 end=11 unfit=$LLMB_RUN_DIR/unfit
  event check null
  timeout --kill-after=30 "$1" "${LLMB_PYTHON:-$2}" -I -m llmb_common.health.own_nodes \
    "$LLMB_RUN_DIR" "$job" "$restarts" "$nodes" > "$unfit" 2>> "$log" &
  checking=$!
  trap 'told=1; kill -TERM "$checking" 2> /dev/null || true' TERM INT
  await "$checking"
  if ((told)); then
    event signal null
    exit 143
  fi
  trap - TERM INT
  if preempted; then  # nodes that are being taken away do not answer
    stay_preempted
    exit 143
  fi
  if ((status != without && status != end)); then
    ((status == 0)) || echo "check before training: not judged (exit status $status; 124: not within $1 s)" >> "$log"
    event checked "$status"
    return
  fi
  nodes=$(< "$unfit") event unfit "$status"
  # What is not on record could be done for ever.
  if ((status == without)) && [[ $(tail -n 1 "$LLMB_RUN_DIR/events.jsonl") == *'"event":"unfit"'* ]]; then
    queue_again "$(< "$unfit")" 2>> "$log" ||
      echo "error: check before training: the job could not be queued again" >> "$log"
  fi
  exit 69
}

# ---- What the log says -----------------------------------------------------------------------------------------------

# Takes note of the iterations that the log has of late.
look() {
  local size='' index total ms
  while read -r -t 20 index total ms; do
    if [[ $index == size ]]; then size=$total; else iteration "$index" "$total" "$ms"; fi
  done < <(exec 2> /dev/null
    echo size "$(wc -c < "$log")"
    tail -c "+$offset" "$log" |
      LC_ALL=C sed -nE 's,^.* iteration +([0-9]+)/ *([0-9]+) [|].*\(ms\): ([0-9]+)[.0-9]* [|].*,\1 \2 \3,p')
  [[ -z $size ]] || offset=$((size - 4096 > first ? size - 4096 : first))  # a line may have been half written
}

# Takes note of an iteration. The times of the first 99 are kept in order, for their median.
iteration() {  # its number, that of the last, milliseconds
  local at=${#times[@]}
  (($1 > last)) || return 0
  last=$1 steps=$2 idle=0
  ((at < 99)) || return 0
  for (( ; at > 0 && times[at - 1] > $3; at--)); do times[at]=${times[at - 1]}; done
  times[at]=$3
  median=${times[(${#times[@]} - 1) / 2]}
}

# Whether the log has the last iteration of all.
has_trained() {
  local last=0 steps=0 idle=0 times=() median offset=$first
  look
  ((last > 0 && last == steps))
}

# ---- A step that is silent -------------------------------------------------------------------------------------------

# What supervise has found, by its exit status.
lingered=10  # every iteration was trained, and ranks do not exit
hung=11      # no iteration came for too long
full=12      # nor could the log have grown

# Ends a step that has had no new iteration for long, and one that does not exit after its last iteration. It counts
# its own pauses: while Slurm suspends a job, no time passes.
supervise() {  # PID of the step
  local poll start hang teardown verdict asked=0 last=0 steps=0 idle=0 times=() median offset=$first excuses=0
  poll=$(seconds LLMB_WATCH_SECONDS 15)
  start=$(seconds LLMB_START_SECONDS "$start_seconds")
  hang=$(seconds LLMB_HANG_SECONDS "$hang_seconds")
  teardown=$(seconds LLMB_TEARDOWN_SECONDS "$teardown_seconds")
  exec 9<> <(:)
  until overdue && ! excused; do
    pause "$poll"
    idle=$((idle + poll))
    look
    if ((!asked)) && at_the_limit; then
      asked=1
      ask_ranks "$1"
    fi
  done
  give_up "$1"
}

seconds() {  # variable, default: whole seconds, or the default; what else a request has is refused before submission
  if [[ ${!1:-} =~ ^[[:space:]]*0*([1-9][0-9]{0,8})[[:space:]]*$ ]]; then echo "${BASH_REMATCH[1]}"; else echo "$2"; fi
}

pause() {  # seconds
  read -r -t "$1" -u 9 || true  # nothing ever comes: a sleep that starts no process
}

# Whether nothing has come for longer than it may take; says in verdict what that means.
overdue() {
  local patience
  if ((last == 0)); then
    verdict=$hung patience=$start
  elif ((last == steps)); then
    verdict=$lingered patience=$teardown
  else
    verdict=$hung patience=$((median * 20 / 1000))
    ((patience > hang)) || patience=$hang
  fi
  ((idle > patience))
}

# Whether the log may be silent because it cannot grow: the step then has as long again, and once more when there is
# room. What is still silent after that ends, as hung or for want of room.
excused() {
  ((verdict == hung)) || return 1
  if disk_is_full; then
    if ((excuses > 0)); then verdict=$full; return 1; fi
    event disk-full "$last"
  else
    ((excuses == 1)) || return 1
    event disk-room "$last"
  fi
  excuses=$((excuses + 1)) idle=0
}

# Whether a small new file finds no room beside the log. Any other error is not about room.
disk_is_full() {
  local said=''
  read -r -t 20 -d '' said < <(LC_ALL=C
    { printf '%65536s' '' > "$LLMB_RUN_DIR/.room"; } 2>&1 || true
    rm -f "$LLMB_RUN_DIR/.room") || true
  [[ $said == *"No space left on device"* || $said == *"quota exceeded"* ]]
}

# Whether the scheduler is about to end a job in which nothing has come for five times as long as an iteration takes.
at_the_limit() {
  ((limit_seconds > 0 && last > 0 && idle >= 30)) &&
    ((idle * 1000 > median * 5 && $(date +%s) > began + limit_seconds - 90))
}

# Has the ranks write where they are (ranks/, flight/), and waits while there is more, for 20 s at most.
ask_ranks() {  # PID of the step
  local before now=nothing round
  [[ -d $LLMB_RUN_DIR/ranks ]] || return 0
  ask_step "$1" || true
  for round in {1..10}; do
    pause 2
    before=$now
    read -r -t 20 -d '' now < <(du -ab "$LLMB_RUN_DIR/ranks" "$LLMB_RUN_DIR/flight" 2> /dev/null) || true
    if [[ $now == *"$LLMB_RUN_DIR/flight"* && $now != *"$LLMB_RUN_DIR/flight/"* ]]; then continue; fi  # still being made
    [[ $now != "$before" ]] || ((round < 4)) || break
  done
}

# Ends the step, and this subshell with the verdict.
give_up() {  # PID of the step
  trap '' TERM  # the verdict must outlive the step
  case $verdict in
    "$hung") event hang "$last" ;;
    "$lingered") event teardown "$last" ;;
  esac
  ((verdict == full)) || ask_ranks "$1"
  kill -TERM "$1" 2> /dev/null || true
  gone "$1" 60 || kill -KILL "$1" 2> /dev/null || true
  # A process that waits for a file server does not die: nobody waits for it any more.
  if ! gone "$1" 20; then
    if ((verdict == lingered)); then kill -USR2 "$$"; else kill -USR1 "$$"; fi
  fi
  exit "$verdict"
}

gone() {  # PID, seconds: whether it ends within them
  local left
  for ((left = $2; left > 0; left--)); do
    kill -0 "$1" 2> /dev/null || return 0
    pause 1
  done
  ! kill -0 "$1" 2> /dev/null
}

# ---- The end of the step ---------------------------------------------------------------------------------------------

# Waits for the step, judges it, and ends this script with the training's exit code.
follow() {  # PID of the step
  local step=$1 supervisor status=1 failed=0 verdict='' signals=0 timer=''
  # A step that not even SIGKILL ends is not waited for. Otherwise what supervise has found is its exit status.
  trap 'verdict=$hung' USR1
  trap 'verdict=$lingered' USR2
  supervise "$step" &
  supervisor=$!
  # Only now: a subshell that is killed at its very start would still have this trap.
  trap 'tell "$step"' TERM INT
  await "$step"
  [[ -z $timer ]] || kill "$timer" 2> /dev/null || true
  # A signal often comes now, right after the step's own: backquotes, as in await.
  # shellcheck disable=SC2006
  ((status == 0)) || [[ -n $verdict ]] || status=`step_status "$status"`
  # A step and this script are signalled one after the other; the record has the signal before the end.
  if ((status == 143 && late_signals && ! signals)); then sleep 5 & wait "$!" || true; fi
  if [[ -z $verdict ]]; then
    kill "$supervisor" 2> /dev/null || true
    wait "$supervisor" 2> /dev/null || verdict=$?
  fi
  ((status == 0)) || failed=1
  case $verdict in
    "$lingered") status=0 ;;  # every iteration was trained, only the exit hung
    "$hung") status=124 ;;
    "$full") status=28 ;;  # ENOSPC, where nothing but the scheduler can keep it
  esac
  if preempted; then
    has_trained || stay_preempted
  elif ((failed && ! signals)); then  # in the grace after a signal there is no time to ask
    kernel_logs
  fi
  exit "$status"
}

# Tells the step to end, and again while it has not: ranks that are still starting ignore it.
tell() {  # PID of the step
  ((signals)) || event signal null
  signals=1
  [[ -z $timer ]] || kill "$timer" 2> /dev/null || true
  end_step "$1"
  if ((tell_seconds > 0)) && kill -0 "$1" 2> /dev/null; then  # else this is the news of its end
    while sleep "$tell_seconds"; do end_step "$1"; done > /dev/null 2>&1 &
    timer=$!
  fi
}

# Asks the nodes what their kernels have to say of a failure; one that does not answer has 30 s.
kernel_logs() {
  within 20 mkdir -p "$LLMB_RUN_DIR/nodes"
  within 40 on_nodes bash -c "$kernel" bash "$began" "$LLMB_RUN_DIR/nodes"
}

# Stays until the scheduler ends this job: then it queues it again, if its site wants that; not what ended by itself.
# It is asked again only after a signal, which may be that end, or the warning of a limit that has become as near.
stay_preempted() {
  local told=0
  trap 'told=1' TERM INT
  event preempted null
  while true; do
    if ((told)); then
      told=0
      preempted || break
    fi
    sleep 60 > /dev/null 2>&1 &
    ((told)) || wait "$!" || true
  done
}
