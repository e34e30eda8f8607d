#!/usr/bin/env python3
"""Runs programs that people run, natively and in a slice side by side, and prints the record as Markdown.

    scripts/real_programs.py GPUSLICE [PROGRAM...] > docs/measurements/DATE-programs.md

Needs a python3 with PyTorch; what else is not installed is recorded as absent. Changes no setting of the card.
"""
import os
import subprocess
import sys
import time

GPUSLICE = os.path.abspath(sys.argv[1])
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "card")
PROGRAMS = sys.argv[2:] or ["torch", "workers", "jax", "cupy", "triton", "generate", "vmm", "checkpoint", "debugger", "three", "nccl"]
MEMORY = "20GiB"


def start(words, sliced):
    run = [GPUSLICE, "run", "--memory", MEMORY, "--"] if sliced else []
    return subprocess.Popen([*run, sys.executable, f"{HERE}/programs.py", *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def end(program, limit=50):
    try:
        out, err = program.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, 15)
        out, err = program.communicate()
        return f"{out.strip()}\nstopped after {limit} s\n{err.strip()[-400:]}"
    said = [l for l in err.splitlines() if l.startswith("gpuslice[")]
    tail = "" if program.returncode == 0 else "\n" + "\n".join(err.strip().splitlines()[-3:])
    return "\n".join([out.strip() + tail, f"exit {program.returncode}", *said])


def main():
    print(f"# Programs, natively and in a slice of {MEMORY}\n\n{time.strftime('%Y-%m-%d')}, kernel {os.uname().release}. "
          "Command: `scripts/real_programs.py GPUSLICE`.")
    for name in PROGRAMS:
        print(f"{name}", file=sys.stderr, flush=True)
        words = ["generate"] if name == "three" else [name]
        count = 3 if name == "three" else 1
        both = ["\n".join(end(p) for p in [start(words, sliced) for _ in range(count)]) for sliced in (False, True)]
        print(f"\n## {name}\n\nNatively:\n\n```\n{both[0]}\n```\n\nIn a slice:\n\n```\n{both[1]}\n```", flush=True)


main()
