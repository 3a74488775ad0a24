"""Files: whole or not at all, and nothing damaged, foreign or pickled is ever used."""

import pickle
import random

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.files import read_state, write_state
from posterity.posteriors import Empirical

STATE = {
    "tensor": torch.arange(6, dtype=torch.float64).view(2, 3),
    "nested": [{"a": torch.tensor(3), "b": None}, 1.5, "word", True],
    "optimizer": {0: torch.zeros(2), 1: {"step": torch.tensor(7.0)}},
}


def test_a_nested_state_comes_back_as_it_was(tmp_path):
    write_state(tmp_path / "f", STATE, "checkpoint")
    back = read_state(tmp_path / "f", "checkpoint")
    torch.testing.assert_close(back["tensor"], STATE["tensor"])
    assert back["nested"][1:] == [1.5, "word", True] and back["nested"][0]["b"] is None
    assert list(back["optimizer"]) == [0, 1] and back["optimizer"][1]["step"] == 7


def test_every_flipped_byte_is_found(tmp_path):
    write_state(tmp_path / "f", STATE, "checkpoint")
    whole = (tmp_path / "f").read_bytes()
    chooser = random.Random(0)
    for position in chooser.sample(range(len(whole)), 200):
        broken = bytearray(whole)
        broken[position] ^= 1 << chooser.randrange(8)
        (tmp_path / "g").write_bytes(broken)
        try:
            back = read_state(tmp_path / "g", "checkpoint")
        except pst.PosterityError:
            continue
        # A flip in the header's white space changes nothing: then the content must be whole.
        torch.testing.assert_close(back["tensor"], STATE["tensor"])
        assert back["nested"][1:] == [1.5, "word", True]


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_truncated_files_are_refused(tmp_path, length):
    write_state(tmp_path / "f", STATE, "checkpoint")
    (tmp_path / "g").write_bytes((tmp_path / "f").read_bytes()[:length])
    with pytest.raises(pst.PosterityError, match="not a whole safetensors file"):
        read_state(tmp_path / "g", "checkpoint")


def test_pickles_and_other_kinds_and_missing_files_are_refused(tmp_path):
    (tmp_path / "p").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(pst.PosterityError, match="pickles are not read"):
        read_state(tmp_path / "p", "posterior")
    write_state(tmp_path / "f", STATE, "checkpoint")
    with pytest.raises(pst.PosterityError, match="not a posterity posterior file"):
        read_state(tmp_path / "f", "posterior")
    with pytest.raises(pst.PosterityError, match="there is no file"):
        read_state(tmp_path / "absent", "posterior")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_state(tmp_path / "f", STATE, "checkpoint")
    before = (tmp_path / "f").read_bytes()
    with pytest.raises(pst.PosterityError, match="cannot store"):
        write_state(tmp_path / "f", {"bad": object()}, "checkpoint")
    assert (tmp_path / "f").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_posterior_of_another_network_is_refused(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    q = Empirical(net, pst.likelihoods.Categorical(), [{n: p.detach() for n, p in net.named_parameters()}])
    pst.save(q, tmp_path / "q")
    with pytest.raises(
        pst.PosterityError, match=r"another network: parameter '0\.weight' is \[4, 3\] there and \[5, 3\] here"
    ):
        pst.load(tmp_path / "q", nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)))


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "f", tmp_path / "file" / "deeper" / "f", tmp_path / "folder"):
        with pytest.raises(pst.PosterityError, match="cannot be written"):
            write_state(path, STATE, "checkpoint")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]  # nothing half-written stays
    assert (tmp_path / "file").read_text() == "kept"
