# shellcheck shell=bash disable=SC2154  # lines above this in a batch script set what is read here
# Watches over the job and records its events. It reads:
#
# job               the scheduler's id of this job, as its queue shows it
# nodes             where it runs
# restarts          how often the scheduler has started it again
# start_seconds     how long the first iteration may take to end, from the start of the step, before it counts as hung
# hang_seconds      the same for each later one, or 20 times the median iteration where that is longer
# teardown_seconds  how long ranks may take to exit after the last iteration
# limit_seconds     after which the scheduler ends the job, 0 where nobody does or ranks may be saving then
# batch_first       the first byte of the batch log that is of this start, where there is such a log
# late_signals      1 where a signal can reach this script seconds after the step that it ended
# end_step          a function that is given the PID of the step and tells its ranks to end
# ask_step          the same, and asks its ranks where they are: SIGURG, which does nothing to other processes
# on_nodes          a function that runs its arguments once on every node, outside containers, for 30 s at most
# kernel            what each node runs then, given the time of the start and the folder nodes/
# step_status       a function that is given the step's exit status and prints the rank's that failed first
#
# Numbers from the environment are checked before they meet arithmetic, where bash would evaluate them.

first=$(($(wc -c < "$log") + 1))  # an earlier start of this job may have left its iterations

# The job's own record: it needs no accounting database. A full disk is no reason to end.
event() {  # name, exit code or iteration or null
  local json='{"event":"%s","time":%s,"job_id":"%s","pid":%s,"restart":%s,"nodes":"%s","exit_code":%s,"log":%s,"batch":%s}\n'
  # shellcheck disable=SC2059  # the format is the constant above
  printf "$json" "$1" "$(date +%s)" "$job" "$$" "$restarts" "$nodes" "$2" "$first" \
    "${batch_first:-null}" >> "$LLMB_RUN_DIR/events.jsonl" ||
    true
}

# Should two jobs of this run ever exist, the first one to start has it; a requeued job keeps it.
if ! (set -o noclobber && printf '%s\n' "$job" > "$LLMB_RUN_DIR/claim") 2> /dev/null &&
  [[ $(< "$LLMB_RUN_DIR/claim") != "$job" ]]; then
  echo "this run belongs to job $(< "$LLMB_RUN_DIR/claim"), not to $job" >&2
  event duplicate null
  exit 125
fi
event start null
began=$(date +%s)
# Also a subshell that is killed at its very start runs this trap. Nothing is recorded after the end.
trap 'status=$?
if [[ ${BASHPID:-$$} == "$$" ]]; then trap "" TERM INT; event end "$status"; fi' EXIT

hung=11 lingered=10  # exit statuses of supervise

seconds() {  # variable, default: whole seconds, or the default; what else a request has is refused before submission
  if [[ ${!1:-} =~ ^[[:space:]]*0*([1-9][0-9]{0,8})[[:space:]]*$ ]]; then echo "${BASH_REMATCH[1]}"; else echo "$2"; fi
}

pause() {  # seconds
  read -r -t "$1" -u 9 || true  # nothing ever comes: a sleep that starts no process
}

# Takes note of an iteration. The times of the first 99, of which the median is wanted, are kept in order.
iteration() {  # its number, that of the last, milliseconds
  local at=${#times[@]}
  (($1 > last)) || return 0
  last=$1 steps=$2 idle=0
  ((at < 99)) || return 0
  for (( ; at > 0 && times[at - 1] > $3; at--)); do times[at]=${times[at - 1]}; done
  times[at]=$3
}

# Takes note of the iterations that the log has of late.
look() {
  local size index total ms
  size=$(wc -c < "$log") || return 0
  while read -r index total ms; do
    iteration "$index" "$total" "$ms"
  done < <(tail -c "+$offset" "$log" |
    LC_ALL=C sed -nE 's,^.* iteration +([0-9]+)/ *([0-9]+) [|].*\(ms\): ([0-9]+)[.0-9]* [|].*,\1 \2 \3,p')
  offset=$((size - 4096 > first ? size - 4096 : first))  # a line may have been half written
}

# Whether nothing has come for longer than it may take; says in verdict what that means.
overdue() {
  local patience=$start
  verdict=$hung
  if ((last > 0 && last == steps)); then
    patience=$teardown verdict=$lingered
  elif ((last > 0)); then
    patience=$((times[(${#times[@]} - 1) / 2] * 20 / 1000))
    ((patience > hang)) || patience=$hang
  fi
  ((idle > patience))
}

# Has the ranks write where they are (ranks/, flight/), and waits while there is more, for 20 s at most.
ask_ranks() {  # PID of the step
  local before now=nothing round
  [[ -d $LLMB_RUN_DIR/ranks ]] || return 0
  ask_step "$1" || true
  for round in {1..10}; do
    pause 2
    before=$now
    now=$(du -sb "$LLMB_RUN_DIR/ranks" "$LLMB_RUN_DIR/flight" 2> /dev/null || true)
    [[ $now != "$before" ]] || ((round < 4)) || break
  done
}

# Whether the scheduler is about to end a job in which nothing has come for five times as long as an iteration takes.
at_the_limit() {
  ((limit_seconds > 0 && last > 0 && idle >= 30)) &&
    ((idle * 1000 > times[(${#times[@]} - 1) / 2] * 5 && $(date +%s) > began + limit_seconds - 90))
}

# Ends a step that has had no new iteration for long, and one that does not exit after its last iteration. It counts
# its own pauses: while Slurm suspends a job, no time passes.
supervise() {  # PID of the step
  local poll start hang teardown verdict asked=0 last=0 steps=0 idle=0 times=() offset=$first
  poll=$(seconds LLMB_WATCH_SECONDS 15)
  start=$(seconds LLMB_START_SECONDS "$start_seconds")
  hang=$(seconds LLMB_HANG_SECONDS "$hang_seconds")
  teardown=$(seconds LLMB_TEARDOWN_SECONDS "$teardown_seconds")
  exec 9<> <(:)
  until overdue; do
    pause "$poll"
    idle=$((idle + poll))
    look
    if ((!asked)) && at_the_limit; then
      asked=1
      ask_ranks "$1"
    fi
  done
  trap '' TERM  # the verdict must outlive the step
  if ((verdict == hung)); then event hang "$last"; else event teardown "$last"; fi
  ask_ranks "$1"
  kill -TERM "$1" 2> /dev/null || true
  for ((idle = 0; idle < 60; idle++)); do
    kill -0 "$1" 2> /dev/null || break
    pause 1
  done
  kill -KILL "$1" 2> /dev/null || true
  exit "$verdict"
}

# After a failure, what the kernels have to say; a node that does not answer has 30 s.
kernel_logs() {
  mkdir -p "$LLMB_RUN_DIR/nodes" && on_nodes bash -c "$kernel" bash "$began" "$LLMB_RUN_DIR/nodes" || true
}

# Waits for the step, judges it, and ends this script with the training's exit code.
follow() {  # PID of the step
  local step=$1 supervisor status verdict='' signals=0
  supervise "$step" &
  supervisor=$!
  # Only now: a subshell that is killed at its very start would still have this trap.
  trap 'signals=1; event signal null; end_step "$step"' TERM INT
  while true; do
    wait "$step" && status=0 || status=$?
    kill -0 "$step" 2> /dev/null || break  # else a signal ended only the waiting
  done
  ((status == 0)) || status=$(step_status "$status")
  # A step and this script are signalled one after the other; the record has the signal before the end.
  if ((status == 143 && late_signals && ! signals)); then sleep 5 & wait "$!" || true; fi
  kill "$supervisor" 2> /dev/null || true
  wait "$supervisor" 2> /dev/null || verdict=$?
  ((status == 0 || signals)) || kernel_logs
  case $verdict in
    "$lingered") status=0 ;;  # every iteration was trained, only the exit hung
    "$hung") status=124 ;;
  esac
  exit "$status"
}
