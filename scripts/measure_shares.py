#!/usr/bin/env python3
"""Measures how gpuslice divides a card's time, and prints the record as Markdown, case by case.

    scripts/measure_shares.py GPUSLICE [CASE...] > docs/measurements/DATE-shares.md

Needs nvcc, and PyTorch for the cases with it. Each case starts its tenants, waits until all of them work, and counts what each
finished in one window; a tenant's part is its rate over the rate that the same program has natively alone. Run as root on a
card that nobody else uses. Changes no setting of the card.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

GPUSLICE = os.path.abspath(sys.argv[1])
ONLY = sys.argv[2:]
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "card")
WORK = tempfile.mkdtemp(prefix="gpuslice-shares-")
WINDOW = float(os.environ.get("WINDOW", "4"))
ALONE = {}


def note(text):
    print(f"{time.monotonic():9.1f} {text}", file=sys.stderr, flush=True)


def program(kind, *words):
    if kind == "share":
        return ["./share", *words]
    return [sys.executable, f"{HERE}/share_torch.py", kind]


def memory(words):
    """A context's channels go with memory: so much that all of a program's contexts fit."""
    contexts = 1
    for word in words:
        name, _, value = word.partition("=")
        contexts *= int(value) if name in ("processes", "contexts") else 1
    return f"{max(8, 3 * contexts)}GiB"


class Tenant:
    def __init__(self, words, seconds, weight=None, name=None, options=()):
        words = words + ([f"seconds={seconds}"] if words[0] == "./share" else [str(seconds)])
        if weight is not None:
            limit = weight if isinstance(weight, tuple) else ("--weight", str(weight))
            words = [GPUSLICE, "run", "--overcommit", "--memory", memory(words), *limit, "--name", name, *options, "--", *words]
        self.out, self.err = f"{WORK}/{name or 'alone'}.out", f"{WORK}/{name or 'alone'}.err"
        self.child = subprocess.Popen(words, cwd=WORK, stdout=open(self.out, "w"), stderr=open(self.err, "w"), start_new_session=True)

    def samples(self):
        found = {}
        for line in open(self.out):
            part = line.split()
            if len(part) == 3:
                found.setdefault(part[0], []).append((float(part[1]) / 1e3, int(part[2])))
        return found

    def works(self):
        return any(s[-1][1] > 0 for s in self.samples().values())

    def rate(self, since, until):
        """Finished a second in a window of CLOCK_MONOTONIC, all processes together."""
        total = 0
        for samples in self.samples().values():
            total += at(samples, until) - at(samples, since)
        return total / (until - since)

    def end(self):
        try:
            os.killpg(self.child.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()


def at(samples, when):
    """What was done by then, between two samples in proportion; after the last: as much as there."""
    before = (samples[0][0], 0)
    for sample in samples:
        if sample[0] >= when:
            if sample[0] == before[0] or when <= before[0]:
                return before[1]
            return before[1] + (sample[1] - before[1]) * (when - before[0]) / (sample[0] - before[0])
        before = sample
    return before[1]


def together(tenants, window=WINDOW, settle=1.0, during=None):
    """Rates of tenants that have all begun to work."""
    until = time.monotonic() + 30
    while not all(t.works() for t in tenants) and time.monotonic() < until:
        if any(t.child.poll() is not None for t in tenants):
            break
        time.sleep(0.05)
    time.sleep(settle)
    since = time.monotonic()
    told = during() if during else None
    time.sleep(max(0, since + window - time.monotonic()))
    until = since + window
    time.sleep(0.15)
    rates = [t.rate(since, until) for t in tenants]
    for t in tenants:
        t.end()
        said = [l for l in open(t.err) if "keeps user id" not in l and "not locked" not in l]
        if said:
            note(f"said: {said[-1].strip()[:300]}")
    return rates, told


def alone(words):
    key = " ".join(w for w in words if not w.startswith(("processes", "contexts", "rotate", "restart")))
    if key not in ALONE:
        base = key.split(" ")
        rates, _ = together([Tenant(base, 30)], window=2.0, settle=0.5)
        ALONE[key] = rates[0]
        note(f"alone {key}: {rates[0]:.1f}/s")
    return ALONE[key]


def case(name, tenants, weights=True, window=WINDOW, during=None, seconds=60, settle=1.0):
    """tenants: (name, weight, words). Prints a row for each; returns the parts."""
    solo = [alone(words) for _, _, words in tenants]
    started = [Tenant(words, seconds, weight if weights else None, who if weights else who) for who, weight, words in tenants]
    rates, told = together(started, window, settle, during)
    parts = [r / s if s else 0 for r, s in zip(rates, solo)]
    total, weight = sum(parts) or 1e-9, sum(w for _, w, _ in tenants)
    for (who, w, words), rate, part in zip(tenants, rates, parts):
        print(f"| {name} | {who}: {' '.join(words[-1:] if words[0] != './share' else words[1:]) or 'kernels'} | {w} | {rate:.1f} | "
              f"{100 * part:.2f} | {100 * part / total:.2f} | {100 * w / weight:.2f} | {100 * total:.1f} |", flush=True)
    if told:
        print(f"\n{told}\n", flush=True)
    return parts


def cap(percent, words, name, beside=None, window=WINDOW):
    """A tenant held to a ceiling, alone or beside another one."""
    solo = alone(words)
    tenants = [Tenant(words, 60, ("--cap", str(percent)), "c")] + ([Tenant(beside, 60, 100, "n")] if beside else [])
    rates, _ = together(tenants, window)
    print(f"| cap of {percent} %{' beside a neighbour' if beside else ''} | {name} | - | {rates[0]:.1f} | {100 * rates[0] / solo:.2f} | | {percent} | |", flush=True)


def killed():
    """The scheduler is killed while two tenants compute; another one takes over."""
    pid = int(subprocess.run(["pgrep", "-f", "^gpuslice-scheduler"], capture_output=True, text=True).stdout.split()[0])
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    while time.monotonic() - began < 10:
        found = subprocess.run(["pgrep", "-f", "^gpuslice-scheduler"], capture_output=True, text=True).stdout.split()
        if any(int(other) != pid for other in found):
            return f"The scheduler was killed at the beginning of the window; another one ran {time.monotonic() - began:.2f} s later."
        time.sleep(0.01)
    return "The scheduler was killed; no other one came."


def jain(parts):
    return sum(parts) ** 2 / (len(parts) * sum(p * p for p in parts))


LOOP, GRAPH = program("share"), program("share", "graph=10")
LONG, HALF = program("share", "ms=200"), program("share", "on=10", "off=10")


def ps():
    done = subprocess.run([GPUSLICE, "ps"], capture_output=True, text=True)
    return "```\n" + done.stdout + "```"


def cpu():
    """Processor time of scheduler and helpers over some seconds."""
    def ticks():
        total = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                name = open(f"/proc/{pid}/cmdline").read().split("\0")[0]
                fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if name.startswith("gpuslice-"):
                total[name] = total.get(name, 0) + int(fields[11]) + int(fields[12])
        return total
    before, began = ticks(), time.monotonic()
    time.sleep(3)
    after, took = ticks(), time.monotonic() - began
    return "Processor time: " + ", ".join(
        f"{name} {100 * (after[name] - before.get(name, 0)) / os.sysconf('SC_CLK_TCK') / took:.2f} % of a core" for name in sorted(after))


def two_cards():
    """One tenant alone on its card beside a pair on another; then a third on both."""
    graph = alone(GRAPH)
    def on(card, weight, who):
        return Tenant(GRAPH, 60, weight, who, ("--gpu", str(card)))
    rates, _ = together([on(0, 100, "a"), on(1, 75, "b"), on(1, 25, "c")])
    for who, rate in zip(("alone on card 0", "75 on card 1", "25 on card 1"), rates):
        print(f"| two cards | {who} | | {rate:.1f} | {100 * rate / graph:.2f} | | | |", flush=True)


def equal():
    parts = case("8 equal", [(f"t{i}", 100, LOOP) for i in range(8)], during=cpu, window=max(WINDOW, 10))
    print(f"\nJain's index of the eight: {jain(parts):.5f}\n", flush=True)


CASES = {
    "unmanaged": lambda: case("no gpuslice", [("a", 1, GRAPH), ("b", 1, GRAPH)], weights=False),
    "loop": lambda: case("3 : 1, kernels", [("a", 75, LOOP), ("b", 25, LOOP)], during=ps),
    "graph": lambda: case("3 : 1, graphs", [("a", 75, GRAPH), ("b", 25, GRAPH)]),
    "matmul": lambda: case("3 : 1, matmul", [("a", 75, program("matmul")), ("b", 25, program("matmul"))]),
    "mixed": lambda: case("3 : 1, mixed", [("a", 75, program("matmul")), ("b", 25, GRAPH)]),
    "sixteen": lambda: case("16 : 1", [("a", 160, GRAPH), ("b", 10, GRAPH)]),
    "models": lambda: case("4 : 2 : 1 : 1, models and an adversary", [(n, w, program("generate")) for n, w in (("a", 400), ("b", 200), ("c", 100))]
                           + [("x", 100, program("share", "processes=4"))]),
    "equal": equal,
    "pack4": lambda: case("packing: 4 processes", [("a", 75, GRAPH), ("b", 25, program("share", "graph=10", "processes=4"))]),
    "pack16": lambda: case("packing: 16 processes", [("a", 75, GRAPH), ("b", 25, program("share", "graph=10", "processes=16"))], settle=2.0),
    "contexts8": lambda: case("packing: 8 contexts", [("a", 75, GRAPH), ("b", 25, program("share", "contexts=8"))]),
    "rotate": lambda: case("8 contexts take turns, 20 ms", [("a", 75, GRAPH), ("b", 25, program("share", "contexts=8", "rotate=20"))]),
    "one_of": lambda: case("one of 8 contexts works", [("a", 75, GRAPH), ("b", 25, program("share", "contexts=8", "rotate=1000000"))]),
    "long": lambda: case("kernels of 200 ms", [("a", 75, LOOP), ("b", 25, LONG)], window=max(WINDOW, 20)),
    "half": lambda: case("each half idle", [("a", 50, HALF), ("b", 50, HALF)]),
    "half_unmanaged": lambda: case("each half idle, no gpuslice", [("a", 50, HALF), ("b", 50, HALF)], weights=False),
    "restart": lambda: case("restarts each second", [("a", 75, GRAPH), ("b", 25, program("share", "restart=1"))], window=max(WINDOW, 8)),
    "restart3": lambda: case("restarts each 3 seconds", [("a", 75, GRAPH), ("b", 25, program("share", "restart=3"))], window=max(WINDOW, 9)),
    "killed": lambda: case("3 : 1, scheduler killed", [("a", 75, LOOP), ("b", 25, LOOP)], during=killed),
    "caps": lambda: [cap(50, LOOP, "kernels"), cap(25, GRAPH, "graphs"), cap(10, program("matmul"), "matmul"), cap(25, LOOP, "kernels", GRAPH)],
    "two_cards": two_cards,
    "burst": lambda: case("idles and bursts", [("a", 75, GRAPH), ("b", 25, program("share", "on=100", "off=900"))], window=max(WINDOW, 6)),
}


def lone():
    """One tenant alone, natively and in a slice in turn."""
    rates = ([], [])
    for _ in range(3):
        for side, tenant in ((0, lambda: Tenant(GRAPH, 30)), (1, lambda: Tenant(GRAPH, 30, 100, "lone"))):
            rates[side].append(together([tenant()], window=2.0, settle=0.5)[0][0])
    native, sliced = (sorted(r)[1] for r in rates)
    print(f"\nA lone tenant, graphs, 3 pairs alternated, medians: {native:.1f} natively, {sliced:.1f} in a slice with a weight, {100 * sliced / native:.2f} %\n", flush=True)


def main():
    gpu = subprocess.run("nvidia-smi --query-gpu=name,driver_version --format=csv,noheader", shell=True, capture_output=True, text=True)
    print(f"# Shares of a card's time: {gpu.stdout.strip()}\n\n{time.strftime('%Y-%m-%d')}, kernel {os.uname().release}. Command: "
          f"`scripts/measure_shares.py GPUSLICE`. Rates are what was finished a second in one window of {WINDOW:.0f} s or more.\n")
    build = subprocess.run(["nvcc", "-O2", "-arch=sm_90", f"{HERE}/share.cu", "-lcuda", "-o", f"{WORK}/share"], capture_output=True, text=True)
    if build.returncode:
        sys.exit(build.stderr)
    print("| case | tenant | weight | done/s | % of alone | share % | entitled % | all, % of alone |\n|---|---|---|---|---|---|---|---|", flush=True)
    for name in ONLY or [*CASES, "lone"]:
        note(name)
        try:
            (lone if name == "lone" else CASES[name])()
        except Exception as e:
            print(f"\n{name} ended early: {e!r}\n", flush=True)


main()
