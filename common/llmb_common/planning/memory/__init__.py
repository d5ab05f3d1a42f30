"""The memory that a job needs on each rank, from its plan alone, before anything queues.

``layers``    what one layer has: weights, and what it saves of a token for the backward pass
``storage``   bytes of a weight, its gradient and its optimizer state, by precision
``stages``    which layers a pipeline stage has, and how many micro-batches of them are under way at once
``estimate``  the sum, part by part, for every stage
``kinds``     how well the estimate is known for a kind of job, from measured peaks
``decision``  whether a job is refused, and what would help

Formulas and their measured errors: docs/planning.md.
"""
