"""A stock client that puts and gets until SIGTERM and then verifies every kept key.

load.py PREFIX KEYS BYTES OPERATIONS_PER_SECOND
Puts KEYS keys and keeps them. Then gets kept keys at random, and puts, gets and removes others.
Values are computed from their keys. Prints one JSON line per failure; the last line is the report.
`wrong` counts values with other bytes, `missing` keys that the master no longer knows, `unread` the kept keys that
could not be verified at the end.
"""
import hashlib
import json
import os
import random
import signal
import sys
import time

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore

PREFIX, KEYS, BYTES, RATE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
# Gets of a kept key at the end. More than a stock client has connections to one peer, each of which fails one get.
ATTEMPTS = 10
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))


def value(key):
    return hashlib.shake_128(key.encode()).digest(BYTES)


class Load:
    def __init__(self):
        config = MooncakeConfig.load_from_env()
        self.store = MooncakeDistributedStore()
        code = self.store.setup(
            config.local_hostname,
            config.metadata_server,
            config.global_segment_size,
            config.local_buffer_size,
            config.protocol,
            config.device_name or "",
            config.master_server_address,
        )
        if code != 0:
            sys.exit(f"setup at {config.master_server_address} returned {code}")
        self.counts = dict.fromkeys(("put", "got", "failed", "missing", "wrong", "bytes"), 0)
        self.longest = 0.0
        self.failures = []

    def fail(self, kind, operation, key, detail):
        self.counts[kind] += 1
        line = {"at": round(time.time(), 3), "kind": kind, "operation": operation, "key": key, "detail": detail}
        self.failures = (self.failures + [line])[-40:]
        print(json.dumps(line), flush=True)

    def timed(self, call, *arguments):
        start = time.monotonic()
        answer = call(*arguments)
        self.longest = max(self.longest, time.monotonic() - start)
        return answer

    def put(self, key):
        code = self.timed(self.store.put, key, value(key))
        if code != 0:
            self.fail("failed", "put", key, code)
            return False
        self.counts["put"] += 1
        self.counts["bytes"] += BYTES
        return True

    def get(self, key):
        got = self.timed(self.store.get, key)
        if got == value(key):
            self.counts["got"] += 1
            self.counts["bytes"] += BYTES
            return True
        if got:
            self.fail("wrong", "get", key, f"{len(got)} bytes that differ from the value")
            return False
        known = self.store.is_exist(key)
        self.fail("missing" if known == 0 else "failed", "get", key, f"exists: {known}")
        return False

    def verified(self, key):
        """Whether a kept key has its value. A failed get is counted and repeated: it breaks no key."""
        for _ in range(ATTEMPTS):
            failed = self.counts["failed"]
            if self.get(key):
                return True
            if self.counts["failed"] == failed:
                return False
            time.sleep(0.2)
        return False

    def report(self, **more):
        print(json.dumps({**self.counts, "longest": round(self.longest, 3), "failures": self.failures, **more}), flush=True)


def main():
    load = Load()
    dice = random.Random(PREFIX)
    kept = [f"{PREFIX}-kept-{number}" for number in range(KEYS)]
    for key in kept:
        while not load.put(key) and not ended:
            time.sleep(0.2)
    print("loading", flush=True)
    turn = 0
    started = time.monotonic()
    while not ended:
        key = f"{PREFIX}-{turn}"
        if turn % 4 == 0 and load.put(key):
            load.get(key)
            load.timed(load.store.remove, key, True)
        else:
            load.get(dice.choice(kept))
        turn += 1
        time.sleep(max(0.0, started + turn / RATE - time.monotonic()))
        # No burst after a long stall.
        started = max(started, time.monotonic() - (turn + 1) / RATE)
    unread = [key for key in kept if not load.verified(key)]
    load.report(kept=len(kept), unread=len(unread), turns=turn)
    # Skips the stock client's teardown, which is not tested.
    os._exit(0)


main()
