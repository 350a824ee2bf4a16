"""Names and contents of the demo's objects, shared by its two stock pods."""

import json
import os
import random
import time

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore

# So many have space in one pool pod.
COUNT = int(os.environ["DEMO_OBJECTS"])
SIZE = 1 << 20


def key(number):
    return f"demo-{number:04}"


def value(number):
    return random.Random(number).randbytes(SIZE)


def connect():
    """A stock store with the settings that the webhook set in the environment."""
    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(
        config.local_hostname,
        config.metadata_server,
        config.global_segment_size,
        config.local_buffer_size,
        config.protocol,
        config.device_name or "",
        config.master_server_address,
    )
    if code != 0:
        raise SystemExit(f"setup at master {config.master_server_address} failed: {code}")
    return store


class Clock:
    """Measures the seconds inside `with`, without the time to create and compare contents."""

    seconds = 0.0

    def __enter__(self):
        self.started = time.perf_counter()

    def __exit__(self, *_):
        self.seconds += time.perf_counter() - self.started


def report(clock):
    print(json.dumps({"keys": COUNT, "bytes": COUNT * SIZE, "seconds": clock.seconds}), flush=True)
