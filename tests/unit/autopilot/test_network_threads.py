"""Threads of a script that send requests at the same time."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from samestep.autopilot.network import SharedResponses
from samestep.autopilot.script.shared_folder import CommonFolder


@pytest.mark.usefixtures("_frequent_switches")
def test_each_request_of_a_thread_is_one_of_its_own(tmp_path, monkeypatch):
    responses = SharedResponses(CommonFolder(tmp_path, [0]), 0)

    def request(number):
        def send(body):
            body.write(b"%d" % number)
            return number

        response, body = responses.get("GET http://host/", send)
        with body:
            return response == number and body.read() == b"%d" % number

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(request, range(300)))
    assert responses._requested["GET http://host/"] == 300
