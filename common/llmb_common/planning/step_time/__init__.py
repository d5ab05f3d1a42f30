"""How long a step will take: a band, and the class of knowledge that it comes from.

A step's time is at least its work over what the hardware can do (``work``); how far real steps are from that, and how
far predictions are from real steps, say the published results (``bands``; ``tools.step_times`` computes both).
"""

from llmb_common.planning.step_time.bands import CLASSES, Band
from llmb_common.planning.step_time.expected import Look, Measured, expected

__all__ = ["CLASSES", "Band", "Look", "Measured", "expected"]
