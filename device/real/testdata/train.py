# Copyright (c) Ebbtide authors
# SPDX-License-Identifier: MPL-2.0

"""A small training on a card, or how much of a card there is: for the tests of package real.

train STEPS: prints the losses of a network with fixed seeds, and the median time of a step.
graph STEPS: the same, each step a replay of one CUDA graph.
compiled STEPS: train, with the network compiled.
jax STEPS: the same in JAX.
limit: allocates until that is refused, frees, and allocates again.
Each prints one line of JSON, all but limit also one at a quarter of the steps.
"""

import json
import statistics
import sys
import time

WARM = 50


def trained(steps, step, loss):
    """Runs the steps, and returns ten losses and the median time of a step."""
    losses, took = [], []
    for k in range(steps):
        begun = time.perf_counter()
        step(k)
        took.append(time.perf_counter() - begun)
        if k == steps // 4:
            print(json.dumps({"quarter": True}), flush=True)
        if k % (steps // 10) == steps // 10 - 1:
            losses.append(loss())
    return {"losses": losses, "step_ms": 1000 * statistics.median(took[WARM:])}


def memory():
    free, total = torch.cuda.mem_get_info()
    return {"free": free, "total": total}


class Training:
    def __init__(self):
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(1024, 2048), torch.nn.ReLU(),
            torch.nn.Linear(2048, 2048), torch.nn.ReLU(),
            torch.nn.Linear(2048, 10),
        ).cuda()
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self.x = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(2)).cuda()
        self.y = torch.randint(0, 10, (4096,), generator=torch.Generator().manual_seed(3)).cuda()

    def part(self, step):
        part = slice(step % 8 * 512, step % 8 * 512 + 512)
        return self.x[part], self.y[part]

    def step(self, x, y):
        self.optimiser.zero_grad()
        self.loss = torch.nn.functional.cross_entropy(self.network(x), y)
        self.loss.backward()
        self.optimiser.step()


def train(steps, compiled=False):
    t = Training()
    if compiled:
        t.network = torch.compile(t.network)

    def step(k):
        t.step(*t.part(k))
        torch.cuda.synchronize()

    return trained(steps, step, lambda: t.loss.item()) | memory()


def compiled(steps):
    return train(steps, compiled=True)


def graph(steps):
    t = Training()
    x, y = (part.clone() for part in t.part(0))
    # Before capture, as PyTorch requires: on another stream.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            t.step(x, y)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    t.optimiser.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        t.step(x, y)

    def step(k):
        for to, part in zip((x, y), t.part(k)):
            to.copy_(part)
        captured.replay()
        torch.cuda.synchronize()

    return trained(steps, step, lambda: t.loss.item()) | memory()


def in_jax(steps):
    import jax
    import jax.numpy as jnp

    sizes = [1024, 2048, 2048, 10]
    keys = jax.random.split(jax.random.key(1), 5)
    layers = [jax.random.normal(k, (a, b)) / a ** 0.5 for k, a, b in zip(keys, sizes, sizes[1:])]
    x = jax.random.normal(keys[3], (8, 512, 1024))
    y = jax.random.randint(keys[4], (8, 512), 0, 10)

    def error(layers, x, y):
        for layer in layers[:-1]:
            x = jax.nn.relu(x @ layer)
        return -jnp.mean(jax.nn.log_softmax(x @ layers[-1])[jnp.arange(512), y])

    @jax.jit
    def descend(layers, x, y):
        loss, slopes = jax.value_and_grad(error)(layers, x, y)
        return [layer - 0.01 * slope for layer, slope in zip(layers, slopes)], loss

    state = [layers, None]

    def step(k):
        state[:] = jax.block_until_ready(descend(state[0], x[k % 8], y[k % 8]))

    done = trained(steps, step, lambda: float(state[1]))
    return done | {"total": jax.local_devices()[0].memory_stats()["bytes_limit"]}


def limit(piece=64 << 20):
    held, refused, again = [], False, False
    torch.zeros(1).cuda()
    _, total = torch.cuda.mem_get_info()
    try:
        while len(held) * piece <= total:
            held.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        refused = True
    got = len(held) * piece
    del held[len(held) // 2:]
    torch.cuda.empty_cache()
    try:
        held.append(torch.ones(piece, dtype=torch.uint8, device="cuda"))
        again = int(held[-1].sum(dtype=torch.int64).item()) == piece
    except torch.cuda.OutOfMemoryError:
        pass
    return {"got": got, "total": total, "refused": refused, "again": again}


if __name__ == "__main__":
    what = {"train": train, "compiled": compiled, "graph": graph, "jax": in_jax, "limit": limit}
    if len(sys.argv) < 2 or sys.argv[1] not in what:
        sys.exit("usage: train.py train STEPS | compiled STEPS | graph STEPS | jax STEPS | limit")
    if sys.argv[1] != "jax":
        import torch
    print(json.dumps(what[sys.argv[1]](*map(int, sys.argv[2:]))), flush=True)
