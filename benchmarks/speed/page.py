"""Writes docs/benchmarks.md from the speed tables in benchmarks/results.

python -m benchmarks.speed.page
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.speed.growth_page import section, times

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
HEAD = """# Benchmarks

Ratios to plain PyTorch on the same network in the same run, in interleaved rounds, medians. On a CPU one thread and its
own time; a ratio of 1 would be free. Memory is the peak of one call beyond what was held before it. `make bench` runs
everything on the CPU, peers included; `python -m benchmarks.speed.page` writes this page from the tables in
`benchmarks/results`.
"""


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def floors(machine: str) -> dict[str, float]:
    """The floors measured on a machine, in float32; none where they were not."""
    return read(f"floor_{machine}")["figures"] if (RESULTS / f"floor_{machine}.json").exists() else {}


def ratios(
    cases: dict[str, dict[str, dict]], floor_of: dict[str, float] | None = None, broken: dict | None = None
) -> str:
    """A table a case: who, the ratio, milliseconds, memory, and how many floors of the case's network that is."""
    parts = []
    for case, rows in cases.items():
        floor = (floor_of or {}).get(f"floor, {case.rpartition(', ')[2]}")
        memory = any(row.get("peak_bytes") for row in rows.values())
        heads = ["", "ratio", "ms", *["MiB"] * memory, *["× floor"] * bool(floor)]
        lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for name, row in rows.items():
            cells = [name, f"{row['ratio']:.2f}", f"{1e3 * row['seconds']:.2f}"]
            cells += [f"{row['peak_bytes'] / 2**20:.1f}"] if memory else []
            cells += [times(row["seconds"] / floor)] if floor else []
            lines.append("| " + " | ".join(cells) + " |")
        told = [f"{name} is broken: {reason}" for name, reason in (broken or {}).get(case, {}).items()]
        parts += [f"### {case[0].upper()}{case[1:]}\n\n" + "\n".join(lines), *told]
    return "\n\n".join(parts)


def measured(found: dict) -> str:
    """When and with what."""
    return f"torch {found['torch']}, {found['date']}"


def peers() -> str:
    found = read("peers_cpu")
    return "\n\n".join(
        [
            "## Beside the peers",
            f"Training steps at batch 128 on the CPU, {measured(found)}. Peers are installed without their "
            "dependencies in an environment of their own. torchvision, for which there is no build beside "
            "this torch, and a few others that peers import and what is measured does not use are "
            "stood in for by modules of empty classes. The last column is the time over the physical floor of "
            "Adam's step: the FLOPs of the network at the rate of a large matrix product on the same core, or ten "
            "numbers moved a weight at the rate of a large copy, whichever takes longer.\n\n"
            "    python -m benchmarks.speed.peers --out benchmarks/results/peers_cpu.json\n"
            "    python -m benchmarks.speed.floor --out benchmarks/results/floor_cpu.json",
            ratios(found["cases"], floors("cpu"), found["broken"]),
        ]
    )


def peers_after() -> str:
    found = read("peers_after_cpu")
    seconds = {name.removeprefix("import of "): value for name, value in found["figures"].items()}
    imports = ["| | s |", "|---|---|", *(f"| {name} | {value:.3f} |" for name, value in seconds.items())]
    told = [f"{name} is broken: {reason}" for name, reason in found["broken"].get("imports", {}).items()]
    return "\n\n".join(
        [
            "## After training, beside the peers",
            f"On the CPU, {measured(found)}. SWAG keeps 20 deviations of the 11 million weights of a ResNet-18. "
            "Predictions are of 1,000 images by 32 draws; posterity keeps its draws from one call to the next, peers "
            "draw anew. Laplace sees 1,024 images, without choosing a prior, and predicts by the probit approximation: "
            "all of the last layer's curvature (5,010 weights), or Kronecker factors of all layers. What is won is "
            "memory and time of SWAG's snapshots, and of Laplace, whose predictions under Kronecker factors need no "
            "Jacobians of the weights; predictions with fresh draws are level with torchbnn's, since random numbers "
            "and products are what they cost.\n\n"
            "    python -m benchmarks.speed.peers_after --out benchmarks/results/peers_after_cpu.json",
            ratios(found["cases"], broken=found["broken"]),
            "### Imports\n\nCPU seconds beyond those of torch; posterity loads its parts when they are first used. "
            "Those of laplace-torch, torch-uncertainty and lightning-uq-box are too low, since what is stood in for "
            "costs nothing.",
            "\n".join(imports),
            *told,
        ]
    )


def peers_on_gpu() -> str:
    found = read("peers_h200")
    return "\n\n".join(
        [
            "## Beside the peers on an H200",
            f"The same steps, {measured(found)}, all launched piece by piece. At this size launching is all that "
            "costs, hundreds of floors for the smaller network; `Training(record=True)` launches a whole step at "
            "once.\n\n"
            "    python -m benchmarks.speed.peers --device cuda --out benchmarks/results/peers_h200.json",
            ratios(found["cases"], floors("h200"), found["broken"]),
        ]
    )


def peers_after_on_gpu() -> str:
    found = read("peers_after_h200")
    return "\n\n".join(
        [
            "## After training, beside the peers on an H200",
            f"As on the CPU above, {measured(found)}. torch-uncertainty keeps SWAG's deviations in the memory of the "
            "CPU. Predictions of the larger network take 3.9 GB, since all draws go through it together. Laplace is "
            "missing: laplace-torch failed there in the middle of the run, which ended it.\n\n"
            "    python -m benchmarks.speed.peers_after --device cuda --out benchmarks/results/peers_after_h200.json",
            ratios(found["cases"], broken=found["broken"]),
        ]
    )


def natural_gradient() -> str:
    found = read("natural_gradient_h200")
    return "\n\n".join(
        [
            "## Natural-gradient steps on an H200",
            f"ResNet-18 for CIFAR images, batch 128, against torch's Adam and AdamW; TF32 and bfloat16; "
            f"{measured(found)}. Recorded steps "
            "are those of `Training(record=True)`, Adam's recorded too. Aimed at: 1.4 for VOGN, 1.1 for IVON. IVON is "
            "at its limit; VOGN misses it. All contestants are given images with their channels last. Adam gains by "
            "that (recorded 6.8 to 4.7 ms, in bfloat16 5.5 to 3.1) and VOGN, whose kernel had turned them for itself, "
            "does not: it had 1.30 and 1.35 times the time of an Adam whose channels lay first.\n\n"
            "    python -m benchmarks.speed.natural_gradient --device cuda --only resnet",
            ratios(found["cases"]),
        ]
    )


def mean_field() -> str:
    lines = ["| step | ratio | memory |", "|---|---|---|"]
    found = read("mean_field_speed_h200")
    for row in found["rows"]:
        lines.append(f"| {row['step']} | {row['ratio']:.2f} | {row['memory_ratio']:.2f} |")
    return "\n\n".join(
        [
            "## Variational layers on an H200",
            f"ResNet-18 for CIFAR images, batch 512, against torch's Adam step, {measured(found)}. "
            "Aimed at: 1.05 for drawn weights, which is met, and 1.6 for local noise, which is missed: it has two "
            "convolutions for one. Against an Adam whose channels lay first, 1.6 times slower, it had 1.34.\n\n"
            "    python benchmarks/speed/mean_field.py --device cuda",
            "\n".join(lines),
        ]
    )


def prediction() -> str:
    found = read("core_h200")
    cases = {**found["cases"], **read("refresh_h200")["cases"]}
    return "\n\n".join(
        [
            "## Prediction on an H200",
            f"{measured(found)}. 32 draws on 1,000 images against 32 plain forwards, five times in a row "
            "(aimed at when compiled: 0.2 for LeNet-300-100, 0.65 for LeNet-5-Caffe); and the BatchNorm "
            "statistics of 32 draws in one pass over the "
            "data against 32 passes (aimed at: 0.7).\n\n"
            "    python -m benchmarks.speed.core --device cuda --only predict predict-tf32\n"
            "    python -m benchmarks.speed.trajectory --device cuda --only refresh",
            ratios(cases),
        ]
    )


def main() -> None:
    sections = [
        peers(),
        peers_after(),
        peers_on_gpu(),
        peers_after_on_gpu(),
        natural_gradient(),
        mean_field(),
        prediction(),
        section(RESULTS),
    ]
    page = "\n\n".join([HEAD.strip(), *sections])
    (ROOT / "docs" / "benchmarks.md").write_text(page + "\n")


if __name__ == "__main__":
    main()
