# shellcheck shell=bash disable=SC2034  # what calls it reads status
# Waits until a child ends, whatever signals are handled meanwhile, and leaves its exit status in "status". Gives up where
# a trap sets "verdict". Looks, instead of blocking in "wait": bash (5.2) loses the status of a child that ends just as a
# signal interrupts that. Nor in "read": one in a trap takes its time limit away. Nor with $(): bash (5.2) ends with a
# syntax error where a signal comes while it looks for the closing parenthesis. Backquotes are not parsed here.
await() {  # PID of the child
  local looks=0 seconds=0.1
  while kill -0 "$1" 2> /dev/null; do
    if [[ -n ${verdict:-} ]]; then return; fi
    # shellcheck disable=SC2006
    : "`sleep "$seconds"`"  # bash says nothing of its end: Slurm may kill it a moment before this shell
    ((++looks < 100)) || seconds=1
  done
  wait "$1" && status=0 || status=$?
}
