"""Tries to read and write from a pod without access; prints each result as JSON.

reach.py KEY ADDRESS HOST... [https://HOST:PORT/metrics | http://...]
KEY is in the pool; ADDRESS is a wire address of a segment, in hexadecimal. Each HOST is a pool pod.
Sends a handshake, and a read of 4 KiB in both protocol versions and a write, to each host; reads each URL without a
token and with an invalid one; then gets and puts with a stock client.
"""
import json
import os
import socket
import ssl
import struct
import sys
import urllib.error
import urllib.request

KEY, ADDRESS = sys.argv[1], int(sys.argv[2], 16)
HOSTS = [word for word in sys.argv[3:] if "://" not in word]
METRICS = [word for word in sys.argv[3:] if "://" in word]
METADATA = b'{"name":"client:1","protocol":"tcp","tcp_data_port":1}'
REQUESTS = {
    "handshake": (12001, struct.pack("<Q", len(METADATA) + 1) + b"\x01" + METADATA),
    "read v1": (12002, struct.pack("<QQB7x", 4096, ADDRESS, 0)),
    "read v2": (12002, struct.pack("<QQB7x", 4096, ADDRESS, 0x80)),
    "write v2": (12002, struct.pack("<QQB7x", 4096, ADDRESS, 0x81) + b"X" * 4096),
}


def send(host, port, request):
    """Number of bytes received, and how the connection ended."""
    got = 0
    try:
        with socket.create_connection((host, port), timeout=5) as peer:
            peer.sendall(request)
            while piece := peer.recv(65536):
                got += len(piece)
        return got, "closed"
    except OSError as error:
        return got, type(error).__name__


def read(url, headers):
    """Number of bytes received, and the HTTP status."""
    unverified = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10, context=unverified) as answer:
            return len(answer.read()), answer.status
    except urllib.error.HTTPError as refusal:
        return len(refusal.read()), refusal.code
    except OSError as error:
        return 0, type(error).__name__


def stock():
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(os.environ["POD_IP"], "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", os.environ["MOONCAKE_MASTER"])
    if code != 0:
        return {"master": f"rejected with {code}", "read": 0, "written": False}
    return {"master": "open (closed by NetworkPolicy where that is enforced)",
            "read": len(store.get(KEY)), "written": store.put(f"{KEY}-foreign", b"foreign" * 1000) == 0}


def main():
    for host in HOSTS:
        for name, (port, request) in REQUESTS.items():
            got, end = send(host, port, request)
            print(json.dumps({"attempt": name, "host": host, "read": got, "end": end}), flush=True)
    for url in METRICS:
        for name, headers in {"none": {}, "invalid": {"Authorization": "Bearer e30.e30.e30"}}.items():
            got, end = read(url, headers)
            print(json.dumps({"attempt": f"metrics, token {name}", "host": url, "read": got, "end": end}), flush=True)
    print(json.dumps({"attempt": "stock", "at": os.environ["MOONCAKE_MASTER"], **stock()}), flush=True)
    os._exit(0)


main()
