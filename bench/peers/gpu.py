"""PyTorch on the GPU, on the work of issue 4's table: one JSON line a figure, GPU microseconds by graph replay, N(0,1) data.

usage: gpu.py [--quick] [--serve | section ...]     sections: host copy chain norm linear attention encoder
--serve: sections are read from standard input, and {"done": ...} ends each; `encoder 32x128` is one of its shapes.
--quick: nothing that is compiled.

eager: one kernel an op, as PyTorch runs it. compiled: torch.compile. Both captured in a CUDA graph, so that neither Python
nor launches are in a figure.
"""
import json
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SECTIONS = ("host", "copy", "chain", "norm", "linear", "attention", "encoder")
BF16 = torch.bfloat16
QUICK = "--quick" in sys.argv


def compiled_us(function, call, calls=5):
    """{"compiled_us": ...} of call(compiled function); nothing with --quick."""
    if QUICK:
        return {}
    compiled = torch.compile(function, dynamic=False)
    return {"compiled_us": replay_us(lambda: call(compiled), calls)}


def replay_us(function, calls=5, samples=21):
    """Median time of one call, over replays of a graph that holds `calls` of them."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    times = []
    for i in range(samples + 2):
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(stop) * 1e3 / calls)
    return round(sorted(times)[len(times) // 2], 2)


def normal(*shape, dtype=BF16, scale=1.0):
    return torch.randn(*shape, device="cuda", dtype=dtype) * scale


def say(**row):
    print(json.dumps(row), flush=True)


def host():
    say(peer="host", torch=torch.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(),
        device=torch.cuda.get_device_name())


def copy():
    x = torch.empty(2**30, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    us = replay_us(lambda: y.copy_(x))
    say(peer="copy", bytes=2**30, us=us, tbps=round(2 * 2**30 / us / 1e6, 3))


def chain():
    x = normal(2**25, dtype=torch.float32)
    y = torch.empty_like(x)

    def steps(v, k=16):
        for _ in range(k):
            v = v * 1.001 + 0.001
        return v

    one = torch.compile(lambda v: v * 1.001 + 0.001) if not QUICK else None

    def separate():
        v = x
        for _ in range(16):
            v = one(v)

    found = compiled_us(steps, lambda compiled: compiled(x))
    if not QUICK:
        found["separate_us"] = replay_us(separate, calls=1)
    say(peer="chain", k=16, n=2**25, copy_us=replay_us(lambda: y.copy_(x)), **found)


def norm():
    for rows, width in ((16384, 4096), (8192, 8192), (65536, 768)):
        x, r, w, b = normal(rows, width), normal(rows, width), normal(width), normal(width)
        y = torch.empty_like(x)
        plain = lambda x, r, w, b: F.layer_norm(x, (x.shape[1],), w, b)
        added = lambda x, r, w, b: F.layer_norm(x + r, (x.shape[1],), w, b)
        row = dict(peer="norm", rows=rows, cols=width, copy_us=replay_us(lambda: y.copy_(x)))
        for name, function in (("layer_norm", plain), ("add_layer_norm", added)):
            row[f"{name}_eager_us"] = replay_us(lambda: function(x, r, w, b))
            for us in compiled_us(function, lambda compiled: compiled(x, r, w, b)).values():
                row[f"{name}_compiled_us"] = us
        say(**row)


def linear():
    for m, k, n in ((16384, 768, 3072), (16384, 1024, 4096), (8192, 4096, 16384)):
        x, w, b = normal(m, k), normal(n, k, scale=1 / math.sqrt(k)), normal(n)
        wt = w.t()
        both = lambda x, w, b: F.gelu(F.linear(x, w, b))
        calls = 3 if m * k * n > 1e11 else 10
        say(peer="linear", m=m, k=k, n=n, product_us=replay_us(lambda: x @ wt, calls),
            lt_bias_tanh_us=replay_us(lambda: torch._addmm_activation(b, x, wt, use_gelu=True), calls),
            eager_us=replay_us(lambda: both(x, w, b), calls))


def attention():
    for b, h, s, d, causal in ((32, 12, 512, 64, False), (8, 16, 2048, 128, False), (2, 16, 8192, 128, True)):
        q, k, v = (normal(b, h, s, d) for _ in range(3))
        row = dict(peer="attention", b=b, h=h, s=s, d=d, causal=causal)
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    row[f"{name}_us"] = replay_us(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal))
            except RuntimeError as error:
                row[f"{name}_error"] = str(error)[:80]
        say(**row)


class Layer(torch.nn.Module):
    """BERT's encoder layer (norm after), as one writes it with PyTorch."""

    def __init__(self, hidden, heads, inner):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = torch.nn.Linear(hidden, inner), torch.nn.Linear(inner, hidden)
        self.norm1, self.norm2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, hidden)
        x = self.norm1(x + self.out(a))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def encoder(only=""):
    hidden, heads, inner, layers = 768, 12, 3072, 12
    net = torch.nn.Sequential(*[Layer(hidden, heads, inner) for _ in range(layers)]).to("cuda", BF16).eval()
    for b, s in ((32, 128), (32, 512), (1, 128)):
        if only not in ("", f"{b}x{s}"):
            continue
        x = normal(b, s, hidden)
        began = time.monotonic()
        found = compiled_us(net, lambda compiled: compiled(x), calls=1)
        say(peer="encoder", layers=layers, hidden=hidden, b=b, s=s, **found, compile_s=round(time.monotonic() - began, 1),
            eager_us=replay_us(lambda: net(x), calls=1))


def main():
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch._dynamo.config.cache_size_limit = 64
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    for section in map(str.strip, sys.stdin) if "--serve" in sys.argv else named or SECTIONS:
        name, *words = section.split()
        globals()[name](*words)
        if "--serve" in sys.argv:
            say(done=section)


if __name__ == "__main__":
    main()
