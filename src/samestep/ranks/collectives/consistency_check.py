"""Checks that all ranks make the same collective call, before the first byte of a tensor moves.

Ranks of `on_one_host` compare call signatures in shared memory: one handover, no message. Other ranks send
their signature to each other and forward what they have received. After round k each rank has compared
2^(k+1) ranks::

    round 0    0 > 1 > 2 > 3 > 4 > 0     each receives from 1 other
    round 1    0 > 2 > 4 > 1 > 3 > 0     from 3
    round 2    0 > 4 > 3 > 2 > 1 > 0     from all

That costs ceil(log2 N) steps of `MESSAGE` bytes. Every rank gets the result, so that none waits for a rank
that has raised.

Source: D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization, 1988 (the dissemination
barrier).
"""

import functools

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep
from samestep.ranks.collectives.call_signature import SIGNATURE_BYTES, describe_mismatch, same_call, signature
from samestep.ranks.collectives.shared_memory import OneHostWorld
from samestep.ranks.world.protocol import World

MESSAGE = 2 * SIGNATURE_BYTES
"""Bytes of a message: a rank's signature, and the first different one it has received, or zeros."""


def agree(world: World, call: str, tensor: Tensor) -> None:
    """Return if all ranks make the same call.

    All ranks call this. `call` is the collective with its algorithm and its arguments.

    Raises:
        OutOfStep: the calls differ; on all ranks, naming two of the calls.
    """
    if isinstance(world, OneHostWorld):
        world.agree(call, tensor)
        return
    rank, size = world.place.rank, world.place.size
    state = signature(rank, call, tensor) + bytes(SIGNATURE_BYTES)
    received = torch.empty(steps(size), MESSAGE, dtype=torch.uint8, device=world.device)
    rounds = [
        ((rank + distance) % size, (rank - distance) % size, received[number])
        for number, distance in enumerate(_distances(size))
    ]
    early = may_post_receives_early(received)
    receives = [world.exchange(None, buffer, src=src) for _, src, buffer in rounds if early]
    sends = []
    for number, (dst, src, buffer) in enumerate(rounds):
        message = _message(state, world.device)
        if early:
            sends.append(world.exchange(message, None, dst=dst))
            receives[number].wait()
        else:
            world.exchange(message, buffer, dst=dst, src=src).wait()
        state = _merged(state, buffer.cpu().numpy().tobytes())
    for pending in sends:
        pending.wait()
    sent, different = state[:SIGNATURE_BYTES], state[SIGNATURE_BYTES:]
    if any(different):
        raise OutOfStep(describe_mismatch(sent, different))


@functools.lru_cache(maxsize=256)  # every training step makes the same calls
def _message(state: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8).to(device)


def steps(size: int) -> int:
    """Return how many messages each of `size` ranks sends."""
    return len(_distances(size))


def _distances(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


def _merged(state: bytes, received: bytes) -> bytes:
    """Return this rank's signature, and the first different one of `state` and `received`."""
    sent, different = state[:SIGNATURE_BYTES], state[SIGNATURE_BYTES:]
    if any(different):
        return state
    for candidate in (received[:SIGNATURE_BYTES], received[SIGNATURE_BYTES:]):
        if any(candidate) and not same_call(candidate, sent):
            return sent + candidate
    return state


def may_post_receives_early(tensor: Tensor) -> bool:
    """Return whether receives may begin before the sends that belong to them; NCCL would wait for them."""
    return tensor.is_cpu
