"""Random programs on a GPU, under a plan that is another's."""

from __future__ import annotations

from tests.gpu.conftest import TRAINING, Bench

# After the training, for which an arena was made: blocks of random sizes on several
# streams, each filled with a pattern of its own, read by other streams, and checked
# before it is freed.
PROGRAM = """\
import random
import sys

import torch

random.seed(int(sys.argv[3]))
side = [torch.cuda.Stream() for _ in range(3)]
streams = [torch.cuda.default_stream(), *side]
sizes = [1, 128, 1000, 4096, 65536, 1 << 20]
wrong = torch.zeros((), dtype=torch.int64)
# It has nothing to do, but its steps cut the program's, as the plan's did.
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
live = []
for iteration in range(int(sys.argv[2])):
    if iteration % 20 == 0:
        optimizer.step()
    own = random.choice(streams)
    with torch.cuda.stream(own):
        size = random.choice(sizes)
        block = torch.full((size,), iteration, dtype=torch.int32, device="cuda")
    ready = own.record_event()
    sums = []
    for user in streams:
        if user is not own and random.random() < 0.3:
            user.wait_event(ready)
            with torch.cuda.stream(user):
                sums.append((user, (block != iteration).sum()))
            block.record_stream(user)
    live.append((block, iteration, own, sums))
    while len(live) > 40 or (live and random.random() < 0.45):
        block, pattern, own, sums = live.pop(random.randrange(len(live)))
        with torch.cuda.stream(own):
            sums.append((own, (block != pattern).sum()))
        del block
        for user, found in sums:
            with torch.cuda.stream(user):
                wrong += found.cpu()
torch.cuda.synchronize()
print(int(wrong))
"""


def test_no_pattern_is_ever_disturbed(planned_bench: Bench) -> None:
    planned_bench.write("soak.py", TRAINING + PROGRAM)
    done, report = planned_bench.planned("soak.py", "6", "2000", "7")
    assert done.stdout.splitlines()[6:] == ["0"]
    stats = report["stats"]
    assert stats["requests"] >= 2000
    assert stats["other_stream"] > 0
    assert stats["online"] > 0
    assert stats["stranded_blocks"] == 0
