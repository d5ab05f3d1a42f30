"""Nodes: what one is known to be (``facts``), and what that says against it (``rules``, one table).

Three ask the same rules: ``llmb-install doctor`` of one node of a site, ``llmb-run health`` of nodes before a job, and
a run's evidence of the nodes that it had.
"""
