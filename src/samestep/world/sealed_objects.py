"""Puts an HMAC behind each pickle that ranks exchange, which is checked before anything is unpickled.

torch's functions for objects (``all_gather_object`` and its relatives) send them over the connections of a
group, which carry no proofs once they exist.
"""

import hmac
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from samestep.base.env import Environment
from samestep.base.errors import WorldError
from samestep.world.job_secret import job_key

_PROOF = 32


class Seal:
    """The HMAC behind the pickles of one job.

    Args:
        key: of the job; empty: pickles go without.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sealed(self, data: bytes) -> bytes:
        """Return a pickle as it is sent."""
        return data + self._proof(data)

    def opened(self, data: bytes) -> bytes:
        """Return a pickle that has come from a rank of this job.

        Raises:
            WorldError: it has not.
        """
        if not self._key:
            return data
        data, proof = data[:-_PROOF], data[-_PROOF:]
        if not hmac.compare_digest(proof, self._proof(data)):
            raise WorldError(
                "an object has arrived that no rank of this job has sent, and was not unpickled. Does every "
                "rank run under samestep, or does somebody change the network's traffic? See "
                "docs/guide/security.md."
            )
        return data

    def _proof(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256") if self._key else b""


_seals = [Seal(b"")]
"""The one of this process's job."""


def protect_objects(environment: Environment) -> None:
    """Have all objects that this process sends and receives from now on carry an HMAC.

    All ranks of a job do so, or none.

    Args:
        environment: of this process.

    Raises:
        UsageError: there is no secret.
    """
    _seals[:] = [Seal(job_key(environment, "objects"))]
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    if getattr(c10d._object_to_tensor, "__module__", "") != __name__:  # noqa: SLF001 - no public spelling
        c10d._object_to_tensor = _sealing(c10d._object_to_tensor)  # noqa: SLF001
        c10d._tensor_to_object = _opening(c10d._tensor_to_object)  # noqa: SLF001


def sealed(data: bytes) -> bytes:
    """Return a pickle as it is sent to ranks of this process's job."""
    return _seals[0].sealed(data)


def opened(data: bytes) -> bytes:
    """Return a pickle that has come from a rank of this process's job.

    Raises:
        WorldError: it has not.
    """
    return _seals[0].opened(data)


def _sealing(packs: Any) -> Any:
    def pack(obj: object, device: torch.device, group: Any) -> tuple[Tensor, Tensor]:
        data, _ = packs(obj, torch.device("cpu"), group)
        whole = torch.frombuffer(bytearray(sealed(data.numpy().tobytes())), dtype=torch.uint8)
        own = torch.empty_like(whole, device=device).copy_(whole)  # which torch can resize
        return own, torch.tensor([own.numel()], dtype=torch.long, device=device)

    return pack


def _opening(unpacks: Any) -> Any:
    def unpack(tensor: Tensor, size: Any, group: Any) -> Any:
        data = opened(tensor.cpu().numpy().tobytes()[: int(size)])
        return unpacks(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data), group)

    return unpack
