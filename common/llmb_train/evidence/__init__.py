"""Proof of what ran: what each node and the framework say about themselves, written beside the run's record.

One process a node writes (local rank 0): ``nodes/<host>.json`` when it starts, under load and when training has ended,
and ``nodes/<host>.nccl.log``, which NCCL itself fills while it connects. Rank 0 has ``config.yaml`` written, and holds
it against the plan. Nothing runs during the measured iterations, and nothing here ends a run, with one exception: a
framework that trains something else than was planned.

Standard library only; imported before torch is.
"""
