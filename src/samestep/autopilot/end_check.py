"""Compares the ranks of a replicated script that has ended, before any of them reports success.

Parameters are compared at intervals during training; a drift after the last of these comparisons, or in a
shorter run, is found here. The ranks first wait for each other at the store, and not in a collective: a rank
that has exited early never arrives, and another one may be in another collective.
"""

import os
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import _get_default_store

from samestep.autopilot.script.call_account import Account
from samestep.autopilot.split.gradients import Gradients
from samestep.base.errors import Error, OutOfStep, PeerLost
from samestep.base.polling import polls
from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState
from samestep.hooks.registry import attached, wrapping
from samestep.ranks.hang.watchdog import waiting_at_end
from samestep.ranks.world.protocol import World

_POLL_S = 0.05
_ENDED, _ALL_ENDED, _FAILED = "samestep/ended", "samestep/all-ended", "samestep/failed"


class EndCheck:
    """Compares this rank with the others when its script has ended.

    Args:
        world: the ranks.
        gradients: the gradient synchronizer, whose parameters are compared.
        account: the account, whose number of backward passes is compared.
        timeout_s: the timeout of collectives in seconds, not --hang-timeout: only rank 0 writes files, and a
            last checkpoint on a slow file system may take long.
        compares_streams: whether random generators must be in the same state on all ranks.
    """

    def __init__(
        self,
        world: World,
        gradients: Gradients,
        account: Account,
        *,
        timeout_s: float,
        compares_streams: bool = True,
    ) -> None:
        self._world, self._gradients, self._account = world, gradients, account
        self._timeout_s, self._compares_streams = timeout_s, compares_streams
        self._process = os.getpid()

    def run(self, exit_code: int) -> None:
        """Compare the ranks if none has failed; do nothing in a forked child.

        Raises:
            OutOfStep: the ranks differ, or some did not reach the end in time.
            UsageError: a deferred check of a split call has failed.
            PeerLost: rank 0 has exited, and its store is gone.
        """
        if os.getpid() != self._process:  # a child shares its parent's connection to the store
            return
        store = _get_default_store()
        if exit_code:
            with suppress(RuntimeError):
                store.set(_FAILED, "")
            return
        self._account.failed.check(self._world.place.size)
        self._gradients.deferred.finish()
        if self._all_have_ended(store):
            self._compare()

    def _all_have_ended(self, store: Store) -> bool:
        """Wait for all ranks; return False if one of them has failed."""
        place = self._world.place
        try:
            store.set(f"{_ENDED}/{place.rank}", "")
            if store.add(_ENDED, 1) == place.size:
                store.set(_ALL_ENDED, "")
            with waiting_at_end():
                return self._wait(store)
        except RuntimeError as error:
            raise PeerLost(
                "rank 0 left before the ranks were compared at the end of the script; see its own output."
            ) from error

    def _wait(self, store: Store) -> bool:
        for _ in polls(self._timeout_s, least_s=0.001, most_s=_POLL_S):
            if store.check([_ALL_ENDED]):
                return True
            if store.check([_FAILED]):
                return False
        ranks = range(self._world.place.size)
        missing = [rank for rank in ranks if not store.check([f"{_ENDED}/{rank}"])]
        named = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        raise OutOfStep(
            f"{named} did not reach the end of the script within {self._timeout_s:g} s of this one. Look for "
            "a branch that depends on something that differs between ranks, such as time or a process number."
        )

    def _compare(self) -> None:
        counts = self._world.all_gather_objects(self._account.backwards)
        if len(set(counts)) > 1:
            text = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
            raise OutOfStep(
                f"the ranks ran different numbers of backward passes ({text}). A branch of the script "
                "depends on something that differs between ranks, such as time or a process number."
            )
        self._gradients.check()
        if self._compares_streams:
            self._compare_streams()

    def _compare_streams(self) -> None:
        ranks = self._world.all_gather_objects(_digests_of_streams(self._world.device))
        differing = [name for name, digest in ranks[0].items() if any(own[name] != digest for own in ranks)]
        if differing:
            others = [f"rank {rank}" for rank, own in enumerate(ranks) if own != ranks[0]]
            raise OutOfStep(
                f"the random generators of {' and '.join(differing)} are in another state on "
                f"{', '.join(others)} than on rank 0, so ranks can have drawn other samples. Look for a seed "
                "that differs between ranks, such as the time or a process number."
            )


def _digests_of_streams(device: torch.device) -> dict[str, int]:
    """Return a checksum of the state of each library's generator, and of the device's, if it has its own."""
    state = RngState.now(device)
    names = ["torch", "Python", "NumPy"]
    if state.device is not None:
        names.insert(1, f"torch ({device.type})")
    return dict(zip(names, map(zlib.crc32, state.streams()), strict=True))


@contextmanager
def checked_exits(check: EndCheck) -> Iterator[None]:
    """Let `os._exit` in the script's main thread compare the ranks first, as its normal end does."""
    process = os.getpid()

    def leave_checked(leave: Callable[[int], None], code: int) -> None:
        if os.getpid() == process and threading.current_thread() is threading.main_thread():
            try:
                check.run(code)
            except Error as error:
                with suppress(OSError):
                    os.write(2, f"samestep: error: {' '.join(str(error).split())}\n".encode())
                code = error.exit_code
        leave(code)

    with attached(declarations.EXIT, wrapping(leave_checked)):
        yield
