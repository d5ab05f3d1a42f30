"""Saving and resuming torch's AdamW in megatron-core's distributed optimizer (0.16 and 0.19 alike).

On GPUs the optimizer is Transformer Engine's or Apex's, which counts steps for each parameter group. torch counts them
in a tensor for each parameter, which core gets wrong in three places, each mended below. (A fourth, in Megatron-FSDP,
hangs: a rank whose shard of a parameter is empty has no state for it. ``llmb_train.settings`` refuses to save there.)
"""

from __future__ import annotations

from typing import Any

import torch


def patch() -> None:
    """Patch ``DistributedOptimizer``'s state methods."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    core_state_dict = DistributedOptimizer.state_dict
    core_set_states = DistributedOptimizer._set_main_param_and_optimizer_states
    core_load_state_dict = DistributedOptimizer.load_state_dict

    def state_dict(self: Any) -> Any:
        # Core asks a fresh optimizer for its state when it plans a load, and asserts that every step is the same;
        # AdamW has no state before its first step.
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state[parameter]
                state.setdefault("step", torch.tensor(0.0))
                for moment in ("exp_avg", "exp_avg_sq"):
                    if moment not in state:
                        state[moment] = torch.zeros_like(parameter.data)
        return core_state_dict(self)

    def set_states(self: Any, model_param: Any, tensors: dict[str, Any]) -> Any:
        # The checkpoint's tensors have no step (core keeps it by group), AdamW's state does, and core copies by key.
        own = self._get_main_param_and_optimizer_states(model_param)
        if "step" in own and "step" not in tensors:
            tensors = {**tensors, "step": own["step"].clone()}
        return core_set_states(self, model_param, tensors)

    def load_state_dict(self: Any, state: Any) -> Any:
        result = core_load_state_dict(self, state)
        # Core gives all parameters one step tensor, and AdamW would advance it once for each of them.
        for parameter_state in self.optimizer.state.values():
            if "step" in parameter_state:
                parameter_state["step"] = parameter_state["step"].clone()
        return result

    DistributedOptimizer.state_dict = state_dict
    DistributedOptimizer._set_main_param_and_optimizer_states = set_states
    DistributedOptimizer.load_state_dict = load_state_dict
