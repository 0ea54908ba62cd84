"""PyTorch's attention kernels on the shapes of bench_attention.c: one JSON line a figure, GPU time by graph replay."""
import json
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.manual_seed(0)
torch.set_grad_enabled(False)


def replay_us(fn, n=5):
    for _ in range(3):
        fn()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(n):
            fn()
    times = []
    for _ in range(20):
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / n)
    return sorted(times)[10]


for b, h, s, d in ((32, 12, 128, 64), (32, 12, 512, 64), (8, 16, 2048, 64), (2, 16, 8192, 64), (8, 16, 2048, 128),
                   (2, 16, 8192, 128), (4, 16, 2048, 256), (8, 16, 2048, 96)):
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for causal in (False, True):
        row = dict(peer="attention", b=b, h=h, s=s, d=d, causal=causal)
        flop = 4 * b * h * s * s * d * (0.5 if causal else 1)
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    us = replay_us(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal))
                row[name + "_us"] = round(us, 1)
                row[name + "_tflops"] = round(flop / us / 1e6)
            except RuntimeError as error:
                row[name + "_error"] = str(error)[:60]
        print(json.dumps(row), flush=True)
