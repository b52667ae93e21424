"""The environment of every launcher gives the place of its rank, in any layout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.errors import DetectionError
from samestep.base.place import Place
from samestep.launchers.detect import detect, from_arguments
from samestep.launchers.registry import LAUNCHERS
from samestep.ranks.rendezvous.handshake import PeerInfo, assign_slots
from support.recordings import RECORDINGS, recording

UNEVEN = recording("slurm_step_uneven_rank3").environment


@pytest.mark.parametrize("case", RECORDINGS, ids=str)
def test_a_recorded_environment_gives_its_place(case):
    detected = detect(case.environment)

    assert detected.place == case.place
    assert detected.launcher == case.launcher
    assert detected.outer == case.outer
    assert detected.assumed == case.assumed
    assert detected.job == case.job
    assert detected.master == case.master


@pytest.mark.parametrize("case", RECORDINGS, ids=str)
def test_the_evidence_alone_gives_the_same_place(case):
    detected = detect(case.environment)

    assert all(case.environment[name] == value for name, value in detected.evidence)
    assert detect(dict(detected.evidence)).place == case.place


def test_every_launcher_has_a_recording():
    assert {launcher.name for launcher in LAUNCHERS} | {"single"} == {case.launcher for case in RECORDINGS}


@pytest.mark.parametrize(
    ("procid", "localid", "node", "local_size"),
    [(0, 0, 0, 3), (1, 1, 0, 3), (2, 2, 0, 3), (3, 0, 1, 1)],
)
def test_uneven_tasks_per_node_give_each_rank_the_size_of_its_node(procid, localid, node, local_size):
    task = {"SLURM_PROCID": str(procid), "SLURM_LOCALID": str(localid), "SLURM_NODEID": str(node)}
    place = detect({**UNEVEN, **task}).place

    assert (place.rank, place.local_rank, place.local_size, place.node) == (procid, localid, local_size, node)


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292", "batch", "interactive"])
def test_a_step_without_tasks_is_a_single_process(step):
    environment = {**UNEVEN, "SLURM_STEP_ID": step}
    assert detect(environment).place == Place()


def test_the_same_place_in_the_variables_of_torchrun_is_no_outer_launcher():
    task = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")}
    task |= {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}

    assert detect(task | {"RANK": "1", "WORLD_SIZE": "2", "GROUP_RANK": "0"}).outer == ()
    assert detect(task | {"RANK": "0", "WORLD_SIZE": "4"}).outer == ("environment",)


def test_torchrun_inside_a_worker_of_samestep_is_torchrun():
    environment = recording("samestep_one_host_rank1").environment | {"TORCHELASTIC_RUN_ID": "another"}
    assert detect(environment).launcher == "torchrun"


def test_a_batch_script_with_several_tasks_gets_a_note_about_srun():
    (note,) = detect(recording("slurm_sbatch_script").environment).notes
    assert "4 tasks" in note
    assert "srun" in note


def test_an_exported_world_size_is_ignored_in_a_slurm_step():
    exported = {"WORLD_SIZE": "4", "MASTER_ADDR": "node0"}
    assert detect({**UNEVEN, **exported}).launcher == "slurm"


def test_an_inferred_place_gets_a_note():
    (note,) = detect(recording("environment_pods_rank2").environment).notes
    assert "host of its own" in note


def test_a_place_given_by_the_caller_keeps_the_master_address_of_the_environment():
    place = Place(rank=1, size=2)
    detected = from_arguments(place, {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "RANK": "7"})

    assert detected.place == place
    assert detected.master == ("node0", 29500)


TORCHRUN = recording("torchrun_one_host_rank1").environment
MPICH = recording("mpich_2x2_rank3").environment
OPEN_MPI = recording("openmpi_2x2_rank3").environment
FLUX = recording("flux_2x2_rank3").environment
PMIX = recording("pmix_one_host_rank1").environment


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize(
    ("environment", "parts"),
    [
        ({"RANK": "0"}, ["WORLD_SIZE is not set", "RANK=0"]),
        ({"WORLD_SIZE": "2"}, ["RANK is not set", "WORLD_SIZE=2"]),
        ({"RANK": "2", "WORLD_SIZE": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, ["RANK=-1", "WORLD_SIZE=2"]),
        ({"RANK": "zero", "WORLD_SIZE": "2"}, ["RANK='zero'"]),
        ({"RANK": "0", "WORLD_SIZE": "0"}, ["RANK=0", "WORLD_SIZE=0"]),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
            ["LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"],
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node0"},
            ["LOCAL_WORLD_SIZE or LOCAL_SIZE is not set", "LOCAL_RANK=1"],
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            ["LOCAL_WORLD_SIZE=4", "WORLD_SIZE=2"],
        ),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "2"}, ["GROUP_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2"]),
        ({**TORCHRUN, "RANK": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
        (without(TORCHRUN, "WORLD_SIZE"), ["WORLD_SIZE is not set", "RANK=1"]),
        ({**UNEVEN, "SLURM_STEP_NUM_TASKS": "5"}, ["adds up to 4", "SLURM_STEP_NUM_TASKS=5"]),
        ({**UNEVEN, "SLURM_STEP_NUM_NODES": "3"}, ["lists 2 node(s)", "SLURM_STEP_NUM_NODES=3"]),
        ({**UNEVEN, "SLURM_LOCALID": "1"}, ["SLURM_LOCALID=1", "1 rank(s) on node 1"]),
        ({**UNEVEN, "SLURM_STEP_TASKS_PER_NODE": "3;1"}, ["'3;1'"]),
        (without(UNEVEN, "SLURM_STEP_NUM_TASKS"), ["SLURM_STEP_NUM_TASKS is not set"]),
        (without(UNEVEN, "SLURM_STEP_TASKS_PER_NODE"), ["SLURM_STEP_TASKS_PER_NODE is not set"]),
        (
            without(MPICH, "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
            ["MPI_LOCALRANKID or PMI_LOCAL_RANK is not set", "PMI_RANK=3"],
        ),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), ["OMPI_COMM_WORLD_SIZE is not set"]),
        (without(FLUX, "FLUX_JOB_SIZE"), ["FLUX_JOB_SIZE is not set", "FLUX_TASK_RANK=3"]),
        (without(PMIX, "WORLD_SIZE"), ["WORLD_SIZE is not set", "PMIX_RANK=1"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}, ["MASTER_PORT=70000"]),
    ],
)
def test_missing_or_contradictory_variables_of_one_launcher_are_refused_with_their_values(environment, parts):
    with pytest.raises(DetectionError) as refused:
        detect(environment)
    assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_missing_variables_of_an_outer_launcher_are_ignored():
    environment = {**without(UNEVEN, "SLURM_STEP_NUM_TASKS"), **TORCHRUN}
    assert detect(environment).outer == ()


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


@given(layouts)
def test_ranks_of_flux_on_any_layout_get_their_places_by_comparing_hosts(layout):
    """Only this finds a number of ranks per node that is inferred from even shares and not corrected.

    Flux sets no variable for the node of a rank, nor for the number of ranks on it.
    """
    names = {
        "rank": "FLUX_TASK_RANK",
        "size": "FLUX_JOB_SIZE",
        "local_rank": "FLUX_TASK_LOCAL_ID",
        "nodes": "FLUX_JOB_NNODES",
    }
    infos = []
    for place in places(layout):
        detected = detect(variables_of(names, place))
        infos.append(
            PeerInfo(place=detected.place, assumed=detected.assumed, host=f"node{place.node}", versions={})
        )
    assert [bare(slot.place) for slot in assign_slots(infos)] == [bare(place) for place in places(layout)]
