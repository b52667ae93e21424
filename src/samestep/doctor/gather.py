"""All ranks' examinations at rank 0, and what only all together can try.

::

    every rank   posts its examination, and where it can be called
    rank 0       waits for all, but not for ever; posts who is there
    every rank   measures its links; posts them
    rank 0       posts whether all are still there
    every rank   if so, looks for rank 0's file in the run folder, and joins the others; posts what came of it
    rank 0       takes that in, and posts the exit code once it has told everything

Nothing here joins a process group before the end: ranks that could not join are just those it is for.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from samestep.doctor.examination import Examination
from samestep.doctor.links import Address, Board, measure
from samestep.doctor.part import Finding, Part, Row, joined
from samestep.doctor.wire import Door, Link
from samestep.world.handshake import Store

_MEASURE_S = 25.0
_GRACE_S = 10.0


class StoreBoard:
    """A board in torch's key-value store, which may vanish with rank 0.

    Args:
        store: the ranks' own.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, key: str, value: str) -> None:
        """See `Board.post`."""
        try:
            self._store.set(f"doctor/{key}", value)
        except RuntimeError as error:  # torch's, where the store is gone
            raise ConnectionError(f"rank 0 left: {error}") from error

    def read(self, key: str, *, deadline: float) -> str | None:
        """See `Board.read`."""
        pause, begin = threading.Event(), time.monotonic()
        try:
            while not self._store.check([f"doctor/{key}"]):
                now = time.monotonic()
                if now >= deadline:
                    return None
                pause.wait(min(max(0.001, (now - begin) / 10), 0.1))
            return self._store.get(f"doctor/{key}").decode()
        except RuntimeError as error:
            raise ConnectionError(f"rank 0 left: {error}") from error


Trial: TypeAlias = Callable[[Board], Part]
"""Something that all ranks try together; each returns what it found, and none waits for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What all ranks have told.

    Args:
        examinations: of the ranks that came, in rank order.
        absent: the ranks that did not.
        links: between ranks.
        rows: what rank 0 found in the trials.
        tried: what each rank found in the trials.
        broken: ranks that came, and then told nothing more.
    """

    examinations: Sequence[Examination]
    absent: Sequence[int] = ()
    links: Sequence[Link] = ()
    rows: Sequence[Row] = ()
    tried: Mapping[int, Sequence[Finding]] = field(default_factory=dict)
    broken: Sequence[int] = ()


def gather(
    board: Board,
    own: Examination,
    door: Door,
    *,
    trials: Sequence[Trial] = (),
    wait_s: float,
    measure_s: float = _MEASURE_S,
) -> Gathered | None:
    """Tell the other ranks, and try with them what only all can; rank 0 is told everything.

    Args:
        board: where ranks leave each other words.
        own: this rank's examination.
        door: where it can be called.
        trials: what all ranks try together; the same for all.
        wait_s: how long ranks are waited for.
        measure_s: how long measuring may take.

    Returns:
        None on all ranks but rank 0.

    Raises:
        ConnectionError: rank 0 left.
        TimeoutError: rank 0 did not say who is there.
    """
    deadline = time.monotonic() + wait_s
    card = _Card(own, Address(host=own.host, ip=door.address, port=door.port, token=door.token.hex()))
    if own.rank == 0:
        return _preside(board, card, door, trials, deadline, measure_s)
    _take_part(board, card, door, trials, deadline + _GRACE_S, measure_s)
    return None


def settle(board: Board, *, rank: int, others: Iterable[int] = (), code: int | None) -> int:
    """Return the exit code of all ranks; rank 0 says it, and stays until the others have heard.

    Args:
        board: where ranks leave each other words.
        rank: this one.
        others: the ranks that rank 0 tells.
        code: what rank 0 has decided; None on the others.
    """
    deadline = time.monotonic() + _GRACE_S
    if code is None:
        told = board.read("code", deadline=deadline + _MEASURE_S)
        board.post(f"heard/{rank}", "yes")
        return int(told) if told is not None else 1
    board.post("code", str(code))
    for other in others:
        board.read(f"heard/{other}", deadline=deadline)
    return code


@dataclass(frozen=True, slots=True)
class _Card:
    examination: Examination
    address: Address

    def to_json(self) -> str:
        return json.dumps({"examination": self.examination.to_json(), "address": asdict(self.address)})

    @classmethod
    def from_json(cls, text: str) -> "_Card":
        fields = json.loads(text)
        return cls(Examination.from_json(fields["examination"]), Address(**fields["address"]))


def _preside(
    board: Board, own: _Card, door: Door, trials: Sequence[Trial], deadline: float, measure_s: float
) -> Gathered:
    """Be rank 0."""
    cards = _collected(board, own, deadline)
    addresses = [None if one is None else one.address for one in cards]
    board.post("roll", json.dumps([None if one is None else asdict(one) for one in addresses]))
    end = time.monotonic() + measure_s
    links = measure(board, addresses, door, rank=0, deadline=end)
    others = [rank for rank, one in enumerate(addresses) if one is not None and rank]
    told = _read_all(board, "links", others, end + _GRACE_S)
    # What needs all ranks would only wait for those that are not there.
    go = None not in (*addresses, *told.values())
    board.post("go", "yes" if go else "no")
    part = joined(trial(board) for trial in trials if go)
    found = _read_all(board, "found", others, time.monotonic() + _GRACE_S) if go else told
    links += [Link(**one) for every in told.values() for one in every or ()]
    return Gathered(
        examinations=[card.examination for card in cards if card is not None],
        absent=[rank for rank, card in enumerate(cards) if card is None],
        links=sorted(links, key=lambda link: (link.a, link.b)),
        rows=part.rows,
        tried={0: part.findings, **{r: [Finding(**one) for one in found[r] or ()] for r in others if go}},
        broken=[rank for rank in others if found[rank] is None],
    )


def _take_part(
    board: Board, own: _Card, door: Door, trials: Sequence[Trial], deadline: float, measure_s: float
) -> None:
    """Be any other rank."""
    rank = own.examination.rank
    addresses = _told_who_is_there(board, own, deadline)
    end = time.monotonic() + measure_s
    links = measure(board, addresses, door, rank=rank, deadline=end)
    board.post(f"links/{rank}", json.dumps([asdict(one) for one in links]))
    if board.read("go", deadline=end + 2 * _GRACE_S) == "yes":
        part = joined(trial(board) for trial in trials)
        board.post(f"found/{rank}", json.dumps([asdict(one) for one in part.findings]))


def _collected(board: Board, own: _Card, deadline: float) -> list[_Card | None]:
    """Return the cards of all ranks; None for those that did not come."""
    cards: list[_Card | None] = [own]
    for rank in range(1, own.examination.size):
        text = board.read(f"card/{rank}", deadline=deadline)
        cards.append(None if text is None else _Card.from_json(text))
    return cards


def _told_who_is_there(board: Board, own: _Card, deadline: float) -> list[Address | None]:
    board.post(f"card/{own.examination.rank}", own.to_json())
    roll = board.read("roll", deadline=deadline)
    if roll is None:
        raise TimeoutError("rank 0 did not say who is there")
    addresses = [None if one is None else Address(**one) for one in json.loads(roll)]
    if len(addresses) != own.examination.size or addresses[own.examination.rank] is None:
        raise TimeoutError(
            "rank 0 did not wait for this rank any longer, or knows of another number of ranks"
        )
    return addresses


def _read_all(board: Board, key: str, ranks: Iterable[int], deadline: float) -> dict[int, list[Any] | None]:
    """Return what each rank has posted under `key`; None for those that have not by `deadline`."""
    texts = {rank: board.read(f"{key}/{rank}", deadline=deadline) for rank in ranks}
    return {rank: None if text is None else json.loads(text) for rank, text in texts.items()}
