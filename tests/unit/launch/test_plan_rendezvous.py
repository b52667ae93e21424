"""Where a launcher's tasks meet."""

import socket

from samestep.base.place import Place
from samestep.launch.plan import Join, agreed_plan
from samestep.launchers.detect import Detected

ALONE = Place(launcher="slurm")


def test_one_task_has_a_free_port_to_meet_nobody_at():
    with agreed_plan(
        Join(place=ALONE, master=None), Detected(place=ALONE, launcher="slurm"), given=False
    ) as plan:
        assert plan.master[0] == "127.0.0.1"
        socket.create_server(plan.master).close()


def test_one_task_keeps_what_its_launcher_says():
    plan = Join(place=ALONE, master=("node0", 29500))
    with agreed_plan(plan, Detected(place=ALONE, launcher="torchrun"), given=False) as settled:
        assert settled == plan
