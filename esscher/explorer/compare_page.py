"""The page of a blind comparison: a name, two texts side by side, three buttons."""

from typing import TYPE_CHECKING

from esscher.explorer import markup
from esscher.explorer.ballots import Ballots
from esscher.explorer.serving import load_gradio

if TYPE_CHECKING:
    from gradio import Blocks

QUESTION = "Which text is the more reasonable continuation? Do not mind if one or both end abruptly."


def build_comparison(ballots: Ballots) -> "Blocks":
    """The page; raters do not learn which model wrote what, and go on where they were when they give their name again."""
    gr, work = load_gradio(), Voting(ballots)
    with gr.Blocks(title="Which is better?", analytics_enabled=False) as page:
        with gr.Row():
            rater = gr.Textbox(label="Your name", elem_id="rater", scale=3)
            begin = gr.Button("Begin or go on", variant="primary", elem_id="begin", scale=1)
        shown = gr.HTML(markup.part("waiting", QUESTION), elem_id="pair")
        with gr.Row():
            buttons = {
                side: gr.Button(text, elem_id=f"vote-{side}", interactive=False)
                for side, text in (("left", "Left is better"), ("equal", "They are equal"), ("right", "Right is better"))
            }
        state = gr.State(None)  # the rater and the pair that is shown

        def answer(told: tuple[str, tuple[str, str] | None]) -> list[object]:
            html, now = told
            return [html, now, *(gr.update(interactive=now is not None) for _ in buttons)]

        outputs = [shown, state, *buttons.values()]
        begin.click(lambda name: answer(work.show(name)), rater, outputs, api_name="begin")
        rater.submit(lambda name: answer(work.show(name)), rater, outputs, api_name="enter")
        for side, button in buttons.items():
            button.click(
                lambda now, side=side: answer(work.vote(now, side)), state, outputs, api_name=side, concurrency_limit=None
            )
    return page


class Voting:
    """What the page calls: the next pair as HTML, and who looks at which."""

    def __init__(self, ballots: Ballots):
        self.ballots = ballots

    def show(self, name: str) -> tuple[str, tuple[str, str] | None]:
        """The rater's next pair."""
        rater = (name or "").strip()
        if not rater:
            return markup.part("error", "Please type your name first."), None
        pair = self.ballots.next(rater)
        if pair is None:
            return markup.part("waiting", "All pairs are judged. Thank you."), None
        left = self.ballots.left(rater, pair)
        texts = pair.side(left), pair.side("b" if left == "a" else "a")
        done = sum(vote.rater == rater for vote in self.ballots.votes())
        return markup.part("pair", QUESTION, pair.prompt, *texts, done + 1, len(self.ballots.pairs)), (rater, pair.id)

    def vote(self, now: tuple[str, str] | None, side: str) -> tuple[str, tuple[str, str] | None]:
        """Record the vote, then show the next pair."""
        if now is None:
            return markup.part("error", "There is no pair to judge; type your name and begin."), None
        rater, pair = now
        try:
            self.ballots.vote(rater, self.ballots.pairs[pair], side)
        except (ValueError, OSError) as error:
            return markup.part("error", f"The vote was not recorded: {error}"), now
        return self.show(rater)
