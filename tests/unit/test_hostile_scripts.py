"""Values that a shell, Slurm or a container would read as something else, in every place that a value can have.

The scripts are run, with stand-ins for all programs: each value arrives as it is, or the plan refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import RequestError
from llmb_common.executors.slurm.submit import render_series
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import Engine, cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.runs.paths import RunPaths
from llmb_common.runs.record import RunRecord, Submission, Turn
from llmb_common.submission.single import create_run
from support.plans import script_of
from support.sbatch_lines import file_of, options_of
from support.script_stubs import Call, ScriptStubs

RECIPE = load_recipe(Path(__file__).resolve().parents[2] / "llama3.1")
RUNTIMES = ("pyxis", "enroot", "none", "local")

NASTY = "it's -x; %j %% #1 & | < > ( ) * ? [a] {b,c} ~ ! =ü€"
EVIL = NASTY + ' "q" $(touch evil) `touch evil` $HOME ${HOME} $((1/0)) \\ \\n'
VALUES = (
    EVIL,
    "-rf",
    "x\\",
    *("'", '"'),
    "$(touch evil)",
    "`touch evil`",
    "a'$(touch evil)'b",
    " ",
    "",
    "%",
    "TASK",
    "\\0",
)

FOLDERS = {
    # Paths that container mounts can express, and paths that they cannot.
    "pyxis": NASTY.replace(",", ""),
    "enroot": NASTY.replace(",", "").replace(" ", "_").replace("'", ""),
    "none": NASTY + ' "q" $(touch evil) `touch evil` $HOME',
    "local": EVIL.replace("/", "|"),
}


@dataclass
class Site:
    """A job of one runtime, planned and created under ``tmp``, in folders with the worst possible names."""

    tmp: Path
    runtime: str
    stubs: ScriptStubs

    def __post_init__(self) -> None:
        self.install = self.tmp / f"i {FOLDERS[self.runtime]}".replace(" ", "_" if self.runtime == "enroot" else " ")
        self.install.mkdir()
        self.engine = self.install / "python of the engine"
        self.stubs.write(self.engine, "python3")

    def beside(self, name: str) -> Path:
        return self.install.with_name(f"{name}{self.install.name}")

    def plan(self, cluster: dict[str, Any] | None = None, **variables: str) -> JobPlan:
        local = self.runtime == "local"
        slurm = {} if local else {"slurm": SlurmSettings(runtime=self.runtime)}  # type: ignore[arg-type]
        site = cluster_config(**{"engine": Engine(python=str(self.engine)), **slurm, **(cluster or {})})  # type: ignore[arg-type]
        gpus = {} if local else {"JOB_TOTAL_GPUS": "8"}
        given = {"LLMB_INSTALL": str(self.install), "GPU_TYPE": "h100", "MODEL_SIZE": "8b", **gpus, **variables}
        machine = Machine(cluster_type="local", gpu_type="h100", gpus=8, has_nsys=True)
        return make_plan(RECIPE, site, read_request(given), machine if local else Machine(cluster_type="slurm"))

    def create(self, plan: JobPlan) -> RunRecord:
        return create_run(plan, b"code", {})

    def run(self, plan: JobPlan, **env: str) -> tuple[RunPaths, Call]:
        """Create the run and execute its script; returns its paths and its only rank."""
        paths = self.create(plan).paths
        done = self.stubs.run(paths.script, self.tmp, **env)
        assert done.returncode == 0, done.stderr
        (rank,) = self.stubs.ranks()
        assert not list(self.tmp.rglob("evil"))
        return paths, rank


@pytest.fixture(params=RUNTIMES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, request.param, ScriptStubs(tmp_path / "stubs"))


@pytest.fixture
def site_of(tmp_path: Path) -> Callable[[str], Site]:
    return lambda runtime: Site(tmp_path, runtime, ScriptStubs(tmp_path / "stubs"))


def renamed(plan: JobPlan, **changes: Any) -> JobPlan:
    return msgspec.structs.replace(plan, **changes)


def test_a_run_in_a_hostile_folder_trains_there_and_keeps_its_files_there(site: Site) -> None:
    paths, rank = site.run(site.plan(LLMB_WORKLOAD=str(site.beside("w"))))
    assert str(paths.folder).startswith(str(site.beside("w")))
    assert rank.words == ["-u", "-m", "llmb_train", str(paths.job)]
    assert rank.cwd == str(paths.output)
    assert rank.env["PYTHONPATH"] == str(paths.code)
    assert (rank.env["LLMB_RUN_DIR"], rank.env["LLMB_EXPERIMENT"]) == (str(paths.folder), paths.experiment_name)
    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    assert [(event["event"], event["exit_code"]) for event in events] == [("start", None), ("end", 0)]
    assert paths.log.is_file()
    assert not [path.name for path in paths.folder.parent.iterdir() if path != paths.folder]


def test_the_log_gets_what_the_ranks_print(site: Site) -> None:
    text = '#!/bin/bash\necho "from rank ${SLURM_PROCID:-}"\n'
    site.stubs.bin.joinpath("python3").write_text(text)
    if site.runtime == "none":
        site.engine.write_text(text)
    if site.runtime == "local":  # torchrun is python3 here
        site.engine.write_text('#!/bin/bash\necho "from rank 0"\n')
    paths = site.create(site.plan()).paths
    done = site.stubs.run(paths.script, site.tmp)
    assert done.returncode == 0, done.stderr
    assert "from rank" in paths.log.read_text()


def test_every_variable_reaches_the_rank_byte_for_byte(site: Site) -> None:
    sites = {f"SITE_{number}": value for number, value in enumerate(VALUES)}
    callers = {f"NCCL_{number}": value for number, value in enumerate(VALUES)}
    plan = site.plan({"environment": {**sites, "NCCL_IB_HCA": "of the site"}}, **callers, NCCL_IB_HCA="of the caller")
    _, rank = site.run(plan, PYTHONPATH="/of/the/login/node")
    seen = {name: rank.env[name] for name in plan.env}
    assert seen == {name: item.value for name, item in plan.env.items()}
    assert sites.items() | callers.items() <= seen.items()
    assert seen["NCCL_IB_HCA"] == "of the caller"
    assert "/of/the/login/node" not in rank.env["PYTHONPATH"]


def test_the_engines_python_is_the_one_of_the_site(site: Site) -> None:
    _, rank = site.run(site.plan())
    outside = site.runtime in ("none", "local")
    assert rank.program == (str(site.engine) if outside else str(site.stubs.bin / "python3"))
    starters = [call for call in site.stubs.calls("python3") if "torch.distributed.run" in call.words]
    assert [call.program for call in starters] == ([str(site.engine)] if site.runtime == "local" else [])


@pytest.mark.parametrize("runtime", ["none", "local"])
@pytest.mark.parametrize("name", [EVIL.replace("/", "|"), "-x $(touch evil)\\"])
def test_any_python_of_one_line_is_started_by_its_own_name(site_of, runtime, name):
    site = site_of(runtime)
    engine = site.tmp / name
    site.stubs.write(engine, "python3")
    _, rank = site.run(site.plan({"engine": Engine(python=str(engine))}))
    assert rank.program == str(engine)


def test_containers_get_the_image_and_every_mount(site: Site) -> None:
    name = site.install.name
    data, save = f"/data/{name}", str(site.beside("c"))
    plan = site.plan(
        {"mounts": (f"/site/{name}:/in side:ro".replace(" ", "_"),)},
        LLMB_WORKLOAD=str(site.beside("w")),
        ENABLE_CHECKPOINT="true",
        CHECKPOINT_DIR=save,
        **({} if site.runtime in ("none", "local") else {"RUN_CONF_IMAGE": f"/img/{EVIL}.sqsh".replace("'", "")}),
        RUN_CONF_MOUNTS=f"{data}:/data,{data}" if site.runtime in ("pyxis", "enroot") else "",
    )
    site.run(plan)
    places = [str(site.install), str(site.beside("w")), save]
    wanted = [f"{place}:{place}" for place in places] + [f"/site/{name}:/in_side:ro".replace(" ", "_")]
    wanted += [f"{data}:/data", data]
    if site.runtime == "pyxis":
        (srun,) = site.stubs.calls("srun")
        assert srun.value("--container-image") == plan.image
        assert srun.value("--container-mounts").split(",") == wanted
        names = srun.value("--container-env").split(",")
        assert {*plan.env, "MASTER_ADDR", "MASTER_PORT", "LLMB_RUN_DIR", "LLMB_EXPERIMENT", "LLMB_RESUME"} <= {*names}
    elif site.runtime == "enroot":
        (enroot,) = [call for call in site.stubs.calls("enroot") if call.words != ["info"]]
        wanted[3] = wanted[3].replace(":ro", ":x-create=auto,rbind,ro")  # as Pyxis itself does
        assert enroot.values("--mount") == wanted
        assert plan.image in enroot.words
        assert enroot.words[enroot.words.index(plan.image or "") + 1] == "bash"
    else:
        assert not site.stubs.calls("enroot")


def test_an_image_may_hold_quotes_where_pyxis_takes_it(site_of: Callable[[str], Site]) -> None:
    site = site_of("pyxis")
    for number, image in enumerate((f"/img/{EVIL}.sqsh", "nvcr.io#a/b:$(touch evil)'", "-x"), start=1):
        paths = site.create(site.plan(RUN_CONF_IMAGE=image)).paths
        assert site.stubs.run(paths.script, site.tmp).returncode == 0
        assert site.stubs.calls("srun")[number - 1].value("--container-image") == image
    assert not list(site.tmp.rglob("evil"))


def test_a_hostile_experiment_name_is_a_name_of_folders_files_and_the_job(site: Site) -> None:
    """Recipes must not have such names, but a plan may come from a record."""
    name = """-x";&|<>()*?ü it's %j %% #1 $(touch evil)`touch evil`"""
    paths, rank = site.run(renamed(site.plan(), experiment_name=name))
    assert rank.env["LLMB_EXPERIMENT"] == name
    assert rank.cwd == str(paths.output)
    if site.runtime != "local":
        assert options_of(paths.script.read_text())["job-name"] == paths.job_name
        assert paths.job_name.startswith(name)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["pyxis", "local"])
@pytest.mark.parametrize(
    ("file", "ranks"), [("$(touch evil) `touch evil`", None), ('it\'s "$HOME"', (0, 3)), ("-x \\ü%p", (0,))]
)
def test_the_profile_has_the_name_that_the_plan_gives_it(site_of, runtime, file, ranks):
    site = site_of(runtime)
    plan = site.plan(ENABLE_PROFILE="true", MAX_STEPS="50")
    assert plan.profile is not None
    plan = renamed(
        plan,
        profile=renamed(  # type: ignore[arg-type]
            plan.profile, tool="nsys", file=file + "_${SLURM_PROCID}_${SLURM_JOB_ID}", ranks=ranks, trace=file
        ),
    )
    site.run(plan)
    (nsys,) = site.stubs.calls("nsys")
    job = "local" if site.runtime == "local" else "42"
    assert nsys.value("-o") == f"nsys_profile/{file}_0_{job}"
    assert nsys.value("-t") == file
    assert Path(nsys.cwd).name == plan.experiment_name


def test_only_the_requested_ranks_are_profiled(site_of: Callable[[str], Site]) -> None:
    site = site_of("pyxis")
    plan = site.plan(ENABLE_PROFILE="true", MAX_STEPS="50", PROFILE_RANKS="1,3-5")
    site.run(plan)
    assert not site.stubs.calls("nsys")


@pytest.mark.parametrize("value", [v for v in VALUES if v.strip() and ";" not in v] + [EVIL.replace(";", "")])
def test_slurm_reads_every_option_as_it_was_meant(site_of: Callable[[str], Site], value: str) -> None:
    site = site_of("none")
    plan = site.plan(
        {"slurm": SlurmSettings(runtime="none", additional_params=f"wckey={value};exclusive;qos=site")},
        SBATCH_ACCOUNT="account-1.x",
        SBATCH_PARTITION="one,two",
        SBATCH_GPUS_PER_NODE="gpu:h100-sxm:8",
        ADDITIONAL_SLURM_PARAMS=f"comment={value};qos=mine;nodelist=n[1-2],m3;constraint=a&b",
        CPU_PER_TASK_PINNING="7",
        ENABLE_CHECKPOINT="true",
        TIME_LIMIT="1-02:03:04",
    )
    paths = site.create(plan).paths
    options = options_of(paths.script.read_text())
    assert (options["comment"], options["wckey"]) == (value.strip(), value.strip())
    assert (options["account"], options["partition"], options["qos"]) == ("account-1.x", "one,two", "mine")
    assert (options["nodelist"], options["constraint"]) == ("n[1-2],m3", "a&b")
    assert (options["gres"], options["nodes"], options["ntasks-per-node"]) == ("gpu:h100-sxm:8", "1", "8")
    assert (options["time"], options["cpus-per-task"], options["mem"]) == ("1-02:03:04", "7", "0")
    assert "exclusive" in options
    assert "requeue" in options
    assert (options["open-mode"], options["job-name"]) == ("append", paths.job_name)
    assert str(options["signal"]).startswith("B:TERM@")
    assert file_of(str(options["output"])) == str(paths.batch_log)


def test_slurm_is_given_no_options_that_were_not_requested(site_of: Callable[[str], Site]) -> None:
    plan = site_of("none").plan(ADDITIONAL_SLURM_PARAMS="no-requeue")
    options = options_of(script_of(plan))
    absent = {"account", "partition", "gres", "segment", "cpus-per-task", "signal", "requeue", "comment"}
    assert not absent & set(options)
    assert "no-requeue" in options


def test_srun_is_told_the_cpus_that_the_job_pins(site_of: Callable[[str], Site]) -> None:
    site = site_of("none")
    paths, _ = site.run(site.plan(CPU_PER_TASK_PINNING="7"))
    (srun,) = site.stubs.calls("srun")
    assert (srun.value("--cpus-per-task"), srun.value("--cpu-bind")) == ("7", "cores")
    assert srun.value("--output").replace("%%", "%") == str(paths.log)
    assert "--kill-on-bad-exit=1" in srun.words
    assert srun.value("--open-mode") == "append"


def test_clock_boost_is_asked_of_every_node_and_never_fatal(site_of: Callable[[str], Site]) -> None:
    site = site_of("none")
    (site.stubs.bin / "sudo").write_text("#!/bin/bash\nexit 9\n")
    paths, _ = site.run(site.plan(ENABLE_VBOOST="true"))
    boost, step = site.stubs.calls("srun")
    assert (boost.value("--ntasks-per-node"), boost.value("--ntasks")) == ("1", "1")
    assert boost.words[-6:] == ["sudo", "-n", "nvidia-smi", "boost-slider", "--vboost", "1"]
    assert step.words[-3:-1] == ["bash", "-c"]
    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    assert [(event["event"], event["exit_code"]) for event in events] == [("start", None), ("vboost", 9), ("end", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["pyxis", "enroot", "none"])
def test_a_step_is_not_told_to_export_what_the_job_was(site_of: Callable[[str], Site], runtime: str) -> None:
    """sbatch --export=NONE sets SLURM_EXPORT_ENV in the job, and srun reads it as its own --export."""
    site = site_of(runtime)
    site.run(site.plan(ENABLE_VBOOST="true", ADDITIONAL_SLURM_PARAMS="export=NONE"), SLURM_EXPORT_ENV="NONE")
    calls = site.stubs.calls("srun")
    assert len(calls) == 2
    assert not [call for call in calls if "SLURM_EXPORT_ENV" in call.env]


def test_the_rendezvous_is_the_address_of_the_node(site_of: Callable[[str], Site]) -> None:
    site = site_of("none")
    _, rank = site.run(site.plan(MASTER_PORT="1234"))
    assert (rank.env["MASTER_ADDR"], rank.env["MASTER_PORT"]) == ("10.1.2.3", "1234")


@pytest.mark.parametrize(("again", "restarts", "resume"), [(False, "0", "0"), (False, "2", "1"), (True, "0", "1")])
def test_a_requeued_job_and_a_link_of_a_chain_resume_from_the_checkpoint(site_of, again, restarts, resume):
    site = site_of("none")
    plan = site.plan(ENABLE_CHECKPOINT="true")
    saved = site.beside("c")
    saved.mkdir()
    (saved / "latest_checkpointed_iteration.txt").write_text("20")
    checkpoint = renamed(plan.checkpoint, resume=again, save=str(saved) if again else None)  # type: ignore[arg-type]
    _, rank = site.run(renamed(plan, checkpoint=checkpoint), SLURM_RESTART_COUNT=restarts)
    assert rank.env["LLMB_RESUME"] == resume


def test_a_link_of_a_chain_that_has_saved_nothing_starts_nothing(site: Site) -> None:
    plan = site.plan(ENABLE_CHECKPOINT="true", ENABLE_VBOOST="true")
    saved = site.beside("c")
    checkpoint = renamed(plan.checkpoint, resume=True, save=str(saved))  # type: ignore[arg-type]
    paths = site.create(renamed(plan, checkpoint=checkpoint)).paths
    for _ in range(2):  # also where Slurm starts it again
        done = site.stubs.run(paths.script, site.tmp)
        assert done.returncode == 3
    assert list(site.stubs.records.iterdir()) == [], "no srun, no container, no rank"
    for text in (done.stderr, paths.log.read_text()):
        assert str(saved) in text
    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    assert [(event["event"], event["exit_code"]) for event in events[:3]] == [
        *(("start", None), ("no-checkpoint", None), ("end", 3))
    ]
    assert not list(site.tmp.rglob("evil"))


def test_without_checkpoints_nothing_is_resumed(site_of: Callable[[str], Site]) -> None:
    site = site_of("none")
    _, rank = site.run(site.plan(), SLURM_RESTART_COUNT="2")
    assert "LLMB_RESUME" not in rank.env


def test_without_an_engine_of_its_own_a_local_run_takes_python3(site_of: Callable[[str], Site]) -> None:
    site = site_of("local")
    _, rank = site.run(site.plan({"engine": None}))
    assert [call.program for call in site.stubs.calls("python3")] == [str(site.stubs.bin / "python3")] * 2
    assert rank.words[:3] == ["-u", "-m", "llmb_train"]


def test_the_runs_of_a_series_have_their_turns_by_their_links(site_of: Callable[[str], Site]) -> None:
    """A run that was removed, and one whose turn was over before its job was queued again, are left out."""
    site = site_of("none")
    plan = renamed(site.plan(), experiment_name="it's $(touch evil) %j %a #1")
    records = [
        replace(site.create(renamed(plan, vboost=n == 0)), submission=Submission(turn=Turn("0a1b", n, 4)))
        for n in range(4)
    ]
    series = records[0].shared
    assert series is not None
    series.folder.mkdir()
    for turn in (0, 1, 3):
        (series.folder / str(turn)).symlink_to(records[turn].paths.folder)
    records[0].paths.events.write_text('{"event":"over"}\n')
    series.script.write_text(render_series(records, series))
    done = site.stubs.run(series.script, site.tmp, SLURM_JOB_ID="40", SLURM_EXPORT_ENV="NONE")
    assert done.returncode == 0, done.stderr
    resets = [call for call in site.stubs.calls("srun") if "boost-slider" in call.words]
    assert [("SLURM_EXPORT_ENV" in call.env, call.words[-1]) for call in resets] == [(False, "0")] * 2
    assert [rank.words[-1] for rank in site.stubs.ranks()] == [str(records[turn].paths.job) for turn in (1, 3)]
    events = [json.loads(line) for line in records[3].paths.events.read_text().splitlines()]
    assert [(event["event"], event["job_id"]) for event in events] == [
        (kind, "40") for kind in ("start", "end", "over")
    ]
    assert not list(site.tmp.rglob("evil"))


@pytest.mark.parametrize(
    ("runtime", "change", "words"),
    [
        ("none", {"engine_python": "/x\nTASK\ntouch evil"}, "engine.python .* line break"),
        ("local", {"engine_python": "/x\ry"}, "engine.python .* line break"),
        ("pyxis", {"image": "/x\ny.sqsh"}, "the image .* line break"),
        ("enroot", {"image": "/it's.sqsh"}, "Enroot cannot be given the image"),
        ("enroot", {"image": "-x"}, "Enroot cannot be given the image"),
        ("none", {"workload_folder": "/a\nb"}, "the run's folder .* line break"),
        ("none", {"workload_folder": "/a:b"}, "contains a colon, which PYTHONPATH cannot express"),
        ("local", {"workload_folder": "/a:b"}, "contains a colon, which PYTHONPATH cannot express"),
        ("none", {"workload_folder": "/a\\b"}, "contains a backslash"),
        ("none", {"experiment_name": "a\\b"}, "contains a backslash"),
        ("none", {"time_limit": "1\n#SBATCH --uid=0"}, "--time=.* line break"),
        ("pyxis", {"workload_folder": "/a,b"}, "/a,b contains a comma or a colon"),
        ("pyxis", {"install": "/a$(touch evil)"}, "pass to a shell"),
        ("pyxis", {"install": "/a`touch evil`"}, "pass to a shell"),
        ("pyxis", {"install": '/a"b'}, "pass to a shell"),
        ("pyxis", {"mounts": ("/a:/$(touch evil)",)}, "pass to a shell"),
        ("pyxis", {"mounts": ("/$x:/a",)}, "pass to a shell"),
        ("pyxis", {"mounts": ("/a,b:/a",)}, "contains a comma"),
        ("pyxis", {"mounts": ("/a\nb:/a",)}, "contains a line break"),
        ("enroot", {"install": "/a b"}, "white space, which Enroot does not accept"),
        ("enroot", {"mounts": ("/a:/b c",)}, "white space, which Enroot does not accept"),
    ],
)
def test_values_that_cannot_be_expressed_are_refused(site_of, runtime, change, words):
    plan = renamed(site_of(runtime).plan(), **change)
    with pytest.raises(RequestError, match=words) as caught:
        script_of(plan)
    assert caught.value.remedy


@pytest.mark.parametrize("folder", ["workload_folder", "save"])
@pytest.mark.parametrize(
    ("place", "mounted"),
    [("/inst", False), ("/inst/w", False), ("/inst2", True), ("/instance/w", True), ("/in", True), ("/", True)],
)
def test_a_folder_is_mounted_unless_the_installations_mount_holds_it(site_of, folder, place, mounted):
    plan = renamed(site_of("pyxis").plan(ENABLE_CHECKPOINT="true"), install="/inst", workload_folder="/inst/w")
    changed = {"checkpoint": renamed(plan.checkpoint, save=place)} if folder == "save" else {folder: place}  # type: ignore[arg-type]
    plan = renamed(plan, **changed)
    text = script_of(plan)
    mounts = ["/inst:/inst", *([f"{place}:{place}"] if mounted else [])]
    assert f"--container-mounts={','.join(mounts)} \\\n" in text.replace("'", "")


def test_the_root_as_installation_holds_everything(site_of: Callable[[str], Site]) -> None:
    plan = renamed(site_of("pyxis").plan(), install="/", workload_folder="/w")
    text = script_of(plan)
    assert "--container-mounts=/:/ \\\n" in text
