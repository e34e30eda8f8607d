"""A DataLoader with 8 workers that hand tensors over in shared memory; prints seconds."""
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __len__(self):
        return 6000

    def __getitem__(self, i):
        return torch.full((64, 256), float(i))


if __name__ == "__main__":
    torch.cuda.init()
    best = 1e9
    for _ in range(3):
        began = time.time()
        total = sum(float(b[0, 0, 0]) for b in DataLoader(Items(), batch_size=16, num_workers=8))
        best = min(best, time.time() - began)
    print("loader %.3f" % best)
