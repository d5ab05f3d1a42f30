"""All rules about nodes: what each is called, what it means to ``doctor``, ``health`` and a run's evidence, what it
looks at, and what to do about it."""

from __future__ import annotations

from llmb_common.nodes import compare, gpu_rest, gpu_run, host, network
from llmb_common.nodes.facts import used_adapters
from llmb_common.nodes.gpu_rest import each_gpu
from llmb_common.nodes.network import any_ports_differ, rate_of_link, used_ports_differ
from llmb_common.nodes.rule import Level, Rule, each_gpu_run, each_node, far_from_median, same_on_gpus, same_on_nodes
from llmb_common.nodes.rule import several_of_each_node as several

FAIL, WARN, UNKNOWN = Level(health="fail"), Level(health="warn"), Level(health="unknown")
PROBLEM, NOTE = Level(evidence="problem"), Level(evidence="note")
BOTH = Level(health="fail", evidence="problem")
BOTH_BEFORE = Level(doctor="fail", health="fail")
LESS_BEFORE = Level(health="warn", evidence="problem")

_PODS = "docs/administrators.md#slurm-on-kubernetes"
_ADAPTER = "compare ibstat with another node's: cable, transceiver, firmware, switch port"
_CABLE = "have the link checked: cable, transceiver, switch port; NVLinks: fabric manager, then the tray"
_COOLING = "have the node's cooling and power checked"
_CLOCKS = "nvidia-smi -rgc and -rac undo locked clocks"
_DRIVER = "look at the node's kernel log, reset the GPU or reboot the node; if it comes back, have it repaired"
_ENROOT = "install Enroot on the compute nodes"
_ENROOT_FOLDERS = "create the folders of /etc/enroot/enroot.conf (runtime, cache, data) for each user in the prolog"
_FOLDER = "put it on a file system with free space that all nodes mount (the folder of runs: read-write)"
_HCA = "compare the job's NCCL_IB_HCA and NCCL plug-in with what ibstat lists on the node"
_IDLE_GPU = "find and end the process: nvidia-smi on the node"
_IMEX = "check systemctl status nvidia-imex, and its nodes_config"
_MODES = "nvidia-smi -mig 0, nvidia-smi -c DEFAULT"
_NCCL = "look at NET/ in nodes/*.nccl.log: NCCL_IB_HCA, NCCL_NET, and the image's plug-in"
_ODD = "compare the node with a normal one: firmware settings, missing parts"
_POD_ENROOT = f"mount a volume that users can write to, and an enroot.conf that names it: {_PODS}"
_POD_IMAGE = "use an image of slurmd with Pyxis and Enroot, such as Slinky's slurmd-pyxis"
_POD_MEMLOCK = (
    "LimitMEMLOCK=infinity for containerd on the machine below, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf,"
    f" then restart the pod: {_PODS}"
)
_POD_SHM = f"mount an emptyDir with medium: Memory at /dev/shm of slurmd: {_PODS}"
_POWER = "nvidia-smi -pl restores the board's own limit"
_RESET = "have the GPU reset, or the node rebooted"
_SHM = "enlarge or empty /dev/shm"
_UNPACK = "set ENROOT_DATA_PATH in /etc/enroot/enroot.conf to a larger local disk"
_VERSIONS = "install the same version on all nodes"
_WRITTEN = "the record is incomplete: a full disk, a rank that died early"

ANYWHERE: tuple[Rule, ...] = (
    # One node: what doctor alone holds against what the site says
    Rule(
        "architecture",
        Level(doctor="fail"),
        each_node(host.other_architecture),
        "correct arch in cluster_config.yaml: images would be built for the wrong architecture",
    ),
    Rule(
        "network",
        Level(doctor="warn"),
        each_node(network.no_adapters),
        "NCCL would use TCP between nodes, which is many times slower; clouds: docs/administrators.md#clouds",
    ),
    # One node by itself
    Rule("ports", WARN, each_node(host.low_outgoing_ports), "net.ipv4.ip_local_port_range = 32768 60999"),
    Rule("time", WARN, each_node(host.clock_not_kept), "start chronyd"),
    Rule("folders", FAIL, several(host.missing_folders), _FOLDER),
    Rule("folders", WARN, several(host.full_folders), _FOLDER),
    Rule("folders", FAIL, each_node(host.no_room_for_image), _UNPACK),
    Rule("folders", WARN, each_node(host.little_room_for_image), _UNPACK),
    Rule("stuck", FAIL, several(host.hanging_driver), _DRIVER),
    Rule("stuck", WARN, several(host.hanging_processes), _DRIVER),
    Rule("runtime", BOTH_BEFORE, each_node(host.no_enroot), _ENROOT, in_pods=_POD_IMAGE),
    Rule("runtime", BOTH_BEFORE, each_node(host.failing_enroot), _ENROOT_FOLDERS, in_pods=_POD_ENROOT),
    Rule("runtime", FAIL, each_node(host.unwritable_roots), _ENROOT_FOLDERS, in_pods=_POD_ENROOT),
    Rule("kernel-log", UNKNOWN, each_node(host.unread_kernel_log), "kernel.dmesg_restrict = 0 lets users read it"),
    Rule("answer", FAIL, several(host.hung_probes), _DRIVER),
    Rule("answer", WARN, several(host.hung_lesser_probes), _DRIVER),
    Rule("answer", UNKNOWN, several(host.failed_probes), "check again; --json has what the node said"),
    # Nodes before a job, against each other
    Rule("memory", FAIL, far_from_median(compare.memory_gib, compare.is_5_percent_less, "{:.0f} GiB of memory"), _ODD),
    Rule("cpus", FAIL, far_from_median(compare.cpus, compare.is_5_percent_less, "{:.0f} CPUs"), _ODD),
    Rule("numa", FAIL, far_from_median(compare.numa_nodes, compare.is_less, "{:.0f} NUMA nodes"), _ODD),
    Rule(
        "temperature",
        WARN,
        far_from_median(compare.hottest_gpu, compare.is_20_more, "an idle GPU at {:.0f} °C"),
        _COOLING,
    ),
    Rule("clock", FAIL, compare.clock_skew, "start chronyd"),
    Rule(
        "slow-driver",
        WARN,
        far_from_median(compare.seconds_of_driver, compare.is_slow_answer, "nvidia-smi answers in {:.1f} s"),
        "enable nvidia-persistenced; look at the node's kernel log",
    ),
    Rule("port-rate", FAIL, network.slow_ports, _ADAPTER),
    Rule("port-rate", WARN, network.perhaps_slow_ports, _ADAPTER),
    Rule("ports-up", FAIL, network.dark_ports, _ADAPTER),
    Rule("ports-up", WARN, network.perhaps_dark_ports, _ADAPTER),
    Rule("roce", FAIL, network.no_roce_address, "give the interface an IP address: RoCE v2 derives its own from it"),
    Rule("ports-there", FAIL, network.missing_ports, _ADAPTER),
    Rule("ports-there", WARN, network.perhaps_missing_ports, _ADAPTER),
    # The nodes of a run
    Rule("unreadable", NOTE, compare.unreadable, _WRITTEN, "damaged files in nodes/: {}"),
    Rule("missing-nodes", NOTE, compare.missing_nodes, _WRITTEN, "{} nodes left a record"),
    Rule("different-driver", PROBLEM, same_on_nodes(lambda node: node.driver), _VERSIONS, "driver {}; elsewhere {}"),
    Rule(
        "different-kernel", NOTE, same_on_nodes(lambda node: node.machine.kernel), _VERSIONS, "kernel {}; elsewhere {}"
    ),
    Rule(
        "different-nccl",
        PROBLEM,
        same_on_nodes(lambda node: node.nccl.version if node.nccl else None),
        _VERSIONS,
        "NCCL {}; elsewhere {}",
    ),
)

ON_GPUS: tuple[Rule, ...] = (
    # One GPU before a job
    Rule("gpu-answers", FAIL, each_node(gpu_rest.says_nothing), _DRIVER),
    Rule("gpu-answers", FAIL, each_gpu(gpu_rest.recovery_needed), _DRIVER),
    Rule("gpu-answers", WARN, each_gpu(gpu_rest.recovery_advised), _RESET),
    Rule("memory-errors", FAIL, each_gpu(gpu_rest.sram_errors), _RESET),
    Rule("memory-errors", WARN, each_gpu(gpu_rest.sram_worn), "have NVIDIA's field diagnostic run on it"),
    Rule("memory-errors", WARN, each_gpu(gpu_rest.memory_errors), _RESET),
    Rule("memory-rows", FAIL, each_gpu(gpu_rest.rows_lost), _RESET),
    Rule("memory-rows", WARN, each_gpu(gpu_rest.rows_waiting), _RESET),
    Rule("gpu-modes", FAIL, each_gpu(gpu_rest.unusable_mode), _MODES),
    Rule("gpu-modes", WARN, each_gpu(gpu_rest.exclusive_mode), _MODES),
    Rule("gpu-in-use", FAIL, each_gpu(gpu_rest.somebody_elses_memory), _IDLE_GPU),
    Rule("gpu-in-use", WARN, each_gpu(gpu_rest.perhaps_somebody_elses), _IDLE_GPU),
    Rule("persistence", WARN, each_gpu(gpu_rest.no_persistence), "enable nvidia-persistenced"),
    Rule("nvlink", FAIL, each_gpu(gpu_rest.link_trouble), _CABLE),
    Rule("nvlink", UNKNOWN, each_node(gpu_rest.unknown_links), _CABLE),
    Rule("nvlink-errors", WARN, each_node(gpu_rest.link_errors), _CABLE),
    # One node with GPUs
    Rule(
        "gpu-type",
        Level(doctor="warn"),
        each_node(host.other_gpu_than_the_sites),
        "correct gpu_type in cluster_config.yaml",
    ),
    Rule(
        "cuda",
        Level(doctor="warn"),
        each_node(host.old_driver),
        "older than the image's CUDA 13: it runs only through forward compatibility; update the driver",
    ),
    Rule("fabric-manager", FAIL, each_node(host.no_fabric_manager), "systemctl start nvidia-fabricmanager"),
    Rule("imex", FAIL, each_node(host.no_imex_channel), _IMEX),
    Rule("imex", FAIL, each_node(host.imex_down), _IMEX),
    Rule("imex", WARN, each_node(host.imex_degraded), _IMEX),
    Rule("imex", UNKNOWN, each_node(host.imex_unknown), _IMEX),
    Rule("port-errors", FAIL, several(network.lost_links), _CABLE),
    Rule("port-errors", WARN, several(network.growing_errors), _CABLE),
    Rule(
        "gpudirect",
        Level(doctor="warn", health="warn"),
        each_node(network.no_way_to_gpu_memory),
        "load nvidia_peermem, or use the open driver with DMA-BUF",
    ),
    Rule(
        "ibgda",
        FAIL,
        each_node(network.no_gpu_initiated_network),
        'load the driver with NVreg_RegistryDwords="PeerMappingOverride=1;", or install GDRCopy',
    ),
    Rule(
        "memlock",
        BOTH_BEFORE,
        each_node(host.little_locked_memory),
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, and LimitMEMLOCK=infinity for slurmd",
        in_pods=_POD_MEMLOCK,
    ),
    Rule("shared-memory", FAIL, each_node(host.small_shared_memory), _SHM, in_pods=_POD_SHM),
    Rule("shared-memory", WARN, each_node(host.used_shared_memory), _SHM, in_pods=_POD_SHM),
    Rule("open-files", WARN, each_node(host.few_open_files), "raise LimitNOFILE of slurmd, and ulimit -n"),
    Rule("cpu-speed", WARN, several(host.slow_cpus), "cpupower frequency-set -g performance"),
    # GPUs of a run, under load or before a job, also against each other
    Rule(
        "no-gpu-facts",
        Level(doctor="fail", health="fail", evidence="note"),
        each_node(host.no_gpus),
        "check the driver, or set slurm.gres: true",
        "no GPU data from {}",
    ),
    Rule(
        "other-gpu",
        BOTH,
        compare.other_gpus,
        "correct gpu_type in cluster_config.yaml, or GPU_TYPE of the job",
        "{}: MFU and reference are for another GPU",
    ),
    Rule("fewer-gpus", BOTH, each_node(host.fewer_gpus), _DRIVER, "fewer GPUs than planned: {}"),
    *(
        Rule("different-gpu", level, same_on_gpus(value), _ODD, f"{word} {{}}; the others have {{}}")
        for level, word, value in (
            (BOTH, "product", lambda run: run.gpu.product),
            (BOTH, "memory in MiB", lambda run: run.gpu.memory_mib),
            (BOTH, "highest SM clock in MHz", lambda run: run.gpu.max_sm_mhz),
            (BOTH, "application clock in MHz", lambda run: run.gpu.application_mhz),
            (BOTH, "power limit in W", gpu_run.own_limit),
            (BOTH, "MIG mode", lambda run: run.gpu.mig),
            (BOTH, "ECC mode", lambda run: run.gpu.ecc),
            (NOTE, "VBIOS", lambda run: run.gpu.vbios),
        )
    ),
    Rule("slow-clock", BOTH, compare.slow_clocks, _DRIVER, "clock under load {}"),
    Rule("throttled", BOTH, each_gpu_run(gpu_run.throttled), _COOLING, "clocks held down: {}"),
    Rule(
        "locked-clock",
        LESS_BEFORE,
        each_gpu_run(gpu_run.held_clock),
        _CLOCKS,
        "clocks below the GPU's rated clock: {}",
    ),
    Rule("power-limit", LESS_BEFORE, each_gpu_run(gpu_run.lowered_limit), _POWER, "power limit below the default: {}"),
    Rule("power-cap", NOTE, compare.power_capped, "nothing: most models run at the power limit", "{}"),
    Rule("pcie", BOTH, compare.slow_buses, _RESET, "slow PCIe links: {}"),
    Rule("pcie", NOTE, compare.slow_buses_everywhere, _ODD, "PCIe links below their maximum on all GPUs: {}"),
    Rule("ecc", PROBLEM, each_gpu_run(gpu_run.new_memory_errors), _RESET, "memory errors: {}"),
    Rule("ecc", NOTE, each_gpu_run(gpu_run.old_memory_errors), _RESET, "memory errors before the run: {}"),
    Rule("fabric", BOTH, each_gpu_run(gpu_run.outside_fabric), _IMEX, "GPUs outside the NVLink fabric: {}"),
    Rule("fabric", BOTH, each_gpu_run(gpu_run.unhealthy_fabric), _CABLE, "GPUs of which the NVLink fabric is bad: {}"),
    Rule(
        "fabric",
        LESS_BEFORE,
        each_gpu_run(gpu_run.narrow_fabric),
        _CABLE,
        "GPUs without all bandwidth of the NVLink fabric: {}",
    ),
    # What NCCL used
    Rule("nvlink", PROBLEM, network.nodes_not_joined, _IMEX, "NVLink does not join the nodes as planned: {}"),
    Rule("socket", BOTH, network.sockets, _NCCL, "NCCL sends through TCP sockets between nodes: {}"),
    Rule("no-gpudirect", LESS_BEFORE, network.indirect, _NCCL, "no GPUDirect RDMA between adapters and GPUs: {}"),
    Rule("unknown-network", NOTE, network.unknown_network, _WRITTEN, "unknown which network NCCL used: {}"),
    *(
        Rule("adapter", level, look, _ADAPTER, f"network adapters: {word} {{}}")
        for level, word, look in (
            (PROBLEM, "state", used_ports_differ(lambda port: port.state)),
            (PROBLEM, "rate in Gbit/s", used_ports_differ(rate_of_link)),
            (NOTE, "firmware", used_ports_differ(lambda port: port.firmware)),
            (NOTE, "state", any_ports_differ(lambda port: port.state)),
            (NOTE, "rate in Gbit/s", any_ports_differ(rate_of_link)),
        )
    ),
    Rule(
        "adapter-count",
        PROBLEM,
        same_on_nodes(lambda node: len(used_adapters(node)) or None),
        _HCA,
        "network adapters in use: {}; elsewhere {}",
    ),
    Rule(
        "adapter-count",
        PROBLEM,
        network.unused_adapters,
        _HCA,
        "network adapters of the same kind, active but not used by NCCL: {}",
    ),
)

RULES = (*ANYWHERE, *ON_GPUS)
