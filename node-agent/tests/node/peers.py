"""A stock client that obeys lines on its standard input and answers each with one line of JSON."""

import hashlib
import json
import sys
import urllib.request

from mooncake.store import MooncakeDistributedStore


def value(key, size):
    seed = hashlib.sha256(key.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def main():
    host, master, metrics, metadata = sys.argv[1:5]
    store = MooncakeDistributedStore()
    code = store.setup(host, metadata, 0, 64 << 20, "tcp", "", master)
    print(json.dumps({"setup": code}), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "segments":
            url = f"http://{metrics}/get_all_segments"
            try:
                text = urllib.request.urlopen(url, timeout=5).read().decode()
            except urllib.error.HTTPError as error:
                text = f"{error.code}"
            answer = {"segments": [name for name in text.split() if "." in name]}
        else:
            verb, prefix, count, size = words[0], words[1], int(words[2]), int(words[3])
            done = failed = wrong = 0
            for index in range(count):
                key = f"{prefix}-{index}"
                if verb in ("put", "puts"):
                    ok = store.put(key, value(key, size)) == 0
                elif verb == "remove":
                    ok = store.remove(key, True) == 0
                else:
                    got = store.get(key)
                    ok = len(got) == size
                    wrong += ok and got != value(key, size)
                done += ok
                failed += not ok
                if verb == "puts" and failed:
                    break
            answer = {"done": done, "failed": failed, "wrong": wrong}
        print(json.dumps(answer), flush=True)


main()
