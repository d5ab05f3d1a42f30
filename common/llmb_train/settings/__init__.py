"""A recipe's columns as fields of Megatron-Bridge's ``ConfigContainer``, one module per concern.

Each module says where a setting comes from that no column names: what Megatron-Bridge's own performance
configurations for Llama resolve to ("Bridge 0.3.1"), or what NeMo's performance scripts ran for the other models
("NeMo"). A recipe's own columns always win.
"""
