"""The recurrence on the CPU beside PyTorch's, in one run: see README.md."""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import torch
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

KEY_HEADS, VALUE_HEADS, HEAD_DIM, TOKENS = 16, 48, 128, 1024
ROOT = Path(__file__).resolve().parents[2]


def inputs():
    """q, k, v, gate and beta as the functions take them: a batch of one, q and k with a row for each value head."""
    random = torch.Generator().manual_seed(1)

    def uniform(*shape):
        return torch.rand(1, TOKENS, *shape, generator=random) * 2 - 1

    q, k = (
        torch.nn.functional.normalize(uniform(KEY_HEADS, HEAD_DIM), dim=-1).repeat_interleave(
            VALUE_HEADS // KEY_HEADS, dim=2
        )
        for _ in range(2)
    )
    v = uniform(VALUE_HEADS, HEAD_DIM)
    gate = -0.1 * uniform(VALUE_HEADS).abs()
    beta = uniform(VALUE_HEADS).abs()
    state = 0.5 * (torch.rand(1, VALUE_HEADS, HEAD_DIM, HEAD_DIM, generator=random) * 2 - 1)
    return (q, k, v, gate, beta), state


def times(function, runs):
    """Seconds of each run, after one to warm up."""
    args, state = inputs()
    seconds = []
    with torch.inference_mode():
        for _ in range(runs + 1):
            start = time.perf_counter()
            function(*args, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=False)
            seconds.append(time.perf_counter() - start)
    return seconds[1:]


def keyhead(threads):
    """Median seconds of each instruction set, from criterion's own files."""
    env = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    command = ["cargo", "bench", "--bench", "gdn", "--", "recurrence/cpu"]
    started = time.time()
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    medians = {}
    for path in sorted(target.glob("criterion/**/new/estimates.json")):
        benchmark = json.loads(path.with_name("benchmark.json").read_text())["full_id"]
        # Results of earlier runs lie there too.
        if benchmark.startswith("gdn/recurrence/cpu-") and path.stat().st_mtime >= started:
            medians[f"keyhead, {benchmark.split('/')[2]}"] = json.loads(path.read_text())["median"]["point_estimate"] / 1e9
    return medians


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=10, help="of PyTorch's functions")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    # Before and behind our own, so that a machine that gets busier or hotter does not favour one side.
    chunked = times(qwen.torch_chunk_gated_delta_rule, options.runs)
    by_token = times(qwen.torch_recurrent_gated_delta_rule, max(1, options.runs // 5))
    rows = keyhead(options.threads)
    chunked += times(qwen.torch_chunk_gated_delta_rule, options.runs)

    rows["PyTorch, chunked"] = reference = statistics.median(chunked)
    rows["PyTorch, token by token"] = statistics.median(by_token)
    print(f"\n{KEY_HEADS}/{VALUE_HEADS} heads, {TOKENS} tokens, {options.threads} threads, torch {torch.__version__}")
    print(f"{'':26}{'us a token':>12}{'times PyTorch chunked':>24}")
    for name, seconds in sorted(rows.items(), key=lambda row: row[1]):
        print(f"{name:26}{seconds * 1e6 / TOKENS:12.1f}{reference / seconds:24.2f}")


if __name__ == "__main__":
    main()
