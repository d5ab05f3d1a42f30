"""The pages in docs/ say what the code does: links, numbers, names, messages, commands."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_common.planning.request.read import read_request
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import model_flops
from llmb_common.results.decision import LOOKS, TOLERANCE
from llmb_common.results.level import CONFIDENCE, ERROR_RATE
from llmb_common.results.references import RELEASE_SPREAD
from llmb_common.results.scatter import STATED
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission import launch
from llmb_common.submission.job_files import job_document
from llmb_install.answers.answers import complete_answers, load_recipes
from llmb_install.commands.quickstart import WORKLOAD
from llmb_install.installation import Installation, leaves, write_site_config
from support.repository import our_files
from tools.verdict_simulation import MODELS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in our_files() if path.suffix == ".md" and ".github" not in path.parts]
RECIPES = ["grok1", "llama3.1", "llama4", "nemotron4"]
DOCUMENTS = ROOT / "tests" / "data" / "documents"


def page(name: str) -> str:
    """The text with single spaces, so that line breaks do not matter."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        leads_to = (path.parent / file).resolve() if file else path
        assert leads_to.exists(), target
        assert not anchor or anchor in anchors(leads_to), target


def test_pages_that_code_names_are_there() -> None:
    """In messages, help texts and comments, with their anchors."""
    code = [path for path in our_files() if path.suffix in (".py", ".sh", ".yaml", ".yml") and "data" not in path.parts]
    page_of_ours = re.compile(r"\bdocs/(?!performance-summary)([a-z-]+)\.md(?:#([a-z-]+))?")
    for path in code:
        for page_name, anchor in page_of_ours.findall(path.read_text()):
            named = ROOT / "docs" / f"{page_name}.md"
            assert named.is_file(), f"{path}: {page_name}"
            assert not anchor or anchor in anchors(named), f"{path}: {page_name}#{anchor}"


NO_PAGES = {"CHANGELOG.md", "SECURITY.md"}
"""What forges look for by name, and nobody reads to use LLMB."""

FOR_DEVELOPERS = {"CONTRIBUTING.md", "architecture.md", "benchmarks.md"}
"""Pages that nobody reads to use LLMB."""


def test_pages_are_few_and_read_in_an_afternoon() -> None:
    pages = [path for path in PAGES if "data" not in path.parts and path.name not in NO_PAGES]
    assert len(pages) <= 24
    read = [path.read_text() for path in pages if path.name not in FOR_DEVELOPERS]
    by_hand = [re.sub(r"<!-- table: .*?<!-- end -->", "", text, flags=re.DOTALL) for text in read]
    assert sum(len(text.split()) for text in by_hand) <= 45_000


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lists_look_alike_on_a_forge_and_on_the_site(path: Path) -> None:
    """Python-Markdown wants a blank line around blocks in lists, and four spaces before them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    shallow = re.findall(r"^ {1,3}(?:[*-] |[0-9]+\. |```).*", text, re.MULTILINE)
    assert shallow == []
    assert re.findall(r"^(?![*-] |[0-9]+\. |\s|>).+\n(?:[*-]|[0-9]+\.) .*", text, re.MULTILINE) == []
    assert re.findall(r"^ {4}\S.*\n[0-9]+\. .*", text, re.MULTILINE) == []


PACKAGES = [
    ROOT / name for name in ("common", "common/llmb_common", "common/llmb_train", "cli", "installer", "tests", "")
]


def is_in_the_code(name: str) -> bool:
    """Whether the dotted name is a module, a package, or occurs in the module that it is said to be in."""
    *path, last = name.split(".")
    for place in (package.joinpath(*path) for package in PACKAGES):
        if (place / f"{last}.py").is_file() or (place / last).is_dir():
            return True
        module = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
        if path and module is not None and re.search(rf"\b{last}\b", module.read_text()):
            return True
    return False


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_that_pages_name_are_there(path: Path) -> None:
    """By their full names everywhere; on the page of the architecture from their package on, too."""
    names = re.findall(r"`((?:llmb_\w+|tools|support)\.[\w.]+)`", path.read_text())
    if path.name == "architecture.md":
        dotted = re.findall(r"`([a-z_]+\.[\w.]*\w)`", path.read_text())
        others = r"^(megatron|steps|sys)\.|\.(json|jsonl|out|py|sbatch|sh|toml|txt|yaml)$"
        names += [name for name in dotted if not re.search(others, name)]
    assert [name for name in names if not is_in_the_code(name)] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="MkDocs Material needs Python 3.11")
def test_the_site_is_built_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tools.site", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    built = {str(page.relative_to(tmp_path)) for page in tmp_path.rglob("*.html")}
    pages = [str(path.relative_to(ROOT)) for path in PAGES if "data" not in path.parts]
    wanted = {page.replace("README.md", "index.html").replace(".md", ".html") for page in pages}
    assert wanted == built - {"404.html"}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_leads_to_the_pages(name: str) -> None:
    text = (ROOT / name / "README.md").read_text()
    for linked in ("checkpoints", "failures", "reference", "slow", "verdicts"):
        assert f"../docs/{linked}.md" in text


def test_numbers_on_run_to_run_variation_are_those_of_the_code_and_the_documents() -> None:
    text = page("verdicts.md")
    logs = [item for item in json.loads((DOCUMENTS / "tables.json").read_text()) if item["kind"] == "example_log"]
    shares = [100 * item["step_std_s"] / item["step_s"] for item in logs if "step_std_s" in item]
    assert f"{min(shares):.1f} to {max(shares):.1f} % in the example logs of NVIDIA's READMEs" in text
    model = load_recipe(ROOT / "llama3.1").model("8b")
    full, causal = (
        model_flops(model.architecture, model.sequence_length, how).total  # type: ignore[arg-type]
        for how in ("full", "causal")
    )
    assert f"takes {100 * (1 - causal / full):.0f} % off the MFU of Llama 3.1 8B" in text


def test_figures_of_the_page_of_verdicts() -> None:
    text = " ".join(page("verdicts.md").split())
    for kind, name in (("dense", "dense (Llama 3 8B and 70B, Llama 3.1 405B)"), ("MoE", "mixture of experts")):
        spread = RELEASE_SPREAD[kind]
        assert re.search(
            rf"{re.escape(name)} \| [0-9]+ \| {100 * spread.fastest:.1f} % \| \{100 * spread.slowest:+.1f} %", text
        )
    widened = [100 * ((1 + TOLERANCE) * (1 + RELEASE_SPREAD[kind].slowest) - 1) for kind in ("dense", "MoE")]
    assert f"5 % becomes {widened[0]:.1f} % for dense models and {widened[1]:.1f} % for mixtures of experts" in text
    stated = f"{100 * STATED.day:.2f} % between days and {100 * STATED.run:.2f} % between runs of a day"
    assert f"{stated}, {100 * STATED.total:.1f} % together" in text
    assert f"one-sided tests at {100 * ERROR_RATE:.1f} % each" in text
    assert f"{100 * CONFIDENCE:.1f} % interval" in text
    assert f"at {', '.join(map(str, LOOKS))}, ... runs only" in text


def test_the_simulated_tables_are_within_what_the_page_claims() -> None:
    """Wrong answers stay below 5 %, and the rows that do not are those that the page names."""
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    text = text.partition("## How often verdicts are wrong")[2].partition("\n## ")[0]
    known, beyond = set(), set()
    for title, record, rest in re.findall(r"^\| ([^|]+) \| (no|yes) \| [0-9]+ \| (.*) \|$", text, re.M):
        known.add(title)
        cells = [cell for cell in rest.split(" | ") if cell != "-"]
        wrong = [float(share) for cell in cells for share in cell.partition("; ")[2].split(" / ")]
        if max(wrong) > 5:
            beyond.add((title, record))
    assert known == {noise.title for noise in MODELS}
    assert beyond == {
        ("2.5 % of the steps 3 times as long", "no"),
        ("slow starts: up to step 10 to 25", "no"),
        ("stalls on a fifth of the days: 10 % of the steps twice as long", "no"),
        ("stalls on a fifth of the days: 10 % of the steps twice as long", "yes"),
    }


def test_the_page_of_verdicts_is_read_in_minutes() -> None:
    words = re.findall(r"\S*[A-Za-z0-9]\S*", (ROOT / "docs" / "verdicts.md").read_text())
    assert len(words) <= 1500


def test_figures_of_the_checkpoint_page() -> None:
    text = page("checkpoints.md")
    vocabulary = load_recipe(ROOT / "llama3.1").model("8b").architecture.vocabulary
    assert f"({math.log(vocabulary):.1f} for Llama 3.1)" in text


@pytest.mark.parametrize("module", ["llmb_train/steps.py"])
def test_messages_about_checkpoints_are_those_of_the_code(module: str) -> None:
    code = (ROOT / "common" / module).read_text()
    for quoted in ("there is no checkpoint in ", "holds no *.distcp file", "and the run ends at step "):
        assert quoted in code
        assert quoted.strip() in page("checkpoints.md")
    assert '"latest_checkpointed_iteration.txt"' in code
    assert "latest_checkpointed_iteration.txt" in page("checkpoints.md")


def test_the_migration_page_names_todays_image_folders_and_scalings() -> None:
    text = page("reference.md")
    for name in RECIPES:
        recipe = load_recipe(ROOT / name)
        assert f"`{recipe.image.rpartition('/')[2]}`" in text
        measured_on = set(re.findall(r"NeMo (25\.0[0-9.]*[0-9])", (ROOT / name / "README.md").read_text())) - {"25.09"}
        assert measured_on, name
        assert all(f"nemo:{release}`" in text for release in measured_on), measured_on
        if recipe.variants[0].experiment_name.startswith("pretraining_"):
            assert f"`workloads/{recipe.workload}`" in text
            assert f"`workloads/{recipe.workload.replace('pretrain_', 'pretraining_')}`" in text
        for variant in recipe.variants:
            assert f"`{'FP8_RECIPE=' if variant.fp8_recipe == 'ds' else ''}{variant.fp8_recipe}`" in text


def documented_launches() -> list[tuple[str, str]]:
    found = []
    for path in PAGES:
        for block in re.findall(r"```(?:bash|shell)\n(.*?)```", path.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.partition(" #")[0].strip()
                if command.endswith("./launch.sh") and not re.search(r"[<\[]|\.\.\.", command):
                    found.append((str(path.relative_to(ROOT)), command))
    return found


def test_the_documents_have_enough_examples() -> None:
    assert len([where for where, _ in documented_launches() if Path(where).parent.name in RECIPES]) >= 35


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation that knows of its site what ``./installer.py --quickstart`` writes."""
    install = tmp_path_factory.mktemp("quickstart")
    given = {"install_path": str(install), "cluster_type": "local", "gpu_type": "cpu", "workloads": [WORKLOAD]}
    installation = Installation(ROOT, complete_answers(given, load_recipes(ROOT)))
    write_site_config(install, leaves(installation.site_values()))
    return install


@pytest.mark.parametrize(("where", "command"), documented_launches())
def test_every_documented_command_plans_after_the_quickstart(where, command, quickstart, capsys):
    """As a dry run, also for GPUs that the machine lacks; and each variable is one that is read."""
    said = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
    variables = {"LLMB_INSTALL": str(quickstart), "DRY_RUN": "true", **said}
    assert read_request(variables).unread == {}
    folder = Path(where).parent.name
    recipe = ROOT / (folder if folder in (*RECIPES, "mbridge") else "llama3.1")
    assert launch.run(recipe, variables) == 0
    printed = capsys.readouterr()
    smoke = said.get("MODEL_SIZE", "").endswith("smoke")
    assert ("#SBATCH --nodes=" in printed.out or '"cluster_type": "slurm"' in printed.out) is not smoke
    assert ("there are no GPUs here: planned for " in printed.err) is not smoke


def test_the_example_of_a_function_is_the_planned_one(tmp_path: Path) -> None:
    """``job.json`` in the architecture: name, release and columns of DeepSeek-V3 on 256 GB300."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    shown = json.loads("{" + re.findall(r'("function": \{.*?\n  \})', text, re.DOTALL)[0] + "}")["function"]
    variables = {"GPU_TYPE": "gb300", "MODEL_SIZE": "deepseek_v3", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "256"}
    plan = launch.plan_from_variables(
        ROOT / "mbridge", {"LLMB_INSTALL": str(tmp_path), "CLUSTER_TYPE": "slurm", **variables}
    )[1]
    made = job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name))["function"]
    assert shown["columns"].items() <= made["columns"].items()
    assert (shown["name"], shown["release"]) == (made["name"], made["release"])
