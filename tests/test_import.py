"""``import posterity`` is cheap and changes nothing: no heavy package, no seeding, no setting, no hook."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import posterity

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
for name in dir(posterity):  # names come lazily: ask for all of them
    getattr(posterity, name)
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


def test_what_type_checkers_see_is_what_python_finds():
    block = next(node for node in ast.parse(Path(posterity.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.name: f"{node.module}.{alias.name}" for node in block.body for alias in node.names}
    found = posterity._MODULES | {name: f"{home}.{name}" for name, home in posterity._HOMES.items()}
    assert seen == found


def test_type_checkers_are_told_that_there_are_types():
    assert Path(posterity.__file__).with_name("py.typed").is_file()


def test_a_notebook_can_import_all_names():
    code = "from posterity import *; print(SWAG.__name__, priors.Normal.__name__, 'import_module' in globals())"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["SWAG", "Normal", "False"]


@pytest.mark.parametrize("name", ["likelihoods", "priors", "continual", "fit"])
def test_a_name_is_found_by_a_process_that_has_asked_for_no_other(name):
    code = f"import posterity; print(posterity.{name}.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().endswith(name)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(posterity, "SWAGG")
