"""Energies E(x) over whole sequences: declared features, trained networks, or the logits of a base.

features               features, log-linear energies, sums of energies
feature_spec           declared features: YAML, command line, folders (without torch)
declared_features      features and exact tallies from declarations, classifiers, a cache; `text_scorers` scores texts
motif_features         the seven features of Parshakova et al. (2019)
translation_features   features of a translation and its source
config                 settings of network energies and task heads (without torch)
network                network energies on `encoders`; `pretrained` loads Hugging Face folders
self_energy            minus the logsumexp of a base's own logits
task_heads             classification, spans and ranking on the same encoders
serialization          folders of energies
"""
