"""Crop and flip of a CIFAR batch, as ratios to copying it, beside one crop at a time; on the GPU where there is one.

python benchmarks/speed/augment.py
"""

import statistics
import time

import torch
import torch.nn.functional as F

from posterity.data import CropFlip

ROUNDS, CALLS = 15, 10


def one_at_a_time(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    padded, out = F.pad(x, (4,) * 4), torch.empty_like(x)
    down, right = torch.randint(9, (2, len(x)), generator=generator, device=x.device).tolist()
    flips = (torch.rand(len(x), generator=generator, device=x.device) < 0.5).tolist()
    for i in range(len(x)):
        crop = padded[i, :, down[i] : down[i] + 32, right[i] : right[i] + 32]
        out[i] = crop.flip(-1) if flips[i] else crop
    return out


def seconds(device: str, work: object) -> float:
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    for _ in range(CALLS):
        work()  # type: ignore[operator]
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - start) / CALLS


def main() -> None:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    augment = CropFlip()
    for batch in (128, 512):
        x = torch.randn(batch, 3, 32, 32, device=device)
        works = {
            "copy": x.clone,
            "CropFlip": lambda x=x: augment(x, generator),
            "one at a time": lambda x=x: one_at_a_time(x, generator),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(ROUNDS):  # interleaved, so that a busy machine hits all alike
            for name, work in works.items():
                times[name].append(seconds(device, work))
        medians = {name: statistics.median(t) for name, t in times.items()}
        row = ", ".join(f"{name} {m / medians['copy']:.1f}x" for name, m in medians.items())
        print(f"{device}, batch {batch}: copy {1e6 * medians['copy']:.0f} us; {row}")


if __name__ == "__main__":
    main()
