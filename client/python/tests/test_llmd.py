"""The engine side: streams, text, cancelling, sessions, labels; synchronous and asyncio."""

import asyncio
import gc
import math
import os
import signal
import sys
import threading
import unittest

import support
from support import Async, Engine, Sync, target

import llmclient

PROMPT = "The capital of France is"
TINY = str(support.ROOT / "tests/golden/tiny_gguf/llama.Q4_0.gguf")


class Scenarios:
    """What both kinds of client do; subclasses bring `call`."""

    def ask(self, prompt=PROMPT, **options):
        return self.call(target(), "generate", prompt, **options)

    def test_text_and_tokens_belong_together(self):
        chunks, result = self.ask(max_tokens=12, logprobs=True)
        self.assertEqual("".join(chunk.text for chunk in chunks), result.text)
        self.assertEqual([t for chunk in chunks for t in chunk.tokens], result.tokens)
        self.assertEqual(len(result.tokens), 12)
        self.assertEqual(result.finish_reason, "length")
        self.assertEqual(len(result.choices[0].logprobs), 12)
        self.assertTrue(all(-50 < p <= 0 for p in result.choices[0].logprobs))
        with llmclient.connect(target()) as client:
            prompt = client.tokenize(PROMPT, add_special=True)
            self.assertEqual(client.detokenize(result.tokens), result.text)
        self.assertEqual(result.usage.prompt_tokens, len(prompt))
        self.assertEqual(result.usage.completion_tokens, 12)
        self.assertLessEqual(0, result.timing.queue_s)
        self.assertLessEqual(result.timing.queue_s, result.timing.first_token_s)
        self.assertLessEqual(result.timing.first_token_s, result.timing.total_s)
        # the same from token ids
        self.assertEqual(self.ask(prompt, max_tokens=12)[1].text, result.text)

    def test_seeds(self):
        def draw(seed):
            return self.ask(max_tokens=8, temperature=1.5, seed=seed)[1].tokens

        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))

    def test_choices(self):
        chunks, result = self.ask(max_tokens=8, n=3, temperature=1.5, seed=4)
        self.assertEqual({chunk.choice for chunk in chunks}, {0, 1, 2})
        self.assertEqual(len({choice.text for choice in result.choices}), 3)
        for choice in result.choices:
            said = "".join(chunk.text for chunk in chunks if chunk.choice == choice.index)
            self.assertEqual((said, choice.finish_reason), (choice.text, "length"))
        self.assertEqual(result.usage.completion_tokens, 24)
        alone = self.ask(max_tokens=8, temperature=1.5, seed=4)[1]
        self.assertEqual(alone.tokens, result.choices[0].tokens)

    def test_stop_texts(self):
        whole = self.ask(max_tokens=16)[1].text
        for at, n in ((1, 1), (9, 4)):
            stop = whole[at : at + n]
            chunks, result = self.ask(max_tokens=16, stop=["never said", stop])
            self.assertEqual(result.text, whole[: whole.index(stop)], repr(stop))
            self.assertEqual("".join(chunk.text for chunk in chunks), result.text)
            self.assertEqual(result.finish_reason, "stop")
        result = self.ask(max_tokens=16, stop="never said")[1]
        self.assertEqual((result.text, result.finish_reason), (whole, "length"))
        # what looks like the beginning of a stop is not lost at the end
        self.assertEqual(self.ask(max_tokens=16, stop=whole[-2:] + "!")[1].text, whole)

    def test_chat(self):
        messages = [
            {"role": "system", "content": "You are kind."},
            {"role": "user", "content": "Say hi."},
        ]
        _, result = self.call(target(), "chat", messages)
        self.assertEqual(result.finish_reason, "stop")
        self.assertNotIn("<|im_end|>", result.text)
        rendered = (
            "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nSay hi.<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        self.assertEqual(self.ask(rendered, max_tokens=200)[1].tokens, result.tokens)
        with self.assertRaises(llmclient.InvalidRequest):
            self.call(target(), "chat", [{"role": object()}])
        with self.assertRaises(llmclient.TooLong):
            self.call(target(), "chat", [{"role": "user", "content": "many words " * 2000}])

    def test_whole_words(self):
        whole = self.ask(max_tokens=24)[1].text
        chunks, result = self.ask(max_tokens=24, pieces="word")
        self.assertEqual(result.text, whole)
        for chunk in chunks[:-1]:
            self.assertTrue(not chunk.text or chunk.text[-1].isspace(), repr(chunk.text))

    def test_unicode_is_never_cut(self):
        with llmclient.connect(target()) as client:
            tokens = client.tokenize("smile \U0001f600 \u4f60\u597d " * 4)
            self.assertEqual(client.detokenize(tokens), "smile \U0001f600 \u4f60\u597d " * 4)
            lone = client.detokenize(client.tokenize("\ud800"))
            self.assertEqual(lone, "?")

    def test_refusals(self):
        cases = (
            (llmclient.InvalidRequest, {"top_p": 7}),
            (llmclient.InvalidRequest, {"temperature": -1}),
            (llmclient.InvalidRequest, {"max_tokens": 2.5}),
            (llmclient.InvalidRequest, {"priority": "highest"}),
            (llmclient.InvalidRequest, {"speculative": "eagle"}),
            (llmclient.TooLong, {"max_tokens": 10**6}),
            (llmclient.InvalidRequest, {"prompt": [10**9]}),
            (llmclient.InvalidRequest, {"prompt": [2**40]}),
            (llmclient.InvalidRequest, {"prompt": ["a"]}),
            (llmclient.InvalidRequest, {"prompt": []}),
        )
        for kind, options in cases:
            with self.subTest(options), self.assertRaises(kind) as caught:
                self.ask(**options)
            self.assertTrue(str(caught.exception))

    def test_speculation_changes_nothing(self):
        prompt = "one two three four five, one two three four five, one two three"
        plain = self.ask(prompt, max_tokens=40, speculative="off")[1]
        drafted = self.ask(prompt, max_tokens=40, speculative="ngram")[1]
        self.assertEqual(drafted.tokens, plain.tokens)

    def test_times(self):
        result = self.ask(max_tokens=2000, ignore_eos=True, timeout_ms=100)[1]
        self.assertEqual(result.finish_reason, "timeout")
        with self.assertRaises(llmclient.DeadlineMissed) as caught:
            self.ask("so many words " * 300, deadline_ms=1)
        self.assertGreater(caught.exception.fits, 1000)
        self.ask(max_tokens=1, deadline_ms=60000, queue_timeout_ms=60000, priority="high")


class SyncTest(Scenarios, Sync, unittest.TestCase):
    def setUp(self):
        self.client = llmclient.connect(target(), name="test", max_inflight=8)
        self.addCleanup(self.client.close)

    def test_many_streams_on_one_client(self):
        prompts = [f"{i} and {i} make" for i in range(4)]
        alone = [self.client.generate(p, max_tokens=10).read().tokens for p in prompts]
        streams = [self.client.generate(p, max_tokens=10) for p in prompts]
        got = [[] for _ in prompts]
        for _ in range(3):  # in turns, then one after the other
            for i, stream in enumerate(streams):
                got[i].extend(next(stream).tokens)
        for i in (3, 1, 0, 2):
            got[i].extend(t for chunk in streams[i] for t in chunk.tokens)
        self.assertEqual(got, alone)

    def test_more_than_may_be_in_flight(self):
        streams = [self.client.generate(PROMPT, max_tokens=3) for _ in range(20)]
        self.assertEqual(len({tuple(stream.read().tokens) for stream in streams}), 1)

    def test_leaving_early_cancels(self):
        for chunk in self.client.generate(PROMPT, max_tokens=2000, ignore_eos=True):
            break
        with self.client.generate(PROMPT, max_tokens=2000, ignore_eos=True) as stream:
            next(stream)
            with self.assertRaises(llmclient.InvalidRequest):
                stream.result
        self.assertEqual(stream.result.finish_reason, "cancelled")
        self.assertEqual(list(stream), [])
        # room for 8: the finals of the cancelled come, and are swallowed
        rest = [self.client.generate(PROMPT, max_tokens=1) for _ in range(8)]
        for each in rest:
            self.assertEqual(len(each.read().tokens), 1)
        self.assertEqual(self.client._channel.requests, {})
        self.assertEqual(stream.result.finish_reason, "cancelled")  # says the engine now
        self.assertLess(stream.result.usage.completion_tokens, 2000)

    def test_dropped_in_another_thread(self):
        streams = [self.client.generate(PROMPT, max_tokens=2000, ignore_eos=True)]
        generation = streams[0]._generation
        next(streams[0])
        thread = threading.Thread(target=streams.clear)
        thread.start()
        thread.join()
        gc.collect()
        for _ in range(3):
            self.client.generate(PROMPT, max_tokens=8).read()
        self.assertEqual(self.client._channel.requests, {})
        self.assertEqual(generation.result().finish_reason, "cancelled")

    def test_wrong_thread_and_process(self):
        stream = self.client.generate(PROMPT)
        caught = []

        def elsewhere():
            for call in (lambda: self.client.generate(PROMPT), lambda: next(stream)):
                try:
                    call()
                except llmclient.WrongThread as error:
                    caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        self.assertEqual(len(caught), 2)
        child = os.fork()
        if not child:
            status = 1
            try:
                self.client.generate(PROMPT)
            except llmclient.WrongThread:
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(stream.read().tokens), 16)

    def on_alarm(self, handler):
        before = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)

    def test_signals_reach_a_waiting_program(self):
        """Control-C does not wait for the next token."""

        class Alarm(Exception):
            pass

        def alarm(*_):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Alarm

        stream = self.client.generate(PROMPT, max_tokens=2000, ignore_eos=True)
        self.on_alarm(alarm)
        with self.assertRaises(Alarm):
            stream.read()
        stream.close()
        self.assertEqual(len(self.client.generate(PROMPT, max_tokens=2).read().tokens), 2)

    def test_signals_do_not_end_a_wait(self):
        alarms = []
        self.on_alarm(lambda *_: alarms.append(1))
        result = self.client.generate(PROMPT, max_tokens=30, ignore_eos=True).read()
        self.assertEqual(len(result.tokens), 30)
        self.assertTrue(alarms)

    def test_numbers_of_connect(self):
        for options in ({"max_inflight": -1}, {"spin_us": 2**32}, {"resume_ms": "1"}):
            with self.subTest(options), self.assertRaises(llmclient.InvalidRequest):
                llmclient.connect(target(), **options)

    def test_closed(self):
        stream = self.client.generate(PROMPT, max_tokens=100)
        self.client.close()
        self.client.close()
        with self.assertRaises(llmclient.Error):
            stream.read()
        with self.assertRaises(llmclient.Error):
            self.client.generate(PROMPT)

    def test_session(self):
        c = self.client
        n = len(c.tokenize(PROMPT, add_special=True))
        plain = c.generate(PROMPT, max_tokens=6).read()
        with c.session(f"s{os.getpid()}", PROMPT) as s:
            self.assertEqual(s.length, n)
            self.assertEqual(s.generate(max_tokens=6).read().tokens, plain.tokens)
            self.assertEqual(s.length, n + 6)
            more = c.tokenize(" And")
            self.assertEqual(s.append(" And"), n + 6 + len(more))
            self.assertEqual(s.rewind(n), n)
            self.assertEqual(s.generate(max_tokens=6).read().tokens, plain.tokens)
            # a revised tail is as if it had never been another
            self.assertEqual(s.replace(n - 1, c.tokenize(PROMPT)[-1:]), n)
            self.assertEqual(s.generate(max_tokens=6).read().tokens, plain.tokens)
            s.rewind(n)
            with s.fork(f"f{os.getpid()}") as fork:
                self.assertEqual(fork.length, n)
                self.assertEqual(fork.generate(max_tokens=6).read().tokens, plain.tokens)
                self.assertEqual((s.length, fork.length), (n, n + 6))
            self.assertEqual(s.append(c.tokenize(PROMPT)), 2 * n)
            with self.assertRaises(llmclient.InvalidRequest) as caught:
                s.rewind(1000)
            self.assertEqual(caught.exception.fits, 2 * n)
            for keep in (-1, 2**64 - 1, 1.5):
                with self.assertRaises(llmclient.InvalidRequest):
                    s.rewind(keep)
            with self.assertRaises(llmclient.SessionError):
                c.session(s.name)
        with self.assertRaises(llmclient.SessionError):
            s.append("x")

    def test_barge_in(self):
        with self.client.session(f"b{os.getpid()}", PROMPT) as s:
            n = s.length
            stream = s.generate(max_tokens=2000, ignore_eos=True)
            said = len(next(stream).tokens)
            with self.assertRaises(llmclient.SessionError):
                s.append("too early")
            self.assertEqual(s.interrupt(n + said), n + said)
            result = stream.read()
            self.assertEqual(result.finish_reason, "cancelled")
            self.assertEqual(s.append(self.client.tokenize(" yes")), n + said + 1)

    def test_pinned_prefix(self):
        words = "The rules of the house are these. " * 12
        with self.client.session(f"p{os.getpid()}", words, pin=True) as s:
            with self.assertRaises(llmclient.InvalidRequest):
                s.generate()
            with s.fork(f"pf{os.getpid()}") as fork:
                fork.generate(max_tokens=1).read()  # the opening is answered before it is computed
            usage = self.client.generate(words + "First", max_tokens=1).read().usage
            self.assertGreaterEqual(usage.cached_tokens, usage.prompt_tokens // 2)

    def test_session_keys(self):
        from llmclient import _library

        lib = _library.load()
        lib.llm_session_key.restype = _library.c.c_uint64
        lib.llm_session_key.argtypes = [_library.c.c_char_p]
        for name in ("", "call-4711", "caf\u00e9"):
            self.assertEqual(_library.session_key(name), lib.llm_session_key(name.encode()))

    def test_choose(self):
        labels = [" London", " Paris", " an old town"]
        ranked = self.client.choose(PROMPT, labels)
        self.assertEqual(ranked[0][0], " Paris")
        self.assertEqual(sorted(label for label, _ in ranked), sorted(labels))
        self.assertEqual(ranked, sorted(ranked, key=lambda pair: -pair[1]))
        first = self.client.generate(PROMPT, max_tokens=1, logprobs=True).read()
        self.assertTrue(math.isclose(ranked[0][1], first.choices[0].logprobs[0], abs_tol=1e-5))
        with self.assertRaises(llmclient.InvalidRequest):
            self.client.choose(PROMPT, [])
        with self.assertRaises(llmclient.InvalidRequest):
            self.client.choose(PROMPT, [""])
        within = self.client.choose(PROMPT, labels, priority="high", timeout_ms=60000)
        self.assertEqual([label for label, _ in within], [label for label, _ in ranked])
        with self.assertRaises(llmclient.Timeout):
            self.client.choose("A long text. " * 400, labels, timeout_ms=1)
        with self.assertRaisesRegex(TypeError, "no option 'deadline_ms'"):
            self.client.choose(PROMPT, labels, deadline_ms=100)


class AsyncTest(Scenarios, Async, unittest.TestCase):
    def run_with(self, use, **connect):
        async def run():
            async with await llmclient.aconnect(target(), **connect) as client:
                await asyncio.wait_for(use(client), 120)

        asyncio.run(run())

    def test_many_streams_on_one_loop(self):
        prompts = [f"{i} and {i} make" for i in range(10)]

        async def use(client):
            async def one(prompt):
                return (await client.agenerate(prompt, max_tokens=6).aread()).tokens

            alone = [await one(prompt) for prompt in prompts]
            # max_inflight is 4: the others wait for room
            self.assertEqual(await asyncio.gather(*map(one, prompts)), alone)

        threads = threading.active_count()
        self.run_with(use, max_inflight=4)
        self.assertEqual(threading.active_count(), threads)

    def test_no_threads(self):
        async def use(client):
            before = threading.active_count()  # with the one that connected
            await client.agenerate(PROMPT, max_tokens=4).aread()
            self.assertEqual(threading.active_count(), before)

        self.run_with(use)

    def test_leaving_early_cancels(self):
        async def use(client):
            async for chunk in client.agenerate(PROMPT, max_tokens=2000, ignore_eos=True):
                break
            left = client.agenerate(PROMPT, max_tokens=2000, ignore_eos=True)
            await left.__anext__()
            await left.aclose()
            self.assertEqual(left.result.finish_reason, "cancelled")
            task = asyncio.ensure_future(
                client.agenerate(PROMPT, max_tokens=2000, ignore_eos=True).aread()
            )
            await client.agenerate(PROMPT, max_tokens=3).aread()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            # room for 4 only: also one that waits for room may be left
            four = [client.agenerate(PROMPT, max_tokens=50, ignore_eos=True) for _ in range(4)]
            await client.agenerate(PROMPT, max_tokens=5).aclose()
            for stream in four:
                self.assertEqual(len((await stream.aread()).tokens), 50)
            self.assertEqual(client._channel.requests, {})
            self.assertEqual(left.result.finish_reason, "cancelled")  # says the engine now
            self.assertLess(left.result.usage.completion_tokens, 2000)

        self.run_with(use, max_inflight=4)

    def test_two_tasks_on_one_stream(self):
        async def use(client):
            stream = client.agenerate(PROMPT, max_tokens=2000, ignore_eos=True)
            done = await asyncio.gather(
                stream.__anext__(), stream.__anext__(), return_exceptions=True
            )
            self.assertEqual([type(d) for d in done].count(llmclient.InvalidRequest), 1)
            await stream.aclose()

        self.run_with(use)

    def test_another_loop(self):
        async def connect():
            return await llmclient.aconnect(target())

        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(connect())

        async def use():
            with self.assertRaises(llmclient.WrongThread):
                client.agenerate(PROMPT)

        asyncio.run(use())
        loop.run_until_complete(client.aclose())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def test_session(self):
        async def use(client):
            plain = await client.agenerate(PROMPT, max_tokens=6).aread()
            async with await client.asession(f"a{os.getpid()}", PROMPT) as s:
                n = s.length
                self.assertEqual((await s.agenerate(max_tokens=6).aread()).tokens, plain.tokens)
                self.assertEqual(await s.arewind(n), n)
                self.assertEqual(await s.areplace(n - 1, client.tokenize(PROMPT)[-1:]), n)
                async with await s.afork(f"af{os.getpid()}") as fork:
                    result = await fork.agenerate(max_tokens=6).aread()
                    self.assertEqual(result.tokens, plain.tokens)
                stream = s.agenerate(max_tokens=2000, ignore_eos=True)
                said = len((await stream.__anext__()).tokens)
                self.assertEqual(await s.ainterrupt(n + said), n + said)
                self.assertEqual((await stream.aread()).finish_reason, "cancelled")
                self.assertGreater(await s.aappend(" yes"), n + said)
            with self.assertRaises(llmclient.SessionError):
                await s.aappend("x")

        self.run_with(use)

    def test_choose(self):
        async def use(client):
            ranked = await client.achoose(PROMPT, [" London", " Paris"])
            self.assertEqual(ranked[0][0], " Paris")

        self.run_with(use)


class Death(unittest.TestCase):
    """Engines of these tests alone, with a tiny model."""

    def start(self):
        engine = Engine(TINY, "--threads", "1")
        self.addCleanup(engine.stop)
        return engine, f"llmd:{engine.instance}"

    def test_engine_dies_under_a_stream(self):
        engine, where = self.start()
        with llmclient.connect(where) as client:
            os.kill(engine.process.pid, signal.SIGSTOP)  # so that nothing ends before its death
            streams = [client.generate([1, 2, 3], max_tokens=200, n=2)]
            streams.append(client.generate([1, 2], max_tokens=200))
            engine.kill()
            for stream in streams:
                with self.assertRaises(llmclient.EngineDied):
                    stream.read()
            with self.assertRaises(llmclient.EngineDied):
                client.generate([1])

    def test_engine_dies_under_a_loop(self):
        engine, where = self.start()

        async def use():
            async with await llmclient.aconnect(where) as client:
                os.kill(engine.process.pid, signal.SIGSTOP)  # so that nothing ends before its death
                streams = [client.agenerate([i], max_tokens=200, n=4) for i in range(1, 9)]
                engine.kill()
                for stream in streams:
                    with self.assertRaises(llmclient.EngineDied):
                        await stream.aread()
                with self.assertRaises(llmclient.EngineDied):
                    client.agenerate([1])

        asyncio.run(asyncio.wait_for(use(), 120))

    def test_resume(self):
        engine, where = self.start()
        options = {"max_tokens": 200, "ignore_eos": True, "temperature": 1.0, "seed": 7}
        with llmclient.connect(where) as client:
            expected = client.generate([1, 2, 3], **options).read().tokens
        with llmclient.connect(where, resume_ms=120000) as client:
            stream = client.generate([1, 2, 3], **options)
            got = list(next(stream).tokens)
            engine.kill()
            engine._start(TINY, ("--threads", "1"))
            got.extend(t for chunk in stream for t in chunk.tokens)
        self.assertEqual(got, expected)


class Examples(unittest.TestCase):
    def run_example(self, name, *arguments, given=None):
        import subprocess

        done = subprocess.run(
            [sys.executable, "-B", str(support.ROOT / "client/python/examples" / name), *arguments],
            input=given, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(support.ROOT / "client/python")},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_asyncio_stream(self):
        prompts = ["The sea is", "The sky is", "The sun is"]
        said = self.run_example("asyncio_stream.py", target(), *prompts).splitlines()
        with llmclient.connect(target()) as client:
            for number, prompt in enumerate(prompts, 1):
                chunks = [chunk.text for chunk in client.generate(prompt, max_tokens=24)]
                mine = [line for line in said if line.startswith(f"{number}: ")]
                self.assertEqual(mine, [f"{number}: {text!r}" for text in chunks])
        # at the same time: no stream is over before another has begun
        self.assertEqual({line[0] for line in said[: len(said) // 2]}, {"1", "2", "3"})

    def test_chat(self):
        said = self.run_example("chat.py", target(), given="Say hi.\n")
        with llmclient.connect(target()) as client:
            answer = client.chat([{"role": "user", "content": "Say hi."}], max_tokens=400).read()
        self.assertEqual(said.split("Your turn:\n", 1)[1], answer.text + "\n")


if __name__ == "__main__":
    unittest.main()
