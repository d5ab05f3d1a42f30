"""Runs that one command plans, starts and waits for until its question is answered: acceptance, comparison, tuning.

::

    campaign   on disk: its folder, its lock, the keys of its runs; what must not change while it lasts
    conduct    how each run ended, and the loop: what is on record, what a strategy says is due, submit, wait

What is due is derived from the runs on record, which carry the campaign's keys. A process that is killed at any point
leaves a campaign that the next one continues in the same way.
"""
