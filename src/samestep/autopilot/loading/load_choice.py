"""Decides, from its first batches and their load times, whether each rank loads only its share of a loader.

Only a loader whose samples can be loaded in any order is sharded. If loading draws random numbers, those of a
sample depend on all samples before it, so every rank loads all samples to draw the numbers of one worker.
"""

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

import torch.multiprocessing
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind as DatasetKind

from samestep.autopilot.loading.fetch_requests import FetchResult
from samestep.autopilot.loading.row_gather import GOOD, Row, batch_of_rows, gather_rows, own_rows
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.options import Load
from samestep.launchers.binding import processors_of_rank
from samestep.parallel.sharding.share import share
from samestep.ranks.world.protocol import World

TIMED_BATCHES = 3
"""Batches that are timed before the decision whether sharding is faster."""


@dataclass(eq=False)
class LoaderPlan:
    """The way in which the batches of one loader are loaded."""

    is_shared: bool | None = None
    """Whether each rank loads only its share; None before the decision."""
    why: str = "it gave too few batches for a decision"
    rows: tuple[Row, ...] = ()
    """The form of the batches; empty if it is not needed."""
    draws: bool = False
    """Whether samples draw random numbers; each sample then has its own seed."""
    has_fewer_workers: bool = False
    """Whether the loader has fewer processes than requested; then its batches are checked for draws."""
    seconds: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of the timed batches: to load all of it; to load the shares and gather them."""

    def refuse(self, why: str) -> None:
        """Let every rank load all of it from now on."""
        self.is_shared, self.why, self.rows = False, why, ()

    @property
    def is_pure(self) -> bool:
        """Whether any process can load any sample."""
        return bool(self.rows) and not self.draws

    def __str__(self) -> str:
        if self.is_shared:
            return "each worker loads its share of a batch"
        return f"each worker loads all of it ({self.why})"


class ScriptLoaders:
    """The loaders of one rank's script."""

    def __init__(self, world: World, account: Account, load: Load) -> None:
        self.world, self._account, self._load = world, account, load
        self._verdicts: WeakKeyDictionary[DataLoader[Any], LoaderPlan] = WeakKeyDictionary()

    @property
    def seeds_samples(self) -> bool:
        """Whether the user chooses sharding over the random numbers of one worker."""
        return self._load == "shared"

    def verdict(self, loader: DataLoader[Any]) -> LoaderPlan:
        """Return the plan of a loader."""
        if loader not in self._verdicts:
            self._verdicts[loader] = plan = LoaderPlan()
            if why := "--load replicated" if self._load == "replicated" else _unsuitable(loader):
                plan.refuse(why)
        return self._verdicts[loader]

    def workers(self, loader: DataLoader[Any]) -> int:
        """Return the number of processes of a loader: at most the number of this rank's cores."""
        verdict = self.verdict(loader)
        if loader.num_workers < 2 or loader.worker_init_fn is not None or not verdict.is_pure:
            return loader.num_workers
        most = processors_of_rank(self.world.place.local_size)
        verdict.has_fewer_workers = most < loader.num_workers
        return min(loader.num_workers, most)

    def note(self, site: str, status: object) -> None:
        """Record in the account the status of the loader that the line at `site` reads."""
        self._account.loading[site, id(status)] = status
        if isinstance(status, LoaderPlan) and status.is_shared and status.draws:
            self._account.note_exception(
                f"{site}: random numbers drawn in loading are each sample's own, not those of one worker "
                "(--load shared)"
            )

    def judge(self, verdict: LoaderPlan, loaded: FetchResult, total: int) -> None:
        """Update the plan from a checked batch of `total` samples; all ranks update it equally."""
        found = self.world.all_gather_objects(loaded._replace(data=None))
        refused = next((one.refused for one in found if one.refused), "")
        if refused:
            verdict.refuse(refused)
        elif all(one.rows and one.rows == found[0].rows for one in found):
            gather_s = self._gather_time(found[0].rows, loaded.data, total)
            share_s = max(one.share_s for one in found) + gather_s
            verdict.seconds.append((max(one.whole_s for one in found), share_s))
            if self._load == "shared" or len(verdict.seconds) == TIMED_BATCHES:
                whole_s, share_s = (median(column) for column in zip(*verdict.seconds, strict=True))
                verdict.rows, verdict.draws = found[0].rows, found[0].draws
                verdict.is_shared = self._load == "shared" or share_s < whole_s
                verdict.why = "" if verdict.is_shared else "sharding takes longer"

    def _gather_time(self, rows: tuple[Row, ...], whole: Any, total: int) -> float:
        started = time.perf_counter()
        part = own_rows(whole, share(total, self.world.place.rank, self.world.place.size))
        batch_of_rows(gather_rows(self.world, rows, total, part, GOOD), rows, total, part)
        return max(self.world.all_gather_objects(time.perf_counter() - started))


def _unsuitable(loader: DataLoader[Any]) -> str:
    """Return why the batches of a loader cannot be sharded; empty if a check decides."""
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
