# shellcheck shell=bash disable=SC1091,SC2154  # the line above this in a batch script sets sha256
supervisor=$LLMB_RUN_DIR/supervisor.sh
is_ours() { [[ $({ sha256sum < "$supervisor"; } 2> /dev/null) == "$sha256 "* ]]; }
for ((waited = 0; waited < 60; waited++)); do  # a node may see a new file on shared storage late, or half of it
  if is_ours || [[ $LLMB_RUN_DIR == *_TIMESTAMP ]]; then break; fi  # the folder of a dry run never comes
  ((waited > 0)) || echo "waiting up to 60 s for $supervisor" >&2
  sleep 1
done
if ! is_ours; then
  what="is not the one that this script was made with: it was changed, not written to its end, or cannot be read"
  [[ -e $supervisor ]] || what="is missing"
  echo "error: $supervisor $what; no rank was started" >&2
  echo "  -> llmb-run retry ${LLMB_RUN_DIR##*/} starts the run again. A script that was copied, or printed by DRY_RUN," \
    "lacks the folder of a run: start the job with launch.sh or llmb-run" >&2
  exit 3
fi
# shellcheck source=supervisor.sh source-path=SCRIPTDIR
source "$supervisor"
