"""Downloads from a server of our own: whole, resumed, wrong, absent."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from internals import image_cache_module as download
from internals import load_labelled
from kermix.errors import DownloadError
from pictures import cifar_batches, write_archive, write_mnist


class Handler(BaseHTTPRequestHandler):
    """Serves the files of a folder, from the middle if asked to; `cut` breaks answers off."""

    def do_GET(self):
        server = self.server
        path = server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data, start = path.read_bytes(), 0
        wanted = self.headers.get("Range") if server.ranges else None
        server.asked.append((self.path, self.headers.get("Range")))
        if wanted:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_error(416)
                return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start : server.cut or None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.folder, running.ranges, running.cut, running.asked = tmp_path / "www", True, 0, []
        running.folder.mkdir()
        running.address = f"http://127.0.0.1:{running.server_port}/"
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def file(server):
    content = bytes(range(256)) * 1000
    (server.folder / "file.bin").write_bytes(content)
    return content, hashlib.md5(content).hexdigest()


def test_whole_files_are_fetched_once(server, file, tmp_path):
    content, md5 = file
    target = tmp_path / "new" / "file.bin"
    for _ in range(2):
        download.fetch([server.address + "file.bin"], md5, target)
    assert target.read_bytes() == content
    assert server.asked == [("/file.bin", None)]
    target.write_bytes(content[:-1])
    server.asked.clear()
    download.fetch([server.address + "file.bin"], md5, target)
    assert target.read_bytes() == content, "a damaged file is fetched again"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_gone_on_with(ranges, server, file, tmp_path):
    content, md5 = file
    server.cut, server.ranges = 150_000, ranges
    target = tmp_path / "file.bin"
    with pytest.raises(
        DownloadError, match=r"file.bin could not be downloaded \(http://127.*Try again"
    ):
        download.fetch([server.address + "file.bin"], md5, target)
    assert not target.exists()
    assert (tmp_path / "file.bin.part").stat().st_size == 131072
    server.cut = 0
    download.fetch([server.address + "file.bin"], md5, target)
    assert target.read_bytes() == content
    assert server.asked[-1] == ("/file.bin", "bytes=131072-")
    assert not (tmp_path / "file.bin.part").exists()


def test_a_part_that_is_already_everything(server, file, tmp_path):
    content, md5 = file
    (tmp_path / "file.bin.part").write_bytes(content)
    download.fetch([server.address + "file.bin"], md5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == content


def test_other_contents_are_refused(server, file, tmp_path):
    md5 = file[1]
    (server.folder / "file.bin").write_bytes(b"<html>moved</html>")
    with pytest.raises(DownloadError, match="not the official one"):
        download.fetch([server.address + "file.bin"], md5, tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()


def test_mirrors_are_tried_in_turn(server, file, tmp_path):
    content, md5 = file
    closed = "http://127.0.0.1:9/file.bin"
    urls = [closed, server.address + "none.bin", server.address + "file.bin"]
    download.fetch(urls, md5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == content
    with pytest.raises(DownloadError, match=r":9/file.bin: no connection; .*404"):
        download.fetch(urls[:2], md5, tmp_path / "other.bin")


def test_a_folder_that_cannot_be_written(server, file, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(DownloadError, match=r"taken/file.bin: cannot be written"):
        download.fetch([server.address + "file.bin"], file[1], tmp_path / "taken" / "file.bin")


def test_a_file_that_is_there_needs_no_writable_folder(server, file, tmp_path):
    (tmp_path / "file.bin").write_bytes(file[0])
    (tmp_path / "file.bin.lock").mkdir()  # no lock can be taken, as where one must not write
    download.fetch([server.address + "file.bin"], file[1], tmp_path / "file.bin")
    assert not server.asked


def test_sets_are_downloaded_where_no_data_root_has_them(server, tmp_path, monkeypatch):
    write_mnist(server.folder)
    write_archive(server.folder / "cifar-10-binary.tar.gz", cifar_batches())
    for name, (_, files) in list(download.FILES.items()):
        sums = {f: hashlib.md5((server.folder / f).read_bytes()).hexdigest() for f in files}
        monkeypatch.setitem(download.FILES, name, ((server.address,), sums))
    cache, empty = tmp_path / "cache", tmp_path / "empty"
    empty.mkdir()
    assert len(load_labelled("mnist", "train", cache=cache)) == 20
    assert len(load_labelled("mnist", "test", cache=cache, data_root=empty)) == 10
    assert len(load_labelled("cifar10", "train", cache=cache)) == 50
    assert len(server.asked) == 5, "each file once"
    (server.folder / "cifar-10-binary.tar.gz").unlink()
    with pytest.raises(DownloadError, match=r"cifar10 is not in .*empty\. cifar-10-binary.tar.gz"):
        load_labelled("cifar10", "test", cache=tmp_path / "other", data_root=empty)


def test_official_sums():
    sums = [md5 for _, files in download.FILES.values() for md5 in files.values()]
    assert len(set(sums)) == 5
    assert all(len(bytes.fromhex(md5)) == 16 for md5 in sums)
