"""Damages to run and classifier folders that an author of one could make: checksums stay right."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import torch

from pathaware.training.checksummed import read_checksummed, write_checksummed
from pathaware.training.settings import to_toml

VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 3, 1024, 20_000, 2**40, 2**70, 0.5, -0.5, 1e-300, 1e308),
    *(float("nan"), float("inf"), "", "x", "x" * 3000, "\x1b[31m", "a\nb", "../../up", "none", "os:system"),
    *("timm:resnet10t", "timm:hf-hub:evil/tracker", "timm:local-dir:/", "cuda:7", "resnet12", "maml"),
    *([], {}, [[]], [1, 2], {"a": 1}, ["a", "a"], [float("nan")], [0.0], [0.0] * 3, [1e-9] * 3),
]  # fmt: skip


def changed(value: Any, random: Random) -> Any:
    """The value with one part replaced, removed, repeated or put elsewhere."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        if random.random() < 0.08:
            return {key: each for key, each in value.items() if key != name}
        return {**value, name: changed(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        if random.random() < 0.2:
            return value[:place] + value[place + random.randrange(2) :] + value[:place]
        return [*value[:place], changed(value[place], random), *value[place + 1 :]]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and random.random() < 0.4:
        return random.choice([value + 1, value - 1, -value, value * 2, value * 1000, value / 3])
    return random.choice(VALUES)


def changed_tensor(value: torch.Tensor, random: Random) -> torch.Tensor:
    other = value.clone().contiguous()
    flat = other.view(-1)
    kind = random.randrange(9)
    if kind == 0 and flat.numel():
        special = [float("nan"), float("inf"), -1e38] if value.is_floating_point() else [100, 3, 0]
        flat[random.randrange(flat.numel())] = random.choice(special)
    elif kind == 1:
        return other.zero_()
    elif kind == 2:
        return other.to(
            random.choice([torch.float16, torch.float64, torch.int64, torch.uint8, torch.complex64])
        )
    elif kind == 3:
        return other[None]
    elif kind == 4:
        return flat.clone()
    elif kind == 5:
        return other[:0] if other.ndim else other
    elif kind == 6:
        return torch.cat([other, other]) if other.ndim else other
    elif kind == 7:
        return other.transpose(0, -1).contiguous() if other.ndim else other
    elif value.is_floating_point():
        return other * 1e30
    return other


def damage_tensors(path: Path, random: Random) -> None:
    tensors, about = read_checksummed(path)
    kind = random.randrange(4)
    name = random.choice(list(tensors))
    if kind == 0:
        about = changed(about, random)
    elif kind == 1:
        tensors[name] = changed_tensor(tensors[name], random)
    elif kind == 2:
        del tensors[name]
    else:
        tensors[random.choice(["x", "", "a\nb", f"{name}.x"])] = tensors[name].clone()
    write_checksummed(path, tensors, about)


def damage_text(path: Path, random: Random) -> None:
    if path.suffix == ".toml":
        tables = changed(tomllib.loads(path.read_text()), random)
        try:
            text = to_toml(tables)
        except Exception:
            text = json.dumps(tables)
    elif path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        place = random.randrange(len(lines))
        lines[place] = json.dumps(changed(json.loads(lines[place]), random))
        text = "\n".join(lines) + "\n"
    else:
        text = json.dumps(changed(json.loads(path.read_text()), random))
    path.write_text(text, encoding="utf-8", errors="surrogatepass")


def damage_file(path: Path, random: Random) -> None:
    """Cut the file, or put something else in its place."""
    kind = random.randrange(9)
    content = path.read_bytes()
    path.unlink()
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to(random.choice(["/dev/zero", "/dev/null", "/dev/tty", path.name, "nowhere", ".."]))
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        path.write_bytes(content[: random.randrange(len(content) + 1)])
    elif kind == 4:
        path.write_bytes(random.randbytes(200))
    elif kind == 5:
        with path.open("wb") as file:
            file.truncate(2**40)
    elif kind == 6:
        path.write_bytes(b"[" * 100_000)
    elif kind == 7:
        path.with_name(random.choice(["state-5x.safetensors", "snapshot-.safetensors"])).write_bytes(content)
        path.write_bytes(content)


def damage(folder: Path, random: Random) -> str:
    """Damage a file of a folder; return which."""
    path = random.choice(
        sorted(path for path in folder.iterdir() if path.is_file() and "events" not in path.name)
    )
    if random.random() < 0.25:
        damage_file(path, random)
    elif path.suffix == ".safetensors":
        damage_tensors(path, random)
    else:
        damage_text(path, random)
    return path.name
