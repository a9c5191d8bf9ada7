"""The structs that ctypes passes have the sizes and offsets that the C compiler gives them."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import unittest

from support import ROOT

from llmclient import _library


def compiler():
    return next(
        (cc for cc in (os.environ.get("CC", "cc"), "gcc", "clang") if shutil.which(cc)), None
    )


def ask_compiler(questions):
    """The values of constant expressions over the library's header."""
    lines = "".join(f'    printf("%lld\\n", (long long)({q}));\n' for q in questions)
    source = (
        f'#include "{ROOT}/client/llmclient.h"\n#include <stdio.h>\nint main(void)\n'
        f"{{\n{lines}    return 0;\n}}\n"
    )
    folder = tempfile.mkdtemp()
    try:
        program = os.path.join(folder, "ask")
        subprocess.run(
            [compiler(), "-x", "c", f"-I{ROOT}/shm", "-o", program, "-"],
            input=source, text=True, check=True,
        )  # fmt: skip
        return [int(line) for line in subprocess.check_output([program]).split()]
    finally:
        shutil.rmtree(folder)


@unittest.skipUnless(compiler(), "no C compiler here")
class Layout(unittest.TestCase):
    def test_structs(self):
        questions, answers = [], []
        for name, struct in _library.STRUCTS.items():
            questions.append(f"sizeof(struct {name})")
            answers.append(ctypes.sizeof(struct))
            for member, *_ in struct._fields_:
                at = getattr(struct, member)
                questions.append(f"offsetof(struct {name}, {member})")
                answers.append(at.offset)
                questions.append(f"sizeof(((struct {name} *)0)->{member})")
                answers.append(at.size)
        for question, mine, theirs in zip(questions, answers, ask_compiler(questions)):
            self.assertEqual(mine, theirs, question)

    def test_constants(self):
        values = {
            "LLM_OP_GENERATE": _library.OP_GENERATE,
            "LLM_SQE_IGNORE_EOS": _library.IGNORE_EOS,
            "LLM_SQE_LOGPROBS": _library.LOGPROBS,
            "LLM_SQE_PIN": _library.PIN,
            "LLM_SQE_SPECULATE": _library.SPECULATION["ngram"],
            "LLM_SQE_NO_SPECULATION": _library.SPECULATION["off"],
            "LLM_PRIORITY_NORMAL": _library.PRIORITY["normal"],
            "LLM_PRIORITY_HIGH": _library.PRIORITY["high"],
            "LLM_PRIORITY_LOW": _library.PRIORITY["low"],
            "LLM_EVENT_TOKENS": _library.EVENT_TOKENS,
            "LLM_EVENT_DONE": _library.EVENT_DONE,
            "LLM_EVENT_ERROR": _library.EVENT_ERROR,
            "LLM_TOKENIZE_SPECIAL": _library.TOKENIZE_SPECIAL,
            "LLM_TOKENIZE_ADD_SPECIAL": _library.TOKENIZE_ADD_SPECIAL,
            "LLM_DETOK_UTF8": _library.DETOK_UTF8,
            "LLM_DETOK_SHOW_SPECIAL": _library.DETOK_SHOW_SPECIAL,
            "LLM_DETOK_WORDS": _library.DETOK_WORDS,
            "LLM_DETOK_SENTENCES": _library.DETOK_SENTENCES,
            "LLM_DETOK_CONTINUE": _library.DETOK_CONTINUE,
            "LLM_BOS": _library.SPECIAL["bos_token"],
            "LLM_EOS": _library.SPECIAL["eos_token"],
            "LLM_UNK": _library.SPECIAL["unk_token"],
            "LLM_PAD": _library.SPECIAL["pad_token"],
            "LLM_CQE_TOKENS_MAX": _library.TOKENS_MAX,
            "LLM_CHOICES_MAX": 64,
            "offsetof(struct llm_request, session)": _library.REQUEST_1_0,
        }
        for which, text in _library.FINISH.items():
            values[f"LLM_FINISH_{text.upper()}"] = which
        for name in dir(_errors()):
            if name.startswith("E") and name.isupper():
                values[f"LLM_{name}"] = getattr(_errors(), name)
        for name, value in zip(values, ask_compiler(values)):
            self.assertEqual(values[name], value, name)

    def test_all_bits_of_the_large_numbers(self):
        mask = "0xFFFFFFFF"
        halves = ask_compiler(
            [f"(LLM_SEED_RANDOM >> 32) & {mask}", f"LLM_SESSION_ALL & {mask}"]
        )  # fmt: skip
        self.assertEqual(halves, [2**32 - 1, 2**32 - 1])
        self.assertEqual(_library.SEED_RANDOM, 2**64 - 1)
        self.assertEqual(_library.SESSION_ALL, 2**64 - 1)


def _errors():
    from llmclient import errors

    return errors


if __name__ == "__main__":
    unittest.main()
