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


class Seal:
    """HMAC of the pickles of one job.

    Args:
        key: key of the job; if empty, pickles are sent without an HMAC.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sealed(self, data: bytes) -> bytes:
        """Return a pickle followed by its HMAC."""
        return data + self._proof(data)

    def opened(self, data: bytes) -> bytes:
        """Return a received pickle without its HMAC, after checking it.

        Raises:
            WorldError: the pickle is not from a rank of this job.
        """
        if not self._key:
            return data
        data, proof = data[:-_PROOF], data[-_PROOF:]
        if not hmac.compare_digest(proof, self._proof(data)):
            raise WorldError(
                "a received object is not from a rank of this job, and was not unpickled. Does every "
                "rank run under samestep, or does another program change the network's traffic? See "
                "docs/guide/security.md."
            )
        return data

    def _proof(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256") if self._key else b""


_seals = [Seal(b"")]
"""Seal of this process's job."""


def protect_objects(environment: Environment) -> None:
    """Add an HMAC to all objects that this process sends from now on, and require one of those it receives.

    Either all ranks of a job call this, or none.

    Args:
        environment: variables of this process.

    Raises:
        UsageError: there is no secret.
    """
    _seals[:] = [Seal(job_key(environment, "objects"))]
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    if getattr(c10d._object_to_tensor, "__module__", "") != __name__:  # noqa: SLF001 - no public spelling
        put(declarations.PACK_OBJECT, _sealing(c10d._object_to_tensor))  # noqa: SLF001
        put(declarations.UNPACK_OBJECT, _opening(c10d._tensor_to_object))  # noqa: SLF001


def sealed(data: bytes) -> bytes:
    """Return a pickle with the HMAC of this process's job."""
    return _seals[0].sealed(data)


def opened(data: bytes) -> bytes:
    """Return a received pickle without the HMAC of this process's job, after checking it.

    Raises:
        WorldError: the pickle is not from a rank of this job.
    """
    return _seals[0].opened(data)


def _sealing(packs: Any) -> Any:
    def pack(obj: object, device: torch.device, group: Any) -> tuple[Tensor, Tensor]:
        data, _ = packs(obj, torch.device("cpu"), group)
        whole = torch.frombuffer(bytearray(sealed(data.numpy().tobytes())), dtype=torch.uint8)
        own = torch.empty_like(whole, device=device).copy_(whole)  # memory that torch can resize
        return own, torch.tensor([own.numel()], dtype=torch.long, device=device)

    return pack


def _opening(unpacks: Any) -> Any:
    def unpack(tensor: Tensor, size: Any, group: Any) -> Any:
        data = opened(tensor.cpu().numpy().tobytes()[: int(size)])
        return unpacks(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data), group)

    return unpack
