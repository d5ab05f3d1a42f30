"""What an installation consists of: answers in, steps out."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.errors import EnvironmentLacks
from llmb_common.files import write_atomic
from llmb_common.planning.plan import image_file_name
from llmb_common.site.cluster import FILE_NAME, load_cluster_config
from llmb_install.answers.answers import Answers, Secrets, to_yaml
from llmb_install.answers.stored import ANSWERS_FILE, load_recipes
from llmb_install.bootstrap import TOOL_BYTES, tool_environment
from llmb_install.commands.secret_steps import secret_steps
from llmb_install.parts import credentials, environments, images
from llmb_install.parts.engine import ENGINE_BYTES, cpu_engine
from llmb_install.parts.environments import Environment
from llmb_install.parts.hugging_face import ModelFiles
from llmb_install.parts.images import Image
from llmb_install.parts.receipts import read_receipt
from llmb_install.parts.site_config import absent_keys, apply_site_values, site_values_are_applied
from llmb_install.parts.wrappers import COMMANDS, is_current, write_wrappers
from llmb_install.working.reporter import Reporter
from llmb_install.working.space import require_space
from llmb_install.working.steps import Step

_ENGINE_DOWNLOAD = 420_000_000


class Installation:
    """An installation as its answers describe it; nothing is touched until a step runs."""

    def __init__(self, clone: Path, answers: Answers, secrets: Secrets | None = None) -> None:
        self.clone = clone
        self.answers = answers
        self.secrets = secrets or Secrets()
        self.path = Path(answers.install_path)
        self.recipes = {name: recipe for name, recipe in load_recipes(clone).items() if name in answers.workloads}

    def steps(self) -> list[Step]:
        """Everything this installation needs, in an order that makes sense to a reader."""
        steps = [self._answers_step()]
        steps += secret_steps(self.path, self.secrets, uses_images=self.answers.uses_images)
        steps += [self._folders_step(), self._tool_step(), self._commands_step()]
        if self.needs_engine():
            steps.append(self._engine_step())
        elif self.answers.engine_python:
            steps.append(self._own_engine_step(Path(self.answers.engine_python)))
        steps += [self._image_step(image) for image in self.images()]
        steps += [self._model_files_step(files) for files in self.model_files()]
        steps.append(self._site_config_step(needs=tuple(step.id for step in steps if step.id == "engine-cpu")))
        return steps

    def images(self) -> list[Image]:
        """One image for each distinct source: workloads share."""
        if not self.answers.uses_images:
            return []
        sources = sorted({recipe.image for recipe in self.recipes.values()})
        return [self._image(source) for source in sources]

    def unused_images(self) -> list[Path]:
        """Images imported for earlier recipes, which no workload asks for now. A shared folder is not looked at."""
        if self.answers.image_folder:
            return []
        needed = {image.path for image in self.images()}
        found = sorted((self.path / "images").glob("*.sqsh"))
        return [
            path for path in found if path not in needed and read_receipt(path.with_name(f"{path.name}.receipt.json"))
        ]

    def model_files(self) -> list[ModelFiles]:
        """What to fetch from Hugging Face, where that was asked for."""
        if not self.answers.hugging_face:
            return []
        repositories = {recipe.hugging_face for recipe in self.recipes.values() if recipe.hugging_face}
        return [ModelFiles(repository, self.path) for repository in sorted(repositories)]

    def image_folder(self) -> Path:
        return Path(self.answers.image_folder) if self.answers.image_folder else self.path / "images"

    def needs_engine(self) -> bool:
        """CPU jobs, and Slurm jobs without a container on CPUs, train in the CPU engine."""
        return self.answers.gpu_type == "cpu"

    def engine(self) -> Environment:
        return cpu_engine(self.clone, self.path, kind=self.answers.env_type)

    def environments(self) -> list[Environment]:
        return [tool_environment(self.clone, self.path), *([self.engine()] if self.needs_engine() else [])]

    def workload_folder(self, workload: str) -> Path:
        return self.path / "workloads" / workload

    def compute_node(self) -> tuple[str, ...]:
        """What to put before a command that should run on a compute node."""
        answers = self.answers
        if answers.install_method != "srun":
            return ()
        return (
            *("srun", "--account", answers.account or "", "--partition", answers.cpu_partition or ""),
            *("--nodes=1", "--ntasks=1", "--job-name=llmb-install", "--quiet"),
        )

    def _image(self, source: str) -> Image:
        return Image(
            source=source,
            path=self.image_folder() / image_file_name(source),
            architecture=self.answers.arch,
            receipts=self.path / ".llmb" / "receipts",
            prefix=self.compute_node(),
        )

    def _answers_step(self) -> Step:
        path = self.path / ANSWERS_FILE
        # Without --no-space-check: that is for one run, and no other answer.
        text = to_yaml(msgspec.structs.replace(self.answers, space_check=True))

        def write(reporter: Reporter) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)

        def verify() -> str | None:
            return None if _reads(path, text) else f"{path} is missing or other than asked"

        return Step("answers", lambda: _reads(path, text), write, verify, shows=f"write {path}")

    def _folders_step(self) -> Step:
        folders = [self.workload_folder(name) / "experiments" for name in self.answers.workloads]

        def make(reporter: Reporter) -> None:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)

        def done() -> bool:
            return all(folder.is_dir() for folder in folders)

        def verify() -> str | None:
            missing = [str(folder) for folder in folders if not folder.is_dir() or _should_write(folder)]
            return f"missing or not writable: {', '.join(missing)}" if missing else None

        return Step("workloads", done, make, verify, shows="make " + ", ".join(map(str, folders)))

    def _commands_step(self) -> Step:
        folder = self.path / "bin"

        def done() -> bool:
            return all(is_current(folder / name) for name in COMMANDS)

        def verify() -> str | None:
            return None if done() else f"a command in {folder} is missing or changed"

        shows = f"write {', '.join(str(folder / name) for name in COMMANDS)}"
        return Step("commands", done, lambda reporter: write_wrappers(self.path), verify, shows=shows)

    def _tool_step(self) -> Step:
        tool = tool_environment(self.clone, self.path)
        return Step(
            "tool",
            tool.is_complete,
            lambda reporter: environments.ensure(tool, reporter),
            lambda: environments.verify(tool),
            shows=f"environment {tool.link} with LLMB from {self.clone}",
            download=15_000_000,
            disk=TOOL_BYTES,
        )

    def _engine_step(self) -> Step:
        engine = self.engine()

        def run(reporter: Reporter) -> None:
            if self.answers.space_check:
                require_space(self.path, ENGINE_BYTES, "the CPU engine")
            environments.ensure(engine, reporter)

        return Step(
            "engine-cpu",
            engine.is_complete,
            run,
            lambda: environments.verify(engine),
            shows=f"{engine.kind} environment {engine.link} with Python {engine.python} from {engine.lock}",
            download=_ENGINE_DOWNLOAD,
            disk=1_800_000_000,
        )

    def _own_engine_step(self, python: Path) -> Step:
        def verify() -> str | None:
            return None if os.access(python, os.X_OK) and python.is_file() else f"{python} is not a program"

        def refuse(reporter: Reporter) -> None:
            raise EnvironmentLacks(
                f"the training engine {python} is not a program that can be run",
                remedy="give --engine-python the Python of an environment with torch and Megatron-Bridge",
            )

        return Step("engine", lambda: verify() is None, refuse, verify, shows=f"use the engine {python}")

    def _image_step(self, image: Image) -> Step:
        needs = ("registry-credentials",) if self.secrets.ngc_api_key and self.answers.uses_images else ()
        return Step(
            f"image {image.path.name}",
            image.is_complete,
            lambda reporter: images.ensure(image, reporter, os.environ, space_check=self.answers.space_check),
            image.verify,
            needs=needs,
            shows=shlex.join(images.import_command(image, image.path)),
            download=images.IMAGE_BYTES,
            disk=images.IMAGE_BYTES,
        )

    def _model_files_step(self, files: ModelFiles) -> Step:
        token = self.secrets.hf_token or credentials.stored_hf_token(self.path)
        return Step(
            f"hugging-face {files.repository}",
            files.is_complete,
            lambda reporter: files.fetch(reporter, token),
            files.verify,
            shows=f"fetch tokenizer and configuration of {files.repository} to {files.cache}",
            download=20_000_000,
            disk=20_000_000,
        )

    def _site_config_step(self, needs: tuple[str, ...]) -> Step:
        values = self.site_values()

        def verify() -> str | None:
            path = self.path / FILE_NAME
            if not path.is_file():
                return f"{path} is missing"
            applied = site_values_are_applied(self.path, values)
            load_cluster_config(self.path)
            if lacking := absent_keys(self.path, values):
                return f"{path} lacks {', '.join(lacking)} (to do without one, write null)"
            return None if applied else f"{path} is not up to date"

        return Step(
            "site-config",
            lambda: site_values_are_applied(self.path, values),
            lambda reporter: apply_site_values(self.path, values),
            verify,
            needs=needs,
            shows=f"write {self.path / FILE_NAME}",
        )

    def site_values(self) -> dict[str, Any]:
        """What ``cluster_config.yaml`` gets from the answers."""
        answers = self.answers
        values: dict[str, Any] = {
            "cluster_type": answers.cluster_type,
            "repo": str(self.clone),
            "gpu_type": answers.gpu_type,
            "arch": answers.arch,
            "env_type": answers.env_type,
            "image_folder": answers.image_folder,
            "workloads": list(answers.workloads),
        }
        if answers.on_slurm:
            slurm = {
                "account": answers.account,
                "gpu_partition": answers.gpu_partition,
                "cpu_partition": answers.cpu_partition,
                "gres": answers.gres,
                "runtime": answers.runtime,
                "mpi": answers.mpi,
                "container_writable": answers.container_writable,
            }
            values["slurm"] = {key: value for key, value in slurm.items() if value is not None}
        if self.needs_engine():
            values["engine"] = {"python": str(self.path / "venvs" / "engine-cpu" / "bin" / "python")}
        elif answers.engine_python:
            values["engine"] = {"python": answers.engine_python}
        return {key: value for key, value in values.items() if value is not None}


def _should_write(folder: Path) -> bool:
    """Whether its owner, whom we are, cannot write: a colleague need not, and keeps runs in a folder of their own."""
    return folder.stat().st_uid == os.geteuid() and not os.access(folder, os.W_OK)


def _reads(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (FileNotFoundError, UnicodeDecodeError):
        return False
