"""Checkpoints: a damaged one is refused and says what is left."""

import json
import random

import pytest
import torch
from safetensors.torch import save

from internals import load_checkpoint, save_checkpoint
from kermix.errors import RunError

CONTENT = {"step": 7, "history": [{"loss": 0.1 + 0.2, "step": 7.0}], "classes": ["ä", "b"]}


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.a": torch.randn(5, 3, generator=generator),
        "model.b": torch.arange(4),
        "generator": generator.get_state()[:40],
    }


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_any_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, tensors(), CONTENT)
    whole = path.read_bytes()
    bits = range(8 * len(whole))
    for bit in [*bits[:64], *random.Random(0).sample(bits, 1500), *bits[-64:]]:
        path.write_bytes(flipped(whole, bit))
        with pytest.raises(RunError, match="damaged"):
            load_checkpoint(path)
    path.write_bytes(whole)
    found, content = load_checkpoint(path)
    assert content == CONTENT
    assert all(value.equal(found[name]) for name, value in tensors().items())


@pytest.mark.parametrize("length", [0, 5, 8, 100, -1])
def test_a_part_of_a_checkpoint_is_refused(length, tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, tensors(), CONTENT)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RunError, match=r"c\.safetensors: damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("metadata", [None, {"kermix": json.dumps(CONTENT)}])
def test_a_file_without_a_checksum_is_refused(metadata, tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(save(tensors(), metadata=metadata))
    with pytest.raises(RunError, match=r"other\.safetensors: damaged, or not a checkpoint"):
        load_checkpoint(path)


def test_the_last_checkpoint_leaves_the_one_before(tmp_path):
    last, previous = (tmp_path / f"{name}.safetensors" for name in ("last", "previous"))
    for step in (1, 2, 3):
        save_checkpoint(last, tensors(step), {"step": step})
        assert [p.name for p in tmp_path.glob("*.part")] == []
        if step > 1:
            found, content = load_checkpoint(previous)
            assert content == {"step": step - 1}
            assert found["model.a"].equal(tensors(step - 1)["model.a"])
    best = tmp_path / "best.safetensors"
    for step in (1, 2):
        save_checkpoint(best, tensors(), {"step": step})
    assert load_checkpoint(previous)[1] == {"step": 2}, "only what is gone on from is kept"


def damage(path):
    path.write_bytes(flipped(path.read_bytes(), 8 * path.stat().st_size - 3))


def test_a_damaged_checkpoint_says_which_other_one_is_whole(tmp_path):
    last, previous, best = (tmp_path / f"{n}.safetensors" for n in ("last", "previous", "best"))
    for step in (1, 2):
        save_checkpoint(last, tensors(), {"step": step})
    save_checkpoint(best, tensors(), {"step": 1})
    damage(last)
    with pytest.raises(RunError, match=r"replace it with .*previous\.safetensors \(step 1\)"):
        load_checkpoint(last)
    damage(previous)
    with pytest.raises(RunError, match="start a new run") as refused:
        load_checkpoint(last)
    assert "replace it with" not in str(refused.value)
    damage(best)
    with pytest.raises(RunError, match="start a new run"):
        load_checkpoint(best)
    save_checkpoint(last, tensors(), {"step": 3})
    with pytest.raises(RunError, match=r"replace it with .*last\.safetensors \(step 3\)"):
        load_checkpoint(best)


def test_a_damaged_model_of_a_classifier_is_written_again_by_resuming(tmp_path):
    for name in ("last", "model"):
        save_checkpoint(tmp_path / f"{name}.safetensors", tensors(), {"step": 1})
    damage(tmp_path / "model.safetensors")
    with pytest.raises(RunError, match="Remove it; `kermix resume`"):
        load_checkpoint(tmp_path / "model.safetensors")


def test_any_other_damaged_file_is_to_be_restored_or_removed(tmp_path):
    save_checkpoint(tmp_path / "fit.ckpt", tensors(), {"step": 1})
    damage(tmp_path / "fit.ckpt")
    with pytest.raises(RunError, match="Restore a copy"):
        load_checkpoint(tmp_path / "fit.ckpt")
