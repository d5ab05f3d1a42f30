"""What an installation consists of: answers in, artefacts out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from llmb_common.platform.engines import DEFAULT_ENGINE, image_file_name
from llmb_common.recipes.recipe import Recipe
from llmb_install.answers.answers import ANSWERS_FILE, Answers, load_recipes, to_yaml
from llmb_install.parts import credentials
from llmb_install.parts.bundles import bundled_image
from llmb_install.parts.credentials import Secrets, secret_files
from llmb_install.parts.engine import KINDS, Engine, cpu_engine, own_engine, tool_environment
from llmb_install.parts.environment import Environment
from llmb_install.parts.files import WorkloadFolders, answers_file, commands
from llmb_install.parts.hugging_face import ModelFiles
from llmb_install.parts.image import Image
from llmb_install.parts.site_config import SiteConfig
from llmb_install.working.artefact import Artefact, read_receipt


class Installation:
    """An installation as its answers describe it; nothing is touched until an artefact is made."""

    def __init__(self, clone: Path, answers: Answers, secrets: Secrets | None = None) -> None:
        self.clone = clone
        self.answers = answers
        self.secrets = secrets or Secrets()
        self.path = Path(answers.install_path)
        self.recipes = {name: recipe for name, recipe in load_recipes(clone).items() if name in answers.workloads}

    def artefacts(self) -> list[Artefact]:
        """Everything this installation consists of, in an order that makes sense to a reader."""
        # Without --no-space-check: that is for one run, and no other answer.
        answers = to_yaml(msgspec.structs.replace(self.answers, space_check=True))
        experiments = tuple(self.workload_folder(name) / "experiments" for name in self.answers.workloads)
        return [
            answers_file(self.path / ANSWERS_FILE, answers),
            *secret_files(self.path, self.secrets, uses_images=self.answers.uses_images),
            WorkloadFolders(experiments),
            tool_environment(self.clone, self.path),
            commands(self.path / "bin"),
            *self._engines(),
            *self.images(),
            *self.model_files(),
            SiteConfig(self.path, self.site_values(), needs=tuple(engine.id for engine in self.engines())),
        ]

    def _engines(self) -> list[Artefact]:
        if self.needs_engine():
            return [*self.engines()]
        return [own_engine(Path(self.answers.engine_python))] if self.answers.engine_python else []

    def images(self) -> list[Image]:
        """One image for each distinct source: workloads share."""
        if not self.answers.uses_images:
            return []
        sources = {recipe.engines[release] for recipe in self.recipes.values() for release in self._chosen(recipe)}
        return [self._image(source) for source in sorted(sources) if not source.startswith("/")]  # a site's own file

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
        token = self.secrets.hf_token or credentials.stored_hf_token(self.path)
        return [ModelFiles(repository, self.path, token) for repository in sorted(repositories)]

    def needs_engine(self) -> bool:
        """CPU jobs, and Slurm jobs without a container on CPUs, train in the CPU engine."""
        return self.answers.gpu_type == "cpu"

    def releases(self) -> list[str]:
        """The releases of Megatron-Bridge that the chosen recipes need."""
        return sorted({release for recipe in self.recipes.values() for release in self._chosen(recipe)})

    def _made(self) -> list[str]:
        """Those of them that there is a lock for; a newer one the site brings itself."""
        return [release for release in self.releases() if release in KINDS]

    def _chosen(self, recipe: Recipe) -> list[str]:
        """The releases that a recipe's jobs run on here: its own, and those of the answers."""
        return [
            release for release in recipe.engines if release == recipe.engine or release in (self.answers.engines or ())
        ]

    def engine(self, release: str = DEFAULT_ENGINE) -> Engine:
        return cpu_engine(self.clone, self.path, kind=self.answers.env_type, release=release)

    def engines(self) -> list[Engine]:
        """The CPU engines that the chosen recipes need."""
        return [self.engine(release) for release in self._made()] if self.needs_engine() else []

    def engine_names(self) -> set[str]:
        """The names of ``engines``, also where none could be built."""
        return {KINDS[release].name for release in self._made()} if self.needs_engine() else set()

    def environments(self) -> list[Environment]:
        return [tool_environment(self.clone, self.path), *self.engines()]

    def workload_folder(self, workload: str) -> Path:
        return self.path / "workloads" / workload

    def compute_node(self) -> tuple[str, ...]:
        """The prefix of commands that should run on a compute node."""
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
            path=Path(self.answers.image_folder or self.path / "images") / image_file_name(source),
            architecture=self.answers.arch,
            receipts=self.path / ".llmb" / "receipts",
            prefix=self.compute_node(),
            space_check=self.answers.space_check,
            mirror=self.answers.registry_mirror or "",
            origin=bundled_image(self.answers.arch, source),
            needs=(credentials.REGISTRY,) if self.secrets.ngc_api_key else (),
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
            # Through the link, so that it stays right after an update.
            venvs = self.path / "venvs"
            pythons = {release: str(venvs / KINDS[release].name / "bin" / "python") for release in self._made()}
            values["engine"] = engine_values(pythons)
        elif answers.engine_python:
            values["engine"] = engine_values(dict.fromkeys(self.releases(), answers.engine_python))
        return {key: value for key, value in values.items() if value is not None}


def engine_values(pythons: dict[str, str]) -> dict[str, Any]:
    """``engine`` of ``cluster_config.yaml``: the Python of each release of Megatron-Bridge."""
    others = {release: python for release, python in pythons.items() if release != DEFAULT_ENGINE}
    values: dict[str, Any] = {"python": pythons[DEFAULT_ENGINE]} if DEFAULT_ENGINE in pythons else {}
    return values | ({"releases": others} if others else {})
