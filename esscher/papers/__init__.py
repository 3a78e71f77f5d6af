"""Recipes that reproduce papers: one folder a paper, and this registry of them, which imports no torch. A recipe is a function
of a `StudyContext` that writes `report.html` and returns its tables, our rows beside the published ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from esscher.core.config import to_dict
from esscher.core.distributed import is_main_process, world_size
from esscher.reports.report import PAGE, Report, to_json

if TYPE_CHECKING:
    from esscher.workflow.cost import Cost

SCALES = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Recipe:
    """A recipe by name; `smoke` ends within minutes on two cores, `paper` is the published size."""

    name: str
    entry: str  # "module:function" in this package
    paper: str
    about: str
    scales: tuple[str, ...] = SCALES
    data_scales: tuple[str, ...] = ()  # at which --data may name a text of the user
    single_process_reason: str = ""  # why it cannot run in several processes
    minutes: Mapping[str, float] = field(default_factory=lambda: {"smoke": 1.0})  # of a seed by scale, on two idle cores

    def check(self, *, scale: str, seeds: int, data: str | None = None) -> None:
        """Refuse what the recipe cannot do."""
        if scale not in self.scales:
            raise ValueError(f"Recipe {self.name!r} has no scale {scale!r}. Its scales are: {', '.join(self.scales)}.")
        if seeds < 1:
            raise ValueError(f"A recipe needs at least one seed; got --seeds {seeds}.")
        if data is not None and scale not in self.data_scales:
            scales = ", ".join(self.data_scales)
            taken = f" at the scale {scale!r}; it takes a text of yours at: {scales}" if scales else ""
            raise ValueError(f"Recipe {self.name!r} has data of its own{taken}. Nothing was run; leave --data out.")
        if world_size() > 1 and self.single_process_reason:
            raise ValueError(
                f"{world_size()} processes were started, and recipe {self.name!r} is for one: {self.single_process_reason}. "
                f"Nothing was run; start one process."
            )

    def run(self, *, scale: str, out: Path, seeds: int, data: str | None = None) -> dict[str, Any]:
        """Run at a scale with `seeds` seeds; returns the tables by name, among them "rows" and "paper"."""
        self.check(scale=scale, seeds=seeds, data=data)
        from esscher.papers.study import StudyContext

        out.mkdir(parents=True, exist_ok=True)
        module, _, function = self.entry.partition(":")
        run = getattr(import_module(f"esscher.papers.{module}"), function)
        return cast(dict[str, Any], run(StudyContext(scale=scale, out=out, seeds=seeds, data=data)))


GAM = "Global autoregressive models (Parshakova et al., 2019)"
RESIDUAL = "Residual energy-based models (Deng et al., 2020; Bakhtin et al., 2021)"
EFORCING = "E-Forcing (Anonymous, 2023)"
WHOLE_BATCHES = "its games read whole batches"
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("quickstart", "quickstart.recipe:run", "-", "a rule that no next-token model learns; a text model tilted",
               minutes={"smoke": 1.0, "small": 3.0}),
        Recipe("gam", "gam.recipe:run_gam", GAM, "strings with a motif: feature weights and distilled students",
               single_process_reason="its policy gradients have one prompt, which cannot be shared",
               scales=("smoke", "small", "weak", "paper"), minutes={"smoke": 1.0, "small": 35.0, "weak": 4.0}),
        Recipe("laboratory", "gam.recipe:run_entropies", GAM, "exact entropies of the motif processes"),
        Recipe("residual", "residual.recipe:run", RESIDUAL, "energies over continuations beside plain models of equal size",
               scales=("smoke", "small", "plateau", "converged", "pretrained", "paper"), data_scales=("pretrained", "paper"),
               minutes={"smoke": 1.0, "converged": 25.0}),
        Recipe("residual-analyses", "residual.analyses:run", RESIDUAL, "one energy: bounds, steps, histograms, classifiers",
               scales=("smoke", "small"), single_process_reason="its classifiers are trained by one"),
        Recipe("residual-laboratory", "laboratory.residual:run", "Residual energy-based models (Deng et al., 2020)",
               "trained energies against exact entropies, coverage and pools"),
        Recipe("transformer-xl", "transformer_xl.recipe:run_transformer_xl", "Transformer-XL (Dai et al., 2019)",
               "what a memory is worth on one long text"),
        Recipe("local-xl", "transformer_xl.recipe:run_local_xl", "Local-XL (thesis of Dai, 2020); Wu et al. (2019)",
               "local attention and convolutions beside Transformer-XL"),
        Recipe("xlnet", "xlnet.recipe:run_xlnet", "XLNet (Yang et al., 2019)",
               "pretraining objectives for one network, fine-tuning on tasks, and a pretrained energy",
               minutes={"smoke": 1.0, "small": 50.0}),
        Recipe("xlnet-spans", "xlnet.spans:run", "XLNet (Yang et al., 2019)",
               "what independent predictions cost: exact divergences of spans under permutation and denoising"),
        Recipe("local-xlnet", "xlnet.recipe:run_local_xlnet", "Local-XLNet (thesis of Dai, 2020)",
               "the permutation LM with local attention"),
        Recipe("softmax-bottleneck", "softmax_bottleneck.recipe:run", "Breaking the softmax bottleneck (Yang et al., 2018)",
               "one softmax, mixtures of contexts and of softmaxes: ranks and perplexities"),
        Recipe("eforcing-laboratory", "eforcing.laboratory:run", EFORCING,
               "does E-Forcing generalise better? Exact divergences from known processes, by number of strings",
               single_process_reason="its networks are trained side by side", minutes={"smoke": 1.0, "small": 25.0}),
        Recipe("eforcing-lm", "eforcing.language:run_language", EFORCING,
               "a model as its own energy-based model, beside other objectives", data_scales=("paper",),
               minutes={"smoke": 1.8, "small": 19.0}),
        Recipe("eforcing-translation", "eforcing.translation:run", EFORCING,
               "E-Forcing on translation: BLEU, lengths, exposure; mixtures as heads of a decoder",
               minutes={"smoke": 1.0, "small": 17.0}),
        Recipe("eforcing-images", "eforcing.images:run", EFORCING, "E-Forcing on images: three kinds of PixelCNN"),
        Recipe("eforcing-backbones", "eforcing.language:run_backbones", EFORCING, "E-Forcing on seven kinds of networks",
               minutes={"smoke": 2.1, "small": 18.0}),
        Recipe("energy-gan", "energy_gan.recipe:run", "Calibrating energy-based GANs (Dai et al., 2017)",
               "does a discriminator know the density?", single_process_reason=WHOLE_BATCHES),
        Recipe("energy-gan-images", "energy_gan.images:run", "Calibrating energy-based GANs (Dai et al., 2017)",
               "probes of discriminators by layer, and images of one digit by energy", single_process_reason=WHOLE_BATCHES),
        Recipe("energy-gan-gradients", "energy_gan.gradients:run", "Calibrating energy-based GANs (Dai et al., 2017)",
               "entropy gradients by neighbours and by an inference net", scales=("smoke", "small"),
               single_process_reason=WHOLE_BATCHES),
        Recipe("bad-gan", "bad_gan.recipe:run", "Good semi-supervised learning that requires a bad GAN (Dai et al., 2017)",
               "classification from few labels beside a generator", single_process_reason=WHOLE_BATCHES),
        Recipe("coverage", "laboratory.coverage:run", "Residual energy-based models (Bakhtin et al., 2021)",
               "do the intervals cover the exact value?"),
        Recipe("intervals", "laboratory.interval_laws:run", "Residual energy-based models (Bakhtin et al., 2021)",
               "do the intervals cover on 40 laws of weights and texts, and does the verdict tell when?"),
        Recipe("risk", "laboratory.risk:run", "-", "do the intervals of rare events cover at 1e-3, 1e-6 and 1e-9?",
               minutes={"smoke": 0.5, "small": 25.0}),
        Recipe("risk-stories", "laboratory.risk_stories:run", "-", "rare events of a story model, beside a ladder with MBAR",
               minutes={"small": 25.0}),
    )
}  # fmt: skip


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; an unknown one is an error that lists them all."""
    if name not in RECIPES:
        raise ValueError(f"No recipe named {name!r}. Choose from: {', '.join(RECIPES)}.")
    return RECIPES[name]


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """Run one recipe; its rows, the published ones and the report stay in the run folder."""

    name: str | None = field(default=None, kw_only=False)
    """The recipe; without it, the recipes are listed."""
    list: bool = False
    """List the recipes and stop."""
    scale: str = "smoke"
    """smoke (within minutes), small (two cores), paper (published size), or what the list shows."""
    out: str | None = None
    """Folder of the run; runs/NAME-SCALE by default. An interrupted run goes on there."""
    seeds: int = 1
    """How many seeds to run."""
    data: str | None = None
    """A text of your own, where the recipe takes one at this scale."""


def _cost(recipe: Recipe, settings: ReproduceConfig, out: Path) -> "Cost":
    """The time that the recipe took on the reference machine, times how much slower this one multiplies matrices."""
    from esscher.workflow.calibration import slowdown
    from esscher.workflow.cost import Cost, Phase, StepTime

    title, minutes = f"esscher reproduce {recipe.name}", recipe.minutes.get(settings.scale)
    if minutes is None:
        known = ", ".join(f"{scale} {minutes:g}" for scale, minutes in recipe.minutes.items())
        unknown = (
            f"How long {recipe.name} takes at the scale {settings.scale} is not recorded: expect hours, at paper days. "
            f"An interrupted run goes on with the same command. Minutes of a seed at other scales: {known}."
        )
        return Cost(title, (), str(out), unknown=unknown)
    factor = slowdown()
    each = StepTime.of([60 * minutes * factor])
    note = f"By {minutes:g} minutes of a seed on two idle cores; this machine is {factor:.2g} times as slow at the moment."
    return Cost(title, (Phase("recipe", settings.seeds, "seeds", each),), str(out), notes=(note,))


def reproduce(settings: ReproduceConfig) -> Report:
    """Run a recipe and return its tables, ours beside the published ones; without a name, list the recipes."""
    if settings.list or settings.name is None:
        rows = [{"name": r.name, "paper": r.paper, "scales": r.scales, "about": r.about} for r in RECIPES.values()]
        return Report("recipes", {}, {"recipes": rows})
    recipe = find_recipe(settings.name)
    out = Path("runs") / f"{recipe.name}-{settings.scale}" if settings.out is None else Path(settings.out)
    recipe.check(scale=settings.scale, seeds=settings.seeds, data=settings.data)
    from esscher.workflow.cost import before_start, unannounced

    before_start(lambda: _cost(recipe, settings, out))
    with unannounced():
        result = recipe.run(scale=settings.scale, out=out, seeds=settings.seeds, data=settings.data)
    if is_main_process():
        (out / "result.json").write_text(json.dumps(to_json(result), indent=1) + "\n", encoding="utf8")
    shown = {name: rows for name, rows in result.items() if rows and name != "notes"}
    report = Report(f"{recipe.name}, {settings.scale}", {}, shown, result.get("notes", ()), json_tables=result)
    return report.save(out, to_dict(settings), own_page=(out / PAGE).exists())
