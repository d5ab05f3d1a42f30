"""``llmb-run accept``: a suite of workloads, planned, run, judged, rerun where that is open, and packed.

::

    suite      the file: which jobs, how often, compared with what; and those that come with LLMB
    exemplar   the suites of NVIDIA's Exemplar Clouds, from the list that exemplar.json has
    workloads  every job planned, with its reference; what must not change meanwhile; where each stands by its runs
    outcome    the verdicts as table and JSON
    run        the command, its dry run, and the evidence pack
    recorded   a campaign of anybody: its files, in its own folder or in its unpacked evidence
    show       a campaign or its unpacked evidence: what was demanded, and the verdict, judged again from its logs
"""
