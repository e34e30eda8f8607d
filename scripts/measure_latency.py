#!/usr/bin/env python3
"""Measures how soon a short kernel is served beside neighbours that compute all the time, and prints the record as Markdown.

    scripts/measure_latency.py GPUSLICE [CASE...] > docs/measurements/DATE-latency.md

Needs nvcc; the case `mps` needs nvidia-cuda-mps-control, and is left out without. Run as root on a card that nobody else uses.
Changes no setting of the card: MPS runs as the user's own, in the card's default compute mode. Takes less than a minute.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

GPUSLICE = os.path.abspath(sys.argv[1])
ONLY = sys.argv[2:]
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "card")
WORK = tempfile.mkdtemp(prefix="gpuslice-latency-")
WINDOW = float(os.environ.get("WINDOW", "1.5"))
# For so long slices settle.
SETTLE = 1.0
SOON = ["./latency", f"seconds={WINDOW}", f"after={SETTLE}"]
SHORT = {}


def note(text):
    print(f"{time.monotonic():9.1f} {text}", file=sys.stderr, flush=True)


def sliced(name, options, words):
    return [GPUSLICE, "run", "--overcommit", "--memory", "8GiB", "--name", name, *options, "--", *words]


class Program:
    def __init__(self, name, words, env=None):
        self.out, self.err = f"{WORK}/{name}.out", f"{WORK}/{name}.err"
        self.child = subprocess.Popen(words, cwd=WORK, env=env, stdout=open(self.out, "w"), stderr=open(self.err, "w"), start_new_session=True)

    def lines(self):
        return open(self.out).read().splitlines()

    def done(self):
        """Kernels that a hog has finished, and when it said so."""
        last = [line.split() for line in self.lines() if len(line.split()) == 3][-1:]
        return (float(last[0][1]) / 1e3, int(last[0][2])) if last else (0.0, 0)

    def wait_for(self, what):
        until = time.monotonic() + 20
        while not what() and time.monotonic() < until and self.child.poll() is None:
            time.sleep(0.02)

    def end(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGTERM)
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        said = [line for line in open(self.err) if "keeps user id" not in line and "not locked" not in line]
        if said:
            note(f"said: {said[-1].strip()[:300]}")


def case(name, hogs, wrap, jitter=0, env=None):
    """The short kernel beside so many hogs; `wrap` makes the words of a slice of a program's."""
    running = []
    try:
        for i in range(hogs):
            running.append(Program(f"hog{i}", wrap(f"hog{i}", ["./share", "seconds=40"]), env))
        for hog in running:
            hog.wait_for(lambda hog=hog: hog.done()[1] > 0)
        soon = Program("soon", wrap("soon", [*SOON, f"jitter={jitter}"]), env)
        running.append(soon)
        soon.wait_for(lambda: "working" in soon.lines())
        time.sleep(SETTLE)
        before = [hog.done() for hog in running[:-1]]
        time.sleep(WINDOW - 0.2)
        after = [hog.done() for hog in running[:-1]]
        soon.child.wait(20)
    finally:
        for program in running:
            program.end()
    text = "\n".join(soon.lines())
    p50, p99 = (float(x) / 1e3 for x in re.search(r"p50 ([\d.]+) p99 ([\d.]+)", text).groups())
    longest = float(re.search(r"longest ([\d.]+)", text).group(1)) / 1e3
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(before, after)]
    SHORT.setdefault("alone", p99)
    solo = SHORT.get("solo")
    parts = " + ".join(f"{100 * rate / solo:.1f}" for rate in rates) if solo else ""
    total = f"{100 * sum(rates) / solo:.1f}" if solo and rates else ""
    print(f"| {name} | {hogs} | {jitter} | {p50:.3f} | {p99:.3f} | {longest:.3f} | {p99 - SHORT['alone']:+.3f} | {parts} | {total} |", flush=True)


def solo():
    """What a hog does alone."""
    hog = Program("solo", ["./share", "seconds=10"])
    hog.wait_for(lambda: hog.done()[1] > 0)
    time.sleep(0.5)
    before = hog.done()
    time.sleep(WINDOW)
    after = hog.done()
    hog.end()
    SHORT["solo"] = (after[1] - before[1]) / (after[0] - before[0])
    note(f"a hog alone: {SHORT['solo']:.0f} kernels a second")


def native(_name, words):
    return words


def slices(*latency):
    return lambda name, words: sliced(name, latency if name == "soon" else (), words)


def mps():
    """Everybody a client of one MPS server of this user's own."""
    if not shutil.which("nvidia-cuda-mps-control"):
        note("no nvidia-cuda-mps-control here: MPS is left out")
        return
    env = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=f"{WORK}/pipe", CUDA_MPS_LOG_DIRECTORY=f"{WORK}/log")
    for folder in ("pipe", "log"):
        os.makedirs(f"{WORK}/{folder}", exist_ok=True)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=env, check=True, timeout=10)
    try:
        case("MPS", 1, native, env=env)
        case("MPS", 4, native, env=env)
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=env, timeout=20)


CASES = {
    "unmanaged": lambda: [case("no gpuslice", hogs, native) for hogs in (1, 4)],
    "shares": lambda: case("slices without --latency", 1, slices()),
    "latency": lambda: [case("--latency", hogs, slices("--latency")) for hogs in (1, 2, 4)],
    "any_moment": lambda: case("--latency", 1, slices("--latency"), jitter=2),
    "shorter": lambda: case("--latency 330", 1, slices("--latency", "330"), jitter=2),
    "mps": mps,
}


def main():
    gpu = subprocess.run("nvidia-smi --query-gpu=name,driver_version --format=csv,noheader", shell=True, capture_output=True, text=True)
    print(f"# A short kernel beside others: {gpu.stdout.strip()}\n\n{time.strftime('%Y-%m-%d')}, kernel {os.uname().release}. Command: "
          f"`scripts/measure_latency.py GPUSLICE`. A kernel of 0.13 ms, then a pause of 5 ms (longer by up to `jitter` ms), for "
          f"{WINDOW:.1f} s; times in ms, from the launch to the end of the wait. Hogs run kernels of 0.37 ms without a pause; what they do "
          f"is told in percent of what one does alone.\n", flush=True)
    for source, libraries in (("share.cu", ["-lcuda"]), ("latency.cu", [])):
        target = f"{WORK}/{source.removesuffix('.cu')}"
        build = subprocess.run(["nvcc", "-O2", "-arch=sm_90", f"{HERE}/{source}", *libraries, "-o", target], capture_output=True, text=True)
        if build.returncode:
            sys.exit(build.stderr)
    print("| case | hogs | jitter | P50 | P99 | longest | P99 against alone | hogs, % of one alone | together |\n|---|---|---|---|---|---|---|---|---|", flush=True)
    case("alone", 0, native)
    solo()
    for name in ONLY or CASES:
        note(name)
        try:
            CASES[name]()
        except Exception as e:
            print(f"\n{name} ended early: {e!r}\n", flush=True)


main()
