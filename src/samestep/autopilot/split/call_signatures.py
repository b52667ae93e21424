"""Computes the signatures of calls: calls of one signature are split in the same way."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn

from samestep.autopilot.split.call_plans import CallArguments
from samestep.autopilot.split.guards import Attributes, changed, plain_arguments, plain_attributes, without

Signature: TypeAlias = tuple[Any, ...]
"""Modes and shapes of a call, and the values of its guards."""

MOST_STATES = 8
"""Values of the guards of one signature that are all checked; then one whenever their number doubles."""


class CallSignatures:
    """Computes the signatures of one script's calls.

    Args:
        device: the device of this rank, whose autocast is part of a signature.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._states: WeakKeyDictionary[nn.Module, dict[Signature, list[Any]]] = WeakKeyDictionary()
        self._new_states: WeakKeyDictionary[nn.Module, Counter[Signature]] = WeakKeyDictionary()
        self._counted: WeakKeyDictionary[nn.Module, set[tuple[int, str]]] = WeakKeyDictionary()

    def signature(
        self, module: nn.Module, given: CallArguments, plain: Attributes, plans: Mapping[Signature, Any]
    ) -> Signature:
        """Return the signature of a call, with the values of its guards.

        Beyond `MOST_STATES` values, a new value is treated as an earlier one that could not be split, or else
        as the last one; it is checked whenever the number of new values has doubled.

        Args:
            module: the called module.
            given: its arguments.
            plain: its plain attributes before the call.
            plans: the plans of the module's signatures; None for one that cannot be split.
        """
        autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled(self._device.type)
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast
        form = (module.training, *modes, given.form())
        state = (plain_arguments(given), without(plain, self._counted.get(module, ())))
        known = self._states.setdefault(module, {}).setdefault(form, [])
        if state in known:
            return form, state
        counts = self._new_states.setdefault(module, Counter())
        counts[form] += 1
        if counts[form] <= MOST_STATES or counts[form].bit_count() == 1:
            known.append(state)
        else:
            state = next((one for one in known if plans.get((form, one)) is None), known[-1])
        return form, state

    def without_own_changes(self, module: nn.Module, plain: Attributes, signature: Signature) -> Signature:
        """Return the signature without the attributes that the call itself has changed, such as a counter.

        The new signature replaces the old one, so it is not counted as a new state.

        Args:
            module: the called module.
            plain: its plain attributes before the call.
            signature: the signature of the call so far.
        """
        own = changed(plain, plain_attributes(module)).keys()
        if not own:
            return signature
        counted = self._counted.setdefault(module, set())
        counted.update(own)
        form, (arguments, _) = signature
        state = arguments, without(plain, counted)
        known = self._states[module][form]
        known.remove(signature[1])
        if state not in known:
            known.append(state)
        return form, state
