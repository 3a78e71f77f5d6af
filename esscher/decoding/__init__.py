"""Decoders: choose one sequence to show for each prompt; no estimate is made of what they return.

beam_search   beam search and greedy decoding
decoders      the `Decoder` protocol, and choices among draws: random, best of n, minimum Bayes risk
rescoring     choice among given candidates by a weighted sum of scores
registry      the decoders by name
"""
