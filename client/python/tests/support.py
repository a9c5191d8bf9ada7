"""What the tests share: an engine, an OpenAI-compatible server that does as it is told, and the two
ways (synchronous, asyncio) to ask the same thing.

Engines: LLMCLIENT_TEST_INSTANCE names one that runs already (tests/e2e/test_python.c starts it);
without it one is started from $B (default: build/) with the small model.
"""

import asyncio
import atexit
import ctypes
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = (ROOT / os.environ.get("B", "build")).resolve()
sys.path.insert(0, str(ROOT / "client" / "python"))
if not os.environ.get("LLMCLIENT_LIBRARY"):
    os.environ["LLMCLIENT_LIBRARY"] = str(BUILD / "libllmclient.so")

import llmclient  # noqa: E402  (the path comes first)

# ---- engines ----


def model_path():
    given = os.environ.get("LLMD_MODEL")
    return (
        given
        or subprocess.check_output(["sh", str(ROOT / "tools/fetch-model.sh")], text=True).strip()
    )


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


class Engine:
    """An engine of this process; ready when it is made."""

    count = 0

    def __init__(self, model, *arguments):
        if "LLMD_RUNTIME_DIR" not in os.environ:
            folder = tempfile.mkdtemp(prefix="llmd-py-")
            atexit.register(shutil.rmtree, folder, True)
            os.environ["LLMD_RUNTIME_DIR"] = folder
        Engine.count += 1
        # a board that a killed test leaves is found by the name of the one who started it
        family = os.environ.get("LLMCLIENT_TEST_INSTANCE") or f"t{os.getpid()}"
        self.instance = f"{family}-py{Engine.count}"
        self._start(model, arguments)

    def _start(self, model, arguments):
        self.command = [
            str(BUILD / "llmd"), "--model", model, "--instance", self.instance, *arguments
        ]  # fmt: skip
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_die_with_parent,
        )
        atexit.register(self.stop)
        said = []
        for line in self.process.stdout:
            said.append(line)
            if ": ready: " in line:
                break
        else:
            raise AssertionError("the engine did not start:\n" + "".join(said))
        threading.Thread(target=self._read_on, args=(self.process,), daemon=True).start()

    @staticmethod
    def _read_on(process):
        with process.stdout:
            process.stdout.read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        Path(f"/dev/shm/llmd.{self.instance}").unlink(missing_ok=True)


_shared = None


def target():
    """Of the engine with the small model that the tests share."""
    global _shared
    given = os.environ.get("LLMCLIENT_TEST_INSTANCE")
    if not given and not _shared:
        _shared = Engine(model_path(), "--threads", "1", "--max-model-len", "2048")
    return f"llmd:{given or _shared.instance}"


# ---- two ways to ask ----


class Sync:
    """Calls of the synchronous interface."""

    def call(self, target, method, *arguments, connect=None, **options):
        """(chunks, result)"""
        with llmclient.connect(target, **(connect or {})) as client:
            stream = getattr(client, method)(*arguments, **options)
            return list(stream), stream.result


class Async:
    """The same calls through asyncio."""

    def call(self, target, method, *arguments, connect=None, **options):
        async def run():
            async with await llmclient.aconnect(target, **(connect or {})) as client:
                stream = getattr(client, "a" + method)(*arguments, **options)
                chunks = [chunk async for chunk in stream]
                return chunks, stream.result

        return asyncio.run(run())


# ---- a server ----


class Handler(http.server.BaseHTTPRequestHandler):
    """The prompt, or the last message, is a JSON list of steps:

    ["say", TEXT, CHOICE?], ["finish", REASON, CHOICE?], ["usage", P, C], ["data", TEXT],
    ["raw", TEXT], ["done"], ["wait"] until the test releases the server, ["close"],
    ["leave"] (without notice, behind the answer), ["comments"] without end,
    ["status", CODE, BODY, HEADERS?], ["plain", BODY]
    """

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers), None))
        body = {"object": "list", "data": [{"id": m} for m in self.server.models]}
        self.whole(200, json.dumps(body), {})

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(data)
        self.server.seen.append((self.path, dict(self.headers), body))
        self.chat = self.path.endswith("/chat/completions")
        self.begun = False
        steps = json.loads(body["messages"][-1]["content"] if self.chat else body["prompt"])
        try:
            for name, *arguments in steps:
                getattr(self, "step_" + name)(*arguments)
            if self.begun:
                self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone.set()
            self.close_connection = True

    def whole(self, status, text, headers):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def begin(self):
        if not self.begun:
            self.begun = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

    def step_raw(self, text):
        self.begin()
        data = text.encode("utf-8", "surrogateescape")
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def step_data(self, text):
        self.step_raw(f"data: {text}\n\n")

    def choice(self, index, **more):
        self.step_data(json.dumps({"choices": [{"index": index, **more}]}))

    def step_say(self, text, index=0, logprob=None):
        logprobs = {}
        if logprob is not None and self.chat:
            logprobs = {"logprobs": {"content": [{"token": text, "logprob": logprob}]}}
        elif logprob is not None:
            logprobs = {"logprobs": {"tokens": [text], "token_logprobs": [logprob]}}
        if self.chat:
            self.choice(index, delta={"content": text}, finish_reason=None, **logprobs)
        else:
            self.choice(index, text=text, finish_reason=None, **logprobs)

    def step_finish(self, reason, index=0):
        empty = {"delta": {}} if self.chat else {"text": ""}
        self.choice(index, finish_reason=reason, **empty)

    def step_usage(self, prompt, completion):
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        self.step_data(json.dumps({"choices": [], "usage": usage}))

    def step_done(self):
        self.step_data("[DONE]")

    def step_wait(self):
        self.server.released.wait(60)

    def step_flood(self):
        while True:
            self.step_say("more ")

    def step_comments(self):
        while not self.server.released.wait(0.01):
            self.step_raw(": still here\n\n")

    def step_close(self):
        self.begun = False
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def step_leave(self):
        self.close_connection = True

    def step_status(self, code, body, headers=None):
        self.whole(code, body, headers or {})

    def step_plain(self, body):
        self.whole(200, json.dumps(body), {})

    def step_until_close(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text.encode())
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    """`seen`: (path, headers, body) of every request; `connections`: how many were made."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address=("127.0.0.1", 0), models=("one",), unix=False, context=None):
        self.seen, self.connections, self.models = [], 0, models
        self.released, self.gone = threading.Event(), threading.Event()
        if unix:
            self.address_family = socket.AF_UNIX
        self._unix = unix
        super().__init__(address, Handler)
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def server_bind(self):
        if self._unix:
            self.socket.bind(self.server_address)
            self.server_name, self.server_port = "localhost", 0
        else:
            super().server_bind()

    def get_request(self):
        connection, address = super().get_request()
        self.connections += 1
        return connection, address or ("local", 0)

    def handle_error(self, request, client_address):
        pass  # clients leave as they like

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def stop(self):
        self.released.set()
        self.shutdown()
        self.server_close()
        self.thread.join()
