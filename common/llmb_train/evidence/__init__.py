"""What else a run says of itself, beside its nodes (``llmb_train.nodes``): the configuration as the framework resolved
it, held against the plan, and what a rank says when its job hangs.

Nothing runs during the measured iterations, and nothing here ends a run, with one exception: a framework that trains
something else than was planned. Standard library only; imported before torch is.
"""
