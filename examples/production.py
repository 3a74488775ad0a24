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

FORMS = {"draws": 32, "moments": "moments"}  # 32 networks side by side, or one pass of means and variances
PARTS = ("probs", "entropy", "aleatoric", "epistemic")


def train(options: argparse.Namespace) -> dict[str, float]:
    """Everything that needs torch: ends in two .onnx files and the answers that they must give."""
    import torch

    import posterity as pst
    from posterity import data, models

    torch.set_num_threads(1)  # as many as the server below has
    images = data.load(options.data)
    x, y = images.training()
    train_set = x[: options.examples], y[: options.examples]
    test_inputs, test_targets = images.test

    # 1. Train, taking whole neurons out on the way, and cut the network down to what is left.
    network = models.make("lenet_300_100", images)
    training = pst.Training(batch_size=64, lr=1e-3)
    pruned = pst.fit(
        network, pst.Pruning(keep=0.25, whole_units=True), train_set, epochs=options.epochs, training=training
    )
    small = pst.compress(pruned, validation=[images.test])

    # 2. A posterior over the small network, started from its weights.
    method = pst.MeanField(prior=pst.priors.Normal(0.1), init_std=0.02)
    posterior = pst.fit(small.requires_grad_(), method, train_set, epochs=options.epochs, training=training)

    # 3. Its whole prediction as one ONNX graph, in both forms.
    report = small.compression
    figures = {"parameters before": report.parameters[0], "parameters after": report.parameters[1]}
    expected = {}
    for form, draws in FORMS.items():
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
        sys.exit("serving needs onnxruntime: pip install 'posterity[onnx]'")

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
    sure = answers["entropy"] <= np.quantile(answers["entropy"], 0.95)
    figures["error of all"] = float(1 - right.mean())
    figures["error of the surest 95%"] = float(1 - right[sure].mean())
    assert "torch" not in sys.modules and "posterity" not in sys.modules
    return figures


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
    arguments.add_argument("--serve", action="store_true", help="only serve what an earlier run has exported")
    arguments.add_argument("--tiny", action="store_true", help="embedded digits, four epochs")
    options = arguments.parse_args()
    if options.tiny:
        options.data, options.epochs = "digits", 4
    options.out.mkdir(parents=True, exist_ok=True)
    if options.serve:
        print(json.dumps(serve(options.out)))
        return
    figures = train(options)
    command = [sys.executable, __file__, "--serve", "--out", str(options.out)]
    figures |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    (options.out / "figures.json").write_text(json.dumps(figures, indent=2))
    for name, value in figures.items():
        print(f"{name:<44}{value:>14.6g}")


if __name__ == "__main__":
    main()
