"""Where the peers live: an environment of their own, ``.bench-venv``, which the benchmarks beside them make.

Peers are installed without their dependencies on top of the torch that is here, so that none brings another; then comes
what they need besides. Where they can be imported already, as on a machine without a network to which they were copied,
they are taken from there. Libraries that a peer imports but that what is measured does not use, torchvision above all,
for which there is no build beside this torch, are stood in for by modules of empty classes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

__all__ = ["ready"]

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".bench-venv"
PACKAGES = (
    *("bayesian-torch", "blitz-bayesian-pytorch", "torchbnn", "cplxmodule", "ivon-opt", "posteriors", "opacus"),
    *("backpack-for-pytorch", "laplace-torch", "torch-uncertainty", "lightning-uq-box"),
    # what some of them need besides torch
    *("unfoldNd", "opt_einsum", "einops", "optree", "tensordict", "pyvers", "torchopt", "graphviz", "scipy"),
    *("curvlinops-for-pytorch", "einconv", "linear_operator", "jaxtyping", "wadler_lindig", "mpmath"),
    *("gpytorch", "tqdm", "lightning", "pytorch-lightning", "lightning-utilities", "fsspec", "PyYAML"),
)
STAND_INS = (
    *("torchvision", "timm", "kornia", "uncertainty_toolbox", "torchseg", "h5py", "ema_pytorch", "pandas", "seaborn"),
    *("torchinfo", "huggingface_hub", "asdl"),
)


def ready(module: str) -> None:
    """Go on with ``python -m module`` in the environment, made if it is not there, unless peers are to be had here."""
    if Path(sys.prefix).resolve() == HOME.resolve() or find_spec("bayesian_torch"):
        warnings.simplefilter("ignore")  # the peers' own
        sys.meta_path.append(_StandIns(tuple(name for name in STAND_INS if find_spec(name) is None)))
        return
    python = HOME / "bin" / "python"
    if not python.exists():
        _make(python)
    os.execv(python, [str(python), "-m", module, *sys.argv[1:]])


def _make(python: Path) -> None:
    venv.create(HOME, with_pip=True)
    here = sysconfig.get_paths()["purelib"]
    there = next(HOME.glob("lib/python*/site-packages"))
    (there / "torch_from_the_project.pth").write_text(f"{here}\n{ROOT / 'src'}\n")
    for package in PACKAGES:
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", package], check=False)
        print(f"{package}: {'installed' if done.returncode == 0 else 'does not install'}", flush=True)


class _Names(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}))
        return getattr(self, name)


class _StandIns(MetaPathFinder, Loader):
    """Finds modules of names for packages that are not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        known = name.partition(".")[0] in self.packages
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""
