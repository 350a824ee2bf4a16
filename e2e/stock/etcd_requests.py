"""Requests to an etcd through its JSON gateway, as a pod with network access can send them. Usage:

    etcd_requests.py show PREFIX ENDPOINT            prints the pairs below a prefix as JSON
    etcd_requests.py overwrite PREFIX ENDPOINT       writes another value to each key below a prefix
    etcd_requests.py remove PREFIX ENDPOINT          removes all keys below a prefix
    etcd_requests.py fill PREFIX ENDPOINT            writes until the database is full
    etcd_requests.py free PREFIX ENDPOINT...         removes the keys, returns their space on each member, ends the alarm
"""

import base64
import json
import sys
import urllib.error
import urllib.request

VALUE = "x" * 400_000


def call(endpoint, path, body):
    url = f"http://{endpoint}/v3/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def below(prefix):
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return {"key": encoded(prefix), "range_end": encoded(end)}


def pairs(endpoint, prefix):
    found = call(endpoint, "kv/range", below(prefix)).get("kvs", [])
    decode = lambda text: base64.b64decode(text).decode()
    return {decode(pair["key"]): decode(pair.get("value", "")) for pair in found}


def fill(endpoint, prefix):
    for number in range(100):
        try:
            pair = {"key": encoded(f"{prefix}{number}"), "value": encoded(VALUE)}
            call(endpoint, "kv/put", pair)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            if "space exceeded" not in text:
                raise SystemExit(text)
            return print(number)
    raise SystemExit("the quota has no effect")


def free(endpoints, prefix):
    removed = call(endpoints[0], "kv/deleterange", below(prefix))
    revision = removed["header"]["revision"]
    call(endpoints[0], "kv/compaction", {"revision": revision, "physical": True})
    for endpoint in endpoints:
        call(endpoint, "maintenance/defragment", {})
    raised = call(endpoints[0], "maintenance/alarm", {"action": "GET"})
    for alarm in raised.get("alarms", []):
        call(endpoints[0], "maintenance/alarm", {"action": "DEACTIVATE", **alarm})


action, prefix, *endpoints = sys.argv[1:]
if action == "show":
    print(json.dumps(pairs(endpoints[0], prefix)))
elif action == "overwrite":
    for key in pairs(endpoints[0], prefix):
        call(endpoints[0], "kv/put", {"key": encoded(key), "value": encoded("{}")})
elif action == "remove":
    call(endpoints[0], "kv/deleterange", below(prefix))
elif action == "fill":
    fill(endpoints[0], prefix)
elif action == "free":
    free(endpoints, prefix)
else:
    raise SystemExit(__doc__)
