"""What each server without a model does: report what its connector did, then answer health checks."""
import hashlib
import http.server
import json

BLOCKS = 8


def content(number, size):
    """The bytes of one block. They follow from its number, so another pod can compare them."""
    return hashlib.shake_128(f"block {number}".encode()).digest(size)


def report(stack, **counts):
    """Prints one line of JSON for the test."""
    print(json.dumps({"stack": stack, **counts}), flush=True)


def serve(port):
    """Answers `GET /health` until the pod ends."""

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    http.server.ThreadingHTTPServer(("", port), Health).serve_forever()
