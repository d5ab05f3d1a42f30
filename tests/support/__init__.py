"""Helpers shared by the tests: a real Slurm cluster, container images, stand-ins for what no package registry has."""
