"""The cost of an idle agent, compared with a 5 s loop: idle.py SECONDS. JSON."""

import ctypes
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time

LOOP = "while :; do /opt/bench/poll-nvml 8; sleep 5; done"
SAMPLE_S = 5.0
HEARTBEAT_S = 30.0
CGROUP = "/sys/fs/cgroup/system.slice/gpu-gate.service"


def agent_pid():
    said = subprocess.run(
        ["systemctl", "show", "--value", "-p", "MainPID", "gpu-gate.service"],
        capture_output=True,
        text=True,
    )
    return int(said.stdout)


class Switches:
    """Context switches of all that runs in the agent's cgroup, threads that live for a millisecond
    included: perf's software counter, one for each CPU. /proc/PID/task shows only threads that live
    when one looks."""

    PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
    TYPE_SOFTWARE, CONTEXT_SWITCHES, OF_A_CGROUP, ATTR_BYTES = 1, 3, 4, 128

    def __init__(self, cgroup):
        libc = ctypes.CDLL(None, use_errno=True)
        attr = bytearray(self.ATTR_BYTES)
        struct.pack_into("IIQ", attr, 0, self.TYPE_SOFTWARE, self.ATTR_BYTES, self.CONTEXT_SWITCHES)
        buffer = (ctypes.c_char * self.ATTR_BYTES).from_buffer(attr)
        folder = os.open(cgroup, os.O_RDONLY)
        self.counters = []
        for cpu in range(os.cpu_count()):
            counter = libc.syscall(self.PERF_EVENT_OPEN, buffer, folder, cpu, -1, self.OF_A_CGROUP)
            if counter < 0:
                sys.exit(f"perf_event_open: {os.strerror(ctypes.get_errno())}")
            self.counters.append(counter)

    def read(self):
        return sum(struct.unpack("Q", os.read(counter, 8))[0] for counter in self.counters)


def switches_alive(pid):
    """What /proc shows of it: only threads that live now, as most tools count."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status") as file:
            total += sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
    return total


def cpu_s():
    with open(f"{CGROUP}/cpu.stat") as file:
        return int(file.readline().split()[1]) / 1e6


def memory(pid, name):
    with open(f"/proc/{pid}/{name}") as file:
        rows = [line.split() for line in file]
    return {
        row[0].rstrip(":"): int(row[1]) / 1024 for row in rows if len(row) == 3 and row[2] == "kB"
    }


class Uevents:
    """Counts the kernel's uevents: every namespace hears every node's, so a boot elsewhere is no
    idleness here."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 15)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.bind((0, 1))
        self.count = 0

    def read(self):
        """How many came since the last time."""
        before = self.count
        try:
            while self.socket.recv(65536):
                self.count += 1
        except BlockingIOError:
            pass
        except OSError:  # overrun
            self.count += 1
        return self.count - before


def undisturbed(samples):
    """The samples without uevents, for those of the machine's other nodes are no cost of ours. Only
    whole heartbeats of them in a row: a uevent brings a cycle and puts the next heartbeat off, so
    that the pieces in between would hold too few of them."""
    kept, run = [], []
    for sample in samples:
        run = [] if sample[3] else [*run, sample]
        if len(run) == round(HEARTBEAT_S / SAMPLE_S):
            kept, run = kept + run, []
    return kept


def added(samples):
    """Seconds, wake-ups, CPU."""
    return [sum(sample[i] for sample in samples) for i in range(3)]


def main():
    uevents = Uevents()
    seconds, pid = float(sys.argv[1]), agent_pid()
    loop = subprocess.Popen(
        ["sh", "-c", LOOP], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    switches = Switches(CGROUP)
    last, cpu, ends = switches.read(), cpu_s(), time.monotonic() + seconds
    alive = switches_alive(pid)
    samples, at = [], time.monotonic()
    while at < ends:
        time.sleep(min(SAMPLE_S, ends - at + 0.001))
        now, cpu_now, seen, at_now = switches.read(), cpu_s(), uevents.read(), time.monotonic()
        samples.append((at_now - at, now - last, cpu_now - cpu, seen))
        last, cpu, at = now, cpu_now, at_now
    whole, quiet = added(samples), added(undisturbed(samples))
    took, alive = whole[0], switches_alive(pid) - alive
    is_quiet = bool(quiet[0])
    quiet = quiet if is_quiet else whole
    status, rollup = memory(pid, "status"), memory(pid, "smaps_rollup")
    shell = memory(loop.pid, "status")["VmRSS"]
    loop.terminate()
    loop.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        json.dumps(
            {
                "uevents": uevents.count,
                "agent": {
                    "rss_mib": status["VmRSS"],
                    "peak_mib": status["VmHWM"],
                    "pss_mib": rollup["Pss"],
                    "anonymous_mib": rollup["Anonymous"],
                    "quiet_s": quiet[0] if is_quiet else 0.0,
                    "cpu_percent": 100 * quiet[2] / quiet[0],
                    "wakes_per_s": quiet[1] / quiet[0],
                    "cpu_percent_whole": 100 * whole[2] / took,
                    "wakes_per_s_whole": whole[1] / took,
                    "wakes_per_s_alive": alive / took,
                    "threads": len(os.listdir(f"/proc/{pid}/task")),
                },
                "loop": {
                    "rss_mib": shell + used.ru_maxrss / 1024,
                    "cpu_percent": 100 * (used.ru_utime + used.ru_stime) / took,
                    "wakes_per_s": (used.ru_nvcsw + used.ru_nivcsw) / took,
                },
            }
        )
    )


main()
