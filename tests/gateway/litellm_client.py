"""A second client that others built (PyPI: litellm) against llm-gateway; see openai_client.py."""

import os
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm  # noqa: E402

ASK = {
    "model": "openai/" + os.environ["GATEWAY_MODEL"],
    "api_base": os.environ["GATEWAY_URL"] + "/v1",
    "api_key": "any",
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    "temperature": 0,
    "max_tokens": 16,
    "num_retries": 0,
}


class LiteLLM(unittest.TestCase):
    def test_chat(self):
        answer = litellm.completion(**ASK)
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.usage.completion_tokens, 16)

    def test_stream(self):
        text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **ASK))
        self.assertEqual(text, litellm.completion(**ASK).choices[0].message.content)

    def test_completion(self):
        answer = litellm.text_completion(
            model="text-completion-openai/" + os.environ["GATEWAY_MODEL"],
            api_base=ASK["api_base"],
            api_key="any",
            prompt="The capital of France is",
            temperature=0,
            max_tokens=8,
        )
        self.assertIn("Paris", answer.choices[0].text)

    def test_errors(self):
        with self.assertRaises(litellm.BadRequestError):
            litellm.completion(**ASK | {"temperature": 3})
        with self.assertRaises(litellm.NotFoundError):
            litellm.completion(**ASK | {"model": "openai/none"})


if __name__ == "__main__":
    unittest.main()
