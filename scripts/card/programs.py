"""Programs that people run, each in a few seconds. Prints one line a figure: NAME VALUE, or "absent: WHY".

    programs.py torch | workers | jax | cupy | triton | generate | vmm | checkpoint | debugger | nccl
"""
import ctypes
import os
import subprocess
import sys
import time


def rate(work, done, seconds=2.0):
    """Times a second, after a warm-up of three."""
    for _ in range(3):
        work()
    done()
    n, began = 0, time.time()
    while time.time() - began < seconds:
        for _ in range(10):
            work()
        n += 10
        done()
    return n / (time.time() - began)


def torch_():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x, y = torch.randn(256, 1024, device="cuda"), torch.randn(256, 1024, device="cuda")

    def step(net=model):
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

    print(f"eager steps/s {rate(step, torch.cuda.synchronize):.0f}", flush=True)
    compiled = torch.compile(model)
    print(f"compiled steps/s {rate(lambda: step(compiled), torch.cuda.synchronize):.0f}", flush=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    print(f"graph steps/s {rate(graph.replay, torch.cuda.synchronize):.0f}")


def shared_sum(queue, out):
    out.put(float(queue.get().sum()))


def sum_elsewhere(size):
    """The sum of so many ones on the card, as another process sees them."""
    import torch
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue, out = context.Queue(), context.Queue()
    child = context.Process(target=shared_sum, args=(queue, out))
    child.start()
    tensor = torch.ones(size, device="cuda")
    queue.put(tensor)
    total = out.get(timeout=60)
    child.join()
    return total


class Numbers:
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        import torch

        return torch.full((256,), float(i))


def workers():
    import torch

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=64, num_workers=8, pin_memory=True)
    total = sum(float(batch.cuda(non_blocking=True).sum()) for batch in loader)
    print(f"8 workers' sum {total:.0f}")
    print(f"shared tensor's sum {sum_elsewhere(1 << 20):.0f}")


def jax_():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
    import jax
    import jax.numpy as jnp

    x = jnp.ones((4096, 4096), jnp.bfloat16)
    multiply = jax.jit(lambda a: a @ a)
    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    print(f"preallocated MiB {limit >> 20}")
    print(f"matmul/s {rate(lambda: multiply(x), lambda: multiply(x).block_until_ready()):.0f}")


def cupy_():
    import cupy

    x = cupy.random.rand(2048, 2048)
    spectrum = cupy.fft.ifft2(cupy.fft.fft2(x)).real
    print(f"fft error {float(abs(spectrum - x).max()):.0e}")
    double = cupy.RawKernel("extern \"C\" __global__ void d(float *x) { x[threadIdx.x] *= 2; }", "d")
    y = cupy.ones(256, cupy.float32)
    double((1,), (256,), (y,))
    print(f"kernel's sum {float(y.sum()):.0f}")
    print(f"solve error {float(abs(x @ cupy.linalg.solve(x, cupy.eye(2048)) - cupy.eye(2048)).max()) < 1e-6}")


def triton_():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

    x = torch.ones(1 << 20, device="cuda")
    out = torch.empty_like(x)
    add[(1 << 10,)](x, x, out, x.numel(), BLOCK=1024)
    print(f"sum {float(out.sum()):.0f}")


def generate():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=768, n_head=12)).cuda().eval()
    prompt = torch.randint(0, 50000, (8, 32), device="cuda")
    with torch.no_grad():
        model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
        began = time.time()
        out = model.generate(prompt, max_new_tokens=128, min_new_tokens=128, do_sample=False, pad_token_id=0)
        torch.cuda.synchronize()
    print(f"tokens/s {out[:, 32:].numel() / (time.time() - began):.0f}")


def vmm():
    """Growing segments, which are mapped piece by piece, shared with another process by descriptors."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    print(f"exported sum {sum_elsewhere(1 << 22):.0f}")


HOLDER = """
import torch, sys
x = torch.arange(1 << 29, device='cuda', dtype=torch.int64)
torch.cuda.synchronize()
print('ready', flush=True)
sys.stdin.readline()
print(int(x[::1 << 20].sum()) == sum(range(0, 1 << 29, 1 << 20)), flush=True)
"""


def checkpoint():
    """A process that holds 4 GiB goes to host memory and comes back (CUDA driver API, 12.8 and later)."""
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def held():
        assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return (total.value - free.value) >> 20

    child = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "ready"
    before, blank = held(), (ctypes.c_byte * 64)()
    steps = []
    for name in ("Lock", "Checkpoint"):
        steps.append(f"{name} {getattr(cuda, 'cuCheckpointProcess' + name)(child.pid, blank)}")
    away = held()
    for name in ("Restore", "Unlock"):
        steps.append(f"{name} {getattr(cuda, 'cuCheckpointProcess' + name)(child.pid, blank)}")
    after = held()
    child.stdin.write("\n")
    child.stdin.flush()
    print(", ".join(steps))
    print(f"MiB held before {before} away {away} after {after}")
    print(f"contents {child.stdout.readline().strip()}")
    child.wait()


def debugger():
    """cuda-gdb attaches to a program of the same slice and lets go of it."""
    child = subprocess.Popen([sys.executable, "-c", HOLDER.replace("1 << 29", "1 << 20").replace("1 << 20)", "1 << 10)")],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "ready"
    gdb = subprocess.run(["cuda-gdb", "-batch", "-p", str(child.pid), "-ex", "info cuda devices", "-ex", "detach"],
                         capture_output=True, text=True, timeout=100)
    said = [l.strip() for l in (gdb.stdout + gdb.stderr).splitlines() if "sm_" in l or "No CUDA" in l or "rror" in l]
    print(f"cuda-gdb exit {gdb.returncode}: {said[:3]}")
    child.stdin.write("\n")
    child.stdin.flush()
    print(f"goes on {child.stdout.readline().strip() != ''}")
    child.wait()


def reduce_on(rank, cards):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", NCCL_NVLS_ENABLE="0")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=cards)
    x = torch.ones(64 << 20, device="cuda")
    dist.all_reduce(x)
    right = bool((x == cards).all())
    x.zero_()
    times = rate(lambda: dist.all_reduce(x), torch.cuda.synchronize)
    # Bandwidth of the bus as nccl-tests states it: of a ring, 2 (n - 1) / n of the bytes cross each link.
    bandwidth = x.numel() * 4 * times * 2 * (cards - 1) / cards / 1e9
    if rank == 0:
        free, total = torch.cuda.mem_get_info()
        print(f"sum right {right}\nall-reduce of 256 MiB over {cards} cards, bus GB/s {bandwidth:.1f}\nMiB of a card {total >> 20}", flush=True)
    dist.destroy_process_group()


def nccl():
    """All-reduce over all cards, by a process for each (multicast stays off)."""
    import torch
    import torch.multiprocessing as mp

    mp.spawn(reduce_on, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())


ALL = {"torch": torch_, "workers": workers, "jax": jax_, "cupy": cupy_, "triton": triton_, "generate": generate,
       "vmm": vmm, "checkpoint": checkpoint, "debugger": debugger, "nccl": nccl}

if __name__ == "__main__":
    try:
        ALL[sys.argv[1]]()
    except ImportError as e:
        print(f"absent: {e}")
