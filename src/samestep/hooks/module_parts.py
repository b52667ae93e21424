"""Finds the submodules and tensors of a module as `nn.Module` registers them.

The class of a script's module may replace `parameters` or `modules` by a method that yields other tensors or
wants arguments, and the module itself by an attribute of that name. A call depends on what is registered.
"""

from collections.abc import Iterator

from torch import Tensor, nn


def named_modules(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and its submodules, each once, in the order of `nn.Module.named_modules`."""
    seen: set[int] = set()
    waiting = [(prefix, module)]
    while waiting:
        name, one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield name, one
        parts = [(_joined(name, key), part) for key, part in one._modules.items() if part is not None]  # noqa: SLF001
        waiting += reversed(parts)


def modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and its submodules, each once, in the same order."""
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [part for part in reversed(one._modules.values()) if part is not None]  # noqa: SLF001


def named_parameters(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module, each once, in the order of `nn.Module.named_parameters`."""
    seen: set[int] = set()
    for name, one in named_modules(module, prefix):
        for key, parameter in one._parameters.items():  # noqa: SLF001
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield _joined(name, key), parameter


def parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module, each once; this runs in each call, so it makes no names."""
    seen: set[int] = set()
    for one in modules(module):
        for parameter in one._parameters.values():  # noqa: SLF001
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def named_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of a module, each once, in the order of `nn.Module.named_buffers`."""
    seen: set[int] = set()
    for name, one in named_modules(module):
        for key, buffer in one._buffers.items():  # noqa: SLF001
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                yield _joined(name, key), buffer


def buffers(module: nn.Module) -> Iterator[Tensor]:
    """Yield the buffers of a module, each once."""
    return (buffer for _, buffer in named_buffers(module))


def submodule(module: nn.Module, name: str) -> nn.Module:
    """Return the submodule of a name of `named_modules`."""
    for key in name.split(".") if name else ():
        part = module._modules[key]  # noqa: SLF001
        assert part is not None
        module = part
    return module


def _joined(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
