"""A stock client that lives through a change of masters; run by command_server.py."""
import hashlib
import time

SIZE = 1 << 20
CLIENT = {}


def value(key):
    return hashlib.shake_128(key.encode()).digest(SIZE)


def connect():
    from mooncake.mooncake_config import MooncakeConfig
    from mooncake.store import MooncakeDistributedStore

    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(config.local_hostname, config.metadata_server, config.global_segment_size, 64 << 20,
                       config.protocol, config.device_name or "", config.master_server_address)
    assert code == 0, f"setup at {config.master_server_address} answered {code}"
    return store


def store():
    if not CLIENT:
        CLIENT["store"] = connect()
    return CLIENT["store"]


def put(prefix, keys):
    """Puts keys, and returns how many were put."""
    return sum(store().put(f"{prefix}-{number}", value(f"{prefix}-{number}")) == 0 for number in range(keys))


def fill(prefix, keys):
    """Puts keys that are never evicted, and gets each. Returns how many puts found no space."""
    from mooncake.store import ReplicateConfig

    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    refused = 0
    for number in range(keys):
        key = f"{prefix}-{number}"
        refused += store().put(key, value(key), pinned) != 0
        store().get(key)
    return refused


def back(prefix, suffix, seconds):
    """Puts and gets until both work, and returns the seconds until each did."""
    begun, found = time.monotonic(), {}
    attempt = 0
    while time.monotonic() < begun + seconds and len(found) < 2:
        attempt += 1
        if "put" not in found and store().put(f"again-{suffix}-{attempt}", value("again")) == 0:
            found["put"] = round(time.monotonic() - begun, 2)
        if "get" not in found and store().get(f"{prefix}-0") == value(f"{prefix}-0"):
            found["get"] = round(time.monotonic() - begun, 2)
        time.sleep(0.05)
    return found


def verify(prefix, keys):
    """Compares all values, and counts the results."""
    found = {"right": 0, "missing": 0, "wrong": 0}
    for number in range(keys):
        key = f"{prefix}-{number}"
        got = store().get(key)
        found["right" if got == value(key) else "missing" if not got else "wrong"] += 1
    return found


COMMANDS = {command.__name__: command for command in (put, fill, back, verify)}
