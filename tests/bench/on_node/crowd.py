"""Many clients of the agent's HTTP: crowd.py RATE SECONDS. JSON.

Requests fall due by the clock, whether the last one was answered or not, and the time of an answer
counts from there. Beside them are clients that send a request byte by byte, and clients that ask
and never read. Dropped, they return.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time

RATE, SECONDS = int(sys.argv[1]), int(sys.argv[2])
WHERE = ("127.0.0.1", 9477)
PATHS = ("/readyz", "/status", "/metrics")
BUSY, DRIPPING, DEAF = 32, 100, 20
GIVE_UP_S = 30.0
SAMPLE_S = 0.2
LEFT_S = 5.0
CGROUP = "/sys/fs/cgroup/system.slice/gpu-gate.service"
PID = subprocess.run(
    ["systemctl", "show", "--value", "-p", "MainPID", "gpu-gate.service"],
    capture_output=True,
    text=True,
).stdout.strip()


def request(path):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def rss_mib():
    with open(f"/proc/{PID}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def cpu_s():
    with open(f"{CGROUP}/cpu.stat") as file:
        return int(file.readline().split()[1]) / 1e6


class Slow(threading.Thread):
    """Those that drip and those that do not read, and how often one of them was dropped."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.dropped = 0
        self.firsts = [b"GET /status HTTP/1.1\r\nX: "] * DRIPPING + [
            request("/status") * 200
        ] * DEAF

    def run(self):
        clients = [self.opened(first) for first in self.firsts]
        while not self.ended.wait(1.0):
            for number, client in enumerate(clients):
                try:
                    client.send(b"x")
                except BlockingIOError:
                    pass
                except OSError:
                    client.close()
                    self.dropped += 1
                    clients[number] = self.opened(self.firsts[number])
        for client in clients:
            client.close()

    @staticmethod
    def opened(first):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(WHERE)
        client.setblocking(False)
        client.send(first)
        return client


class Crowd:
    """Clients that send requests and read answers, over persistent connections."""

    def __init__(self):
        self.took_s, self.failures, self.lags, self.rss, self.good, self.again = (
            [],
            [],
            {},
            [],
            0,
            0,
        )
        self.due = asyncio.Queue()

    async def ask_on(self):
        """One client: the next request that is due, over and over."""
        kept = None
        while True:
            due, path = await self.due.get()
            try:
                if kept is not None:
                    try:
                        code, body = await ask(kept, path)
                    except (
                        ConnectionError,
                        EOFError,
                    ):  # closed while it rested: once more, as HTTP clients do
                        kept[1].close()
                        kept = None
                        self.again += 1
                if kept is None:
                    kept = await asyncio.open_connection(*WHERE)
                    code, body = await ask(kept, path)
            except (OSError, EOFError, asyncio.TimeoutError) as exc:
                self.failures.append(f"{path}: {type(exc).__name__}")
                kept = None
            else:
                self.took_s.append(time.monotonic() - due)
                self.good += code == 200
                if code != 200:
                    self.failures.append(f"{path}: {code}")
                elif path == "/metrics":
                    cycles, lag = (
                        re.search(rf"^gpu_gate_{name} (\S+)$".encode(), body, re.M)[1]
                        for name in ("cycles_total", "cycle_lag_seconds")
                    )
                    self.lags[cycles.decode()] = float(lag)
            self.due.task_done()

    async def come(self, rate, seconds):
        began = time.monotonic()
        for number in range(rate * seconds):
            due = began + number / rate
            if due > time.monotonic():
                await asyncio.sleep(due - time.monotonic())
            self.due.put_nowait((due, PATHS[number % len(PATHS)]))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.due.join(), GIVE_UP_S)
        return time.monotonic() - began

    async def watch(self):
        while True:
            self.rss.append(rss_mib())
            await asyncio.sleep(SAMPLE_S)


async def ask(connection, path):
    """(code, body)"""
    reader, writer = connection
    writer.write(request(path))

    async def answer():
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", head)[1])
        return int(head.split()[1]), await reader.readexactly(length)

    return await asyncio.wait_for(answer(), GIVE_UP_S)


async def main():
    alone, crowd, slow = Crowd(), Crowd(), Slow()
    one = asyncio.create_task(alone.ask_on())
    await alone.come(20, 10)
    one.cancel()
    before, cpu, began = rss_mib(), cpu_s(), time.monotonic()
    slow.start()
    tasks = [asyncio.create_task(crowd.ask_on()) for _ in range(BUSY)] + [
        asyncio.create_task(crowd.watch())
    ]
    took = await crowd.come(RATE, SECONDS)
    cpu, took_all = cpu_s() - cpu, time.monotonic() - began
    slow.ended.set()
    for task in tasks:
        task.cancel()
    slow.join()
    await asyncio.sleep(LEFT_S)
    took_s = sorted(crowd.took_s)
    print(
        json.dumps(
            {
                "alone_s": statistics.median(alone.took_s),
                "median_s": statistics.median(took_s),
                "p99_s": took_s[int(len(took_s) * 0.99)],
                "most_s": took_s[-1],
                "rate": len(took_s) / took,
                "failures": RATE * SECONDS - crowd.good,
                "failed": sorted(set(crowd.failures))[:10],
                "again": crowd.again,
                "cycles": len(crowd.lags),
                "lag_s": max(crowd.lags.values()),
                "dropped": slow.dropped,
                "rss_before_mib": before,
                "rss_most_mib": max(crowd.rss),
                "rss_after_mib": rss_mib(),
                "cpu_percent": 100 * cpu / took_all,
                "cores": os.cpu_count(),
            }
        )
    )


asyncio.run(main())
