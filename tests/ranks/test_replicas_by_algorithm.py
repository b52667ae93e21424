"""Which all-reduce carries the gradients is the user's to say, and to see."""

import pytest

from samestep.autopilot import steering
from samestep.autopilot.options import Options
from samestep.base.errors import UsageError
from samestep.collectives.by_algorithm import by_algorithm, overlaps_compute
from samestep.replicas.replicate import replicate
from samestep.world.solo import SoloWorld
from samestep.world.threads import run_ranks
from support.replica_cases import network, plain, samples


def test_one_rank_alone_stays_alone():
    world = SoloWorld()
    assert by_algorithm(world, "ring") is world


@pytest.mark.parametrize("sync", ["flat", "ddp"])
def test_a_synchroniser_with_a_way_of_its_own_takes_none(sync):
    def fn(world):
        with pytest.raises(UsageError, match=rf"sync='{sync}' exchanges gradients in its own way.* by ring"):
            replicate(network(), by_algorithm(world, "ring"), sync=sync)

    run_ranks(fn, 2)


def test_shared_memory_without_common_memory_is_refused():
    with pytest.raises(UsageError, match="--algorithm tree,shared_memory:64"):
        run_ranks(lambda world: by_algorithm(world, "tree,shared_memory:64"), 2)


@pytest.mark.parametrize(("text", "beside"), [("native", True), ("ring", False), ("native,ring:64", False)])
def test_only_the_back_ends_own_goes_on_while_others_compute(text, beside):
    def fn(world):
        carrier = by_algorithm(world, text)
        with replicate(network(), carrier) as replicas:
            return overlaps_compute(carrier), replicas._synchroniser._job.may_overlap

    assert run_ranks(fn, 2) == [(beside, beside)] * 2


def test_the_first_rank_says_what_carries_the_gradients_of_a_serial_script(capsys):
    def fn(world):
        carrier = steering._gradient_world(world, Options(algorithm="tree,ring:64K"))
        gradients, model = steering.Gradients(carrier), network()
        gradients.follow(model.parameters(), may_overlap=True)
        plain(model, samples(), 1.0)
        gradients.detach()
        assert steering._gradient_world(world, Options()) is world
        return model[0].weight.grad.tolist()

    model = network()
    plain(model, samples(), 1.0)
    assert run_ranks(fn, 2) == [model[0].weight.grad.tolist()] * 2
    assert capsys.readouterr().err == "samestep: gradients: all-reduce by tree, ring from 64 KiB\n"
