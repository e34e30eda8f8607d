#!/usr/bin/env python3
"""Runs a fixed list of attacks between two tenants of a card, and prints the record as Markdown, row by row.

    scripts/card_threats.py GPUSLICE [--sim] [ITEM...] > docs/measurements/DATE-threats.md

One tenant, the neighbour, computes and looks after its memory the whole time; the other attacks. Attacks are programs of
`gpuslice __tenant` or of scripts/card/tenants.py, nothing is random in what they ask for, and no setting of the card is
changed. Run as root, on a card that nobody else uses. --sim: on a simulated card. ITEM: only these rows, and `facts`.
"""
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

WORDS = [w for w in sys.argv[1:] if w != "--sim"]
SIM = "--sim" in sys.argv
ONLY = WORDS[1:]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = tempfile.mkdtemp(prefix="gpuslice-threats-")
os.chmod(WORK, 0o755)
GPUSLICE = shutil.copy(WORDS[0], f"{WORK}/gpuslice")
TENANTS = shutil.copy(f"{ROOT}/scripts/card/tenants.py", WORK)
shutil.copy(f"{ROOT}/crates/testkit/src/conformance.ptx", WORK)
LIMIT = 20
GIB = 1 << 30
NODE = []  # what `run` is told of the node
BEGAN = time.time()


def note(text):
    print(f"{time.time() - BEGAN:6.1f} {text}", file=sys.stderr, flush=True)


class Program:
    """A program whose lines are read as they come."""

    def __init__(self, command, fds=()):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, pass_fds=fds, start_new_session=True, cwd=WORK)
        self.lines, self.errors = queue.Queue(), []
        threading.Thread(target=self._out, daemon=True).start()
        self.err = threading.Thread(target=self._err, daemon=True)
        self.err.start()

    def _out(self):
        for line in self.child.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def _err(self):
        for line in self.child.stderr:
            self.errors.append(line.strip())

    def line(self, limit):
        """The next line; None: it has closed its output."""
        try:
            return self.lines.get(timeout=max(limit, 0.01))
        except queue.Empty:
            raise TimeoutError(f"nothing for {limit:.0f} s") from None

    def tell(self, text):
        try:
            self.child.stdin.write(text + "\n")
            self.child.stdin.flush()
        except OSError:
            pass

    def end(self, limit=3):
        """Its input ends; then it is asked to end; then it is ended."""
        for how in (self.child.stdin.close, self.child.terminate, lambda: os.killpg(self.child.pid, signal.SIGKILL)):
            try:
                how()
            except OSError:
                pass
            try:
                self.child.wait(limit)
                break
            except subprocess.TimeoutExpired:
                pass
        self.err.join(1)
        return self.child.returncode

    def said(self):
        """The last thing that it or gpuslice said."""
        told = [e for e in self.errors if e and "keeps user id 0" not in e]
        return told[-1][:300] if told else "it said nothing"


def sliced(command, memory=10 * GIB, name="attacker"):
    return [GPUSLICE, "run", *NODE, "--overcommit", "--memory", str(memory), "--name", name, "--", *command]


def natively(command):
    return [GPUSLICE, "sim", NODE[1], "--", *command] if SIM else list(command)


def tenant(*words):
    return [sys.executable, TENANTS, *map(str, words)]


def raw(name, *words, memory=10 * GIB):
    return [GPUSLICE, "__tenant", name, str(memory), *map(str, words)]


class Neighbour:
    """The tenant whose work must go on. It runs under `trace`, which tells from outside what its handles are."""

    def __init__(self):
        self.trace = f"{WORK}/neighbour.trace"
        for command in ([GPUSLICE, "trace", *NODE, "--values", "--output", self.trace, "--", *tenant("victim")],
                        sliced(tenant("victim"), name="neighbour")):
            self.program, self.last, self.gone = Program(command), None, False
            threading.Thread(target=self._watch, args=(self.program,), daemon=True).start()
            until = time.time() + 30
            while self.last is None and not self.gone and time.time() < until:
                time.sleep(0.05)
            if self.last:
                break
            note(f"the neighbour does not run: {self.program.said()}")
            self.program.end()
        if self.last is None:
            raise RuntimeError(f"the neighbour does not run: {self.program.said()}")
        self.handles = self._handles()

    def _watch(self, program):
        while (line := program.lines.get()) is not None:
            try:
                self.last = json.loads(line)["progress"]
            except (ValueError, KeyError, TypeError):
                note(f"neighbour: {line}")
        if program is self.program:
            self.gone = True

    def _handles(self):
        found, seen = {"client": 0xC1D00001, "channel": 0x5C000016, "memory": 0x5C000013}, False
        if not os.path.exists(self.trace):
            return found
        with open(self.trace) as f:
            for line in f:
                if "RM_ALLOC" in line and "status 0x0, thread" in line:
                    words = line.split("thread ")[1].split()[1:]
                    # The first channel computes; the last memory is what it allocated itself.
                    for name, key in (("_CHANNEL_GPFIFO", "channel"), ("NV01_MEMORY_LOCAL_USER", "memory")):
                        if name in line and (key == "memory" or not seen):
                            found["client"], found[key] = int(words[0], 16), int(words[2], 16)
                            seen |= key == "channel"
        return found

    def told(self):
        return json.dumps({"neighbour": {**self.handles, "finished": self.last["finished"]}})

    def rate(self, seconds=0.5):
        """Rounds a second from now on; and nothing may be wrong."""
        began, start = time.time(), self.last["finished"]
        time.sleep(seconds)
        return (self.last["finished"] - start) / (time.time() - began)

    def state(self):
        if self.gone:
            return f"ENDED: {self.program.said()}"
        return f"{self.last['wrong']} WRONG RESULTS" if self.last["wrong"] else ""


class Stage:
    def __init__(self):
        self.keeper = None
        if SIM:
            self.keeper = Program([GPUSLICE, "sim", "1xH200", "--", "sh", "-c", 'echo "$GPUSLICE_SIM"; exec cat'])
            NODE[:] = ["--sim", self.keeper.line(20)]
        self.observer = Program(natively(raw("card_observer")))
        self.free = self.ask(0)
        self.neighbour = Neighbour()
        self.base = self.neighbour.rate(1.0)
        self.wrong = 0

    def ask(self, pid):
        """What the driver counts for a process, in bytes by device; 0: what is free. None: it cannot be asked."""
        try:
            self.observer.tell(str(pid))
            return json.loads(self.observer.line(5) or "null")["memory"]
        except (TimeoutError, TypeError, KeyError, ValueError):
            return None

    def play(self, command, meanwhile=None, fds=(), limit=LIMIT):
        """Serves a tenant's program to its end: its finding, or None; what else it printed; the program."""
        program, until, finding, other = Program(command, fds), time.time() + limit, None, []
        try:
            while (line := program.line(until - time.time())) is not None:
                try:
                    said = json.loads(line)
                except ValueError:
                    said = line
                if said == "ask_neighbour":
                    if meanwhile:
                        meanwhile()
                    program.tell(self.neighbour.told())
                elif isinstance(said, dict) and "ask_memory" in said:
                    bytes_ = self.ask(said["ask_memory"])
                    program.tell(json.dumps({"memory": bytes_}) if bytes_ else "null")
                elif isinstance(said, dict) and "finding" in said:
                    finding = said["finding"]
                else:
                    other.append(line)
        except TimeoutError:
            other.append(f"ended after {limit} s")
        program.status = program.end()
        return finding, other, program


STAGE = None
ITEMS = []


def item(name, what, card_only=False):
    """Registers an attack: a function that returns (held or None, what came back)."""
    def register(body):
        ITEMS.append((name, what, card_only, body))
        return body
    return register


def finding(name, *words, memory=10 * GIB, fds=(), meanwhile=None, ends=False, limit=LIMIT):
    """A program of `gpuslice __tenant`; `ends`: that guard ends the tenant is right too."""
    found, other, program = STAGE.play(sliced(raw(name, *words, memory=memory), memory), meanwhile, fds, limit)
    if found:
        # A race that nobody won proves nothing.
        held = None if ends and found["held"] else found["held"]
        return held, f"{found['measured']} (expected {found['expected']}). {found['note']}"
    ended = any("ending the tenant" in e for e in program.errors)
    won = " ".join(e for e in program.errors if e.startswith("the race was won"))
    return (True if ends and ended and won else None if not other else False), f"exit {program.status}: {won} {program.said()} {' '.join(other)}"


def simple(number, name, what, *words, ends=False):
    item(number, what)(lambda: finding(name, *words, ends=ends))


simple("01", "threat_01", "allocate, map by UVM, free the handle, unmap: 1000 times; the driver's count against the ledger")
simple("02", "card_flags", "a thread swaps the flags of UVM_INITIALIZE while the kernel reads them; the files are then used", 4000)
simple("03", "threat_03", "UVM_INITIALIZE with MULTI_PROCESS_SHARING, and UVM_POPULATE_PAGEABLE")
simple("04", "threat_04", "RM_DUP_OBJECT of the neighbour's memory, by its real client and handle")
simple("05a", "card_class", "a thread swaps class 0x71 of RM_ALLOC_MEMORY for 0xf3 (FLA) while the kernel reads it; the handle is then used", 0xF3, 4000, ends=True)
simple("05b", "card_class", "the same for 0x3e (memory of the host)", 0x3E, 4000, ends=True)
simple("05c", "card_class", "the same for 0x40 (device memory)", 0x40, 4000, ends=True)
simple("06", "threat_06", "one byte 10,000 times, in 2 MiB pages 500 times, in 512 MiB pages 10 times; the driver's count against the ledger")
simple("08", "threat_08", "a seccomp listener of its own")
simple("09", "threat_09", "RM_ALLOC under other type bytes, XFER_CMD")
simple("11", "threat_11", "capabilities that reach out of a slice")
simple("12", "threat_12", "a device in the neighbour's address space (hClientShare, hTargetClient)")
simple("13", "threat_13", "events of the neighbour's client; kernel call-backs")
simple("14", "threat_14", "every call, class and control of the tables with a field that can name a client, with the neighbour's")
simple("14 detach", "foreign_detach_refused", "FIFO_DISABLE_CHANNELS with the neighbour's client and channel")
simple("15", "threat_15", "commands to the whole card (a size that the driver would refuse too)")
simple("16", "threat_16", "what answers tell of the neighbour's processes")
simple("17", "threat_17", "a debugger object for the neighbour's client; memory by address, registers")
simple("18", "threat_18", "profilers, the context-switch timeline, the fabric's manager")
simple("20", "threat_20", "MPS: its class and its calls")


simple("26", "stalled", "26 calls whose parameters fault for ever (userfaultfd); a free and 100 allocations meanwhile", 26, 1)


@item("19", "import of what another tenant exported (its control file came through a socket)")
def foreign_import():
    ours, theirs = socket.socketpair()
    exporter = Program(sliced(raw("card_exporter", ours.fileno()), name="exporter"), (ours.fileno(),))
    try:
        if exporter.line(LIMIT) != "exported":
            return None, f"nothing was exported: {exporter.said()}"
        return finding("threat_19", theirs.fileno(), fds=(theirs.fileno(),))
    finally:
        exporter.end()
        ours.close(), theirs.close()


def context():
    found = STAGE.play(sliced(tenant("context"), 2 * GIB, "starter"))
    return found[2].status == 0, "; ".join(found[1]) or found[2].said()


def hoard(kind, least, most, memory=20 * GIB):
    seen = []
    before = context()
    held, told = finding("hoarder", kind, least, most, memory=memory, meanwhile=lambda: seen.append(context()), limit=3 * LIMIT)
    if not seen:
        return None, f"{told}; no third tenant was started"
    good, said = seen[0]
    # Refused by the driver for another reason: then nothing was hoarded.
    held = good and (held if "then status 0x51" in told else None)
    return held, f"{told}. A third tenant's start: {said}; before: {before[1]}"


item("28 channels", "a hoarder of channels; a third tenant starts CUDA meanwhile")(lambda: hoard("channels", 1, 2048))
item("28 objects", "a hoarder of objects (names of one memory); a third tenant starts CUDA meanwhile")(lambda: hoard("names", 1000, 70000))
item("28 clients", "a hoarder of clients; a third tenant starts CUDA meanwhile")(lambda: hoard("clients", 10, 2000))
@item("28 contexts", "a hoarder of CUDA contexts (20 channels each); a third tenant starts CUDA meanwhile")
def hoard_contexts():
    seen, before = [], context()
    found, other, program = STAGE.play(sliced(tenant("contexts"), 40 * GIB), lambda: seen.append(context()))
    if not seen or program.status:
        return None, f"exit {program.status}: {program.said()} {other}"
    return seen[0][0], f"{'; '.join(other)}. A third tenant's start: {seen[0][1]}; before: {before[1]}"


item("28 host", "a hoarder of host memory; a third tenant starts CUDA meanwhile")(lambda: hoard("host", 10, 700))


def residue(kill):
    size = GIB // 4 if SIM else 8 * GIB
    holder = Program(sliced(tenant("hold", size), 10 * GIB, "holder"))
    line = holder.line(LIMIT) or ""
    if not line.startswith("held "):
        holder.end()
        return None, f"nobody held anything: {line} {holder.said()}"
    if kill:
        children = [int(p) for p in os.listdir("/proc") if p.isdigit() and in_session(p, holder.child.pid)]
        if not children:
            return None, "there was nobody to kill"
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    holder.end()
    time.sleep(0.3)
    most = size * 2 if SIM else 120 * GIB
    found, other, program = STAGE.play(sliced(tenant("read", most), "100%"))
    try:
        told = json.loads(other[-1])
    except (ValueError, IndexError):
        return None, f"nothing was read: {other} {program.said()}"
    enough = told["looked_at"] >= size
    clean = told["not_zero"] == 0 and told["pattern"] == 0
    return clean and enough, (f"{told['looked_at'] >> 20} MiB looked at {told['how']}: {told['not_zero']} words are not zero, "
                              f"{told['pattern']} hold the pattern of {size >> 20} MiB that were held")


def in_session(pid, leader):
    """Whether it is a tenant's program of this run: not the supervisor, not the helper."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            session = int(f.read().rsplit(")", 1)[1].split()[3])
        with open(f"/proc/{pid}/cmdline") as f:
            words = f.read().split("\0")
    except OSError:
        return False
    return session == leader and int(pid) != leader and "__helper" not in words


item("residue, exit", "fresh memory after a tenant that held a pattern has ended")(lambda: residue(False))
item("residue, kill -9", "fresh memory after such a tenant's programs were killed")(lambda: residue(True))


def cuda_attack(word):
    found, other, program = STAGE.play(sliced(tenant(word)))
    return (True if other and program.status == 0 else None), "; ".join(other) or f"exit {program.status}: {program.said()}"


item("fault", "a kernel writes where nothing is mapped", card_only=True)(lambda: cuda_attack("fault"))
item("17 trap", "a warp at `brkpt`, and no debugger", card_only=True)(lambda: cuda_attack("breakpoint"))


@item("17 breakpoint", "cuda-gdb holds a kernel of the attacker at its first instruction for 4 s", card_only=True)
def held_at_breakpoint():
    if not shutil.which("cuda-gdb"):
        return None, "cuda-gdb is not installed"
    gdb = ["cuda-gdb", "-batch", "-ex", "set pagination off", "-ex", "set cuda break_on_launch application", "-ex", "run",
           "-ex", "info cuda kernels", "-ex", "shell echo STOPPED; sleep 4", "-ex", "kill", "--args", *tenant("spin")]
    # The debugger itself takes long to start.
    program, until, said, rate = Program(sliced(gdb)), time.time() + 2 * LIMIT, [], None
    try:
        while (line := program.line(until - time.time())) is not None:
            if line == "STOPPED":
                time.sleep(0.2)
                rate = STAGE.neighbour.rate(2.5)
            elif "gpuslice_spin" in line or "rror" in line or "hit" in line:
                said.append(line)
    except TimeoutError:
        said.append(f"ended after {2 * LIMIT} s")
    program.end()
    if rate is None:
        return None, f"the debugger did not stop a kernel: {said[-3:]} {program.said()}"
    stopped = any("gpuslice_spin" in line for line in said)
    return (rate > 0.4 * STAGE.base if stopped else None), \
        f"meanwhile the neighbour made {rate:.0f} rounds a second (alone {STAGE.base:.0f}); the debugger: {said[-2:]}"


def run_item(name, what, card_only, body):
    neighbour = STAGE.neighbour
    try:
        before = neighbour.rate(0.3)
        if card_only and SIM:
            held, told = None, "only on a card"
        else:
            held, told = body()
        after = neighbour.rate(0.5)
        if after < 0.8 * STAGE.base:
            # What has just ended may still be torn down.
            time.sleep(1)
            after = neighbour.rate(1.0)
    except Exception as e:
        held, told, before, after = None, f"the script's own error: {e!r}", 0, neighbour.rate(1.0)
    harmed = neighbour.state() or ("SLOWER" if after < 0.7 * STAGE.base else "")
    verdict = "not tried" if held is None else "held" if held and not harmed else "NOT HELD"
    if held is None and harmed:
        verdict = "NOT HELD"
    cell = " ".join(told.split()).replace("|", "\\|")[:1500]
    print(f"| {name} | {what} | {cell} | {before:.0f} → {after:.0f} {harmed} | {verdict} |", flush=True)
    note(f"{name}: {verdict}")
    STAGE.wrong += verdict == "NOT HELD"


def one_line(command):
    found, other, program = STAGE.play(command)
    if found:
        return found["measured"]
    return "; ".join(other) if other else f"exit {program.status}: {program.said()}"


def facts():
    ordinary = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.getuid() == 0 and not SIM else []
    yield "What the driver says natively, as an ordinary user", lambda: one_line(natively([*ordinary, *raw("card_facts")]))
    yield "In a slice", lambda: one_line(sliced(raw("card_facts")))
    yield "`nvidia-smi -q -d MEMORY`", smi
    for name, word in (("200 times cuMemAllocManaged of 1 MiB and cuMemFree, a pair", "managed"), ("Managed memory through /proc/self/mem", "mem")):
        yield f"{name}, natively", lambda word=word: one_line(natively(tenant(word)))
        yield f"{name}, in a slice", lambda word=word: one_line(sliced(tenant(word)))
    yield "A UVM file that only a second file keeps, when its process has ended", kept


def smi():
    done = subprocess.run(["nvidia-smi", "-q", "-d", "MEMORY"], capture_output=True, text=True, timeout=LIMIT)
    return "; ".join(" ".join(line.split()) for line in done.stdout.splitlines() if "Usage" in line or "Total" in line)


def kept():
    if SIM:
        return "only on a card"

    def free():
        time.sleep(1)
        with open("/proc/meminfo") as f:
            return int(next(line for line in f if line.startswith("MemFree")).split()[1]) >> 10

    ours, theirs = socket.socketpair()
    before = free()
    child = subprocess.Popen(tenant("keeper", theirs.fileno()), pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True)
    ours.settimeout(LIMIT)
    theirs.close()
    said, files, _, _ = socket.recv_fds(ours, 100, 1)
    child.wait(LIMIT)
    ended = free()
    for fd in files:
        os.close(fd)
    return (f"statuses of INITIALIZE and MM_INITIALIZE {said.decode()}, {len(files)} file kept; free memory of the host: {before} MiB, "
            f"{ended} with the file after the process of 2 GiB has ended, {free()} when it is closed; {child.stderr.read().strip()[-200:]}")


def xids():
    done = subprocess.run("dmesg | grep -c 'NVRM.*\\(Assert\\|Xid\\)'", shell=True, capture_output=True, text=True)
    return done.stdout.strip() or "not readable"


def run():
    global STAGE
    gpu = "simulated H200" if SIM else subprocess.run(
        "nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader", shell=True, capture_output=True, text=True).stdout.strip()
    version = subprocess.run([GPUSLICE, "--version"], capture_output=True, text=True).stdout.strip()
    print(f"# Attacks between two tenants: {gpu}\n\n{time.strftime('%Y-%m-%d')}, kernel {os.uname().release}, {version}, "
          f"as user {os.getuid()}. Command: `scripts/card_threats.py GPUSLICE`. Numbers are those of SECURITY.md.\n", flush=True)
    logged, STAGE = xids(), Stage()
    print(f"The neighbour makes {STAGE.base:.0f} rounds a second alone (a kernel of 1 ms, a sum that is checked, 64 KiB of its memory that "
          f"are read and checked), under client {STAGE.neighbour.handles['client']:#x}, channel {STAGE.neighbour.handles['channel']:#x}, "
          f"memory {STAGE.neighbour.handles['memory']:#x}, which the attacks name.\n")
    print("| threat | tried | came back | neighbour, rounds a second | verdict |\n|---|---|---|---|---|", flush=True)
    for entry in ITEMS:
        if not ONLY or entry[0] in ONLY:
            run_item(*entry)
    state = STAGE.neighbour.state() or "every result right"
    print(f"\nThe neighbour at the end: {STAGE.neighbour.last['finished']} rounds, {state}. Not held: {STAGE.wrong}.", flush=True)
    helper_left = STAGE.neighbour.program.end()
    time.sleep(1)
    print(f"Free on the card before all slices and after: {STAGE.free}, {STAGE.ask(0)} (the neighbour's exit {helper_left}).", flush=True)
    if not ONLY or "facts" in ONLY:
        print("\n## What else was asked\n")
        for name, body in facts():
            try:
                told = body()
            except Exception as e:
                told = f"the script's own error: {e!r}"
            print(f"- {name}: {told}", flush=True)
            note(name)
    STAGE.observer.end()
    if STAGE.keeper:
        STAGE.keeper.end()
    print(f"\nFailed assertions and Xid errors in the kernel's log before and after: {logged}, {xids()} (the faults above make some). "
          f"{time.time() - BEGAN:.0f} s.", flush=True)


try:
    run()
finally:
    shutil.rmtree(WORK, ignore_errors=True)
