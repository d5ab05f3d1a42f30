"""``llmb-run tune``: which configuration of a job is the fastest here.

::

    space      which configurations there are: settings and their values, legal combinations, what is refused and why
    strategy   from the runs on record to what is due: ``results.search`` over them, equal work, the budget
    run        from arguments to the result, as data and text
"""
