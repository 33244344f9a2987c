"""How the steps of an update are run: one by one, recorded with TorchScript, or captured as a CUDA graph."""
