"""A stock client that puts and gets against named segments in turn, and times both.

throughput.py FILL_BYTES VOLUME_BYTES ROUNDS [VALUE_BYTES,…] SEGMENT,…
First FILL_BYTES are put in each segment and removed, so that its memory has been used: in each, for puts of 64 KiB
in a segment that was filled once are slower by up to a fifth, whosever it is. Then, for each size of value, in ROUNDS
turns and one before that does not count: VOLUME_BYTES put in and got from each segment, every value compared; who is
first changes with each turn. One JSON line for each segment and turn; any failure ends it.
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
        sys.exit(f"setup at {config.master_server_address} answered {code}")
    return store


def turn(store, segment, size, volume):
    """Seconds that the puts took, and the gets."""
    wanted = ReplicateConfig()
    wanted.preferred_segment = segment
    value, keys = os.urandom(size), [f"figure-{number}" for number in range(volume // size)]
    start = time.perf_counter()
    refused = sum(store.put(key, value, wanted) != 0 for key in keys)
    put = time.perf_counter() - start
    if refused:
        sys.exit(f"{refused} of {len(keys)} puts to {segment} were refused")
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
    # The stock client's own teardown is not what is measured.
    sys.stdout.flush()
    os._exit(0)


main()
