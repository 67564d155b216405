import json
from pathlib import Path

import pytest
import torch
from tensordict import MemoryMappedTensor, NonTensorData, TensorDict

from swath.report.datasets import NAME, DatasetManifest, DatasetWriter, open_dataset

OUTSIDE = json.dumps(
    {
        "version": 2,
        "format": "memmap",
        "settings": {},
        "parts": [{"name": "part-000000", "frames": 1, "episodes": 0, "files": {"../secret": [1, 1]}}],
    }
)


@pytest.fixture(params=["poles", "poles.parquet"])
def path(request, tmp_path):
    if request.param.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    return tmp_path / request.param


def rows_of(first, n, ends=()):
    """Return rows numbered `first`, `first + 1`, … in all entries."""
    number = torch.arange(first, first + n)
    return TensorDict(
        {
            "observation": number.float().reshape(n, 1, 1).expand(n, 2, 3).clone(),
            "pixels": number.to(torch.uint8).reshape(n, 1).expand(n, 5).clone(),
            "action": number,
            "next": {
                "reward": number.double().unsqueeze(-1),
                "done": torch.tensor([[row in ends] for row in number.tolist()]),
            },
            "collector": {"traj_ids": number + 2**47, "version": torch.tensor(7).expand(n)},
        },
        [n],
    )


def written(path, *parts):
    writer = DatasetWriter.begin(path, {"seed": 3})
    first = 0
    for n in parts:
        writer.append(rows_of(first, n, ends=(1,)), {"next": first + n})
        first += n
    return writer


def same(first, second):
    keys = set(first.keys(include_nested=True, leaves_only=True))
    return keys == set(second.keys(include_nested=True, leaves_only=True)) and all(
        torch.equal(first[key], second[key]) and first[key].dtype == second[key].dtype for key in keys
    )


def test_all_entries_are_read_with_dtypes_and_shapes(path):
    written(path, 4, 3)
    data = open_dataset(path)
    assert [part.batch_size[0] for part in data] == [4, 3]
    assert same(data[0], rows_of(0, 4, ends=(1,)))
    assert same(data[-1], rows_of(4, 3))
    assert same(data.load(), rows_of(0, 7, ends=(1,)))
    manifest = DatasetManifest.read(path)
    assert (manifest.frames, manifest.episodes, manifest.settings, manifest.state) == (7, 1, {"seed": 3}, {"next": 7})


def test_a_part_without_manifest_and_drafts_are_removed(path):
    writer = written(path, 4)
    counted = writer.manifest
    writer.append(rows_of(4, 9), None)
    counted.save(path)  # as if the process had died between part and manifest
    if path.suffix:
        (path / ".part-000001.1234.tmp.parquet").touch()
    else:
        (path / ".part-000001.1234.tmp" / "half").mkdir(parents=True)
    resumed = DatasetWriter.resume(path)
    assert sorted(found.name for found in path.iterdir()) == sorted([NAME, counted.parts[0].name])
    resumed.append(rows_of(4, 3), None)
    assert same(open_dataset(path).load(), rows_of(0, 7, ends=(1,)))


def test_a_part_that_cannot_be_written_does_not_change_the_dataset(path, monkeypatch):
    writer = written(path, 4)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        writer.append(rows_of(4, 3), None)
    monkeypatch.undo()
    assert sorted(found.name for found in path.iterdir()) == sorted([NAME, writer.manifest.parts[0].name])
    writer.append(rows_of(4, 3), None)
    assert same(open_dataset(path).load(), rows_of(0, 7, ends=(1,)))


@pytest.mark.parametrize("n", [1, 3])
def test_rows_of_any_strides_are_written(n, path):
    rows = rows_of(0, n).set("turned", torch.arange(6.0 * n).reshape(3, 2, n).permute(2, 0, 1))
    DatasetWriter.begin(path, {}).append(rows, None)
    assert same(open_dataset(path, verify=True).load(), rows)


@pytest.mark.parametrize("name", ["poles", "deep/poles"])
def test_a_folder_may_be_relative_or_linked_and_tensordict_can_read_its_parts(name, tmp_path, monkeypatch):
    (tmp_path / "far").mkdir()
    (tmp_path / "deep").symlink_to(tmp_path / "far")
    monkeypatch.chdir(tmp_path)
    written(Path(name), 4)
    rows = TensorDict.load_memmap(tmp_path / name / "part-000000")
    assert isinstance(rows["action"], MemoryMappedTensor)
    assert same(rows, rows_of(0, 4, ends=(1,)))
    assert same(open_dataset(name).load(), rows)


def test_the_parts_of_a_parquet_dataset_are_one_table_to_others(tmp_path):
    arrow = pytest.importorskip("pyarrow.dataset")
    written(tmp_path / "poles.parquet", 4, 3)
    table = arrow.dataset(tmp_path / "poles.parquet").to_table()
    assert table.column("next.reward").to_pylist() == [0.0, 1, 2, 3, 4, 5, 6]
    assert table.column("pixels").to_pylist()[2] == [2] * 5
    assert table.column("observation").to_pylist()[6] == [6.0] * 6


def test_a_folder_with_other_files_is_refused_and_does_not_change(path):
    path.mkdir()
    (path / "notes.txt").touch()
    with pytest.raises(ValueError, match="has files in it, but no dataset"):
        DatasetWriter.begin(path, {})
    assert [found.name for found in path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is no manifest"),
        ("[" * 100_000, "is no manifest of a dataset .RecursionError"),
        ('{"version": 1}', "has layout 1, this Swath reads 2; collect into another folder"),
        ('{"version": 2, "format": "memmap", "settings": {}, "parts": [3]}', "is no manifest"),
        (OUTSIDE, "the file '../secret' is not in the folder"),
        ('{"version": 99}', "has layout 99, this Swath reads 2; upgrade Swath"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_named(text, message, tmp_path: Path):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ValueError, match=message):
        open_dataset(tmp_path)


def test_a_dataset_cannot_be_begun_twice_but_resumed(path):
    written(path, 4)
    with pytest.raises(FileExistsError, match=r"holds a dataset; DatasetWriter\.resume.* goes on with it, or choose"):
        DatasetWriter.begin(str(path), {})
    DatasetWriter.resume(str(path)).append(rows_of(4, 3), None)
    assert open_dataset(path).frames == 7


def files_of(path):
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != NAME)


def test_a_damaged_file_is_named_wherever_it_is_read_and_does_not_change(path):
    written(path, 4, 3)
    data = open_dataset(path)
    for file in files_of(path):
        content = file.read_bytes()
        index = int(file.relative_to(path).parts[0][5:11])
        readers = (open_dataset, DatasetWriter.resume, lambda _, index=index: data[index], lambda _: data.load())
        file.unlink()
        for read in readers:
            with pytest.raises(FileNotFoundError, match=f"{file.name} is missing; put back a copy of it, or collect"):
                read(path)
        for length in {0, len(content) // 2, len(content) - 1}:
            file.write_bytes(content[:length])
            message = f"{file.name} has {length} bytes, {len(content)} were written; put back"
            for read in readers:
                with pytest.raises(ValueError, match=message):
                    read(path)
            assert file.stat().st_size == length
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        open_dataset(path)
        with pytest.raises(ValueError, match=f"{file.name} has the checksum [0-9]+, [0-9]+ was written"):
            open_dataset(path, verify=True)
        file.write_bytes(content)
    assert same(open_dataset(path, verify=True).load(), rows_of(0, 7, ends=(1,)))


def test_a_manifest_with_a_wrong_number_of_rows_is_an_error(path):
    written(path, 4)
    (path / NAME).write_text((path / NAME).read_text().replace('"frames": 4', '"frames": 5'))
    with pytest.raises(ValueError, match=r"part-000000.* has 4 rows, 5 were written"):
        open_dataset(path).load()


def test_files_are_opened_for_reading_only(path):
    written(path, 4)
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files_of(path)}
    rows = open_dataset(path)[0]
    rows["action"][:] = 9
    rows["next", "reward"].zero_()
    assert rows["action"].tolist() == [9] * 4
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files_of(path)} == before
    assert same(open_dataset(path).load(), rows_of(0, 4, ends=(1,)))


class Evil:
    """An object that creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (self.file, "w")


def test_objects_are_never_written(path):
    writer = written(path, 4)
    rows = rows_of(4, 3).set("who", NonTensorData({1, 2}, batch_size=[3]))
    with pytest.raises(TypeError, match="entry 'who' is of type NonTensorData; datasets hold tensors: leave it out"):
        writer.append(rows, None)
    assert same(open_dataset(path).load(), rows_of(0, 4, ends=(1,)))


@pytest.mark.parametrize("add", ["an entry", "a whole part"])
def test_a_pickle_in_a_dataset_is_refused_by_name_and_never_read(add, tmp_path):
    path, marker = tmp_path / "poles", tmp_path / "ran"
    written(path, 4)
    data = open_dataset(path)
    evil = TensorDict({"who": NonTensorData(Evil(str(marker)), batch_size=[4])}, [4])
    (evil if add == "an entry" else evil.update(rows_of(0, 4))).memmap(path / "part-000000")
    for read in (open_dataset, DatasetWriter.resume, lambda _: data[0], lambda _: data.load()):
        with pytest.raises(ValueError, match=r"part-000000/who/other\.pickle is a pickle, which is not read"):
            read(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "rows"),
    [*(("poles", rows) for rows in (20_000, 25_000, 40_000, 100_000)), ("poles.parquet", 40_000)],
)
def test_a_full_disk_is_an_error_and_does_not_change_the_dataset(name, rows, small_disk):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    writer, noise = written(small_disk / name, 4), rows_of(4, rows)
    for key in ("observation", ("next", "reward")):
        noise[key] = torch.randn_like(noise[key])
    with pytest.raises(OSError, match="No space left"):
        writer.append(noise, None)
    assert len([*(small_disk / name).iterdir()]) == 2, "no draft is left"
    writer.append(rows_of(4, 3), None)
    assert same(open_dataset(small_disk / name, verify=True).load(), rows_of(0, 7, ends=(1,)))
