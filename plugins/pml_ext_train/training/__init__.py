"""The run: data, batches, steps, tests between epochs, checkpoints."""
