"""All verbs of the command line: for each its settings and the call that takes them; and the overview of `esscher --help`.
Nothing else lists verbs, and nothing here takes time to import."""

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass


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


ABOUT = "Better autoregressive sequence models by energies over whole sequences: p(x) ~ a(x) exp(-E(x))."
EXAMPLE = "Each verb has --help with an example. To start: esscher train --out runs/first; esscher sample runs/first"
INSTALL_COMPLETION, COMPLETE = "--install-completion", "__complete"  # the second is the first word of a call by a shell
FLAGS = {
    INSTALL_COMPLETION: "Complete verbs, flags and choices at TAB in bash, zsh or fish.",
    "--version": "Print the version.",
    "--help, -h": "Print this overview, or all flags of a verb.",
}
WIDEST = 100  # columns of the overview
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


def called_verb(tokens: Sequence[str]) -> str | None:
    """The path of the verb that is called, if any."""
    words = [token for token in tokens if not token.startswith("-")]
    return next((path for path in COMMANDS if words[: len(path.split())] == path.split()), None)


def overview() -> str:
    """What `esscher --help` prints: a line for each verb."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    verbs: dict[str, str] = {}
    for path, command in COMMANDS.items():
        group, _, verb = path.rpartition(" ")
        verbs |= {group: GROUPS[group]} if group else {verb: command.help}
    column = max(map(len, [*verbs, *FLAGS])) + 4

    def table(lines: dict[str, str]) -> str:
        return "\n".join(
            textwrap.fill(about, width, initial_indent=f"  {name}".ljust(column), subsequent_indent=" " * column)
            for name, about in lines.items()
        )

    paragraphs = (
        textwrap.fill(ABOUT, width),
        f"Verbs:\n{table(verbs)}",
        f"Flags:\n{table(FLAGS)}",
        textwrap.fill(EXAMPLE, width),
    )
    return "\n\n".join(("Usage: esscher VERB [FLAGS]", *paragraphs))
