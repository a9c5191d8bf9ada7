"""The OpenAI side, against a server that does as each test tells it."""

import asyncio
import json
import os
import select
import shutil
import ssl
import subprocess
import tempfile
import threading
import unittest

from support import Async, Server, Sync

import llmclient
from llmclient._http1 import Events, Response

ANSWER = [["say", "Hello"], ["say", " world"], ["finish", "stop"], ["usage", 5, 2], ["done"]]


def script(*steps):
    return json.dumps(steps)


class Served(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.stop)
        self.url = self.server.url


class Scenarios:
    """What both kinds of client do; subclasses bring `call`."""

    def ask(self, *steps, connect=None, **options):
        return self.call(self.url, "generate", script(*steps), connect=connect, **options)

    def fails(self, kind, *steps, **options):
        with self.assertRaises(kind) as caught:
            self.ask(*steps, **options)
        self.assertIs(type(caught.exception), kind)
        return caught.exception

    def test_completion(self):
        chunks, result = self.ask(*ANSWER, max_tokens=9, temperature=0.5, seed=3, stop="x")
        self.assertEqual([chunk.text for chunk in chunks], ["Hello", " world"])
        self.assertEqual(result.text, "Hello world")
        self.assertEqual(result.finish_reason, "stop")
        self.assertEqual((result.usage.prompt_tokens, result.usage.completion_tokens), (5, 2))
        self.assertGreaterEqual(result.timing.total_s, result.timing.first_token_s)
        path, _, body = self.server.seen[-1]
        self.assertEqual(path, "/v1/completions")
        expected = {"model": "one", "max_tokens": 9, "temperature": 0.5, "seed": 3, "stop": ["x"]}
        self.assertEqual({key: body[key] for key in expected}, expected)
        self.assertTrue(body["stream"])
        for name in ("top_k", "min_p", "ignore_eos", "speculative", "logprobs"):
            self.assertNotIn(name, body)

    def test_chat(self):
        messages = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": script(*ANSWER)},
        ]
        chunks, result = self.call(self.url, "chat", messages, top_k=4, speculative="off")
        self.assertEqual(result.text, "Hello world")
        path, _, body = self.server.seen[-1]
        self.assertEqual(path, "/v1/chat/completions")
        self.assertEqual(body["messages"], messages)
        self.assertEqual(body["top_k"], 4)
        self.assertEqual(body["speculative"], "off")
        self.assertNotIn("max_tokens", body)

    def test_choices(self):
        steps = [["say", "b", 1], ["say", "a", 0], ["finish", "length", 0], ["say", "c", 1]]
        _, result = self.ask(*steps, ["finish", "stop", 1], ["done"], n=2)
        self.assertEqual([c.text for c in result.choices], ["a", "bc"])
        self.assertEqual([c.finish_reason for c in result.choices], ["length", "stop"])

    def test_logprobs(self):
        steps = [["say", "a", 0, -0.5], ["say", "b", 0, -1.5], ["finish", "stop"], ["done"]]
        _, result = self.ask(*steps, logprobs=True)
        self.assertEqual(result.choices[0].logprobs, [-0.5, -1.5])
        self.assertEqual(self.server.seen[-1][2]["logprobs"], 1)
        message = {"role": "user", "content": script(*steps)}
        _, result = self.call(self.url, "chat", [message], logprobs=True)
        self.assertEqual(result.choices[0].logprobs, [-0.5, -1.5])
        self.assertIs(self.server.seen[-1][2]["logprobs"], True)

    def test_key_model_and_headers(self):
        connect = {"api_key": "secret", "model": "big", "headers": {"X-Team": "blue"}}
        self.ask(*ANSWER, connect=connect)
        self.assertEqual(len(self.server.seen), 1)  # with the name given no model is asked for
        _, headers, body = self.server.seen[0]
        self.assertEqual(headers["Authorization"], "Bearer secret")
        self.assertEqual(headers["X-Team"], "blue")
        self.assertEqual(body["model"], "big")

    def test_several_models(self):
        self.server.models = ("one", "two")
        error = self.fails(llmclient.InvalidRequest, *ANSWER)
        self.assertIn("one, two", str(error))

    def test_characters_that_are_cut(self):
        text = json.dumps(
            {"choices": [{"index": 0, "text": "\u00fc \U0001f600"}]}, ensure_ascii=False
        )
        wire = f"data: {text}\n\ndata:[DONE]\n\n".encode()
        pieces = [["raw", bytes([b]).decode("utf-8", "surrogateescape")] for b in wire]
        self.assertEqual(self.ask(*pieces)[1].text, "\u00fc \U0001f600")

    def test_answer_that_ends_with_the_connection(self):
        text = json.dumps({"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]})
        _, result = self.ask(["until_close", f"data: {text}\n\n"])
        self.assertEqual((result.text, result.finish_reason), ("hi", "stop"))

    def test_server_that_does_not_stream(self):
        answer = {"choices": [{"index": 0, "text": "all at once", "finish_reason": "length"}]}
        _, result = self.ask(["plain", answer])
        self.assertEqual((result.text, result.finish_reason), ("all at once", "length"))
        answer = {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}
        message = {"role": "user", "content": script(["plain", answer])}
        self.assertEqual(self.call(self.url, "chat", [message])[1].text, "yes")

    def test_statuses(self):
        kinds = {
            400: llmclient.InvalidRequest,
            401: llmclient.AuthError,
            403: llmclient.AuthError,
            404: llmclient.InvalidRequest,
            429: llmclient.RateLimited,
            500: llmclient.EngineError,
            503: llmclient.Unavailable,
            504: llmclient.Timeout,
            302: llmclient.ProtocolError,
        }
        body = json.dumps({"error": {"message": "because", "code": None}})
        for status, kind in kinds.items():
            with self.subTest(status):
                error = self.fails(kind, ["status", status, body, {"Retry-After": "7"}])
                self.assertEqual(error.status, status)
                if status == 429:
                    self.assertEqual(error.retry_after_s, 7)
                if status != 302:
                    self.assertIn("because", str(error))
        self.fails(llmclient.InvalidRequest, ["status", 400, "no JSON at all"])
        body = json.dumps({"error": {"message": "long", "code": "context_length_exceeded"}})
        self.fails(llmclient.TooLong, ["status", 400, body])

    def test_error_in_the_stream(self):
        broken = json.dumps({"error": {"message": "out of memory"}})
        error = self.fails(llmclient.EngineError, ["say", "a"], ["data", broken])
        self.assertIn("out of memory", str(error))

    def test_connection_lost(self):
        self.fails(llmclient.EngineDied, ["say", "a"], ["close"])
        self.fails(llmclient.EngineDied, ["close"])
        # the coding is complete, the answer is not
        self.fails(llmclient.EngineDied, ["say", "a"])

    def test_nonsense(self):
        self.fails(llmclient.ProtocolError, ["data", "{"])
        self.fails(llmclient.ProtocolError, ["data", "[1]"])
        self.fails(llmclient.ProtocolError, ["say", "a", 5])
        self.fails(llmclient.ProtocolError, ["data", '{"choices": [{"index": "0"}]}'])

    def test_depths_and_sizes_that_nobody_means(self):
        self.fails(llmclient.ProtocolError, ["data", "[" * 200000])
        self.fails(llmclient.EngineError, ["status", 500, "[" * 200000])
        finish = [["finish", "stop"], ["done"]]
        for logprobs in ({"content": 5}, {"token_logprobs": [10**400, "x", None, -1]}):
            choice = {"index": 0, "text": "a", "logprobs": logprobs}
            _, result = self.ask(["data", json.dumps({"choices": [choice]})], *finish)
            self.assertEqual(result.text, "a")

    def test_a_server_that_goes_on_behind_the_end(self):
        chunks, _ = self.ask(["say", "a"], ["finish", "stop"], ["done"], ["comments"])
        self.assertEqual([chunk.text for chunk in chunks], ["a"])

    def test_deadline(self):
        self.fails(llmclient.DeadlineMissed, ["wait"], deadline_ms=30)
        # it is of the first token only
        self.server.released.set()
        self.ask(*ANSWER, deadline_ms=60000)

    def test_timeout_ends_with_what_there_is(self):
        _, result = self.ask(["say", "so far"], ["wait"], timeout_ms=500)
        self.assertEqual((result.text, result.finish_reason), ("so far", "timeout"))

    def test_silence(self):
        connect = {"read_timeout_ms": 50, "model": "one"}
        self.fails(llmclient.EngineDied, ["say", "a"], ["wait"], connect=connect)

    def test_nobody_there(self):
        self.url = "http://127.0.0.1:1/v1"
        self.fails(llmclient.ConnectError, *ANSWER)
        self.url = "unix:/nowhere/at/all"
        self.fails(llmclient.ConnectError, *ANSWER)

    def test_no_http_there(self):
        self.url = "llmd:nobody-has-this-name"
        with self.assertRaises(llmclient.ConnectError):
            self.ask(*ANSWER)

    def test_bad_targets(self):
        for bad in (
            "ftp://x",
            "one",
            "http://",
            "http://h:99999/v1",
            "unix:relative",
            "http://u@h/",
            "http://[::1/v1",
            "llmd:a\0b",
        ):
            with self.subTest(bad), self.assertRaises(llmclient.InvalidRequest):
                self.url = bad
                self.ask(*ANSWER)

    def test_unix_socket(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        server = Server(os.path.join(folder, "s"), unix=True)
        self.addCleanup(server.stop)
        self.url = f"unix:{folder}/s"
        self.assertEqual(self.ask(*ANSWER)[1].text, "Hello world")

    def test_tls(self):
        if not shutil.which("openssl"):
            self.skipTest("no openssl here to make a certificate")
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        subprocess.run(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
            "-addext subjectAltName=DNS:localhost -keyout key -out cert",
            shell=True, cwd=folder, check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/cert", f"{folder}/key")
        server = Server(context=context)
        self.addCleanup(server.stop)
        self.url = f"https://localhost:{server.server_address[1]}/v1"
        trusting = ssl.create_default_context(cafile=f"{folder}/cert")
        _, result = self.ask(*ANSWER, connect={"ssl_context": trusting})
        self.assertEqual(result.text, "Hello world")
        self.fails(llmclient.ConnectError, *ANSWER)  # unknown to the system

    def test_what_http_cannot_do(self):
        for options in ({"priority": "high"}, {"pieces": "word"}, {"queue_timeout_ms": 5}):
            with self.subTest(options):
                self.fails(llmclient.NotSupported, *ANSWER, **options)
        with self.assertRaises(llmclient.NotSupported):
            self.call(self.url, "generate", [1, 2, 3])

    def test_bad_options(self):
        for options in ({"n": 0}, {"max_tokens": 0}, {"seed": -1}, {"temperature": float("nan")}):
            with self.subTest(options), self.assertRaises(ValueError):
                self.ask(*ANSWER, **options)
        with self.assertRaises(TypeError):
            self.ask(*ANSWER, max_token=3)

    def test_header_injection(self):
        self.fails(llmclient.InvalidRequest, *ANSWER, connect={"api_key": "a\r\nX: y"})


class Wire(unittest.TestCase):
    """The bytes, however they are cut."""

    def test_events(self):
        wire = ": hello\r\n\r\nevent: x\r\ndata: a\r\ndata:b\r\n\r\ndata: \u00fc\n\ndata\n\n\rdata: d\r\r".encode()
        for size in (1, 2, 3, 7, len(wire)):
            events, got = Events(), []
            for at in range(0, len(wire), size):
                got += events.feed(wire[at : at + size])
            got += events.feed(b": the CR at the end could have been half of a line's end\n")
            self.assertEqual(got, ["a\nb", "\u00fc", "", "d"], size)

    def test_lines_without_end(self):
        """Each byte is looked at once: a megabyte of line ends is no minute of work."""
        for ends in (b"\n", b"\r", b"\r\n"):
            events, got = Events(), []
            for _ in range(16):
                got += events.feed(ends * 65536)
            got += events.feed(b"data: a\n\n")
            self.assertEqual(got, ["a"])

    def read(self, wire, size):
        response, body = Response(), b""
        for at in range(0, len(wire), size):
            body += response.feed(wire[at : at + size])
        return response, body

    def test_responses(self):
        head = b"HTTP/1.1 200 OK\r\nA: b\r\n"
        cases = {
            head + b"Content-Length: 5\r\n\r\nhello": (True, True),
            head
            + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: x\r\n\r\n": (
                True,
                True,
            ),
            head + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello": (True, False),
            b"HTTP/1.1 100 Continue\r\n\r\n" + head + b"Content-Length: 5\r\n\r\nhello": (
                True,
                True,
            ),
            head + b"\r\nhello": (False, False),  # until the connection ends
        }
        for wire, (complete, reusable) in cases.items():
            for size in (1, 2, 5, len(wire)):
                response, body = self.read(wire, size)
                self.assertEqual((response.status, body), (200, b"hello"), wire)
                self.assertEqual((response.complete, response.reusable), (complete, reusable), wire)
                response.eof()
                self.assertTrue(response.complete)

    def test_nonsense(self):
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        for wire in (
            b"SSH-2.0-OpenSSH\r\n\r\n",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA: " + b"a" * 70000,
            chunked + b"+5\r\nhello",
            chunked + b"\r\n",
            chunked + b"2\r\nhello\r\n",
            chunked + b"1" * 70000,
        ):
            with self.subTest(wire[:60]), self.assertRaises(llmclient.ProtocolError):
                self.read(wire, 4096)


class SyncTest(Scenarios, Sync, Served):
    def test_connections_are_kept(self):
        with llmclient.connect(self.url, model="m") as client:
            for _ in range(3):
                client.generate(script(*ANSWER)).read()
            self.assertEqual(self.server.connections, 1)
            two = [client.generate(script(*ANSWER)) for _ in range(2)]
            self.assertEqual([stream.read().text for stream in two], ["Hello world"] * 2)
            self.assertEqual(self.server.connections, 2)

    def test_kept_connection_that_the_server_has_closed(self):
        with llmclient.connect(self.url, model="m") as client:
            client.generate(script(*ANSWER, ["leave"])).read()
            (kept,) = client.pool._idle
            self.assertTrue(select.select([kept], [], [], 60)[0])  # the end has arrived
            self.assertEqual(client.generate(script(*ANSWER)).read().text, "Hello world")

    def test_leaving_early_closes_the_connection(self):
        with llmclient.connect(self.url, model="m") as client:
            for chunk in client.generate(script(["flood"])):
                self.assertEqual(chunk.text, "more ")
                break
            self.assertTrue(self.server.gone.wait(60))
            with client.generate(script(["say", "a"], ["wait"])) as stream:
                next(stream)
                with self.assertRaises(llmclient.InvalidRequest):
                    stream.result
            self.assertEqual(stream.result.finish_reason, "cancelled")
            self.assertEqual(list(stream), [])

    def test_wrong_thread(self):
        caught = []
        with llmclient.connect(self.url, model="m") as client:

            def elsewhere():
                try:
                    client.generate(script(*ANSWER))
                except llmclient.WrongThread as error:
                    caught.append(error)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        self.assertEqual(len(caught), 1)

    def test_after_a_fork(self):
        """The child would read the parent's answers."""
        with llmclient.connect(self.url, model="m") as client:
            client.generate(script(*ANSWER)).read()
            pid = os.fork()
            if not pid:
                try:
                    client.generate(script(*ANSWER)).read()
                except llmclient.WrongThread:
                    os._exit(7)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7)
            self.assertEqual(client.generate(script(*ANSWER)).read().text, "Hello world")
        self.assertEqual(self.server.connections, 1)

    def test_no_sessions(self):
        with llmclient.connect(self.url) as client:
            for call in (
                lambda: client.session("a"),
                lambda: client.choose("a", ["b"]),
                lambda: client.tokenize("a"),
                lambda: client.detokenize([1]),
            ):
                self.assertRaises(llmclient.NotSupported, call)


class AsyncTest(Scenarios, Async, Served):
    def run_with(self, use):
        async def run():
            async with await llmclient.aconnect(self.url, model="m") as client:
                await asyncio.wait_for(use(client), 60)

        asyncio.run(run())

    def test_connections_are_kept(self):
        async def use(client):
            for _ in range(3):
                await client.agenerate(script(*ANSWER)).aread()
            self.assertEqual(self.server.connections, 1)

        self.run_with(use)

    def test_streams_run_beside_each_other(self):
        async def use(client):
            slow = client.agenerate(script(["say", "a"], ["wait"], *ANSWER))
            self.assertEqual((await slow.__anext__()).text, "a")
            fast = await client.agenerate(script(*ANSWER)).aread()
            self.assertEqual(fast.text, "Hello world")
            self.server.released.set()
            self.assertEqual((await slow.aread()).text, "aHello world")

        self.run_with(use)

    def test_leaving_early_closes_the_connection(self):
        async def use(client):
            async for chunk in client.agenerate(script(["flood"])):
                self.assertEqual(chunk.text, "more ")
                break
            await asyncio.to_thread(self.server.gone.wait, 60)
            self.assertTrue(self.server.gone.is_set())

        self.run_with(use)

    def test_cancelled_task(self):
        async def use(client):
            stream = client.agenerate(script(["say", "a"], ["wait"], ["flood"]))
            self.assertEqual((await stream.__anext__()).text, "a")
            task = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(stream.result.finish_reason, "cancelled")
            self.assertEqual([chunk async for chunk in stream], [])
            self.server.released.set()
            await asyncio.to_thread(self.server.gone.wait, 60)
            self.assertTrue(self.server.gone.is_set())

        self.run_with(use)

    def test_no_sessions(self):
        async def use(client):
            with self.assertRaises(llmclient.NotSupported):
                await client.asession("a")
            with self.assertRaises(llmclient.NotSupported):
                await client.achoose("a", ["b"])

        self.run_with(use)


if __name__ == "__main__":
    unittest.main()
