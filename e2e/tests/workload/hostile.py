"""Sends malformed bytes from a pod with access to the listeners of pool pods.

hostile.py CONNECTIONS HOST...
Prints one JSON line per attack. Ends when every listener answers a well-formed handshake.
"""
import json
import os
import random
import resource
import socket
import struct
import sys
import time

CONNECTIONS, HOSTS = int(sys.argv[1]), sys.argv[2:]
HANDSHAKE, DATA = 12001, 12002


def frame(body, kind=None):
    head = b"" if kind is None else bytes([kind])
    return struct.pack("<Q", len(head + body)) + head + body


# Bodies that abort stock engines, invalid lengths, and random bytes.
HANDSHAKES = [
    frame(body, kind)
    for kind in (None, 0, 1, 2, 3, 7, 255)
    for body in (b"", b"[]", b'{"qp_num":["x"]}', b'{"local_nic_path":{}}', b'{"name":7,"devices":{}}', b"{", b"[" * 100000, b"\xff" * 64)
] + [struct.pack("<Q", length) for length in (0, 1 << 20, 1 << 40, (1 << 64) - 1)]
HEADERS = [
    struct.pack("<QQB7x", size, address, operation)
    for size in (0, 1, 4096, 1 << 40, (1 << 64) - 1)
    for address in (0, 1 << 58, (1 << 64) - 1, 0x7F0000000000)
    for operation in (0, 1, 0x80, 0x81, 0x42, 0xFF)
]


def send(host, port, content, timeout=0.2):
    try:
        with socket.create_connection((host, port), timeout=5) as peer:
            peer.settimeout(timeout)
            peer.sendall(content)
            return peer.recv(4096)
    except OSError:
        return b""


def answers(host):
    """Whether a well-formed handshake returns a descriptor."""
    body = b'{"name":"client:1","protocol":"tcp","tcp_data_port":1}'
    return b"tcp" in send(host, HANDSHAKE, frame(body, 1), timeout=5)


def many(host, port, count, content):
    """Opens connections with incomplete requests, holds them for 3 s, and returns how many were opened."""
    held = []
    for _ in range(count):
        try:
            peer = socket.create_connection((host, port), timeout=2)
            peer.sendall(content)
            held.append(peer)
        except OSError:
            pass
    time.sleep(3)
    for peer in held:
        peer.close()
    return len(held)


def report(attack, **more):
    print(json.dumps({"attack": attack, "at": time.time(), **more}), flush=True)


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    dice = random.Random(1)
    for host in HOSTS:
        report("handshake before", host=host, answered=answers(host))
        for content in HANDSHAKES:
            send(host, HANDSHAKE, content)
        for content in HEADERS:
            send(host, DATA, content, timeout=0.05)
        for _ in range(50):
            noise = dice.randbytes(dice.randrange(1, 3000))
            send(host, HANDSHAKE, noise, timeout=0.05)
            send(host, DATA, noise, timeout=0.05)
        report("malformed", host=host, answered=answers(host))
        report("half-open data", host=host, opened=many(host, DATA, CONNECTIONS, b"\x00" * 7), of=CONNECTIONS)
        of = CONNECTIONS // 10
        report("half-open handshake", host=host, opened=many(host, HANDSHAKE, of, b"\x08"), of=of)
        until = time.monotonic() + 30
        while not (answered := answers(host)) and time.monotonic() < until:
            time.sleep(0.2)
        report("handshake after", host=host, answered=answered)
    os._exit(0)


main()
