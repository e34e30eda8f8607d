"""Programs of two tenants for card_threats.py: CUDA by its driver API, nothing else.

    tenants.py victim | hold BYTES | read BYTES | fault | breakpoint | spin | context | contexts | managed | mem | keeper SOCKET
"""
import array
import ctypes
import fcntl
import json
import mmap
import os
import random
import socket
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PATTERN = 0x5E471E15
# Counts words that are not zero, and those that hold the pattern; any number of threads.
COUNT = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry card_count(.param .u64 p, .param .u64 n, .param .u64 out, .param .u32 pattern)
{
    .reg .pred %p, %q, %r;
    .reg .u32 %a, %b, %c, %v, %w;
    .reg .u64 %i, %s, %n, %at, %p0, %o, %one;
    ld.param.u64 %p0, [p];
    ld.param.u64 %n, [n];
    ld.param.u64 %o, [out];
    ld.param.u32 %w, [pattern];
    mov.u32 %a, %ctaid.x;
    mov.u32 %b, %ntid.x;
    mov.u32 %c, %tid.x;
    mul.wide.u32 %i, %a, %b;
    cvt.u64.u32 %s, %c;
    add.u64 %i, %i, %s;
    mov.u32 %a, %nctaid.x;
    mul.wide.u32 %s, %a, %b;
    mov.u64 %one, 1;
TURN:
    setp.ge.u64 %p, %i, %n;
    @%p bra DONE;
    shl.b64 %at, %i, 2;
    add.u64 %at, %at, %p0;
    ld.global.u32 %v, [%at];
    setp.ne.u32 %q, %v, 0;
    @%q red.global.add.u64 [%o], %one;
    setp.eq.u32 %r, %v, %w;
    @%r red.global.add.u64 [%o+8], %one;
    add.u64 %i, %i, %s;
    bra TURN;
DONE:
    ret;
}
"""
BREAKPOINT = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry card_stop()\n{\n    brkpt;\n    ret;\n}\n"
cuda = None


class Failed(Exception):
    pass


def ok(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise Failed(f"{name} failed with {code}")


def begin():
    """CUDA with a context; how long cuInit and the context took, in ms."""
    global cuda
    began = time.perf_counter()
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    ok("cuInit", 0)
    started = time.perf_counter()
    ok("cuDeviceGet", ctypes.byref(device), 0)
    ok("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    ok("cuCtxSetCurrent", context)
    return (started - began) * 1e3, (time.perf_counter() - started) * 1e3


def alloc(size):
    at = ctypes.c_uint64()
    ok("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
    return at.value


def function(text, name):
    module, found = ctypes.c_void_p(), ctypes.c_void_p()
    ok("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text + b"\0"))
    ok("cuModuleGetFunction", ctypes.byref(found), module, ctypes.c_char_p(name))
    return found


def kernels(*names):
    with open(f"{HERE}/conformance.ptx", "rb") as f:
        text = f.read()
    return [function(text, b"gpuslice_" + n) for n in names]


def launch(kernel, *values, blocks=1, threads=1):
    pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values))
    ok("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)


def read(at, size):
    data = (ctypes.c_char * size)()
    ok("cuMemcpyDtoH_v2", data, ctypes.c_uint64(at), ctypes.c_size_t(size))
    return data.raw


def say(text):
    print(text, flush=True)


def victim():
    """Kernels one after another, each result looked at, and memory that holds what was written."""
    size, words, piece = 64 << 20, 2048, 64 << 10
    begin()
    memory, out = alloc(size), alloc(8)
    ok("cuMemsetD32_v2", ctypes.c_uint64(memory), PATTERN, ctypes.c_size_t(size // 4))
    spin, total = kernels(b"spin", b"sum")
    finished, wrong, said = 0, 0, 0.0
    while True:
        launch(spin, ctypes.c_uint64(1_000_000))
        launch(total, ctypes.c_uint64(memory), ctypes.c_uint64(words), ctypes.c_uint64(out))
        ok("cuCtxSynchronize")
        wrong += int.from_bytes(read(out, 8), "little") != PATTERN * words
        at = random.randrange(size // piece) * piece
        wrong += read(memory + at, piece) != PATTERN.to_bytes(4, "little") * (piece // 4)
        finished += 1
        if time.time() - said > 0.02:
            said = time.time()
            say(json.dumps({"progress": {"client": 0, "channel": 0, "memory": 0, "finished": finished, "wrong": wrong}}))


def hold(size):
    begin()
    step, at = min(size, 1 << 30), []
    for _ in range(size // step):
        at.append(alloc(step))
        ok("cuMemsetD32_v2", ctypes.c_uint64(at[-1]), PATTERN, ctypes.c_size_t(step // 4))
    ok("cuCtxSynchronize")
    assert read(at[-1], 4) == PATTERN.to_bytes(4, "little")
    say(f"held {os.getpid()}")
    sys.stdin.read()


def read_fresh(size):
    """Looks at all memory that can be had, up to `size`, which nobody in this program has written."""
    begin()
    step, out, had = min(size, 1 << 30), alloc(16), []
    ok("cuMemsetD8_v2", ctypes.c_uint64(out), 0, ctypes.c_size_t(16))
    try:
        while len(had) < size // step:
            had.append(alloc(step))
    except Failed:
        pass
    try:
        count, by = function(COUNT, b"card_count"), "by a kernel"
        for at in had:
            launch(count, ctypes.c_uint64(at), ctypes.c_uint64(step // 4), ctypes.c_uint64(out), ctypes.c_uint32(PATTERN), blocks=1024, threads=256)
        ok("cuCtxSynchronize")
        found = array.array("Q", read(out, 16))
    except Failed:
        # Slower: only as much as is soon done.
        by, found, had = "by copies", [0, 0], had[: max(1, (10 << 30) // step)]
        for at in had:
            data = read(at, step)
            found[0] += len(data) - data.count(0)
            found[1] += data.count(PATTERN.to_bytes(4, "little"))
    say(json.dumps({"looked_at": len(had) * step, "not_zero": found[0], "pattern": found[1], "how": by}))


def fault():
    begin()
    fill, = kernels(b"fill")
    launch(fill, ctypes.c_uint64(0x10), ctypes.c_uint32(1), ctypes.c_uint64(1))
    code = cuda.cuCtxSynchronize()
    say(f"an address that is not mapped: cuCtxSynchronize gives {code}, the next call {cuda.cuCtxSynchronize()}")


def breakpoint_():
    begin()
    launch(function(BREAKPOINT, b"card_stop"))
    say(f"brkpt without a debugger: cuCtxSynchronize gives {cuda.cuCtxSynchronize()}")


def spin():
    begin()
    kernel, = kernels(b"spin")
    say("spins")
    for _ in range(10):
        launch(kernel, ctypes.c_uint64(200_000_000))
        ok("cuCtxSynchronize")
    say("done")


def context():
    init, made = begin()
    at = alloc(64 << 20)
    ok("cuMemsetD8_v2", ctypes.c_uint64(at), 1, ctypes.c_size_t(64 << 20))
    ok("cuCtxSynchronize")
    say(f"cuInit {init:.0f} ms, context {made:.0f} ms")


def contexts():
    """Makes contexts until it is refused, has a third tenant start meanwhile, and ends."""
    begin()
    device, made = ctypes.c_int(), 0
    ok("cuDeviceGet", ctypes.byref(device), 0)
    while made < 200:
        context = ctypes.c_void_p()
        code = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
        if code:
            break
        made += 1
    say(json.dumps("ask_neighbour"))
    sys.stdin.readline()
    say(f"{made} contexts beside the first, then error {code}")


def managed():
    begin()
    took = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(200):
            at = ctypes.c_uint64()
            ok("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(1 << 20), 1)
            ok("cuMemFree_v2", at)
        took.append((time.perf_counter() - began) / 200 * 1e6)
    say(f"{sorted(took)[2]:.1f} us (median of 5 times 200; {min(took):.1f} to {max(took):.1f})")


def mem():
    """Reads managed memory through /proc/self/mem, before and after it is said not to go to children."""
    begin()
    at, size, libc = ctypes.c_uint64(), 2 << 20, ctypes.CDLL(None, use_errno=True)
    ok("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(size), 1)
    ctypes.memset(at.value, 7, size)

    def look():
        try:
            fd = os.open("/proc/self/mem", os.O_RDONLY)
            try:
                return f"{len(os.pread(fd, 4096, at.value))} bytes"
            finally:
                os.close(fd)
        except OSError as e:
            return os.strerror(e.errno)

    said = [f"touched by the processor: {look()}"]
    for advice, name in ((10, "MADV_DONTFORK"), (11, "MADV_DOFORK")):
        code = libc.madvise(ctypes.c_void_p(at.value), ctypes.c_size_t(size), advice)
        why = "" if code == 0 else f" ({os.strerror(ctypes.get_errno())})"
        said.append(f"after {name}{why}: {look()}")
    ok("cuMemsetD8_v2", at, 9, ctypes.c_size_t(size))
    ok("cuCtxSynchronize")
    said.append(f"where the GPU has it: {look()}")
    say("; ".join(said))


def keeper(number):
    """Touches 2 GiB, binds a UVM file to this address space, hands out the file that keeps it, and ends."""
    hog = mmap.mmap(-1, 2 << 30)
    for at in range(0, 2 << 30, 4096):
        hog[at] = 1
    file, kept = (os.open("/dev/nvidia-uvm", os.O_RDWR | os.O_CLOEXEC) for _ in range(2))
    block = bytearray(16)
    fcntl.ioctl(file, 0x30000001, block, True)
    said = [int.from_bytes(block[8:12], "little")]
    block = bytearray(file.to_bytes(4, "little") + bytes(4))
    fcntl.ioctl(kept, 75, block, True)
    said.append(int.from_bytes(block[4:8], "little"))
    socket.send_fds(socket.socket(fileno=number), [json.dumps(said).encode()], [kept])
    os._exit(0)


if __name__ == "__main__":
    names = {"victim": victim, "hold": hold, "read": read_fresh, "fault": fault, "breakpoint": breakpoint_, "spin": spin,
             "context": context, "contexts": contexts, "managed": managed, "mem": mem, "keeper": keeper}
    try:
        names[sys.argv[1]](*map(int, sys.argv[2:]))
    except Failed as e:
        sys.exit(str(e))
