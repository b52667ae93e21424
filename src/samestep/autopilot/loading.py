"""Which loaders' batches are loaded in shares: learnt from their first batches, measured, and agreed.

Only a loader whose samples can be loaded in any order can share: where loading draws random numbers, those of
a sample depend on all before it, and every rank has to load all of them to have those of one worker.
"""

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

import torch.multiprocessing
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind as DatasetKind

from samestep.autopilot.account import Account, LoaderStatus
from samestep.autopilot.options import Load
from samestep.autopilot.orders import Loaded
from samestep.autopilot.rows import GOOD, Row, exchange, put_together
from samestep.sharding.share import share
from samestep.watch.tree import Path, mapped
from samestep.world.binding import processors_of_rank
from samestep.world.world import World

TRIALS = 3
"""Batches that are timed before it is decided whether shares are worth it."""


@dataclass(eq=False)
class Verdict:
    """What is known of one loader's batches."""

    is_shared: bool | None = None
    """Whether each rank loads its share; None as long as the loader is on trial."""
    why: str = "it gave too few batches to tell"
    rows: tuple[Row, ...] = ()
    """What the batches are made of; nothing where that does not matter."""
    draws: bool = False
    """Whether samples draw random numbers, of their own seeds then."""
    has_fewer_workers: bool = False
    """Whether the loader has fewer processes than it asks for; what it loads is watched for draws then."""
    seconds: list[tuple[float, float]] = field(default_factory=list)
    """Of the batches on trial: to load the whole; to load the shares and put them together."""

    def refuse(self, why: str) -> None:
        """Have every rank load all of it from now on."""
        self.is_shared, self.why, self.rows = False, why, ()

    @property
    def is_pure(self) -> bool:
        """Whether it makes no difference which process loads a sample."""
        return bool(self.rows) and not self.draws

    def text(self) -> str:
        """Return what each worker loads, and why."""
        if self.is_shared:
            return "each worker loads its share of a batch"
        return f"each worker loads all of it ({self.why})"


class Loading:
    """The loaders of one rank's script.

    Args:
        world: the ranks.
        account: told what is done to each loader.
        load: the user's choice.
    """

    def __init__(self, world: World, account: Account, load: Load) -> None:
        self.world, self._account, self._load = world, account, load
        self._verdicts: WeakKeyDictionary[DataLoader[Any], Verdict] = WeakKeyDictionary()

    @property
    def seeds_samples(self) -> bool:
        """Whether the user prefers shares to the random numbers of one worker."""
        return self._load == "shared"

    def verdict(self, loader: DataLoader[Any]) -> Verdict:
        """Return what is known of a loader."""
        verdict = self._verdicts.get(loader)
        if verdict is None:
            self._verdicts[loader] = verdict = Verdict()
            why = "--load replicated" if self._load == "replicated" else _unsuitable(loader)
            if why:
                verdict.refuse(why)
        return verdict

    def workers(self, loader: DataLoader[Any]) -> int:
        """Return how many processes a loader shall have: not more than there are processors for this rank."""
        verdict = self.verdict(loader)
        if loader.num_workers < 2 or loader.worker_init_fn is not None or not verdict.is_pure:
            return loader.num_workers
        most = processors_of_rank(self.world.place.local_size)
        verdict.has_fewer_workers = most < loader.num_workers
        return min(loader.num_workers, most)

    def note(self, site: str, status: LoaderStatus) -> None:
        """Put into the account what is done to the loader that is read at `site`."""
        self._account.loading[site, id(status)] = status
        if isinstance(status, Verdict) and status.is_shared and status.draws:
            self._account.note_exception(
                f"{site}: random numbers drawn in loading are each sample's own, not those of one worker "
                "(--load shared)"
            )

    def judge(self, verdict: Verdict, loaded: Loaded, total: int) -> None:
        """Learn from a batch of `total` samples that was loaded on trial; all ranks learn the same."""
        found = self.world.all_gather_objects(loaded._replace(data=None))
        refused = next((one.refused for one in found if one.refused), "")
        if refused:
            verdict.refuse(refused)
        elif all(one.rows and one.rows == found[0].rows for one in found):
            together_s = self._time_to_put_together(found[0].rows, loaded.data, total)
            share_s = max(one.share_s for one in found) + together_s
            verdict.seconds.append((max(one.whole_s for one in found), share_s))
            if self._load == "shared" or len(verdict.seconds) == TRIALS:
                self._choose(verdict, found[0])

    def _time_to_put_together(self, rows: tuple[Row, ...], whole: Any, total: int) -> float:
        own = share(total, self.world.place.rank, self.world.place.size)

        def cut(_: Path, tensor: Tensor) -> Tensor:
            return tensor[own.start : own.stop]

        started = time.perf_counter()
        part = mapped(whole, cut)
        put_together(exchange(self.world, rows, total, part, GOOD), rows, total, part)
        return max(self.world.all_gather_objects(time.perf_counter() - started))

    def _choose(self, verdict: Verdict, loaded: Loaded) -> None:
        whole_s, share_s = (median(column) for column in zip(*verdict.seconds, strict=True))
        verdict.rows, verdict.draws = loaded.rows, loaded.draws
        verdict.is_shared = self._load == "shared" or share_s < whole_s
        verdict.why = "" if verdict.is_shared else "in shares it would take longer"


def _unsuitable(loader: DataLoader[Any]) -> str:
    """Return why the batches of a loader cannot even be tried, if they cannot."""
    if loader._dataset_kind == DatasetKind.Iterable:  # noqa: SLF001 - no public spelling
        return "it reads a stream"
    if not loader._auto_collation:  # noqa: SLF001
        return "its data set makes the batches"
    if not getattr(loader, "in_order", True):
        return "its batches come in any order"
    context = loader.multiprocessing_context or torch.multiprocessing
    if loader.num_workers and context.get_start_method() != "fork":
        return "its worker processes are not forked"
    return ""
