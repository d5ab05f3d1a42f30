"""``llmb-run tune``: which configuration of a job is the fastest here.

::

    space      which configurations there are: settings and their values, legal combinations, what is refused and why
    strategy   from the runs on record to what is due: ``results.search`` over them, equal work, the budget
    frozen     what it began with
    run        from arguments to the result
    outcome    the result as data, text and picture
"""
