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
# tell_seconds      after which a step that has not ended is told again, 0 where once is enough
# preempted         a function: whether the scheduler is about to take the nodes away and end this job itself
# ask_step          the same, and asks its ranks where they are: SIGURG, which does nothing to other processes
# on_nodes          a function that runs its arguments once on every node, outside containers, for 30 s at most
# kernel            what each node runs then, given the time of the start and the folder nodes/
# step_status       a function that is given the step's exit status and prints the rank's that failed first
#
# Numbers from the environment are checked before they meet arithmetic, where bash would evaluate them.

touch "$log"
first=$(($(wc -c < "$log") + 1))  # an earlier start of this job may have left its iterations

# Runs a command, but waits for it no longer than so many seconds: a file server that is away keeps processes for ever.
within() {  # seconds, command
  read -r -t "$1" _ < <("${@:2}" >&2; echo) || true
}

# The job's own record: it needs no accounting database. A full disk is no reason to end. It has an event all the same:
# in room that the start has taken, which is written over in place.
event() {  # name, exit code or iteration or null
  local line='{"event":"%s","time":%s,"job_id":"%s","pid":%s,"restart":%s,"nodes":"%s","exit_code":%s,"log":%s,"batch":%s}'
  # shellcheck disable=SC2059  # the format is the constant above
  printf -v line "$line" "$1" "$(date +%s)" "$job" "$$" "$restarts" "$nodes" "$2" "$first" "${batch_first:-null}"
  within 20 keep_line "$line" "$LLMB_RUN_DIR/events"
}

# shellcheck disable=SC2329  # event calls it
keep_line() {  # line, file without its ending
  local half
  half=$(tail -c 1 "$2.jsonl" 2> /dev/null) || true  # of a line that was cut
  printf '%s%s\n' "${half:+$'\n'}" "$1" >> "$2.jsonl" || printf '%s\n' "$1" 1<> "$2.spare" || true
}

# Should two jobs of this run ever exist, the first one to start has it; a requeued job keeps it.
if ! (set -o noclobber && printf '%s\n' "$job" > "$LLMB_RUN_DIR/claim") 2> /dev/null &&
  [[ $(< "$LLMB_RUN_DIR/claim") != "$job" ]]; then
  echo "this run belongs to job $(< "$LLMB_RUN_DIR/claim"), not to $job" >&2
  event duplicate null
  exit 125
fi
event start null
printf '%*s\n' $((${#nodes} + 400)) '' > "$LLMB_RUN_DIR/events.spare" || true
began=$(date +%s)
# Also a subshell that is killed at its very start runs this trap. Nothing is recorded after the end.
trap 'status=$?
if [[ ${BASHPID:-$$} == "$$" ]]; then trap "" TERM INT; event end "$status"; fi' EXIT

hung=11 lingered=10 full=12  # exit statuses of supervise

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
  local size='' index total ms
  while read -r -t 20 index total ms; do
    if [[ $index == size ]]; then size=$total; else iteration "$index" "$total" "$ms"; fi
  done < <(exec 2> /dev/null
    echo size "$(wc -c < "$log")"
    tail -c "+$offset" "$log" |
      LC_ALL=C sed -nE 's,^.* iteration +([0-9]+)/ *([0-9]+) [|].*\(ms\): ([0-9]+)[.0-9]* [|].*,\1 \2 \3,p')
  [[ -z $size ]] || offset=$((size - 4096 > first ? size - 4096 : first))  # a line may have been half written
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
    read -r -t 20 -d '' now < <(du -ab "$LLMB_RUN_DIR/ranks" "$LLMB_RUN_DIR/flight" 2> /dev/null) || true
    if [[ $now == *"$LLMB_RUN_DIR/flight"* && $now != *"$LLMB_RUN_DIR/flight/"* ]]; then continue; fi  # still being made
    [[ $now != "$before" ]] || ((round < 4)) || break
  done
}

# Whether the scheduler is about to end a job in which nothing has come for five times as long as an iteration takes.
at_the_limit() {
  ((limit_seconds > 0 && last > 0 && idle >= 30)) &&
    ((idle * 1000 > times[(${#times[@]} - 1) / 2] * 5 && $(date +%s) > began + limit_seconds - 90))
}

# Whether a small new file finds no room beside the log. Any other error is not about room.
disk_is_full() {
  local said=''
  read -r -t 20 -d '' said < <(LC_ALL=C
    { printf '%65536s' '' > "$LLMB_RUN_DIR/.room"; } 2>&1 || true
    rm -f "$LLMB_RUN_DIR/.room") || true
  [[ $said == *"No space left on device"* || $said == *"quota exceeded"* ]]
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

# Ends a step that has had no new iteration for long, and one that does not exit after its last iteration. It counts
# its own pauses: while Slurm suspends a job, no time passes.
supervise() {  # PID of the step
  local poll start hang teardown verdict asked=0 last=0 steps=0 idle=0 times=() offset=$first excuses=0
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

# After a failure, what the kernels have to say; a node that does not answer has 30 s.
kernel_logs() {
  within 20 mkdir -p "$LLMB_RUN_DIR/nodes"
  within 40 on_nodes bash -c "$kernel" bash "$began" "$LLMB_RUN_DIR/nodes"
}

# Tells the step to end, and again while it has not: ranks that are still starting ignore it. Not by signals to this
# script: bash (5.2) can lose the status of a child that ends just as a signal interrupts the waiting for it.
# shellcheck disable=SC2329  # follow calls it in a trap
tell() {  # PID of the step
  ((signals)) || event signal null
  signals=1
  [[ -z $timer ]] || kill "$timer" 2> /dev/null || true
  end_step "$1"
  if ((tell_seconds > 0)); then
    while sleep "$tell_seconds"; do end_step "$1"; done > /dev/null 2>&1 &
    timer=$!
  fi
}

# Whether the log has the last iteration of all.
has_trained() {
  local last=0 steps=0 idle=0 times=() offset=$first
  look
  ((last > 0 && last == steps))
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

# Waits for the step, judges it, and ends this script with the training's exit code.
follow() {  # PID of the step
  local step=$1 supervisor status told verdict='' signals=0 timer=''
  trap 'verdict=$hung' USR1
  trap 'verdict=$lingered' USR2
  supervise "$step" &
  supervisor=$!
  # Only now: a subshell that is killed at its very start would still have this trap.
  trap 'tell "$step"' TERM INT
  while true; do
    wait "$step" && status=0 || status=$?
    if [[ -n $verdict ]] || ! kill -0 "$step" 2> /dev/null; then break; fi  # else a signal ended only the waiting
  done
  # A signal may have ended the waiting just before the step did; the status of a child that is known already is 127.
  if [[ -z $verdict ]]; then
    wait "$step" 2> /dev/null && told=0 || told=$?
    ((told == 127)) || status=$told
  fi
  [[ -z $timer ]] || kill "$timer" 2> /dev/null || true
  ((status == 0)) || [[ -n $verdict ]] || status=$(step_status "$status")
  # A step and this script are signalled one after the other; the record has the signal before the end.
  if ((status == 143 && late_signals && ! signals)); then sleep 5 & wait "$!" || true; fi
  if [[ -z $verdict ]]; then
    kill "$supervisor" 2> /dev/null || true
    wait "$supervisor" 2> /dev/null || verdict=$?
  fi
  ((status == 0 || signals)) || kernel_logs
  case $verdict in
    "$lingered") status=0 ;;  # every iteration was trained, only the exit hung
    "$hung") status=124 ;;
    "$full") status=28 ;;  # ENOSPC, where nothing but the scheduler can keep it
  esac
  if preempted && ! has_trained; then stay_preempted; fi
  exit "$status"
}
