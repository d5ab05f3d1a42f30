# shellcheck shell=bash
# Keeps what the kernel of this node has said of GPUs, memory, links, disks and hardware since the Unix time $1, in the
# folder $2; nothing where it may not be read. What dmesg prints counts from the start of the machine.
# The patterns are those of causes/signatures.yaml: python -m tools --write kernel
mapfile -t known << 'KNOWN'
NVRM: .*?\bXid\b.*?: ?\d+
\bNVRM: Xid\b
\bXid \((?:PCI:)?[0-9a-fA-F:.]+\): \d+
\bSXid \(PCI:[0-9a-fA-F:.]+\): \d+
fallen off the bus
\bGPU (?:is lost|lost from the bus)\b
\[Hardware Error\].*(?:[Uu]ncorrected|[Ff]atal|context corrupt)
mce: .*(?:[Uu]ncorrected|[Ff]atal|context corrupt)
AER: (?!.*Non-?Fatal).*(?:Fatal|Uncorrect)
EDAC \S+: \d+ UE 
mlx5_core.*(?:health compromised|severity\([0-3]\)|firmware internal error)
mlx5_core.*health recovery failed
mlx5_core.*(?:Fatal error \d+ detected|timeout\. Will cause a leak of a command resource)
mlx5_core \S+ \w+: (?:Link down|Port: \d+ Link DOWN)
\b(?:bnxt_en|ice) \S+ \w+: NIC Link is Down
\b(?:ib|mlx5_(?!core)|ens|enp|eth)\w*[:,]? .*[Ll]ost carrier
NETDEV WATCHDOG: (?!usb|enx).*transmit (?:queue \d+ )?timed out
mlx5_core \S+ \w+: TX timeout detected
(?:soft|hard) (?i:lockup)
Kernel panic -
rcu_\w+ self-detected stall
[Rr]emount(?:ing filesystem|ed .*) read-only
mlx5.*(?:High Temperature|insufficient power|ACCESS_REG.*failed|Port module event\[error\])
\[Hardware Error\]
\bmce: .*above threshold
EDAC .*\b(?:CE|UE)\b
nvme.*I/O.*timeout
blocked for more than \d+ seconds
RmInitAdapter failed
oom[-_ ]kill
Out of memory: Kill
Memory cgroup out of memory
invoked oom-killer
oom_reaper
\bsegfault at\b
general protection fault
traps: .*trap
LustreError
blk_update_request
nfs: server \S+ not responding
I/O error, dev \w
KNOWN
wanted=$(IFS='|' && printf '%s' "NVRM|${known[*]}")  # what else the GPU's driver says, for whoever reads it
said=$({
  journalctl -k --since "@$1" -o short-iso --no-pager 2> /dev/null | grep -E ' kernel: |^ ' ||
    dmesg 2> /dev/null | awk -v from="$(($(cut -d. -f1 /proc/uptime) - ($(date +%s) - $1)))" -F'[][]' '/^\[/ { kept = $2 + 0 >= from } kept'
} | { LC_ALL=C grep -aP "$wanted" 2> /dev/null || cat; } |  # all of it where grep knows no -P
  awk 'NR <= 100 { print; next } { late[NR % 100] = $0 }
    END { for (n = NR > 200 ? NR - 99 : 101; n <= NR; n++) print late[n % 100] }')
if [[ -n $said ]]; then printf '%s\n' "$said" > "$2/${SLURMD_NODENAME:-$(hostname)}.kernel.log"; fi
