"""Names the reasons why the calls of a module are not split, whatever a check of them would find."""

from collections.abc import Iterator

import torch
from torch import nn

from samestep.autopilot.split.call_arguments import stays_unsplit
from samestep.autopilot.state.reachable_state import functions_of_calls, names_in, reached, reads_gradients
from samestep.hooks import module_parts

KEPT_UNSPLIT = "samestep.batch_dim(..., dim=None) keeps it unsplit"
"""The reason for a module that the script itself keeps unsplit."""
_OF_CALLER = "it reads the frames of its caller, which helpers do not have"
_OF_MAIN_RANK = {
    "_version": "it reads how often a tensor was written to, which helpers do not see",
    "initial_seed": "it reads a seed of the script, and helpers have their own",
    "globals": "it looks up globals by their names, and helpers have only those that its code names",
    "currentframe": _OF_CALLER,
    "_getframe": _OF_CALLER,
}
"""The names in code that stand for what only the main rank has, with the reason why a call is unsplit."""


def refusal(module: nn.Module, device: torch.device) -> str | None:
    """Return the reason why no call of this module is split, if there is one before any is computed."""
    if stays_unsplit(module):
        return KEPT_UNSPLIT
    if any(isinstance(part, torch.jit.ScriptModule) for part in module_parts.modules(module)):
        return "TorchScript has compiled it, and its reads cannot be observed"
    if device.type == "cuda" and any(map(draws_in_cudnn, module_parts.modules(module))):
        return "cuDNN draws the dropout between its recurrent layers from a state of its own"
    if any(isinstance(value, Iterator) for _, value in reached(module)):
        return "it has an iterator, which cannot be rewound"
    functions = functions_of_calls(module)
    if reads_gradients(functions):  # those of the weights: a helper has none
        return "it reads gradients (`.grad`), which helpers do not have"
    names = names_in(functions)
    return next((why for name, why in _OF_MAIN_RANK.items() if name in names), None)


def draws_in_cudnn(module: nn.Module) -> bool:
    """Return whether a call of a module draws dropout in a kernel of cuDNN, without torch's generators."""
    has_layers = isinstance(module, nn.RNNBase) and module.num_layers > 1 and module.dropout > 0
    return has_layers and module.training and torch.backends.cudnn.enabled
