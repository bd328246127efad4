"""Prints p50 and p99 of calls from PHP-FPM and from forked Python processes, as a table in Markdown.

callers.py AGENT_SOCKET REDIS_SOCKET NODE_HOST:PORT: the second part of agent.sh, which starts these.
Each round goes through all programs and all targets, in another order than the one before."""

import concurrent.futures
import glob
import json
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

import redis

ROUNDS, WORKERS = int(os.environ.get("ROUNDS", 5)), int(os.environ.get("WORKERS", 4))
CALLS, PER_CONNECTION = int(os.environ.get("CALLS", 4000)), 20


def call_python(target):
    """Makes what callers.php makes, in a process of its own."""
    host, port, command = target
    times = {"first": [], "later": []}
    for n in range(CALLS):
        kind = "later" if n % PER_CONNECTION else "first"
        began = time.perf_counter_ns()
        if kind == "first":
            if n:
                server.close()
            server = redis.Redis(host, port) if port else redis.Redis(unix_socket_path=host)
        server.execute_command(*command)
        times[kind].append(time.perf_counter_ns() - began)
    return times


def call_php(target):
    """Makes one request of FastCGI (sections 3.3 and 5 of its specification)."""
    host, port, command = target
    params = {
        "SCRIPT_FILENAME": os.path.join(os.path.dirname(os.path.abspath(__file__)), "callers.php"),
        "REQUEST_METHOD": "GET", "TARGET": host, "TARGET_PORT": str(port), "COMMAND": " ".join(command),
        "CALLS": str(CALLS), "PER_CONNECTION": str(PER_CONNECTION),
    }
    pairs = b"".join(bytes((len(k), len(v))) + k.encode() + v.encode() for k, v in params.items())
    body = b""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(120)
        s.connect(fpm_socket)
        for kind, content in ((1, b"\0\1\0\0\0\0\0\0"), (4, pairs), (4, b""), (5, b"")):
            s.sendall(struct.pack(">BBHHBx", 1, kind, 1, len(content), 0) + content)
        answers = s.makefile("rb")
        while True:
            _, kind, _, length, padding = struct.unpack(">BBHHBx", answers.read(8))
            content = answers.read(length + padding)[:length]
            if kind == 3:
                break
            if kind == 6:
                body += content
    text = body.partition(b"\r\n\r\n")[2]
    try:
        return json.loads(text)
    except ValueError:
        sys.exit(f"PHP failed: {text[:500].decode(errors='replace')}")


def start_fpm(work):
    """Starts a pool of WORKERS children, and returns its process."""
    conf = os.path.join(work, "fpm.conf")
    root = os.getuid() == 0
    with open(conf, "w") as f:
        f.write(f"[global]\nerror_log = {work}/fpm.log\n[www]\nlisten = {fpm_socket}\npm = static\n"
                f"pm.max_children = {WORKERS}\n" + ("user = root\ngroup = root\n" if root else ""))
    fpm = subprocess.Popen([fpm_path, "--nodaemonize", "--fpm-config", conf] + ["--allow-to-run-as-root"] * root)
    for _ in range(100):
        with socket.socket(socket.AF_UNIX) as s:
            if s.connect_ex(fpm_socket) == 0:
                return fpm
        time.sleep(0.1)
    fpm.terminate()
    sys.exit("PHP-FPM did not start")


def at(times, q):
    """Returns a quantile in µs."""
    return sorted(times)[min(int(len(times) * q), len(times) - 1)] / 1000


def main():
    host, _, port = sys.argv[3].rpartition(":")
    targets = {
        "an agent, Unix socket": (sys.argv[1], 0, ("ID.NEXT",)),
        "Redis `INCR`, Unix socket": (sys.argv[2], 0, ("INCR", "id")),
        "a node, TCP": (host, int(port), ("ID.NEXT",)),
    }
    forked = concurrent.futures.ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork"))
    list(forked.map(time.sleep, [0.2] * WORKERS))  # forks them, before there are threads
    programs = {f"Python, {WORKERS} forked processes": (call_python, forked)}
    fpm = start_fpm(work) if fpm_path else None
    if fpm:
        programs[f"PHP-FPM, {WORKERS} children"] = (call_php, concurrent.futures.ThreadPoolExecutor(WORKERS))
    else:
        print("not run: PHP-FPM with php-redis is not installed (Debian: apt-get install php-fpm php-redis)")
    all_times = {}
    try:
        for r in range(ROUNDS):
            cases = [(p, t) for p in programs for t in targets]
            for p, t in cases if r % 2 == 0 else cases[::-1]:
                call, pool = programs[p]
                for times in pool.map(call, [targets[t]] * WORKERS):
                    for kind, values in times.items():
                        all_times.setdefault((p, t, kind), []).append(values)
    finally:
        forked.shutdown()
        if fpm:
            fpm.terminate()
            fpm.wait()
    print(f"\n{ROUNDS} rounds of {CALLS} calls of each process, load {os.getloadavg()[0]:.1f}; µs, p50 and p99:\n")
    print("| | " + " | ".join(f"{t}: a call | … with its connect" for t in targets) + " |")
    print("|---|" + "--:|" * (2 * len(targets)))
    for p in programs:
        row = []
        for t in targets:
            for kind in ("later", "first"):
                times = [ns for values in all_times[p, t, kind] for ns in values]
                row.append(f"{at(times, 0.5):.0f}, {at(times, 0.99):.0f}")
        print(f"| {p} | " + " | ".join(row) + " |")


with tempfile.TemporaryDirectory() as work:
    fpm_socket = os.path.join(work, "fpm.sock")
    fpm_path = next(iter(glob.glob("/usr/sbin/php-fpm*")), None)
    if fpm_path and subprocess.run(["php", "-r", 'exit(class_exists("Redis") ? 0 : 1);'], check=False).returncode:
        fpm_path = None
    main()
