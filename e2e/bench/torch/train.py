#!/usr/bin/env python3
# Copyright (c) Ebbtide authors
# SPDX-License-Identifier: MPL-2.0
"""Train a small convolutional network on noisy, shifted pictures of ten shapes.

It is written as trainers are, after PyTorch's own MNIST example, and knows nothing of Ebbtide.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def pictures(shapes, count, noise):
    target = torch.randint(0, len(shapes), (count,))
    x = shapes[target]
    shift = torch.randint(-2, 3, (count, 2))
    x = torch.stack([torch.roll(p, (int(a), int(b)), (0, 1)) for p, (a, b) in zip(x, shift)])
    return (x + noise * torch.randn_like(x)).unsqueeze(1), target


def train(args, model, data, target, optimizer, epoch):
    model.train()
    order = torch.randperm(len(data))
    batches = len(data) // args.batch_size
    for i in range(batches):
        rows = order[i * args.batch_size:(i + 1) * args.batch_size]
        optimizer.zero_grad()
        loss = F.nll_loss(model(data[rows]), target[rows])
        loss.backward()
        optimizer.step()
        if i % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{i * len(rows)}/{len(data)} ({100. * i / batches:.0f}%)]\tLoss: {loss.item():.6f}")


def test(model, data, target, started):
    model.eval()
    with torch.no_grad():
        output = model(data)
        loss = F.nll_loss(output, target).item()
        correct = (output.argmax(dim=1) == target).sum().item()
    print(f"\nTest set: Average loss: {loss:.4f}, Accuracy: {correct}/{len(data)} "
          f"({100. * correct / len(data):.0f}%), {time.time() - started:.2f} s\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=14, metavar="N")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=32, metavar="N", help="batches between two lines")
    args = parser.parse_args()
    started = time.time()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    shapes = torch.randn(10, 16, 16)
    x, y = pictures(shapes, 8192, 2.0)
    test_x, test_y = pictures(shapes, 1024, 2.0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.97)
    for epoch in range(1, args.epochs + 1):
        train(args, model, x, y, optimizer, epoch)
        test(model, test_x, test_y, started)
        scheduler.step()


if __name__ == "__main__":
    main()
