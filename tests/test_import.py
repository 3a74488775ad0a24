"""``import posterity`` is cheap and changes nothing: no heavy package, no seeding, no setting, no hook."""

from __future__ import annotations

import json
import subprocess
import sys

LOOK = """
import json, logging, sys, warnings
import torch

torch.manual_seed(12)

def world():
    return {
        "random numbers": torch.get_rng_state().sum().item(),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "warning filters": repr(warnings.filters),
        "log handlers": repr(logging.getLogger().handlers),
        "module hooks": len(torch.nn.modules.module._global_forward_hooks),
    }

before, modules = world(), set(sys.modules)
import posterity
new = {name.partition(".")[0] for name in set(sys.modules) - modules}
print(json.dumps({"before": before, "after": world(), "new": sorted(new - sys.stdlib_module_names),
                  "compiler": "torch._dynamo" in sys.modules}))
"""


def test_importing_pulls_in_torch_numpy_and_safetensors_alone_and_changes_nothing():
    run = subprocess.run([sys.executable, "-W", "error", "-c", LOOK], capture_output=True, text=True, check=True)
    seen = json.loads(run.stdout)
    assert set(seen["new"]) <= {"posterity", "torch", "numpy", "safetensors"}
    assert seen["after"] == seen["before"]
    assert not seen["compiler"]  # torch's compiler alone takes over a second to import
