"""A conversation on the terminal; one line is one message, the end of the input ends it.

    python3 chat.py llmd:default

Or a server that speaks OpenAI's API: http://127.0.0.1:8000/v1
"""

import sys

import llmclient


def main(target: str) -> None:
    messages: list[dict[str, str]] = []
    with llmclient.connect(target) as client:
        print(f"{client.model}. Your turn:", flush=True)
        for line in sys.stdin:
            messages.append({"role": "user", "content": line.rstrip("\n")})
            stream = client.chat(messages, max_tokens=400)
            for chunk in stream:
                print(chunk.text, end="", flush=True)
            print(flush=True)
            messages.append({"role": "assistant", "content": stream.result.text})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} TARGET")
    try:
        main(sys.argv[1])
    except llmclient.Error as error:
        sys.exit(f"{sys.argv[0]}: {error}")
