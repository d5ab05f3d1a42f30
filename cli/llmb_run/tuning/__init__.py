"""``llmb-run tune``: which configuration of a job is the fastest here.

::

    space      which configurations there are: settings and their values, what is refused and why, an even sample
    halving    which of them to try next, and which leads: pure, from how their trials ended
    strategy   from the runs on record to what is due: halving, the proof by a comparison as of ``ab``, the budget
    run        from arguments to the result: the campaign, its space kept, what is asked again
    answer     what was found, as data and text
"""
