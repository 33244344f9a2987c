"""How an update is run: step by step, recorded with TorchScript, or captured as a CUDA graph."""
