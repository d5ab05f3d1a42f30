"""``cluster_config.yaml``: what an administrator says once of a site, as frozen structs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from llmb_common.errors import ConfigError
from llmb_common.strict_yaml import load_struct

FILE_NAME = "cluster_config.yaml"

Runtime = Literal["pyxis", "enroot", "none"]


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How jobs are submitted at this site. ``gres``: ask for ``--gres=gpu:N`` (clusters without GRES reject it)."""

    account: str | None = None
    gpu_partition: str | None = None
    cpu_partition: str | None = None
    gres: bool = False
    runtime: Runtime = "pyxis"
    additional_params: str = ""
    """As ADDITIONAL_SLURM_PARAMS: semicolon-separated, added to every job."""


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where training runs outside a container: the Python of an environment that has Megatron-Bridge."""

    python: str


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole ``cluster_config.yaml``."""

    schema: Literal[1] = 1
    cluster_type: Literal["slurm", "local"] | None = None
    repo: str | None = None
    gpu_type: str | None = None
    gpus_per_node: Annotated[int, msgspec.Meta(ge=1)] | None = None
    arch: Literal["x86_64", "aarch64"] | None = None
    slurm: SlurmSettings = SlurmSettings()
    engine: Engine | None = None
    env_type: Literal["uv", "venv", "conda"] | None = None
    image_folder: str | None = None
    mounts: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    """Job variables of this site, for instance NCCL settings. They override the recipe's."""
    workloads: tuple[str, ...] = ()


def load_cluster_config(install: Path | None) -> ClusterConfig:
    """The configuration of the installation ``install``, or the defaults where it has none.

    Raises ConfigError with file and line.
    """
    if install is None or not (install / FILE_NAME).is_file():
        return ClusterConfig()
    config = load_struct(install / FILE_NAME, ClusterConfig, ConfigError)
    for name in config.environment:
        if not name.isidentifier():
            raise ConfigError(
                f"{install / FILE_NAME}: environment: {name!r} is no variable name",
                remedy="letters, digits and underscores",
            )
    return config
