"""An admitted peer that has gone mad, against the listeners of pool pods.

hostile.py CONNECTIONS HOST...
Prints one JSON line for each attack; ends when all listeners still answer an honest handshake.
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


# Bodies that end stock engines, lengths that no honest peer sends, and noise.
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


def throw(host, port, content, patience=0.2):
    try:
        with socket.create_connection((host, port), timeout=5) as peer:
            peer.settimeout(patience)
            peer.sendall(content)
            return peer.recv(4096)
    except OSError:
        return b""


def honest(host):
    """A descriptor comes back."""
    body = b'{"name":"honest:1","protocol":"tcp","tcp_data_port":1}'
    return b"tcp" in throw(host, HANDSHAKE, frame(body, 1), patience=5)


def many(host, port, count, content):
    """Opens many connections that stay half open; answers how many the kernel gave."""
    held = []
    for _ in range(count):
        try:
            peer = socket.create_connection((host, port), timeout=2)
            peer.sendall(content)
            held.append(peer)
        except OSError:
            pass
    opened = len(held)
    answered = honest(host)
    for peer in held:
        peer.close()
    return opened, answered


def say(attack, **more):
    print(json.dumps({"attack": attack, **more}), flush=True)


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    dice = random.Random(1)
    for host in HOSTS:
        say("honest before", host=host, answered=honest(host))
        for content in HANDSHAKES:
            throw(host, HANDSHAKE, content)
        for content in HEADERS:
            throw(host, DATA, content, patience=0.05)
        for _ in range(50):
            noise = dice.randbytes(dice.randrange(1, 3000))
            throw(host, HANDSHAKE, noise, patience=0.05)
            throw(host, DATA, noise, patience=0.05)
        say("malformed", host=host, answered=honest(host))
        opened, answered = many(host, DATA, CONNECTIONS, b"\x00" * 7)
        say("half-open data", host=host, opened=opened)
        opened, answered = many(host, HANDSHAKE, CONNECTIONS // 10, b"\x08")
        say("half-open handshake", host=host, opened=opened)
        until = time.monotonic() + 30
        while not (answered := honest(host)) and time.monotonic() < until:
            time.sleep(0.2)
        say("honest after", host=host, answered=answered)
    os._exit(0)


main()
