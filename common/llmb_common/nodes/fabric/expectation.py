"""Below which figures the site calls nodes failed; without a word from it, nobody fails for being slow."""

from __future__ import annotations

from llmb_common.nodes.fabric.words import MEASURES, MeasureName
from llmb_common.planning.site.cluster import HealthSettings

CPU_RATIO = 0.25
"""Of the median, on CPUs: others may work beside us, so that their spread says nothing."""


class Expectation:
    """What the site expects of its fabric, from ``health`` in ``cluster_config.yaml``."""

    def __init__(self, settings: HealthSettings, device: str) -> None:
        self._settings = settings
        self.by_ratio = device == "cpu"
        """Whether the spread of values says nothing here."""

    def ratio(self, name: MeasureName) -> float:
        """The share of the median below which a figure of the measure ``name`` is slow, where no spread is known."""
        return CPU_RATIO if self.by_ratio else MEASURES[name].slow

    def least(self, name: MeasureName, nodes: int = 1) -> float | None:
        """The least figure of the measure ``name`` that does not fail, with tolerance; None: the site has not said.

        ``nodes``: those of a group, where groups are measured.
        """
        setting = self._setting(name, nodes)
        if setting is None:
            return None
        if self._settings.tolerance_percent is not None:
            return setting * (1 - self._settings.tolerance_percent / 100)
        return setting * (CPU_RATIO if self.by_ratio else MEASURES[name].fails)

    def _setting(self, name: MeasureName, nodes: int) -> float | None:
        """The figure that the site expects of a measure, on groups of so many nodes; None: it has none."""
        if name == "groups":
            by_size = {2: self._settings.all_reduce_gb_per_s, 4: self._settings.four_nodes_all_reduce_gb_per_s}
            return by_size.get(nodes)
        setting: float | None = getattr(self._settings, MEASURES[name].setting)
        return setting

    def fails(self, value: float, median: float, least: float | None) -> bool:
        """Whether ``value`` is below ``least`` by the node's own fault: the ``median`` is not.

        False where ``least`` is None.
        """
        return least is not None and value < least <= median
