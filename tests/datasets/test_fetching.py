"""Downloads from a server on this machine: checksums decide, files of the user stay, and no network is needed later."""

import bz2
import hashlib
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bilevel import cli
from bilevel.datasets import (
    CATALOGUE,
    DownloadError,
    Entry,
    RemoteFile,
    TrainTestRows,
    data_folder,
    fetch,
    load,
    verify,
)
from bilevel.datasets.untrusted_bytes import Files, require
from bilevel.errors import CorruptFileError, InvalidInputError, MissingFileError

CONTENT = {"a.bin": b"abcd", "b.bin": b"efgh"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The address of a server, the folder it serves, a function that ends it, and the server."""
    published = tmp_path / "published"
    (published / "sub").mkdir(parents=True)
    (published / "a.bin").write_bytes(CONTENT["a.bin"])
    (published / "sub" / "b.bin").write_bytes(CONTENT["b.bin"])
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published)))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def stop():
        http.shutdown()
        http.server_close()
        thread.join()

    yield f"http://127.0.0.1:{http.server_port}/", published, stop, http
    if thread.is_alive():
        stop()


def read_tiny(root):
    files = Files(root)
    contents = []
    for name in CONTENT:
        path = files.first(f"tiny/{name}", f"tiny/{name}.bz2", dataset="tiny")
        contents.append(files.unpacked(path, limit=4))
        require(len(contents[-1]) == 4, path, "is cut off")
    a, b = (np.frombuffer(content, np.uint8) for content in contents)
    return TrainTestRows("tiny", a, a, b, b, sha256=files.sha256)


@pytest.fixture
def tiny(server, monkeypatch):
    address, *_ = server
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    entry = Entry(
        name="tiny", title="eight bytes", home="http://home", licence="none", citation="nobody", addresses=(address,),
        files=(RemoteFile("a.bin", f"sha256:{sums['a.bin']}", 4), RemoteFile("sub/b.bin", f"sha256:{sums['b.bin']}")),
        read=read_tiny,
    )  # fmt: skip
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    return entry


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("BILEVEL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_fetched_once_and_then_without_a_network(server, tiny, data):
    assert fetch("tiny") == data / "tiny"
    assert {file.name: file.read_bytes() for file in (data / "tiny").iterdir()} == CONTENT
    server[2]()
    assert fetch("tiny") == data / "tiny"
    assert bytes(load("tiny").X) == b"abcd"  # type: ignore[attr-defined]
    assert [check.official for check in verify("tiny")] == [True, True]


def test_other_bytes_are_thrown_away(server, tiny, data):
    (server[1] / "sub" / "b.bin").write_bytes(b"evil")
    with pytest.raises(DownloadError, match=r"b.bin could not be downloaded(.|\n)*hash(.|\n)*http://home and put it"):
        fetch("tiny")
    assert [file.name for file in (data / "tiny").iterdir()] == ["a.bin"]


class CutOff(Quiet):
    """Promises four bytes, sends two and hangs up."""

    def do_GET(self):
        if not self.path.endswith("b.bin"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"ef")
        self.close_connection = True


@pytest.mark.parametrize("how", ["connection", "file"])
def test_a_truncated_download_is_named_and_thrown_away(server, tiny, data, capsys, how):
    """The connection breaks, or the server itself has half a file; what came before it stays."""
    if how == "connection":
        server[3].RequestHandlerClass = partial(CutOff, directory=str(server[1]))
    else:
        (server[1] / "sub" / "b.bin").write_bytes(b"ef")
    assert cli.main(["data", "fetch", "tiny"]) == 2
    said = capsys.readouterr().err
    assert "tiny: b.bin could not be downloaded" in said
    assert "Try again later, or get the file from http://home and put it into" in said
    assert {file.name: file.read_bytes() for file in (data / "tiny").iterdir()} == {"a.bin": b"abcd"}
    server[3].RequestHandlerClass = partial(Quiet, directory=str(server[1]))
    (server[1] / "sub" / "b.bin").write_bytes(CONTENT["b.bin"])
    assert cli.main(["data", "fetch", "tiny"]) == 0


def test_a_mirror_helps(server, tiny, data, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, addresses=("http://127.0.0.1:1/", server[0])))
    fetch("tiny")
    monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, addresses=("http://127.0.0.1:1/", server[0] + "not/here/")))
    with pytest.raises(DownloadError, match=r"127.0.0.1:1/a.bin: (.|\n)*not/here/a.bin: 404"):
        fetch("tiny", data / "elsewhere")


def test_an_error_without_words_is_told_by_its_name(tiny, data, monkeypatch):
    def silent(*_, **__):
        raise TimeoutError

    monkeypatch.setattr("pooch.retrieve", silent)
    with pytest.raises(DownloadError, match=r"a.bin: TimeoutError\n"):
        fetch("tiny")


def test_files_of_the_user_stay(tiny, data):
    (data / "tiny").mkdir(parents=True)
    (data / "tiny" / "a.bin").write_bytes(b"mine")
    fetch("tiny")
    assert (data / "tiny" / "a.bin").read_bytes() == b"mine"
    assert [check.official for check in verify("tiny")] == [False, True]
    assert verify("tiny")[0].sha256 == hashlib.sha256(b"mine").hexdigest()
    (data / "tiny" / "a.bin").write_bytes(b"min")
    with pytest.raises(CorruptFileError, match="a.bin: the file is cut off. Delete it"):
        fetch("tiny")
    assert (data / "tiny" / "a.bin").read_bytes() == b"min"


def test_a_packed_official_file_is_official(tiny, data):
    (data / "tiny").mkdir(parents=True)
    (data / "tiny" / "a.bin.bz2").write_bytes(bz2.compress(b"abcd"))
    (data / "tiny" / "b.bin.bz2").write_bytes(bz2.compress(b"mine"))
    assert [check.official for check in verify("tiny")] == [True, False]


def test_nothing_is_trusted_without_a_checksum(server, tiny, data, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, files=(RemoteFile("a.bin", None),)))
    with pytest.raises(InvalidInputError, match=r"no checksum of a.bin is known.*get it from http://home"):
        fetch("tiny")
    assert not (data / "tiny").exists()


def test_every_file_of_the_catalogue_is_pinned():
    for entry in CATALOGUE.values():
        assert entry.home.startswith("http")
        assert entry.citation
        assert entry.licence
        for file in entry.files:
            algorithm, digest = (file.checksum or "").split(":")
            assert algorithm == "sha256"  # MD5 is no protection against a deliberate forgery
            assert len(bytes.fromhex(digest)) == 32


def test_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    assert data_folder().name == "bilevel"
    monkeypatch.setenv("BILEVEL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("~/x") == Path.home() / "x"
    with pytest.raises(InvalidInputError, match="no data set 'mnst': choose one of mnist, "):
        load("mnst")
    with pytest.raises(MissingFileError, match="bilevel data fetch omniglot"):
        load("omniglot")


def test_commands(server, tiny, data, capsys):
    assert cli.main(["data", "list"]) == 0
    listed = capsys.readouterr().out
    assert "tiny: eight bytes" in listed
    assert "not here: bilevel data fetch tiny" in listed
    assert f"Data folder: {data}" in listed
    assert cli.main(["data", "verify"]) == 2
    assert "no set of data is in" in capsys.readouterr().err
    assert cli.main(["data", "fetch"]) == 2
    assert "name the sets to fetch" in capsys.readouterr().err
    assert cli.main(["data", "fetch", "tiny"]) == 0
    assert cli.main(["data", "verify"]) == 0
    assert f"{hashlib.sha256(b'abcd').hexdigest()}  tiny/a.bin  (official)" in capsys.readouterr().out
    (data / "tiny" / "a.bin").write_bytes(b"")
    assert cli.main(["data", "verify", "tiny"]) == 2
    assert "CANNOT BE USED" in capsys.readouterr().out
    server[2]()
    assert cli.main(["data", "fetch", "tiny", "--folder", str(data / "new")]) == 2
    assert "a.bin could not be downloaded" in capsys.readouterr().err
