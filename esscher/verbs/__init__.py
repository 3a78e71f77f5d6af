"""What the verbs do, as calls: train, tilt, measure, sample, distil, finetune, analyse, rescore, translate."""
