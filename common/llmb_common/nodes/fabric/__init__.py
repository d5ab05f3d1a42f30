"""The fabric between nodes: what collectives over groups of nodes gave (``measurement``), which groups are measured
(``grouping``), what the fleet's own spread says of them (``judging``), and whom the slow ones share (``blame``).

Pure: starts nothing, and knows no scheduler and no torch.
"""
