"""Collects the examinations of all ranks at rank 0, and runs the joint checks of all ranks.

::

    every rank   posts its examination, and the address of its server
    rank 0       waits for all ranks, with a timeout; posts the addresses of those that joined the checks
    every rank   measures its links; posts them
    rank 0       posts whether all ranks still respond
    every rank   if so, checks rank 0's file in the run folder, and joins the others; posts the findings
    rank 0       reads the findings, prints the report, and posts the exit code

No process group is created before the joint checks, because the doctor is for ranks that cannot join one.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from samestep.ranks.rendezvous.handshake import Store
from samestep.studies.doctor.check_result import Finding, Part, Row, joined
from samestep.studies.doctor.links import Address, Board, measure
from samestep.studies.doctor.pair_measurement import Door, Link
from samestep.studies.doctor.rank_results import Examination

_MEASURE_S = 25.0
_GRACE_S = 10.0


class StoreBoard:
    """A board in torch's key-value store, which ends when rank 0 exits.

    Args:
        store: the store of the job's ranks.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, key: str, value: str) -> None:
        """See `Board.post`."""
        try:
            self._store.set(f"doctor/{key}", value)
        except RuntimeError as error:  # torch raises it if the store is gone
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
"""A joint check of all ranks; each rank returns its result within a time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Results of all ranks.

    Args:
        examinations: those of the ranks that joined the checks, in rank order.
        absent: the ranks that did not join the checks.
        links: the links between ranks.
        rows: rows of rank 0 from the joint checks.
        tried: findings of each rank from the joint checks.
        broken: ranks that joined the checks, and then stopped responding.
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
    """Send this rank's examination to rank 0, measure links and run the joint checks; collect all at rank 0.

    Args:
        board: the store of the ranks.
        own: this rank's examination.
        door: the server of this rank.
        trials: the joint checks; the same on all ranks.
        wait_s: seconds to wait for ranks.
        measure_s: time limit of the measurements in seconds.

    Returns:
        None on all ranks but rank 0.

    Raises:
        ConnectionError: rank 0 left.
        TimeoutError: rank 0 did not post which ranks joined the checks.
    """
    deadline = time.monotonic() + wait_s
    info = _Card(own, Address(host=own.host, ip=door.address, port=door.port, token=door.token.hex()))
    if own.rank == 0:
        return _preside(board, info, door, trials, deadline, measure_s)
    _take_part(board, info, door, trials, deadline + _GRACE_S, measure_s)
    return None


def settle(board: Board, *, rank: int, others: Iterable[int] = (), code: int | None) -> int:
    """Return the exit code of all ranks; rank 0 posts it, and waits until the others have read it.

    Args:
        board: the store of the ranks.
        rank: this rank.
        others: the ranks that rank 0 waits for.
        code: the exit code at rank 0; None on the others.
    """
    deadline = time.monotonic() + _GRACE_S
    if code is None:
        decided = board.read("code", deadline=deadline + _MEASURE_S)
        board.post(f"heard/{rank}", "yes")
        return int(decided) if decided is not None else 1
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
    """Collect the results of all ranks at rank 0."""
    cards = _collected(board, own, deadline)
    addresses = [None if one is None else one.address for one in cards]
    board.post("roll", json.dumps([None if one is None else asdict(one) for one in addresses]))
    end = time.monotonic() + measure_s
    links = measure(board, addresses, door, rank=0, deadline=end)
    others = [rank for rank, one in enumerate(addresses) if one is not None and rank]
    measured = _read_all(board, "links", others, end + _GRACE_S)
    # The joint checks need all ranks, and would only wait for a missing one.
    go = None not in (*addresses, *measured.values())
    board.post("go", "yes" if go else "no")
    part = joined(trial(board) for trial in trials if go)
    found = _read_all(board, "found", others, time.monotonic() + _GRACE_S) if go else measured
    links += [Link(**one) for every in measured.values() for one in every or ()]
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
    """Post the results of a rank other than 0."""
    rank = own.examination.rank
    addresses = _told_who_is_there(board, own, deadline)
    end = time.monotonic() + measure_s
    links = measure(board, addresses, door, rank=rank, deadline=end)
    board.post(f"links/{rank}", json.dumps([asdict(one) for one in links]))
    if board.read("go", deadline=end + 2 * _GRACE_S) == "yes":
        part = joined(trial(board) for trial in trials)
        board.post(f"found/{rank}", json.dumps([asdict(one) for one in part.findings]))


def _collected(board: Board, own: _Card, deadline: float) -> list[_Card | None]:
    """Return what each rank has posted about itself; None for ranks that posted nothing."""
    cards: list[_Card | None] = [own]
    for rank in range(1, own.examination.size):
        text = board.read(f"card/{rank}", deadline=deadline)
        cards.append(None if text is None else _Card.from_json(text))
    return cards


def _told_who_is_there(board: Board, own: _Card, deadline: float) -> list[Address | None]:
    board.post(f"card/{own.examination.rank}", own.to_json())
    roll = board.read("roll", deadline=deadline)
    if roll is None:
        raise TimeoutError("rank 0 did not post which ranks joined the checks")
    addresses = [None if one is None else Address(**one) for one in json.loads(roll)]
    if len(addresses) != own.examination.size or addresses[own.examination.rank] is None:
        raise TimeoutError("rank 0 stopped waiting for this rank, or has another number of ranks")
    return addresses


def _read_all(board: Board, key: str, ranks: Iterable[int], deadline: float) -> dict[int, list[Any] | None]:
    """Return the list that each rank has posted under `key`; None for a rank that has not by `deadline`."""
    texts = {rank: board.read(f"{key}/{rank}", deadline=deadline) for rank in ranks}
    return {rank: None if text is None else json.loads(text) for rank, text in texts.items()}
