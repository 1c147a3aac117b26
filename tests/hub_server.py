"""A small Hub on this machine, which speaks to the real `huggingface_hub` client over HTTP.

It keeps everything in memory and does what a model needs: accounts, repos (public and private), branches, tags, pull
requests, commits of small files and of LFS files, listings, downloads with ETags, redirects and ranges, the metadata
check, and the errors of the real one. It can also drop a connection halfway.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

LFS_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
DATE = "2026-01-01T00:00:00.000Z"


# What is stored


@dataclass(frozen=True)
class File:
    content: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git_oid(self) -> str:
        """What git calls the file: for an LFS file, its pointer."""
        content = self.content
        if self.lfs:
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(content)}\n"
            content = pointer.encode()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_oid

    def info(self, path: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "oid": self.git_oid, "size": len(self.content)}
        if self.lfs:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": 130}
        return entry


@dataclass
class Commit:
    oid: str
    title: str
    parent: str | None
    files: dict[str, File]


@dataclass
class Repo:
    name: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)  # "main", "refs/pr/1", a tag, ... -> commit

    def __post_init__(self) -> None:
        self.commit("main", "initial commit", {})

    @property
    def owner(self) -> str:
        return self.name.split("/")[0]

    def at(self, revision: str) -> Commit:
        oid = self.refs.get(revision, revision)
        if oid not in self.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return self.commits[oid]

    def commit(self, ref: str, title: str, files: dict[str, File]) -> Commit:
        parent = self.refs.get(ref)
        what = json.dumps([self.name, ref, title, parent, len(self.commits), sorted(files)])
        commit = Commit(hashlib.sha1(what.encode()).hexdigest(), title, parent, files)
        self.commits[commit.oid] = commit
        self.refs[ref] = commit.oid
        return commit

    def history(self, revision: str) -> Iterator[Commit]:
        commit: Commit | None = self.at(revision)
        while commit is not None:
            yield commit
            commit = self.commits.get(commit.parent or "")


class Refusal(Exception):
    """An answer other than 200, with what the Hub puts in its headers."""

    def __init__(self, status: int, code: str | None, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message, **headers, **({"X-Error-Code": code} if code else {})}


class Hub:
    """A running server. Use it as a context manager.

    Args:
        accounts: a token for each account.

    Attributes:
        endpoint: its address, for `HF_ENDPOINT`.
        repos: by name, everything that was pushed.
        log: the requests so far: method, path, range asked for, status.
    """

    def __init__(self, **accounts: str) -> None:
        self.user_of = {token: user for user, token in accounts.items()}
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.log: list[tuple[str, str, str | None, int]] = []
        self.lock = threading.RLock()
        self.drops: dict[str, int] = {}
        hub = self
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        # Large files come from another host, as on the Hub: the client then keeps its token to itself.
        self.cdn = f"http://localhost:{self._server.server_port}/cdn"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def drop(self, method: str, path_part: str, after: int) -> None:
        """Drop the connection once, after so many bytes of the body of the next such request's upload or download."""
        self.drops[f"{method} {path_part}"] = after

    def due_drop(self, method: str, path: str) -> int | None:
        for what in list(self.drops):
            wanted, part = what.split(" ")
            if wanted == method and part in path:
                return self.drops.pop(what)
        return None

    def text(self, repo: str, path: str, revision: str = "main") -> str:
        return self.repos[repo].at(revision).files[path].content.decode()

    def files(self, repo: str, revision: str = "main") -> dict[str, File]:
        return self.repos[repo].at(revision).files


# What is answered


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the tests' output clean; `Hub.log` has it."""

    def _answer(self) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        try:
            self.body = self._read_body(url.path)
            for method, pattern, answer in ROUTES:
                found = re.fullmatch(pattern, url.path)
                if found and self.command in (method, "HEAD" if method == "GET" else method):
                    with self.hub.lock:
                        reply = answer(self, **{name: unquote(value) for name, value in found.groupdict("").items()})
                    return self._send(*reply) if isinstance(reply, tuple) else self._send(200, {}, reply)
            raise Refusal(404, None, f"There is no {self.command} {url.path}")
        except Refusal as refusal:
            return self._send(refusal.status, refusal.headers, {"error": str(refusal)})
        except ConnectionError:
            self.close_connection = True

    def _read_body(self, path: str) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            length = int(self.headers.get("Content-Length") or 0)
            dropped = self.hub.due_drop(self.command, path) if length else None
            if dropped is not None:
                self.rfile.read(min(dropped, length))
                self._hang_up()
            body = self.rfile.read(length)
        return body

    def _send(self, status: int, headers: dict[str, str], body: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = urlsplit(self.path).path
        self.hub.log.append((self.command, path, self.headers.get("Range"), status))
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        dropped = self.hub.due_drop(self.command, path) if self.command == "GET" else None
        self.wfile.write(content[:dropped])
        if dropped is not None:
            self._hang_up()

    def _hang_up(self) -> NoReturn:
        self.connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError

    # Who asks, and for what

    def user(self) -> str | None:
        header = self.headers.get("Authorization")
        if header is None:
            return None
        user = self.hub.user_of.get(header.removeprefix("Bearer "))
        if user is None:
            raise Refusal(401, None, "Invalid credentials in Authorization header")
        return user

    def repo(self, name: str) -> Repo:
        repo, user = self.hub.repos.get(name), self.user()
        if repo is None or (repo.private and user != repo.owner):
            # The Hub does not tell a stranger whether a private repo exists.
            raise Refusal(401 if user is None else 404, "RepoNotFound", "Repository not found")
        return repo

    def own(self, name: str) -> Repo:
        repo = self.repo(name)
        self._check_owner(repo.owner)
        return repo

    def _check_owner(self, owner: str) -> None:
        user = self.user()
        if user is None:
            raise Refusal(401, None, "Unauthorized")
        if user != owner:
            raise Refusal(403, None, f"You don't have the rights to write under the namespace {owner!r}")

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    # Accounts and repos

    def whoami(self) -> Any:
        user = self.user()
        if user is None:
            raise Refusal(401, None, "Unauthorized")
        return {"type": "user", "name": user, "fullname": user, "orgs": [], "auth": {"type": "access_token"}}

    def create_repo(self) -> Any:
        given = self.json()
        owner = given.get("organization") or self.user() or ""
        self._check_owner(owner)
        name = f"{owner}/{given['name']}"
        answer = {"url": f"{self.hub.endpoint}/{name}", "name": name}
        if name in self.hub.repos:
            return 409, {}, {"error": "You already created this model repo", **answer}
        private = given.get("visibility") == "private" or bool(given.get("private"))
        self.hub.repos[name] = Repo(name, private)
        return answer

    def delete_repo(self) -> Any:
        given = self.json()
        del self.hub.repos[self.own(f"{given.get('organization') or self.user()}/{given['name']}").name]
        return {}

    def info(self, name: str, revision: str = "") -> Any:
        repo = self.repo(name)
        commit = repo.at(revision or "main")
        card = commit.files.get("README.md")
        data = metadata(card.content.decode()) if card else {}
        return {
            "_id": "0" * 24,
            "id": repo.name,
            "modelId": repo.name,
            "sha": commit.oid,
            "private": repo.private,
            "lastModified": DATE,
            "createdAt": DATE,
            "downloads": 0,
            "likes": 0,
            "tags": data.get("tags", []),
            "cardData": data,
            "siblings": [{"rfilename": path} for path in sorted(commit.files)],
        }

    def refs(self, name: str) -> Any:
        def described(wanted: str) -> list[dict[str, str]]:
            kinds = {ref: "pullRequests" if ref.startswith("refs/pr/") else "branches" for ref in repo.refs}
            return [
                {"name": ref, "ref": ref if "/" in ref else f"refs/heads/{ref}", "targetCommit": oid}
                for ref, oid in repo.refs.items()
                if kinds[ref] == wanted
            ]

        repo = self.repo(name)
        return {kind: described(kind) for kind in ("branches", "pullRequests", "tags", "converts")}

    def commits(self, name: str, revision: str) -> Any:
        history = self.repo(name).history(revision)
        return [{"id": one.oid, "title": one.title, "message": "", "authors": [], "date": DATE} for one in history]

    def create_branch(self, name: str, branch: str) -> Any:
        repo = self.own(name)
        if branch in repo.refs:
            raise Refusal(409, None, f"Reference {branch} already exists")
        repo.refs[branch] = repo.at(self.json().get("startingPoint", "main")).oid
        return {}

    def create_tag(self, name: str, revision: str) -> Any:
        repo, tag = self.own(name), self.json()["tag"]
        if tag in repo.refs:
            raise Refusal(409, None, f"Tag {tag} already exists")
        repo.refs[tag] = repo.at(revision).oid
        return {}

    # Files

    def tree(self, name: str, revision: str, folder: str = "") -> Any:
        files = self.repo(name).at(revision).files
        inside = {path: file for path, file in files.items() if path.startswith(f"{folder}/" if folder else "")}
        if folder and not inside:
            raise Refusal(404, "EntryNotFound", f"{folder} does not exist")
        if self.query.get("recursive", [""])[0].lower() == "true":
            return [file.info(path) for path, file in sorted(inside.items())]
        start = len(folder) + 1 if folder else 0
        folders = sorted({path[: path.index("/", start)] for path in inside if "/" in path[start:]})
        entries = [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders]
        return entries + [file.info(path) for path, file in sorted(inside.items()) if "/" not in path[start:]]

    def paths_info(self, name: str, revision: str) -> Any:
        files = self.repo(name).at(revision).files
        if "json" in (self.headers.get("Content-Type") or ""):
            paths = self.json()["paths"]
        else:
            paths = parse_qs(self.body.decode())["paths"]
        return [files[path].info(path) for path in paths if path in files]

    def resolve(self, name: str, revision: str, path: str) -> Any:
        commit = self.repo(name).at(revision)
        if path not in commit.files:
            raise Refusal(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": commit.oid})
        file = commit.files[path]
        headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if file.lfs:
            self.hub.lfs[file.sha256] = file.content
            linked = {"X-Linked-ETag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
            return 302, {**headers, **linked, "Location": f"{self.hub.cdn}/{file.sha256}"}, b""
        return self._ranged(file.content, headers)

    def cdn(self, oid: str) -> Any:
        if "Authorization" in self.headers:
            raise Refusal(400, None, "Only one auth mechanism allowed")
        return self._ranged(self.hub.lfs[oid], {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})

    def _ranged(self, content: bytes, headers: dict[str, str]) -> Any:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not asked:
            return 200, headers, content
        first, last = int(asked[1]), int(asked[2] or len(content) - 1)
        if first >= len(content):
            raise Refusal(416, None, "Range not satisfiable", **{"Content-Range": f"bytes */{len(content)}"})
        headers = {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        return 206, headers, content[first : last + 1]

    # Uploads

    def preupload(self, name: str, revision: str) -> Any:
        there = self.own(name).at(revision).files
        return {
            "files": [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(LFS_ENDINGS) else "regular",
                    "shouldIgnore": False,
                    "oid": there[one["path"]].etag if one["path"] in there else None,
                }
                for one in self.json()["files"]
            ]
        }

    def lfs_batch(self, name: str) -> Any:
        self.own(name)
        objects = []
        for one in self.json()["objects"]:
            href = f"{self.hub.endpoint}/lfs/{one['oid']}"
            actions = {"upload": {"href": href}, "verify": {"href": href}}
            objects.append({**one} if one["oid"] in self.hub.lfs else {**one, "actions": actions})
        return {"transfer": "basic", "objects": objects}

    def lfs_put(self, oid: str) -> Any:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refusal(400, None, f"The content is not {oid}")
        self.hub.lfs[oid] = self.body
        return 200, {"ETag": f'"{oid}"'}, b""

    def lfs_verify(self, oid: str) -> Any:
        if len(self.hub.lfs.get(oid, b"")) != self.json()["size"]:
            raise Refusal(404, None, f"{oid} was not uploaded")
        return {}

    def commit(self, name: str, revision: str) -> Any:
        repo = self.own(name)
        lines = [json.loads(line) for line in self.body.splitlines() if line]
        header = lines[0]["value"]
        files = dict(repo.at(revision).files)
        if header.get("parentCommit") not in (None, repo.at(revision).oid):
            raise Refusal(412, None, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            self._apply(line["key"], line["value"], files)
        answer: dict[str, Any] = {"success": True}
        if self.query.get("create_pr") == ["1"]:
            number = 1 + sum(ref.startswith("refs/pr/") for ref in repo.refs)
            repo.refs[f"refs/pr/{number}"] = repo.at(revision).oid
            revision = f"refs/pr/{number}"
            answer["pullRequestUrl"] = f"{self.hub.endpoint}/{name}/discussions/{number}"
        oid = repo.commit(revision, header["summary"], files).oid
        return {**answer, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{name}/commit/{oid}"}

    def _apply(self, key: str, value: dict[str, Any], files: dict[str, File]) -> None:
        path = value["path"]
        if key == "file":
            files[path] = File(base64.b64decode(value["content"]), lfs=False)
        elif key == "lfsFile":
            if value["oid"] not in self.hub.lfs:
                raise Refusal(400, None, f"LFS object {value['oid']} of {path} was not uploaded")
            files[path] = File(self.hub.lfs[value["oid"]], lfs=True)
        elif key == "deletedFile" and path in files:
            del files[path]
        elif key == "deletedFolder":
            for inside in [one for one in files if one.startswith(f"{path.rstrip('/')}/")]:
                del files[inside]
        else:
            raise Refusal(404, "EntryNotFound", f"{key}: A file with this name doesn't exist: {path}")

    def validate(self) -> Any:
        errors = errors_of(self.json()["content"])
        answer = {"errors": [{"message": error} for error in errors], "warnings": []}
        return (400, {"X-Error-Message": "; ".join(errors)}, answer) if errors else answer


_NAME, _REVISION = r"(?P<name>[\w.-]+/[\w.-]+?)", r"(?P<revision>[^/]+)"
ROUTES = [
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/repos/create", Handler.create_repo),
    ("DELETE", "/api/repos/delete", Handler.delete_repo),
    ("POST", "/api/validate-yaml", Handler.validate),
    ("GET", f"/api/models/{_NAME}", Handler.info),
    ("GET", f"/api/models/{_NAME}/revision/{_REVISION}", Handler.info),
    ("GET", f"/api/models/{_NAME}/refs", Handler.refs),
    ("GET", f"/api/models/{_NAME}/commits/{_REVISION}", Handler.commits),
    ("GET", f"/api/models/{_NAME}/tree/{_REVISION}(?:/(?P<folder>.+))?", Handler.tree),
    ("POST", f"/api/models/{_NAME}/paths-info/{_REVISION}", Handler.paths_info),
    ("POST", f"/api/models/{_NAME}/branch/(?P<branch>[^/]+)", Handler.create_branch),
    ("POST", f"/api/models/{_NAME}/tag/{_REVISION}", Handler.create_tag),
    ("POST", f"/api/models/{_NAME}/preupload/{_REVISION}", Handler.preupload),
    ("POST", f"/api/models/{_NAME}/commit/{_REVISION}", Handler.commit),
    ("POST", rf"/{_NAME}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", "/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    ("POST", "/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_verify),
    ("GET", f"/{_NAME}/resolve/{_REVISION}/(?P<path>.+)", Handler.resolve),
    ("GET", "/cdn/(?P<oid>[0-9a-f]{64})", Handler.cdn),
]


# The check of a card's metadata, as the Hub documents it

PIPELINE_TAGS = {
    "feature-extraction",
    "fill-mask",
    "multiple-choice",
    "question-answering",
    "sentence-similarity",
    "summarization",
    "text-classification",
    "text-generation",
    "token-classification",
    "translation",
}
REPO_ID = r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?"


def metadata(card: str) -> Any:
    header = re.match(r"\A---\r?\n(.*?)\r?\n---\r?\n", card, re.DOTALL)
    return yaml.safe_load(header[1]) if header else {}


def errors_of(card: str) -> list[str]:
    try:
        data = metadata(card)
    except yaml.YAMLError as error:
        return [f"YAML: {error}"]
    if not isinstance(data, dict):
        return ["the metadata must be a mapping"]
    return [message for check in (_wrong_fields, _wrong_results) for message in check(data)]


def _wrong_fields(data: dict[str, Any]) -> Iterator[str]:
    patterns = {
        "license": r"[a-z0-9][a-z0-9.\-]*",
        "library_name": r"[a-z0-9_.\-]+",
        "base_model": REPO_ID,
        "language": r"[a-z]{2,3}|code|multilingual",
        "tags": r".{1,100}",
        "datasets": REPO_ID,
        "metrics": r"\S+",
    }
    lists = ("base_model", "language", "tags", "datasets", "metrics")
    for key, pattern in patterns.items():
        value = data.get(key)
        for one in value if key in lists and isinstance(value, list) else [value]:
            if value is not None and not (isinstance(one, str) and re.fullmatch(pattern, one)):
                yield f'"{key}" has an invalid value: {one!r}'
    if data.get("pipeline_tag") not in (None, *PIPELINE_TAGS):
        yield f'"pipeline_tag" is {data["pipeline_tag"]!r}, which is no pipeline type'


def _wrong_results(data: dict[str, Any]) -> Iterator[str]:
    for model in data.get("model-index", []):
        if not isinstance(model.get("name"), str):
            yield '"model-index[].name" is required'
        if not isinstance(model.get("results"), list):
            yield '"model-index[].results" must be an array'
            continue
        for result in model["results"]:
            for key, fields in {"task": ("type",), "dataset": ("type", "name")}.items():
                if not all(isinstance(result.get(key, {}).get(one), str) for one in fields):
                    yield f'"model-index[].results[].{key}" needs {fields}'
            for metric in result.get("metrics") or [{}]:
                if not isinstance(metric.get("type"), str) or not isinstance(metric.get("value"), (int, float, str)):
                    yield '"model-index[].results[].metrics[]" needs a type and a value'
