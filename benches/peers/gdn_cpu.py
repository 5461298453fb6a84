"""The DeltaNet path on the CPU beside PyTorch's, in one run: see README.md."""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import torch
from torch.nn import functional
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

KEY_HEADS, VALUE_HEADS, HEAD_DIM, TOKENS = 16, 48, 128, 1024
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * HEAD_DIM
ROOT = Path(__file__).resolve().parents[2]


def uniform(random, *shape):
    return torch.rand(*shape, generator=random) * 2 - 1


def of_value_heads(rows):
    """q or k with a row for each value head, as the functions take them."""
    return rows.repeat_interleave(VALUE_HEADS // KEY_HEADS, dim=2)


def recurrence(rule):
    """The rule on q, k, v, gate and beta, a batch of one: q and k normalised and repeated beforehand."""
    random = torch.Generator().manual_seed(1)
    q, k = (
        of_value_heads(functional.normalize(uniform(random, 1, TOKENS, KEY_HEADS, HEAD_DIM), dim=-1)) for _ in range(2)
    )
    v = uniform(random, 1, TOKENS, VALUE_HEADS, HEAD_DIM)
    gate = -0.1 * uniform(random, 1, TOKENS, VALUE_HEADS).abs()
    beta = uniform(random, 1, TOKENS, VALUE_HEADS).abs()
    state = 0.5 * uniform(random, 1, VALUE_HEADS, HEAD_DIM, HEAD_DIM)
    return lambda: rule(
        q, k, v, gate, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=False
    )


def path(rule):
    """What Qwen3NextGatedDeltaNet does between its projections, from a conv state and a state."""
    random = torch.Generator().manual_seed(1)
    qkv = uniform(random, 1, TOKENS, CHANNELS)
    a, b = 2 * uniform(random, 1, TOKENS, VALUE_HEADS), 2 * uniform(random, 1, TOKENS, VALUE_HEADS)
    z = 4 * uniform(random, 1, TOKENS, VALUE_HEADS, HEAD_DIM)
    conv_weight = 0.5 * uniform(random, CHANNELS, 1, 4)
    history = uniform(random, 1, CHANNELS, 3)
    dt_bias = uniform(random, VALUE_HEADS)
    a_log = torch.log(8 * uniform(random, VALUE_HEADS).abs() + 1e-3)
    state = 0.5 * uniform(random, 1, VALUE_HEADS, HEAD_DIM, HEAD_DIM)
    norm = qwen.Qwen3NextRMSNormGated(HEAD_DIM, eps=1e-6)

    def run():
        mixed = torch.cat([history, qkv.transpose(1, 2)], dim=-1)
        new_history = mixed[:, :, -3:].clone()
        mixed = functional.silu(functional.conv1d(mixed, conv_weight, groups=CHANNELS)).transpose(1, 2)
        heads = mixed.reshape(1, TOKENS, -1, HEAD_DIM)
        q, k, v = heads.split([KEY_HEADS, KEY_HEADS, VALUE_HEADS], dim=2)
        beta = b.sigmoid()
        gate = -a_log.exp() * functional.softplus(a + dt_bias)
        y, new_state = rule(
            of_value_heads(q),
            of_value_heads(k),
            v,
            gate,
            beta,
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        out = norm(y.reshape(-1, HEAD_DIM), z.reshape(-1, HEAD_DIM))
        return out, new_state, new_history

    return run


def times(run, runs):
    """Seconds of each run, after one to warm up."""
    seconds = []
    with torch.inference_mode():
        for _ in range(runs + 1):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return seconds[1:]


def keyhead(step, threads):
    """Median seconds of each instruction set, from criterion's own files."""
    env = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    command = ["cargo", "bench", "--bench", "gdn", "--", f"{step}/cpu"]
    started = time.time()
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    medians = {}
    for file in sorted(target.glob("criterion/**/new/estimates.json")):
        benchmark = json.loads(file.with_name("benchmark.json").read_text())["full_id"]
        # Results of earlier runs lie there too.
        if benchmark.startswith(f"gdn/{step}/cpu-") and file.stat().st_mtime >= started:
            medians[f"keyhead, {benchmark.split('/')[2]}"] = json.loads(file.read_text())["median"]["point_estimate"] / 1e9
    return medians


def compare(step, peer, options):
    # Before and behind our own, so that a machine that gets busier or hotter does not favour one side.
    chunked, by_token = peer(qwen.torch_chunk_gated_delta_rule), peer(qwen.torch_recurrent_gated_delta_rule)
    chunked_times = times(chunked, options.runs)
    by_token_times = times(by_token, max(1, options.runs // 5))
    rows = keyhead(step, options.threads)
    chunked_times += times(chunked, options.runs)

    rows["PyTorch, chunked"] = reference = statistics.median(chunked_times)
    rows["PyTorch, token by token"] = statistics.median(by_token_times)
    lines = [f"{step:26}{'us a token':>12}{'times PyTorch chunked':>24}"]
    for name, seconds in sorted(rows.items(), key=lambda row: row[1]):
        lines.append(f"{name:26}{seconds * 1e6 / TOKENS:12.1f}{reference / seconds:24.2f}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=10, help="of PyTorch's functions")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tables = [compare("forward", path, options), compare("recurrence", recurrence, options)]
    print(f"\n{KEY_HEADS}/{VALUE_HEADS} heads, {TOKENS} tokens, {options.threads} threads, torch {torch.__version__}")
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
