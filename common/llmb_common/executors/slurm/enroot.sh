# shellcheck shell=bash disable=SC2034,SC2154  # reads names and prefixes, sets options
for prefix in "${prefixes[@]}"; do
  mapfile -t -O "${#names[@]}" names < <(compgen -e "$prefix")
done
options=()
for name in "${names[@]}"; do
  if [[ -n ${!name+set} ]]; then options+=(--env "$name"); fi
done
