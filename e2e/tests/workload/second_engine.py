"""An injected stock store, then two further Transfer Engines of the same process, one of which writes to the other.

Prints, as JSON, the transports that the store and one of the engines installed, by the source files that log them, and
whether the bytes of each arrived.
"""
import contextlib
import ctypes
import json
import os
import re
import sys
import tempfile

from mooncake.engine import TransferEngine
from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore

SIZE = 1 << 20


@contextlib.contextmanager
def transports(found):
    """Adds the transports that log on the standard error meanwhile."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            log.seek(0)
            text = log.read().decode(errors="replace")
    print(text, flush=True)
    found.update(re.findall(r" (tcp|rdma)_(?:transport|context|endpoint)\.cpp:", text))


def store(found):
    config = MooncakeConfig.load_from_env()
    made = MooncakeDistributedStore()
    with transports(found):
        code = made.setup(config.local_hostname, config.metadata_server, config.global_segment_size,
                          config.local_buffer_size, config.protocol, config.device_name or "",
                          config.master_server_address)
    if code != 0:
        sys.exit(f"setup at {config.master_server_address} returned {code}")
    return made


def engine(found, memory):
    made = TransferEngine()
    with transports(found):
        code = made.initialize(os.environ["MOONCAKE_LOCAL_HOSTNAME"], "P2PHANDSHAKE", "rdma", "")
    if code != 0:
        sys.exit(f"initialize returned {code}")
    # With its first managed buffer an engine takes 2 GiB and registers them, which RDMA makes resident.
    if made.register_memory(ctypes.addressof(memory), SIZE) != 0:
        sys.exit("the memory is not registered")
    return made


def main():
    by_store, by_engine, value = set(), set(), os.urandom(SIZE)
    pool = store(by_store)
    source, target = ctypes.create_string_buffer(value, SIZE), ctypes.create_string_buffer(SIZE)
    sender, receiver = engine(by_engine, source), engine(set(), target)
    peer = f"{os.environ['MOONCAKE_LOCAL_HOSTNAME']}:{receiver.get_rpc_port()}"
    code = sender.transfer_sync_write(peer, ctypes.addressof(source), ctypes.addressof(target), SIZE)
    print(json.dumps({
        "store": sorted(by_store),
        "engine": sorted(by_engine),
        "stored": pool.put("second-engine", value) == 0 and pool.get("second-engine") == value,
        "transferred": code == 0 and target.raw == value,
    }), flush=True)
    # Skips the stock teardown, which is not tested.
    os._exit(0)


main()
