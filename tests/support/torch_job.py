"""A small network, trained by several workers with torch, that reports its measurements."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from shadowprice import jobs

BATCH = 512

torch.set_num_threads(1)
torch.manual_seed(1)
job, stop = jobs.current(), jobs.StopSignal()
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
points = torch.randn(4096, 64)
labels = (points @ torch.randn(64, 8)).argmax(dim=1)
size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
step, computing, stopping = 0, 0.0, torch.zeros(1)
while not stopping.item():
    chosen = torch.randint(0, len(points), (BATCH,), generator=torch.Generator().manual_seed(step))
    mine = chosen.tensor_split(job.workers)[job.rank]
    began = time.perf_counter()
    optimiser.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(points[mine]), labels[mine])
    loss.backward()
    computing += time.perf_counter() - began
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= job.workers
    optimiser.step()
    step += 1
    if step % 10 == 0:
        tau = computing / step * job.workers
        jobs.report(step, loss=float(loss), gradient_bytes=size, minibatch_time=tau)
    stopping = torch.tensor([float(bool(stop))])
    dist.all_reduce(stopping)
dist.destroy_process_group()
jobs.leave()
