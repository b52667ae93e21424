"""Appends an HMAC to each pickle that ranks exchange, and checks it before the pickle is loaded.

torch's functions for objects (``all_gather_object`` and its relatives) send them over the connections of a
group, whose messages are not authenticated once the connections exist.
"""

import hmac
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from samestep.base.env import Environment
from samestep.base.errors import WorldError
from samestep.hooks import declarations
from samestep.hooks.registry import put
from samestep.ranks.rendezvous.job_secret import job_key

_PROOF = 32


_keys: list[bytes] = []  # key of this process's job, once it protects objects


def sealed(data: bytes, key: bytes) -> bytes:
    """Return a pickle followed by its HMAC."""
    return data + hmac.digest(key, data, "sha256")


def opened(data: bytes, key: bytes) -> bytes:
    """Return a received pickle without its HMAC, after checking it.

    Raises:
        WorldError: the pickle is not from a rank of this job.
    """
    data, proof = data[:-_PROOF], data[-_PROOF:]
    if not hmac.compare_digest(proof, hmac.digest(key, data, "sha256")):
        raise WorldError(
            "a received object is not from a rank of this job, and was not unpickled. Does every "
            "rank run under samestep, or does another program change the network's traffic? See "
            "docs/guide/security.md."
        )
    return data


def protect_objects(environment: Environment) -> None:
    """Add an HMAC to all objects that this process sends from now on, and require one of those it receives.

    Either all ranks of a job call this, or none.

    Raises:
        UsageError: there is no secret.
    """
    _keys[:] = [job_key(environment, "objects")]
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    if getattr(c10d._object_to_tensor, "__module__", "") != __name__:  # noqa: SLF001 - no public spelling
        put(declarations.PACK_OBJECT, _sealing(c10d._object_to_tensor))  # noqa: SLF001
        put(declarations.UNPACK_OBJECT, _opening(c10d._tensor_to_object))  # noqa: SLF001


def _sealing(packs: Any) -> Any:
    def pack(obj: object, device: torch.device, *options: Any, **named: Any) -> tuple[Tensor, Tensor]:
        data, _ = packs(obj, torch.device("cpu"), *options, **named)
        whole = torch.frombuffer(bytearray(sealed(data.numpy().tobytes(), _keys[0])), dtype=torch.uint8)
        own = torch.empty_like(whole, device=device).copy_(whole)  # memory that torch can resize
        return own, torch.tensor([own.numel()], dtype=torch.long, device=device)

    return pack


def _opening(unpacks: Any) -> Any:
    def unpack(tensor: Tensor, size: Any, *options: Any, **named: Any) -> Any:
        data = opened(tensor.cpu().numpy().tobytes()[: int(size)], _keys[0])
        return unpacks(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data), *options, **named)

    return unpack
