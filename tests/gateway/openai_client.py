"""The official client (PyPI: openai) against llm-gateway: what applications call, and every class of error.

    GATEWAY_URL=http://127.0.0.1:8000 GATEWAY_MODEL=name [GATEWAY_KEY=key] python3 -m unittest openai_client

tests/e2e/test_gateway_openai.c runs it beside an engine with the small model. A gateway with a file of keys and a
limited key is at GATEWAY_KEYS_URL, with the keys GATEWAY_KEY and GATEWAY_LIMITED_KEY.
"""

import json
import os
import threading
import unittest

import openai

URL = os.environ["GATEWAY_URL"]
MODEL = os.environ["GATEWAY_MODEL"]
KEYS_URL = os.environ.get("GATEWAY_KEYS_URL")
SKY = [{"role": "user", "content": "Why is the sky blue?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def client(url=URL, key="any", **more):
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=60, **more)


class Gateway(unittest.TestCase):
    def setUp(self):
        self.c = client()
        self.addCleanup(self.c.close)

    def chat(self, **more):
        return self.c.chat.completions.create(**{"model": MODEL, "messages": SKY, "temperature": 0, "max_tokens": 16} | more)

    def complete(self, **more):
        return self.c.completions.create(
            **{"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8} | more
        )


class Answers(Gateway):
    def test_models(self):
        models = self.c.models.list().data
        self.assertEqual(len(models), 1)
        self.assertEqual(models[0].object, "model")
        self.assertEqual(self.c.models.retrieve(models[0].id).id, models[0].id)
        self.assertEqual(self.c.models.retrieve(MODEL).id, models[0].id)

    def test_completion(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.id.startswith("cmpl-"))
        self.assertIn("Paris", answer.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 8)
        self.assertTrue(answer.system_fingerprint.startswith("fp_"))

    def test_completion_of_several_prompts(self):
        prompts = ["The capital of France is", "One, two, three,"]
        answer = self.complete(prompt=prompts, n=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        for i, prompt in enumerate(prompts):
            alone = self.complete(prompt=prompt).choices[0].text
            self.assertEqual(answer.choices[2 * i].text, alone)
            self.assertEqual(answer.choices[2 * i + 1].text, alone)

    def test_completion_of_tokens(self):
        tokens = self.c.post(URL + "/tokenize", cast_to=object, body={"model": MODEL, "prompt": "The capital of France is"})
        by_ids = self.complete(prompt=tokens["tokens"])
        self.assertEqual(by_ids.choices[0].text, self.complete().choices[0].text)
        text = self.c.post(URL + "/detokenize", cast_to=object, body={"model": MODEL, "tokens": tokens["tokens"]})
        self.assertEqual(text["prompt"], "The capital of France is")

    def test_completion_default_length(self):
        self.assertEqual(self.c.completions.create(model=MODEL, prompt="One, two,", temperature=0).usage.completion_tokens, 16)

    def test_echo(self):
        self.assertEqual(self.complete(echo=True).choices[0].text, "The capital of France is" + self.complete().choices[0].text)

    def test_chat(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 16)

    def test_chat_ends_by_itself(self):
        answer = self.chat(messages=[{"role": "user", "content": "Say hello."}], max_tokens=200, logprobs=True)
        choice = answer.choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        self.assertNotIn("<|im_end|>", choice.message.content)
        self.assertEqual(len(choice.logprobs.content), answer.usage.completion_tokens)
        self.assertEqual("".join(t.token for t in choice.logprobs.content), choice.message.content)

    def test_content_parts_and_developer(self):
        parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Why is "}, {"type": "text", "text": "the sky blue?"}]}]
        plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?"}]
        self.assertEqual(self.chat(messages=parts).choices[0].message.content, self.chat(messages=plain).choices[0].message.content)

    def test_max_completion_tokens(self):
        answer = self.c.chat.completions.create(model=MODEL, messages=SKY, max_completion_tokens=5)
        self.assertEqual(answer.usage.completion_tokens, 5)

    def test_raw_headers(self):
        raw = self.c.chat.completions.with_raw_response.create(model=MODEL, messages=SKY, max_tokens=2)
        self.assertEqual(raw.headers["x-request-id"], raw.parse().id)


class Streams(Gateway):
    def test_chat_stream(self):
        chunks = list(self.chat(stream=True))
        self.assertEqual(chunks[0].object, "chat.completion.chunk")
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertEqual([c.choices[0].finish_reason for c in chunks], [None] * (len(chunks) - 1) + ["length"])
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        self.assertEqual(text, self.chat().choices[0].message.content)
        self.assertTrue(all(c.usage is None for c in chunks))

    def test_usage(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 16)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_completion_stream(self):
        text = "".join(c.choices[0].text for c in self.complete(stream=True))
        self.assertEqual(text, self.complete().choices[0].text)

    def test_several_choices(self):
        texts = ["", "", ""]
        for chunk in self.chat(stream=True, n=3, temperature=1, seed=7):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        whole = self.chat(n=3, temperature=1, seed=7)
        self.assertEqual(texts, [c.message.content for c in whole.choices])

    def test_characters_stay_whole(self):
        ask = {"prompt": "Emoji: \U0001f600\U0001f680\U0001f389 \U0001f600\U0001f680\U0001f389 \U0001f600", "max_tokens": 24}
        text = "".join(c.choices[0].text for c in self.complete(stream=True, **ask))
        self.assertEqual(text, self.complete(**ask).choices[0].text)

    def test_many_at_once(self):
        alone = self.chat(max_tokens=12).choices[0].message.content
        got = []

        def one():
            got.append("".join(c.choices[0].delta.content or "" for c in self.chat(max_tokens=12, stream=True)))

        threads = [threading.Thread(target=one) for _ in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, [alone] * 12)

    def test_hang_up(self):
        stream = self.chat(stream=True, max_tokens=1500)
        next(iter(stream))
        stream.close()
        self.assertEqual(len(self.chat().choices), 1)


class Sampling(Gateway):
    def test_n(self):
        answer = self.chat(n=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        self.assertEqual(len({c.message.content for c in answer.choices}), 3)
        self.assertEqual(answer.usage.completion_tokens, 48)

    def test_seed(self):
        texts = [self.chat(temperature=1, seed=s).choices[0].message.content for s in (1, 1, 2, -1, -1)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.assertEqual(texts[3], texts[4])
        self.assertNotEqual(self.chat(temperature=1).choices[0].message.content, self.chat(temperature=1).choices[0].message.content)

    def test_top_p_zero_is_greedy(self):
        self.assertEqual(self.chat(temperature=1, top_p=0).choices[0].message.content, self.chat().choices[0].message.content)

    def test_stop(self):
        whole = self.chat(max_tokens=40).choices[0].message.content
        word = whole.split()[3]
        for stream in (False, True):
            got = self.chat(max_tokens=40, stop=["\x00never", word], stream=stream)
            if stream:
                chunks = list(got)
                text = "".join(c.choices[0].delta.content or "" for c in chunks)
                finish = chunks[-1].choices[0].finish_reason
            else:
                text, finish = got.choices[0].message.content, got.choices[0].finish_reason
            self.assertEqual(text, whole[: whole.index(word)])
            self.assertEqual(finish, "stop")

    def test_stop_inside_a_token(self):
        whole = self.complete(max_tokens=24).choices[0].text
        for cut in range(1, len(whole) - 1):
            stop = whole[cut : cut + 2]
            got = "".join(c.choices[0].text for c in self.complete(max_tokens=24, stop=stop, stream=True))
            self.assertEqual(got, whole[: whole.index(stop)], stop)

    def test_stop_in_parts_of_a_character(self):
        """A token " \\xce" and one "\\x95": the stop string begins within the first, whose rest is no character."""
        tokens = self.c.with_options(base_url=URL).post("/tokenize", cast_to=dict, body={"prompt": "a \u0395"})["tokens"][1:]
        bias = {str(t): 100 - 3 * i for i, t in enumerate(tokens)}
        ask = {"logit_bias": bias, "frequency_penalty": 2, "presence_penalty": 2, "max_tokens": 4}
        whole = self.complete(**ask).choices[0].text
        self.assertIn(" \u0395", whole)
        wanted = whole[: whole.index("\u0395")]
        self.assertEqual(self.complete(stop="\u0395", **ask).choices[0].text, wanted)
        got = "".join(c.choices[0].text for c in self.complete(stop="\u0395", stream=True, **ask))
        self.assertEqual(got, wanted)

    def test_logprobs(self):
        answer = self.chat(logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for token in content:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].token, token.token)  # greedy
            self.assertAlmostEqual(token.top_logprobs[0].logprob, token.logprob, 5)
        self.assertEqual(b"".join(bytes(t.bytes) for t in content).decode(), answer.choices[0].message.content)

    def test_logprobs_of_completions(self):
        answer = self.complete(logprobs=2)
        lp = answer.choices[0].logprobs
        self.assertEqual("".join(lp.tokens), answer.choices[0].text)
        self.assertEqual(len(lp.token_logprobs), answer.usage.completion_tokens)
        self.assertEqual([len(t) for t in lp.top_logprobs], [2] * len(lp.tokens))
        self.assertEqual([answer.choices[0].text[o:].startswith(t) for o, t in zip(lp.text_offset, lp.tokens)], [True] * len(lp.tokens))

    def test_scores(self):
        for n, max_tokens in ((1, 0), (2, 4)):
            answer = self.complete(echo=True, logprobs=1, max_tokens=max_tokens, n=n)
            streamed = list(self.complete(echo=True, logprobs=1, max_tokens=max_tokens, stream=True))
            for choice in answer.choices:
                lp = choice.logprobs
                self.assertEqual("".join(lp.tokens), choice.text)
                self.assertEqual(len(lp.tokens), answer.usage.prompt_tokens + answer.usage.completion_tokens // n)
                self.assertIsNone(lp.token_logprobs[0])
                self.assertTrue(all(v <= 0 for v in lp.token_logprobs[1:]))
                self.assertTrue(choice.text.startswith("The capital of France is"))
                self.assertEqual(choice.finish_reason, "length")
                values = [v for c in streamed for v in c.choices[0].logprobs.token_logprobs]
                self.assertEqual(values, lp.token_logprobs)

    def test_logprobs_in_a_stream(self):
        whole = self.chat(logprobs=True).choices[0].logprobs.content
        streamed = [t for c in self.chat(logprobs=True, stream=True) for t in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
        self.assertEqual([t.model_dump() for t in streamed], [t.model_dump() for t in whole])

    def test_logit_bias(self):
        tokens = self.c.post(URL + "/tokenize", cast_to=object, body={"model": MODEL, "prompt": " London", "add_special_tokens": False})["tokens"]
        answer = self.complete(max_tokens=1, logit_bias={str(tokens[0]): 100})
        self.assertEqual(answer.choices[0].text, " London")

    def test_penalties(self):
        ask = {"prompt": "a a a a a a a a", "max_tokens": 16}
        plain = self.complete(**ask).choices[0].text
        for more in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"extra_body": {"repetition_penalty": 1.5}}):
            self.assertNotEqual(self.complete(**ask, **more).choices[0].text, plain, more)

    def test_more_samplers(self):
        greedy = self.chat().choices[0].message.content
        self.assertEqual(self.chat(temperature=1, extra_body={"top_k": 1}).choices[0].message.content, greedy)
        self.assertEqual(self.chat(temperature=1, extra_body={"min_p": 1}).choices[0].message.content, greedy)
        for method in ("ngram", "off"):
            drafted = self.chat(temperature=0, extra_body={"speculative": method})
            self.assertEqual(drafted.choices[0].message.content, greedy)


class Tools(Gateway):
    choice = {"type": "function", "function": {"name": "get_weather"}}

    def test_round_trip(self):
        ask = [{"role": "user", "content": "What is the weather in Paris?"}]
        first = self.chat(messages=ask, tools=[WEATHER], tool_choice=self.choice, max_tokens=40)
        call = first.choices[0].message.tool_calls[0]
        self.assertEqual(call.type, "function")
        self.assertEqual(call.function.name, "get_weather")
        self.assertTrue(call.id.startswith("call_"))
        self.assertIn("city", json.loads(call.function.arguments))
        answer = self.chat(
            messages=ask
            + [first.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "21 degrees, sunny"}],
            tools=[WEATHER],
            tool_choice="none",
        )
        self.assertTrue(answer.choices[0].message.content)
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_streamed_call(self):
        ask = {"messages": [{"role": "user", "content": "Weather in Rome?"}], "tools": [WEATHER], "tool_choice": self.choice, "max_tokens": 40}
        whole = self.chat(**ask).choices[0].message.tool_calls[0]
        name, arguments = "", ""
        for chunk in self.chat(stream=True, **ask):
            for call in chunk.choices[0].delta.tool_calls or []:
                self.assertEqual(call.index, 0)
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        self.assertEqual((name, arguments), (whole.function.name, whole.function.arguments))

    def test_required(self):
        answer = self.chat(tools=[WEATHER], tool_choice="required", max_tokens=40)
        self.assertEqual(answer.choices[0].message.tool_calls[0].function.name, "get_weather")

    def test_auto_may_answer(self):
        answer = self.chat(tools=[WEATHER], messages=[{"role": "user", "content": "Say hello."}])
        message = answer.choices[0].message
        self.assertTrue(message.content or message.tool_calls)


class Errors(Gateway):
    def refused(self, error, status, **more):
        with self.assertRaises(error) as caught:
            self.chat(**more)
        self.assertEqual(caught.exception.status_code, status)
        self.assertTrue(caught.exception.message)
        return caught.exception

    def test_bad_request(self):
        for more, param in (
            ({"temperature": 3}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
            ({"top_p": 1.5}, "top_p"),
            ({"n": 0}, "n"),
            ({"n": 1000}, "n"),
            ({"presence_penalty": 3}, "presence_penalty"),
            ({"frequency_penalty": -3}, "frequency_penalty"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"max_tokens": 10**12}, "max_tokens"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"stop": [str(i) for i in range(17)]}, "stop"),
            ({"stop": ""}, "stop"),
            ({"logit_bias": {"99999999": 1}}, "logit_bias"),
            ({"logit_bias": {"one": 1}}, "logit_bias"),
            ({"logit_bias": {"1": 101}}, "logit_bias"),
            ({"seed": 1.5}, "seed"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "king", "content": "x"}]}, "messages[0]"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0]"),
            ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"extra_body": {"no_such_parameter": 1}}, "no_such_parameter"),
        ):
            with self.subTest(**more):
                error = self.refused(openai.BadRequestError, 400, **more)
                self.assertEqual(error.param, param)
                self.assertEqual(error.type, "invalid_request_error")

    def test_response_format_text(self):
        self.assertTrue(self.chat(response_format={"type": "text"}).choices)

    def test_too_long(self):
        error = self.refused(openai.BadRequestError, 400, max_tokens=5000)
        self.assertEqual(error.code, "context_length_exceeded")
        fits = int(error.message.split("at most ")[1].split()[0])
        self.refused(openai.BadRequestError, 400, max_tokens=fits + 1)
        chunk = next(iter(self.chat(max_tokens=fits, stream=True)))
        self.assertEqual(chunk.object, "chat.completion.chunk")
        self.refused(openai.BadRequestError, 400, messages=[{"role": "user", "content": "word " * 5000}])

    def test_not_found(self):
        self.assertEqual(self.refused(openai.NotFoundError, 404, model="no-such-model").code, "model_not_found")
        with self.assertRaises(openai.NotFoundError):
            self.c.models.retrieve("no-such-model")
        with self.assertRaises(openai.NotFoundError):
            self.c.post("/no/such/path", cast_to=object, body={})

    def test_method(self):
        with self.assertRaises(openai.APIStatusError) as caught:
            self.c.get("/chat/completions", cast_to=object)
        self.assertEqual(caught.exception.status_code, 405)

    def test_deadline(self):
        with self.assertRaises(openai.InternalServerError) as caught:
            self.chat(messages=[{"role": "user", "content": "word " * 1500}], extra_headers={"X-LLMD-Deadline-Ms": "1"})
        self.assertEqual(caught.exception.status_code, 504)
        self.refused(openai.BadRequestError, 400, extra_headers={"X-LLMD-Deadline-Ms": "soon"})
        self.refused(openai.BadRequestError, 400, extra_headers={"X-LLMD-Priority": "huge"})
        self.assertTrue(self.chat(extra_headers={"X-LLMD-Priority": "high", "X-LLMD-Deadline-Ms": "60000"}).choices)

    @unittest.skipUnless(KEYS_URL, "no gateway with keys")
    def test_authentication(self):
        with self.assertRaises(openai.AuthenticationError):
            client(KEYS_URL, "wrong").models.list()
        self.assertTrue(client(KEYS_URL, os.environ["GATEWAY_KEY"]).models.list().data)

    @unittest.skipUnless(KEYS_URL, "no gateway with keys")
    def test_rate_limit(self):
        c = client(KEYS_URL, os.environ["GATEWAY_LIMITED_KEY"])
        ask = {"model": MODEL, "messages": SKY, "max_tokens": 1000, "extra_body": {"ignore_eos": True}}
        with c.chat.completions.create(stream=True, **ask) as stream:
            next(iter(stream))
            with self.assertRaises(openai.RateLimitError) as caught:
                c.chat.completions.create(**ask)
        self.assertGreaterEqual(int(caught.exception.response.headers["retry-after"]), 1)

    def test_connection(self):
        with self.assertRaises(openai.APIConnectionError):
            client("http://127.0.0.1:1").models.list()


if __name__ == "__main__":
    unittest.main()
