"""esscher analyse: what a tilted model does differently from its base and whether that is what the data do; and, of bases, how
far their context helps, whether their head is a bottleneck, and how far their prefixes are from the data's."""

from cyclopts import App

ANALYSES = {
    "energies": "Whether base and joint have the energies of the data.",
    "next-token": "What comes next under the base, and under the joint.",
    "n-grams": "How much data, base and joint repeat themselves.",
    "discriminate": "Whether a fresh classifier tells the draws of base and joint from data.",
    "context": "How far back the context of models helps.",
    "rank": "Whether the head of models is a bottleneck.",
    "exposure": "How far a model's prefixes are from data.",
}

app = App(name="analyse", help_epilogue="Example: esscher analyse energies runs/first --energy runs/tilted --data my.txt")
for _place, (_name, _help) in enumerate(ANALYSES.items()):
    app.command(f"esscher.commands.analyse.{_name.replace('-', '_')}:app", name=_name, help=_help, sort_key=_place)
