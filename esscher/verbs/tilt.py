"""The whole of `esscher tilt`, in one call: base, data, energy, what it is worth, energy folder.

    tilt("runs/first", TiltRun(out="runs/energy"))

With features the energy is log-linear in them (`esscher.verbs.fitting`); without, a network learns it
(`esscher.verbs.contrast`), and the folder then also holds `tilt.yaml`, `history.jsonl` and checkpoints to resume from.
"""

from dataclasses import asdict, replace
from pathlib import Path

from esscher.data.parallel import read_pairs
from esscher.energies.building import build_energy, reads_both_sides
from esscher.energies.declaration import Declared
from esscher.energies.declared import declared_features
from esscher.energies.network import NetworkEnergy
from esscher.energies.saved import SavedEnergy, base_digest, save_energy
from esscher.energies.saved_network import Origin, save_network_energy
from esscher.randomness import Seeded
from esscher.settings.data import DataConfig
from esscher.settings.tilt import TiltRun
from esscher.settings.train import TrainRun
from esscher.space import Sequences
from esscher.training.processes import all_here
from esscher.training.progress import choose_progress
from esscher.verbs.contrast import LearntEnergy, Sets, learn_energy
from esscher.verbs.fitting import FittedEnergy, fit_energy
from esscher.verbs.models import Model, load_model
from esscher.verbs.run_folder import TILT_SETTINGS, keep_settings, read_settings, refuse_other_settings, settings_of
from esscher.verbs.training_data import prepare, read_parallel, read_splits, read_whole
from esscher.verbs.training_images import image_units, read_image_sets


def tilt(model: str, run: TiltRun, *, resume: bool = False, quiet: bool = False) -> FittedEnergy | LearntEnergy:
    """Tilt the base in the folder `model` as the settings say, and save the energy in `run.out`."""
    loaded, declared = load_model(model, cut=run.cut, sharded=run.training.sharded), run.declared()
    if declared:
        return _fit(loaded, declared, run, quiet)
    return _learn(loaded, run, resume, quiet)


def _fit(model: Model, declared: tuple[Declared, ...], run: TiltRun, quiet: bool) -> FittedEnergy:
    wanted = run.wanted()
    features = declared_features(declared, None if model.text is None else model.text.decode)
    data = None if len(wanted) == len(declared) else _points(model, run.source)
    found = fit_energy(model.base, features, data, wanted, run.fit, rng=Seeded(run.seed).stream("tilt"), quiet=quiet)
    known = base_digest(model.base)
    save_energy(run.out, SavedEnergy(declared, found.fit.weights, str(model.folder), known, found.log_z, run.seed, model.cut))
    return found


def _learn(model: Model, run: TiltRun, resume: bool, quiet: bool) -> LearntEnergy:
    folder, settings = Path(run.out), {"model": str(model.folder), **asdict(run)}
    if resume:
        refuse_other_settings(folder / TILT_SETTINGS, settings)
    if run.contrast.prefixes and model.reads_sources:
        raise ValueError(
            f"prefixes = {run.contrast.prefixes} would cut sources, and a part of one has another translation. Nothing was "
            f"learnt; leave them out."
        )
    sets = read_sets(model, run.source)
    choose_progress(quiet).say(f"{len(sets.train):,} sequences to learn from, {len(sets.validation):,} to choose by.")
    energy = build(model, run, int(sets.train.stop.max()))
    all_here()  # nobody writes before all have looked
    keep_settings(folder / TILT_SETTINGS, settings)
    training = replace(run.training, seed=run.seed, sharded=False)  # of the energy each process has all
    found = learn_energy(model.base, energy, sets, run.contrast, training, folder=folder, resume=resume, quiet=quiet)
    assert found.measured.log_z is not None
    origin = Origin(str(model.folder), base_digest(model.base), found.measured.log_z, run.seed, model.cut)
    save_network_energy(folder, energy, origin)
    return found


def build(model: Model, run: TiltRun, longest: int) -> NetworkEnergy:
    """The energy of the settings, which is 0 until it learns; `longest` tokens are the most it will read."""
    start = load_model(run.energy.start).base if run.energy.start else None
    config = run.energy.resolve(both_sides=reads_both_sides(model.base if start is None else start), positions=longest)
    if run.training.sharded and config.reader == "shared":
        raise ValueError(
            "An energy with the reader 'shared' learns on top of the base's own vectors, which a base that is shared out does "
            "not give. Nothing was learnt; choose another reader, or leave training.sharded out."
        )
    if start is None and run.training.sharded and config.starts_from_base:
        start = load_model(model.folder).base  # whole, to be copied
    decode = None if model.text is None else model.text.decode
    return build_energy(config, model.base, start=start, decode=decode, rng=Seeded(run.seed).stream("energy"))


def source_of(energy: str | Path) -> DataConfig | None:
    """The text that an energy learnt from, as its folder says; None means that of its base."""
    told = read_settings(Path(energy) / TILT_SETTINGS)
    if told.get("data") is None:
        return None
    names = ("target", "column", "unit", "separator", "split")
    return DataConfig(told["data"], **{name: told[name] for name in names if name in told})


def read_sets(model: Model, source: DataConfig | None) -> Sets:
    """The data in three parts, cut for this model; without a source, those that its base learnt from."""
    if model.codec is not None:
        learnt = _trained(model)
        train, validation, test = map(model.codec.encode, read_image_sets(source or learnt.data, learnt.images))
        return Sets(train, validation, test, image_units(test))
    if source is None:
        learnt = _trained(model)
        if learnt.data.motif is not None:
            material = prepare(learnt, rng=Seeded(learnt.training.seed).stream("data"))
            return Sets(material.train, material.validation, material.test, material.units)
        source = learnt.data
    if source.target is not None:
        parts = [model.read_pairs(pairs) for pairs in read_parallel(source, source.target)]
    else:
        parts = [model.read(texts.texts) for texts in read_splits(source)]
    return Sets(parts[0].x, parts[1].x, parts[2].x, parts[2].units())


def _points(model: Model, source: DataConfig | None) -> Sequences:
    """All points that moments are taken from: of a source none is held out."""
    if source is None or model.codec is not None:
        return read_sets(model, source).train
    if source.target is not None:
        return model.read_pairs(read_pairs(source.source, source.target, column=source.column)).x
    return model.read(read_whole(source, source.source).texts).x


def _trained(model: Model) -> TrainRun:
    """The settings that the base was trained with."""
    found = settings_of(model.folder)
    if found is None:
        raise ValueError(
            f"{model.folder} does not tell what it was trained on, so there are no data to learn from. Nothing was done; give "
            f"--data, or state moments with --want."
        )
    return found
