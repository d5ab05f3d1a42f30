# shellcheck shell=bash disable=SC2154  # lines above this set what is read here
# Enters the image. It reads:
#
# names, prefixes  the variables that the rank gets, by name and by how their names begin
# local_kinds      file systems that nodes do not share
# room             how much free space an unpacked image is given, in sizes of the image
# image            the image
# start            the command that starts a container, up to its variables
# saves            1 where the rank saves a checkpoint when it is told to end, else 0
# $1               what the rank runs
#
# The ranks of a node share one root, which the first of them unpacks and the last removes. If Enroot mounts the image
# instead, a process of its own serves the files, and ends on the SIGCONT with which Slurm announces a preemption.
if ((saves)); then
  # Slurm signals every process of the step, but these must live until all is saved. An ignored signal stays ignored in
  # child processes; ranks install a handler of their own.
  trap '' TERM
else
  trap : TERM  # it ends the rank, and then this
fi

for prefix in "${prefixes[@]}"; do
  mapfile -t -O "${#names[@]}" names < <(compgen -e "$prefix")
done
options=()
for name in "${names[@]}"; do
  if [[ -n ${!name+set} ]]; then options+=(--env "$name"); fi
done

# Enroot keeps roots in $data. Ours have a file each in $locks, which says "root" once the root is complete, or "image"
# where there is none. Every rank that uses a root holds a lock on its file. Who makes, starts or removes one has the
# lock of the file "turn": a start holds a lock of Enroot's while its hooks run, for which others wait only 30 s.
data=$(enroot info 2> /dev/null | sed -n 's/^ *ENROOT_DATA_PATH=//p') || true  # releases before 4.0 do not say
locks=$data/.llmb-$UID
root=llmb-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.${SLURM_STEP_ID:-0}

# Whether roots can be kept on this node. On a file system that nodes share they would be unpacked over the network.
keeps_roots() {
  [[ -d $data && " ${local_kinds[*]} " == *" $(stat -f -c %T -- "$data" 2> /dev/null) "* ]] || return 1
  mkdir -m 700 -- "$locks" 2> /dev/null || true
  [[ -d $locks && -O $locks && ! -L $locks ]] && { : >> "$locks/turn"; } 2> /dev/null
}

remove() {  # name of a root
  enroot remove -f "$1" > /dev/null 2>&1 || true
  rm -f -- "$locks/$1"
}

# Removes roots that nobody uses: of jobs that were killed.
sweep() {
  local file
  for file in "$locks"/llmb-*; do
    if [[ -f $file ]] && flock -n "$file" true; then remove "${file##*/}"; fi
  done
}

# Makes the root; without room for it, or if that fails, there is none.
make() {
  local free said
  free=$(df --output=avail -B1 -- "$data" | tail -n 1) || free=0
  if ((free < room * $(stat -L -c %s -- "$image"))); then
    said="$data has $((free >> 30)) GiB free"
  elif said=$(enroot create --name "$root" -- "$image" 2>&1); then
    echo root >&7
    return
  fi
  enroot remove -f "$root" > /dev/null 2>&1 || true
  echo image >&7
  echo "the image is mounted, not unpacked (${said##*$'\n'}): if this job is preempted with grace, it loses what it did" \
    "since its last checkpoint" >&2
}

if keeps_roots; then
  exec 8<> "$locks/turn"
  flock 8
  exec 7<> "$locks/$root"
  flock -s 7
  if [[ ! -s $locks/$root ]]; then
    sweep
    make
  fi
fi
if [[ ! -e $locks/$root || $(< "$locks/$root") != root ]]; then
  exec "${start[@]}" "${options[@]}" "$image" bash -c "$1" 7>&- 8>&-
fi

# Enroot closes all files but the first three: the turn goes along as the first, and ends when the rank closes it.
# This shell ignores SIGTERM while it waits: bash (5.2) may lose the status of a child that ends just as a signal
# interrupts that.
trap '' TERM
(
  ((saves)) || trap - TERM
  exec "${start[@]}" "${options[@]}" "$root" bash -c $'exec < /dev/null\n'"$1"
) <&8 7>&- 8>&- &
rank=$!
exec 8>&-
{ wait "$rank"; } 2> /dev/null && status=0 || status=$?

exec 8<> "$locks/turn"
flock 8 || true
if flock -n 7; then remove "$root"; fi
# Slurm says of a rank how it ended.
if ((status > 128)); then
  ulimit -c 0
  trap - TERM
  kill -s "$((status - 128))" "$$" 2> /dev/null || true
fi
exit "$status"
