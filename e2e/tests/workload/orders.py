"""A stock peer that does what it is told: one JSON object on a Unix socket, answered by another.

orders.py PROGRAM [ARGUMENT...]
PROGRAM is the text of a Python program that leaves its functions in a dictionary ORDERS.
"""
import json
import socket
import sys
import traceback

SOCKET = "/tmp/orders"


def serve(orders):
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(SOCKET)
        door.listen()
        print("under orders", flush=True)
        while True:
            peer, _ = door.accept()
            with peer, peer.makefile("rw") as lines:
                order = json.loads(lines.readline())
                try:
                    answer = {"done": orders[order.pop("order")](**order)}
                except Exception:  # whoever gave the order reads it
                    answer = {"failed": traceback.format_exc()}
                print(json.dumps(answer), file=lines, flush=True)
                print(json.dumps({**order, **answer}), flush=True)


def main():
    program = {"__name__": "program"}
    exec(compile(sys.argv.pop(1), "program", "exec"), program)
    serve(program["ORDERS"])


main()
