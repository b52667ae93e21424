"""Records one training step of DistributedDataParallel: when each bucket was ready, sent and done."""

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from samestep.base.units import bytes_text
from samestep.bench.step_times import Problem, Trainee
from samestep.ranks.world.protocol import World
from samestep.report.charts import Span, TimeLine
from samestep_lab.experiments.experiment import Outcome, Setup, Table

STEPS = 3
BUCKET_MB = 8.0
KINDS = (("forward", "forward"), ("backward", "backward"), ("optimizer", "optimizer"), ("sync", "all-reduce"))


@dataclass(slots=True)
class Recorder:
    """The instants of one step on one rank, by the clock that all processes of a host share."""

    size: int
    ready: dict[Tensor, float] = field(default_factory=dict)
    """When the gradient of each parameter was complete."""
    buckets: list[dict[str, Any]] = field(default_factory=list)

    def hook(
        self,
        _: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """Average a bucket over the ranks, and note when; torch calls this in backward."""
        buffer = bucket.buffer()
        record = {
            "bytes": buffer.nbytes,
            "ready": max(self.ready[parameter] for parameter in bucket.parameters()),
            "sent": time.perf_counter(),
        }
        self.buckets.append(record)
        future = dist.all_reduce(buffer.div_(self.size), async_op=True).get_future()

        def done(arrived: torch.futures.Future[list[Tensor]]) -> Tensor:
            record["done"] = time.perf_counter()
            return arrived.value()[0]

        after: torch.futures.Future[Tensor] = future.then(done)
        return after


def on_rank(world: World, problem: Problem, steps: int) -> dict[str, Any]:
    """Return the instants of the last of some steps."""
    trainee, recorder = Trainee(problem, world), Recorder(world.place.size)
    for parameter in trainee.model.parameters():
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda parameter: recorder.ready.__setitem__(parameter, time.perf_counter())
        )
    model = DistributedDataParallel(trainee.model, bucket_cap_mb=BUCKET_MB)
    model.register_comm_hook(None, recorder.hook)
    instants: dict[str, Any] = {}
    for _ in range(steps):
        recorder.buckets = []
        world.barrier()
        begin = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(trainee.images), trainee.labels)
        forward = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        backward = time.perf_counter()
        trainee.update()
        instants = {
            "begin": begin,
            "forward": forward,
            "computed": max(recorder.ready.values()),
            "backward": backward,
            "end": time.perf_counter(),
            "buckets": recorder.buckets,
        }
    return instants


def covered(spans: list[tuple[float, float]], until: float) -> tuple[float, float]:
    """Return the seconds that the union of spans covers before `until`, and in all.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)], 2.5)
    (2.5, 4.0)
    """
    edges = sorted({edge for span in spans for edge in span} | {until})
    before = total = 0.0
    for begin, end in pairwise(edges):
        if any(span[0] <= begin and end <= span[1] for span in spans):
            total += end - begin
            before += end - begin if end <= until else 0.0
    return before, total


def run(setup: Setup, *, model: str = "resnet18", batch: int = 8, steps: int = STEPS) -> Outcome:
    """Run the experiment."""
    problem = Problem(model=model, batch_per_worker=batch)
    ranks = setup.ranks(on_rank, setup.workers, problem, steps)
    start = min(instants["begin"] for instants in ranks)
    values: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    lines: dict[str, list[Span]] = {}
    for rank, instants in enumerate(ranks):
        spans = [(bucket["sent"], bucket["done"]) for bucket in instants["buckets"]]
        hidden, total = covered(spans, instants["computed"])
        steps_of = {name: _ms(instants[name] - start) for name in ("forward", "computed", "backward", "end")}
        values.append(
            {
                **steps_of,
                "buckets": [
                    {"bytes": bucket["bytes"]}
                    | {name: _ms(bucket[name] - start) for name in ("ready", "sent", "done")}
                    for bucket in instants["buckets"]
                ],
                "communication_ms": _ms(total),
                "hidden_ms": _ms(hidden),
                "exposed_ms": _ms(instants["backward"] - instants["computed"]),
            }
        )
        rows += [
            (
                str(rank),
                str(number),
                bytes_text(bucket["bytes"]),
                *(f"{bucket[name]:.1f} ms" for name in ("ready", "sent", "done")),
            )
            for number, bucket in enumerate(values[-1]["buckets"])
        ]
        begin = _ms(instants["begin"] - start)
        lines[f"rank {rank}"] = [
            Span(0, begin, steps_of["forward"]),
            Span(1, steps_of["forward"], steps_of["backward"]),
            Span(2, steps_of["backward"], steps_of["end"]),
        ]
        for number, bucket in enumerate(values[-1]["buckets"]):
            lines[f"{rank}: bucket {number}"] = [Span(3, bucket["sent"], bucket["done"])]
    share = min(value["hidden_ms"] / value["communication_ms"] for value in values)
    exposed = max(value["exposed_ms"] for value in values)
    return Outcome(
        tables=[Table(head=("rank", "bucket", "size", "ready", "sent", "done"), rows=rows)],
        measured=(
            f"Backward hid {share:.0%} of the communication of {len(ranks[0]['buckets'])} buckets, on the "
            f"rank with the least; {exposed:.1f} ms at its end were exposed, of a step of "
            f"{max(value['end'] for value in values):.1f} ms. From sent to "
            "done includes waiting for the slowest rank; another step has other times."
        ),
        values={"ranks": values},
        charts=[
            TimeLine(title=f"One step on {setup.workers} ranks", name="one step", kinds=KINDS, rows=lines)
        ],
    )


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
