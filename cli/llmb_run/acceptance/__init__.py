"""``llmb-run accept``: a suite of workloads, planned, run, judged, rerun where that is inconclusive, and packed.

::

    suite      the file: which jobs, how often, compared with what
    planned    every job planned, with its reference, before anything starts
    frozen     what must not change while a campaign lasts, and what has
    standing   where each workload stands by the runs on record, and which runs are due (campaigns conducts them)
    outcome    the verdicts as table and JSON
    pack       the evidence pack
    verify     a pack, checked: its files, its signature (signing), and its verdict, judged again from its logs
               (recompute, differences)
    shipped    the suites that come with LLMB, made from the recipes and their published results
    preview    a dry run: the limits, and how the campaign can end at best
"""
