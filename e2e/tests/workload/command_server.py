"""Runs commands in a stock pod: each is one JSON object on a Unix socket, answered by another.

command_server.py PROGRAM [ARGUMENT...]
PROGRAM is the text of a Python program that defines the dictionary COMMANDS of functions.
"""
import json
import socket
import sys
import traceback

SOCKET = "/tmp/commands"


def serve(commands):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(SOCKET)
        server.listen()
        print("accepting commands", flush=True)
        while True:
            peer, _ = server.accept()
            with peer, peer.makefile("rw") as lines:
                command = json.loads(lines.readline())
                try:
                    answer = {"done": commands[command.pop("command")](**command)}
                except Exception:  # the sender reads it
                    answer = {"failed": traceback.format_exc()}
                print(json.dumps(answer), file=lines, flush=True)
                print(json.dumps({**command, **answer}), flush=True)


def main():
    program = {"__name__": "program"}
    exec(compile(sys.argv.pop(1), "program", "exec"), program)
    serve(program["COMMANDS"])


main()
