"""What a plan is made of: what is given, and the row of the recipe that it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmb_common.platform.gpus import CPU
from llmb_common.recipes.model import AnyShape, Model
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Row, Variant
from llmb_common.request.read import Request
from llmb_common.site.cluster import FILE_NAME, ClusterConfig
from llmb_common.site.machine import Machine

if TYPE_CHECKING:  # read where a recipe has a catalogue
    from llmb_common.recipes.catalogue import Function


@dataclass(frozen=True, kw_only=True)
class Given:
    """The input of planning: recipe, cluster, request, machine."""

    recipe: Recipe
    cluster: ClusterConfig
    request: Request
    machine: Machine

    @property
    def containers(self) -> bool:
        """Whether jobs run in the image."""
        return self.machine.traits.containers and bool(self.cluster.scheduler(self.machine.cluster_type).containers)


@dataclass(frozen=True, kw_only=True)
class Case(Given):
    """What is given, and what it means in the recipe. ``model`` has as many layers as ``row`` says."""

    gpu_type: str
    model: Model
    row: Row
    variant: Variant
    dtype: str
    gpus: int
    function: Function | None
    """What the row's function gives; None where the recipe itself lists the architecture."""
    notices: list[str] = field(default_factory=list)
    """What was decided for the user, or has no effect: whoever finds it says it here, in the front end's words."""

    def note(self, *notices: str) -> None:
        """Add notices for the user."""
        self.notices.extend(notices)

    @property
    def shape(self) -> AnyShape:
        """The model's sizes: layers, hidden size, heads and so on."""
        return self.function.architecture if self.function is not None else self.model.listed

    @property
    def adapters(self) -> bool:
        """Whether adapters (LoRA) are trained beside the model that LOAD_CHECKPOINT_PATH names."""
        catalogue, name = self.recipe.catalogue, self.row.function
        return catalogue is not None and name is not None and catalogue.entry(name).task == "peft"

    @property
    def resumes(self) -> bool:
        """Whether the run goes on from a checkpoint."""
        return self.request.load_checkpoint is not None and not self.adapters

    @property
    def on_cpu(self) -> bool:
        return self.gpu_type == CPU

    @property
    def what(self) -> str:
        """The configuration, for messages."""
        return f"{self.recipe.name} {self.model.size} {self.dtype} on {gpu_said(self, self.gpu_type)}"


def gpu_said(given: Given, gpu_type: str) -> str:
    """``gpu_type`` and who said so, for messages: a user looks for GPU_TYPE in the shell in vain if the site set it."""
    from_site = given.request.gpu_type is None and gpu_type == given.cluster.gpu_type
    return f"{gpu_type} (gpu_type in {FILE_NAME})" if from_site else gpu_type
