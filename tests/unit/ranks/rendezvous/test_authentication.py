"""Two ends prove to each other that they have the secret; whatever else arrives is refused."""

import socket
import struct
import threading
import time
from contextlib import ExitStack, closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.ranks.rendezvous import store_table as table
from samestep.ranks.rendezvous.authenticated_server import HANDSHAKE_S, Server
from samestep.ranks.rendezvous.authentication import (
    GREETING,
    AuthenticationError,
    Channel,
    ClientSide,
    ServerSide,
    connect,
    derived,
)

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


def shaken():
    """Return a client's and a server's end of one connection."""
    client, server = ClientSide(KEY), ServerSide(KEY)
    proof, channel = client.proved(server.fed(client.greeting))
    list(channel.opened(server.fed(proof)))
    return channel, server.channel


def test_both_ends_exchange_messages(server):
    assert asked(server) == b"hello"
    assert asked(server, b"") == b""
    assert asked(server, bytes(1 << 20)) == bytes(1 << 20)


def test_a_client_without_the_secret_sees_that_the_server_has_another(server):
    with pytest.raises(AuthenticationError):
        asked(server, key=OTHER)
    assert asked(server) == b"hello"


def test_a_server_refuses_a_client_without_the_secret():
    client, server = ClientSide(OTHER), ServerSide(KEY)
    server.fed(client.greeting)
    with pytest.raises(AuthenticationError):
        server.fed(bytes(32))
    assert server.channel is None


def test_a_recorded_handshake_and_its_messages_prove_nothing(server):
    """A proxy records what a client sends; the same bytes later get a handshake's answer and no more."""
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
    # One after the other: a proof with a message behind it is refused, whatever it proves.
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
    client, server = shaken()
    first, second = client.sealed(b"first"), client.sealed(b"second")

    with pytest.raises(AuthenticationError):
        list(shaken()[1].opened(first))
    assert list(server.opened(first)) == [b"first"]
    with pytest.raises(AuthenticationError):
        list(server.opened(first))

    client, server = shaken()
    first, second = client.sealed(b"first"), client.sealed(b"second")
    with pytest.raises(AuthenticationError):
        list(server.opened(second))
    client, server = shaken()
    with pytest.raises(AuthenticationError):
        list(server.opened(client.sealed(b"first")[:-1] + b"x"))


def test_a_message_cannot_be_sent_back():
    client, _ = shaken()
    with pytest.raises(AuthenticationError):
        list(client.opened(client.sealed(b"first")))


def test_a_length_beyond_the_limit_is_refused_before_it_has_arrived():
    _, server = shaken()
    with pytest.raises(AuthenticationError):
        list(server.opened(struct.pack("!I", 1 << 31)))


@given(data=st.binary(max_size=300), pieces=st.integers(1, 40))
def test_whatever_arrives_is_a_handshake_or_refused(data, pieces):
    server = ServerSide(KEY)
    try:
        sent = b"".join(server.fed(data[i : i + pieces]) for i in range(0, len(data), pieces))
    except AuthenticationError:
        return
    assert server.channel is None
    assert len(sent) in (0, 64)


@given(data=st.binary(max_size=200))
def test_whatever_arrives_on_a_channel_is_waited_for_or_refused(data):
    channel = Channel(KEY, OTHER, longest=100)
    try:
        assert list(channel.opened(data)) == []
    except AuthenticationError:
        return
    assert len(data) < 4 + 32 + 100


@given(cut=st.integers(0, 90), message=st.binary(max_size=40))
def test_a_message_that_is_cut_off_is_waited_for(cut, message):
    client, server = shaken()
    sealed = client.sealed(message)
    assert list(server.opened(sealed[:cut])) == ([message] if cut >= len(sealed) else [])
    assert list(server.opened(sealed[cut:])) == ([] if cut >= len(sealed) else [message])


@given(message=st.binary(max_size=60))
def test_a_request_is_read_or_refused(message):
    try:
        code, limit_ms, parts = table.unpacked(message)
    except ValueError:
        return
    assert table.packed(code, parts, limit_ms=limit_ms) == message


def test_garbage_closes_its_connection_and_the_server_lives(server):
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, GREETING + bytes(32) + bytes(31) + b"xy"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as peer:
            peer.sendall(data)
            while not ended(peer):
                pass
    assert asked(server) == b"hello"


def test_a_peer_that_drips_is_cut_off_in_time(server):
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as peer:
        with suppress(OSError):  # a pipe that is broken, or a connection reset
            for at in range(100):
                peer.sendall(GREETING[at : at + 1] or b"x")
                time.sleep(0.1)
        assert time.monotonic() - begin < HANDSHAKE_S + 1.5


def test_many_silent_peers_keep_no_one_out(server):
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
        begin = time.monotonic()
        assert asked(server) == b"hello"
        assert time.monotonic() - begin < 1
