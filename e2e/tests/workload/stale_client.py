"""Stock clients that use state of an earlier epoch of a master or a pool pod; run by command_server.py.

Two cases. A process is paused (SIGSTOP) during a transfer: `begin`, `stop`, `go_on`, `end`. Or replica lists of an
earlier epoch are used: `hold` keeps them in get and put sessions of a stock client and in a stock Transfer Engine,
`use` uses them. `fill` and `verify` write and check the data of the new epoch.
"""
import ctypes
import hashlib
import multiprocessing
import os
import random
import re
import signal
import subprocess
import time

SIZE = 64 << 20
PIECE = 4 << 20
HELD = 1 << 20
DATA_PORT = 12002


def value(key, size):
    return hashlib.shake_128(key.encode()).digest(size)


def connect(buffer):
    from mooncake.mooncake_config import MooncakeConfig
    from mooncake.store import MooncakeDistributedStore

    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(config.local_hostname, config.metadata_server, config.global_segment_size, buffer,
                       config.protocol, config.device_name or "", config.master_server_address)
    assert code == 0, f"setup at {config.master_server_address} answered {code}"
    return store


def preferring(segment):
    from mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.preferred_segments = [segment]
    return config


class Child:
    """A stock client in a process of its own, which can be paused."""

    def __init__(self):
        self.pipe, theirs = multiprocessing.Pipe()
        self.inside = multiprocessing.Value("b", 0)
        self.process = multiprocessing.Process(target=self.work, args=(theirs,), daemon=True)
        self.process.start()
        assert self.answer(60) == "connected"

    def work(self, pipe):
        store = connect(SIZE + (16 << 20))
        pipe.send("connected")
        while True:
            operation, key = pipe.recv()
            wanted = value(key, SIZE)
            self.inside.value = 1
            if operation == "put":
                code = store.put(key, wanted)
                self.inside.value = 0
                pipe.send("right" if code == 0 else f"error {code}")
            elif operation == "remove":
                self.inside.value = 0
                pipe.send("right" if store.remove(key, True) == 0 else "error")
            else:
                got = store.get(key)
                self.inside.value = 0
                pipe.send("right" if got == wanted else "error" if not got else f"wrong: {len(got)} bytes")

    def answer(self, timeout):
        assert self.pipe.poll(timeout), "a stock client did not answer in time"
        return self.pipe.recv()

    def run(self, operation, key):
        self.pipe.send((operation, key))
        return self.answer(60)

    def moved(self, operation):
        """Payload bytes of this process's data connections, as counted by the kernel."""
        table = subprocess.run(["ss", "-tinpHO", f"dport = :{DATA_PORT}"], capture_output=True, text=True, check=True)
        field = "bytes_acked" if operation == "put" else "bytes_received"
        lines = [line for line in table.stdout.splitlines() if f"pid={self.process.pid}," in line]
        return sum(int(count) for line in lines for count in re.findall(rf"{field}:(\d+)", line))

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop_inside(self, operation, key):
        """Starts a transfer, pauses the process during it, and returns the bytes moved so far, or None if it had ended."""
        before = self.moved(operation)
        self.pipe.send((operation, key))
        until = time.monotonic() + 30
        while time.monotonic() < until and not self.pipe.poll(0):
            if self.moved(operation) - before > 0:
                time.sleep(random.uniform(0, 0.02))
                self.signal(signal.SIGSTOP)
                break
        # Bytes that the kernel has accepted still move.
        last, settled = -1, self.moved(operation)
        while last != settled:
            time.sleep(0.2)
            last, settled = settled, self.moved(operation)
        if self.inside.value and 0 < settled - before < SIZE:
            return settled - before
        # Too late: all bytes had moved.
        self.signal(signal.SIGCONT)
        assert self.answer(60) == "right"
        return None

    def end(self):
        self.signal(signal.SIGKILL)
        self.process.join(10)


CHILDREN = {}
OLD = "old"


def begin():
    CHILDREN.update(put=Child(), get=Child())
    assert CHILDREN["put"].run("put", OLD) == "right"
    # On a busy machine a get can take longer than its lease.
    for _ in range(5):
        got = CHILDREN["get"].run("get", OLD)
        if got != "error":
            break
    assert got == "right", got


def stop():
    """Pauses both during a transfer and returns the bytes that each had moved."""
    answer = {}
    for operation, child in CHILDREN.items():
        for attempt in range(20):
            key = OLD if operation == "get" else f"late-{attempt}"
            moved = child.stop_inside(operation, key)
            if moved:
                answer[operation] = moved
                break
            if operation == "put":
                child.run("remove", key)
    return answer


def go_on():
    for child in CHILDREN.values():
        child.signal(signal.SIGCONT)
    return {operation: child.answer(120) for operation, child in CHILDREN.items()}


def end():
    for child in CHILDREN.values():
        child.end()
    CHILDREN.clear()


class Held:
    """Replica lists of objects on one segment, with a stock client and a stock Transfer Engine that use them."""

    def __init__(self, epoch, segment, keys):
        from mooncake.engine import TransferEngine

        self.keys = [f"{epoch}-held-{number}" for number in range(keys)]
        self.open = [f"{epoch}-open-{number}" for number in range(keys)]
        self.store = connect(64 << 20)
        self.memory = ctypes.create_string_buffer(HELD)
        self.at = ctypes.addressof(self.memory)
        assert self.store.register_buffer(self.at, HELD) == 0
        for key in self.keys:
            assert self.store.put(key, value(key, HELD), preferring(segment)) == 0
        self.places = []
        for key in self.keys:
            (replica,) = self.store.get_replica_desc(key)
            place = replica.get_memory_descriptor().buffer_descriptor
            self.places.append((place.transport_endpoint, place.buffer_address))
        assert all(code == 0 for code in self.store.batch_put_session_start(
            self.open, [HELD] * keys, preferring(segment)))
        self.engine = TransferEngine()
        assert self.engine.initialize(os.environ["POD_IP"], "P2PHANDSHAKE", "tcp", "") == 0
        self.own = ctypes.create_string_buffer(HELD)
        self.own_at = ctypes.addressof(self.own)
        assert self.engine.register_memory(self.own_at, HELD) == 0

    def renew(self):
        """Starts the get sessions, as late as possible because their leases last seconds."""
        return self.store.batch_get_session_start(self.keys)

    def use(self):
        """Uses all replica lists; returns how many calls of each kind succeeded and how many bytes were read."""
        worked = dict.fromkeys(("engine read", "engine write", "session read", "session write", "bytes"), 0)
        ctypes.memset(self.own_at, 0xA5, HELD)
        for endpoint, address in self.places:
            worked["engine read"] += self.engine.transfer_sync_read(endpoint, self.own_at, address, HELD) == 0
            worked["bytes"] += HELD - self.own.raw.count(b"\xa5")
        ctypes.memset(self.own_at, 0x5A, HELD)
        for endpoint, address in self.places:
            worked["engine write"] += self.engine.transfer_sync_write(endpoint, self.own_at, address, HELD) == 0
        ctypes.memset(self.at, 0xA5, HELD)
        for key in self.keys:
            (code,) = self.store.batch_get_into_multi_buffer_ranges([key], [[self.at]], [[HELD]], [[0]])
            worked["session read"] += code > 0
            worked["bytes"] += HELD - self.memory.raw.count(b"\xa5")
        ctypes.memset(self.at, 0x5A, HELD)
        for key in self.open:
            (code,) = self.store.batch_put_from_multi_buffer_ranges([key], [[self.at]], [[HELD]], [[0]])
            worked["session write"] += code >= 0
        return worked


HOLDERS = {}


def hold(epoch, segment, keys):
    holder = HOLDERS[epoch] = Held(epoch, segment, keys)
    return sorted({endpoint for endpoint, _ in holder.places})


def renew(epoch):
    return HOLDERS[epoch].renew()


def use(epoch):
    return HOLDERS[epoch].use()


FILLED = {}


def fill(epoch, bytes, segment=None):
    """Puts values of this many bytes in all."""
    store = FILLED["store"] = connect(64 << 20)
    FILLED["keys"] = [f"{epoch}-{number}" for number in range(bytes // PIECE)]
    arguments = [preferring(segment)] if segment else []
    for key in FILLED["keys"]:
        code = store.put(key, value(key, PIECE), *arguments)
        assert code == 0, f"put of {key} answered {code}"
    return len(FILLED["keys"])


def verify():
    """Compares all values, counts the results and removes the values."""
    store = FILLED.pop("store")
    found = {"right": 0, "missing": 0, "wrong": 0}
    for key in FILLED["keys"]:
        got = store.get(key)
        found["right" if got == value(key, PIECE) else "missing" if not got else "wrong"] += 1
    store.remove_all(True)
    store.close()
    return found


COMMANDS = {command.__name__: command for command in (begin, stop, go_on, end, hold, renew, use, fill, verify)}
