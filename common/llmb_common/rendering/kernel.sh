# shellcheck shell=bash
# Keeps what the kernel of this node has said of GPUs, memory and hardware since the Unix time $1, in the folder $2;
# nothing where it may not be read. What dmesg prints counts from the start of the machine.
said=$({
  journalctl -k --since "@$1" -o short-iso --no-pager 2> /dev/null | grep ' kernel: ' ||
    dmesg 2> /dev/null | awk -v from="$(($(cut -d. -f1 /proc/uptime) - ($(date +%s) - $1)))" -F'[][]' '$2 + 0 >= from'
} | grep -E 'NVRM|SXid|Killed process|segfault at|Hardware Error|AER: .*(Fatal|Uncorrect)' | tail -n 200)
if [[ -n $said ]]; then printf '%s\n' "$said" > "$2/${SLURMD_NODENAME:-$(hostname)}.kernel.log"; fi
