"""From a change on the node to the agent's verdict: verdict.py ROUNDS. JSON, seconds.

Rounds begin at different phases of a 5 s loop that runs beside it.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time

NODE = "/dev/nvidia3"
PAUSE_S = 0.01
LOOP_S = 5.0
GIVE_UP_S = 30.0


def ask(path):
    """(code, body) of the agent."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("/run/gpu-gate/agent.sock")
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        data = b""
        while part := connection.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def until(holds):
    """The time at which the condition becomes true."""
    ends = time.monotonic() + GIVE_UP_S
    while not holds():
        if time.monotonic() > ends:
            sys.exit(
                f"{holds.__name__} did not come within {GIVE_UP_S:.0f} s: "
                f"{ask('/status')[1].decode()}"
            )
        time.sleep(PAUSE_S)
    return time.monotonic()


def ready():
    return ask("/readyz")[0] == 200


def not_ready():
    return ask("/readyz")[0] == 503


def phase():
    status = json.loads(ask("/status")[1])
    return status["gate"]["phase"], status["probe"]["last"]["started_at"]


class Loop(threading.Thread):
    """The 5 s loop; it records when each probe ended and its result."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen = []

    def run(self):
        while True:
            good = (
                subprocess.run(["/opt/bench/poll-nvml", "8"], capture_output=True).returncode == 0
            )
            self.seen.append((time.monotonic(), good))
            time.sleep(LOOP_S)

    def next(self, after, good):
        return next(
            (at for at, was_good in list(self.seen) if at > after and was_good is good), None
        )


def lose_a_node(loop, phase_s, found):
    ready_at = until(ready)
    while (looked_at := loop.next(ready_at, True)) is None:
        time.sleep(0.05)
    time.sleep(phase_s)
    lost_at = time.monotonic()
    os.unlink(NODE)
    found["node_lost"].append(until(not_ready) - lost_at)
    while (looked_at := loop.next(lost_at, False)) is None:
        time.sleep(0.05)
    found["loop"].append(looked_at - lost_at)
    subprocess.run(["simgpu", "nodes", "make", "nvidia3"], check=True)
    made_at = time.monotonic()
    found["node_back"].append(until(ready) - made_at)


def restart_persistenced(found):
    time.sleep(3)
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    subprocess.run(["systemctl", "restart", "nvidia-persistenced.service"], check=True)
    done = time.monotonic()

    def disturbed():
        return phase()[0] == "REVALIDATING" or phase()[1] > began

    def validated():
        name, started = phase()
        return name == "OPEN" and started > began

    found["disturbed"].append(until(disturbed) - done)
    found["validated"].append(until(validated) - done)


def main():
    rounds = int(sys.argv[1])
    found = {"node_lost": [], "node_back": [], "loop": [], "disturbed": [], "validated": []}
    loop = Loop()
    loop.start()
    for number in range(rounds):
        lose_a_node(loop, LOOP_S * (number + 0.5) / rounds - 0.2, found)
    for _ in range(rounds):
        restart_persistenced(found)
    print(json.dumps(found))


main()
