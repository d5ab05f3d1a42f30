# shellcheck shell=bash disable=SC2154  # supervise.sh and lines above this in a batch script set what is read here
# Ends a job that goes on where an earlier one stopped, and finds that none has saved: before containers start, and
# without training what nobody asked for. It reads:
#
# saved  the folder with the checkpoints
if [[ ! -s $saved/latest_checkpointed_iteration.txt ]]; then
  echo "no earlier job has saved a checkpoint in $saved: there is nothing to continue from, and no rank was started." \
    "See why the first one failed (llmb-run show), then submit the chain again." | tee -a "$log" >&2
  event no-checkpoint null
  exit 3
fi
