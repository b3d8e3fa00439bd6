#!/usr/bin/env python3
"""A tiny Llama with random weights and its tokenizer, in Hugging Face format.   usage: make_model.py DIR

Random weights are what a test of routing wants: the answer depends on every byte of the KV cache,
so KV that was lost, cut or mixed up changes the greedy tokens at once, where a trained model would
often carry on as if nothing had happened. The seed is fixed: the same model every time.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
MAX_TOKENS = 8192

# Enough text for some multi-byte merges. Every other byte stays a token of its own, so any UTF-8 works.
CORPUS = [
    "It was a quiet morning at the lock, and the keeper counted the boats that waited for the water to rise.",
    "One gate holds the river back while the other gate lets the barges through, a few at a time.",
    "You are a careful assistant. Answer in one short sentence. What is the height of the dam?",
    "user assistant system tool 0 1 2 3 4 5 6 7 8 9 10 11 12 16 24 32 64 128",
] * 4

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] if m['content'] is string else '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_TOKENS,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        # Ten times the usual spread: logits far apart, so that rounding never decides a greedy token.
        initializer_range=0.2,
        dtype="float32",
    )
    return LlamaForCausalLM(config).float()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    made_tokenizer = make_tokenizer()
    made_tokenizer.save_pretrained(sys.argv[1])
    make_model(made_tokenizer).save_pretrained(sys.argv[1])
