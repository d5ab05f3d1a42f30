"""The parts of the batch script that watch over the job: its own record of events, and the end of a step that hangs.

All of it is plain bash, shown by a dry run. Numbers from the environment are checked before they meet arithmetic, where
bash would evaluate them.
"""

from __future__ import annotations

from llmb_common.planning.job_plan import JobPlan

HANG_STEPS = 20
"""A step counts as hung after so many times the median step without a new iteration, and at least HANG_SECONDS."""

HANG_SECONDS = 600
TEARDOWN_SECONDS = 300
"""How long ranks may take to exit after the last iteration."""

LONG_SECONDS = 1800
"""Both at least so long where a checkpoint or a profile is written between steps or at the end."""

HANG_STATUS = 124
"""Exit code of a job that was ended because it hung."""

_TEARDOWN, _HANG = 10, 11  # what the supervisor's exit status says


def events(plan: JobPlan) -> list[str]:
    """The function ``event NAME EXIT_CODE``, the claim of the run, and the start event."""
    nodes = '"${SLURM_JOB_NODELIST:-}"' if plan.slurm is not None else '"$(hostname)"'
    return [
        "# The job's own record: it needs no accounting database.",
        "job=${SLURM_JOB_ID:-local-$$}",
        *_task_id(plan),
        "event() {",
        '  local json=\'{"event":"%s","time":%s,"job_id":"%s","pid":%s,"restart":%s,"nodes":"%s","exit_code":%s}\\n\'',
        "  # shellcheck disable=SC2059  # the format is the constant above",
        f'  printf "$json" "$1" "$(date +%s)" "$job" "$$" "${{SLURM_RESTART_COUNT:-0}}" {nodes} "$2" \\',
        '    >> "$LLMB_RUN_DIR/events.jsonl"',
        "}",
        "",
        "# Should two jobs of this run ever exist, the first one to start has it; a requeued job keeps it.",
        'if ! (set -o noclobber && printf \'%s\\n\' "$job" > "$LLMB_RUN_DIR/claim") 2> /dev/null &&',
        '  [[ $(< "$LLMB_RUN_DIR/claim") != "$job" ]]; then',
        '  echo "this run belongs to job $(< "$LLMB_RUN_DIR/claim"), not to $job" >&2',
        "  event duplicate null",
        "  exit 125",
        "fi",
        "event start null",
        "# Also a subshell that is killed at its very start runs this trap. Nothing is recorded after the end.",
        "trap 'status=$?",
        'if [[ ${BASHPID:-$$} == "$$" ]]; then trap "" TERM INT; event end "$status"; fi\' EXIT',
    ]


def _task_id(plan: JobPlan) -> list[str]:
    if plan.slurm is None:
        return []
    return [
        "if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then",
        "  job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID  # as squeue and sacct show it",
        "fi",
    ]


def supervisor(plan: JobPlan) -> list[str]:
    """The function ``supervise PID``, which ends process PID when it hangs."""
    long = plan.checkpoint.enabled or plan.profile is not None
    # A checkpoint may take twice as long as the site's rate says before a step counts as hung.
    patient = max(LONG_SECONDS, 2 * plan.checkpoint.save_seconds)
    hang, teardown = (patient, patient) if long else (HANG_SECONDS, TEARDOWN_SECONDS)
    finished = f"${{#times[@]}} >= {plan.exit_after}" if plan.exit_after is not None else "last == steps"
    return [
        "# Ends a step without a new iteration for long, and one that does not exit after its last iteration.",
        'first=$(($(wc -c < "$log") + 1))  # an earlier start of this job may have left its iterations',
        *([] if plan.slurm is None else _first_failure()),
        "seconds() {  # variable, default: whole seconds, or the default",
        '  if [[ ${!1:-} =~ ^[1-9][0-9]{0,6}$ ]]; then echo "${!1}"; else echo "$2"; fi',
        "}",
        "supervise() {",
        "  local poll hang teardown patience verdict index total ms size offset=$first",
        "  local last=0 steps=0 times=() since=$SECONDS",
        "  poll=$(seconds LLMB_WATCH_SECONDS 15)",
        f"  hang=$(seconds LLMB_HANG_SECONDS {hang})",
        f"  teardown=$(seconds LLMB_TEARDOWN_SECONDS {teardown})",
        "  exec 9<> <(:)  # nothing ever comes: reading it is a sleep that starts no process",
        "  while true; do",
        '    read -r -t "$poll" -u 9 || true',
        '    size=$(wc -c < "$log")',
        "    while read -r index total ms; do",
        "      if ((index > last)); then",
        '        last=$index steps=$total since=$SECONDS times+=("$ms")',
        "      fi",
        '    done < <(tail -c "+$offset" "$log" |',
        "      LC_ALL=C sed -nE 's,^.* iteration +([0-9]+)/ *([0-9]+) [|].*\\(ms\\): ([0-9]+).*,\\1 \\2 \\3,p')",
        "    offset=$((size - 4096 > first ? size - 4096 : first))  # a line may have been half written",
        "    ((last > 0)) || continue",
        f"    if (({finished})); then",
        f"      patience=$teardown verdict={_TEARDOWN}",
        "    else",
        '      ms=$(printf \'%s\\n\' "${times[@]}" | sort -n | sed -n "$(((${#times[@]} + 1) / 2))p")',
        f"      patience=$((ms * {HANG_STEPS} / 1000)) verdict={_HANG}",
        "      ((patience > hang)) || patience=$hang",
        "    fi",
        "    ((SECONDS - since > patience)) || continue",
        "    trap '' TERM  # the verdict must outlive the step",
        f'    if ((verdict == {_HANG})); then event hang "$last"; else event teardown "$last"; fi',
        '    kill -TERM "$1" 2> /dev/null || true',
        "    for ((size = 0; size < 60; size++)); do",
        '      kill -0 "$1" 2> /dev/null || break',
        "      read -r -t 1 -u 9 || true",
        "    done",
        '    kill -KILL "$1" 2> /dev/null || true',
        '    exit "$verdict"',
        "  done",
        "}",
    ]


def _first_failure() -> list[str]:
    """The function ``first_failure STATUS``: the exit code of the rank that failed first, else STATUS.

    srun itself gives the largest code: 143 of those that it then ended. It says in the batch log how each task ended.
    """
    return [
        "batch=$LLMB_RUN_DIR/$LLMB_EXPERIMENT/sbatch_$LLMB_EXPERIMENT.out",
        'batch_first=$(($({ wc -c < "$batch"; } 2> /dev/null || echo 0) + 1))',
        "first_failure() {",
        "  local how",
        '  how=$(tail -c "+$batch_first" "$batch" 2> /dev/null |',
        "    sed -nE 's,^srun: error: [^ ]+: tasks? [][0-9, -]+: (.+)$,\\1,p' | sed -n 1p) || true",
        "  case $how in",
        '    "Exited with exit code "*) echo "${how##* }" ;;',
        "    Killed* | Out\\ Of\\ Memory*) echo 137 ;;",
        "    Segmentation\\ fault*) echo 139 ;;",
        "    Aborted*) echo 134 ;;",
        '    *) echo "$1" ;;',
        "  esac",
        "}",
    ]


def run_step(plan: JobPlan) -> list[str]:
    """After the launch, which left the step in the background: wait for it, judge, record the training's exit code."""
    on_slurm = plan.slurm is not None
    note = "signals=1; " if on_slurm else ""
    slurm = [
        '((status == 0)) || status=$(first_failure "$status")',
        "# Slurm signals a cancelled step and this script one after the other; the record has both in order.",
        'if ((status == 143 && ! signals)); then sleep 5 & wait "$!" || true; fi',
    ]
    return [
        "step=$!",
        'supervise "$step" &',
        "supervisor=$!",
        # Only now: a subshell that is killed at its very start would still have this trap.
        *(["signals=0"] if on_slurm else []),
        f"trap '{note}event signal null; kill -TERM \"$step\" 2> /dev/null || true' TERM INT",
        "status=0",
        "while true; do",
        '  wait "$step" && status=0 || status=$?',
        '  kill -0 "$step" 2> /dev/null || break  # else a signal ended only the waiting',
        "done",
        *(slurm if on_slurm else []),
        "verdict=0",
        'kill "$supervisor" 2> /dev/null || true',
        'wait "$supervisor" 2> /dev/null || verdict=$?',
        "case $verdict in",
        f"  {_TEARDOWN}) status=0 ;;  # every iteration was trained, only the exit hung",
        f"  {_HANG}) status={HANG_STATUS} ;;",
        "esac",
        'exit "$status"',
    ]
