# shellcheck shell=bash disable=SC2154  # lines above this in a batch script set what is read here
# Watches over the job and records its events. It reads:
#
# job               the scheduler's id of this job, as its queue shows it
# nodes             where it runs
# restarts          how often the scheduler has started it again
# hang_seconds      how long no iteration may end before the step counts as hung, beside hang_steps times the median
# teardown_seconds  how long ranks may take to exit after the last iteration
# exit_after        how many iterations this run trains; 0: as many as its log says
# late_signals      1 where a signal can reach this script seconds after the step that it ended
# step_status       a function that is given the step's exit status and prints the rank's that failed first
#
# Numbers from the environment are checked before they meet arithmetic, where bash would evaluate them.

# The job's own record: it needs no accounting database.
event() {  # name, exit code or iteration or null
  local json='{"event":"%s","time":%s,"job_id":"%s","pid":%s,"restart":%s,"nodes":"%s","exit_code":%s}\n'
  # shellcheck disable=SC2059  # the format is the constant above
  printf "$json" "$1" "$(date +%s)" "$job" "$$" "$restarts" "$nodes" "$2" >> "$LLMB_RUN_DIR/events.jsonl"
}

# Should two jobs of this run ever exist, the first one to start has it; a requeued job keeps it.
if ! (set -o noclobber && printf '%s\n' "$job" > "$LLMB_RUN_DIR/claim") 2> /dev/null &&
  [[ $(< "$LLMB_RUN_DIR/claim") != "$job" ]]; then
  echo "this run belongs to job $(< "$LLMB_RUN_DIR/claim"), not to $job" >&2
  event duplicate null
  exit 125
fi
event start null
# Also a subshell that is killed at its very start runs this trap. Nothing is recorded after the end.
trap 'status=$?
if [[ ${BASHPID:-$$} == "$$" ]]; then trap "" TERM INT; event end "$status"; fi' EXIT

first=$(($(wc -c < "$log") + 1))  # an earlier start of this job may have left its iterations
hang_steps=20
hung=11 lingered=10  # exit statuses of supervise

seconds() {  # variable, default: whole seconds, or the default
  if [[ ${!1:-} =~ ^[1-9][0-9]{0,6}$ ]]; then echo "${!1}"; else echo "$2"; fi
}

# Ends a step that has had no new iteration for long, and one that does not exit after its last iteration.
supervise() {  # PID of the step
  local poll hang teardown patience verdict index total ms size offset=$first
  local last=0 steps=0 times=() since=$SECONDS
  poll=$(seconds LLMB_WATCH_SECONDS 15)
  hang=$(seconds LLMB_HANG_SECONDS "$hang_seconds")
  teardown=$(seconds LLMB_TEARDOWN_SECONDS "$teardown_seconds")
  exec 9<> <(:)  # nothing ever comes: reading it is a sleep that starts no process
  while true; do
    read -r -t "$poll" -u 9 || true
    size=$(wc -c < "$log")
    while read -r index total ms; do
      if ((index > last)); then
        last=$index steps=$total since=$SECONDS times+=("$ms")
      fi
    done < <(tail -c "+$offset" "$log" |
      LC_ALL=C sed -nE 's,^.* iteration +([0-9]+)/ *([0-9]+) [|].*\(ms\): ([0-9]+).*,\1 \2 \3,p')
    offset=$((size - 4096 > first ? size - 4096 : first))  # a line may have been half written
    ((last > 0)) || continue
    if ((exit_after ? ${#times[@]} >= exit_after : last == steps)); then
      patience=$teardown verdict=$lingered
    else
      ms=$(printf '%s\n' "${times[@]}" | sort -n | sed -n "$(((${#times[@]} + 1) / 2))p")
      patience=$((ms * hang_steps / 1000)) verdict=$hung
      ((patience > hang)) || patience=$hang
    fi
    ((SECONDS - since > patience)) || continue
    trap '' TERM  # the verdict must outlive the step
    if ((verdict == hung)); then event hang "$last"; else event teardown "$last"; fi
    kill -TERM "$1" 2> /dev/null || true
    for ((size = 0; size < 60; size++)); do
      kill -0 "$1" 2> /dev/null || break
      read -r -t 1 -u 9 || true
    done
    kill -KILL "$1" 2> /dev/null || true
    exit "$verdict"
  done
}

# Waits for the step, judges it, and ends this script with the training's exit code.
follow() {  # PID of the step
  local step=$1 supervisor signals=0 status=0 verdict=0
  supervise "$step" &
  supervisor=$!
  # Only now: a subshell that is killed at its very start would still have this trap.
  trap 'signals=1; event signal null; kill -TERM "$step" 2> /dev/null || true' TERM INT
  while true; do
    wait "$step" && status=0 || status=$?
    kill -0 "$step" 2> /dev/null || break  # else a signal ended only the waiting
  done
  ((status == 0)) || status=$(step_status "$status")
  # A step and this script are signalled one after the other; the record has the signal before the end.
  if ((status == 143 && late_signals && ! signals)); then sleep 5 & wait "$!" || true; fi
  kill "$supervisor" 2> /dev/null || true
  wait "$supervisor" 2> /dev/null || verdict=$?
  case $verdict in
    "$lingered") status=0 ;;  # every iteration was trained, only the exit hung
    "$hung") status=124 ;;
  esac
  exit "$status"
}
