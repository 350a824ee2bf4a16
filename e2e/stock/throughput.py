"""A stock client that times puts and gets on named segments in turn.

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

FILL, VOLUME, ROUNDS = (int(word) for word in sys.argv[1:4])
SIZES = [int(word) for word in sys.argv[4].split(",") if word]
SEGMENTS = sys.argv[5].split(",")
FILL_VALUE = 4 << 20


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
        sys.exit(f"setup at {config.master_server_address} returned {code}")
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
        sys.exit(f"{refused} of {len(keys)} puts to {segment} failed")
    start = time.perf_counter()
    wrong = sum(store.get(key) != value for key in keys)
    get = time.perf_counter() - start
    if wrong:
        sys.exit(f"{wrong} of {len(keys)} values of {segment} came back wrong")
    removed = store.remove_by_regex("^figure-", True)
    if removed != len(keys):
        sys.exit(f"{removed} of {len(keys)} keys were removed")
    return put, get


def main():
    store = connect()
    for segment in SEGMENTS:
        turn(store, segment, FILL_VALUE, FILL)
    for size in SIZES:
        for number in range(ROUNDS + 1):
            for segment in SEGMENTS if number % 2 else reversed(SEGMENTS):
                put, get = turn(store, segment, size, VOLUME)
                if number > 0:
                    line = {"segment": segment, "value": size, "bytes": VOLUME // size * size, "put": put, "get": get}
                    print(json.dumps(line), flush=True)
    # Skips the stock client's teardown, which is not measured.
    sys.stdout.flush()
    os._exit(0)


main()
