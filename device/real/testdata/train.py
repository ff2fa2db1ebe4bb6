# Copyright (c) Ebbtide authors
# SPDX-License-Identifier: MPL-2.0

"""A small training on a card, or how much of a card there is: for the tests of package real.

train: prints the losses of a network with fixed seeds, and the median time of a step.
limit: allocates until that is refused, frees, and allocates again.
Each prints one line of JSON.
"""

import json
import statistics
import sys
import time

import torch


def train(steps=300, warm=50):
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    network = torch.nn.Sequential(
        torch.nn.Linear(1024, 2048), torch.nn.ReLU(),
        torch.nn.Linear(2048, 2048), torch.nn.ReLU(),
        torch.nn.Linear(2048, 10),
    ).cuda()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(2)).cuda()
    y = torch.randint(0, 10, (4096,), generator=torch.Generator().manual_seed(3)).cuda()
    losses, took = [], []
    for step in range(steps):
        begun = time.perf_counter()
        part = slice(step % 8 * 512, step % 8 * 512 + 512)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x[part]), y[part])
        loss.backward()
        optimiser.step()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begun)
        if step % 50 == 49:
            losses.append(loss.item())
    free, total = torch.cuda.mem_get_info()
    return {"losses": losses, "step_ms": 1000 * statistics.median(took[warm:]), "free": free, "total": total}


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
    what = {"train": train, "limit": limit}
    if len(sys.argv) != 2 or sys.argv[1] not in what:
        sys.exit("usage: train.py train|limit")
    print(json.dumps(what[sys.argv[1]]()), flush=True)
