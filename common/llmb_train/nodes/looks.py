"""The looks at a node, each one a function that returns JSON values. Starts on Python 3.6.

``ROOT`` has ``proc``, ``sys``, ``dev`` and ``etc``; the variable LLMB_HEALTH_ROOT names another one, for tests.
"""

import functools
import glob
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from llmb_train.nodes import gpus, machine
from llmb_train.nodes.ask import Call, Hangs, NoAnswer, run_program
from llmb_train.nodes.kernel_lines import PATTERNS
from llmb_train.nodes.machine import read_text, sorted_names

TOOL_SECONDS = 15.0
"""No answer of a tool in so long, and it is killed."""
_LOOK_SECONDS = 2 * TOOL_SECONDS + 2
"""For a look that asks tools, two at most."""
FILE_SECONDS = 10.0
_APART_SECONDS = 4.0
"""Between two looks, at processes in state D and at counters: what changes meanwhile."""
KERNEL_HOURS = 24
_MOST_LINES = 400
_KERNEL = re.compile("|".join(PATTERNS))
"""Lines that may mean something; the table of llmb_common.causes says what."""

_OF_ONE_NODE = ("BOOT_IMAGE=", "root=", "initrd=", "ip=", "BOOTIF=", "resume=", "hostname=", "rd.luks", "rd.lvm", "ds=")
"""Beginnings of words of the kernel's command line that differ from node to node."""

ROOT = Path(os.environ.get("LLMB_HEALTH_ROOT", "/").replace("{node}", machine.node_name(os.environ)))


def probes_for(spec: Dict[str, Any]) -> Dict[str, Call]:
    """Return every look at this node by name, as (a function without arguments, the seconds that it may take).

    Nothing is looked at yet. Names are ``machine``, ``gpus``, ``nvlink``, ``imex``, ``services``, ``ports``,
    ``kernel``, ``system``, ``software``, ``stuck``, and ``folder PURPOSE`` for each folder. Each function returns
    JSON values, or raises ``Hangs`` where a tool does not answer. ``spec`` may have ``folders`` to look into, paths
    by purpose; ``written``, the purposes of those in which a file is tried; ``starts``, Python interpreters whose
    start is tried. Each may be missing.
    """
    found = {
        "machine": (lambda: machine.facts(os.environ, ROOT), FILE_SECONDS),
        "gpus": (lambda: gpus.snapshot(TOOL_SECONDS), _LOOK_SECONDS),
        "nvlink": (nvlink, _LOOK_SECONDS),
        "imex": (imex, _LOOK_SECONDS),
        "services": (services, _LOOK_SECONDS),
        "ports": (ports, FILE_SECONDS),
        "kernel": (kernel_log, _LOOK_SECONDS),
        "system": (system, FILE_SECONDS),
        "software": (lambda: software(spec.get("starts", ())), FILE_SECONDS),
        "stuck": (stuck, FILE_SECONDS),
    }  # type: Dict[str, Call]
    for what, path in sorted(spec.get("folders", {}).items()):
        look = functools.partial(folder, path, written=what in spec.get("written", ()))
        found[f"folder {what}"] = (look, FILE_SECONDS)
    return found


def _tool_output(*command: str, seconds: float = TOOL_SECONDS) -> Tuple[Optional[str], Optional[str]]:
    """Run a tool; return (its standard output, None) or (None, why it gave none); both None if not installed.

    ``command`` is the program and its arguments. A tool that ended with another status than 0 gave none.

    Raises:
        Hangs: it did not answer within ``seconds``
    """
    try:
        return run_program(command, seconds).decode("utf-8", "replace"), None
    except Hangs:
        raise
    except NoAnswer as error:
        return None, None if "is not installed" in str(error) else str(error)


# GPUs and what is between them


def nvlink() -> Dict[str, Any]:
    """Return the state of NVLink on this node by nvidia-smi: ``gpus``, ``errors`` and ``missing``.

    Each of ``gpus``, in nvidia-smi's order, has the number of links that run (``up``), a list of the numbers of
    those that do not (``down``), and the different ``rates`` as texts, sorted. ``errors``: the bit error rates, as
    texts in the tool's order, that are other than its zero; empty also where it does not tell them. ``missing``: why
    nvidia-smi did not say; None: it did, or is not installed, in which case, too, the lists are empty.

    Raises:
        Hangs: nvidia-smi did not answer in time
    """
    states, missing = _tool_output("nvidia-smi", "nvlink", "-s")
    errors = None if missing else _tool_output("nvidia-smi", "nvlink", "-e")[0]
    found = []  # type: List[Dict[str, Any]]
    for line in (states or "").splitlines():
        link = re.match(r"\s*Link (\d+): *(.+)", line)
        if re.match(r"GPU \d+", line):
            found.append({"up": 0, "down": [], "rates": []})
        elif link and found and "inactive" in link.group(2).lower():
            found[-1]["down"].append(int(link.group(1)))
        elif link and found:
            found[-1]["up"] += 1
            found[-1]["rates"].append(link.group(2).strip())
    for gpu in found:
        gpu["rates"] = sorted(set(gpu["rates"]))
    rates = re.findall(r"((?:Effective|Symbol) BER: *)(\S+)", errors or "")
    return {"missing": missing, "gpus": found, "errors": [value for _, value in rates if value != "15e-255"]}


def imex() -> Dict[str, Any]:
    """Return the state of IMEX, which shares GPU memory between nodes: ``channels``, ``domain`` and ``missing``.

    ``channels`` is a count of device files, 0: none. ``domain`` is the daemon's word for its state, None where the tool
    gave none. ``missing`` says why the tool could not be asked; None: it was, or is not installed.

    Raises:
        Hangs: the tool did not answer in time
    """
    output, missing = _tool_output("nvidia-imex-ctl", "-N")
    state = re.search(r"(?i)domain state: *(\w+)", output or "")
    channels = len(sorted_names(ROOT / "dev/nvidia-caps-imex-channels"))
    return {"missing": missing, "domain": state.group(1) if state else None, "channels": channels}


def services() -> Dict[str, Any]:
    """Return what systemd says of NVIDIA's fabric manager, and timedatectl of the clock's synchronization.

    ``fabric_manager`` is a dict with ``LoadState`` and ``ActiveState``, ``time`` one with ``NTPSynchronized``, each
    with the tool's word as text; empty where the tool gave nothing.

    Raises:
        Hangs: a tool did not answer in time
    """
    found = {}  # type: Dict[str, Any]
    for name, command in (
        ("fabric_manager", ("systemctl", "show", "-p", "LoadState,ActiveState", "nvidia-fabricmanager")),
        ("time", ("timedatectl", "show", "-p", "NTPSynchronized")),
    ):
        output, _ = _tool_output(*command, seconds=TOOL_SECONDS / 2)
        found[name] = dict(line.split("=", 1) for line in (output or "").splitlines() if "=" in line)
    return found


def ports() -> List[Dict[str, Any]]:
    """Return for each port of InfiniBand and RoCE adapters ``name``, ``phys``, ``board``, ``gids`` and ``errors``.

    ``phys`` is its physical state (``LinkUp``), ``board`` the adapter's board, either None where it is not known;
    ``gids`` a sorted list of kinds of addresses; ``errors`` has by counter's name, as ``_adapter_ports`` has them,
    how much it has grown in four seconds, which this call takes. None: not known, as of a counter that was reset and
    of all those of a port that has come meanwhile. Sorted by name; empty: no adapter.
    """
    before = {port["name"]: port["errors"] for port in _adapter_ports()}
    time.sleep(_APART_SECONDS)
    after = _adapter_ports()
    for port in after:
        earlier = before.get(port["name"], {})
        port["errors"] = {name: _growth(earlier.get(name), total) for name, total in port["errors"].items()}
    return after


def _growth(before: Optional[int], after: Optional[int]) -> Optional[int]:
    """Return by how much a counter has grown; None where a total is not known, or the counter was reset."""
    if before is None or after is None or after < before:
        return None
    return after - before


def _adapter_ports() -> List[Dict[str, Any]]:
    """Return for each port of network adapters its physical state, board, kinds of addresses, and error counters.

    A dict with ``name``, ``phys``, ``board``, ``gids`` (sorted) and ``errors`` (the totals ``symbol_error``,
    ``link_error_recovery``, ``link_downed`` and ``port_rcv_errors``). Where the kernel does not tell them, ``phys``,
    ``board`` and each of the totals are None, and ``gids`` is empty. Sorted by name; empty: no adapter.
    """
    found = []
    for name, adapter, port in machine.ports(ROOT / "sys/class/infiniband"):
        types = port / "gid_attrs/types"
        kinds = {read_text(types / number) for number in sorted_names(types)}
        counters = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors")
        found.append(
            {
                "name": name,
                "phys": (read_text(port / "phys_state") or "").rpartition(":")[2].strip() or None,
                "board": read_text(adapter / "board_id"),
                "gids": sorted(kind for kind in kinds if kind),
                "errors": {counter: _leading_integer(read_text(port / "counters" / counter)) for counter in counters},
            }
        )
    return found


# The node


def kernel_log() -> Dict[str, Any]:
    """Return the kernel's log of the last day, as far as it may matter: ``lines`` and ``missing``.

    ``lines`` is a list of [age in whole seconds, text], oldest first: those of the last 24 hours that match a known
    pattern of trouble, the last 400 at most, each cut to 300 characters. They are the journal's, or, where that has
    none at all or hangs, those of dmesg. ``missing``: why the log could not be read; None: it was, or there is no
    tool for it.

    Raises:
        Hangs: dmesg did not answer in time
    """
    try:
        since = f"--since=-{KERNEL_HOURS}h"
        output, why = _tool_output(
            "journalctl", "-k", since, "-o", "short-unix", "--no-pager", seconds=TOOL_SECONDS / 2
        )
    except Hangs:
        output = None  # long journals take their time; the kernel's own buffer does not
    now = time.time()
    pattern = re.compile(r"(\d{9,}(?:\.\d+)?)\s+(?:\S+ kernel: )?(.*)")
    if not [line for line in (output or "").splitlines() if pattern.match(line)]:
        output, why = _tool_output("dmesg", seconds=TOOL_SECONDS / 2)
        uptime = (read_text(ROOT / "proc/uptime") or "0").split()[0]
        now, pattern = float(uptime), re.compile(r"\[ *(\d+\.\d+)\](?:\[ *[CT]\d+\])? (.*)")
    lines = []
    age = None  # type: Optional[float]
    for line in (output or "").splitlines():
        found = pattern.match(line)
        if found:
            age = now - float(found.group(1))
        # The driver has messages of several lines, of which only the first has a time.
        text = found.group(2) if found else line.strip()
        if age is not None and age < KERNEL_HOURS * 3600 and _KERNEL.search(text):
            lines.append([round(age), text[:300]])
    return {"missing": why if output is None else None, "lines": lines[-_MOST_LINES:]}


def system() -> Dict[str, Any]:
    """Return the limits of this process, shared memory in bytes, and how the node's kernel is set, by name.

    Numbers: the soft limits ``memlock`` (bytes) and ``nofile``, ``shm_size`` and ``shm_free`` (bytes), ``idle_states``
    of a core and ``idle_disabled`` (how many of them), ``numa_nodes`` (those with CPUs), ``page_size`` (bytes),
    ``first_outgoing_port`` and ``clock`` (Unix time now). Texts: ``numa_balancing`` (such as ``1``) and ``cmdline``,
    without what is the node's own. ``governors`` is a sorted list. Bools: ``pod``, ``virtual``, ``peermem``,
    ``open_driver``, ``peer_mapping`` and ``gdrcopy``. A number or ``numa_balancing`` is None where it is not known, or,
    for a limit, unlimited; what else is not known is False, 0 or empty.
    """
    cores = ROOT / "sys/devices/system/cpu"
    governors = [read_text(Path(file)) for file in glob.glob(str(cores / "cpu[0-9]*/cpufreq/scaling_governor"))]
    idle = sorted_names(cores / "cpu0/cpuidle")
    shm = _disk_space(str(ROOT / "dev/shm"))
    cmdline = read_text(ROOT / "proc/cmdline") or ""
    parameters = " ".join(
        read_text(ROOT / file) or ""
        for file in ("proc/driver/nvidia/params", "sys/module/nvidia/parameters/NVreg_RegistryDwords")
    )
    numa = [read_text(Path(file)) for file in glob.glob(str(ROOT / "sys/devices/system/node/node[0-9]*/cpulist"))]
    return {
        "memlock": _soft_limit("Max locked memory"),
        "nofile": _soft_limit("Max open files"),
        "shm_size": shm["size"],
        "shm_free": shm["free"],
        "governors": sorted({governor for governor in governors if governor}),
        "idle_states": len(idle) or None,
        "idle_disabled": sum(read_text(cores / "cpu0/cpuidle" / name / "disable") == "1" for name in idle),
        "numa_balancing": read_text(ROOT / "proc/sys/kernel/numa_balancing"),
        "numa_nodes": len([cpus for cpus in numa if cpus]) or None,
        "cmdline": " ".join(word for word in cmdline.split() if not word.startswith(_OF_ONE_NODE)),
        "page_size": os.sysconf("SC_PAGE_SIZE"),
        # The first line that a kubelet writes; Slinky mounts no service account, which others look for.
        "pod": (read_text(ROOT / "etc/hosts") or "").startswith("# Kubernetes-managed hosts file"),
        "virtual": bool(re.search(r"^flags\s*:.*\bhypervisor\b", read_text(ROOT / "proc/cpuinfo") or "", re.MULTILINE)),
        "first_outgoing_port": _leading_integer(read_text(ROOT / "proc/sys/net/ipv4/ip_local_port_range")),
        "peermem": bool(sorted_names(ROOT / "sys/module/nvidia_peermem")),
        "open_driver": "Open Kernel Module" in (read_text(ROOT / "proc/driver/nvidia/version") or ""),
        "peer_mapping": bool(re.search(r"PeerMappingOverride\s*=\s*1", parameters)),
        "gdrcopy": (ROOT / "dev/gdrdrv").exists() or bool(sorted_names(ROOT / "sys/module/gdrdrv")),
        "clock": time.time(),
    }


def software(starts: Sequence[str] = ()) -> Dict[str, Any]:
    """Return this node's versions of OS, OFED and Enroot, Enroot's settings and folders, and which programs start.

    By name: ``os``, ``ofed`` and ``enroot``, versions as texts, None where it is not installed; ``enroot_missing``,
    why an Enroot that is there does not tell its version, else None; ``enroot_settings``, texts by variable;
    ``unpacked``, its folder for images as ``folder`` describes it; ``roots``, as ``_enroot_roots`` returns, which
    tries a file there; ``starts``, those of the Python interpreters ``starts`` that start, in order.

    Raises:
        Hangs: Enroot did not answer in time
    """
    release = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_text(ROOT / "etc/os-release") or "", re.MULTILINE)
    enroot, why = _tool_output("enroot", "version", seconds=FILE_SECONDS - 2)
    if why:
        _, enroot_problem = _tool_output(
            "bash", "-c", "enroot version 2>&1", seconds=2
        )  # which says what it could not do
        why = (enroot_problem or why).replace("bash", "enroot", 1)
    files = [ROOT / "etc/enroot/enroot.conf"]
    files += [Path(name) for name in sorted(glob.glob(str(ROOT / "etc/enroot/*.d/*")))]
    text = "\n".join(read_text(file) or "" for file in files)
    settings = dict(re.findall(r"^\s*(ENROOT_\w+|MELLANOX_VISIBLE_DEVICES|N\w+HCA\w*)[ =]+(\S+)", text, re.MULTILINE))
    return {
        "os": release.group(1) if release else None,
        "ofed": read_text(ROOT / "sys/module/mlx5_core/version"),
        "enroot": (enroot or "").strip() or None,
        "enroot_missing": why,
        "enroot_settings": settings,
        "unpacked": folder(_unpack_folder(settings)),
        "roots": _enroot_roots(),
        "starts": [program for program in starts if _python_starts(program)],
    }


def _python_starts(program: str) -> bool:
    """Return whether the Python interpreter ``program``, a path or a name, starts, and ends well, within three seconds.

    False also where it is missing.
    """
    try:
        return _tool_output(program, "-c", "pass", seconds=3)[0] is not None
    except Hangs:
        return False


def _enroot_roots() -> Optional[Dict[str, Any]]:
    """Return the folder where Enroot keeps the user's container roots, as ``folder`` describes it, with ``kind``.

    ``kind`` is its file system, in ``stat``'s word; None where that does not say. The whole is None where Enroot
    does not name the folder (before 4.0), is missing, or did not answer within 3 seconds. Tries to write a file
    there, which is removed again.
    """
    try:
        output, _ = _tool_output("enroot", "info", seconds=3)
        found = re.search(r"^ *ENROOT_DATA_PATH=(.+)$", output or "", re.MULTILINE)
        if not found:
            return None
        kind, _ = _tool_output("stat", "-f", "-c", "%T", found.group(1), seconds=3)
    except Hangs:
        return None
    return dict(folder(found.group(1), written=True), kind=(kind or "").strip() or None)


def _unpack_folder(settings: Dict[str, str]) -> str:
    """Return the folder where Enroot unpacks an image for Pyxis, or the nearest existing one above it.

    ``settings`` are texts by variable, from Enroot's own configuration. Pyxis passes no ENROOT_DATA_PATH of the job
    on, so that of ``settings`` counts, else the default below this user's home. Enroot lets a shell evaluate the
    setting, which must be absolute then; what follows another variable than HOME and XDG_DATA_HOME is left out, for
    the file system alone matters.
    """
    home = os.environ.get("HOME", "/")
    default = os.environ.get("XDG_DATA_HOME") or home + "/.local/share"
    path = settings.get("ENROOT_DATA_PATH", default).strip("\"'")
    path = re.sub(r"^\$\{?HOME\}?", home, re.sub(r"^\$\{?XDG_DATA_HOME\}?", default, path)).split("$")[0] or "/"
    path = os.path.abspath(path)
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def stuck() -> List[Dict[str, Any]]:
    """Return processes (dicts: ``pid``, ``name``) that stayed in uninterruptible sleep (state D) for four seconds.

    Sorted by id. They never ran meanwhile; the kernel's own, and other looks at this node, are left out. The call
    takes those four seconds. Empty: none.
    """
    before = _uninterruptible_processes()
    time.sleep(_APART_SECONDS)
    after = _uninterruptible_processes()
    return [{"pid": pid, "name": after[pid][0]} for pid in sorted(after) if before.get(pid) == after[pid]]


def _uninterruptible_processes() -> Dict[int, Tuple[str, str]]:
    """Return the processes in uninterruptible sleep (state D), by id: (name, a text that changes when it runs).

    The kernel's own and other looks at this node are left out. ``?`` is the name of one that has none.
    """
    found = {}
    parent_line = "PPid:\t{}\n".format(os.getppid())  # other looks, which say themselves that they hang
    for name in sorted_names(ROOT / "proc"):
        status = read_text(ROOT / "proc" / name / "status") if name.isdigit() else None
        if (
            status
            and re.search(r"^State:\s*D", status, re.MULTILINE)
            and "VmSize:" in status
            and parent_line not in status
        ):
            ran = " ".join(re.findall(r"ctxt_switches:\s*(\d+)", status))
            title = re.search(r"^Name:\s*(.+)$", status, re.MULTILINE)
            found[int(name)] = (title.group(1) if title else "?", ran)
    return found


def folder(path: str, written: bool = False) -> Dict[str, Any]:
    """Return how this node sees a folder: ``path``, ``there`` (it is a folder), ``free``, ``size`` and ``problem``.

    ``free`` and ``size`` are its file system's, in bytes; None where nothing is at the path. With ``written``, a
    file is written there and removed; ``problem``, a text, says why that failed, after which the file may be left
    there. None: it did not fail, or was not tried, as in a folder that is missing.
    """
    directory = Path(path)
    found = dict(_disk_space(path), path=path, there=directory.is_dir(), problem=None)
    if written and found["there"]:
        # A name of its own: all nodes may try the same shared folder at once.
        trial = directory / f".llmb-health-{machine.node_name(os.environ)}-{os.getpid()}"
        try:
            with trial.open("wb") as stream:
                stream.write(b"x")
                os.fsync(stream.fileno())
            trial.unlink()
        except OSError as error:
            found["problem"] = error.strerror or str(error)
    return found


def _disk_space(path: str) -> Dict[str, Any]:
    """Return the bytes ``free`` to this user and the ``size`` in bytes of the file system at ``path``.

    Both are None where nothing is at the path, or it cannot be looked at.
    """
    try:
        room = os.statvfs(path)
    except OSError:
        return {"free": None, "size": None}
    return {"free": room.f_bavail * room.f_frsize, "size": room.f_blocks * room.f_frsize}


def _soft_limit(name: str) -> Optional[int]:
    """Return this process's soft limit ``name``, in the words and the unit of ``/proc/self/limits``.

    ``name`` is such as ``Max open files``. None: it is unlimited or not known.
    """
    found = re.search(rf"^{name} +(\d+)", read_text(ROOT / "proc/self/limits") or "", re.MULTILINE)
    return int(found.group(1)) if found else None


def _leading_integer(text: Optional[str]) -> Optional[int]:
    """Return the whole number that ``text`` begins with; None where it begins with none, or is None."""
    found = re.match(r"\d+", text or "")
    return int(found.group()) if found else None
