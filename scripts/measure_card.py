#!/usr/bin/env python3
"""Measures gpuslice on a real card, native and in a slice alternated in one run, and prints the record as Markdown.

    scripts/measure_card.py GPUSLICE WORKLOADS > docs/measurements/DATE-CARD.md

GPUSLICE is the binary. WORKLOADS is a folder with programs that know nothing of slicing: torch_slice.py, torch_ipc.py,
memapi.cu, apibench.cu. Needs nvcc, gcc, and a python3 with PyTorch. Changes no setting of the card.
"""
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

GPUSLICE, WORKLOADS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "card")
WORK = tempfile.mkdtemp(prefix="gpuslice-measure-")
CUDA = "/usr/local/cuda"
APPS = "nvidia-smi --query-compute-apps=used_memory --format=csv,noheader,nounits"


def note(text):
    print(text, file=sys.stderr, flush=True)


def sh(command, limit=120):
    note("$ " + (command if isinstance(command, str) else " ".join(command)))
    try:
        done = subprocess.run(command, shell=isinstance(command, str), cwd=WORK, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as e:
        return 124, (e.stdout or b"").decode() if isinstance(e.stdout, bytes) else (e.stdout or ""), "timed out"
    return done.returncode, done.stdout, done.stderr


def build():
    for name in ("control", "mappings"):
        assert sh(["gcc", "-O2", f"{HERE}/{name}.c", "-o", name])[0] == 0
    assert sh(["gcc", "-O2", f"{HERE}/alloc.c", f"-I{CUDA}/include", f"-L{CUDA}/lib64/stubs", "-lcuda", "-o", "alloc"])[0] == 0
    for name in ("memapi", "apibench"):
        assert sh(["nvcc", "-O2", "-arch=sm_90", f"{WORKLOADS}/{name}.cu", "-lcuda", "-o", name])[0] == 0


def sliced(command, memory="20GiB"):
    return [GPUSLICE, "run", "--memory", memory, "--", *command]


def block(title, command, rc, out):
    print(f"\n### {title}\n\n`{command}` -> exit {rc}\n\n```\n{out.strip()}\n```")


def figures(text):
    """{name p50: ..., name p99: ...} of lines such as `alloc p50 1.0 p99 2.0` or apibench's."""
    found = {}
    for line in text.splitlines():
        m = re.match(r"(.+?)\s+(?:n\s+\d+ )?p50\s+([\d.]+)(?: p90\s+[\d.]+)? p99\s+([\d.]+)", line)
        if m:
            found[m[1].strip() + " p50"], found[m[1].strip() + " p99"] = float(m[2]), float(m[3])
        m = re.match(r"cold cuInit ([\d.]+) ms\s+primary ctx ([\d.]+) ms", line)
        if m:
            found["cuInit + first context ms"] = float(m[1]) + float(m[2])
        m = re.match(r"(mapping|loader|matmul/s|graph replay/s) ([\d.]+)$", line)
        if m:
            found[m[1]] = float(m[2])
    return found


def quiet():
    """Waits until the driver shows no program and what ended last has been torn down."""
    for _ in range(100):
        if not subprocess.run(APPS, shell=True, capture_output=True, text=True).stdout.strip():
            break
        time.sleep(0.05)
    time.sleep(0.2)


def pairs(command, times, memory="20GiB", pick=statistics.median):
    """Runs a command natively and in a slice in turn; medians (or least) by figure: name -> (native, slice)."""
    both = {}
    for _ in range(times):
        for side, words in ((0, command), (1, sliced(command, memory))):
            quiet()
            rc, out, err = sh(words)
            if rc:
                note(f"exit {rc}: {err[-300:]}")
            for name, value in figures(out).items():
                both.setdefault(name, ([], []))[side].append(value)
    return {n: (pick(a), pick(b)) for n, (a, b) in both.items() if a and b}


def table(title, rows, command, times, what="medians"):
    print(f"\n### {title}\n\n`{command}`, native and in a slice alternated {times} times, {what}\n")
    print("| figure | native | slice | difference | ratio |\n|---|---|---|---|---|")
    for name, (native, slice_) in rows.items():
        print(f"| {name} | {native:.2f} | {slice_:.2f} | {slice_ - native:+.2f} | {slice_ / native:.3f} |", flush=True)


def proofs():
    print("\n## What holds")
    for size in ("6GiB", "20GiB"):
        command = ["python3", f"{WORKLOADS}/torch_slice.py", "100"]
        rc, out, _ = sh(sliced(command, size))
        block(f"PyTorch in a slice of {size}", f"gpuslice run --memory {size} -- python3 torch_slice.py 100", rc, out)
    rc, out, err = sh(sliced(["./memapi"]))
    bad = [l for l in out.splitlines() if re.search(r"= [1-9]", l)]
    block("Every way to allocate", "gpuslice run --memory 20GiB -- memapi", rc,
          f"{len([l for l in out.splitlines() if ' = ' in l])} calls, {len(bad)} failed\n" + "\n".join(bad))
    rc, out, _ = sh(sliced(["nvidia-smi"], "6GiB"))
    block("nvidia-smi inside", "gpuslice run --memory 6GiB -- nvidia-smi", rc, "\n".join(l for l in out.splitlines() if "MiB" in l or "rocess" in l))
    for words in (["nvidia-smi", "-q", "-d", "MEMORY"], ["nvidia-smi", "topo", "-m"]):
        rc, out, _ = sh(sliced(words, "6GiB"))
        block(" ".join(words), "gpuslice run --memory 6GiB -- " + " ".join(words), rc, "\n".join(out.splitlines()[:14]))
    rc, out, err = sh(sliced(["python3", f"{WORKLOADS}/torch_ipc.py"]))
    block("CUDA tensors between processes", "gpuslice run --memory 20GiB -- python3 torch_ipc.py", rc, out)
    tenants()
    race()


def tenants():
    hold = "import torch,time;x=torch.empty(50<<30,dtype=torch.uint8,device='cuda');print(torch.cuda.mem_get_info());time.sleep(6)"
    two = [subprocess.Popen([GPUSLICE, "run", "--memory", "60GiB", "--name", n, "--", "python3", "-c", hold], cwd=WORK,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for n in ("a", "b")]
    time.sleep(9)
    rc, _, err = sh([GPUSLICE, "run", "--memory", "30GiB", "--name", "c", "--", "true"])
    _, smi, _ = sh("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader")
    outs = [p.communicate()[0].strip() for p in two]
    block("Two tenants of 60 GiB hold 50 GiB each; a third of 30 GiB", "gpuslice run --memory 30GiB -- true", rc,
          "\n".join(f"tenant {n}: (free, total) = {o}" for n, o in zip("ab", outs)) + f"\noutside: {smi.strip().splitlines()}\nthird: {err.strip().splitlines()[-1] if err.strip() else ''}")


def race():
    quota = 8 << 30
    quiet()
    racing = subprocess.Popen(sliced(["python3", f"{HERE}/race.py"], str(quota)), cwd=WORK, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    peak = 0
    while racing.poll() is None:
        out = subprocess.run(APPS, shell=True, capture_output=True, text=True).stdout
        peak = max([peak, *(int(n) for n in out.split() if n.isdigit())])
        time.sleep(0.05)
    out, _ = racing.communicate()
    block("Four processes of one tenant race for 8 GiB", f"gpuslice run --memory {quota} -- python3 race.py", racing.returncode,
          f"{out.strip()}\nmost the driver ever showed for the tenant: {peak} MiB of {quota >> 20} MiB")


def costs():
    print("\n## What it costs")
    table("Start", pairs(["./apibench", "cold"], 40), "apibench cold", 40)
    table("One driver call (us)", pairs(["./control"], 5), "scripts/card/control.c", 5)
    table("Allocation as an application sees it (us)", pairs(["./alloc"], 5), "scripts/card/alloc.c", 5)
    for n in ("4", "16"):
        table(f"Allocation storm, {n} processes (us)", pairs(["./apibench", "storm", n, "2"], 5, "60GiB"), f"apibench storm {n} 2", 5)
    rows = pairs(["./apibench", "micro"], 5)
    keep = ("launch", "allocAsync", "20k live", "over-limit")
    table("Calls that need no driver call (us)", {n: v for n, v in rows.items() if any(k in n for k in keep)}, "apibench micro", 5)
    table("Work", pairs(["python3", f"{WORKLOADS}/torch_slice.py", "1"], 3), "torch_slice.py 1", 3)
    mappings()
    table("DataLoader (s)", pairs(["python3", f"{HERE}/loader.py"], 4), "scripts/card/loader.py", 4)


def mappings():
    """A loop that only maps and unmaps. It runs in one of two speeds from start to end, natively as well, hence the least of
    many runs beside the median; a filter that allows everything shows what any seccomp filter costs."""
    ways = {"native": ["./mappings"], "a filter that allows everything": ["./mappings", "filtered"], "slice": sliced(["./mappings"])}
    took = {way: [] for way in ways}
    for _ in range(20):
        for way, words in ways.items():
            took[way].append(figures(sh(words)[1]).get("mapping", math.inf))
    print("\n### Shared mappings (us)\n\n`scripts/card/mappings.c`, the three alternated 20 times\n\n| | least | median |\n|---|---|---|")
    for way, times in took.items():
        print(f"| {way} | {min(times):.2f} | {statistics.median(times):.2f} |", flush=True)


def resident():
    running = subprocess.Popen(sliced(["sh", "-c", "./alloc >/dev/null; sleep 14"]), cwd=WORK, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(6)
    pids = [running.pid, *map(int, subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True).stdout.split())]

    def ticks():
        return sum(sum(map(int, open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[11:13])) for p in pids)

    pss = {p: int(re.search(r"Pss:\s+(\d+)", open(f"/proc/{p}/smaps_rollup").read())[1]) for p in pids}
    before, began = ticks(), time.time()
    time.sleep(6)
    used = (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.time() - began)
    running.send_signal(signal.SIGTERM)
    running.wait()
    print(f"\n### Resident\n\nSupervisor and helper after a program's 12,000 driver calls, idle for 6 s: "
          f"{sum(pss.values())} KiB PSS ({', '.join(map(str, pss.values()))}), {used * 100:.3f} % of a core")


def main():
    _, gpu, _ = sh("nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader")
    _, version, _ = sh([GPUSLICE, "--version"])
    print(f"# {gpu.strip()}\n\n{time.strftime('%Y-%m-%d')}, kernel {os.uname().release}, {os.cpu_count()} processors, {version.strip()}.\n"
          "Command: `scripts/measure_card.py GPUSLICE WORKLOADS`. Run as root; no setting of the card was changed.")
    build()
    parts = sys.argv[3:] or ["proofs", "costs", "resident"]
    for part in parts:
        try:
            {"proofs": proofs, "costs": costs, "resident": resident}[part]()
        except Exception as e:
            print(f"\n{part} ended early: {e!r}")
    _, log, _ = sh("dmesg | grep -c 'NVRM.*\\(Assert\\|Xid\\)'")
    print(f"\nFailed assertions and Xid errors that the driver logged meanwhile: {log.strip() or 'not readable'}")


main()
