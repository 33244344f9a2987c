"""What each scenario measures, in the order of the pages: the text under its heading."""

SPEED = {  # docs/benchmarks.md
    "tree sample": "Draw a batch of leaves from the bare tree, in proportion to their masses.",
    "tree update": "Set the masses of a batch of uniformly drawn leaves.",
    "buffer sample": (
        "Draw a batch of transitions from a full buffer, with their rows and importance weights."
    ),
    "buffer update_priorities": (
        "Set the priorities of a batch of uniformly drawn rows from their TD errors."
    ),
    "buffer sample + update_priorities": "Draw a batch and set its priorities, as a learner does.",
    "buffer add": "Add to a full buffer: one call adds all rows of an environment step.",
    "Atari rows: sample": (
        "Draw a batch of rows of 56 kB: two stacks of four frames of 84 × 84 pixels."
    ),
    "Atari rows: sample + update_priorities": "Draw such a batch, then set its priorities.",
    "Atari rows: add": "Add one such transition to a full buffer.",
    "tree sample, cold": (
        "Make one call at a time, after 8 MiB of other memory went through the caches."
    ),
    "tree update, cold": "The same for the update.",
    "buffer sample, cold": "The same for the whole buffer.",
    "threads: sample": (
        "Two Python threads sample from one buffer, against one thread. Rows per second."
    ),
    "threads: mixed loads": (
        "A learner samples and updates while an actor adds 16 rows at a time. One thread that does "
        "both is the comparison."
    ),
    "threads: calls by role": (
        "Calls per second of several threads with the same role, or of one thread beside threads "
        "with another role. Rivals are behind one lock."
    ),
    "distance to the limit": (
        "Each call beside a loop in C++ that moves the same memory and does nothing else "
        "(bench/ablation/limit.hpp): a search eight children wide and the copy of the rows; looks "
        "at generations, masses and their ancestors; the writing of rows and of masses. It has no "
        "interpreter, no locks, no second look whether a row was torn, no powers and no new "
        "arrays, makes many calls in a row, and is compiled for this machine. So `0.50×` says that "
        "a call takes twice as long as the loop does."
    ),
    "memory beyond the payload": (
        "Bytes per slot beyond its 165 bytes of data. `resident` is what a process really grew by. "
        "The bar is of a time when masses alone were kept. Since then priorities are stored beside "
        "them, 8 bytes a slot, so that alpha may change and come back with nothing lost."
    ),
}
ABLATIONS = {  # docs/ablations.md
    "ablation: arity, SumTree sample": (
        "Draw a batch from the public `SumTree`, the Python call included, for each arity."
    ),
    "ablation: arity, SumTree update": "The same for the update of a batch.",
    "ablation: layout, search": (
        "Search for a batch in native code: levels on cache lines of their own, against one flat "
        "array."
    ),
    "ablation: layout, update": "The same for the native update of a batch by recomputation.",
    "ablation: order of descent": (
        "In native code: every search to its end, all searches level by level, and the same with "
        "prefetch."
    ),
    "ablation: locks": (
        "Native threads work on the same rows under four locking disciplines. Rounds per second of "
        "all threads together."
    ),
    "ablation: lock-free update": (
        "One or two native threads set batches of random leaves, under one lock or without a lock."
    ),
}
ADAPTERS = {  # docs/adapter_benchmarks.md
    "SB3: sample + update_priorities": (
        "A learner's two calls on the buffer, as SB3 makes them: tensors out, TD errors in."
    ),
    "SB3: training": (
        "Environment steps per second of `learn()`, with stock algorithms and settings. The "
        "learning rate is 0 and the exploration constant for both. Ours draws in one way all the "
        "time. By default it draws uniformly at first, and then in whichever way pays."
    ),
    "SB3: parts of DQN's training": (
        "The same run of DQN on CartPole-v1, each part timed where it stands: what one update "
        "takes, and the four calls of `add` before it. In the first of these four, ours writes TD "
        "errors back. The rest of `train()` has the networks, the targets, which ours has to "
        "follow on their way to the loss, and the optimizer."
    ),
    "Tianshou: sample + update_weight": (
        "The same two calls on Tianshou's prioritized buffers, stock and ours."
    ),
    "Tianshou: updates": (
        "`algorithm.update()`: draw, n-step targets, gradients and priorities, without "
        "environments and without a trainer."
    ),
    "Tianshou: training": (
        "Environment steps per second of Tianshou's trainer, with stock algorithms and the "
        "settings of its examples."
    ),
}
STORING = {  # docs/storing_benchmarks.md
    "processes: sample": (
        "Two processes sample from one shared buffer, against one process. Rows per second."
    ),
    "processes: a sampler's rows": (
        "A process samples while another one adds 16 rows at a time, against the same process "
        "alone."
    ),
    "processes: sample + update_priorities": (
        "Processes draw and set priorities. Rows per second of all processes together."
    ),
    "processes: add": "Processes add 16 rows at a time. Rows per second of all together.",
    "processes: sample beside writers": "One process samples while as many others add.",
    "learner: SAC updates": (
        "SAC updates (HalfCheetah, batch 256, networks 256×256) with batches drawn by a thread, or "
        "in between."
    ),
    "frames: sample": (
        "Draw stacks of four 84 × 84 frames and the next stacks: every frame stored once, against "
        "both stacks stored whole, and against other buffers (SB3's draws by equal chances)."
    ),
    "frames: add": "Add one step of eight environments, the frames once or as whole stacks.",
    "frames: memory": (
        "Bytes per slot, everything included. `resident` is what a process really grew by."
    ),
    "save: half_cheetah": "Write a checkpoint of 1e6 HalfCheetah rows. Seconds.",
    "save: images": "The same for 84 × 84 images.",
    "load: half_cheetah": "Read the checkpoint back and verify it.",
    "load: images": "The same for 84 × 84 images.",
    "longest add beside a save: half_cheetah": (
        "The longest `add` of another thread while the buffer was saved."
    ),
    "longest add beside a save: images": "The same for 84 × 84 images.",
}
LEARNER = {  # docs/learner_benchmarks.md
    "learner: update": (
        "Draw a batch, make one update, set its priorities, all in one thread. SB3 runs "
        "`train(gradient_steps=1)` on its uniform buffer."
    ),
    "learner: first call": (
        "Seconds of the first call, measured once. In it SBX and `torch.compile` compile, and ours "
        "records its graph. The call has two updates, or SBX's 40."
    ),
}
ACTING = {  # docs/acting_benchmarks.md
    "acting: best actions": (
        "Choose the best actions of so many observations by DQN's network, on one core, arrays in "
        "and arrays out: `act`, torch's modules under `inference_mode`, and SB3's `predict`."
    ),
    "acting: first call": (
        "Seconds of the first of these calls, measured once. In it ours records its programs for "
        "batches of this size."
    ),
}
