"""A server on loopback that speaks what `huggingface_hub` asks the Hub for, of data sets."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Files = Mapping[str, bytes]


@dataclass
class Hub:
    """Repositories with their commits, and what has been asked of them."""

    port: int = 0
    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """Of each repository, each commit's files."""
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each repository, the commit that each branch is at."""
    requests: list[str] = field(default_factory=list)
    """Paths of all that was asked."""

    def push(self, repo: str, files: Files, branch: str = "main") -> str:
        """Make these files the content of a branch; gives the commit."""
        described = repr(sorted(files.items())).encode()
        commit = hashlib.sha1(described).hexdigest()
        self.commits.setdefault(repo, {})[commit] = dict(files)
        self.branches.setdefault(repo, {})[branch] = commit
        return commit

    def environment(self, home: Path, **others: str) -> dict[str, str]:
        """Of a process that takes this for the Hub and has its caches in `home`."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_"))}
        own = {"HF_ENDPOINT": f"http://127.0.0.1:{self.port}", "HF_HOME": str(home)}
        return plain | own | {"HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"} | others

    def run(
        self, home: Path, *command: str, expect: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A command of Python, in a process of its own, since the Hub's library reads its
        environment when it is imported."""
        done = subprocess.run(
            [sys.executable, *command],
            env=self.environment(home, **environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """A Hub without repositories, for as long as the block."""
    hub = Hub()

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Refused(Exception):
    def __init__(self, code: str) -> None:
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = urllib.parse.unquote(self.path.partition("?")[0]).strip("/").split("/")
        self.served.requests.append("/".join(path))
        if path == ["api", "repos", "create"]:
            made = json.loads(body)
            repo = f"{made['organization']}/{made['name']}"
            status = 409 if repo in self.served.commits else 200
            if status == 200:
                self.served.push(repo, {".gitattributes": b""})
            answer: Any = {"url": f"http://127.0.0.1/datasets/{repo}", "name": repo}
            return self._send(json.dumps(answer).encode(), status)
        if path == ["api", "validate-yaml"]:
            return self._send(b'{"errors": [], "warnings": []}')
        repo, what, branch = "/".join(path[2:4]), path[4], "/".join(path[5:])
        if branch not in self.served.branches.get(repo, {}):
            return self._send(b"{}", 404, {"X-Error-Code": "RevisionNotFound"})
        if what == "preupload":
            named = [each["path"] for each in json.loads(body)["files"]]
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            answer = {"files": [{"path": name, **plain} for name in named]}
        elif what == "paths-info":
            wanted = set(json.loads(body)["paths"])
            answer = [
                each for each in self._asked(repo, ["tree", branch]) if each["path"] in wanted
            ]
        else:
            lines = [json.loads(line) for line in body.splitlines()]
            before = self.served.commits[repo][self._commit(repo, branch)]
            added = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            commit = self.served.push(repo, {**before, **added}, branch)
            url = f"http://127.0.0.1/datasets/{repo}/commit/{commit}"
            answer = {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""}
        return self._send(json.dumps(answer).encode())

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.served.requests.append(path)
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        try:
            if parts[:2] == ["api", "datasets"] and len(parts) >= 4:
                repo, rest = "/".join(parts[2:4]), parts[4:]
                self._send(json.dumps(self._asked(repo, rest)).encode())
            elif parts[0] == "datasets" and parts[3:4] == ["resolve"]:
                self._send_file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
            else:
                raise _Refused("EntryNotFound")
        except _Refused as refused:
            self._send(b"{}", 404, {"X-Error-Code": refused.code})

    def _commit(self, repo: str, revision: str) -> str:
        if repo not in self.served.commits:
            raise _Refused("RepoNotFound")
        commit = self.served.branches[repo].get(revision, revision)
        if commit not in self.served.commits[repo]:
            raise _Refused("RevisionNotFound")
        return commit

    def _asked(self, repo: str, rest: list[str]) -> Any:
        what = rest[0] if rest else "revision"
        commit = self._commit(repo, rest[1] if len(rest) > 1 else "main")
        files = self.served.commits[repo][commit]
        if what == "revision":
            siblings = [{"rfilename": name} for name in sorted(files)]
            return {"id": repo, "sha": commit, "private": False, "siblings": siblings}
        return [
            {"type": "file", "oid": _git_name(data), "size": len(data), "path": name}
            for name, data in sorted(files.items())
        ]

    def _send_file(self, repo: str, revision: str, name: str) -> None:
        commit = self._commit(repo, revision)
        data = self.served.commits[repo][commit].get(name)
        if data is None:
            self._send(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        self._send(data, 200, {"ETag": f'"{_git_name(data)}"', "X-Repo-Commit": commit})

    def _send(self, data: bytes, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _git_name(data: bytes) -> str:
    """What git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
