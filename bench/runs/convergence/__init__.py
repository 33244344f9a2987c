"""How many seconds of training until a task is solved: ours, SB3, Tianshou and RLlib."""
