#!/usr/bin/env python3
"""Writes the hand-made inputs of tests/fuzz/corpus: one file a kind of fault, named after it.

    python3 tests/fuzz/seeds.py            (the files are committed; this is how they were made)

The kinds for model files are those that have hurt other readers: counts and sizes that overflow, strings and arrays beyond
the file, zero dimensions and alignments, values of another type than the key has, tables larger than what they index,
extents beyond the file, ids beyond the vocabulary. Files with a hash for a name were found by the fuzzers.
"""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def save(corpus, name, data):
    folder = os.path.join(HERE, "corpus", corpus)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)


# ---- model files ----


def u32(v):
    return struct.pack("<I", v)


def u64(v):
    return struct.pack("<Q", v)


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return u64(len(s)) + s


def value(kind, v):
    if kind == STR:
        return text(v)
    return struct.pack("<" + PACK[kind], v)


def array(kind, items, count=None):
    return u32(kind) + u64(len(items) if count is None else count) + b"".join(value(kind, i) for i in items)


class Gguf:
    """A whole tiny model: 1 layer of 32, one head, 8 tokens. Parts are changed by name."""

    def __init__(self, spm=False):
        self.version, self.alignment, self.data, self.fill = 3, 32, True, None
        self.n_tensors = self.n_keys = None
        a = "llama."
        self.keys = [
            ["general.architecture", STR, value(STR, "llama")],
            ["general.name", STR, value(STR, "tiny")],
            [a + "block_count", U32, u32(1)],
            [a + "context_length", U32, u32(64)],
            [a + "embedding_length", U32, u32(32)],
            [a + "feed_forward_length", U32, u32(32)],
            [a + "attention.head_count", U32, u32(2)],
            [a + "attention.head_count_kv", U32, u32(1)],
            [a + "attention.layer_norm_rms_epsilon", F32, value(F32, 1e-5)],
            ["tokenizer.ggml.model", STR, value(STR, "llama" if spm else "gpt2")],
            ["tokenizer.ggml.eos_token_id", U32, u32(6)],
        ]
        t = "tokenizer.ggml."
        if spm:
            names = ["<unk>", "\u2581", "a", "\u2581a", "<0x0A>", "<s>", "</s>", "b"]
            self.set(t + "tokens", ARR, array(STR, names))
            self.set(t + "token_type", ARR, array(I32, [2, 1, 1, 1, 6, 3, 3, 1]))
            self.set(t + "scores", ARR, array(F32, [0, -1, -2, -3, 0, 0, 0, -4]))
        else:
            names = ["a", "b", "ab", "c", "abc", "<s>", "</s>", "<|im_end|>"]
            self.set(t + "pre", STR, value(STR, "smollm"))
            self.set(t + "tokens", ARR, array(STR, names))
            self.set(t + "token_type", ARR, array(I32, [1, 1, 1, 1, 1, 3, 3, 3]))
            self.set(t + "merges", ARR, array(STR, ["a b", "ab c"]))
        self.tensors = []
        f32, q4, q8 = 0, 2, 8
        self.tensor("token_embd.weight", q8, [32, 8])
        for name, shape in [("attn_q", [32, 32]), ("attn_k", [32, 16]), ("attn_v", [32, 16]), ("attn_output", [32, 32]),
                            ("ffn_gate", [32, 32]), ("ffn_up", [32, 32]), ("ffn_down", [32, 32])]:
            self.tensor(f"blk.0.{name}.weight", q4, shape)
        for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
            self.tensor(name + ".weight", f32, [32])

    def set(self, name, kind, payload):
        for k in self.keys:
            if k[0] == name:
                k[1:] = [kind, payload]
                return self
        self.keys.append([name, kind, payload])
        return self

    def drop(self, name):
        self.keys = [k for k in self.keys if k[0] != name]
        return self

    def tensor(self, name, kind, shape):
        self.tensors.append({"name": name, "type": kind, "ne": shape, "offset": None, "dims": None})

    def change(self, at, **parts):
        self.tensors[at].update(parts)
        return self

    def bytes(self):
        size = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34)}
        out = b"GGUF" + u32(self.version)
        out += u64(len(self.tensors) if self.n_tensors is None else self.n_tensors)
        out += u64(len(self.keys) if self.n_keys is None else self.n_keys)
        for name, kind, payload in self.keys:
            out += text(name) + u32(kind) + payload
        end = 0
        for t in self.tensors:
            block, each = size.get(t["type"], (1, 4))
            bytes_ = each
            for n in t["ne"]:
                bytes_ *= min(n, 4096)
            out += text(t["name"]) + u32(len(t["ne"]) if t["dims"] is None else t["dims"])
            out += b"".join(u64(n) for n in t["ne"]) + u32(t["type"]) + u64(end if t["offset"] is None else t["offset"])
            end += (bytes_ // block + self.alignment - 1) // self.alignment * self.alignment
        if self.data:
            out += bytes(-len(out) % self.alignment) + ((self.fill * end)[:end] if self.fill else bytes(i * 7 & 63 for i in range(end)))
        return out


def gguf(name, change=None, data=False, spm=False):
    g = Gguf(spm)
    g.data = data
    if change:
        change(g)
    save("gguf", name, g.bytes())


def gguf_seeds():
    t, a, big = "tokenizer.ggml.", "llama.", 1 << 63
    gguf("whole_bpe", data=True)
    gguf("whole_spm", data=True, spm=True)

    def vocabulary_only(g):
        g.tensors = []

    gguf("vocabulary_only", vocabulary_only)

    def other_alignment(g):
        g.alignment = 64
        g.set("general.alignment", U32, u32(64))

    gguf("alignment_64", other_alignment, data=True)

    def first_at(offset):
        def change(g):
            g.tensors = g.tensors[:1]
            g.change(0, offset=offset)

        return change

    # all ones: every scale and norm is NaN; or every second byte 0x7c: infinities
    gguf("weights_nan", lambda g: setattr(g, "fill", b"\xff"), data=True)
    gguf("weights_infinite", lambda g: setattr(g, "fill", b"\0\x7c\x80\x7f"), data=True)
    # counts and sizes that overflow
    gguf("tensors_2_60", lambda g: setattr(g, "n_tensors", 1 << 60))
    gguf("tensors_minus_1", lambda g: setattr(g, "n_tensors", (1 << 64) - 1))
    gguf("keys_2_61", lambda g: setattr(g, "n_keys", 1 << 61))
    gguf("keys_too_few", lambda g: setattr(g, "n_keys", 3))
    gguf("tokens_count_2_61", lambda g: g.set(t + "tokens", ARR, u32(STR) + u64(1 << 61)))
    gguf("types_count_2_62", lambda g: g.set(t + "token_type", ARR, u32(I32) + u64(1 << 62) + bytes(32)))
    gguf("extent_overflows", lambda g: g.change(0, ne=[1 << 32, 1 << 32]))
    gguf("extent_negative", lambda g: g.change(1, ne=[32, big]))
    gguf("extent_product_wraps", lambda g: g.change(0, ne=[1 << 16, 1 << 16, 1 << 16, 1 << 16]))
    gguf("offset_pad_wraps", first_at((1 << 64) - 1))
    gguf("offset_minus_32", first_at((1 << 64) - 32))
    # strings and arrays
    gguf("key_empty", lambda g: g.keys.insert(2, ["", U32, u32(1)]))
    gguf("text_length_2_63", lambda g: g.set("general.name", STR, u64(big) + b"tiny"))
    gguf("text_length_to_the_end", lambda g: g.set("general.name", STR, u64(700) + b"tiny"))
    gguf("text_with_nul", lambda g: g.set("general.name", STR, value(STR, b"ti\0ny\xff\xfe")))
    gguf("array_in_array", lambda g: g.set("x", ARR, u32(ARR) + u64(2) + (u32(ARR) + u64(1)) * 40))
    gguf("array_of_type_99", lambda g: g.set("x", ARR, u32(99) + u64(4) + bytes(32)))
    gguf("empty_arrays", lambda g: g.set(t + "tokens", ARR, array(STR, [])).set(t + "token_type", ARR, array(I32, [])))
    # zeros
    gguf("alignment_0", lambda g: g.set("general.alignment", U32, u32(0)))
    gguf("alignment_3", lambda g: g.set("general.alignment", U32, u32(3)))
    gguf("alignment_2_31", lambda g: g.set("general.alignment", U32, u32(1 << 31)))
    gguf("dimension_0", lambda g: g.change(1, ne=[32, 0]))
    gguf("no_dimensions", lambda g: g.change(1, ne=[]))
    gguf("five_dimensions", lambda g: g.change(1, ne=[32, 1, 1, 1, 1]))
    gguf("dimensions_2_32", lambda g: g.change(1, dims=(1 << 32) - 1))
    gguf("heads_0", lambda g: g.set(a + "attention.head_count", U32, u32(0)), data=True)
    gguf("layers_0", lambda g: g.set(a + "block_count", U32, u32(0)), data=True)
    gguf("width_not_of_blocks", lambda g: g.change(1, ne=[33, 32]))
    # values of another type
    gguf("alignment_of_type_u64", lambda g: g.set("general.alignment", U64, u64(32)))
    gguf("alignment_of_type_text", lambda g: g.set("general.alignment", STR, value(STR, "32")))
    gguf("types_of_type_u8", lambda g: g.set(t + "token_type", ARR, array(U8, [1] * 8)))
    gguf("scores_of_type_u8", lambda g: g.set(t + "scores", ARR, array(U8, [1] * 8)), spm=True)
    gguf("scores_nan", lambda g: g.set(t + "scores", ARR, array(F32, [float("nan")] * 8)), spm=True)
    gguf("tokens_of_type_u32", lambda g: g.set(t + "tokens", ARR, array(U32, [1] * 8)))
    gguf("merges_of_type_f64", lambda g: g.set(t + "merges", ARR, array(F64, [1.0, 2.0])))
    gguf("tokens_not_an_array", lambda g: g.set(t + "tokens", STR, value(STR, "a b")))
    gguf("bool_2", lambda g: g.set(t + "add_bos_token", BOOL, b"\2"))
    gguf("epsilon_nan", lambda g: g.set(a + "attention.layer_norm_rms_epsilon", F32, value(F32, float("nan"))), data=True)
    gguf("layers_of_type_f32", lambda g: g.set(a + "block_count", F32, value(F32, 1.0)), data=True)
    gguf("value_type_13", lambda g: g.set("x", 13, bytes(8)))
    # tables larger than what they index
    gguf("layers_2_31", lambda g: g.set(a + "block_count", U32, u32(1 << 31)), data=True)
    gguf("heads_kv_array", lambda g: g.set(a + "attention.head_count_kv", ARR, array(U32, [1])), data=True)
    gguf("heads_kv_short_array", lambda g: g.set(a + "attention.head_count_kv", ARR, array(U32, [])), data=True)
    gguf("types_fewer_than_tokens", lambda g: g.set(t + "token_type", ARR, array(I32, [1, 1])))
    gguf("scores_fewer_than_tokens", lambda g: g.set(t + "scores", ARR, array(F32, [1])), spm=True)
    # beyond the file
    gguf("offset_beyond", first_at(1 << 40))
    gguf("offset_unaligned", first_at(7))
    gguf("offsets_overlap", lambda g: g.change(2, offset=0), data=True)
    # the vocabulary
    gguf("eos_beyond", lambda g: g.set(t + "eos_token_id", U32, u32(8)))
    gguf("eos_minus_1", lambda g: g.set(t + "eos_token_id", I32, value(I32, -1)))
    gguf("eos_2_63", lambda g: g.set(t + "eos_token_id", U64, u64(big)))
    gguf("merge_of_unknown_tokens", lambda g: g.set(t + "merges", ARR, array(STR, ["q z", "a b"])))
    gguf("merge_without_space", lambda g: g.set(t + "merges", ARR, array(STR, ["ab", " ", ""])))
    gguf("tokens_twice_the_same", lambda g: g.set(t + "tokens", ARR, array(STR, ["a"] * 8)))
    gguf("token_empty", lambda g: g.set(t + "tokens", ARR, array(STR, [""] * 8)))
    gguf("type_of_token_7", lambda g: g.set(t + "token_type", ARR, array(I32, [7] * 8)))
    gguf("byte_token_spelled_wrong", lambda g: g.set(t + "tokens", ARR, array(STR, ["<0xZZ>"] * 8)), spm=True)
    gguf("pre_unknown", lambda g: g.set(t + "pre", STR, value(STR, "of-the-future")))
    gguf("template", lambda g: g.set("tokenizer.chat_template", STR, value(STR, "{{ messages }}")))
    gguf("model_unknown", lambda g: g.set(t + "model", STR, value(STR, "t5")))
    # names
    gguf("tensor_name_empty", lambda g: g.change(1, name=""))
    gguf("tensor_name_64", lambda g: g.change(1, name="n" * 64))
    gguf("tensor_twice", lambda g: g.change(2, name=g.tensors[1]["name"]))
    gguf("key_twice", lambda g: g.keys.append(["general.name", STR, value(STR, "again")]))
    gguf("type_removed_4", lambda g: g.change(1, type=4))
    gguf("type_unknown_99", lambda g: g.change(1, type=99))
    for version in (0, 1, 2, 4, 0x03000000):
        gguf(f"version_{version:x}", lambda g: setattr(g, "version", version), data=version == 2)
    whole = Gguf().bytes()
    for n in (0, 3, 4, 8, 23, 24, 60, 700):
        save("gguf", f"cut_{n}", whole[:n])
    bad = Gguf()
    bad.data = False
    save("gguf", "key_length_minus_1", bad.bytes()[:24] + b"\xff" * 8 + bad.bytes()[32:])


# ---- control messages: msgpack maps ----


def pack(v):
    if isinstance(v, bool):
        return b"\xc3" if v else b"\xc2"
    if v is None:
        return b"\xc0"
    if isinstance(v, int):
        return b"\xcf" + u64be(v) if v >= 0 else b"\xd3" + struct.pack(">q", v)
    if isinstance(v, float):
        return b"\xcb" + struct.pack(">d", v)
    if isinstance(v, bytes):
        return (b"\xc4" + bytes([len(v)]) if len(v) < 256 else b"\xc5" + struct.pack(">H", len(v))) + v
    if isinstance(v, str):
        return b"\xd9" + bytes([len(v.encode())]) + v.encode()
    if isinstance(v, list):
        return b"\xdc" + struct.pack(">H", len(v)) + b"".join(pack(i) for i in v)
    return b"\xde" + struct.pack(">H", len(v)) + b"".join(pack(k) + pack(x) for k, x in v.items())


def u64be(v):
    return struct.pack(">Q", v)


def control_seeds():
    hello = {"t": "hello", "magic": "llmd", "major": 1, "minor": 0, "sqe": 128, "cqe": 64, "sq": 8, "cq": 16,
             "arena": 4096, "inflight": 4, "name": "fuzz"}
    welcome = {"t": "welcome", "major": 1, "minor": 0, "epoch": 1 << 63, "client": 3, "generation": 7, "sq": 8, "cq": 16,
               "arena": 4096, "inflight": 4, "max_len": 2048, "vocab": 49152, "numerics": 5, "model": "tiny"}
    reject = {"t": "reject", "code": -1006, "text": "the engine serves 64 clients, its limit"}

    def put(name, message):
        save("control", name, message if isinstance(message, bytes) else pack(message))

    put("hello", hello)
    put("welcome", welcome)
    put("reject", reject)
    for name, sizes in {"least": (1, 2, 1, 1), "defaults": (0, 0, 0, 0), "most": (4096, 65536, 64 << 20, 32768),
                        "sq_4097": (4097, 0, 0, 0), "cq_65537": (0, 65537, 0, 0), "arena_over": (0, 0, (64 << 20) + 1, 0),
                        "arena_2_32": (0, 0, (1 << 32) - 1, 0), "inflight_32769": (0, 0, 0, 32769),
                        "no_room_for_tokens": (0, 16, 0, 16), "odd": (5, 9, 4097, 3)}.items():
        put("hello_" + name, {**hello, **dict(zip(("sq", "cq", "arena", "inflight"), sizes))})
    put("empty_map", {})
    put("no_type", {k: v for k, v in hello.items() if k != "t"})
    put("type_unknown", {**hello, "t": "goodbye"})
    put("type_is_a_number", {**hello, "t": 1})
    put("magic_wrong", {**hello, "magic": "llmx"})
    put("number_2_32", {**hello, "sq": 1 << 32})
    put("number_negative", {**hello, "arena": -1})
    put("number_is_text", {**hello, "cq": "16"})
    put("number_is_float", {**hello, "cq": 16.5})
    put("number_is_nil", {**hello, "cq": None})
    put("name_64", {**hello, "name": "n" * 64})
    put("name_255", {**hello, "name": "n" * 255})
    put("name_with_nul", {**hello, "name": "a\0b"})
    put("name_is_bytes", {**hello, "name": b"abc"})
    put("code_positive", {**reject, "code": 5})
    put("code_2_31", {**reject, "code": -(1 << 31) - 1})
    put("text_ill_formed", pack({"t": "reject"})[:3 + 2 + 1 + 2 + 6] + b"\xa4text\xd9\x02\xff\xfe")
    put("key_unknown", {**hello, "colour": {"a": [1, 2, {"b": None}]}})
    put("key_is_a_number", b"\x82" + pack("t") + pack("hello") + pack(1) + pack(2))
    put("key_twice", b"\x83" + pack("t") + pack("hello") + (pack("sq") + pack(8)) + (pack("sq") + pack(9)))
    put("list", [1, 2, 3])
    put("number", 7)
    put("deep", b"\x81" + pack("x") + b"\x91" * 2000 + b"\xc0")
    put("map_of_2_32", b"\xdf\xff\xff\xff\xff" + pack("t") + pack("hello"))
    put("text_of_2_32", b"\x81" + pack("t") + b"\xdb\xff\xff\xff\xffhello")
    put("extension", b"\x81" + pack("t") + b"\xc7\x05\x01hello")
    put("trailing", pack(hello) + b"\0")
    put("twice", pack(hello) * 2)
    put("cut", pack(hello)[:-3])
    put("nothing", b"")
    put("never_used_byte", b"\xc1")


# ---- option maps ----


def option_seeds():
    def put(name, data):
        save("option_map", name, data if isinstance(data, bytes) else pack(data))

    one, two = struct.pack("<i", 7), struct.pack("<ii", 1 << 30, -1)
    short = b"\x81\xa6labels"
    put("empty_map", {})
    put("label", {"labels": [one]})
    put("labels", {"labels": [one, two, two * 20]})
    put("labels_64", {"labels": [one] * 64})
    put("labels_65", {"labels": [one] * 65})
    put("labels_none", {"labels": []})
    put("short_heads", short + b"\x92\xc4\x04" + one + b"\xc4\x08" + two)
    put("wide_heads", b"\xdf\0\0\0\1\xdb\0\0\0\6labels\xdd\0\0\0\1\xc6\0\0\0\4" + one)
    put("label_empty", {"labels": [one, b""]})
    put("label_of_3_bytes", {"labels": [b"abc"]})
    put("label_is_text", {"labels": [one, "yes"]})
    put("label_is_a_list", {"labels": [[1, 2]]})
    put("labels_is_nil", {"labels": None})
    put("labels_is_a_map", {"labels": {"a": [one]}})
    put("labels_is_an_ext", short + b"\xc8\0\5\1hello")
    put("labels_twice", b"\x82" + (b"\xa6labels\x91\xc4\x04" + one) * 2)
    put("key_unknown", {"labels": [one], "stoq": ["a", {"b": [1.5, None, True]}]})
    bias = struct.pack("<ifif", 7, -100.0, 1 << 20, 0.5)
    put("all_of_a_generate", {"stop": ["\n\n", b"\0\xff"], "logit_bias": bias, "top_logprobs": 20})
    put("stops_16", {"stop": [b"x" * 256] * 16})
    put("stops_17", {"stop": ["x"] * 17})
    put("stop_empty", {"stop": ["x", ""]})
    put("stop_long", {"stop": [b"x" * 257]})
    put("stop_is_text", {"stop": "x"})
    put("stop_of_lists", {"stop": [["x"]]})
    put("stop_twice", b"\x82" + b"\xa4stop\x91\xa1x" * 2)
    put("bias_none", {"logit_bias": b""})
    put("bias_half", {"logit_bias": bias[:12]})
    put("bias_nan", {"logit_bias": struct.pack("<if", 7, float("nan"))})
    put("bias_large", {"logit_bias": struct.pack("<if", 7, 100.5)})
    put("bias_1024", {"logit_bias": bias * 512})
    put("bias_1025", {"logit_bias": bias * 513})
    put("top_21", {"top_logprobs": 21})
    put("top_negative", {"top_logprobs": -1})
    put("top_wide", b"\x81\xactop_logprobs\xcf\0\0\0\0\0\0\0\x05")
    put("top_2_32", b"\x81\xactop_logprobs\xcf\0\0\0\1\0\0\0\x05")
    put("top_signed", b"\x81\xactop_logprobs\xd1\0\x05")
    put("top_is_a_float", {"top_logprobs": 5.0})
    put("key_is_a_number", b"\x81\x01\x02")
    put("key_is_a_bin", b"\x81\xc4\6labels\x91\xc4\x04" + one)
    put("list", [one])
    put("deep", b"\x81\xa1x" + b"\x91" * 900 + b"\xc0")
    put("map_of_2_32", b"\xdf\xff\xff\xff\xff" + short[1:])
    put("lists_of_2_32", b"\xdd\xff\xff\xff\xff" * 200)
    put("labels_of_2_32", short + b"\xdd\xff\xff\xff\xff\xc4\x04" + one)
    put("label_of_2_32", short + b"\x91\xc6\xff\xff\xff\xff" + one)
    put("label_beyond", short + b"\x91\xc4\x08" + one)
    put("cut_head", short + b"\xdd\0\0")
    put("trailing", pack({"labels": [one]}) + b"\0")
    put("never_used_byte", short + b"\x91\xc1")
    put("nothing", b"")


# ---- text ----


def tokenizer_seeds():
    texts = {
        "words": "The quick brown fox didn't jump; it's 12345 o'clock.",
        "special": "<s>a</s><|im_start|>user\n<|endoftext|><0x0A><unk>\u2581",
        "spaces": "  a   b\t\tc \r\n\r\n  d\n\n\n   ",
        "unicode": "\u4f60\u597d \u0440\u0443\u0441 \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u00e9 \ud55c\uae00 \u0e44\u0e17\u0e22",
        "marks": "a" + "\u0301" * 40 + "\u0327\u0323q\u0300",
        "digits": "1234567890" * 6 + "\u0661\u0662\u0663 \u00bd\u2167",
        "long_word": "ab" * 300,
        "code": "for (int i=0;i<10;i++){\n\tx+=a[i];\n}//\u00a0",
        "cases": "'s'T'RE'Ve'M'Ll'D \u017f\u2019s HELLOWorld helloWORLD",
    }
    raw = {
        "nul": b"a\0\0b\0",
        "lone_bytes": bytes(range(0x80, 0x100)),
        "overlong": b"\xc0\x80\xe0\x80\xaf\xf0\x80\x80\xaf\xc1\xbf",
        "surrogates": b"\xed\xa0\x80\xed\xb0\x80\xed\xbf\xbf",
        "beyond_unicode": b"\xf4\x90\x80\x80\xf5\x80\x80\x80\xff\xfe",
        "cut_characters": b"\xe4\xbd a \xf0\x9f\x91 b \xc3",
        "noncharacters": "\ufffe\uffff\U0010ffff\ufeff".encode(),
        "nothing": b"",
    }
    raw.update({k: v.encode() for k, v in texts.items()})
    for i, (name, data) in enumerate(sorted(raw.items())):
        for vocabulary in (i % 6, 4):  # 4 is the SentencePiece one
            flags = (i * 37 + vocabulary) & 127
            save("tokenizer", f"{name}_{vocabulary}", bytes([flags, vocabulary, 1 + i * 3]) + data)


# ---- vocabulary images: bytes of a good one changed ----


def image_seeds():
    fields = {"magic": 0, "version": 8, "kind": 12, "bytes": 16, "n_tokens": 24, "n_merges": 28, "n_eog": 32, "flags": 36,
              "bos": 40, "eos": 44, "unk": 56, "pad": 60, "pre": 64, "model": 128, "text_end_off": 256, "types_off": 264,
              "scores_off": 272, "merge_end_off": 280, "eog_off": 288, "strings_off": 296, "strings_bytes": 304,
              "merge_strings_off": 312, "merge_strings_bytes": 320, "template_off": 328, "template_bytes": 336}

    def put(name, spm, *changes):
        data = bytes([spm])
        for at, v in changes:
            data += struct.pack("<HB", at, v)
        save("vocab_image", name, data)

    put("good_bpe", 0)
    put("good_spm", 1)
    for i, (name, at) in enumerate(fields.items()):
        put(f"{name}_ff", i & 1, *((at + b, 255) for b in range(4)))
        if name.endswith(("off", "bytes")):
            put(f"{name}_high", i & 1, (at + 7, 0x80))
            put(f"{name}_by_one", i & 1, (at, 0x59))
    put("pre_unterminated", 0, *((64 + b, 65) for b in range(64)))
    put("kind_swapped", 0, (12, 2))
    put("kind_swapped_back", 1, (12, 1))
    put("texts_descend", 0, (344, 9), (348, 1))
    put("type_0", 0, (372, 0))
    put("type_99", 1, (372, 99))


# ---- rings: see enum command in the fuzzers ----


def ring_seeds():
    cursor, scribble, byte, entry, tokens, publish, drain, sweep, step, all_, sleep, honest, poll, leave, join, gpu = range(16)
    generate, score, cancel = 1, 2, 3

    def put(name, *parts):
        save("rings", name, b"".join(bytes([p]) if isinstance(p, int) else bytes(p) for p in parts))

    def send(op, id_, at, n, most, extra=()):
        return [entry, op, id_, at, n, most, *extra]

    def move(which, v, flags=0):
        return [cursor, which | flags, *struct.pack("<I", v & 0xFFFFFFFF)]

    run = [sweep, step, step, all_, poll]
    put("nothing", 0)
    put("honest_alone", 0, run * 4, honest, run * 4)
    put("generate", 1, [tokens, 0, 40, 3], send(generate, 1, 0, 20, 9), run * 3, [drain, 0], run)
    put("choices", 0, [tokens, 0, 40, 3], send(generate | 16, 1, 0, 20, 9, [4]), run * 4, [drain, 0], run)
    put("choices_too_many", 0, send(generate | 16, 1, 0, 20, 9, [6]), run)
    put("score", 1, [tokens, 0, 60, 3], send(score, 2, 4, 50, 0), run * 6, [drain, 0], run)
    put("cancel", 0, [tokens, 0, 60, 3], send(generate, 1, 0, 30, 20), run, send(cancel, 2, 0, 0, 0, [1]), run)
    put("cancel_nothing", 0, send(cancel, 2, 0, 0, 0, [9]), run)
    put("nops", 1, [entry, 0, 1, 0, 0, 0] * 5, run, [drain, 0], [entry, 0, 1, 0, 0, 0] * 5, run)
    put("never_reads", 0, [tokens, 0, 60, 3], (send(generate, 1, 0, 8, 50) + run) * 4, run * 30)
    put("reads_late", 0, [tokens, 0, 60, 3], send(generate, 1, 0, 8, 50), run * 30, sleep, [drain, 0], run * 30)
    put("head_by_ones", 0, [tokens, 0, 60, 3], send(generate, 1, 0, 8, 50), (run + [drain, 1]) * 12)
    put("tail_far", 0, move(0, 9, 8), sweep)
    put("tail_wraps", 1, move(0, 0x80000000, 8), sweep)
    put("tail_back", 0, [entry, 0, 1, 0, 0, 0] * 3, sweep, move(0, -1, 8), sweep)
    put("tail_over_nothing", 1, [publish, 8], run)
    put("head_far", 0, move(1, 1, 12), run)
    put("head_back", 0, [entry, 0, 1, 0, 0, 0] * 3, run, [drain, 0], run, move(1, -3, 12), run)
    put("wait_kinds", 0, move(2, 1), run, move(2, 2), run, move(2, 77), run, sleep)
    put("sequence_wrong", 0, [entry, 0, 1, 0, 0, 0], [byte, 8, 0x10, 5], run)
    put("op_unknown", 0, [entry, 0, 1, 0, 0, 0], [byte, 12, 0x10, 200], run)
    put("reserved_set", 0, [entry, 0, 1, 0, 0, 0], [byte, 120, 0x10, 1], run)
    put("temperature_nan", 0, send(generate, 1, 0, 8, 9), [scribble, 18, 4, 0, 0, 0xC0, 0x7F], run)
    put("choices_65535", 0, send(generate, 1, 0, 8, 9), [byte, 48, 0x10, 255], [byte, 49, 0x10, 255], run)
    put("span_beyond", 0, send(generate, 1, 255, 255, 9), run)
    put("span_2_32", 0, send(generate, 1, 0, 8, 9), [scribble, 7, 4, 0xFC, 255, 255, 255], run)
    put("span_long", 0, send(generate, 1, 0, 8, 9), [scribble, 8, 4, 0, 0, 0, 0x40], run)
    put("too_long", 0, send(generate, 1, 0, 60, 60), run)
    put("token_outside", 0, [scribble, 0, 5, 255, 255, 255, 127], send(generate, 1, 0, 8, 9), run)
    put("entry_changed_while_waiting", 0, [tokens, 0, 60, 3], send(generate | 16, 1, 0, 8, 9, [5]), sweep,
        send(generate | 16, 2, 0, 8, 9, [5]), sweep, [byte, 0xB0, 0x10, 1], run * 4)
    put("leaves_at_work", 0, [tokens, 0, 60, 3], send(generate | 16, 1, 0, 20, 20, [3]), run, leave, run, join, run,
        send(generate, 1, 0, 8, 9), run)
    put("device_fails", 0, [tokens, 0, 60, 3], send(generate, 1, 0, 8, 9), sweep, step, gpu, step, all_, poll, honest, run)

    submit, reserve, cancel_, poll_, arm, take, completion, publish_, cursor_, scribble_, byte_, pulse = range(12)

    def down(name, *parts):
        data = b"".join(bytes([p]) if isinstance(p, int) else bytes(p) for p in parts)
        save("completions", name, data)
        save("completions", "resume_" + name, bytes([data[0] | 2]) + data[1:])

    def write(which, v, flags=0):
        return [cursor_, which | flags, *struct.pack("<I", v & 0xFFFFFFFF)]

    token, done, error = 0, 1, 2 | 8
    choice = 32
    down("nothing", 0)
    down("answered", 1, [submit, 1, 8, 1], take, [completion, token, 1, 0], [completion, done, 1, 1], [publish_, 0], poll_)
    down("choices", 0, [submit, 1, 8, 3], take, [completion, done, 1, 0], [completion, done | choice, 1, 0],
         [completion, error | 2 * choice, 1, 0], [publish_, 0], poll_)
    down("choice_twice", 0, [submit, 1, 8, 2], [completion, done, 1, 0] * 2, [publish_, 0], poll_)
    down("choice_beyond", 0, [submit, 1, 8, 2], [completion, done | 7 * choice, 1, 0], [publish_, 0], poll_)
    down("tokens_after_the_end", 0, [submit, 1, 8, 2], [completion, done, 1, 0], [completion, token, 1, 0], [publish_, 0], poll_)
    down("nobody_asked", 0, [completion, done, 9, 0], [publish_, 0], poll_)
    down("another_id", 1, [submit, 1, 8, 1], [completion, done, 9, 0], [publish_, 0], poll_)
    down("cancel", 0, [submit, 5, 8, 1], [cancel_, 5], take, [completion, done, 5, 0], [completion, done, 1, 0],
         [publish_, 0], poll_)
    down("tokens_for_a_cancel", 0, [submit, 5, 8, 1], [cancel_, 5], [completion, token, 1, 0], [publish_, 0], poll_)
    down("tail_far", 0, [submit, 1, 8, 1], [publish_, 17], poll_)
    down("tail_over_nothing", 0, [submit, 1, 8, 1], [publish_, 3], poll_)
    down("tail_back", 1, [submit, 1, 8, 1], write(1, -1, 12), poll_)
    down("head_far", 0, [submit, 1, 8, 1] * 2, write(0, 9, 8), [reserve, 8], [submit, 2, 8, 1])
    down("ring_full", 0, [x for i in range(1, 10) for x in (submit, i, 8, 1)])
    down("arena_full", 0, [submit, 1, 90, 1], [submit, 2, 60, 1], take, [reserve, 60], [submit, 2, 60, 1], [submit, 3, 60, 1])
    down("in_place", 1, [reserve, 50], [submit, 1, 0, 1], take, [reserve, 70], [reserve, 20], [submit, 2, 0, 1])
    down("evicted", 0, [submit, 1, 8, 3], [completion, done, 1, 0], [publish_, 0], write(3, 1), poll_, [submit, 2, 8, 1])
    down("evicted_text", 0, [scribble_, 66, 0, 65, 0xFF, 10, 7], [submit, 1, 8, 3], write(3, 0xFFFFFFFF), poll_)
    down("geometry_changed", 0, [submit, 1, 8, 3], [scribble_, 6, 0, 255, 255, 255, 255], [scribble_, 7, 0, 1, 0, 0, 0], poll_,
         [submit, 2, 8, 1])
    down("armed", 0, [submit, 1, 8, 1], arm, [completion, token, 1, 0], [publish_, 0], arm, poll_, arm, poll_)
    down("pulse", 0, [submit, 1, 8, 1], [pulse, 32, 1, 0, 0, 0], [submit, 2, 8, 1], [pulse, 16, 3, 0, 0, 0], poll_, arm, poll_)
    down("sequence_wrong", 0, [submit, 1, 8, 1], [completion, done, 1, 0], [byte_, 8, 0x10, 5], [publish_, 0], poll_)
    down("count_65535", 0, [submit, 1, 8, 1], [completion, token, 1, 0], [byte_, 20, 0x10, 255], [publish_, 0], poll_)
    down("count_5", 0, [submit, 1, 8, 1], [completion, token | 24, 1, 0], [publish_, 0], poll_)
    down("error_without_code", 0, [submit, 1, 8, 1], [completion, 2, 1, 0], [publish_, 0], poll_)


# ---- configuration files ----


def config_seeds():
    def put(name, data, flags=1):
        save("config", name, bytes([flags]) + (data.encode() if isinstance(data, str) else data))

    with open(os.path.join(HERE, "..", "..", "etc", "llmd.conf"), "rb") as f:
        put("example", b"\n".join(line.lstrip(b"# ") if b" = " in line else b"" for line in f.read().split(b"\n")), 0)
    put("every_option", "model = /a b/c.gguf\ninstance = i.1\nserved-model-name = n\nbackend = cpu-plain\nthreads = 1\n"
        "cpu-list = 0-1,3\nio-cpu = 3\nrt-priority = 7\nmlock = yes\nhuge-pages = thp\nmax-model-len = 100\nmax-num-seqs = 5\n"
        "max-num-batched-tokens = 4\nprefill-chunk = 7\nactivations = f32\nkv-cache-dtype = f32\nkv-cache-memory = 2G\n"
        "max-requests = 11\nmax-clients = 3\nidle-spin-us = 9\nio = epoll\nlog-level = debug\nlog-json = on\n", 0)
    put("nothing", "")
    put("no_model", "threads = 1\n", 0)
    put("heading", "[llmd]\nthreads = 1\n")
    put("other_heading", "[server]\nthreads = 1\n")
    put("heading_open", "[llmd\nthreads = 1\n")
    put("comments", "# a\n; b\n  # c\nthreads = 1 # d\nmlock = no ; e\n\n")
    put("model_is_a_comment", "model=#a\n", 0)
    put("model_is_a_semicolon", "model=;a\n", 0)
    put("model_with_signs", "model = a#b;c=d:e\n", 0)
    put("colon", "threads : 1\n")
    put("no_value", "model =\n")
    put("no_pair", "threads\n")
    put("no_name", "= 5\n")
    put("indented", "model = a\n  b\n   threads = 1\n")
    put("twice", "threads = 1\nthreads = 2\n")
    put("unknown", "thraeds = 1\n")
    put("unknown_long", "t" * 300 + " = 1\n")
    put("dashes", "--threads = 1\n")
    put("command_line_only", "check-config = yes\n")
    put("itself", "config = /etc/llmd.conf\n")
    put("number_2_64", "threads = 18446744073709551617\n")
    put("number_negative", "threads = -1\n")
    put("number_hex", "threads = 0x10\n")
    put("number_out_of_range", "max-clients = 1025\n")
    put("size_2_64", "kv-cache-memory = 16777216T\n")
    put("size_units", "kv-cache-memory = 4GiB\n")
    put("two_sizes", "kv-cache-memory = 4G\nnum-kv-blocks = 5\n")
    put("cpus_twice", "cpu-list = 0,0\n")
    put("cpus_backwards", "cpu-list = 3-1\n")
    put("cpus_many", "cpu-list = 0-1023\n")
    put("cpus_2_32", "cpu-list = 4294967296\n")
    put("cpus_all", "cpu-list = " + ",".join(str(i) for i in range(0, 1023, 2)) + "\n", 3)
    put("threads_over_cpus", "cpu-list = 0-1\nthreads = 3\n", 3)
    put("word_unknown", "activations = int4\n")
    put("switch_unknown", "mlock = maybe\n")
    put("byte_order_mark", b"\xef\xbb\xbfthreads = 1\n")
    put("carriage_returns", "threads = 1\r\nmlock = yes\r\n")
    put("zero_byte", b"threads = 1\0\n")
    put("no_text", bytes(range(1, 256)))
    put("no_line_end", "threads = 1")
    put("long_line", "model = " + "a" * 4500 + "\n")
    put("long_model", "model = " + "a" * 4095 + "\n", 0)
    put("long_texts", "model = " + "a" * 4000 + "\nserved-model-name = " + "b" * 127 + "\ninstance = " + "c" * 48 + "\n", 0)
    put("many_lines", "\n" * 10001)


if __name__ == "__main__":
    gguf_seeds()
    control_seeds()
    option_seeds()
    tokenizer_seeds()
    image_seeds()
    ring_seeds()
    config_seeds()
