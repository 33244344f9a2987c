"""How an update is run: step by step, as a native program, by TorchScript, or as a CUDA graph."""
