"""Workers of which each may be the process that has the volume; they are killed one after another.
What each has synced and said is in its file afterwards: owners.py SEED DIRECTORY-OF-THE-HOST."""
import os
import random
import signal
import subprocess
import sys
import time

WORKER = """
import os, sys
fd = os.open("/adit/" + sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND)
for number in range(1000000):
    os.write(fd, b"%d\\n" % number)
    os.fsync(fd)
    sys.stdout.write("%d\\n" % number)
    sys.stdout.flush()
"""
random.seed(int(sys.argv[1]))
running, names, told = [], 0, {}


def end(name, out, process, number):
    process.send_signal(number)
    process.wait()
    told[name] = out


for _ in range(12):
    while len(running) < 3:
        name = "file%d" % names
        names += 1
        out = open(os.path.join(sys.argv[2], name), "w+")
        command = [sys.executable, "-c", WORKER, name]
        running.append((name, out, subprocess.Popen(command, stdout=out)))
    deadline = time.monotonic() + 60
    while running[-1][1].seek(0, 2) == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    which = running.pop(random.randrange(3))
    end(*which, random.choice([signal.SIGKILL, signal.SIGTERM]))
for which in running:
    end(*which, signal.SIGKILL)
for name, out in told.items():
    out.seek(0)
    said = out.read().split("\n")[:-1]
    there = open("/adit/" + name).read().split("\n")[:-1] if said else []
    assert there[: len(said)] == said, (name, len(there), len(said))
    assert len(there) <= len(said) + 1, (name, len(there), len(said))
print(sum(1 for out in told.values() if out.tell()))
