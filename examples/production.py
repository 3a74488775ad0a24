"""From notebook to production: train, compress, give the small network a posterior, export it, serve it without torch.

python examples/production.py --out production

The second half of this file runs in a process of its own that imports numpy and onnxruntime and nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

FORMS = ("draws", "moments")  # many networks side by side, or one pass of means and variances
PARTS = ("probs", "entropy", "aleatoric", "epistemic")


def train(options: argparse.Namespace) -> dict[str, float]:
    """Everything that needs torch: ends in two .onnx files and the answers that they must give."""
    import torch

    import posterity as pst
    from posterity import data, models

    torch.set_num_threads(1)  # as many as the server below has
    try:
        images = data.load(options.data)
    except pst.PosterityError as error:
        sys.exit(str(error))
    train_set = tuple(part[: options.examples] for part in images.training())
    test_inputs, test_targets = images.test

    # 1. Train, taking whole neurons out on the way, and cut the network down to what is left.
    how = {"epochs": options.epochs, "training": pst.Training(batch_size=64, lr=1e-3)}
    pruning = pst.Pruning(keep=0.25, whole_units=True, per_layer=True)
    pruned = pst.fit(models.make("lenet_300_100", images), pruning, train_set, **how)
    small = pst.compress(pruned, validation=[images.test])

    # 2. A posterior over the small network, started from its weights.
    posterior = pst.fit(small.requires_grad_(), pst.MeanField(init_std=0.01), train_set, **how)

    # 3. Its whole prediction as one ONNX graph, in both forms.
    (before, after), (_, accuracy) = small.compression.parameters, small.compression.accuracy
    figures = {"parameters before": before, "after": after, "accuracy of the compressed network": accuracy}
    expected = {}
    for form, draws in zip(FORMS, (options.draws, "moments"), strict=True):
        figures[f"{form}: bytes"] = pst.export(posterior, options.out / f"{form}.onnx", draws)
        p = posterior.predict(test_inputs, draws=draws)
        expected |= {f"{form} {part}": getattr(p, part).numpy() for part in PARTS}
        figures[f"{form}: accuracy"] = (p.label == test_targets).float().mean().item()
        figures[f"{form}: NLL"] = -p.log_prob(test_targets).mean().item()
        for batch in (1, 128):
            seconds = timed(lambda n=batch, d=draws: posterior.predict(test_inputs[:n], draws=d))
            figures[f"{form}: ms in torch, batch {batch}"] = 1e3 * seconds
    np.savez(options.out / "expected.npz", inputs=test_inputs.numpy(), targets=test_targets.numpy(), **expected)
    return figures


def serve(out: Path) -> dict[str, float]:
    """Everything that happens in production: two files, numpy, onnxruntime."""
    try:
        import onnxruntime
    except ImportError:
        sys.exit("serving needs onnxruntime: pip install onnxruntime")

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    expected = np.load(out / "expected.npz")
    inputs = expected["inputs"]
    figures = {}
    for form in FORMS:
        session = onnxruntime.InferenceSession(out / f"{form}.onnx", options, providers=["CPUExecutionProvider"])
        answers = dict(zip(PARTS, session.run(list(PARTS), {"inputs": inputs}), strict=True))
        gaps = [np.abs(answers[part] - expected[f"{form} {part}"]).max() for part in PARTS]
        figures[f"{form}: largest difference from torch"] = float(max(gaps))
        for batch in (1, 128):
            seconds = timed(lambda n=batch, s=session: s.run(None, {"inputs": inputs[:n]}))
            figures[f"{form}: ms in onnxruntime, batch {batch}"] = 1e3 * seconds

    # What a service does with it: answer where it is sure, pass on to a person where it is not.
    right = answers["probs"].argmax(1) == expected["targets"]
    surest_first = right[answers["entropy"].argsort()]
    for share in (100, 95, 90, 80):
        figures[f"error of the surest {share}%"] = float(1 - surest_first[: len(right) * share // 100].mean())
    assert "torch" not in sys.modules and "posterity" not in sys.modules
    return figures


def draw(figures: dict[str, float], path: Path) -> None:
    """How long an answer takes, and what it is worth to answer only where sure."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 2.8), layout="constrained")
    left, right = picture.subplots(1, 2)
    for offset, runtime in enumerate(("torch", "onnxruntime")):
        bars = [figures[f"{form}: ms in {runtime}, batch {batch}"] for batch in (1, 128) for form in FORMS]
        drawn = left.bar(np.arange(4) + 0.4 * offset, bars, 0.38, label=runtime)
        left.bar_label(drawn, fmt="%.2g", fontsize=8)
    left.set_xticks(np.arange(4) + 0.2, [f"{form}\nbatch {batch}" for batch in (1, 128) for form in FORMS])
    left.set(ylabel="ms of one thread", yscale="log", title="one call", ylim=(0.005, 30))
    left.legend(frameon=False, loc="upper left")
    shares = (80, 90, 95, 100)
    right.plot(shares, [100 * figures[f"error of the surest {share}%"] for share in shares], "o-")
    right.set(xlabel="% of the questions answered, the surest first", ylabel="% wrong", ylim=(0, None))
    right.set_title("served by moments.onnx")
    picture.savefig(path, dpi=110)


def timed(call, repeats: int = 30) -> float:
    """The median seconds of a call, after three to warm up; of CPU time, which a busy machine does not lengthen."""
    times = []
    for _ in range(repeats + 3):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return float(np.median(times[3:]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("production"))
    arguments.add_argument("--data", default="mnist")
    arguments.add_argument("--examples", type=int, default=20_000)
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--draws", type=int, default=32)
    arguments.add_argument("--serve", action="store_true", help="only serve what an earlier run has exported")
    arguments.add_argument("--tiny", action="store_true", help="embedded digits, four epochs")
    options = arguments.parse_args()
    if options.tiny:
        options.data, options.epochs, options.draws = "digits", 4, 4
    options.out.mkdir(parents=True, exist_ok=True)
    if options.serve:
        print(json.dumps(serve(options.out)))
        return
    figures = train(options)
    command = [sys.executable, __file__, "--serve", "--out", str(options.out)]
    figures |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    (options.out / "figures.json").write_text(json.dumps(figures, indent=2))
    draw(figures, options.out / "production.png")
    for name, value in figures.items():
        print(f"{name:<44}{value:>14.6g}")


if __name__ == "__main__":
    main()
