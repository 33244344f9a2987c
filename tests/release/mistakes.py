"""A user's mistakes, which mypy has to find on the marked lines and on no others. Never run."""

import numpy as np

import kary_replay as kr
from kary_replay import Field, PrioritizedReplayBuffer, ReplayBuffer, SumTree

fields = {"reward": Field((), "float32")}
buffer = PrioritizedReplayBuffer(100, fields)
batch = buffer.sample(8)

SumTree("100")  # mistake: arg-type
SumTree(100, aritiy=8)  # mistake: call-arg
SumTree(100).total = 3.0  # mistake: misc
SumTree(100).insert(0, 1.0)  # mistake: attr-defined
SumTree(100).sample(8, True, np.random.RandomState())  # mistake: arg-type
index: int = SumTree(100).get([1, 2])  # mistake: assignment
Field((4, 84.0), "float32")  # mistake: arg-type
Field((4,))  # mistake: call-arg
PrioritizedReplayBuffer(100)  # mistake: call-arg
PrioritizedReplayBuffer(100, fields, aplha=0.6)  # mistake: call-arg
PrioritizedReplayBuffer(100, fields, prioritization="ranked")  # mistake: arg-type
ReplayBuffer(100, fields, alpha=0.6)  # mistake: call-arg
ReplayBuffer(100, fields).update_priorities(batch.handle, [1.0])  # mistake: attr-defined
buffer.sample(8, True)  # mistake: call-arg
buffer.update_priorities(batch.handle)  # mistake: call-arg
buffer.update_priorities(td_errors=[1.0], handle=batch.handle)  # mistake: call-arg
buffer.capacity = 200  # mistake: misc
buffer.beta = "0.4"  # mistake: assignment
buffer.sampel(8)  # mistake: attr-defined
weights: list[float] = batch.importance_weight  # mistake: assignment
kr.NStepWriter(buffer, n_envs=2, n_steps=3, gamma=0.99)  # mistake: call-arg
kr.RateLimiter(buffer)  # mistake: call-arg
kr.PrioritisedReplayBuffer(100, fields)  # mistake: attr-defined
PrioritizedReplayBuffer.attach(buffer)  # mistake: arg-type
