"""A stock client that times puts and gets on named segments in turn, or, run by command_server.py, one turn for each command.

throughput.py FILL_BYTES VOLUME_BYTES ROUNDS [VALUE_BYTES,…] SEGMENT,…
First puts and removes FILL_BYTES in each segment, because puts of 64 KiB are up to a fifth slower in a segment that was
full once. Then, for each value size, ROUNDS rounds after one that does not count: puts VOLUME_BYTES to each segment and
gets and compares them; the first segment changes with each round. One JSON line per segment and round; any failure
ends the run.
"""
import json
import os
import sys
import time

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

FILL_VALUE = 4 << 20
CLIENT = {}


def connect():
    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(
        config.local_hostname,
        config.metadata_server,
        config.global_segment_size,
        64 << 20,
        config.protocol,
        config.device_name or "",
        config.master_server_address,
    )
    if code != 0:
        raise RuntimeError(f"setup at {config.master_server_address} returned {code}")
    return store


def turn(store, segment, size, volume):
    """Seconds of all puts, and of all gets."""
    wanted = ReplicateConfig()
    wanted.preferred_segment = segment
    value, keys = os.urandom(size), [f"figure-{number}" for number in range(volume // size)]
    start = time.perf_counter()
    refused = sum(store.put(key, value, wanted) != 0 for key in keys)
    put = time.perf_counter() - start
    if refused:
        raise RuntimeError(f"{refused} of {len(keys)} puts to {segment or 'the only segment'} failed")
    start = time.perf_counter()
    wrong = sum(store.get(key) != value for key in keys)
    get = time.perf_counter() - start
    if wrong:
        raise RuntimeError(f"{wrong} of {len(keys)} values of {segment or 'the only segment'} came back wrong")
    removed = store.remove_by_regex("^figure-", True)
    if removed != len(keys):
        raise RuntimeError(f"{removed} of {len(keys)} keys were removed")
    return put, get


def one(size, volume):
    """Seconds of a turn on the only segment of the cluster."""
    if not CLIENT:
        CLIENT["store"] = connect()
    put, get = turn(CLIENT["store"], "", size, volume)
    return {"put": put, "get": get}


COMMANDS = {"turn": one}


def main():
    fill, volume, rounds = (int(word) for word in sys.argv[1:4])
    sizes = [int(word) for word in sys.argv[4].split(",") if word]
    segments = sys.argv[5].split(",")
    store = connect()
    for segment in segments:
        turn(store, segment, FILL_VALUE, fill)
    for size in sizes:
        for number in range(rounds + 1):
            for segment in segments if number % 2 else reversed(segments):
                put, get = turn(store, segment, size, volume)
                if number > 0:
                    line = {"segment": segment, "value": size, "bytes": volume // size * size, "put": put, "get": get}
                    print(json.dumps(line), flush=True)
    # Skips the stock client's teardown, which is not measured.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
