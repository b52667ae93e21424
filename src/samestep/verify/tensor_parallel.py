"""Finds the ranks that compute one batch together: those that hold parts of one layer (tensor parallel)."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn


def ranks_of_same_batch(models: Iterable[nn.Module]) -> list[int]:
    """Return this rank and the others that get the same batches; empty without tensor parallelism.

    A mesh dimension of a `DTensor` parameter is one of tensor parallelism, unless `fully_shard` shards the
    parameter along it: the ranks of such a dimension get batches of their own.
    """
    for model in models:
        of_data = _data_dimensions(model)
        for parameter in model.parameters():
            mesh = getattr(parameter, "device_mesh", None)
            first = of_data.get(id(parameter), 0)
            if mesh is not None and first < mesh.ndim and mesh.get_coordinate() is not None:
                here = (*mesh.get_coordinate()[:first], *[slice(None)] * (mesh.ndim - first))
                ranks: list[int] = mesh.mesh[here].flatten().tolist()
                return sorted(ranks)
    return []


def whole_tensor(tensor: Any) -> Tensor:
    """Return the values of all ranks of a `DTensor`, by a collective of them; any other tensor itself."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def _data_dimensions(model: nn.Module) -> dict[int, int]:
    """Return the number of leading mesh dimensions over which `fully_shard` shards each parameter, by id."""
    return {
        id(one.sharded_param): one.mesh_info.mesh.ndim
        for module in model.modules()
        for one in _sharded_parameters(module)
    }


def _sharded_parameters(module: Any) -> Iterator[Any]:
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None  # noqa: SLF001
    group = getattr(state, "_fsdp_param_group", None)
    yield from () if group is None else group.fsdp_params
