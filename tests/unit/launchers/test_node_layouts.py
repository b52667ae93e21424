"""The variables of a launcher give every rank its place, for any number of ranks on any number of nodes."""

from hypothesis import given
from hypothesis import strategies as st

from samestep.base.place import Place
from samestep.launchers.detect import detect
from samestep.ranks.rendezvous.handshake import PeerInfo, assign_slots

layouts = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def places(layout):
    """Yield the place of every rank, with the nodes filled one after the other."""
    size, rank = sum(layout), 0
    for node, count in enumerate(layout):
        for local_rank in range(count):
            yield Place(
                rank=rank, size=size, local_rank=local_rank, local_size=count, node=node, nodes=len(layout)
            )
            rank += 1


def variables_of(names, place, **more):
    values = {name: str(getattr(place, field)) for field, name in names.items()}
    return {**values, **more}


def bare(place):
    return place.rank, place.size, place.local_rank, place.local_size, place.node, place.nodes


@given(layouts)
def test_ranks_of_a_slurm_step_of_any_layout_detect_their_places(layout):
    names = {
        "rank": "SLURM_PROCID",
        "size": "SLURM_STEP_NUM_TASKS",
        "local_rank": "SLURM_LOCALID",
        "node": "SLURM_NODEID",
        "nodes": "SLURM_STEP_NUM_NODES",
    }
    counts = ",".join(map(str, layout))
    for place in places(layout):
        environment = variables_of(names, place, SLURM_STEP_ID="0", SLURM_STEP_TASKS_PER_NODE=counts)
        detected = detect(environment)
        assert bare(detected.place) == bare(place)
        assert detected.assumed == ()


@given(layouts)
def test_ranks_of_torchrun_on_any_layout_detect_their_places(layout):
    names = {
        "rank": "RANK",
        "size": "WORLD_SIZE",
        "local_rank": "LOCAL_RANK",
        "local_size": "LOCAL_WORLD_SIZE",
        "node": "GROUP_RANK",
        "nodes": "GROUP_WORLD_SIZE",
    }
    for place in places(layout):
        assert bare(detect(variables_of(names, place, TORCHELASTIC_RUN_ID="x")).place) == bare(place)


@given(layouts)
def test_ranks_of_mpi_on_any_layout_get_their_places_by_comparing_hosts(layout):
    """MPI sets no variable for the node of a rank; the ranks compare their hosts."""
    names = {
        "rank": "OMPI_COMM_WORLD_RANK",
        "size": "OMPI_COMM_WORLD_SIZE",
        "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
        "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
    }
    infos = []
    for place in places(layout):
        detected = detect(variables_of(names, place))
        infos.append(
            PeerInfo(place=detected.place, assumed=detected.assumed, host=f"node{place.node}", versions={})
        )
    assert [bare(slot.place) for slot in assign_slots(infos)] == [bare(place) for place in places(layout)]
