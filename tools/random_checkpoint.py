#!/usr/bin/env python3
"""Writes a Qwen3-MoE checkpoint with random weights, in the folder layout of Hugging Face: config.json, sharded safetensors
and their index. For trying `eitri moe run --checkpoint` where no real checkpoint is at hand. Standard library only.
"""
import argparse
import array
import json
import pathlib
import random
import struct

SHARD_BYTES = 256 << 20


def bf16(value):
    """Bits of the bf16 that value rounds to (ties away from zero, which random weights do not notice)."""
    return (struct.unpack("<I", struct.pack("<f", value))[0] + 0x8000) >> 16


class Pool:
    """Normal bf16 numbers, drawn once; a tensor is pieces of the pool from random places, which is fast and random enough."""

    def __init__(self, rng, scale):
        self.rng = rng
        self.bytes = array.array("H", (bf16(rng.gauss(0, scale)) for _ in range(1 << 18))).tobytes()

    def draw(self, elements):
        out = bytearray()
        while len(out) < 2 * elements:
            start = 2 * self.rng.randrange(len(self.bytes) // 4)
            out += self.bytes[start:start + 2 * elements - len(out)]
        return bytes(out)


def tensors(config, rng):
    """(name, shape, bytes) of one decoder layer's MoE block."""
    hidden, inter, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    into, back = Pool(rng, hidden**-0.5), Pool(rng, inter**-0.5)
    block = "model.layers.0.mlp."
    yield block + "gate.weight", [experts, hidden], into.draw(experts * hidden)
    for expert in range(experts):
        name = f"{block}experts.{expert}."
        yield name + "gate_proj.weight", [inter, hidden], into.draw(inter * hidden)
        yield name + "up_proj.weight", [inter, hidden], into.draw(inter * hidden)
        yield name + "down_proj.weight", [hidden, inter], back.draw(hidden * inter)


def write_shard(path, shard):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, data in shard:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in shard:
            file.write(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inter", type=int, default=768)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": options.hidden, "hidden_act": "silu",
              "moe_intermediate_size": options.inter, "intermediate_size": 3 * options.hidden, "num_experts": options.experts,
              "num_experts_per_tok": options.top_k, "norm_topk_prob": True, "num_hidden_layers": 1, "decoder_sparse_step": 1,
              "mlp_only_layers": [], "torch_dtype": "bfloat16"}
    shards, size = [[]], 0
    for tensor in tensors(config, random.Random(options.seed)):
        if size + len(tensor[2]) > SHARD_BYTES and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += len(tensor[2])
    options.folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        write_shard(options.folder / file, shard)
        weight_map.update((name, file) for name, _, _ in shard)
    total = sum(len(data) for shard in shards for _, _, data in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (options.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (options.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")  # last: a folder with it is complete


if __name__ == "__main__":
    main()
