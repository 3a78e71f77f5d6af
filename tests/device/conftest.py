"""Tests on a device run in processes of their own (`test_on_device.py` starts them): there, torch has a CUDA device."""

import os

if os.environ.get("ESSCHER_TEST_DEVICE"):
    from device import simulated_cuda

    simulated_cuda.start()
else:
    collect_ignore_glob = ["on_device/*"]
