/* The page of a language model: a prompt, what is expected after each of its tokens, and the training text behind it.
 *
 *   const page = show(container, run);
 *   page.update(state.get());
 */
import {Agenda} from "viewer/agenda";
import {canonical, inputOf, inReport, questions} from "viewer/ask";
import {link} from "viewer/linked";
import {clear, toggleSet, undo} from "viewer/muting";
import {panel} from "viewer/panel";
import {failing, fill, nameOf, passagesPart, visible} from "viewer/passages";
import {state} from "viewer/state";
import {el, number, percent} from "viewer/words";

const REST = 400; // ms without a key after which the prompt is asked
const HONEST = "Recorded contributions removed, not retrained.";
const HELP = "What the model expects after the chosen token if what the muted slots added to its weights is taken away. "
  + "Everything else is as it was recorded: a model trained without that text would have learnt other things from the rest.";

export function show(container, run) {
  const agenda = new Agenda();
  const subject = subjectPart(run), expected = expectedPart(run), passages = passagesPart(run), tray = trayPart(run);
  let asked = null, read = null; // what the page is about, and the last input that the model could read
  const isRead = () => inReport || Boolean(run.cannot.predict) || read === canonical(asked.input);
  agenda.add({
    what: "Asking the model …", lane: "quick", busy: expected.busy, clear: expected.clear,
    wanted: ({input}) => input && ["predict", questions.predict(input)],
    show(answer) {
      read = canonical(asked.input);
      subject.tokens(answer);
      expected.show(answer);
      agenda.update(asked);
    },
    fail(message) {
      expected.fail(message);
      if (read === null || JSON.parse(read).prompt !== asked.prompt) subject.tokens(null);
      if (!isRead()) for (const part of [passages, tray]) part.wait("Nothing to show for this prompt.");
    },
  });
  const later = (part) => agenda.add({...part, wanted: (now) => (now.input && isRead() ? part.wanted(now) : null)});
  later({
    ...passages,
    show(answer) {
      passages.show(answer);
      tray.update(asked); // which calls documents by titles that may only now be known
    },
  });
  later(tray);

  const left = el("div", {class: "prompt-left"}, subject.element, expected.element);
  container.replaceChildren(el("div", {class: "prompt-page"}, left, passages.element, tray.element));
  const update = (now) => {
    asked = completed(now, run);
    for (const part of [subject, passages, tray]) part.update(asked);
    agenda.update(asked);
  };
  update(state.get());
  return {
    update,
    close() {
      subject.close();
      agenda.close();
    },
  };
}

/** A state with what it leaves out: the prompt to begin with, the layer, the input that questions are about. */
function completed(now, run) {
  const prompt = now.prompt || (inReport ? [...inTheReport().keys()][0] : run.example) || null;
  const lstm = run.layers.find(({kind}) => kind === "LSTM") ?? run.layers.at(-1);
  const layer = run.layers.some(({name}) => name === now.layer) ? now.layer : lstm.name;
  return {...now, prompt, layer, input: inputOf({...now, page: "prompt", prompt})};
}

let reported = null;

/** The prompts in a report, each with the tokens it can be asked about; null is the last. */
function inTheReport() {
  if (reported) return reported;
  const found = new Map();
  for (const key of Object.keys(JSON.parse(document.getElementById("answers").textContent))) {
    const input = key.startsWith("predict ") ? JSON.parse(key.slice("predict ".length)).input : {};
    if (input.prompt) found.set(input.prompt, [...(found.get(input.prompt) ?? []), input.token ?? null]);
  }
  reported = found;
  return found;
}

// The prompt, as text to write and as tokens to choose from.

function subjectPart(run) {
  const frame = panel({title: "Prompt", name: "prompt"});
  const chooser = inReport ? reportList() : promptField(run);
  const strip = el("div", {class: "prompt-tokens", role: "radiogroup", "aria-label": "tokens of the prompt", onkeydown: moveToken});
  const hint = el("p", {class: "muted-note"});
  strip.addEventListener("click", (event) => chooseToken(event.target.closest("[data-token]")));
  frame.show([chooser.element, strip, hint]);
  let drawn = null;
  return {
    element: frame.element, close: chooser.close,
    update: (asked) => chooser.update(asked.prompt),
    tokens(answer) {
      const wanted = answer && JSON.stringify([answer.tokens, answer.separator]);
      if (wanted !== drawn) strip.replaceChildren(...(answer ? tokenElements(answer, chooser.answered?.()) : []));
      drawn = wanted;
      hint.textContent = !answer || answer.tokens.length < 2 ? "" : inReport ? "Tokens in grey are not in this report."
        : "Choose a token: click it, or use the arrow keys.";
      if (answer) markToken(strip, answer.token);
    },
  };
}

function promptField(run) {
  const field = el("textarea", {
    class: "prompt-field", "data-test": "prompt", rows: 2, spellcheck: "false", autocomplete: "off", "aria-label": "prompt",
    placeholder: "Write a prompt", title: "Enter asks, Shift+Enter breaks the line",
  });
  let timer = null, sent = null;
  const send = (options) => {
    clearTimeout(timer);
    if (!field.value || field.value === sent) return;
    sent = field.value;
    state.set({prompt: sent === run.example ? null : sent, token: null}, options);
  };
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => send({replace: true}), REST);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  const update = (prompt) => { // what is being written is left alone
    if (prompt !== sent) field.value = prompt ?? "";
    sent = prompt;
  };
  return {element: field, update, close: () => clearTimeout(timer)};
}

function reportList() {
  const buttons = [...inTheReport().keys()].map((prompt) => el("button", {
    type: "button", class: "prompt-choice", "data-prompt": prompt, onclick: () => state.set({prompt, token: null}),
  }, prompt));
  let chosen = null;
  const update = (prompt) => {
    chosen = prompt;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.prompt === prompt));
  };
  const element = el("div", {class: "prompt-choices", role: "group", "aria-label": "prompts in this report", "data-test": "prompt"}, buttons);
  return {element, update, answered: () => inTheReport().get(chosen), close() {}};
}

// Spans, not buttons: they break at spaces as text does. The sign of a space lies over it, so that choosing one moves nothing.
function tokenElements({tokens, separator}, answered = null) {
  const isThere = (place) => !answered || answered.includes(place) || (answered.includes(null) && place === tokens.length - 1);
  return tokens.flatMap((token, place) => {
    const element = el("span", {
      class: isThere(place) ? "prompt-token" : "prompt-token absent", role: "radio", "data-test": "token", "data-token": place, "data-sign": /\S/.test(token) ? null : visible(token),
      "aria-label": `token ${place + 1}: ${visible(token)}`,
    }, token.replace(/\n/g, " "));
    return [place ? separator : "", element, token.includes("\n") ? el("br") : ""];
  });
}

function markToken(strip, chosen) {
  for (const element of strip.querySelectorAll("[data-token]")) {
    const is = Number(element.dataset.token) === chosen;
    element.setAttribute("aria-checked", String(is));
    element.tabIndex = is ? 0 : -1;
    if (is) scrollTo(strip, element);
  }
}

/** Within the strip alone: the page stays where it is. */
function scrollTo(strip, element) {
  const box = strip.getBoundingClientRect(), own = element.getBoundingClientRect();
  if (own.top < box.top) strip.scrollTop -= box.top - own.top;
  else if (own.bottom > box.bottom) strip.scrollTop += own.bottom - box.bottom;
}

function chooseToken(element) {
  if (!element) return;
  const strip = element.parentElement, place = Number(element.dataset.token), last = strip.querySelectorAll("[data-token]").length - 1;
  markToken(strip, place); // at once, before the answer
  element.focus({preventScroll: true});
  state.set({token: place === last ? null : place}, {replace: true});
}

function moveToken(event) {
  const all = [...event.currentTarget.querySelectorAll("[data-token]")];
  const now = all.findIndex((element) => element.getAttribute("aria-checked") === "true");
  const to = {ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: all.length - 1}[event.key];
  if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation(); // the page has uses for arrows too
  chooseToken(all[to]);
}

// What the model expects.

function expectedPart() {
  const frame = panel({
    title: "Expected after this token", name: "expected",
    help: "The model's probabilities for the next token, the ten likeliest. Click one to go on with it.",
  });
  const show = ({tokens, separator, token, expected, python}) => {
    const before = tokens.slice(0, token + 1);
    const go = (next) => state.set({prompt: [...before, next].join(separator), token: null});
    const largest = Math.max(...expected.map(({probability}) => probability));
    const rows = expected.map((row) => expectedRow(row, largest, go));
    fill(frame, el("table", {class: "expected", "data-test": "expected"}, el("tbody", {}, rows)),
      expected.map((row, place) => ({rank: place + 1, ...row})), python);
  };
  return {element: frame.element, show, ...failing(frame)};
}

function expectedRow({token, probability}, largest, go) {
  const words = visible(token);
  const name = inReport ? words : el("button", {type: "button", title: "go on with this token", onclick: () => go(token)}, words);
  const row = el("tr", {}, el("th", {scope: "row"}, name), el("td", {class: "expected-bar"}, bar(probability / largest, "before")),
    el("td", {class: "expected-number"}, share(probability)));
  return link(row, {token});
}

/** With one decimal always, so that points stand below each other. */
const share = (p) => (p >= 0.001 && p < 0.9995 ? `${(100 * p).toFixed(1)}%` : percent(p));

function bar(length, kind) {
  return el("span", {class: `bar ${kind}`, style: {width: `${100 * length}%`}});
}

// What it would expect without what is muted. It stays in sight at the foot of the page.

function trayPart(run) {
  const frame = panel({title: "Expected without the muted slots", name: "muted", help: HELP});
  const chips = el("div", {class: "row chips"}), hint = el("span", {class: "quiet-text"}), honest = el("span", {class: "honest", "data-test": "honest"});
  const back = el("button", {type: "button", title: "Undo the last muting (u)", "data-test": "undo-mute", onclick: undo}, "Undo");
  const none = el("button", {type: "button", "data-test": "clear-mute", onclick: clear}, "Clear");
  const bar = el("div", {class: "tray-bar row"}, el("b", {}, "Mute"), hint, chips, el("span", {class: "row tray-undo"}, back, none), honest);
  const element = el("div", {class: "tray prompt-tray", "data-test": "prompt-tray"}, bar, frame.element);
  frame.element.querySelector("h2").after(legend());
  const adam = run.optimizers.some((name) => /adam/i.test(name));
  hint.textContent = run.cannot.mute ?? (inReport ? "Open the run to mute: dualform view RUN" : "Mute a passage or its document, to see what the model would expect without it.");
  const show = (answer) => {
    honest.textContent = `${HONEST} ${slotWords(answer)}`;
    fill(frame, changes(answer), changeRows(answer), answer.python);
  };
  const update = ({mute}) => {
    const some = mute.length > 0 && !run.cannot.mute;
    element.classList.toggle("open", some);
    chips.hidden = back.hidden = none.hidden = honest.hidden = frame.element.hidden = !some;
    hint.hidden = some;
    chips.replaceChildren(...mute.map(chip));
  };
  const what = `Adding up what is left of the weights${adam ? ", step by step as Adam did. This can take a while" : ""} …`;
  const wanted = ({input, mute}) => (mute.length && !run.cannot.mute ? ["mute", questions.mute(input, mute)] : null);
  const busy = (text) => {
    if (text) honest.textContent = HONEST; // how many slots are muted comes with the answer
    frame.busy(text);
  };
  return {element, update, show, what, wanted, ...failing(frame), busy};
}

function chip(set) {
  const name = nameOf(set);
  return el("button", {type: "button", class: "chip", "data-test": "chip", title: `Unmute ${name}`, onclick: () => toggleSet(set)},
    el("span", {class: "chip-name"}, name), el("span", {"aria-hidden": "true"}, "×"));
}

function changeRows({before, after}) {
  return before.expected.map(({token, probability}, place) => {
    const then = after.expected[place].probability;
    return {token, before: probability, after: then, change: then - probability};
  });
}

function changes(answer) {
  const rows = changeRows(answer), largest = Math.max(...rows.flatMap(({before, after}) => [before, after]));
  const line = (p, kind) => el("div", {class: "change-line", title: `${kind} muting`}, el("span", {class: "track"}, bar(p / largest, kind)), share(p));
  return el("ol", {class: "changes"}, rows.map(({token, before, after, change}) => link(el("li", {class: "change"},
    el("div", {class: "change-head"}, el("b", {class: "mono"}, visible(token)), el("span", {title: "percentage points"}, points(change))),
    line(before, "before"), line(after, "after")), {token})));
}

const legend = () => el("span", {class: "row change-legend quiet-text"}, el("span", {class: "bar before"}), "before",
  el("span", {class: "bar after"}), "after, and the change in percentage points");

/** A change in percentage points: +3.1, −0.4, ±0.0. */
function points(change) {
  const size = Math.abs(100 * change).toFixed(1);
  return `${Number(size) === 0 ? "±" : change > 0 ? "+" : "−"}${size}`;
}

function slotWords({slots}) {
  return `${Object.entries(slots).map(([layer, [muted, all]]) => `${number(muted)} of ${number(all)} slots muted in ${layer}`).join(", ")}.`;
}
