"""Records the messages of ranks from the packets on one network device: run by root on the switch.

It needs only Python, the device's name and the addresses of the ranks. Each line of JSON that it prints has
the content of one TCP packet of a client: where it went, the stream that it belongs to, and its bytes. Large
packets are data and are left out; a stream ends with the first packet that is missing.
"""

import ctypes
import json
import socket
import struct
import sys

ETH_IP, ETH_ALL = 0x0800, 0x0003
SMALLEST, LARGEST = 41, 1000
"""Bytes of the packets that are kept, with their IP header."""
MOST = 4096
"""Bytes of a stream that are kept."""
SO_ATTACH_FILTER = 26
SYN, ACK = 0x02, 0x10


def small_packets_of(device: str) -> socket.socket:
    """Return a socket that receives a device's small IP packets; the kernel drops the others."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_ALL))
    load_half, jump_equal, jump_greater, jump_least, end = 0x28, 0x15, 0x25, 0x35, 0x06
    steps = [
        (load_half, 0, 0, 12),
        (jump_equal, 0, 4, ETH_IP),
        (load_half, 0, 0, 16),
        (jump_greater, 2, 0, LARGEST),
        (jump_least, 0, 1, SMALLEST),
        (end, 0, 0, 0xFFFFFFFF),
        (end, 0, 0, 0),
    ]
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(program, len(program))
    packets.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(steps), ctypes.addressof(buffer))
    )
    packets.bind((device, 0))
    return packets


def parsed(packet: bytes) -> tuple[tuple[str, int], tuple[str, int], int, int, bytes]:
    """Return source, destination, sequence number, flags and content of a packet of TCP."""
    begin = 14 + 4 * (packet[14] & 0x0F)
    (length,) = struct.unpack_from("!H", packet, 16)
    source, target, number = struct.unpack_from("!HHI", packet, begin)
    content = packet[begin + 4 * (packet[begin + 12] >> 4) : 14 + length]
    hosts = socket.inet_ntoa(packet[26:30]), socket.inet_ntoa(packet[30:34])
    return (hosts[0], source), (hosts[1], target), number, packet[begin + 13], content


def main() -> None:
    device, *ranks = sys.argv[1:]
    packets = small_packets_of(device)
    print("ready", file=sys.stderr, flush=True)
    due: dict[tuple[object, object], tuple[int, int]] = {}
    """By stream of a client: the number of its next byte, and that of its first one."""
    while packet := packets.recv(65536):
        if packet[23] != socket.IPPROTO_TCP:
            continue
        source, target, number, flags, content = parsed(packet)
        stream = source, target
        if {source[0], target[0]} - set(ranks):
            continue
        if flags & (SYN | ACK) == SYN:
            due[stream] = number + 1, number + 1
        at, first = due.get(stream, (None, 0))
        if content and at == number and at - first < MOST:
            due[stream] = at + len(content), first
            line = {"stream": f"{stream}@{first}", "to": target, "data": content.hex()}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
