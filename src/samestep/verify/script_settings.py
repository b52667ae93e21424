"""Records the settings of a training: models, optimizers and dropout rates, in the words of their code."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from samestep.hooks import declarations
from samestep.hooks.registry import Make, attached_all, wrapping

_SCHEDULED = ("params", "param_names", "lr", "initial_lr", "max_lr", "min_lr")
"""Parts of a parameter group that are compared in each step, or that a schedule keeps there."""
_RATE = declarations.ATTENTION.arguments.index("dropout_p")


def module_settings(number: int, model: nn.Module) -> dict[str, str]:
    """Return class and arguments of each module of a model, by the number of the model and its name there.

    They are what ``print(model)`` shows of a module without its children, such as ``Dropout(p=0.1,
    inplace=False)``.
    """
    return {f"{number}: {name}": _shown(module) for name, module in model.named_modules()}


def _shown(module: nn.Module) -> str:
    try:
        arguments = module.extra_repr()
    except Exception:  # noqa: BLE001 - it is the script's own, and is called for the report alone
        arguments = ""
    return f"{type(module).__name__}({arguments})"


def optimizer_settings(optimizer: Optimizer) -> list[dict[str, str]]:
    """Return class and settings of each parameter group of an optimizer, without learning rates.

    They are those that are numbers, texts, or tuples of them, such as ``{"class": "AdamW", "eps": "1e-08"}``.
    """
    return [
        {
            "class": type(optimizer).__name__,
            **{name: repr(group[name]) for name in sorted(group) if _is_setting(name, group)},
        }
        for group in optimizer.param_groups
    ]


def _is_setting(name: str, group: Mapping[str, Any]) -> bool:
    value = group[name]
    parts = value if isinstance(value, tuple) else (value,)
    return name not in _SCHEDULED and all(isinstance(part, bool | int | float | str) for part in parts)


@contextmanager
def recorded_dropouts(record: Callable[[str, float], None]) -> Iterator[None]:
    """Pass name and rate of each function that drops values in training to `record`."""

    def of_function(name: str) -> Make:
        is_usual = not name.endswith("alpha_dropout")  # whether it drops if the call does not say

        def call(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
            training = argument(args, kwargs, 2, "training", is_usual)
            if training and not torch.compiler.is_compiling():
                record(name, float(argument(args, kwargs, 1, "p", 0.5)))
            return original(*args, **kwargs)

        return wrapping(call)

    def attention(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        rate = attention_rate(args, kwargs)
        if rate and not torch.compiler.is_compiling():
            record("attention", float(rate))
        return original(*args, **kwargs)

    hooks = {hook: of_function(hook.attribute) for hook in declarations.DROPOUTS}
    with attached_all({**hooks, declarations.ATTENTION: wrapping(attention)}):
        yield


def attention_rate(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the rate at which a call of `scaled_dot_product_attention` drops weights."""
    return float(argument(args, kwargs, _RATE, "dropout_p", 0.0))


def argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, usual: Any) -> Any:
    """Return an argument of a call by place or name; `usual` if the call does not have it."""
    return args[place] if len(args) > place else kwargs.get(name, usual)
