"""A stock Mooncake client that puts, verifies, or both in a loop; values are computed from their keys.

driver.py put|verify|load KEYS BYTES PREFIX [SECONDS]
Reads the variables of the stock wheel: MOONCAKE_MASTER, MOONCAKE_LOCAL_HOSTNAME, MOONCAKE_PROTOCOL (or MOONCAKE_CONFIG_PATH),
MOONCAKE_TE_META_DATA_SERVER, MOONCAKE_GLOBAL_SEGMENT_SIZE. The last line of output is its report, as JSON.
"""
import collections
import hashlib
import json
import os
import signal
import sys
import time

from mooncake.store import MooncakeDistributedStore


# The stock error for an unknown key; a master that lost its index returns it.
NOT_FOUND = -704


def value(key, size):
    return hashlib.shake_128(key.encode()).digest(size)


def protocol():
    """The transport in the configuration file of an injected pod."""
    path = os.environ.get("MOONCAKE_CONFIG_PATH")
    if path is None:
        return "tcp"
    with open(path) as file:
        return json.load(file)["protocol"]


def connect(size):
    store = MooncakeDistributedStore()
    setting = os.environ.get
    code = store.setup(
        setting("MOONCAKE_LOCAL_HOSTNAME") or os.environ["POD_IP"],
        setting("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE"),
        int(setting("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0")),
        max(64 << 20, 4 * size),
        setting("MOONCAKE_PROTOCOL") or protocol(),
        "",
        os.environ["MOONCAKE_MASTER"],
    )
    if code != 0:
        print(json.dumps({"setup": code}), flush=True)
        sys.exit(1)
    return store


class Report:
    def __init__(self):
        self.counts = {"done": 0, "failed": 0, "wrong": 0, "bytes": 0}
        self.failures = []
        self.inside = 0.0

    def fail(self, kind, operation, key, detail):
        self.counts[kind] += 1
        if len(self.failures) < 50:
            line = {"at": round(time.time(), 3), "operation": operation, "key": key, "detail": detail}
            self.failures.append(line)
            print(json.dumps(line), flush=True)
        return False

    def operate(self, store, operation, key, size):
        want = value(key, size)
        start = time.monotonic()
        if operation == "put":
            code = store.put(key, want)
            self.inside += time.monotonic() - start
            if code != 0:
                return self.fail("failed", operation, key, code)
        else:
            got = store.get(key)
            self.inside += time.monotonic() - start
            if len(got) == 0 and size > 0:
                return self.fail("failed", operation, key, "empty")
            if got != want:
                return self.fail("wrong", operation, key, f"{len(got)} bytes that differ from the value")
        self.counts["done"] += 1
        self.counts["bytes"] += size
        return True

    def close(self):
        report = {**self.counts, "seconds": round(self.inside, 6), "failures": self.failures}
        print(json.dumps(report), flush=True)


def main():
    operation, keys, size, prefix = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    store, report = connect(size), Report()
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    if operation == "load":
        until, turn, held = time.monotonic() + float(sys.argv[5]), 0, collections.deque()
        print("loading", flush=True)
        while not ended and time.monotonic() < until:
            if len(held) < keys:
                key = f"{prefix}{turn}"
                turn += 1
                if report.operate(store, "put", key, size):
                    held.append(key)
                    report.operate(store, "verify", key, size)
            elif store.remove(held[0]) in (0, NOT_FOUND):
                held.popleft()
            else:
                # Its lease is still valid: read another key meanwhile.
                report.operate(store, "verify", held[-1], size)
    else:
        for number in range(keys):
            report.operate(store, operation, f"{prefix}{number}", size)
    report.close()
    # Skips the stock client's teardown, which is not tested.
    os._exit(0)


main()
