"""Copies and moves objects from one segment of a pool to another; prints each result as a JSON line.

replica_tasks.py FROM TO
After a copy the first replica is removed, so that the value can only be read from the copy.
"""
import hashlib
import json
import os
import sys
import time

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, TaskStatus

FROM, TO = sys.argv[1:]
SIZES = [1, 4097, 1 << 20, (16 << 20) + 3]
DEADLINE = 60


def value(key, size):
    return hashlib.shake_128(key.encode()).digest(size)


def connect():
    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(config.local_hostname, config.metadata_server, config.global_segment_size, 64 << 20,
                       config.protocol, config.device_name or "", config.master_server_address)
    if code != 0:
        sys.exit(f"setup at {config.master_server_address} returned {code}")
    return store


def put(store, key, size):
    wanted = ReplicateConfig()
    wanted.preferred_segment = FROM
    return store.put(key, value(key, size), wanted)


def places(store, key):
    """Endpoints of the object's replicas."""
    replicas = store.get_replica_desc(key)
    return [one.get_memory_descriptor().buffer_descriptor.transport_endpoint for one in replicas]


def ended(store, task):
    """Waits for the end of a task. Returns its status and its message."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        answer, code = store.query_task(task)
        if code != 0:
            return f"error {code}", ""
        if answer.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
            return answer.status.name, answer.message
        time.sleep(0.1)
    return "not ended", ""


def removed(store, key):
    """Removes the replica in FROM, which is possible when the object's lease has ended."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if store.batch_replica_clear([key], FROM) == [key]:
            return True
        time.sleep(0.5)
    return False


def main():
    store = connect()
    for size in SIZES:
        for name in ("copy", "move"):
            key = f"{name}-{size}"
            code = put(store, key, size)
            before = places(store, key)
            if name == "copy":
                task, error = store.create_copy_task(key, [TO])
            else:
                task, error = store.create_move_task(key, FROM, TO)
            status, message = ended(store, task) if error == 0 else (f"error {error}", "")
            between = places(store, key)
            if name == "copy" and status == "SUCCESS":
                status = status if removed(store, key) else "the first replica stays"
            after = places(store, key)
            right = store.get(key) == value(key, size)
            print(json.dumps({"task": name, "size": size, "put": code, "status": status, "message": message, "before": before,
                              "between": between, "after": after, "right": right}), flush=True)
    # Skips the stock client's teardown, which is not tested.
    os._exit(0)


main()
