"""A site's own references, and repeats seen together."""

from __future__ import annotations

import csv
import json

import pytest

from llmb_common.nodes.summary import NodeSummary, setup_findings, setup_of
from support.cli import Cli
from support.gpu_nodes import adapter, smi_answer, snapshot, write_node
from support.iteration_logs import mbridge_line
from support.runs import PUBLISHED, cut_log, make_run, steady_log
from support.texts import Texts

SMOKE = {"GPU_TYPE": "cpu", "MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2", "CLUSTER_TYPE": "local"}


def run_of(cli: Cli, milliseconds: float, number: int = 101, **variables: str) -> str:
    """A successful run of PUBLISHED; its id."""
    log = steady_log(milliseconds)
    record = make_run(cli.install, log=log, variables=PUBLISHED | variables, job_id=str(number))
    return record.paths.run_id


def verdict_of(cli: Cli, run_id: str) -> dict[str, object]:
    (run,) = cli("results", "--json", run_id).data["runs"]
    return dict(run)


# Baselines


def test_a_baseline_comes_before_what_was_published(cli: Cli, texts: Texts) -> None:
    good = [run_of(cli, milliseconds, 101 + n) for n, milliseconds in enumerate((5000, 5010, 4990))]
    later = run_of(cli, 5741.47, 110)
    texts(verdict_of(cli, later)["verdict_text"])
    assert cli("baseline", "set", *good).status == 0
    judged = verdict_of(cli, later)
    assert judged["verdict"] == "fail"
    texts(judged["verdict_text"])
    reference = judged["reference"]
    assert isinstance(reference, dict)
    assert (reference["kind"], reference["same_software"], reference["software"]) == ("baseline", True, "nemo:26.02.01")
    texts(reference["source"])


def test_runs_of_the_baseline_are_not_compared_with_themselves(cli: Cli) -> None:
    good = run_of(cli, 5000)
    cli("baseline", "set", good)
    reference = verdict_of(cli, good)["reference"]
    assert isinstance(reference, dict)
    assert reference["kind"] == "published"


def test_on_other_software_a_baseline_gives_an_indication(cli: Cli) -> None:
    cli("baseline", "set", run_of(cli, 5741.47))
    later = run_of(cli, 5741.47, 102, RUN_CONF_IMAGE="nvcr.io#nvidia/nemo:26.04")
    assert str(verdict_of(cli, later)["verdict_text"]).startswith("indication: ")


def test_a_published_result_of_the_same_software_comes_before_a_baseline_of_another(cli: Cli) -> None:
    cli("baseline", "set", run_of(cli, 5000))
    later = run_of(cli, 5741.47, 102, RUN_CONF_IMAGE="nvcr.io#nvidia/nemo:25.09.00")
    reference = verdict_of(cli, later)["reference"]
    assert isinstance(reference, dict)
    assert (reference["kind"], reference["same_software"]) == ("published", True)


def test_another_configuration_has_another_baseline(cli: Cli) -> None:
    cli("baseline", "set", run_of(cli, 5000))
    other = run_of(cli, 5000, 102, TP="4")
    assert verdict_of(cli, other)["verdict"] == "no reference"


def test_smoke_runs_can_have_a_baseline_and_nothing_else(cli: Cli) -> None:
    first, second = (
        make_run(cli.install, log=steady_log(100, tflops=None), variables=SMOKE, job_id=None).paths.run_id
        for _ in range(2)
    )
    assert verdict_of(cli, second)["verdict"] == "not judged"
    cli("baseline", "set", first)
    assert verdict_of(cli, second)["verdict"] == "open"


def test_repeats_become_one_baseline_and_replace_the_former(cli: Cli, texts: Texts) -> None:
    old, *new = (run_of(cli, milliseconds, 101 + n) for n, milliseconds in enumerate((9000, 5000, 5100)))
    cli("baseline", "set", old)
    cli("baseline", "set", *new)
    (found,) = cli("baseline", "list", "--json").data["baselines"]
    assert found["seconds"] == pytest.approx((5.0 * 5.1) ** 0.5)
    assert [run["run_id"] for run in found["runs"]] == new
    texts(found["title"])
    assert 0.01 < found["relative_error"] < 0.03


def test_a_baseline_can_be_removed(cli: Cli, texts: Texts) -> None:
    cli("baseline", "set", run_of(cli, 5000))
    (found,) = cli("baseline", "list", "--json").data["baselines"]
    wrong = cli("baseline", "remove", "0123456789ab")
    assert wrong.status == 2
    texts(wrong.err)
    texts(cli("baseline", "remove", found["key"]).out)
    assert cli("baseline", "list", "--json").data["baselines"] == []


def test_only_successful_runs_become_a_baseline(cli: Cli, texts: Texts) -> None:
    failed = make_run(cli.install, state="FAILED", log=cut_log(5000))
    done = cli("baseline", "set", failed.paths.run_id)
    assert done.status == 2
    texts(done.err)
    assert cli("baseline", "set").status == 2
    assert not (cli.install / ".llmb" / "baselines.json").exists()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": 2, "baselines": []}', '{"schema": 1, "baselines": [{"key": 1}]}', '{"schema": 1}']
)
def test_a_damaged_list_is_named_and_results_go_on(cli: Cli, text: str) -> None:
    run_of(cli, 5741.47)
    file = cli.install / ".llmb" / "baselines.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    done = cli("results")
    assert done.status == 0
    assert cli("results", "--json").data["runs"][0]["verdict"] == "pass"
    assert "baselines.json" in done.err
    assert cli("baseline", "list").status == 3


def test_a_baseline_without_runs_is_damage(cli: Cli, texts: Texts) -> None:
    cli("baseline", "set", run_of(cli, 5000))
    file = cli.install / ".llmb" / "baselines.json"
    value = json.loads(file.read_text())
    value["baselines"][0]["runs"] = []
    file.write_text(json.dumps(value))
    texts(cli("baseline", "list").err)


# What the nodes of a baseline were


H100 = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "16", "FORCE": "true"}
USING = "n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.4<0>\n"


def on_nodes(cli: Cli, number: int, mhz: int = 1755, rate: float = 400.0, path: str = "/GDRDMA", **more: str) -> str:
    """A successful run on two nodes that are alike; its id."""
    record = make_run(cli.install, log=steady_log(5000, tflops=None), variables={**H100, **more}, job_id=str(number))
    log = f"{USING}n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0{path}\n"
    load = snapshot(1100.0, smi_answer(changes={index: {"sm": f"{mhz} MHz"} for index in range(8)}))
    machine = {"adapters": [adapter(name, rate_gbps=rate) for name in ("mlx5_0", "mlx5_1")]}
    for host in ("n1", "n2"):
        write_node(record.paths.folder, host, log=log, load=load, machine=machine)
    return record.paths.run_id


def findings_of(cli: Cli, run_id: str) -> list[str]:
    (run,) = cli("results", "--json", run_id).data["runs"]
    texts = [finding["text"] for finding in run["findings"] if finding["kind"] == "expectation"]
    return [text.partition(" in this site's")[0] for text in texts]


def test_a_fault_of_all_nodes_is_one_by_the_baseline(cli: Cli, texts: Texts) -> None:
    slow = on_nodes(cli, 101, mhz=1500, rate=200.0, path="")
    good = on_nodes(cli, 102)
    assert findings_of(cli, good) == []
    cli("baseline", "set", good)
    assert findings_of(cli, slow) == [
        "network adapters in use 2 at 200 Gbit/s, and 2 at 400 Gbit/s",
        "GPUDirect RDMA no, and yes",
        "clocks under load 1500 MHz, and 1755",
    ]
    assert findings_of(cli, good) == findings_of(cli, on_nodes(cli, 103, mhz=1600)) == []
    texts(cli("show", slow).out, about="problem:")
    (kept,) = cli("baseline", "list", "--json").data["baselines"]
    assert (kept["setup"]["adapters"], kept["setup"]["clock_mhz"]) == ("2 at 400 Gbit/s", 1755.0)


def test_another_job_on_such_gpus_is_held_against_what_does_not_depend_on_it(cli: Cli) -> None:
    cli("baseline", "set", on_nodes(cli, 101))
    other = on_nodes(cli, 102, mhz=1500, rate=200.0, path="", ENABLE_VBOOST="true")
    assert findings_of(cli, other) == ["network adapters in use 2 at 200 Gbit/s, and 2 at 400 Gbit/s"]


def test_what_runs_of_a_baseline_disagree_on_is_not_expected(cli: Cli) -> None:
    cli("baseline", "set", on_nodes(cli, 101), on_nodes(cli, 102, rate=200.0))
    assert findings_of(cli, on_nodes(cli, 103, rate=100.0)) == []


FACTS = {
    "driver": ("note", "driver"),
    "adapters": ("problem", "network adapters in use"),
    "gpudirect": ("problem", "GPUDirect RDMA"),
    "nvlink": ("problem", "NVLink joins"),
    "fabric": ("problem", "NVLink fabric"),
    "pcie": ("problem", "PCIe"),
    "power_limit": ("problem", "power limit"),
    "clocks": ("problem", "clocks"),
}


@pytest.mark.parametrize("name", FACTS)
def test_each_fact_of_nodes_is_held_against_the_accepted_one(name: str) -> None:
    setup = setup_of([NodeSummary(**{name: "one"})])
    (found,) = setup_findings(NodeSummary(**{name: "t\x1bwo"}), setup, "B", same_job=True)
    severity, word = FACTS[name]
    assert (found.kind, found.severity, found.text) == ("expectation", severity, f"{word} t\\x1bwo, and one in B")
    assert setup_findings(NodeSummary(**{name: "one"}), setup, "B", same_job=True) == []
    assert setup_findings(NodeSummary(), setup, "B", same_job=True) == [], "what is not known is not compared"
    assert setup_findings(NodeSummary(**{name: "two"}), {}, "B", same_job=True) == []


@pytest.mark.parametrize(("mhz", "found"), [(900.0, False), (899.0, True)])
def test_clocks_may_be_a_tenth_lower(mhz: float, found: bool) -> None:
    setup = setup_of([NodeSummary(clock_mhz=900.0), NodeSummary(clock_mhz=1100.0)])
    assert bool(setup_findings(NodeSummary(clock_mhz=mhz), setup, "B", same_job=True)) == found
    assert setup_findings(NodeSummary(clock_mhz=mhz), setup, "B", same_job=False) == []


def test_a_baseline_of_an_older_version_expects_nothing_of_nodes(cli: Cli) -> None:
    cli("baseline", "set", on_nodes(cli, 101))
    file = cli.install / ".llmb" / "baselines.json"
    value = json.loads(file.read_text())
    del value["baselines"][0]["setup"]
    file.write_text(json.dumps(value))
    assert findings_of(cli, on_nodes(cli, 102, rate=100.0)) == []


# Groups


def test_repeats_share_a_line_and_a_verdict(cli: Cli, texts: Texts) -> None:
    for number, milliseconds in enumerate((5700, 5800, 5750, 5650)):
        run_of(cli, milliseconds, 101 + number)
    make_run(cli.install, state="FAILED", log=steady_log(5741.47)[:3000], job_id="109")
    run_of(cli, 5741.47, 110, RUN_CONF_IMAGE="nvcr.io#nvidia/nemo:25.09.00")
    done = cli("results", "--group", "--json")
    assert done.status == 1, "one run failed"
    older, newer = sorted(done.data["groups"], key=lambda group: group["software"])
    assert (older["software"], newer["software"]) == ("nemo:25.09.00", "nemo:26.02.01")
    assert (len(newer["run_ids"]), newer["unsuccessful"], newer["waiting"]) == (3, 1, 1), "the fourth waits for a fifth"
    assert newer["step_seconds"] == pytest.approx(5.75)
    assert newer["spread"] == pytest.approx(0.0087, abs=1e-4)
    assert newer["verdict"] == "pass"
    single = verdict_of(cli, newer["run_ids"][0])
    assert newer["difference_high"] < single["difference_high"]
    assert (older["verdict"], older["more_runs"]) == ("open", 2)
    texts(newer["remarks"][0])


def test_runs_of_a_baseline_do_not_count_against_it(cli: Cli) -> None:
    smoke = [
        make_run(cli.install, log=steady_log(t, tflops=None), variables=SMOKE, job_id=None) for t in (100, 150, 151)
    ]
    cli("baseline", "set", smoke[0].paths.run_id)
    (group,) = cli("results", "--group", "--json").data["groups"]
    assert (len(group["run_ids"]), group["waiting"], group["in_reference"]) == (1, 1, 1)
    assert group["step_seconds"] == pytest.approx(0.15), "every figure is of the runs that are judged"
    assert group["difference"] == pytest.approx(0.5)
    assert group["verdict"] == "fail"


def test_a_group_without_a_good_run_has_no_figures(cli: Cli) -> None:
    make_run(cli.install, state="FAILED", log=steady_log(5741.47)[:3000])
    done = cli("results", "--group")
    assert done.status == 1
    assert done.out.splitlines()[1].endswith("  failed")


def test_groups_as_csv(cli: Cli) -> None:
    run_of(cli, 5741.47)
    run_of(cli, 5799.47)
    (line,) = csv.DictReader(cli("results", "--group", "--format", "csv").out.splitlines())
    assert (line["runs"], line["unsuccessful"], line["waiting"]) == ("1", "0", "1")
    assert (line["reference_step_seconds"], float(line["step_seconds"])) == ("5.74147", pytest.approx(5.74147))


def test_a_run_whose_steps_stall_is_a_run(cli: Cli) -> None:
    spiky = "".join(mbridge_line(index, milliseconds=100 * (4 if index % 3 == 0 else 1)) for index in range(1, 51))
    stalling = make_run(cli.install, log=spiky)
    (alone,) = cli("results", "--group", "--json").data["groups"]
    assert alone["run_ids"] == [stalling.paths.run_id]
    assert alone["stall_share"] == pytest.approx(3 * 13 / 40)
    (kept,) = cli("baseline", "set", stalling.paths.run_id, "--json").data["baselines"]
    assert kept["seconds"] == pytest.approx(0.1 * (1 + 3 * 13 / 40)), "with what its stalls cost"


def test_another_log_in_a_runs_folder_is_no_repeat(cli: Cli) -> None:
    record = make_run(cli.install, log=steady_log(5741.47))
    record.paths.log.with_name("log-copy.out").write_text(steady_log(5741.47))
    record.paths.log.with_name("log-a.out").write_text("another program's\n")
    (group,) = cli("results", "--group", "--json").data["groups"]
    assert group["run_ids"] == [record.paths.run_id]
    assert cli("show", record.paths.run_id, "--json").data["result"]["step_seconds"] == pytest.approx(5.74147)


def test_a_baseline_of_one_run_says_that_it_decides_little(cli: Cli, texts: Texts) -> None:
    good = run_of(cli, 5000)
    assert cli("baseline", "set", good).status == 0
    judged = verdict_of(cli, run_of(cli, 5000, 102))
    assert (judged["verdict"], judged["more_runs"], judged["reference_too_uncertain"]) == ("open", None, True)
    texts(judged["verdict_text"])


def test_a_group_without_a_reference_has_an_interval_too(cli: Cli) -> None:
    for number in range(3):
        make_run(cli.install, log=steady_log(100 + number, tflops=None), variables=SMOKE, job_id=str(101 + number))
    (group,) = cli("results", "--group", "--json").data["groups"]
    assert (group["verdict"], len(group["run_ids"])) == ("not judged", 3)
    assert group["interval"] == pytest.approx(0.0562, abs=1e-4), "three runs that differ by 1 %, and the prior"


def test_what_is_odd_about_a_baselines_run_is_said(cli: Cli, texts: Texts) -> None:
    spiky = "".join(mbridge_line(index, milliseconds=20000 if index == 40 else 5000) for index in range(1, 51))
    done = cli("baseline", "set", make_run(cli.install, log=spiky).paths.run_id)
    assert done.status == 0
    texts(done.err)
