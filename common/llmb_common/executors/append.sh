# shellcheck shell=bash
# Appends a line, on a line of its own: the file may end in half a line, or in the zeros that a node leaves which dies.
# Fails where it cannot.
append_line() {  # line, file
  local end=''
  # "read" wants a line break. $() would drop a zero.
  if [[ -s $2 ]] && ! tail -c 1 "$2" 2> /dev/null | read -r _; then end=$'\n'; fi
  printf '%s%s\n' "$end" "$1" >> "$2"
}
