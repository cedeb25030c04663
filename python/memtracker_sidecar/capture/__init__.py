"""Records what a real GPU run takes, under the user's own launcher, interpreter and torch.

`memtracker capture` puts `site/` on PYTHONPATH and its settings into one environment variable. Every Python process that the
launcher starts then runs `site/sitecustomize.py`, which does nothing but wait: only when torch initializes CUDA does recording
begin, so launchers, data workers and tools are left alone.

    settings      what was asked for
    import_hooks  being told when a module of the framework has been imported
    readings      allocator counters, driver and process memory, NCCL's own statistics
    inventory     which storages are parameters, gradients, buffers, optimizer state
    recording     phases as marks, the inventory, and the file that comes out
    context       what a framework's capture.py (adapters/<framework>/) is given
    runner        starting, ending, and surviving exceptions, OOM and signals

Only the standard library and the user's torch (2.1 or newer) are imported here.
"""
