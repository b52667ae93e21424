"""Notes trainings that go on from a saved state without the parameters that were frozen when it was saved."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from samestep.base.units import counted
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Call, Check, checksum, in_words
from samestep.verify.observers.rank_observers import dicts
from samestep.verify.probe import plain_name
from samestep.verify.trace import Note, Place

_NAMED = 3  # parameters that a message names
Checksums = dict[str, int]  # by the parameter's name


@dataclass(frozen=True, slots=True)
class _SavedState:
    """The parameters of a trained model when a state of some of them was saved."""

    place: Place | None  # the line that saved it
    saved: Checksums  # the saved ones
    frozen: Checksums  # those that were not saved, are frozen, and have not changed in the training


class SavedStateDiffers(Check):
    """Compares frozen parameters that a saved state lacks with those of the model that loads it.

    A state without the weights of a frozen, pretrained model is right if these are loaded from elsewhere.
    """

    def __init__(self) -> None:
        self._at_first: WeakKeyDictionary[nn.Module, Checksums] = WeakKeyDictionary()
        """Frozen parameters of each model at its first training call."""
        self._states: list[_SavedState] = []
        self._loaded: WeakKeyDictionary[nn.Module, _SavedState] = WeakKeyDictionary()
        """Models that have not trained since they loaded such a state."""
        self._missing: dict[Place | None, list[str]] = {}

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {
            declarations.SAVED_STATE: wrapping(self._save),
            declarations.LOADED_STATE: wrapping(self._load),
        }

    def trained(self, call: Call) -> None:
        """See `Check.trained`."""
        model = call.module
        if model not in self._at_first:
            self._at_first[model] = _checksums(_named(model, is_frozen=True))
        for loaded, state in list(self._loaded.items()):
            called = {id(parameter) for parameter in model.parameters()}
            if not called.isdisjoint(map(id, loaded.parameters())):
                del self._loaded[loaded]
                present = _named(loaded, is_frozen=True)
                changed = [
                    name
                    for name, before in state.frozen.items()
                    if name in present and checksum(present[name]) != before
                ]
                if changed:
                    self._missing.setdefault(state.place, changed)

    def _save(self, original: Callable[..., Any], obj: Any, *args: Any, **kwargs: Any) -> Any:
        for state in dicts(obj):
            for model, at_first in self._at_first.items():
                self._note_state(state, model, at_first)
        return original(obj, *args, **kwargs)

    def _note_state(self, state: Mapping[Any, Any], model: nn.Module, at_first: Checksums) -> None:
        """Record the state of a model that has all trainable parameters, and not all frozen ones."""
        tensors = _tensors_in(state)
        trainable, frozen = _named(model, is_frozen=False), _named(model, is_frozen=True)
        is_complete = trainable and all(
            name in tensors and tensors[name].shape == parameter.shape
            for name, parameter in trainable.items()
        )
        left_out = {name: parameter for name, parameter in frozen.items() if name not in tensors}
        if is_complete and left_out:
            unchanged = {
                name: value for name, value in _checksums(left_out).items() if at_first.get(name) == value
            }
            self._states.append(_SavedState(current_place(), _checksums(tensors), unchanged))

    def _load(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        state_dict: Mapping[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        result = original(module, state_dict, *args, **kwargs)
        self._loaded.pop(module, None)
        if self._states and result.missing_keys:
            loaded = _checksums(_tensors_in(state_dict))
            missing = {plain_name(key) for key in result.missing_keys}
            for saved in self._states:
                if saved.saved == loaded and missing >= set(saved.frozen):
                    self._loaded[module] = saved
        return result

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for place, names in self._missing.items():
            shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            yield Note(
                "saved-state-differs",
                f"The saved state{in_words(place)} lacks {counted(len(names), 'frozen parameter')}: {shown}. "
                "The training that loads it goes on with other values of them. Save the whole state_dict(), "
                "and load it with strict=True.",
                place,
            )


def _tensors_in(state: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {
        plain_name(key): value
        for key, value in state.items()
        if isinstance(key, str) and isinstance(value, Tensor)
    }


def _named(model: nn.Module, *, is_frozen: bool) -> dict[str, Tensor]:
    """Return the frozen or the trainable parameters of a model by name."""
    return {
        plain_name(name): parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad != is_frozen
    }


def _checksums(tensors: Mapping[str, Tensor]) -> Checksums:
    return {name: checksum(tensor) for name, tensor in tensors.items()}
