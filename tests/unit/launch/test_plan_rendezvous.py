"""A plan for tasks of a launcher has the address of their rendezvous."""

import socket

from samestep.base.place import Place
from samestep.launch.plan import Join, agreed_plan
from samestep.launchers.detect import Detected

ALONE = Place(launcher="slurm")


def test_a_single_task_gets_a_free_port_on_this_host():
    with agreed_plan(
        Join(place=ALONE, master=None), Detected(place=ALONE, launcher="slurm"), is_given=False
    ) as plan:
        assert plan.master[0] == "127.0.0.1"
        socket.create_server(plan.master).close()


def test_a_single_task_keeps_the_address_of_its_launcher():
    plan = Join(place=ALONE, master=("node0", 29500))
    with agreed_plan(plan, Detected(place=ALONE, launcher="torchrun"), is_given=False) as settled:
        assert settled == plan
