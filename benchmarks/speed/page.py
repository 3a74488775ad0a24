"""Writes docs/benchmarks.md from the speed tables in benchmarks/results.

python benchmarks/speed/page.py
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.speed.growth_page import section, times

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
HEAD = """# Benchmarks

Training steps as ratios to the plain PyTorch step of the same network in the same run, in interleaved
rounds, medians. On a CPU one thread and its own time, batch 128; a ratio of 1 would be free. Written by
`python benchmarks/speed/page.py` from the tables in `benchmarks/results`.
"""


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def floors(machine: str) -> dict[str, float]:
    """The floors measured on a machine, in float32; none where they were not."""
    return read(f"floor_{machine}")["figures"] if (RESULTS / f"floor_{machine}.json").exists() else {}


def ratios(cases: dict[str, dict[str, dict]], floor_of: dict[str, float] | None = None) -> str:
    """A table a case: who, the ratio, milliseconds, and how many floors of the case's network that is."""
    parts = []
    for case, rows in cases.items():
        floor = (floor_of or {}).get(f"floor, {case.rpartition(', ')[2]}")
        lines = ["| | ratio | ms |" + (" × floor |" if floor else ""), "|---|---|---|" + ("---|" if floor else "")]
        for name, row in rows.items():
            line = f"| {name} | {row['ratio']:.2f} | {1e3 * row['seconds']:.2f} |"
            lines.append(line + (f" {times(row['seconds'] / floor)} |" if floor else ""))
        parts.append(f"### {case[0].upper()}{case[1:]}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def peers() -> str:
    found = read("peers_cpu")
    return "\n\n".join(
        [
            "## Beside the peers",
            f"On the CPU, torch {found['torch']}. Peers are installed without their dependencies in an environment of "
            "their own; torch-uncertainty needs torchvision, for which there is no build beside this torch, and is "
            "left out. The last column is the time over the physical floor of Adam's step: the FLOPs of the network at "
            "the rate of a large matrix product on the same core, or ten numbers moved a weight at the rate of a large "
            "copy, whichever takes longer.\n\n"
            "    python -m benchmarks.speed.peers --out benchmarks/results/peers_cpu.json\n"
            "    python -m benchmarks.speed.floor --out benchmarks/results/floor_cpu.json",
            ratios(found["cases"], floors("cpu")),
        ]
    )


def peers_on_gpu() -> str:
    found = read("peers_h200")
    return "\n\n".join(
        [
            "## Beside the peers on an H200",
            f"The same, torch {found['torch']}, all steps launched piece by piece. At this size launching is all that "
            "costs, hundreds of floors for the smaller network; `Training(record=True)` launches a whole step at once. "
            "posteriors needs a package that the machine did not have, and is left out.\n\n"
            "    python -m benchmarks.speed.peers --device cuda --out benchmarks/results/peers_h200.json",
            ratios(found["cases"], floors("h200")),
        ]
    )


def natural_gradient() -> str:
    found = read("natural_gradient_h200")
    return "\n\n".join(
        [
            "## Natural-gradient steps on an H200",
            "ResNet-18 for CIFAR images, batch 128, against torch's Adam and AdamW; TF32 and bfloat16. Recorded steps "
            "are those of `Training(record=True)`, Adam's recorded too. Aimed at: 1.4 for VOGN, 1.1 for IVON. VOGN "
            "meets it recorded; launched piece by piece it does not, because Python and the launches, not the GPU, "
            "then take the time. These are from before all contestants were given images with their channels last: "
            "Adam's lay first, and VOGN turned them for itself.\n\n"
            "    python -m benchmarks.speed.natural_gradient --device cuda --only resnet",
            ratios(found["cases"]),
        ]
    )


def mean_field() -> str:
    lines = ["| step | ratio | memory |", "|---|---|---|"]
    for row in read("mean_field_speed_h200")["rows"]:
        lines.append(f"| {row['step']} | {row['ratio']:.2f} | {row['memory_ratio']:.2f} |")
    return "\n\n".join(
        [
            "## Variational layers on an H200",
            "ResNet-18 for CIFAR images, batch 512, against torch's Adam step. Aimed at: 1.05 for drawn weights, 1.6 "
            "for local noise. As above, these are from before all had their channels last.\n\n"
            "    python benchmarks/speed/mean_field.py --device cuda",
            "\n".join(lines),
        ]
    )


def prediction() -> str:
    cases = {**read("core_h200")["cases"], **read("refresh_h200")["cases"]}
    return "\n\n".join(
        [
            "## Prediction on an H200",
            "32 draws on 1,000 images against 32 plain forwards, five times in a row (aimed at when compiled: 0.2 for "
            "LeNet-300-100, 0.65 for LeNet-5-Caffe); and the BatchNorm statistics of 32 draws in one pass over the "
            "data against 32 passes (aimed at: 0.7).\n\n"
            "    python -m benchmarks.speed.core --device cuda --only predict predict-tf32\n"
            "    python -m benchmarks.speed.trajectory --device cuda --only refresh",
            ratios(cases),
        ]
    )


def main() -> None:
    sections = [peers(), peers_on_gpu(), natural_gradient(), mean_field(), prediction(), section(RESULTS)]
    page = "\n\n".join([HEAD.strip(), *sections])
    (ROOT / "docs" / "benchmarks.md").write_text(page + "\n")


if __name__ == "__main__":
    main()
