"""What a node says of itself: the program that ``llmb-run health`` and ``llmb-install doctor`` start on it, and what
the ranks of a run record of theirs (``record``), by the same looks. Nothing here judges.

``python -m llmb_train.nodes SPEC`` looks at one node (``looks``: each look a process of its own with a hard limit), or
puts it under load (``stress``, in the image that jobs run in). Standard library only, no rendezvous, and outside of
containers on whatever Python is there, from 3.6 on: only ``record`` and ``stress`` are newer. Nothing is written but
what ``SPEC`` asks to be tried.

A new fact is a line here, in the look that finds it, and a field of the same name in ``llmb_common.nodes.facts``.
"""
