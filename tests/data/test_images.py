"""Images from every kind of source, held out by their hash, as points and back."""

import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from esscher.core.space import Sequences
from esscher.core.storage import write_file
from esscher.data import images
from esscher.data.images import ImageArray, ImageCodec, load_codec, read_images, split_images


def some(count=6, shape=(4, 4, 1), *, labels=True) -> ImageArray:
    values = np.arange(count * np.prod(shape), dtype=np.int64).reshape(count, *shape) * 37 % 256
    return ImageArray(values.astype(np.uint8), np.arange(count) % 3 if labels else None, "some")


def write_idx(file, values):
    content = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def test_the_embedded_digits():
    actual, test = read_images("digits")
    assert actual.values.shape == (1797, 8, 8, 1) and test is None
    assert actual.values.max() == 255 and sorted(set(actual.labels.tolist())) == list(range(10))
    assert str(actual) == "digits: 1,797 images of 8 x 8 pixels, 1 channel"


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_of_mnist(tmp_path, ending):
    train, test = some(5).values[..., 0], some(3).values[..., 0]
    for name, values in (("train", train), ("t10k", test)):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte{ending}", values)
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte{ending}", np.arange(len(values), dtype=np.uint8))
    actual, judged = read_images(str(tmp_path))
    assert np.array_equal(actual.values[..., 0], train) and actual.labels.tolist() == [0, 1, 2, 3, 4]
    assert judged is not None and np.array_equal(judged.values[..., 0], test)
    assert ImageCodec(4, 4, 1, 256).encode(actual).tokens.tolist() == train.reshape(5, 16).tolist()
    alone, nothing = read_images(str(tmp_path / f"train-images-idx3-ubyte{ending}"))
    assert np.array_equal(alone.values, actual.values) and nothing is None


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    file = tmp_path / "train-images-idx3-ubyte"
    write_idx(file, some().values[..., 0])
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="holds 95 values, not 96: it is cut off"):
        read_images(str(file))
    file.write_bytes(b"text")
    with pytest.raises(ValueError, match="is no idx file"):
        read_images(str(file))


@pytest.mark.parametrize(
    "names", [("x_train", "y_train", "x_test"), ("train_x", "train_y", "test_x"), ("images", "labels", None)]
)
def test_arrays(tmp_path, names):
    whole, file = some(), tmp_path / "some.npz"
    arrays = {names[0]: whole.values[..., 0], names[1]: whole.labels}
    if names[2] is not None:
        arrays[names[2]] = whole.values[:2]
    np.savez(file, **arrays)
    actual, test = read_images(str(file))
    assert np.array_equal(actual.values, whole.values) and np.array_equal(actual.labels, whole.labels)
    assert (test is None) == (names[2] is None)
    assert test is None or (test.labels is None and np.array_equal(test.values, whole.values[:2]))
    np.savez(file, other=np.zeros(3))
    with pytest.raises(ValueError, match="has the arrays other"):
        read_images(str(file))


def test_sheets_have_an_image_in_each_row(tmp_path):
    whole = some(5, (4, 4, 3), labels=False)
    Image.fromarray(whole.values[:3].reshape(3, 16, 3)).save(tmp_path / "data_1.png")
    Image.fromarray(whole.values[3:4].reshape(1, 16, 3)).save(tmp_path / "data_2.png")
    Image.fromarray(whole.values[4:].reshape(1, 16, 3)).save(tmp_path / "test.png")
    actual, test = read_images(str(tmp_path))
    assert np.array_equal(actual.values, whole.values[:4]) and np.array_equal(test.values, whole.values[4:])
    Image.fromarray(np.zeros((2, 15), np.uint8)).save(tmp_path / "data_1.png")
    with pytest.raises(ValueError, match="rows of 15 pixels are no square images"):
        read_images(str(tmp_path))


def test_rows_of_the_hub(monkeypatch):
    def rows(name, split):
        if split == "test":
            raise FileNotFoundError
        return iter({"img": Image.fromarray(value[..., 0]), "label": 2} for value in some(3).values)

    monkeypatch.setattr(images, "hub_rows", rows)
    actual, test = read_images("someone/images")
    assert np.array_equal(actual.values, some(3).values) and actual.labels.tolist() == [2, 2, 2] and test is None
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="no file, folder or pattern"):
        read_images("./absent")


def test_the_hash_decides_where_an_image_goes():
    whole = read_images("digits")[0]
    train, validation, test = split_images(whole, held_out=0.1, test=True)
    assert len(train) + len(validation) + len(test) == 1797 and 120 < len(validation) < 240 and 120 < len(test) < 240
    fewer = split_images(whole.rows(slice(0, 900)), held_out=0.1, test=True)[1]
    assert {value.tobytes() for value in fewer.values} <= {value.tobytes() for value in validation.values}
    more, same = split_images(whole, held_out=0.1, test=False)
    assert len(more) == len(train) + len(test) and np.array_equal(same.values, validation.values)
    with pytest.raises(ValueError, match="too few to hold out"):
        split_images(some(2), held_out=0.1, test=True)


@pytest.mark.parametrize("quantization_levels", [2, 3, 16, 256])
def test_levels_there_and_back(quantization_levels):
    codec, whole = ImageCodec(4, 4, 1, quantization_levels), some()
    x = codec.encode(whole)
    assert (
        codec.space.vocab_size == quantization_levels
        and x.tokens.max() < quantization_levels
        and x.lengths.tolist() == [16] * 6
    )
    shown = codec.decode(x)
    assert np.abs(shown.astype(int) - whole.values).max() <= 256 / quantization_levels
    assert np.array_equal(codec.encode(ImageArray(shown, None, "again")).tokens, x.tokens)
    assert quantization_levels < 256 or np.array_equal(shown, whole.values)


def test_random_binarisation_is_drawn_once_by_brightness():
    codec = ImageCodec(10, 10, 1, 2, binarize="random")
    grey = ImageArray(np.full((400, 10, 10, 1), 64, np.uint8), None, "grey")
    first = codec.encode(grey).tokens
    assert np.array_equal(first, codec.encode(grey).tokens)
    assert abs(float(first.double().mean()) - 64 / 255) < 5 * (0.19 / 40_000) ** 0.5  # false-alarm rate below 1e-6
    ends = ImageArray(np.repeat(np.array([0, 255], np.uint8), 100).reshape(2, 10, 10, 1), None, "ends")
    assert codec.encode(ends).tokens.double().mean(1).tolist() == [0.0, 1.0]


def test_classes_stand_before_the_pixels():
    codec, whole = ImageCodec(4, 4, 1, 2, classes=3), some()
    x = codec.encode(whole)
    assert x.tokens[:, 0].tolist() == [2, 3, 4, 2, 3, 4] and x.start.tolist() == [1] * 6 and x.stop.tolist() == [17] * 6
    assert np.array_equal(codec.decode(x), ImageCodec(4, 4, 1, 2).decode(ImageCodec(4, 4, 1, 2).encode(whole)))
    half = Sequences(x.tokens[:, :9], x.start, x.start + 8)
    assert (codec.decode(half)[:, 2:] == 128).all()
    for wrong, message in ((some(labels=False), "none"), (some(), "one of 2")):
        with pytest.raises(ValueError, match=message):
            ImageCodec(4, 4, 1, 2, classes=2).encode(wrong)


def test_squares_become_their_mean():
    actual = ImageArray(np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1), None, "some").shrunk(2)
    assert actual.values[0, :, :, 0].tolist() == [[2, 4], [10, 12]]  # halves are rounded to the even number
    with pytest.raises(ValueError, match="no squares of side 3"):
        some().shrunk(3)


def test_a_folder_remembers_the_codec(tmp_path):
    assert load_codec(tmp_path) is None
    codec = ImageCodec(4, 5, 3, 2, 7, "random")
    for name, content in codec.files().items():
        write_file(tmp_path / name, content)
    assert load_codec(tmp_path) == codec
    (tmp_path / "codec.json").write_text('{"rows": 3}')
    with pytest.raises(ValueError, match="does not describe images"):
        load_codec(tmp_path)
    for wrong in ({"quantization_levels": 1}, {"quantization_levels": 257}, {"quantization_levels": 4, "binarize": "random"}):
        with pytest.raises(ValueError, match="levels"):
            ImageCodec(4, 4, 1, **wrong)
