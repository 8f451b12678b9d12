"""A real searx on loopback, from the Debian package. Its only engine searches a database that the test has filled."""

import shutil
import socket
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from checks import TIMEOUT

SHARED = Path("/usr/share/python3-searx")
SETTINGS = """
general: {{debug: false, instance_name: test}}
search: {{safe_search: 0, autocomplete: "", default_lang: en, ban_time_on_fail: 0, max_ban_time_on_fail: 0}}
server:
  {{port: {port}, bind_address: 127.0.0.1, secret_key: of-a-test, base_url: false, image_proxy: false,
   http_protocol_version: "1.1", method: GET}}
ui:
  {{static_path: {shared}/static, templates_path: {shared}/templates, default_theme: oscar, default_locale: "",
   theme_args: {{oscar_style: logicodev}}}}
outgoing: {{request_timeout: 2.0, useragent_suffix: "", pool_connections: 1, pool_maxsize: 1}}
engines:
  - name: pages
    engine: sqlite
    shortcut: pg
    database: {folder}/pages.db
    query_str: SELECT url, title, content FROM pages WHERE pages MATCH :query
    categories: general
    timeout: 5.0
locales: {{en: English}}
doi_resolvers: {{none: "http://127.0.0.1/"}}
default_doi_resolver: none
"""


def is_installed() -> bool:
    return shutil.which("searx-run") is not None and SHARED.is_dir()


@contextmanager
def searx(folder: Path, pages: Iterable[tuple[str, str, str]]) -> Generator[str]:
    """Run a server that finds these pages (URL, title, content) and yield its URL."""
    with sqlite3.connect(folder / "pages.db") as database:
        database.execute("CREATE VIRTUAL TABLE pages USING fts5(url, title, content)")
        database.executemany("INSERT INTO pages VALUES (?, ?, ?)", pages)
    database.close()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "settings.yml").write_text(SETTINGS.format(port=port, shared=SHARED, folder=folder))
    environment = {"SEARX_SETTINGS_PATH": f"{folder}/settings.yml", "PATH": "/usr/bin:/bin"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["searx-run"], env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}", process, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(TIMEOUT)


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=TIMEOUT).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise RuntimeError(f"searx did not start: {log.read_text()[-2000:]}")
