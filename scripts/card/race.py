"""Four processes of one tenant allocate at once until each is refused; prints what each reached."""
import ctypes
import multiprocessing as mp

STEP = 16 << 20


def racer(barrier, results):
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    barrier.wait()
    taken, refusal = 0, 0
    while True:
        pointer = ctypes.c_uint64()
        refusal = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(STEP))
        if refusal:
            break
        taken += STEP
    barrier.wait()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    results.put((taken, refusal, free.value, total.value))
    barrier.wait()
    barrier.wait()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    barrier, results = mp.Barrier(5), mp.Queue()
    racers = [mp.Process(target=racer, args=(barrier, results)) for _ in range(4)]
    for r in racers:
        r.start()
    barrier.wait()
    barrier.wait()
    barrier.wait()
    import time

    time.sleep(1.5)
    barrier.wait()
    got = [results.get() for _ in racers]
    for r in racers:
        r.join()
    print("race taken", sum(g[0] for g in got), "refusals", [g[1] for g in got], "free", got[0][2], "total", got[0][3])
