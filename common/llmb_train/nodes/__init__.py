"""What a node says of itself before a job runs there, for ``llmb-run health``: standard library only, no rendezvous.

``python -m llmb_train.nodes SPEC`` runs on each node, outside of containers on whatever Python is there, from 3.6 on:
every look is a process of its own with a hard limit, and nothing is written but what ``SPEC`` asks to be tried. Nothing
here judges. ``stress`` and ``ranks`` are its second stage, in the image that jobs run in.
"""
