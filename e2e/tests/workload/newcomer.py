"""Connects to the listeners of pool pods again and again, as pods do that start during an attack.

newcomer.py HOST...
Prints one JSON line per round until it is ended: whether each host answered a well-formed handshake, and the longest time.
"""
import json
import socket
import struct
import sys
import time

BODY = b'\x01{"name":"client:1","protocol":"tcp","tcp_data_port":1}'


def answers(host):
    """Whether a new connection gets a descriptor within 5 s."""
    try:
        with socket.create_connection((host, 12001), timeout=5) as peer:
            peer.sendall(struct.pack("<Q", len(BODY)) + BODY)
            return b"tcp" in peer.recv(4096)
    except OSError:
        return False


while True:
    at, answered, longest = time.time(), True, 0.0
    for host in sys.argv[1:]:
        start = time.monotonic()
        answered &= answers(host)
        longest = max(longest, time.monotonic() - start)
    print(json.dumps({"newcomer": answered, "at": at, "seconds": round(longest, 3)}), flush=True)
    time.sleep(0.2)
