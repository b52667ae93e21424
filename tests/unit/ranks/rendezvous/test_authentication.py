"""Client and server prove to each other that they have the secret; any other input is refused."""

import socket
import struct
import threading
import time
from contextlib import ExitStack, closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.ranks.rendezvous.authentication import (
    GREETING,
    HANDSHAKE_S,
    AuthenticationError,
    Channel,
    ClientSide,
    Server,
    ServerSide,
    connect,
    derived,
)
from samestep.ranks.rendezvous.network_store import packed, unpacked

KEY, OTHER = derived(b"a secret", "test"), derived(b"another", "test")


class Echo:
    def received(self, peer, message):
        peer.send(message)

    def gone(self, peer):
        pass

    def passed(self, now):
        return None


@pytest.fixture
def server():
    with closing(Server(socket.create_server(("127.0.0.1", 0), backlog=256), KEY, Echo())) as server:
        yield server


def asked(server, message=b"hello", key=KEY):
    with closing(connect("127.0.0.1", server.port, key, timeout_s=5)) as connection:
        return connection.ask(message, timeout_s=5)


def both_ends():
    """Return a client's and a server's end of one connection."""
    client, server = ClientSide(KEY), ServerSide(KEY)
    proof, channel = client.proved(server.fed(client.greeting))
    list(channel.opened(server.fed(proof)))
    return channel, server.channel


def test_a_client_with_the_secret_gets_an_answer(server):
    assert asked(server) == b"hello"
    assert asked(server, b"") == b""
    assert asked(server, bytes(1 << 20)) == bytes(1 << 20)


def test_a_client_with_another_secret_raises_an_error(server):
    with pytest.raises(AuthenticationError):
        asked(server, key=OTHER)
    assert asked(server) == b"hello"


def test_a_server_refuses_a_wrong_proof():
    client, server = ClientSide(OTHER), ServerSide(KEY)
    server.fed(client.greeting)
    with pytest.raises(AuthenticationError):
        server.fed(bytes(32))
    assert server.channel is None


def test_a_replayed_handshake_is_refused(server):
    """A proxy records the bytes of a client; sent again, they get the answer to the greeting and no more."""
    recorded = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def carry():
            near, _ = proxy.accept()
            with near, socket.create_connection(("127.0.0.1", server.port)) as far:
                back = threading.Thread(target=pump, args=(far, near))
                back.start()
                while data := near.recv(4096):
                    recorded.extend(data)
                    far.sendall(data)
                far.shutdown(socket.SHUT_RDWR)  # closing it would not wake the other thread
                back.join()

        def pump(source, target):
            try:
                while data := source.recv(4096):
                    target.sendall(data)
            except OSError:
                pass

        thread = threading.Thread(target=carry)
        thread.start()
        with closing(connect("127.0.0.1", proxy.getsockname()[1], KEY, timeout_s=5)) as connection:
            assert connection.ask(b"hello", timeout_s=5) == b"hello"
        thread.join()

    greeting, proof, message = recorded[:42], recorded[42:74], recorded[74:]
    assert message
    # One after the other: a proof with a message behind it is always refused.
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as again:
        again.sendall(greeting)
        assert len(again.recv(4096)) == 64
        again.sendall(proof)
        assert ended(again)


def ended(peer):
    try:
        return peer.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_a_message_cannot_be_replayed_reordered_or_changed():
    client, server = both_ends()
    first, second = client.sealed(b"first"), client.sealed(b"second")

    with pytest.raises(AuthenticationError):
        list(both_ends()[1].opened(first))
    assert list(server.opened(first)) == [b"first"]
    with pytest.raises(AuthenticationError):
        list(server.opened(first))

    client, server = both_ends()
    first, second = client.sealed(b"first"), client.sealed(b"second")
    with pytest.raises(AuthenticationError):
        list(server.opened(second))
    client, server = both_ends()
    with pytest.raises(AuthenticationError):
        list(server.opened(client.sealed(b"first")[:-1] + b"x"))


def test_a_message_that_is_sent_back_to_its_sender_is_refused():
    client, _ = both_ends()
    with pytest.raises(AuthenticationError):
        list(client.opened(client.sealed(b"first")))


def test_a_length_beyond_the_limit_is_refused_before_the_message_arrives():
    _, server = both_ends()
    with pytest.raises(AuthenticationError):
        list(server.opened(struct.pack("!I", 1 << 31)))


@given(data=st.binary(max_size=300), pieces=st.integers(1, 40))
def test_arbitrary_bytes_do_not_complete_a_handshake(data, pieces):
    server = ServerSide(KEY)
    try:
        sent = b"".join(server.fed(data[i : i + pieces]) for i in range(0, len(data), pieces))
    except AuthenticationError:
        return
    assert server.channel is None
    assert len(sent) in (0, 64)


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_on_a_channel_are_refused_or_an_incomplete_message(data):
    channel = Channel(KEY, OTHER, longest=100)
    try:
        assert list(channel.opened(data)) == []
    except AuthenticationError:
        return
    assert len(data) < 4 + 32 + 100


@given(length=st.integers(0, 90), message=st.binary(max_size=40))
def test_a_message_that_arrives_in_two_parts_is_opened_once_complete(length, message):
    client, server = both_ends()
    sealed = client.sealed(message)
    assert list(server.opened(sealed[:length])) == ([message] if length >= len(sealed) else [])
    assert list(server.opened(sealed[length:])) == ([] if length >= len(sealed) else [message])


@given(message=st.binary(max_size=60))
def test_a_request_that_can_be_unpacked_is_packed_to_the_same_bytes(message):
    try:
        code, limit_ms, parts = unpacked(message)
    except ValueError:
        return
    assert packed(code, parts, limit_ms=limit_ms) == message


def test_invalid_data_closes_its_connection_and_the_server_continues(server):
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, GREETING + bytes(32) + bytes(31) + b"xy"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as peer:
            peer.sendall(data)
            while not ended(peer):
                pass
    assert asked(server) == b"hello"


def test_a_peer_that_sends_too_slowly_is_disconnected_in_time(server):
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as peer:
        with suppress(OSError):  # a pipe that is broken, or a connection reset
            for at in range(100):
                peer.sendall(GREETING[at : at + 1] or b"x")
                time.sleep(0.1)
        assert time.monotonic() - begin < HANDSHAKE_S + 1.5


def test_many_silent_peers_do_not_delay_a_client(server):
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
        begin = time.monotonic()
        assert asked(server) == b"hello"
        assert time.monotonic() - begin < 1
