"""How far the clocks of two machines may differ."""

CLOCKS_SECONDS = 300.0
"""Either way. Where it is more, Slurm itself fails: MUNGE lets a credential live for so long."""
