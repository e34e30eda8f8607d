"""PyTorch programs that want a card's time: matmul | graph | generate | train, and seconds. Prints lines as share.cu does."""
import os
import sys
import time

import torch

what, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
b = torch.empty_like(a)


def matmul():
    torch.mm(a, a, out=b)


def generator():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=768, n_head=12)).cuda().eval()
    prompt = torch.randint(0, 50000, (16, 32), device="cuda")

    def step():
        with torch.no_grad():
            model(prompt)

    return step


if what == "generate":
    step = generator()
elif what == "graph":
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        matmul()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            matmul()
    step = graph.replay
else:
    step = matmul
step()
torch.cuda.synchronize()
events = [torch.cuda.Event(blocking=True) for _ in range(4)]
done, shown, ends, used = 0, 0, time.monotonic() + seconds, 0
while (now := time.monotonic()) < ends:
    if used >= 4:
        events[used % 4].synchronize()
        done += 1
    step()
    events[used % 4].record()
    used += 1
    if now - shown >= 0.05:
        print(os.getpid(), f"{now * 1000:.1f}", done, flush=True)
        shown = now
torch.cuda.synchronize()
