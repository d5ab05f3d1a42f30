"""Below which figures the site calls nodes failed; without a word from it, nobody fails for being slow."""

from __future__ import annotations

from llmb_common.nodes.fabric.words import MEASURES, MeasureName
from llmb_common.planning.site.cluster import HealthSettings

CPU_RATIO = 0.25
"""Of the median, on CPUs: others may work beside us, so that their spread says nothing."""


class Expectation:
    """What a site expects of its fabric, from ``health`` of ``cluster_config.yaml``, on ``cuda`` or ``cpu``.

    Made from these settings and the device: exactly ``cpu``, any other counts as ``cuda``. ``least`` returns the least
    figure of a measure that does not fail, in TFLOPS or 10^9 bytes/s; None: the site expects none, as of the measure
    ``groups`` for any but 2 or 4 ``nodes``. ``fails`` returns whether a figure is below ``least`` (None: it never is)
    while the fleet's median is not. ``ratio``, which the site does not set, returns the share of the median (0 to 1)
    below which a figure is slow. ``by_ratio`` is True where figures are judged by a share of the median alone, as on
    CPUs.
    """

    def __init__(self, settings: HealthSettings, device: str) -> None:
        self._settings = settings
        self.by_ratio = device == "cpu"
        """Whether figures are judged by a share of the median alone, because their spread says nothing: on CPUs."""

    def ratio(self, name: MeasureName) -> float:
        """Return the share of the median (0 to 1) below which a figure of the measure ``name`` is slow.

        On CPUs that is 0.25 for all. It is for figures whose spread is not known: fewer than six, and all on CPUs. The
        site's settings do not change it.
        """
        return CPU_RATIO if self.by_ratio else MEASURES[name].slow

    def least(self, name: MeasureName, nodes: int = 1) -> float | None:
        """Return the least figure of the measure ``name`` that does not fail; None: the site expects none.

        It is what the site expects less its tolerance, in TFLOPS or 10^9 bytes/s. The tolerance is the site's
        ``tolerance_percent``, of all measures alike, else the measure's own, on CPUs three quarters. ``nodes`` is
        the size of a group, which matters to the measure ``groups`` only: for sizes other than 2 and 4 nothing is
        expected.
        """
        setting = self._setting(name, nodes)
        if setting is None:
            return None
        if self._settings.tolerance_percent is not None:
            return setting * (1 - self._settings.tolerance_percent / 100)
        return setting * (CPU_RATIO if self.by_ratio else MEASURES[name].fails)

    def _setting(self, name: MeasureName, nodes: int) -> float | None:
        """Return the figure that the site expects of the measure ``name``, in TFLOPS or 10^9 bytes/s.

        No tolerance is subtracted. None: none is set. ``nodes`` is the size of a group for the measure ``groups``:
        there are settings for 2 and 4 only.
        """
        if name == "groups":
            by_size = {2: self._settings.all_reduce_gb_per_s, 4: self._settings.four_nodes_all_reduce_gb_per_s}
            return by_size.get(nodes)
        setting: float | None = getattr(self._settings, MEASURES[name].setting)
        return setting

    def fails(self, value: float, median: float, least: float | None) -> bool:
        """Return whether ``value`` is below ``least``, what the site accepts, while the fleet's ``median`` is not.

        If the median is below ``least`` as well, it is no single node's fault. False where ``least`` is None.
        """
        return least is not None and value < least <= median
