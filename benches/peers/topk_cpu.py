"""The block top-k on the CPU beside PyTorch's `topk`, in one run: see README.md."""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import torch

QUERIES, BLOCKS, SELECTED = 256, 65538, 512
ROOT = Path(__file__).resolve().parents[2]


def times(runs):
    """Seconds of each run of `torch.topk`, after one to warm up."""
    scores = torch.rand(QUERIES, BLOCKS, generator=torch.Generator().manual_seed(1)) * 2 - 1
    seconds = []
    with torch.inference_mode():
        for _ in range(runs + 1):
            start = time.perf_counter()
            torch.topk(scores, SELECTED, dim=1, sorted=False)
            seconds.append(time.perf_counter() - start)
    return seconds[1:]


def keyhead(threads):
    """Median seconds of each instruction set, from criterion's own files."""
    env = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    command = ["cargo", "bench", "--bench", "topk", "--", "select/.*/random"]
    started = time.time()
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    medians = {}
    for path in sorted(target.glob("criterion/**/new/estimates.json")):
        benchmark = json.loads(path.with_name("benchmark.json").read_text())["full_id"]
        # Results of earlier runs lie there too.
        if benchmark.startswith("topk/select/cpu-") and path.stat().st_mtime >= started:
            medians[f"keyhead, {benchmark.split('/')[2]}"] = json.loads(path.read_text())["median"]["point_estimate"] / 1e9
    return medians


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=20, help="of torch.topk in each round")
    parser.add_argument("--rounds", type=int, default=3, help="of PyTorch and keyhead in turn")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    # In turn, so that a machine that gets busier or hotter does not favour one side.
    reference, rows = [], {}
    for _ in range(options.rounds):
        reference += times(options.runs)
        for name, seconds in keyhead(options.threads).items():
            rows.setdefault(name, []).append(seconds)
    reference += times(options.runs)

    rows = {name: statistics.median(seconds) for name, seconds in rows.items()}
    rows["torch.topk"] = reference = statistics.median(reference)
    print(f"\n{QUERIES} queries, {BLOCKS} blocks, {options.threads} threads, torch {torch.__version__}")
    print(f"{'':26}{'ms a call':>12}{'times torch.topk':>20}")
    for name, seconds in sorted(rows.items(), key=lambda row: row[1]):
        print(f"{name:26}{seconds * 1e3:12.2f}{reference / seconds:20.2f}")


if __name__ == "__main__":
    main()
