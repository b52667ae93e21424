"""The secret of a job comes from its launcher or from a file that no other user can read."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from samestep.base.env import SECRET_FILE
from samestep.base.errors import UsageError
from samestep.ranks.rendezvous import job_secret
from samestep.ranks.rendezvous.job_secret import job_key, shared_secret


def test_children_use_the_secret_of_their_launcher_while_it_exists():
    with shared_secret() as one, shared_secret() as another:
        own, other = one.variables, another.variables
        assert job_key(own, "store") == job_key(dict(own), "store")
        assert job_key(own, "store") != job_key(own, "nodes")
        assert job_key(own, "store") != job_key(other, "store")
    with pytest.raises(UsageError):
        job_key(own, "store")


def test_the_secret_of_the_user_is_created_once_by_concurrent_processes(tmp_path):
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: job_key(environment, "store"), range(16)))

    assert len(keys) == 1
    assert [path.name for path in (tmp_path / "samestep").iterdir()] == ["secret"]
    assert (tmp_path / "samestep" / "secret").stat().st_mode & 0o777 == 0o600


def test_without_a_writable_home_the_secret_is_in_the_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(job_secret, "gettempdir", lambda: str(tmp_path))
    assert job_key({"HOME": "/proc/nowhere"}, "store") == job_key({}, "store")
    assert [path.name for path in tmp_path.iterdir()] == [f"samestep-{os.geteuid()}"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_file_that_others_can_read_or_change_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32)))
    path.chmod(mode)
    with pytest.raises(UsageError, match="chmod 600"):
        job_key({SECRET_FILE: str(path)}, "store")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of root")
@pytest.mark.parametrize(("mode", "is_secret"), [(0o440, True), (0o460, False), (0o444, False)])
def test_in_a_pod_a_secret_file_that_its_group_can_read_is_accepted(tmp_path, mode, is_secret):
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32)))
    path.chmod(mode)
    pod = {SECRET_FILE: str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with nullcontext() if is_secret else pytest.raises(UsageError, match="chmod 600"):
        assert len(job_key(pod, "store")) == 32


@pytest.mark.parametrize("size", [0, 5, 5000])
def test_a_secret_file_of_a_wrong_size_is_refused(tmp_path, size):
    path = tmp_path / "secret"
    path.write_bytes(bytes(size))
    path.chmod(0o600)
    with pytest.raises(UsageError, match=f"{min(4097, size)} bytes"):
        job_key({SECRET_FILE: str(path)}, "store")


def test_a_secret_file_that_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none", "/dev/zero"):
        with pytest.raises(UsageError):
            job_key({SECRET_FILE: str(path)}, "store")


def test_a_secret_in_a_folder_that_others_can_change_is_refused(tmp_path):
    (tmp_path / "samestep").mkdir()
    (tmp_path / "samestep").chmod(0o777)
    with pytest.raises(UsageError, match="other users can change it"):
        job_key({"XDG_CONFIG_HOME": str(tmp_path)}, "store")
