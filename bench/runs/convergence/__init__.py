"""How many seconds of training until a task is solved: Stable-Baselines3, Tianshou and the parallel runner."""
