"""Energies E(x) over whole sequences: written down, learnt, or read from the logits of a base.

features and their weights    features, reading, cached, motif_features, source_features, conditional
features in words             declaration, parsing, content, judges, classifier, declared, tallies
networks                      config, readers, encoder, pretrained, adapters, network, building
a base's own logits           own_level
labels by the same readers    labeller_config, labeller
folders                       origin, saved, saved_network, saved_reader
energies add                  algebra
"""
