"""Completion of verbs, flags and choices in bash, zsh and fish, without torch.

`esscher --install-completion` writes a short script that calls `esscher __complete WORDS...` at every TAB; the last word is the
one to complete. The candidates are those of the command line as it is typed so far, so that flags after `--base.kind xlnet` are
those of an xlnet. Where there is none, the shell completes paths.
"""

import io
import os
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from esscher.cli.commands import COMPLETE
from esscher.core.console import write_data

WORDS, RECORDS = "CYCLOPTS_COMPLETION_WORDS", "\x1f"  # protocol of cyclopts: words in a variable, lines after a marker
NEGATION = re.compile(r"--([\w-]+\.)*no-")
Shell = Literal["bash", "zsh", "fish"]

SCRIPTS = {
    "bash": """\
# Completion of esscher for bash.
_esscher() {
    local IFS=$'\\n' line
    COMPREPLY=()
    while read -r line; do
        COMPREPLY+=("${line%%$'\\t'*}")
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _esscher esscher
""",
    "zsh": """\
#compdef esscher
# Completion of esscher for zsh.
_esscher() {
    local -a lines values shown
    lines=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    values=(${lines%%$'\\t'*})
    shown=(${lines/$'\\t'/  -- })
    if (( ${#values} )); then
        compadd -l -d shown -- $values
    else
        _files
    fi
}
if [[ "${funcstack[1]}" == "_esscher" ]]; then _esscher "$@"; elif (( $+functions[compdef] )); then compdef _esscher esscher; fi
""",
    "fish": """\
# Completion of esscher for fish.
function __esscher_complete
    set -l words (commandline -opc)
    set -l found ($words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c esscher -f -a '(__esscher_complete)'
""",
}


def script_path(shell: Shell) -> Path:
    """Where the shell looks for the script."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return {
        "bash": data / "bash-completion/completions/esscher",
        "zsh": home / ".zsh/completions/_esscher",
        "fish": config / "fish/completions/esscher.fish",
    }[shell]


def install_completion(
    shell: Annotated[Shell | None, Parameter(help="The shell; by default the one that this command was called from.")] = None,
) -> Any:
    """Complete verbs, flags and choices at TAB in bash, zsh or fish."""
    from cyclopts.completion import detect_shell
    from cyclopts.completion.install import add_to_rc_file

    from esscher.reports.report import Report  # here, because it would slow down --help

    if shell is None:
        name: str | None = None
        with suppress(Exception):
            name = detect_shell()
        if name not in SCRIPTS:
            raise ValueError(
                "This shell is none of bash, zsh and fish, or unknown. Nothing was written; name it: "
                "esscher --install-completion bash"
            )
        shell = name  # type: ignore[assignment]
    assert shell is not None
    file = script_path(shell)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SCRIPTS[shell], encoding="utf8")
    changed = shell != "fish" and add_to_rc_file(file, "esscher", shell)
    started = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": None}[shell]
    facts = {"shell": shell, "script": file, "added_a_line_to": started if changed else None}
    return Report("esscher --install-completion", facts, {}, ["Open a new shell, or run: source " + str(file)])


def complete(words: Sequence[str], build: Callable[[Sequence[str]], App], shared: App) -> None:
    """Print the candidates for the last word, a line each: the candidate, a tab, its help. An error prints nothing."""
    with suppress(Exception, SystemExit):
        found = _candidates(build(list(words[:-1])), words)
        if words[-1].startswith("-") and len(words) > 1:
            found += _candidates(shared, [words[-1]])
        write_data("".join(f"{line}\n" for line in dict.fromkeys(found)))


def _candidates(app: App, words: Sequence[str]) -> list[str]:
    printed = io.StringIO()
    os.environ[WORDS] = "".join(word + RECORDS for word in words)
    with redirect_stdout(printed):
        app([COMPLETE])
    lines = printed.getvalue().split("\n")
    prefix = next((line.partition("\t")[2] for line in lines if line.startswith(f"{RECORDS}prefix\t")), "")
    negations = "no-" in words[-1]  # such as --length.no-chunks, once the word has begun so
    return [
        prefix + line for line in lines if line and not line.startswith(RECORDS) and (negations or not NEGATION.match(line))
    ]
