#!/usr/bin/env python3
"""Builds layer.safetensors, the input of the README's first command.

    python3 examples/make_layer.py tests/golden/gdn_mix_hk2_hv4_t17.safetensors examples/layer.safetensors

The source is a golden file that starts from a layer's raw qkv (see tests/golden/README.md). Its tensors behind the conv and
the l2norm become the input of `keyhead gdn`: q, k, v, g, beta, initial_state, z and norm_weight. The value heads are in
grouped order. What transformers computes from them in float64 comes along under the names `expected_*`, which the
command ignores and the tests compare with. Needs numpy and safetensors.
"""

import os
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file


def main(source, target):
    with safe_open(source, "np") as file:
        # numpy has no bfloat16, and only float32 and integers are needed.
        names = [name for name in file.keys() if file.get_slice(name).get_dtype() in ("F32", "I32", "I8")]
        mix = {name: file.get_tensor(name) for name in names}
        origin = file.metadata()["source"]
    tokens, value_heads, columns = mix["y"].shape
    layer = {
        "q": mix["q_norm"],
        "k": mix["k_norm"],
        # conv_out is [q of all heads | k of all heads | v of all heads].
        "v": mix["conv_out"][:, -value_heads * columns :].reshape(tokens, value_heads, columns),
        "g": mix["g"],
        "beta": mix["beta"],
        "z": mix["z"],
        "norm_weight": mix["norm_weight"],
    }
    if "initial_state_i8" in mix:
        # Head h starts from slice h % NB, times the scale: exact in float32.
        blocks = mix["initial_state_i8"].astype(np.float32) * mix["initial_state_scale"]
        layer["initial_state"] = blocks[np.arange(value_heads) % len(blocks)]
    elif "initial_state" in mix:
        layer["initial_state"] = mix["initial_state"]
    # final_state holds the heads that state_heads names, where that is there.
    for name in ("y", "final_state", "state_heads", "out_silu", "out_sigmoid"):
        if name in mix:
            layer[f"expected_{name}"] = mix[name]
    layer = {name: np.ascontiguousarray(tensor) for name, tensor in layer.items()}
    # One entry: the writer puts several in any order, and the bytes should be the same each time.
    save_file(layer, target, metadata={"source": f"{os.path.basename(source)}, by {origin}"})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
