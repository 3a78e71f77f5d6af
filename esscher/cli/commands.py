"""All verbs of the command line: for each its settings and the call that takes them. Nothing else lists verbs."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from cyclopts import App, Parameter

from esscher.cli.binding import Chosen, bind, is_optional, settings_from
from esscher.core.config import load_object


@dataclass(frozen=True)
class Call:
    """A function, called with its settings; with the model first, if the verb loads one."""

    settings: str  # "module:Class", in a module without torch; its docstring is the text of --help
    function: str  # "module:function"
    loads: str | None = None  # settings of the model that is loaded first, "module:Class"


@dataclass(frozen=True)
class Command:
    """A verb: its line in the overview, the call, and an example."""

    help: str
    call: Call
    example: str


CONFIG, WORKFLOW = "esscher.workflow.config", "esscher.workflow"
BASE, MODEL = f"{CONFIG}.load:BaseConfig", f"{CONFIG}.load:LoadConfig"
GROUPS = {
    "analyse": "What a tilted model does differently: energies, next tokens, repetition, a classifier; context, rank.",
    "exact": "Exact answers: motif processes, regular languages, n-gram models.",
}
# fmt: off
COMMANDS = {  # in the order of the overview
    "train": Command("Train a base model on text or on an embedded data set; resumes exactly.",
        Call(f"{CONFIG}.train:TrainRun", f"{WORKFLOW}.train:train_base"),
        "esscher train --out runs/mine --data my.txt --training.epochs 5"),
    "tilt": Command("Give a base an energy over whole sequences: a network that learns from text, or weighted features.",
        Call(f"{CONFIG}.tilt:TiltRun", f"{WORKFLOW}.tilt:tilt_model", loads=BASE),
        "esscher tilt runs/first --out runs/energy; features: esscher tilt runs/first --out runs/cats --want contains:cat=0.5"),
    "finetune": Command("Teach a pretrained model a task: classes, numbers, choices, answers in passages, rankings.",
        Call(f"{CONFIG}.finetune:FinetuneRun", f"{WORKFLOW}.finetune:finetune"),
        "esscher finetune runs/xlnet --out runs/authors --data authors.csv"),
    "predict": Command("Predictions of a fine-tuned model for new texts.",
        Call(f"{CONFIG}.finetune:PredictConfig", f"{WORKFLOW}.finetune:predict"),
        "esscher predict runs/authors 'It was a dark night.'; esscher predict runs/answers --data new.jsonl"),
    "distil": Command("Turn a tilted model back into a plain one that serves at the old speed.",
        Call(f"{CONFIG}.distil:DistilRun", f"{WORKFLOW}.distil:distil_model", loads=MODEL),
        "esscher distil runs/first --energy runs/cats --out runs/plain-cats"),
    "sample": Command("Draw from a model, tilted or not, with log-probabilities and weights.",
        Call(f"{CONFIG}.sample:SampleConfig", f"{WORKFLOW}.sample:sample_model", loads=MODEL),
        "esscher sample runs/first --energy runs/energy --prompts 'Return the' --draws 4 --top-k 50"),
    "score": Command("Log-probabilities and energies of given texts.",
        Call(f"{CONFIG}.sample:ScoreConfig", f"{WORKFLOW}.sample:score_model", loads=MODEL),
        "esscher score runs/first --energy runs/energy --texts 'Return the name.'"),
    "explore": Command("A page to look at a model with: candidates, tokens, energies, a distilled model beside.",
        Call("esscher.explorer.config:ExploreRun", "esscher.explorer.page:explore_folder"),
        "esscher explore runs/quickstart/hash"),
    "compare": Command("People judge texts of two models blind; preference rates with intervals and p-values.",
        Call("esscher.explorer.config:CompareConfig", "esscher.explorer.blind_comparison:compare"),
        "esscher compare runs/first runs/plain --prompts prompts.txt --out runs/judged"),
    "measure": Command("Perplexity and bits of a model on data, with intervals, per token, word and byte.",
        Call(f"{CONFIG}.measure:MeasureConfig", f"{WORKFLOW}.measure:measure_model", loads=MODEL),
        "esscher measure runs/first --data my.txt"),
    "risk": Command("How likely a model produces a text with an event, however rare, with an interval and a verdict.",
        Call(f"{CONFIG}.risk:RiskConfig", f"{WORKFLOW}.risk:risk_model", loads=BASE),
        "esscher risk runs/first --event contains:dragon --prompt 'Once upon a time' --out runs/risk"),
    "serve": Command("A model, tilted or not, behind an endpoint that speaks OpenAI's completions.",
        Call("esscher.serving.config:ServeConfig", "esscher.serving.engine:serve_model", loads=MODEL),
        "esscher serve runs/first --energy runs/energy --port 8000"),
    "rescore": Command("Choose among the candidates of n-best lists: tuned weights, word error rate or BLEU with intervals.",
        Call(f"{CONFIG}.translate:RescoreConfig", f"{WORKFLOW}.rescore:rescore_lists"),
        "esscher rescore lists.jsonl --base runs/first --energy runs/energy --out scored.jsonl"),
    "translate": Command(
        "Translate sentences or a file with a base that reads a source: beam search, draws, minimum Bayes risk.",
        Call(f"{CONFIG}.translate:TranslateConfig", f"{WORKFLOW}.translate:translate_model", loads=MODEL),
        "esscher translate runs/fr-en --file my.fr --out my.en; esscher translate runs/fr-en 'Il pleut.'"),
    "evaluate": Command("How good a translation is: BLEU, chrF, TER, ROUGE, METEOR with intervals, by length, beside another.",
        Call(f"{CONFIG}.translate:EvaluateConfig", f"{WORKFLOW}.evaluate:evaluate"),
        "esscher evaluate translated.txt references.txt --metrics bleu chrf rougeL --against baseline.txt"),
    "analyse energies": Command("Whether base and tilted model have the energies of the data.",
        Call(f"{CONFIG}.analyse:EnergiesConfig", f"{WORKFLOW}.analyse:analyse_energies", loads=MODEL),
        "esscher analyse energies runs/first --energy runs/tilted --data my.txt"),
    "analyse next-token": Command("What comes next under the base, and under the tilted model.",
        Call(f"{CONFIG}.analyse:NextTokenConfig", f"{WORKFLOW}.analyse:analyse_next_token", loads=MODEL),
        "esscher analyse next-token runs/first --energy runs/tilted --prompt 'Return the'"),
    "analyse n-grams": Command("How much data, base and tilted model repeat themselves.",
        Call(f"{CONFIG}.analyse:NgramsConfig", f"{WORKFLOW}.analyse:analyse_ngrams", loads=MODEL),
        "esscher analyse n-grams runs/first --energy runs/tilted --data my.txt --plot n-grams.png"),
    "analyse discriminate": Command("Whether a fresh classifier tells the draws of base and tilted model from data.",
        Call(f"{CONFIG}.analyse:DiscriminateConfig", f"{WORKFLOW}.analyse:analyse_discriminate", loads=MODEL),
        "esscher analyse discriminate runs/first --energy runs/tilted --data my.txt --training.steps 300"),
    "analyse context": Command("How far back the context of models helps.",
        Call(f"{CONFIG}.analyse:ContextConfig", f"{WORKFLOW}.analyse_bases:analyse_context"),
        "esscher analyse context runs/first runs/second --data my.txt --plot context.png"),
    "analyse rank": Command("Whether the head of models is a bottleneck.",
        Call(f"{CONFIG}.analyse:RankConfig", f"{WORKFLOW}.analyse_bases:analyse_rank"),
        "esscher analyse rank runs/first runs/second --data my.txt"),
    "analyse exposure": Command("How far a model's prefixes are from data.",
        Call(f"{CONFIG}.analyse:ExposureConfig", f"{WORKFLOW}.analyse_bases:analyse_exposure", loads=BASE),
        "esscher analyse exposure runs/eforcing --against runs/plain --data my.txt --plot exposure.png"),
    "exact motif": Command("Motif processes: number of strings with a motif, and entropies.",
        Call("esscher.cli.exact:MotifConfig", "esscher.cli.exact:motif"),
        "esscher exact motif --motif 10001011111000 --length 30 --mixture 0.9"),
    "exact language": Command("Regular languages: number of strings that match a pattern, and entropy.",
        Call("esscher.cli.exact:LanguageConfig", "esscher.cli.exact:language"),
        "esscher exact language '(0|10)*1?' --length 20"),
    "exact ngram": Command("A character n-gram model of text: its entropy, mean length, and perplexity on held-out text.",
        Call("esscher.cli.exact:NgramConfig", "esscher.cli.exact:ngram"),
        "esscher exact ngram --data my.txt --order 3"),
    "data": Command("Look at a data source: sizes, splits, tokens, examples.",
        Call(f"{CONFIG}.train:DataRun", f"{WORKFLOW}.train:describe_data"),
        "esscher data --data my.txt --tokenizer.kind byte"),
    "init": Command("A commented YAML file with every setting of a verb, for --config.",
        Call("esscher.cli.init:InitConfig", "esscher.cli.init:init"),
        "esscher init train --out train.yaml; esscher init train --base.kind xlnet"),
    "verify": Command("What differs between a finished folder and its manifest: missing, changed and added files.",
        Call("esscher.cli.verify:VerifyConfig", "esscher.cli.verify:verify"),
        "esscher verify runs/first; after a deliberate edit: esscher verify runs/first --accept"),
    "env": Command("What this machine and installation have.",
        Call("esscher.cli.env:EnvConfig", "esscher.cli.env:env"),
        "esscher env --json"),
    "report": Command("Runs side by side: the numbers they share with their intervals, the settings that differ.",
        Call("esscher.reports.report:ReportConfig", "esscher.reports.report:report_runs"),
        "esscher report runs/first runs/second --out first-and-second.html"),
    "reproduce": Command("Run a recipe and print its table beside the paper's.",
        Call("esscher.papers:ReproduceConfig", "esscher.papers:reproduce"),
        "esscher reproduce laboratory --scale smoke"),
}
# fmt: on


PLANNED = (
    "train",
    "tilt",
    "distil",
    "finetune",
    "measure",
    "sample",
    "risk",
    "reproduce",
)  # verbs that --dry-run knows the cost of


def command_app(name: str, command: Command, chosen: Chosen, place: int) -> App:
    """The app of one verb, with the flags of the kinds chosen."""
    call, cls = command.call, load_object(command.call.settings)
    bound: Any = bind(cls, chosen)
    default = bound() if is_optional(bound) else None

    def run_on_model(load: Any, settings: Any = default) -> Any:
        checked = settings_from(settings)  # before the model is loaded, so that a mistake costs nothing
        return load_object(call.function)(load_object("esscher.workflow.model:load_model")(load), checked)

    def run_alone(settings: Any = default) -> Any:
        return load_object(call.function)(settings_from(settings))

    def run_without_settings() -> Any:
        return load_object(call.function)(cls())

    run: Any = run_alone if call.loads is None else run_on_model
    run.__annotations__ = {"settings": Annotated[bound, Parameter(name="*")]}
    if call.loads is not None:
        run.__annotations__["load"] = Annotated[load_object(call.loads), Parameter(name="*")]
    if default is None:
        run.__defaults__ = None
    about = "\n\n".join(" ".join(paragraph.split()) for paragraph in (cls.__doc__ or "").split("\n\n"))
    planned = "\n\n--dry-run prints what it would cost, and writes nothing." if name in PLANNED else ""
    app = App(
        name=name, help=f"{command.help}\n\n{about}", help_epilogue=f"Example: {command.example}{planned}", sort_key=place
    )
    app.default(run if fields(cls) else run_without_settings)
    return app
