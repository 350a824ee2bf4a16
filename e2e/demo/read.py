"""Gets every object from the pool and compares every byte."""

import objects

store = objects.connect()
clock = objects.Clock()
for number in range(objects.COUNT):
    with clock:
        content = store.get(objects.key(number))
    if content != objects.value(number):
        raise SystemExit(f"{objects.key(number)}: {len(content)} bytes that differ from the value")
objects.report(clock)
store.close()
