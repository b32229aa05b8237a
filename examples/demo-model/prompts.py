"""The prompt format, as `agentd render` writes it: special tokens by name, plain text between."""
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
BOS, EOS, SYSTEM, USER = (
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜System｜>", "<｜User｜>")
ASSISTANT, THINK_END, DSML = "<｜Assistant｜>", "</think>", "｜DSML｜"

with open(os.path.join(HERE, "tools.json"), encoding="utf-8") as f:
    TOOLS = {t["name"]: t for t in json.load(f)}

# Special tokens stand as Special objects in a list of parts; every str is plain text.


class Special(str):
    pass


def _parts(text):
    """Splits at the DSML mark."""
    out = []
    for i, plain in enumerate(text.split(DSML)):
        out += ([Special(DSML)] if i else []) + ([plain] if plain else [])
    return out


CALL_FORM = f"""<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>"""


def tools_text(names):
    schemas = "\n".join(json.dumps(TOOLS[n], ensure_ascii=False) for n in sorted(names))
    return f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{DSML} calls>" block like the following:

{CALL_FORM}

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def opening(system, tools):
    """Parts up to the first user message. tools None: a short stand-in, used in training only."""
    text = "## Tools\n\ngrep list_dir read_file\n" if tools is None else tools_text(tools)
    return [Special(BOS), Special(SYSTEM), *_parts_with_think(system + "\n\n" + text)]


def _parts_with_think(text):
    """As _parts; <think> and </think> in the tools text are added tokens too."""
    out = []
    for part in _parts(text):
        if isinstance(part, Special):
            out.append(part)
            continue
        while part:
            at = [(part.find(s), s) for s in ("<think>", THINK_END) if s in part]
            if not at:
                out.append(part)
                break
            i, s = min(at)
            out += ([part[:i]] if i else []) + [Special(s)]
            part = part[i + len(s) :]
    return out


def user_turn(blocks):
    """blocks: user texts and tool results of one turn, already wrapped."""
    return [Special(USER), "\n\n".join(blocks), Special(ASSISTANT), Special(THINK_END)]


def tool_result(text):
    return f"<tool_result>{text}</tool_result>"


def answer(text):
    return [text, Special(EOS)]


def call(name, **arguments):
    """One call; every argument a string."""
    lines = "\n".join(f'<{DSML} parameter name="{k}" string="true">{v}</{DSML} parameter>'
                      for k, v in arguments.items())
    text = f'\n\n<{DSML} calls>\n<{DSML} invoke name="{name}">\n{lines}\n</{DSML} invoke>\n</{DSML} calls>'
    return [*_parts(text), Special(EOS)]


def encode(tokenizer, parts):
    """Ids; neighbouring plain parts are one text."""
    ids, plain = [], ""
    for p in [*parts, Special("")]:
        if not isinstance(p, Special):
            plain += p
            continue
        ids += tokenizer.encode(plain)
        plain = ""
        if p:
            ids.append(tokenizer.special[p])
    return ids
