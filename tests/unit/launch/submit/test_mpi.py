"""The script of an MPI job explains its flags, and its hosts are parsed."""

from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.launch.submit.job_command import JobCommand, parse_command
from samestep.launch.submit.mpi import MpiJob, find, script
from samestep.launch.submit.mpi_hosts import Host, hosts_in, hosts_of
from samestep.launch.submit.site_defaults import MpiSite

OPEN_MPI = """\
#!/bin/bash
# train: 4 workers on a x 2 + b x 2.
# Written by samestep submit mpi; bash takes this file as it is.
export PYTHONUNBUFFERED=1  # the log grows with every line printed

#   -np 4                workers in total
#   --host a:2,b:2       the hosts, and the workers on each
#   --map-by slot        consecutive ranks share a host
#   --bind-to none       samestep divides the cores among the ranks itself
#   --wdir '/my work'    the working folder of each worker
#   -x MASTER_ADDR=a     the rendezvous is on the host of rank 0
#   -x PYTHONUNBUFFERED  the value that it has here
#   -x NCCL_DEBUG        the value that it has here
mpirun -np 4 --host a:2,b:2 --map-by slot --bind-to none --wdir '/my work' -x MASTER_ADDR=a \\
    -x PYTHONUNBUFFERED -x NCCL_DEBUG \\
    /usr/bin/python3 -m samestep run train.py 'a; b'
"""

MPICH = """\
#!/bin/bash
# train: 3 workers on a x 2 + b x 2.
# Written by samestep submit mpi; bash takes this file as it is.
source /venv/bin/activate || exit
export PYTHONUNBUFFERED=1  # the log grows with every line printed
export HYDRA_LAUNCHER_EXTRA_ARGS='-p 2222'

#   -n 3                                            workers in total
#   -hosts a:2,b:2                                  the hosts, and the workers on each
#   -bind-to none                                   samestep divides the cores among the ranks itself
#   -wdir '/my work'                                the working folder of each worker
#   -genv MASTER_ADDR a                             the rendezvous is on the host of rank 0,
#   -genv MASTER_PORT $((15000 + RANDOM % 14000))   on another port at each start
#   -launcher ssh                                   connects to the hosts with ssh,
#   -launcher-exec ssh                              or with this program
mpirun -n 3 -hosts a:2,b:2 -bind-to none -wdir '/my work' -genv MASTER_ADDR a \\
    -genv MASTER_PORT $((15000 + RANDOM % 14000)) -launcher ssh -launcher-exec ssh \\
    /venv/bin/python -m samestep run train.py 'a; b'
"""


def job(**changes):
    plain = {
        "command": JobCommand(verb="run", arguments=("train.py", "a; b"), name="train"),
        "name": "train",
        "hosts": hosts_of("a:2,b:2"),
        "workers": 4,
        "flavor": "openmpi",
        "site": MpiSite(),
        "folder": Path("/my work"),
        "python": "/usr/bin/python3",
    }
    return MpiJob(**plain | changes)


def test_the_script_for_open_mpi_explains_each_flag():
    assert script(job(forwarded=("NCCL_DEBUG",))) == OPEN_MPI


def test_the_script_for_mpich_explains_each_flag():
    made = script(job(flavor="mpich", workers=3, site=MpiSite(ssh="ssh -p 2222", venv="/venv")))

    assert [line.split() for line in made.splitlines()] == [line.split() for line in MPICH.splitlines()]


def test_the_script_of_a_recipe_under_mpich_sets_no_rendezvous_address():
    assert "MASTER" not in script(job(flavor="mpich", command=parse_command(["train", "digits"])))


@pytest.mark.parametrize("flavor", ["openmpi", "mpich"])
def test_the_user_of_ssh_is_not_part_of_the_address(flavor):
    made = script(job(flavor=flavor, hosts=hosts_of("al@a:2,al@b:2")))

    assert "MASTER_ADDR=a " in made or "MASTER_ADDR a " in made
    assert "al@a:2,al@b:2" in made


def test_localhost_cannot_be_the_first_of_several_hosts():
    with pytest.raises(UsageError, match=r"localhost.* b "):
        job(hosts=hosts_of("localhost:2,b:2"))
    assert "MASTER" not in script(job(hosts=hosts_of("localhost:4")))


@pytest.mark.parametrize("flavor", ["openmpi", "mpich"])
def test_a_line_break_in_a_flag_does_not_end_the_comment_that_explains_it(flavor):
    site = MpiSite(interface="eth0\ntouch x", ssh="'ssh\ntouch x'")

    made = script(job(flavor=flavor, site=site, folder=Path("/a\ntouch x")))

    assert not any(line.startswith("touch") for line in made.splitlines())


def test_more_workers_than_slots_are_refused():
    with pytest.raises(UsageError, match=r"-n 5 .*a:2,b:2.* 4"):
        job(workers=5)


def test_the_flavor_of_mpirun_is_found_in_its_version():
    versions = {"mpirun": "mpirun (Open MPI) 4.1.4", "mpirun.mpich": "HYDRA build details:\n Version: 4.0.2"}

    assert find("", version_of=versions.get) == ("openmpi", "mpirun")
    assert find("mpich", version_of=versions.get) == ("mpich", "mpirun.mpich")
    with pytest.raises(UsageError, match=r"mpich .*\(mpirun is .*Open MPI\) 4"):
        find("mpich", version_of={"mpirun": versions["mpirun"]}.get)
    with pytest.raises(UsageError, match="Open MPI or MPICH"):
        find("", version_of={}.get)
    with pytest.raises(UsageError, match=r"'lam' .*openmpi, mpich"):
        find("lam", version_of=versions.get)


def test_hostfiles_of_open_mpi_and_mpich_are_read(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=2 max_slots=4\nb:3  # big\n\nc\n")

    assert hosts_in(file) == (Host("a", 2), Host("b", 3), Host("c", 1))


def test_a_hostfile_of_pbs_with_a_line_for_each_worker_is_read(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a\nb\na\nb\nb\n")
    assert hosts_in(file) == (Host("a", 2), Host("b", 3))

    for text in ("a slots=2\na\n", "a\na:2\n"):
        file.write_text(text)
        with pytest.raises(UsageError, match="host a "):
            hosts_in(file)


@pytest.mark.parametrize("text", ["a:x", "a:0", "", "a,,b", "a:2,a:3", "-o:2", "a b:2"])
def test_wrong_hosts_are_refused(text):
    with pytest.raises(UsageError):
        hosts_of(text)


def test_an_error_in_a_hostfile_names_its_line(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb slots=two\n")

    with pytest.raises(UsageError, match=r"hosts:2: 'b slots=two': 'two'"):
        hosts_in(file)
