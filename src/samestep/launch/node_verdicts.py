"""Posts to the launchers' shared store how each node of a job ended.

A node whose workers failed for good, or that a signal has ended, posts that; all other nodes read it while
their workers run and while they wait for each other at the end, and end too.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from socket import gethostname

from samestep.base.errors import PeerLost
from samestep.base.polling import holds_within, polls
from samestep.ranks.rendezvous.handshake import Store

_POLL_S = 0.1
_CAUSE_S = 2.0  # seconds to wait for another node's verdict that is closer to a cause
_READ_EVERY_S = 0.5
_SEEN_WITHIN_S = 5.0
"""Seconds that a node stays until the others have read its verdict: it may serve the store."""
_SILENT_S = 30.0  # seconds that a node that is done waits for a node that posts nothing new


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Reason why a node ends."""

    node: int  # its number
    host: str  # its host name
    text: str  # the failure, as a clause
    code: int  # the exit code of the run, never 0
    weight: int = 0  # as in `Failure`: 0 is a cause, more may be a consequence of another node's failure

    def __str__(self) -> str:
        return f"node {self.node} ({self.host}) has ended: {self.text}"


class Verdicts:
    """One node's access to the verdicts of one round of workers.

    Each round has separate keys. A node that is done waits `silent_s` for a node that posts nothing new.
    """

    def __init__(
        self, store: Store, *, restarts: int, node: int, nodes: int, silent_s: float = _SILENT_S
    ) -> None:
        self._silent_s = silent_s
        self._store, self._node, self._nodes = store, node, nodes
        self._prefix = f"samestep/end/{restarts}"
        self._last_read = 0.0
        self._beat = 0

    def post(self, text: str, *, code: int, weight: int = 0) -> None:
        """Post a verdict of this node, and wait, up to a limit, until the others have read it."""
        verdict = Verdict(node=self._node, host=gethostname(), text=text, code=code, weight=weight)
        with suppress(RuntimeError):  # the store is gone: so is the node that served it
            self._store.set(self._key("failed", self._node), json.dumps(asdict(verdict)))
            self._await("seen", _SEEN_WITHIN_S)

    def worst(self) -> Verdict | None:
        """Return the verdict of another node that is closest to a cause; None if none is posted."""
        posted = [node for node in self._others() if self._has("failed", node)]
        found = [Verdict(**json.loads(self._store.get(self._key("failed", node)))) for node in posted]
        if not found:
            return None
        self._store.set(self._key("seen", self._node), "")
        return min(found, key=lambda verdict: verdict.weight)

    def poll(self) -> Verdict | None:
        """Return the same, but only at intervals; post to the others that this node is alive."""
        now = time.monotonic()
        if now - self._last_read < _READ_EVERY_S:
            return None
        self._last_read = now
        self._beat += 1
        try:
            self._store.set(self._key("beat", self._node), str(self._beat))
            return self.worst()
        except RuntimeError:  # the workers, or the next rendezvous, detect that
            return None

    def await_cause(self, than: int) -> Verdict | None:
        """Return another node's verdict that is closer to a cause than `than`, if one is posted in time."""
        with suppress(RuntimeError):
            for _ in polls(_CAUSE_S, least_s=_POLL_S):
                verdict = self.worst()
                if verdict is not None and verdict.weight < than:
                    return verdict
        return None

    def done(self) -> None:
        """Post that this node's workers have succeeded."""
        with suppress(RuntimeError):
            self._store.set(self._key("done", self._node), "")

    def await_all(self, end: Callable[[], bool]) -> Verdict | None:
        """Return when all nodes are done or `end` returns True, or the verdict of one that has failed.

        Raises:
            RuntimeError: the store is gone, and with it the node that served it, before all were done.
            PeerLost: a node that is not done has posted nothing for `silent_s`.
        """
        beats, since = self._beats(), time.monotonic()
        while not self._have_all("done"):
            if (verdict := self.worst()) is not None or end():
                return verdict
            if (now := self._beats()) != beats:
                beats, since = now, time.monotonic()
            if time.monotonic() - since > self._silent_s:
                missing = [node for node in self._others() if not self._has("done", node)]
                raise PeerLost(
                    f"node {missing[0] if missing else '?'} of {self._nodes} did not report its end, and has "
                    f"posted nothing for {self._silent_s:g} s. Has its launcher been killed?"
                )
            time.sleep(_POLL_S)
        with suppress(RuntimeError):
            self._store.set(self._key("left", self._node), "")
            self._await("left", _SEEN_WITHIN_S)
        return None

    def _await(self, what: str, timeout_s: float) -> None:
        holds_within(lambda: self._have_all(what), timeout_s, least_s=_POLL_S)

    def _have_all(self, what: str) -> bool:
        return all(self._has(what, node) for node in self._others())

    def _has(self, what: str, node: int) -> bool:
        return self._store.check([self._key(what, node)])

    def _beats(self) -> list[bytes]:
        here = [node for node in self._others() if self._has("beat", node)]
        return [self._store.get(self._key("beat", node)) for node in here]

    def _others(self) -> list[int]:
        return [node for node in range(self._nodes) if node != self._node]

    def _key(self, what: str, node: int) -> str:
        return f"{self._prefix}/{what}/{node}"
