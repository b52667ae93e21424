"""Holds what a split call needs to be computed again, and is its node in the script's graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from samestep.autopilot.helpers.call_states import SignatureCalls
from samestep.autopilot.helpers.mirrors import MirroredModule
from samestep.autopilot.helpers.slices import CallResult
from samestep.autopilot.helpers.surroundings import Surroundings
from samestep.autopilot.split.call_plans import assign_side_outputs, outcome
from samestep.autopilot.split.guards import Reach
from samestep.autopilot.split_calls import ModuleCall, is_inside
from samestep.autopilot.state.saved_state import SavedState, SideOutput, version_of
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import leaves

if TYPE_CHECKING:
    from samestep.autopilot.helpers.main_calls import MainCalls

CREATES_GRAPH = "its gradients are differentiated again (create_graph=True)"
MODIFIED = "its weights are modified before its backward, so it could not be computed again"


@dataclass(slots=True)
class Attempt:
    """A call that is about to be split."""

    call: ModuleCall
    carried: tuple[SideOutput, ...]
    """The attributes of the module that hold tensors with a graph."""
    state: Mapping[SideOutput, Any]
    """These, and the other attributes that the call assigns, before the call."""
    surroundings: Surroundings
    streams: RngState
    """The state of the random generators before the call."""
    reach: Reach
    """The objects that the module reaches before the call."""
    number: int = 0
    """The number under which all ranks keep the graph of the call."""
    mirror: MirroredModule | None = None
    """The mirrors of the module when the call was sent; a loss of helpers forgets all mirrors."""


class NodeCall:
    """A split call in the script's graph."""

    def __init__(
        self, calls: "MainCalls", attempt: Attempt, signature: SignatureCalls, found: CallResult
    ) -> None:
        assert found.graph is not None
        self._calls, self._signature, self._plan = calls, signature, signature.plan
        self._attempt: Attempt | None = attempt
        self._number = attempt.number
        self._versions = [version_of(source) for source in found.sources]
        self.outputs: Sequence[Tensor] = found.graph.outputs
        self._constants = found.constants

    def backward(
        self, sources: Sequence[Tensor], gradients: Sequence[Tensor | None], *, retain: bool
    ) -> Sequence[Tensor | None]:
        """See `DifferentiableCall.backward`."""
        creates_graph = torch.is_grad_enabled()
        is_modified = [version_of(source) for source in sources] != self._versions
        if creates_graph:
            self._signature.stay_unsplit(CREATES_GRAPH)
        else:
            found = self._calls.backward(self._number, gradients, self._signature, retain=retain)
            if found is not None:
                if is_modified:
                    self._signature.stay_unsplit(MODIFIED)
                return found
        if is_modified:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                "operation after the call of the model, which has to be computed again here"
            )
        with torch.enable_grad():
            outputs = self._computed_again()
        given = [grad for place, grad in enumerate(gradients) if place not in self._constants]
        pairs = [(out, grad) for out, grad in zip(outputs, given, strict=True) if grad is not None]
        wanted = [source for source in sources if source.requires_grad]
        of_wanted = iter(
            torch.autograd.grad(
                *([out for out, _ in pairs], wanted, [grad for _, grad in pairs]),
                create_graph=creates_graph,
                allow_unused=True,
            )
        )
        return [next(of_wanted) if source.requires_grad else None for source in sources]

    def _computed_again(self) -> list[Tensor]:
        """Return the outputs that have gradients, with a graph of the whole call on this rank."""
        attempt, device = self._attempt, self._calls.device
        assert attempt is not None
        assert self._plan is not None
        call, module = attempt.call, attempt.call.module
        saved, now, modes = SavedState(module), RngState.now(device), Surroundings.now(module, device)
        inside = is_inside.set(True)
        try:
            attempt.streams.restore()
            assign_side_outputs(module, attempt.state)
            with attempt.surroundings.entered(module):
                value = outcome(module, call.unsplit(), self._plan.sides)
            return [one for _, one in leaves(value) if one.requires_grad]
        finally:
            is_inside.reset(inside)
            saved.restore()
            now.restore()
            modes.set(module)

    def release(self) -> None:
        """See `DifferentiableCall.release`."""
        self._attempt, self.outputs = None, []
        self._calls.release(self._number)
