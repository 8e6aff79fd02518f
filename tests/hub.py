"""A stand-in for the Hugging Face Hub: the part of its public API that `huggingface_hub` requests
for one dataset repository.

    python hub.py FOLDER OWNER/NAME PORT

Follows the documented API of the Hub: repository info, folder trees, and files, whole or by range.
"""

import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from stores import send_file

SHA = "0" * 40


def entry(file: Path, folder: Path) -> dict[str, Any]:
    """Return the entry of a file or folder in the tree of a repository."""
    path = file.relative_to(folder).as_posix()
    if file.is_dir():
        return {
            "type": "directory",
            "oid": hashlib.sha1(path.encode()).hexdigest(),
            "size": 0,
            "path": path,
        }
    data = file.read_bytes()
    return {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": path}


def serve(folder: Path, name: str, port: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            if re.fullmatch(f"/api/datasets/{name}(/revision/main)?", path):
                self.respond({"id": name, "sha": SHA, "private": False, "tags": [], "siblings": []})
            elif found := re.fullmatch(f"/api/datasets/{name}/tree/main(/.*)?", path):
                self.tree(folder / (found[1] or "/").strip("/"))
            elif found := re.fullmatch(f"/datasets/{name}/resolve/main/(.+)", path):
                send_file(self, folder / found[1])
            else:
                self.refuse("RepoNotFound")

        do_HEAD = do_GET

        def tree(self, of: Path) -> None:
            if of.is_dir():
                self.respond([entry(file, folder) for file in sorted(of.iterdir())])
            else:
                self.refuse("EntryNotFound")

        def respond(self, found: object) -> None:
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def refuse(self, why: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", why)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
