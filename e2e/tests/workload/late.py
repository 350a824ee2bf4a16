"""A stock client stopped in the middle of a transfer, and continued when the world is another.

late.py catch KEY BYTES    starts a put and a get of BYTES, each in a process of its own, and stops both inside
late.py continue           lets both go on, and prints what each came to, as JSON
"""
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

FOLDER = "/tmp/late"


def value(key, size):
    return hashlib.shake_128(key.encode()).digest(size)


def connect(size):
    from mooncake.mooncake_config import MooncakeConfig
    from mooncake.store import MooncakeDistributedStore

    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(config.local_hostname, config.metadata_server, config.global_segment_size, 2 * size,
                       config.protocol, config.device_name or "", config.master_server_address)
    if code != 0:
        sys.exit(f"setup at {config.master_server_address} answered {code}")
    return store


def write(name, content):
    """Whole or not at all."""
    with open(f"{FOLDER}/{name}.new", "w") as file:
        file.write(content)
    os.rename(f"{FOLDER}/{name}.new", f"{FOLDER}/{name}")


def read(name):
    try:
        with open(f"{FOLDER}/{name}") as file:
            return file.read()
    except FileNotFoundError:
        return None


def child(operation, key, size):
    store, want = connect(size), value(key, size)
    if operation == "get":
        code = store.put(key, want)
        if code != 0:
            sys.exit(f"put of {key} answered {code}")
    write(f"{operation}.begun", "")
    if operation == "get":
        got = store.get(key)
        outcome = "right" if got == want else ("refused" if not got else "wrong")
    else:
        code = store.put(key, want)
        outcome = "put" if code == 0 else f"refused {code}"
    write(f"{operation}.ended", outcome)
    os._exit(0)


def wait(what, done, seconds):
    until = time.monotonic() + seconds
    while True:
        found = done()
        if found is not None:
            return found
        if time.monotonic() > until:
            sys.exit(f"{what}: not in {seconds} s")
        time.sleep(0.0005)


def catch(operation, key, size):
    for attempt in range(20):
        for name in (f"{operation}.begun", f"{operation}.ended"):
            if os.path.exists(f"{FOLDER}/{name}"):
                os.remove(f"{FOLDER}/{name}")
        this = f"{key}-{operation}-{attempt}"
        command = [sys.executable, "-c", os.environ["LATE"], "child", operation, this, str(size)]
        # It outlives us, so it must not hold what our caller waits to be closed.
        with open(f"{FOLDER}/{operation}.log", "a") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait(f"{operation} to begin", lambda: read(f"{operation}.begun"), 90)
        time.sleep(random.uniform(0.005, 0.06))
        process.send_signal(signal.SIGSTOP)
        if read(f"{operation}.ended") is None:
            write(f"{operation}.pid", str(process.pid))
            return attempt
        process.kill()
    sys.exit(f"no {operation} of {size} bytes was caught inside")


def main():
    os.makedirs(FOLDER, exist_ok=True)
    if sys.argv[1] == "child":
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1] == "catch":
        tries = {operation: catch(operation, sys.argv[2], int(sys.argv[3])) for operation in ("put", "get")}
        print(json.dumps({"tries": tries}))
    else:
        for operation in ("put", "get"):
            os.kill(int(read(f"{operation}.pid")), signal.SIGCONT)
        outcome = {operation: wait(f"{operation} to end", lambda: read(f"{operation}.ended"), 120)
                   for operation in ("put", "get")}
        print(json.dumps(outcome))


main()
