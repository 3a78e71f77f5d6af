"""What the verbs of the command line do, as calls: train, tilt, measure, distil, finetune, analyse, rescore, translate."""
