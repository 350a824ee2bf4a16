"""Puts every object into the pool."""

import objects

store = objects.connect()
# Removes the objects of an earlier run.
store.remove_all(True)
clock = objects.Clock()
for number in range(objects.COUNT):
    content = objects.value(number)
    with clock:
        code = store.put(objects.key(number), content)
    if code != 0:
        raise SystemExit(f"put of {objects.key(number)} failed: {code}")
objects.report(clock)
store.close()
