"""Samplers: weighted draws from a tilted model. Every sampler is a frozen dataclass whose fields are its settings.

ancestral        exact draws of a base, the proposal of all others
importance       weighted draws of a proposal; exhaustive enumeration
sir              sampling-importance-resampling, with a fixed or an adaptive number of candidates
accept_reject    rejection, quasi-rejection, Metropolis-Hastings
particles        sequential Monte Carlo, resampling and pruning; `twists` guesses the energy of unfinished sequences
scoring          log-probabilities and energies of many sequences, in batches
progress         progress reports of a running sampler
registry         the samplers by name
"""
