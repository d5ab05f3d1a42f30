"""``llmb-run tune``: which configuration of a job is the fastest here.

::

    settings   values of what has no column
    space      which configurations there are: settings and their values, what is refused and why, an even sample
    halving    which of them to try next, and which leads: pure, from how their trials ended
    outcomes   how a run ended, and whether it did the base's work
    strategy   from the runs on record to what is due: halving, the proof by a comparison as of ``ab``, the budget
    preview    what is to be tried: as data, in words, and as the campaign keeps it
    answer     what was found, as data and in words
    run        from arguments to the result
"""
