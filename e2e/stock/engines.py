"""Stock transfer engines of two pods, which find each other by the metadata service that injection has set. Usage:

    engines.py serve                 registers memory, prints its name and address as JSON, and keeps it
    engines.py exchange NAME ADDRESS reads that memory, writes other bytes, reads them back, and compares each byte
"""

import ctypes
import json
import os
import sys
import time

from mooncake.engine import TransferEngine

SIZE = 1 << 20
PORT = 17000
SERVICE = os.environ["MOONCAKE_TE_META_DATA_SERVER"]


def pattern(seed):
    return bytes((seed + at) % 251 for at in range(SIZE))


address = os.environ["POD_IP"]
host = f"[{address}]" if ":" in address else address
engine = TransferEngine()
name = host if SERVICE == "P2PHANDSHAKE" else f"{host}:{PORT}"
if engine.initialize(name, SERVICE, "tcp", "") != 0:
    raise SystemExit(f"the engine does not start with {SERVICE}")
if SERVICE == "P2PHANDSHAKE":
    name = f"{host}:{engine.get_rpc_port()}"
memory = (ctypes.c_ubyte * SIZE)()
local = ctypes.addressof(memory)
if engine.register_memory(local, SIZE) != 0:
    raise SystemExit("the memory is not registered")


def moved(transfer, peer, remote):
    if transfer(peer, local, remote, SIZE) != 0:
        raise SystemExit(f"{transfer.__name__} with {peer} failed")


if sys.argv[1] == "serve":
    memory[:] = pattern(3)
    print(json.dumps({"name": name, "address": local}), flush=True)
    while True:
        time.sleep(3600)
peer, remote = sys.argv[2], int(sys.argv[3])
moved(engine.transfer_sync_read, peer, remote)
if bytes(memory) != pattern(3):
    raise SystemExit("the bytes of the other engine differ")
memory[:] = pattern(7)
moved(engine.transfer_sync_write, peer, remote)
memory[:] = bytes(SIZE)
moved(engine.transfer_sync_read, peer, remote)
if bytes(memory) != pattern(7):
    raise SystemExit("the bytes that were written differ")
print(f"{name} exchanged {SIZE} bytes with {peer} by {SERVICE}")
