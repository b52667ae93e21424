"""Threads of a script that send requests at the same time."""

import sys
from concurrent.futures import ThreadPoolExecutor

from samestep.autopilot.network import SharedResponses
from samestep.autopilot.script.shared_folder import CommonFolder


def test_each_request_of_a_thread_is_one_of_its_own(tmp_path, monkeypatch):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    responses = SharedResponses(CommonFolder(tmp_path, [0]), 0)

    def request(number):
        def send(body):
            body.write(b"%d" % number)
            return number

        response, body = responses.get("GET http://host/", send)
        with body:
            return response == number and body.read() == b"%d" % number

    try:
        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(request, range(300)))
    finally:
        sys.setswitchinterval(before)
    assert responses._requested["GET http://host/"] == 300
